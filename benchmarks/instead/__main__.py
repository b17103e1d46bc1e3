"""Compares alternative methods: `python -m benchmarks.instead --dataset=mnist`.

All methods use the same private records, public pool and test samples. Each keeps to the same
epsilons at delta 1e-5, for replace-one records. The results are a table and a picture in
`--output_dir`. Finished measurements are stored, so a run that was stopped resumes. `--publish`
puts its cells into docs/notes/instead.md. `--quick` shows in seconds that everything runs, on the
embedded digits.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.harness import Measurements, NotStoredError, data_dir_of, provenance
from benchmarks.instead import page
from benchmarks.instead.methods import METHODS, Method, train_teachers
from benchmarks.instead.problem import Problem
from pate_tf.core import artifacts
from pate_tf.representations.catalogue import CACHE_VARIABLE

EPSILONS = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 8.0)


def measured(
    problem: Problem,
    measurements: Measurements,
    folder: pathlib.Path,
    *,
    name: str,
    epsilon: float | None,
    repetitions: int,
) -> dict[str, Any]:
    """Returns results of a method at an epsilon. Measures those that are not stored.

    Args:
        problem: the data.
        measurements: stored measurements.
        folder: sensitive; holds teachers.
        name: name of the method.
        epsilon: None without privacy.
        repetitions: number of repetitions. If nothing is measured, only the first must be stored.
    """
    method: Method = METHODS[name]
    config = {"dataset": problem.name}
    teachers = folder / f"teachers_{method.teachers}"
    if method.teachers != "":
        measurements.of(
            "teachers",
            {**config, "model": method.teachers},
            lambda: train_teachers(problem, method.teachers, teachers),
        )
    results, seconds = [], []
    for repetition in range(repetitions):

        def measure(repetition: int = repetition) -> dict[str, Any]:
            if method.features is not None:
                problem.features(method.features)  # training them takes as long as all cells
            began = time.monotonic()
            try:
                result = method.run(problem, epsilon or 0.0, repetition, teachers)
            except ValueError as error:
                if "epsilon: expected" not in str(error):
                    raise
                result = {"accuracy": None}  # no label at this epsilon
            return {**result, "seconds": time.monotonic() - began}

        with contextlib.suppress(NotStoredError) if repetition else contextlib.nullcontext():
            key = {**config, "epsilon": epsilon, "repetition": repetition}
            result = dict(measurements.of(name, key, measure).result)
            seconds.append(result["seconds"])
            results.append(result)
    return {
        "method": name,
        "epsilon": epsilon,
        "seconds": sorted(seconds)[len(seconds) // 2],
        "repetitions": results,
    }


def compared(flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a cell for each method and epsilon: first the cheap methods, for all epsilons."""
    folder = flags.output_dir or pathlib.Path("runs/instead") / flags.dataset.replace(":", "-")
    os.environ[CACHE_VARIABLE] = str((folder / "cache").absolute())  # learned in this run
    problem = Problem(
        name=flags.dataset,
        data_dir=data_dir_of(flags.dataset, flags.data_dir),
        seed=flags.seed,
        is_quick=flags.quick,
    )
    measurements = Measurements(
        folder=folder / "measurements",
        setting="quick" if flags.quick else "full",
        seed=flags.seed,
        only_stored=flags.stored,
    )
    sensitive = folder / artifacts.SENSITIVE
    for name in flags.again:
        for path in measurements.folder.glob(f"{name}-*.json"):
            path.unlink()
    if any(METHODS[name].teachers != "" for name in flags.again):
        shutil.rmtree(sensitive, ignore_errors=True)
        for path in measurements.folder.glob("teachers-*.json"):
            path.unlink()
    artifacts.make_sensitive_folder(sensitive)
    default = [name for name, method in METHODS.items() if method.by_default]
    for name in flags.methods or default:
        if METHODS[name].features == "wavelets" and not problem.is_image:
            continue
        for epsilon in flags.epsilons if METHODS[name].is_private else (None,):
            with contextlib.suppress(NotStoredError):
                yield measured(
                    problem,
                    measurements,
                    sensitive,
                    name=name,
                    epsilon=epsilon,
                    repetitions=flags.repetitions,
                )


def main() -> int:
    """Compares, prints, and publishes on request."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("--dataset", default="digits", help="a name, or module:function")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--again", nargs="+", choices=METHODS, default=[], help="measure anew")
    parser.add_argument("--stored", action="store_true", help="show what is stored, measure none")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of training; not of the noise")
    parser.add_argument("--output_dir", type=pathlib.Path, help="default: runs/instead/DATASET")
    parser.add_argument("--publish", action="store_true", help="into the docs")
    parser.add_argument("--docs_dir", type=pathlib.Path, default="docs/notes")
    flags = parser.parse_args()
    command = f"python -m benchmarks.instead --dataset={flags.dataset}" + " --quick" * flags.quick
    cells = []
    try:
        for cell in compared(flags):
            cells.append({**cell, "command": command, "date": provenance()["date"]})
            print(f"{cell['method']}, epsilon {cell['epsilon']}: {cell['repetitions']}", flush=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folder = flags.output_dir or pathlib.Path("runs/instead") / flags.dataset.replace(":", "-")
    artifacts.write_json(folder / "results.json", {"cells": cells, **provenance()})
    page.draw(flags.dataset, cells, folder / "picture.png")
    print(f"\n{page.table(cells)}")
    if flags.publish:
        page.publish(flags.dataset, cells, flags.docs_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
