"""Feature sums, DP-SGD and no privacy by one protocol for all data sets."""

import functools
import os
import unittest.mock
from collections.abc import Iterator
from typing import Any

import numpy as np

import pate_tf
from benchmarks.harness import data_dir_of, percent, separate_registry
from benchmarks.instead.methods import METHODS
from benchmarks.instead.problem import Problem
from benchmarks.paper.laboratory import Experiment, Laboratory, Row
from pate_tf.representations.catalogue import CACHE_VARIABLE

DELTA = 1e-6
EPSILONS = (0.1, 1.0)
HEADS = ("linear_head", "scattering_head")
LIBRARY, NO_PRIVACY = "pate_tf", "no_privacy"
# Name of the data set, whether it has a pool, splits, and the kinds of DP-SGD for comparison.
DATA_SETS = {
    "Adult, with a public pool": ("adult", True, 5, ("linear_head", "dp_sgd")),
    "Adult, private records only": ("adult", False, 5, ("linear_head", "dp_sgd")),
    "MNIST, with a public pool": ("mnist", True, 1, HEADS),
    "MNIST, private records only": ("mnist", False, 3, ("linear_head",)),
    "Fashion-MNIST, with a public pool": ("fashion_mnist", True, 1, HEADS),
    "Fashion-MNIST, private records only": ("fashion_mnist", False, 3, ("linear_head",)),
    "Sentences, private records only": ("benchmarks.own_data:sentences", False, 5, HEADS[:1]),
}
QUICK = {"digits": ("digits", True, 1, ("linear_head",))}
# Use the same object again, because its features are computed once.
_problem = functools.lru_cache(maxsize=1)(functools.partial(Problem, delta=DELTA))


def _accuracy(problem: Problem, laboratory: Laboratory, method: str, epsilon: float) -> float:
    """Returns the accuracy of a method on held-out samples; epsilon is 0 without privacy."""
    if method != LIBRARY:
        return METHODS[method].run(problem, epsilon, 0, laboratory.folder)["accuracy"]
    with separate_registry() as folder:
        fitted = pate_tf.fit(
            problem.data,
            method="feature_sums",
            epsilon=epsilon,
            delta=DELTA,
            directory=folder / "run",
            seed=problem.seed,
            accept_forecast=True,
        )
        return fitted.student.evaluate(problem.data.held_out)


def _accuracies(
    laboratory: Laboratory, name: str, has_pool: bool, splits: int, method: str, epsilon: float
) -> list[float]:
    """Returns accuracies of a method, one for each split."""
    config = {"dataset": name, "has_pool": has_pool, "method": method, "epsilon": epsilon}
    accuracies = []
    for split in range(splits):

        def measure(split: int = split) -> dict[str, Any]:
            problem = _problem(
                name=name,
                data_dir=data_dir_of(name, laboratory.data_dir),
                seed=laboratory.measurements.seed + split,
                is_quick=laboratory.is_quick,
                split=split,
                has_pool=has_pool,
            )
            cache = {CACHE_VARIABLE: str(laboratory.folder / "cache")}
            with unittest.mock.patch.dict(os.environ, cache):
                return {"accuracy": _accuracy(problem, laboratory, method, epsilon)}

        stored = laboratory.measurements.of("accuracy", {**config, "split": split}, measure)
        accuracies.append(stored.result["accuracy"])
    return accuracies


def _rows(laboratory: Laboratory) -> Iterator[Row]:
    data_sets = QUICK if laboratory.is_quick else DATA_SETS
    for title, (name, has_pool, splits, kinds) in data_sets.items():
        if laboratory.is_missing(name):
            continue
        accuracies = functools.partial(_accuracies, laboratory, name, has_pool, splits)
        cells, numbers = {"": title, "splits": str(splits)}, {}
        for epsilon in EPSILONS:
            at = f"epsilon {epsilon:g}"
            numbers[at] = {kind: accuracies(kind, epsilon) for kind in (LIBRARY, *kinds)}
            medians = {kind: float(np.median(each)) for kind, each in numbers[at].items()}
            cells[at] = percent(medians.pop(LIBRARY), 1)
            cells[f"DP-SGD, {at}"] = percent(max(medians.values()), 1)
        numbers[NO_PRIVACY] = _accuracies(laboratory, name, True, splits, NO_PRIVACY, 0.0)
        cells["no privacy"] = percent(float(np.median(numbers[NO_PRIVACY])), 1)
        yield Row(cells=cells, numbers=numbers)


ACCURACY = Experiment(
    title="Accuracy by one protocol",
    about="Median accuracy over splits of the public samples into pool and held-out samples, each "
    "with other seeds and noise (the first split is the data set's own). Epsilons are worst-case "
    'at delta 1e-6 under replace-one. Ours is `pate_tf.fit(data, method="feature_sums")`. DP-SGD '
    "is the better of two models: a linear head on the same features, and a linear head on fixed "
    "wavelets (images with a pool) or a small network (tables). The column without privacy has "
    "gradient boosting for tables, and a network for images.",
    rows=_rows,
)
