"""Linear functions that predict a number, or several labels, from noisy sums. Post-processing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, LIKELY, Dataset
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT
from pate_tf.postprocessing.regression import (
    LEAST_VARIANCE,
    functions_of_moments,
    labels_of,
    regress,
    standardisation,
)
from pate_tf.students.student_kinds.linear_head import functions_of_labels

REDRAWN: Final = 80  # tables with new noise, for the interval of a number
EPS = float(np.finfo(np.float32).eps)


def target_functions(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    num_redrawn: int = 0,
    **facts: Any,
) -> npt.NDArray[np.float64]:
    """Returns weights from a vector to what a student predicts, `[width, num_outputs]`. Public.

    The noise of a number's function is known, as its law is: the same law is added to the released
    sums again and again (parametric bootstrap, Efron and Tibshirani 1993, chapter 6).

    Args:
        dataset: of a number or several labels.
        vectors: of the public pool, `[num_inputs, width]`; without rows where there is none.
        values: noisy sums of records, in steps of 1 / LATTICE: `[width, num_classes]`, without a
            pool `[width, num_classes + width]`.
        noise: standard deviation on each number, in what a record adds at most.
        num_redrawn: how often noise is added again; 0, or at least 2.
        **facts: `num_records` and `groups`, as of `functions_of_moments`.

    Returns:
        Of several labels the log odds of each. Of a number one function, 0 at the lowest value of
        its range and 1 at the highest, and beside it what redrawn noise changes of it,
        `[width, 1 + num_redrawn]`: the norm of what these say of a vector is the standard deviation
        of the function there.
    """
    again = np.random.default_rng(0).normal(0.0, noise * LATTICE, (num_redrawn, *values.shape))
    tables = [values, *(values + each for each in again)]
    if len(vectors):
        found = _functions_of_sums(dataset, vectors, tables, noise, facts.get("num_records"))
    else:
        number = dataset.num_classes
        facts["max_labels"] = dataset.max_labels
        found = [functions_of_moments(each, number, noise, **facts)[:2] for each in tables]
    if dataset.target_range is not None:
        function, *others = (each[:, 1] for each, _ in found)
        if not others:
            return function[:, None]
        changes = (np.array(others) - np.mean(others, axis=0)) / math.sqrt(num_redrawn - 1)
        return np.vstack([function, changes]).T
    return _log_odds(*found[0])


def functions_of_votes(
    dataset: Dataset, vectors: npt.NDArray[np.float64], released: ReleasedLabels, num_teachers: int
) -> npt.NDArray[np.float64]:
    """Returns weights as `target_functions` from noisy sums of what teachers predict. Public.

    Of a number the difference of both sums is used, of which the number of teachers is known.

    Args:
        dataset: of a number or several labels.
        vectors: of the queried inputs, `[num_queries, width]`.
        released: noisy sums over teachers of their `target_rows`, as `noisy_counts`.
        num_teachers: that voted.
    """
    means = cast(IntArray, released.noisy_counts) / (LATTICE * num_teachers)
    if dataset.target_range is None:
        targets = means * math.sqrt(dataset.max_labels)
        functions, _ = functions_of_labels(vectors, targets)
        return _log_odds(functions, targets.mean(axis=0))
    targets = (1.0 + means[:, 1:] - means[:, :1]) / 2.0
    noise = released.cost.charge.noise_scales["sigma"]
    deviation = noise / (math.sqrt(2.0) * num_teachers)
    drawn = np.random.default_rng(0).normal(0.0, deviation, (len(targets), REDRAWN))
    functions, _ = functions_of_labels(vectors, targets, drawn / math.sqrt(REDRAWN))
    return functions


def _log_odds(
    functions: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns log odds of labels from functions that are near their probabilities.

    The first terms of the Taylor series of the log odds, at the label's share.
    """
    shares = np.clip(shares, EPS, 1.0 - EPS)
    slopes = 1.0 / (shares * (1.0 - shares))
    functions = functions * slopes
    functions[-1] += (scipy.special.logit(shares) - shares * slopes) / CONSTANT
    return functions


def _functions_of_sums(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    tables: Sequence[npt.NDArray[Any]],
    noise: float,
    num_records: int | None,
) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Returns functions of vectors as of `functions_of_moments`, and shares, of each table of sums.

    What a target has in common with a feature is the covariance of both. The pool says how
    features vary together. Each function is the likeliest one under Gaussian priors (`regress`).
    """
    mean, factors = standardisation(vectors[:, :-1], LEAST_VARIANCE)
    rows = ((vectors[:, :-1] - mean) * factors).astype(np.float32)
    measured = (vectors[:, :-1] - mean).T @ rows / len(rows)
    unit = math.sqrt(max(float(np.square(measured).sum(axis=1).mean()), np.finfo(float).tiny))
    spread = float(np.square(vectors[:, :-1]).mean())
    measurements = list[tuple[npt.NDArray[np.float64], float]]()
    of_tables = list[npt.NDArray[np.float64]]()
    for table in tables:
        sums = table * (math.sqrt(max(dataset.max_labels, 1)) / LATTICE)
        if dataset.target_range is None:
            number = float(num_records or max(sums[-1].max() / CONSTANT, 1.0))
            shares = np.clip(sums[-1] / CONSTANT / number, 0.0, 1.0)
            beyond = sums[:-1] - np.outer(number * mean, shares)
            variances = np.full(len(shares), noise**2 * dataset.max_labels)
            # The pool's mean stands for the records' own.
            variances += number * (1.0 + number / len(vectors)) * spread * shares**2
        else:
            number = float(num_records or max(sums[-1].sum() / CONSTANT, 1.0))
            high = float(np.clip(sums[-1, 1] / max(sums[-1].sum(), CONSTANT), 0.0, 1.0))
            shares = np.array([1.0 - high, high])
            # Sums of v s less those of v, times the mean of s: what all records share drops out.
            covariance = (1.0 - high) * sums[:-1, 1] - high * sums[:-1, 0]
            beyond = np.column_stack([-covariance, covariance])
            variances = np.full(2, noise**2 * float(np.square(shares).sum()))
        variances += number * spread * shares * (1.0 - shares)  # which records happened to be there
        for column, variance in zip(beyond.T, variances, strict=True):
            measurements.append(
                (column[:, None] / number / unit, math.sqrt(variance) / number / unit)
            )
        of_tables.append(shares)
    fits = regress(rows[:1], measured / unit, measurements)
    weights = factors[:, None] * np.hstack([np.asarray(fit.weights) for fit in fits])
    shares = np.concatenate(of_tables)
    functions = np.vstack([weights, (shares - mean @ weights) / CONSTANT])
    return list(zip(np.split(functions, len(of_tables), axis=1), of_tables, strict=True))


def predictions_of_pool(outputs: npt.NDArray[np.float64], dataset: Dataset) -> PoolLabels:
    """Returns what functions of `target_functions` say of a pool, as labels of its inputs.

    Of a number, each input's weights of its lowest and highest value; of several labels the most
    probable one.

    Args:
        outputs: of the functions, `[num_inputs, num_outputs]`.
        dataset: of the pool.
    """
    if dataset.target_range is not None:
        share = np.clip(outputs[:, 0], 0.0, 1.0)
        return labels_of(np.column_stack([1.0 - share, share]))
    return PoolLabels(
        query_indices=np.arange(len(outputs)),
        labels=outputs.argmax(axis=1),
        num_classes=dataset.num_classes,
    )


def predicted(outputs: npt.NDArray[np.floating], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns what outputs of functions say: numbers in their unit, or probabilities of labels.

    Args:
        outputs: `[num_inputs, num_outputs]`.
        dataset: of a number or several labels.

    Returns:
        `[num_inputs]`, within the number's range; or `[num_inputs, num_labels]`.
    """
    if dataset.target_range is None:
        return np.asarray(scipy.special.expit(outputs), np.float64)
    return in_unit(outputs[:, 0], dataset)


def in_unit(shares: npt.NDArray[np.floating], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns numbers from places along their range, 0 to 1; places beyond are its ends."""
    lowest, highest = dataset.target_range or (0.0, 1.0)
    clipped = np.clip(shares.astype(np.float64), 0.0, 1.0)
    return np.asarray(lowest + (highest - lowest) * clipped)


def how_right(
    outputs: npt.NDArray[np.floating], labels: npt.NDArray[Any], dataset: Dataset
) -> npt.NDArray[np.float64]:
    """Returns how far each answer is right, 0 to 1, `[num_records]`. SENSITIVE, as labels are.

    Of a class 0 or 1; of several labels the share that is right; of a number 1 less its squared
    error over the squared width of the range.

    Args:
        outputs: of a student, `[num_records, num_outputs]`.
        labels: as of `checked_labels`.
        dataset: says what they are.
    """
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        errors = (labels - in_unit(outputs[:, 0], dataset)) / (highest - lowest)
        return np.asarray(1.0 - np.square(errors))
    if dataset.target == CLASS:
        return np.asarray(outputs.argmax(axis=1) == labels, np.float64)
    is_right = (predicted(outputs, dataset) >= LIKELY) == labels
    return np.asarray(is_right.mean(axis=1))
