"""Prints the paper's results next to ours: `python -m benchmarks.paper [--only NAME ...]`.

A complete run takes hours on two cores and can be stopped and restarted. `--quick` shows in a
minute that an experiment runs, on the embedded digits. `--publish` writes docs/notes/results.json,
its pages and pictures. It keeps results that this run did not measure.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from matplotlib.figure import Figure

from benchmarks.harness import Measurements, markdown_table, provenance
from benchmarks.paper import shared, students, votes
from benchmarks.paper.laboratory import PAGES, Experiment, Laboratory
from pate_tf.core import artifacts

EXPERIMENTS: Mapping[str, Experiment] = {
    "teachers": votes.TEACHERS,
    "figure2": votes.FIGURE2,
    "figure3": votes.FIGURE3,
    "figure4": students.FIGURE4,
    "pate_g": students.PATE_G,
    "forests": students.FORESTS,
    "gnmax": students.GNMAX,
    "data_independent": votes.DATA_INDEPENDENT,
    "costs": votes.COSTS,
    "selective_sgd": shared.SELECTIVE_SGD,
    "selective_sgd_private": shared.SELECTIVE_SGD_PRIVATE,
}
MARK = "<!-- measured -->\n"


def publish(new: Mapping[str, Any], docs_dir: pathlib.Path) -> None:
    """Replaces experiments in the JSON file, and writes pages and pictures.

    Args:
        new: `command`, `date` and `rows` by name of the experiment. Each row has cells and numbers.
        docs_dir: holds `results.json` if anything was published, and the pages. Their text before
            `MARK` stays.
    """
    (docs_dir / "pictures").mkdir(parents=True, exist_ok=True)
    path = docs_dir / "results.json"
    stored = artifacts.read_json(path) if path.exists() else {}
    experiments = {name: {**stored, **new}[name] for name in EXPERIMENTS if name in {*stored, *new}}
    artifacts.write_json(path, experiments)
    for page in (docs_dir / f"{name}.md" for name in PAGES):
        parts = [page.read_text().split(MARK)[0] + MARK]
        for name, result in experiments.items():
            if EXPERIMENTS[name].page == page.stem:
                parts += _section(name, result, docs_dir)
        artifacts.write_text(page, "\n".join(parts))


def _section(name: str, result: Mapping[str, Any], docs_dir: pathlib.Path) -> Iterator[str]:
    """Yields the paragraphs of an experiment; draws its picture."""
    experiment = EXPERIMENTS[name]
    yield f"## {experiment.title}\n"
    yield f"{experiment.about}\n"
    yield markdown_table([row["cells"] for row in result["rows"]])
    numbers = [row["numbers"] for row in result["rows"] if row["numbers"]]
    if experiment.draw is not None and numbers:
        figure = Figure(figsize=(6, 4), layout="constrained")
        experiment.draw(figure, numbers)
        figure.savefig(docs_dir / f"pictures/results_{name}.png", dpi=80)
        yield f"![{experiment.title}](pictures/results_{name}.png)\n"
    yield f"`{result['command']}`, {result['date']}{result.get('commit', '')}.\n"


def main() -> int:
    """Runs the named experiments, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--images", nargs="+", default=["mnist"], help="mnist, svhn")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/paper")
    parser.add_argument("--seed", type=int, default=0, help="of training; not of the noise")
    parser.add_argument("--publish", action="store_true", help="write the results page, too")
    parser.add_argument("--docs_dir", type=pathlib.Path, default="docs/notes")
    flags = parser.parse_args()
    laboratory = Laboratory(
        measurements=Measurements(
            folder=flags.output_dir / "measurements",
            setting="quick" if flags.quick else "full",
            seed=flags.seed,
        ),
        folder=flags.output_dir / artifacts.SENSITIVE,
        data_dir=flags.data_dir,
        images=["digits"] if flags.quick else flags.images,
        is_quick=flags.quick,
    )
    results = {}
    for name in flags.only:
        rows = list(EXPERIMENTS[name].rows(laboratory))
        print(f"\n{name}: {EXPERIMENTS[name].title}\n")
        print(markdown_table([row.cells for row in rows]), flush=True)
        if rows:
            command = f"python -m benchmarks.paper --only {name}" + " --quick" * flags.quick
            command += f" --seed={flags.seed}" if flags.seed else ""
            shown = [{"cells": row.cells, "numbers": row.numbers} for row in rows]
            results[name] = {"command": command, **provenance(), "rows": shown}
    if flags.publish:
        publish(results, flags.docs_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
