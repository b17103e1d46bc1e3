"""Linear functions that predict a number or several labels, from noisy sums. Post-processing."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT
from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.dataset import CLASS, LIKELY, Dataset, is_labeled, target_rows
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT, CONSTANT_FRACTION
from pate_tf.postprocessing.regression import (
    MIN_VARIANCE,
    functions_of_moments,
    joined,
    labels_of,
    likeliest_weights,
    standardisation,
)
from pate_tf.students.student_kinds.linear_head import functions_of_labels

NUM_REDRAWN: Final = 80  # changes of the function for a number, for prediction intervals
EPS = float(np.finfo(np.float32).eps)
# Correlation length of the weights of a numeric column's bins, in bins. This and `PASSES` were
# chosen on four fifths of the private records of `benchmarks/targets.py`, and judged by the rest.
SMOOTH = 10.0
PASSES = 50  # of the projection in `_counts_of_pairs`
UPDATES = 20  # of the amplitudes


def target_functions(
    dataset: Dataset,
    vectors: RealArray,
    values: IntArray,
    noise: float,
    *,
    num_redrawn: int = 0,
    labels: npt.NDArray[Any] | None = None,
    **facts: Any,
) -> FloatArray:
    """Returns the weights `[width, num_outputs]` of the student's linear functions. Public.

    The error that noise causes in a prediction is estimated by a parametric bootstrap (Efron and
    Tibshirani 1993, chapter 6): noise from the same distribution is added to the released sums
    several times. With public labels, the priors are not chosen again for the sums with more noise.
    For a number from one-hot features without a pool, draws from the posterior of the weights take
    the place of the changes by new noise.

    Args:
        dataset: data set with a number or several labels.
        vectors: vectors of the public pool, `[num_inputs, width]`; empty without a pool.
        values: noisy sums of records, in units of 1 / LATTICE: `[width, num_classes]` with a pool,
            and `[width, num_classes + width]` without a pool.
        noise: standard deviation of the noise on each sum, in units of the maximum contribution of
            a record.
        num_redrawn: number of changes of the function for a number; 0, or at least 2.
        labels: public labels to use together with the sums, `UNKNOWN` for inputs without a label;
            None if public labels are not used.
        **facts: `num_records` and `groups`, see `functions_of_moments` and `Part`.

    Returns:
        For several labels, one function for the log odds of each label. For a number, `1 +
        num_redrawn` functions. The first function predicts the position of the number in its range,
        from 0 to 1. The other functions are the changes of the first function by redrawn noise: at
        each vector, the norm of their values is the standard deviation of the first function.
    """
    number = dataset.num_classes
    if dataset.target_range is None:
        num_redrawn = 0
    if len(vectors):
        facts |= {"labels": labels, "num_redrawn": num_redrawn}
        functions = _functions_of_pool(dataset, vectors, values, noise, **facts)
    elif dataset.target_range is None:
        facts["max_labels"] = dataset.max_labels
        return _log_odds(*functions_of_moments(values, number, noise, **facts)[:2])
    elif (groups := facts.get("groups")) is not None:
        return _function_of_number(values, noise, num_redrawn, groups, facts["num_records"])
    else:
        again = np.random.default_rng(0).normal(0.0, noise * LATTICE, (num_redrawn, *values.shape))
        tables = [values, *(values + each for each in again)]
        found = [functions_of_moments(each, number, noise, **facts)[0][:, -1] for each in tables]
        functions = np.column_stack(found)
    if num_redrawn:
        changes = functions[:, 1:] - functions[:, 1:].mean(axis=1, keepdims=True)
        functions[:, 1:] = changes / math.sqrt(num_redrawn - 1)
    return functions


def _function_of_number(
    values: IntArray, noise: float, num_redrawn: int, groups: IntArray, num_records: int | None
) -> FloatArray:
    """Returns the functions for a number, from noisy moments of one-hot vectors.

    The covariance of vectors and target is the covariance of the vectors times the weights, plus
    noise. The noise of the moments acts as further noise, whose variance depends on the weights.

    The weights have a Gaussian prior. Its amplitude for each column of the table has the largest
    evidence (automatic relevance determination), so that columns without influence get weights
    close to 0. The amplitudes are updated as in Wipf and Nagarajan 2008, "A new view of automatic
    relevance determination". The changes are drawn from the posterior of the weights.
    """
    noise *= math.hypot(1.0, MOMENT_WEIGHT)
    sums, moments = np.split(values * (math.hypot(1.0, MOMENT_WEIGHT) / LATTICE), [2], axis=1)
    moments = (moments + moments.T)[:-1, :-1] / (2.0 * MOMENT_WEIGHT)
    is_of = groups == np.unique(groups)[:, None]  # [num_columns, width - 1]
    is_same = groups == groups[:, None]
    size = math.sqrt((1.0 - CONSTANT_FRACTION) / len(is_of))  # value of features that are not 0
    # The mean target is measured by the constant, and also by the sum over the features of each
    # column. These measurements are averaged with weights by their precision.
    shares = np.maximum(np.append(size / is_of.sum(axis=1) @ is_of, CONSTANT) @ sums, EPS)
    shares /= shares.sum()
    number = num_records or max(sums[-1].sum() / CONSTANT, 1.0)
    total = sums[:-1].sum(axis=1).clip(0.0)
    total *= number * size / (np.maximum(is_of @ total, 1.0) @ is_of)
    pairs = _counts_of_pairs(moments, size * total, is_of)
    covariance = np.where(is_same, np.diag(size * total), pairs) - np.outer(total, total) / number
    contrast = np.array([-shares[1], shares[0]])
    measured = sums[:-1] @ contrast
    # Each moment is the mean of two noisy numbers, unless the projection makes it 0.
    uncertain = np.where(is_same | (pairs <= 0.0), 0.0, (noise / MOMENT_WEIGHT) ** 2 / 2.0)
    places = np.arange(len(total))
    kernel = np.exp(-np.abs(places[:, None] - places) / SMOOTH)
    kernel = np.where(is_same & (groups < 0), kernel, np.eye(len(total)))
    amplitudes = np.ones(len(is_of))
    weights = np.zeros(len(total))
    for _ in range(UPDATES):
        variances = np.square(noise * contrast).sum() + uncertain @ np.square(weights)
        prior = (amplitudes @ is_of)[:, None] * kernel
        solved = np.linalg.solve(covariance @ prior @ covariance + np.diag(variances), covariance)
        slopes = measured @ solved
        weights = prior @ slopes
        precision = covariance @ solved
        expected = is_of @ (kernel * precision).sum(axis=1) + np.finfo(float).tiny
        amplitudes *= np.sqrt(is_of @ (slopes * (kernel @ slopes)) / expected)
    along, directions = np.linalg.eigh(prior - prior @ precision @ prior)
    root = directions * np.sqrt(np.maximum(along, 0.0) / max(num_redrawn, 1))
    drawn = np.random.default_rng(0).normal(size=(len(total), num_redrawn))
    functions = np.column_stack([weights, root @ drawn])
    intercept = -total @ functions / number
    intercept[0] += shares[1]
    return np.vstack([functions, intercept / CONSTANT])


def _counts_of_pairs(
    moments: FloatArray, margins: FloatArray, is_of: npt.NDArray[np.bool_]
) -> FloatArray:
    """Returns the closest second moments of one-hot features that have no negative number.

    For two columns of a table, the second moments count the records with each pair of values. Most
    pairs do not occur, so this removes most of the noise. The margins of the counts are known. The
    projection alternates between both conditions (Boyle and Dykstra 1986,
    https://doi.org/10.1007/978-1-4613-9940-7_3).

    Args:
        moments: noisy second moments, `[width, width]`.
        margins: the sum of each row over the features of any column, `[width]`.
        is_of: whether each feature belongs to a column, `[num_columns, width]`.
    """
    sizes = is_of.sum(axis=1)
    beyond = np.zeros_like(moments)
    for _ in range(PASSES):
        moments = moments + ((margins[:, None] - moments @ is_of.T) / sizes) @ is_of
        moments += is_of.T @ ((margins - is_of @ moments) / sizes[:, None])
        beyond += moments
        moments = np.maximum(beyond, 0.0)
        beyond -= moments
    return (moments + moments.T) / 2.0


def functions_of_votes(
    dataset: Dataset, vectors: FloatArray, released: ReleasedLabels, num_teachers: int
) -> FloatArray:
    """Computes the result of `target_functions` from teachers' noisy predictions. Public.

    For a number, the difference of its two sums is used. The total of both sums carries no
    information: without noise, it is the number of teachers.

    Args:
        dataset: data set with a number or several labels.
        vectors: vectors of the queried inputs, `[num_queries, width]`.
        released: labels whose `noisy_counts` are the noisy sums of the teachers' `target_rows`.
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


def _log_odds(functions: FloatArray, frequencies: FloatArray) -> FloatArray:
    """Converts functions for the probabilities of labels to functions for their log odds.

    The log odds are linearized at the frequency of each label.
    """
    frequencies = np.clip(frequencies, EPS, 1.0 - EPS)
    slopes = 1.0 / (frequencies * (1.0 - frequencies))
    functions = functions * slopes
    functions[-1] += (scipy.special.logit(frequencies) - frequencies * slopes) / CONSTANT
    return functions


def _functions_of_pool(
    dataset: Dataset,
    vectors: RealArray,
    sums: IntArray,
    noise: float,
    num_redrawn: int,
    labels: npt.NDArray[Any] | None,
    num_records: int | None = None,
    groups: IntArray | None = None,
) -> FloatArray:
    """Returns the functions of `target_functions` with a pool, also for sums with more noise.

    The covariance of the features is computed from the pool. Each target has its own prior and its
    own noise, see `likeliest_weights`, or `joined` with public labels. A number has one
    function.
    """
    mean, factors = standardisation(vectors[:, :-1], MIN_VARIANCE)
    rows = np.column_stack([(vectors[:, :-1] - mean) * factors, np.ones(len(vectors))])
    measured = vectors.T.astype(np.float64) @ rows / len(rows)
    is_known = slice(0) if labels is None else is_labeled(labels)
    known = None if labels is None else target_rows(labels[is_known], dataset)
    totals = sums[-1] / (LATTICE * CONSTANT)
    of_record = 1.0 if known is None else max(float(known.sum(axis=1).mean()), EPS)
    number = float(totals.sum()) / of_record
    if dataset.target_range is None:
        if known is None:
            number = math.sqrt(dataset.max_labels) * float(totals.max())
        contrasts = math.sqrt(dataset.max_labels) * np.eye(dataset.num_classes)
        centers = np.zeros(dataset.num_classes)
    else:  # the sum of v (s - c), where c is an estimate of the mean position
        high = totals[1] / max(number, 1.0) if known is None else known[:, 1].mean()
        centers = np.clip([high], 0.0, 1.0)
        contrasts = np.vstack([-centers, 1.0 - centers])
    # The standard deviation of the estimated number of records; 0 if this number is public.
    of_number = (num_records is None) * math.sqrt(len(totals)) * noise / CONSTANT / of_record
    number = float(num_records or max(number, of_number, 1.0))
    values = sums @ contrasts / (LATTICE * number)
    means = np.clip(values[-1] / CONSTANT, -centers, 1.0 - centers)
    if known is None:  # A number has the largest variance if it is always at an end of its range.
        squares = (means + centers) * (1.0 - centers)
    else:
        known = known @ contrasts
        squares = np.square(known).mean(axis=0)
    # The sampling error of the records, and of the pool's mean (for labels) and covariance.
    is_label = known is None and dataset.target_range is None
    of_pool = number / len(rows) * (np.square(squares) if is_label else squares)
    spreads = np.square(vectors, dtype=np.float64).mean(axis=0)[:, None]
    by_noise = noise * np.linalg.norm(contrasts, axis=0)
    deviations = np.hypot(by_noise, np.sqrt(number * spreads * (squares + of_pool))) / number
    again = np.random.default_rng(0).normal(size=(len(values), num_redrawn)) * by_noise[0] / number
    solved = []
    for place, deviation in enumerate(deviations.T):
        if known is None:
            drawn_sums = values[:, [place]] + np.hstack([np.zeros((len(values), 1)), again])
            shares = np.clip(drawn_sums[-1] / CONSTANT, -centers[place], 1.0 - centers[place])
            beyond = drawn_sums[:-1] - np.outer(mean, shares)
            mean_deviation = float(np.square(deviation).mean()) ** 0.5
            weights = likeliest_weights(measured[:-1, :-1], beyond, mean_deviation, groups)
            solved.append(np.vstack([weights, shares]))
        else:
            of_scale = of_number / number * float(np.square(values[:, place]).mean()) ** 0.5
            factor = 1.0 / np.hypot(deviation, of_scale)[:, None]
            scaled = measured * factor, values[:, [place]] * factor
            labeled = rows[is_known, :-1], known[:, [place]]
            solved.append(joined(*labeled, *scaled, 1.0, again * factor))
    slopes, intercepts = np.split(np.hstack(solved), [-1])
    frequencies = intercepts[0]
    frequencies[: len(centers)] += centers
    weights = factors[:, None] * slopes
    functions = np.vstack([weights, (frequencies - mean @ weights) / CONSTANT])
    return functions if dataset.target_range is not None else _log_odds(functions, frequencies)


def predictions_of_pool(outputs: FloatArray, dataset: Dataset) -> PoolLabels:
    """Converts the values of `target_functions` for a pool to labels of its inputs.

    A number is converted to weights of the lowest and the highest value of its range. If there are
    several labels, only the most probable label is returned.

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


def predicted(outputs: RealArray, dataset: Dataset) -> FloatArray:
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


def in_unit(positions: RealArray, dataset: Dataset) -> FloatArray:
    """Converts positions in the range, which are clipped to [0, 1], to numbers in their unit."""
    lowest, highest = dataset.target_range or (0.0, 1.0)
    clipped = np.clip(positions.astype(np.float64), 0.0, 1.0)
    return np.asarray(lowest + (highest - lowest) * clipped)


def correctness(outputs: RealArray, labels: npt.NDArray[Any], dataset: Dataset) -> FloatArray:
    """Returns the correctness of each prediction, from 0 to 1, `[num_records]`. SENSITIVE.

    For a class, this is 0 or 1. For several labels, it is the fraction of labels that are correct.
    For a number, it is 1 minus the squared error divided by the squared width of the range.

    Args:
        outputs: outputs of a student, `[num_records, num_outputs]`.
        labels: true labels of the records, in the format of `checked_labels`.
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
