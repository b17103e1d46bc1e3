"""Runs experiments by name and keeps their rows in one JSON file."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.paper import (
    active,
    data_independent,
    feature_sums,
    figure2,
    figure3,
    figure4,
    figure5,
    forests,
    frontier,
    selective_sgd,
    selective_sgd_attacks,
    selective_sgd_private,
    students,
    teachers,
)
from benchmarks.paper.bench import Bench
from benchmarks.paper.rows import Experiment, Row
from pate_tf.core import artifacts

EXPERIMENTS: dict[str, Experiment] = {
    module.__name__.rpartition(".")[2]: module.EXPERIMENT
    for module in (
        teachers,
        figure2,
        figure3,
        figure4,
        figure5,
        active,
        forests,
        data_independent,
        students,
        feature_sums,
        frontier,
        selective_sgd,
        selective_sgd_attacks,
        selective_sgd_private,
    )
} | {
    "feature_sums_fashion": feature_sums.FASHION,
    "feature_sums_wavelets": feature_sums.WAVELETS,
    "pate_g": students.LONG,
}
RESULTS = "results.json"
LIBRARIES = ("tensorflow", "keras", "numpy", "scipy", "scikit-learn", "opendp")


def check_names(names: Sequence[str]) -> None:
    """Checks that all experiments exist.

    Raises:
        ValueError: if one does not.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"only: expected some of {', '.join(EXPERIMENTS)}, got {name!r}")


def run(
    bench: Bench,
    name: str,
    *,
    output_dir: pathlib.Path,
    flags: str,
    show: Callable[[Row], None],
) -> dict[str, Any]:
    """Runs an experiment and returns all results in the folder, those of earlier runs among them.

    Args:
        bench: where it is run.
        name: of the experiment, checked.
        output_dir: holds the results.
        flags: what decides the results, as typed.
        show: is told each row as soon as it is measured.
    """
    path = output_dir / RESULTS
    results = artifacts.read_json(path) if path.exists() else {"experiments": {}}
    rows = []
    for row in EXPERIMENTS[name].rows(bench):
        show(row)
        rows.append(dataclasses.asdict(row))
    results["experiments"][name] = {
        "command": f"python -m benchmarks.paper --only={name}{flags}",
        # How these rows were measured, whatever later rows will be.
        "about": EXPERIMENTS[name].about,
        "seed": bench.seed,
        "insecure_seed": bench.insecure_seed,
        "setting": bench.setting.name,
        "versions": versions(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "seconds": sum(row["seconds"] for row in rows),
        "rows": rows,
    }
    output_dir.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(path, results)
    return results


def versions() -> dict[str, str]:
    """The versions that results may depend on."""
    found = {"python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in LIBRARIES}
