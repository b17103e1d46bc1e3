"""The first release beside us, timed in the same run, from the user's own checkout.

Nothing of it is in this repository. `--reference=DIR` names the folder `research/pate_2017` of a
checkout of tensorflow/privacy, and `--reference_python` a Python that can run it.
"""

import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.paper.bench import Report

REPOSITORY = pathlib.Path(__file__).absolute().parents[2]
PATIENCE = 1_200  # seconds
TEACHERS, QUERIES, STEPS = 250, 1_000, 3_000


def compare(
    folder: pathlib.Path,
    python: str,
    *,
    dataset: str,
    data_dir: pathlib.Path | None,
    quick: bool,
    report: Report,
) -> list[dict[str, object]]:
    """Times the first release's analysis and one of its teachers, and ours.

    Args:
        folder: of its scripts.
        python: that runs them.
        dataset: of the teacher; the first release knows mnist, svhn and cifar10.
        data_dir: where our copy of it lies; it keeps its own.
        quick: whether a teacher takes a few steps only.
        report: is told what runs.

    Returns:
        A row for each: `what`, `seconds` of theirs and `ours`, `ratio`; `why` where one failed.
    """
    with tempfile.TemporaryDirectory() as place:
        here = pathlib.Path(place)
        votes = np.zeros((TEACHERS, QUERIES), np.int64)
        votes[:20] = np.arange(20)[:, None] % 9 + 1
        np.save(here / "labels.npy", votes)
        analysis = (f"--counts_file={here}/labels.npy", "--noise_eps=0.1")
        steps = 5 if quick else STEPS
        teacher = (f"--dataset={dataset}", f"--nb_teachers={TEACHERS}", "--teacher_id=0")
        ours = [sys.executable, str(REPOSITORY / "analysis.py"), *analysis]
        ours_teacher = [sys.executable, str(REPOSITORY / "train_teachers.py"), *teacher]
        if data_dir is not None:
            ours_teacher.append(f"--data_dir={data_dir.absolute()}")
        pairs: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
            f"analysis of {QUERIES:,} queries": (
                [python, str(folder / "analysis.py"), *analysis],
                [*ours, "--moments=8", "--bound=paper", "--conversion=classic"],
            ),
            f"one of {TEACHERS} teachers, {steps:,} steps": (
                [
                    *(python, str(folder / "train_teachers.py"), *teacher),
                    *(f"--max_steps={steps}", f"--data_dir={here}/data"),
                    f"--train_dir={here}/theirs",
                ],
                [*ours_teacher, f"--max_steps={steps}", f"--train_dir={here}/ours"],
            ),
        }
        rows = []
        for what, (theirs, own) in pairs.items():
            report(f"the first release: {what}")
            found: dict[str, object] = {"what": what}
            for key, command in (("seconds", theirs), ("ours", own)):
                seconds, why = _timed(command, here)
                found[key] = seconds
                if why:
                    found["why"] = why
            if "why" not in found:
                found["ratio"] = found["seconds"] / found["ours"]
            rows.append(found)
        return rows


def _timed(command: Sequence[str], folder: pathlib.Path) -> tuple[float | None, str]:
    """Returns seconds of wall time, or the last line of what went wrong."""
    began = time.monotonic()
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if ended.returncode:
        lines = (ended.stderr or ended.stdout).strip().splitlines() or ["no output"]
        return None, f"{pathlib.Path(command[1]).name} ended with {ended.returncode}: {lines[-1]}"
    return time.monotonic() - began, ""
