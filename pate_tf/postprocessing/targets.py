"""Linear functions that predict a number or several labels, from noisy sums. Post-processing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.special

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, LIKELY, Dataset, is_labeled, target_rows
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT
from pate_tf.postprocessing.regression import (
    INFLATIONS,
    MIN_VARIANCE,
    STRONG_EVIDENCE,
    functions_of_moments,
    labels_of,
    public_weights,
    regress,
    standardisation,
)
from pate_tf.students.student_kinds.linear_head import functions_of_labels

NUM_REDRAWN: Final = 80  # tables with new noise, for the prediction interval of a number
EPS = float(np.finfo(np.float32).eps)


def target_functions(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    num_redrawn: int = 0,
    labels: npt.NDArray[Any] | None = None,
    **facts: Any,
) -> npt.NDArray[np.float64]:
    """Returns the student's linear functions of vectors, `[width, num_outputs]`. Public.

    The error that noise causes in a prediction is estimated by a parametric bootstrap (Efron and
    Tibshirani 1993, chapter 6): noise from the same distribution is added to the released sums
    several times.

    Args:
        dataset: data set with a number or several labels.
        vectors: vectors of the public pool, `[num_inputs, width]`; without a pool, zero rows.
        values: noisy sums of records, in steps of 1 / LATTICE: `[width, num_classes]`, without a
            pool `[width, num_classes + width]`.
        noise: standard deviation of the noise on each sum, in units of the maximum contribution of
            a record.
        num_redrawn: number of bootstrap samples; 0, or at least 2.
        labels: public labels of the pool that join the sums, `UNKNOWN` if there is none; None if
            no labels join.
        **facts: `num_records` and `groups`, see `functions_of_moments`.

    Returns:
        For several labels, the log odds of each. For a number, `[width, 1 + num_redrawn]`. The
        first function is 0 at the lowest value of the range and 1 at the highest. The others are
        changes by redrawn noise: the norm of their values at a vector is the standard deviation of
        the first function there.
    """
    again = np.random.default_rng(0).normal(0.0, noise * LATTICE, (num_redrawn, *values.shape))
    tables = [values, *(values + each for each in again)]
    if len(vectors):
        found = _functions_of_sums(
            dataset, vectors, tables, noise, facts.get("num_records"), labels
        )
    else:
        number = dataset.num_classes
        facts["max_labels"] = dataset.max_labels
        found = [functions_of_moments(each, number, noise, **facts)[:2] for each in tables]
    if dataset.target_range is not None:
        function, *others = (each[:, -1] for each, _ in found)
        if not others:
            return function[:, None]
        changes = (np.array(others) - np.mean(others, axis=0)) / math.sqrt(num_redrawn - 1)
        return np.vstack([function, changes]).T
    return _log_odds(*found[0])


def functions_of_votes(
    dataset: Dataset, vectors: npt.NDArray[np.float64], released: ReleasedLabels, num_teachers: int
) -> npt.NDArray[np.float64]:
    """Returns the functions of `target_functions` from noisy sums of predictions. Public.

    For a number, the difference of its two sums is used; their total is the number of teachers.

    Args:
        dataset: data set with a number or several labels.
        vectors: vectors of the queried inputs, `[num_queries, width]`.
        released: noisy sums of the teachers' `target_rows`, in `noisy_counts`.
        num_teachers: number of teachers that voted.
    """
    means = cast(IntArray, released.noisy_counts) / (LATTICE * num_teachers)
    if dataset.target_range is None:
        targets = means * math.sqrt(dataset.max_labels)
        functions, _ = functions_of_labels(vectors, targets)
        return _log_odds(functions, targets.mean(axis=0))
    targets = (1.0 + means[:, 1:] - means[:, :1]) / 2.0
    noise = released.cost.charge.noise_scales["sigma"]
    deviation = noise / (math.sqrt(2.0) * num_teachers)
    drawn = np.random.default_rng(0).normal(0.0, deviation, (len(targets), NUM_REDRAWN))
    functions, _ = functions_of_labels(vectors, targets, drawn / math.sqrt(NUM_REDRAWN))
    return functions


def _log_odds(
    functions: npt.NDArray[np.float64], frequencies: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns functions for the log odds of labels from functions for their probabilities.

    The log odds are linearized at the frequency of each label.
    """
    frequencies = np.clip(frequencies, EPS, 1.0 - EPS)
    slopes = 1.0 / (frequencies * (1.0 - frequencies))
    functions = functions * slopes
    functions[-1] += (scipy.special.logit(frequencies) - frequencies * slopes) / CONSTANT
    return functions


class _Measured(NamedTuple):
    """What noisy sums say about each target, per record. Public.

    Attributes:
        frequencies: means of the targets, `[num_targets]`.
        spreads: their standard deviations by noise and sampling, `[num_targets]`.
        covariances: of each feature with each target, `[num_features, num_targets]`.
        deviations: their standard deviations, `[num_targets]`.
    """

    frequencies: npt.NDArray[np.float64]
    spreads: npt.NDArray[np.float64]
    covariances: npt.NDArray[np.float64]
    deviations: npt.NDArray[np.float64]


def _measured(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    table: npt.NDArray[Any],
    noise: float,
    num_records: int | None,
    variances: npt.NDArray[np.float64] | None,
) -> _Measured:
    """Returns what a table of noisy sums says about targets.

    Args:
        dataset: see `target_functions`.
        vectors: see `target_functions`.
        table: noisy sums.
        noise: see `target_functions`.
        num_records: number of private records, if it is public.
        variances: variances of the targets by public labels; None if there are none.
    """
    mean = vectors[:, :-1].mean(axis=0, dtype=np.float64)
    spread = float(np.square(vectors[:, :-1]).mean())
    sums = table * (math.sqrt(max(dataset.max_labels, 1)) / LATTICE)
    if dataset.target_range is None:
        number = float(num_records or max(sums[-1].max() / CONSTANT, 1.0))
        frequencies = np.clip(sums[-1] / CONSTANT / number, 0.0, 1.0)
        covariances = sums[:-1] - np.outer(number * mean, frequencies)
        of_noise = np.full(len(frequencies), noise**2 * dataset.max_labels)
        # The mean of the pool is used instead of the mean of the records.
        of_mean = number * (1.0 + number / len(vectors)) * spread * frequencies**2
    else:
        number = float(num_records or max(sums[-1].sum() / CONSTANT, 1.0))
        high = float(np.clip(sums[-1, 1] / max(sums[-1].sum(), CONSTANT), 0.0, 1.0))
        frequencies = np.array([high])
        # The sum of v s, minus the sum of v times the mean of s: the common mean cancels.
        covariances = ((1.0 - high) * sums[:-1, 1] - high * sums[:-1, 0])[:, None]
        of_noise = noise**2 * (np.square(1.0 - frequencies) + np.square(frequencies))
        of_mean = np.zeros(1)
    drawn = number * frequencies * (1.0 - frequencies)  # sampling error of the records
    if variances is not None:  # and of the pool
        drawn = number * (1.0 + number / len(vectors)) * variances
    return _Measured(
        frequencies,
        np.sqrt(of_noise / CONSTANT**2 + drawn) / number,
        covariances / number,
        np.sqrt(of_noise + of_mean + spread * drawn) / number,
    )


def _functions_of_sums(
    dataset: Dataset,
    vectors: npt.NDArray[np.floating],
    tables: Sequence[npt.NDArray[Any]],
    noise: float,
    num_records: int | None,
    labels: npt.NDArray[Any] | None,
) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Returns functions and frequencies for each table; see `functions_of_moments`.

    The sums give the covariance of each target with each feature, and the pool gives the covariance
    of the features. Each function has the maximum posterior probability under Gaussian priors
    (`regress`), or given public labels (`_joined`). A number has one function.
    """
    mean, factors = standardisation(vectors[:, :-1], MIN_VARIANCE)
    rows = ((vectors[:, :-1] - mean) * factors).astype(np.float32)
    matrix = (vectors[:, :-1] - mean).T @ rows / len(rows)
    unit = math.sqrt(max(float(np.square(matrix).sum(axis=1).mean()), np.finfo(float).tiny))
    matrix /= unit
    is_known = np.zeros(len(rows), np.bool_) if labels is None else is_labeled(labels)
    variances = None
    if labels is not None:
        targets = target_rows(labels[is_known], dataset) * math.sqrt(max(dataset.max_labels, 1))
        targets = targets[:, -1:] if dataset.target_range is not None else targets
        variances = targets.var(axis=0)
    found = [_measured(dataset, vectors, each, noise, num_records, variances) for each in tables]
    columns = [
        [(each.covariances[:, [place]] / unit, each.deviations[place] / unit) for each in found]
        for place in range(len(found[0].frequencies))
    ]
    frequencies = np.array([each.frequencies for each in found])
    if labels is None:
        fits = regress(rows[:1], matrix, list(itertools.chain(*columns)))
        slopes = np.hstack([np.asarray(fit.weights) for fit in fits])
        intercepts = frequencies.T.ravel()
    else:
        solved = [
            _joined(rows[is_known], target[:, None], matrix, column, levels, deviation)
            for target, column, levels, deviation in zip(
                targets.T, columns, frequencies.T, found[0].spreads, strict=True
            )
        ]
        slopes, (intercepts,) = np.split(np.hstack(solved), [-1])
    weights = factors[:, None] * slopes
    functions = np.vstack([weights, (intercepts - mean @ weights) / CONSTANT])
    by_table = functions.reshape(len(functions), len(columns), len(tables)).transpose(2, 0, 1)
    return list(zip(by_table, intercepts.reshape(len(columns), -1).T, strict=True))


def _joined(
    rows: npt.NDArray[np.floating],
    targets: npt.NDArray[np.float64],
    matrix: npt.NDArray[np.float64],
    measurements: Sequence[tuple[npt.NDArray[np.float64], float]],
    levels: npt.NDArray[np.float64],
    spread: float,
) -> npt.NDArray[np.float64]:
    """Returns weights and intercept of each table, `[num_features + 1, num_tables]`.

    Public labels give the prior of one target, as in `regression.joined`.

    Args:
        rows: features of the labeled inputs, whose mean in the pool is 0.
        targets: targets of these inputs, `[num_labels, 1]`.
        matrix: expected covariances are this matrix times the weights.
        measurements: covariances for each table, with their standard deviation.
        levels: mean of the target for each table, which the intercept is.
        spread: standard deviation of the first level.
    """
    prior, root = public_weights(rows, targets)
    deviation = measurements[0][1]
    factor = deviation / spread  # so that all values have the same standard deviation
    matrix = scipy.linalg.block_diag(matrix, factor)
    beyond = [
        (np.vstack([values, factor * level]) - matrix @ prior, each)
        for (values, each), level in zip(measurements, levels, strict=True)
    ]
    fits = regress(root[:1], matrix @ root, beyond, INFLATIONS / deviation, STRONG_EVIDENCE)
    return np.hstack([prior + root @ np.asarray(fit.weights) for fit in fits])


def predictions_of_pool(outputs: npt.NDArray[np.float64], dataset: Dataset) -> PoolLabels:
    """Returns the values of `target_functions` on a pool as labels of its inputs.

    A number becomes weights of the lowest and the highest value of its range. Several labels become
    the most probable one.

    Args:
        outputs: values of the functions, `[num_inputs, num_outputs]`.
        dataset: data set of the pool.
    """
    if dataset.target_range is not None:
        position = np.clip(outputs[:, 0], 0.0, 1.0)
        return labels_of(np.column_stack([1.0 - position, position]))
    return PoolLabels(
        query_indices=np.arange(len(outputs)),
        labels=outputs.argmax(axis=1),
        num_classes=dataset.num_classes,
    )


def predicted(outputs: npt.NDArray[np.floating], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns predictions: numbers in the unit of the target, or probabilities of labels.

    Args:
        outputs: values of the functions, `[num_inputs, num_outputs]`.
        dataset: data set with a number or several labels.

    Returns:
        Numbers in the range of the target, `[num_inputs]`; or probabilities,
        `[num_inputs, num_labels]`.
    """
    if dataset.target_range is None:
        return np.asarray(scipy.special.expit(outputs), np.float64)
    return in_unit(outputs[:, 0], dataset)


def in_unit(positions: npt.NDArray[np.floating], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns numbers from their positions in the range, clipped to [0, 1]."""
    lowest, highest = dataset.target_range or (0.0, 1.0)
    clipped = np.clip(positions.astype(np.float64), 0.0, 1.0)
    return np.asarray(lowest + (highest - lowest) * clipped)


def correctness(
    outputs: npt.NDArray[np.floating], labels: npt.NDArray[Any], dataset: Dataset
) -> npt.NDArray[np.float64]:
    """Returns the correctness of each prediction, from 0 to 1, `[num_records]`. SENSITIVE.

    A class gives 0 or 1. Several labels give the fraction of correct ones. A number gives 1 minus
    its squared error divided by the squared width of the range.

    Args:
        outputs: outputs of a student, `[num_records, num_outputs]`.
        labels: see `checked_labels`.
        dataset: data set of the labels.
    """
    if dataset.target_range is not None:
        lowest, highest = dataset.target_range
        errors = (labels - in_unit(outputs[:, 0], dataset)) / (highest - lowest)
        return np.asarray(1.0 - np.square(errors))
    if dataset.target == CLASS:
        return np.asarray(outputs.argmax(axis=1) == labels, np.float64)
    is_correct = (predicted(outputs, dataset) >= LIKELY) == labels
    return np.asarray(is_correct.mean(axis=1))
