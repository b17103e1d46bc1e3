"""Infers values for the whole pool from noisy counts or feature sums, by Gaussian processes.

The number of votes for each class is modeled as a linear function of the pool's features with
independent Gaussian weights (Rasmussen and Williams 2006, chapter 2). The noise level is known,
because a mechanism drew the noise. The amplitude of the weights maximizes the likelihood of the
released counts. Neighbors usually have the same class, so each input is represented by the mean
features of its neighborhood. If there are several representations, the results of their
neighborhoods are averaged. Each is weighted by the likelihood of the released counts (Hoeting et
al. 1999, "Bayesian Model Averaging"). Everything here is post-processing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.special

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT, RESIDUAL_NORM
from pate_tf.core.checks import FloatArray, IntArray, RealArray, SingleArray
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT, CONSTANT_FRACTION
from pate_tf.postprocessing.label_propagation import neighbour_graph, propagate

MAX_QUERIES = 1_000  # The time of a regression is cubic in the number of queries.
MIN_VARIANCE = 1.0  # default of `least_variance`, see `standardisation`
# Fraction of a neighborhood average that comes from neighbors instead of the input
# (docs/how-to/small_teachers.md).
FROM_NEIGHBOURS = 0.7
AMPLITUDES = np.geomspace(0.01, 10_000.0, 90)  # in standard deviations of the noise
RATIOS = np.geomspace(1.0, 1_000.0, 13)  # of amplitudes, see `likeliest_weights`
PUBLIC_AMPLITUDES = AMPLITUDES[::5]  # in standard deviations of the residuals of public labels
LARGEST_VARIANCE = 0.25  # of a value from 0 to 1
# These factors are tried for the standard deviations of weights from public labels, see `joined`.
INFLATIONS = np.geomspace(1.0, 10_000.0, 60)
# Public labels get a smaller weight only if the logarithm of the evidence exceeds this value. If
# public labels and private records follow the same rules, each Bayes factor is above 1,000 with a
# probability of at most 1 / 1,000 (Markov's inequality). A smaller weight is then a grave mistake,
# because the weights would fit the noise.
STRONG_EVIDENCE = math.log(1_000.0)
# Grid of the integral over the largest count, in standard deviations.
STEPS = np.linspace(-6.0, 6.0, 49)
PART = 4_096  # number of inputs that are processed at once
COLUMNS = 64  # Features processed at once, few enough to stay in the cache for all passes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """Posterior distribution of the counts of all inputs, given noisy counts of some inputs.

    Attributes:
        means: posterior means in the unit of the counts, `[num_inputs, num_classes]`.
        deviations: posterior standard deviations, equal for all classes, `[num_inputs]`.
        evidence: logarithm of the density of the noisy counts, up to a constant that is equal for
            all features.
        weights: weights of the features, `[num_features, num_classes]`. The means are the product
            of features and weights, plus a constant for each class. None for a mean of regressions.
    """

    means: FloatArray
    deviations: FloatArray
    evidence: float
    weights: FloatArray | None = None


def regress(
    features: RealArray,
    measured: RealArray,
    measurements: Sequence[tuple[FloatArray, float]],
    amplitudes: FloatArray = AMPLITUDES,
    least_evidence: float = 0.0,
    noise_draws: FloatArray | None = None,
) -> list[Regression]:
    """Returns the posterior of linear functions, given their noisy values at some features.

    The prior of the weights is Gaussian with mean 0. Its amplitude is the amplitude with the
    largest evidence.

    Args:
        features: features of all inputs, `[num_inputs, num_features]`, with norms close to 1.
        measured: features at which the functions were measured, `[num_values, num_features]`.
        measurements: pairs of noisy values, `[num_values, num_classes]`, and the standard deviation
            of their noise in the same unit. Each pair gives one regression.
        amplitudes: amplitudes that are tried, in standard deviations of the noise.
        least_evidence: additional evidence that is required for any amplitude but the first.
        noise_draws: simulated noise on the values, `[num_values, num_draws]`. Each draw adds a
            column to the results: the change by this noise. It does not influence the amplitude.
    """
    rows = measured.astype(np.float64)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    values = np.maximum(values, 0.0)
    turned = rows.T @ vectors
    along = features @ turned  # [num_inputs, num_values]
    lengths = np.square(features).sum(axis=1, dtype=np.float64)
    totals = np.square(amplitudes)[:, None] * values + 1.0  # [num_amplitudes, num_values]
    logarithms = np.log(totals).sum(axis=1)
    regressions = []
    for values_there, noise in measurements:
        rotated = vectors.T @ (values_there / noise)
        by_amplitude = (np.square(rotated).sum(axis=1) / totals).sum(axis=1)
        evidence = -0.5 * (by_amplitude + values_there.shape[1] * logarithms)
        evidence[1:] -= least_evidence
        amplitude = float(amplitudes[evidence.argmax()])
        if noise_draws is not None:
            rotated = np.hstack([rotated, vectors.T @ (noise_draws / noise)])
        precisions = values + amplitude**-2.0
        left = lengths - np.square(along) @ (1.0 / precisions)
        least = np.finfo(np.float32).eps  # in case rounding gives a negative variance
        solved = noise * (rotated / precisions[:, None])
        regressions.append(
            Regression(
                means=along @ solved,
                deviations=noise * amplitude * np.sqrt(np.maximum(left, least)),
                evidence=float(evidence.max()),
                weights=turned @ solved,
            )
        )
    return regressions


def likeliest_weights(
    measured: FloatArray, values: FloatArray, deviation: float, groups: IntArray | None = None
) -> FloatArray:
    """Returns weights by `regress` with the priors of largest evidence, `[num_features, num_sets]`.

    The weights of numbers have their own amplitude, because a linear trend is often much larger
    than the deviations from it, which bins describe. Both amplitudes are chosen by evidence, as in
    mixed models (Ruppert, Wand and Carroll 2003, https://doi.org/10.1017/CBO9780511755453).

    Args:
        measured: see `regress`, `[num_values, num_features]`.
        values: sets of noisy values, `[num_values, num_sets]`. Each set has its own priors.
        deviation: standard deviation of the noise.
        groups: 1 for each number and 0 for other features; None for one amplitude for all.
    """
    unit = math.sqrt(max(float(np.square(measured).sum(axis=1).mean()), np.finfo(float).tiny))
    pairs = [(column[:, None] / unit, deviation / unit) for column in values.T]
    exponents = np.zeros(measured.shape[1]) if groups is None else groups
    found = []
    for ratio in RATIOS if exponents.any() else RATIOS[:1]:
        scales = ratio**exponents
        fits = regress(measured[:1], measured * scales / unit, pairs)
        found.append([(fit.evidence, scales * np.asarray(fit.weights)[:, 0]) for fit in fits])
    best = [max(fits, key=lambda fit: fit[0])[1] for fits in zip(*found, strict=True)]
    return np.column_stack(best)


def averaged(regressions: Sequence[Regression], weights: FloatArray) -> Regression:
    """Returns the mean of regressions by weights, `[num_regressions]`, whose sum must be 1."""
    if len(regressions) == 1:
        return regressions[0]
    means = np.average([regression.means for regression in regressions], axis=0, weights=weights)
    squares = [
        np.square(regression.deviations) + np.square(regression.means - means).mean(axis=1)
        for regression in regressions
    ]
    evidence = [regression.evidence for regression in regressions]
    return Regression(
        means=means,
        deviations=np.sqrt(np.average(squares, axis=0, weights=weights)),
        evidence=float(scipy.special.logsumexp(evidence, b=weights)),
    )


def standardisation(
    features: RealArray, least_variance: float = MIN_VARIANCE
) -> tuple[FloatArray, FloatArray]:
    """Returns the means and factors that standardize features, each `[num_features]`.

    Features are standardized by subtracting the means and then multiplying by the factors. They
    have a mean squared norm of 1 and similar variances then. The larger `least_variance` is, in
    units of the mean variance, the more equal are the factors, and the less equal the variances.
    """
    mean = features.mean(axis=0, dtype=np.float64)
    variance = np.square(features - mean).mean(axis=0)
    tiny = np.finfo(np.float64).tiny
    divisors = np.sqrt(variance + max(least_variance * float(variance.mean()), tiny))
    return mean, 1.0 / divisors / np.sqrt(max(float((variance / divisors**2).sum()), tiny))


def standardised(features: RealArray) -> SingleArray:
    """Returns features with similar variances and a mean squared norm of 1."""
    mean, factors = standardisation(features)
    return ((features - mean) * factors).astype(np.float32)


# Two arrays of neighborhood averages of a pool's features, `[num_inputs, num_features]`, with norms
# close to 1. The first array has the features of all representations, the second array has only
# the features of the first representation. The second array is used to compute the evidence of a
# neighborhood, because any features look smooth in the neighborhoods that they define.
Averages = tuple[SingleArray, SingleArray]


def neighbourhood_average(graph: scipy.sparse.csr_array, features: SingleArray) -> SingleArray:
    """Returns the weighted mean of features over each input's neighborhood, in the same shape."""
    ones = np.ones((len(features), 1), np.float32)
    weights = propagate(graph, ones, from_neighbours=FROM_NEIGHBOURS)
    total = np.empty(features.shape, np.float32)
    for start in range(0, features.shape[1], COLUMNS):
        some = np.ascontiguousarray(features[:, start : start + COLUMNS])
        total[:, start : start + COLUMNS] = propagate(graph, some, from_neighbours=FROM_NEIGHBOURS)
    return total / weights


def neighbourhood_averages(representations: Sequence[Sequence[RealArray]]) -> Iterator[Averages]:
    """Yields averages of features over the neighborhoods of each representation.

    Each representation is a sequence of views, and each view is an array of features,
    `[num_inputs, num_features]`.
    """
    features = [standardised(np.concatenate(views, axis=1)) for views in representations]
    root = np.sqrt(len(features), dtype=np.float32)
    joined = np.concatenate(features, axis=1) / root
    for views in representations:
        average = neighbourhood_average(neighbour_graph(views), joined)
        yield average, average[:, : features[0].shape[1]] * root


def class_probabilities(regression: Regression) -> SingleArray:
    """Returns the probability that each class has the most votes, `[num_inputs, num_classes]`.

    Assumes that the counts of different classes are independent. The integral over the largest
    count is approximated by a sum.
    """
    result = np.empty(regression.means.shape, np.float32)
    for start in range(0, len(result), PART):
        part = slice(start, start + PART)
        scores = regression.means[part] / regression.deviations[part, None]
        scores -= scores.max(axis=1, keepdims=True)
        total = np.zeros_like(scores)
        for step in STEPS:
            below = scipy.special.log_ndtr(step - scores)
            density = -0.5 * np.square(step - scores)
            total += np.exp(density + below.sum(axis=1, keepdims=True) - below)
        result[part] = total / total.sum(axis=1, keepdims=True)
    return result


def regress_counts(
    averages: Iterable[Averages], queries: IntArray, counts: npt.ArrayLike, noise: float
) -> Regression:
    """Returns the posterior of the counts of all inputs, given noisy counts of some inputs.

    Args:
        averages: averages over the neighborhoods of each representation. The results for them are
            weighted by their evidence. They are read one at a time to save memory.
        queries: positions of the queried inputs, `[num_queries]`.
        counts: noisy counts of the queries, `[num_queries, num_classes]`, in any unit.
        noise: standard deviation of the noise, above 0, in the same unit as `counts`.
    """
    noisy = np.asarray(counts, np.float64)
    middle = noisy.mean()
    measurements = [(noisy - middle, noise)]
    (mean,) = _regress_each(
        averages, lambda features, of_all: regress(features, of_all[queries], measurements)
    )
    return dataclasses.replace(mean, means=middle + mean.means)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisySums:
    """Public: noisy sums of private records' vectors by class, and the vectors of a pool's inputs.

    Attributes:
        vectors: vector that each input would contribute as a record, `[num_inputs, width]`.
        values: noisy sums of the private records' vectors, `[width, num_classes]`.
        noise: standard deviation of the noise, above 0, in the same unit as `values`.
        num_of_class: estimated number of records of each class, at least 0, `[num_classes]`.
        is_constant: whether all vectors have the same last entry.
    """

    vectors: RealArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)
    noise: float
    num_of_class: FloatArray = dataclasses.field(repr=False)
    is_constant: bool = False

    @classmethod
    def of_features(cls, vectors: RealArray, values: FloatArray, noise: float) -> "NoisySums":
        """Returns noisy sums of `record_vectors`, whose last entry is a constant."""
        # The last entry is the same constant for all inputs, with one exception: if all features of
        # an input are 0, the whole vector is 0, including the last entry.
        constant = float(vectors[:, -1].max()) or 1.0
        number = np.maximum(values[-1] / constant, 0.0)
        return cls(
            vectors=vectors, values=values, noise=noise, num_of_class=number, is_constant=True
        )

    @property
    def num_records(self) -> float:
        """Estimated number of records, at least 1."""
        return max(float(self.num_of_class.sum()), 1.0)

    @property
    def shares(self) -> FloatArray:
        """Fraction of each class among the records, `[num_classes]`."""
        return self.num_of_class / self.num_records

    @functools.cached_property
    def deviation(self) -> float:
        """Standard deviation of a value from its limit for infinitely many records and inputs.

        It includes the noise, and the sampling errors of the records and of the pool's inputs. The
        error that is common to all classes is left out, because it does not change labels.
        """
        spread = float(np.square(self.vectors, dtype=np.float64).mean())
        number = self.num_records
        drawn = number * (1.0 + number / len(self.vectors)) * spread
        drawn *= (self.shares * (1 - self.shares)).mean()
        return float(np.sqrt(self.noise**2 + drawn))


def public_weights(
    rows: RealArray, targets: FloatArray, measured: RealArray, values: FloatArray, deviation: float
) -> tuple[FloatArray, FloatArray]:
    """Returns the posterior of a linear function's weights and intercept, given public labels.

    This is Bayesian linear regression. The amplitude of the weights has the largest evidence of the
    labels and of the noisy values together (Bishop 2006, section 3.5). Few labels without noisy
    values would often choose a function that has no error at these labels. The variance of the
    residuals counts one more label, whose residual has the variance `LARGEST_VARIANCE` (a
    unit-information prior, Kass and Wasserman 1995, https://doi.org/10.1080/01621459.1995.10476592).

    Args:
        rows: features of the labeled inputs, `[num_labels, num_features]`.
        targets: one-hot labels, or other targets from 0 to 1, `[num_labels, num_targets]`.
        measured: see `joined`, `[num_values, num_features + 1]`.
        values: noisy values, `[num_values, num_targets]`.
        deviation: standard deviation of the noise of `values`.

    Returns:
        The posterior mean, `[num_features + 1, num_targets]`, whose last row is the intercept; and
        a square root of the covariance, `[num_features + 1, num_features + 1]`, which is equal for
        all targets.
    """
    num_labels, num_targets = targets.shape
    center = rows.mean(axis=0, dtype=np.float64)
    shares = targets.mean(axis=0)
    residuals = targets - shares
    left, roots, right = np.linalg.svd(rows - center, full_matrices=False)
    squares = np.square(roots)
    along = roots[:, None] * (left.T @ residuals)
    shifted = measured[:, :-1] - np.outer(measured[:, -1], center)
    of_labels = shifted @ right.T
    others = shifted - of_labels @ right  # along features that no label has
    of_others = others @ others.T
    of_mean = np.outer(measured[:, -1], measured[:, -1]) / num_labels
    beyond = values - measured[:, -1:] * shares
    best, found = -math.inf, (0.0, 0.0)
    for penalty in PUBLIC_AMPLITUDES**-2.0:
        precisions = squares + penalty
        left_over = np.square(residuals).sum() - (np.square(along) / precisions[:, None]).sum()
        variance = (left_over / num_targets + LARGEST_VARIANCE) / (num_labels + 1)
        evidence = (num_labels + 1) * math.log(variance) + np.log1p(squares / penalty).sum()
        law = of_others / penalty + (of_labels / precisions) @ of_labels.T + of_mean
        law *= variance
        noise = deviation**2 + len(law) * np.finfo(float).eps * np.trace(law)  # never singular
        factor = np.linalg.cholesky(law + noise * np.eye(len(law)))
        errors = beyond - of_labels @ (along / precisions[:, None])
        errors = scipy.linalg.solve_triangular(factor, errors, lower=True)
        evidence += 2.0 * np.log(np.diag(factor)).sum() + np.square(errors).sum() / num_targets
        if -evidence > best:
            best, found = -evidence, (variance, penalty)
    variance, penalty = found
    precisions = squares + penalty
    weights = right.T @ (along / precisions[:, None])
    amplitude = math.sqrt(variance / penalty)
    shrunk = np.sqrt(variance / precisions) - amplitude
    root = amplitude * np.eye(len(weights)) + (right.T * shrunk) @ right
    root = np.block(
        [[root, np.zeros((len(root), 1))], [-center @ root, np.sqrt(variance / num_labels)]]
    )
    return np.vstack([weights, shares - center @ weights]), root


def joined(
    features: RealArray,
    targets: FloatArray,
    measured: RealArray,
    values: FloatArray,
    deviation: float,
    noise_draws: FloatArray | None = None,
) -> FloatArray:
    """Returns weights of linear functions that are learned from public labels and noisy values.

    The public labels determine the prior of the weights: its mean and covariance. The noisy values
    update this prior according to their precision. If public labels and private records follow
    different rules, the covariance is too small. It is then multiplied by the factor with the
    largest evidence, which reduces the weight of the public labels (Birge 1932,
    https://doi.org/10.1103/PhysRev.40.207). Without strong evidence, the factor is 1.

    Args:
        features: features of the labeled inputs, `[num_labels, num_features]`.
        targets: targets of the labeled inputs, `[num_labels, num_targets]`.
        measured: see `regress`, `[num_values, num_features + 1]`.
        values: noisy values, `[num_values, num_targets]`.
        deviation: standard deviation of their noise.
        noise_draws: see `regress`.

    Returns:
        Weights `[num_features + 1, num_targets + num_draws]`. The last row contains the intercepts.
    """
    mean, root = public_weights(features, targets, measured, values, deviation)
    beyond = [(values - measured @ mean, deviation)]
    inflations = INFLATIONS / deviation
    at = measured @ root
    (fit,) = regress(at[:1], at, beyond, inflations, STRONG_EVIDENCE, noise_draws)
    weights = root @ np.asarray(fit.weights)
    weights[:, : mean.shape[1]] += mean
    return weights


def regress_sums(averages: Iterable[Averages], *released: NoisySums) -> list[Regression]:
    """Returns, for each table of noisy sums, the probability of each class for all inputs.

    Assumes that the inputs of the pool have the same distribution as the records. Apart from noise,
    the sum of a class is then the number of records times the mean over the pool of a vector times
    the probability of the class. So the sum is a linear function of the probabilities. The
    probabilities are modeled as linear functions of the pool's features, so the sum is also linear
    in the weights of the features.

    Args:
        averages: see `regress_counts`.
        *released: one or more tables of noisy sums, with the same vectors.
    """
    vectors = released[0].vectors
    if released[0].is_constant:
        vectors = vectors[:, :-1]
    mean = vectors.mean(axis=0, dtype=np.float64)
    beyond = [
        sums.values[: len(mean)] / sums.num_records - np.outer(mean, sums.shares)
        for sums in released
    ]
    if len(mean) > len(vectors):
        # In directions that are orthogonal to all inputs, the sums contain no information about the
        # inputs, only noise. The noise is equal in all directions, so a rotation does not change
        # it.
        turn = np.linalg.qr(vectors.T)[0]
        vectors = vectors @ turn
        beyond = [turn.T @ each for each in beyond]

    def linear(features: SingleArray, of_all: SingleArray) -> list[Regression]:
        measured = (vectors.T @ of_all).astype(np.float64) / len(vectors)
        unit = float(np.sqrt(max(np.square(measured).sum(axis=1).mean(), np.finfo(float).tiny)))
        noises = [sums.deviation / sums.num_records / unit for sums in released]
        values = [each / unit for each in beyond]
        measured /= unit
        return regress(features, measured, list(zip(values, noises, strict=True)))

    return [
        dataclasses.replace(each, means=each.means + sums.shares)
        for each, sums in zip(_regress_each(averages, linear), released, strict=True)
    ]


def _regress_each(
    averages: Iterable[Averages], regress_at: Callable[..., list[Regression]]
) -> list[Regression]:
    """Fits regressions for each representation, and returns their means over representations.

    The weight of a representation depends on the evidence of a regression on the second array of
    `Averages`.

    Args:
        averages: averages over the neighborhoods of each representation.
        regress_at: function that is called with the features of the inputs to predict and the
            features of all inputs, and returns one regression for each table.
    """
    regressions = []
    judged = []
    for of_all, of_first in averages:
        regressions.append(regress_at(of_all, of_all))
        is_same = of_first is of_all
        judged.append(regressions[-1] if is_same else regress_at(of_first[:1], of_first))
    return [
        averaged(each, scipy.special.softmax([regression.evidence for regression in by]))
        for each, by in zip(zip(*regressions, strict=True), zip(*judged, strict=True), strict=True)
    ]


def labels_of(probabilities: RealArray) -> PoolLabels:
    """Returns each input's most probable label; `probabilities` are `[num_inputs, num_classes]`."""
    num_inputs, num_classes = probabilities.shape
    return PoolLabels(
        query_indices=np.arange(num_inputs),
        labels=probabilities.argmax(axis=1),
        num_classes=num_classes,
        weights=probabilities.astype(np.float32),
    )


RIDGE = 3.0  # in standard deviations of the noise
# Weights are multiples of 1 / WEIGHT_STEPS, and vectors are multiples of another step. In units of
# the product of both steps, logits up to MAX_LOGIT are whole numbers below 2^53. So float64 sums of
# them are exact in any order.
WEIGHT_STEPS = 2**20
MAX_LOGIT = 2.0**18
NEIGHBORS = 5.0  # correlation length of the weights of a numeric column's bins, in bins
# Assumed largest fraction of the classes' variance that is explained in a direction. So the scales
# of two directions, which noise may change, differ at most by a factor of 4.
MAX_EXPLAINED = 0.75


def linear_model(
    sums: NoisySums, least_variances: Sequence[float] = (MIN_VARIANCE,)
) -> tuple[FloatArray, FloatArray]:
    """Returns class probabilities of inputs, and the weights of a linear model of noisy sums.

    Neighborhood averages are not used, because neighbors in a table may have different classes.

    Args:
        sums: noisy sums of features; the last entry of each vector is a constant.
        least_variances: values that are tried, see `standardisation`. The value with the largest
            evidence is used. With much noise, this favors the directions in which features vary
            most.

    Returns:
        Probabilities, `[num_inputs, num_classes]`; and weights from vectors to logits, `[width,
        num_classes]`.
    """
    features, constant = sums.vectors[:, :-1], float(sums.vectors[:, -1].max()) or 1.0
    fits = list[tuple[Regression, FloatArray]]()
    for least_variance in least_variances:
        mean, factors = standardisation(features, least_variance)
        rows = ((features - mean) * factors).astype(np.float32)
        (fit,) = regress_sums([(rows, rows)], sums)
        weights = factors[:, None] * np.asarray(fit.weights)
        fits.append((fit, np.vstack([weights, (sums.shares - mean @ weights) / constant])))
    regression, weights = max(fits, key=lambda fit: fit[0].evidence)
    means = np.asarray(regression.means)
    shares = np.maximum(means.mean(axis=0), 1.0 / sums.num_records)
    shares /= shares.sum()
    explained = np.cov(means, rowvar=False, bias=True)
    weights = discriminants(weights, shares, explained, constant)
    return scipy.special.softmax(sums.vectors @ weights, axis=1), weights


def discriminants(
    functions: FloatArray, shares: FloatArray, explained: FloatArray, constant: float
) -> FloatArray:
    """Returns weights from vectors to logits, given linear functions that predict the class.

    The largest of several functions fitted to one-hot classes is a bad prediction: a class between
    two others is hardly ever predicted. A linear discriminant analysis of the functions' values
    does not have this fault, and gives the same logits as an analysis of the vectors (Hastie,
    Tibshirani and Buja 1994, https://doi.org/10.1080/01621459.1994.10476866). Let D be the diagonal
    matrix of the shares, and F the covariance of the values. The mean of class c, relative to the
    mean of all classes, is row c of D^-1 F. The covariance within classes is F - F D^-1 F. So the
    slope of the logits is (D - F)^-1. The result is public.

    Args:
        functions: weights of the functions, `[width, num_classes]`. The last entry of each vector
            is `constant`.
        shares: mean of each function, above 0 with a sum of 1, `[num_classes]`.
        explained: covariance of the values of the functions, `[num_classes, num_classes]`. In each
            direction, at most `MAX_EXPLAINED` of the classes' variance is assumed to be explained.
        constant: last entry of each vector.
    """
    # Each vector's values are changed to have the sum 1.
    centering = np.eye(len(shares)) - shares
    roots = np.sqrt(shares)
    along, directions = np.linalg.eigh(centering.T @ explained @ centering / np.outer(roots, roots))
    along = along.clip(0.0, MAX_EXPLAINED)
    directions /= roots[:, None]
    slope = (directions / (1.0 - along)) @ directions.T
    distances = np.square(directions) @ (along / (1.0 - along))
    weights = functions @ centering @ slope
    weights[-1] += (np.log(shares) - distances / 2.0 - shares @ slope) / constant
    return weights


def weights_of_rounds(
    values: IntArray, moments: FloatArray, num_records: int, noise: float, num_rounds: int
) -> FloatArray:
    """Returns the weights `[width, num_classes]` of a linear model, from noisy sums of all rounds.

    Without a pool, it calls `weights_of_gradients`. With a pool, it applies Newton's method for
    softmax regression, starting from zero weights. The matrix of second derivatives is approximated
    by the second moments of the pool times a quarter of the number of records, plus a ridge of
    `RIDGE` standard deviations of the noise. The result is public.

    Args:
        values: noisy sums of each round, as multiples of 1 / LATTICE, `[num_rounds, width,
            num_classes]`.
        moments: second moments of the pool's vectors, `[width, width]`; empty without a pool.
        num_records: number of private records.
        noise: standard deviation in each round, in units of the maximum contribution of a record.
        num_rounds: planned number of rounds.
    """
    if not moments.size:
        return weights_of_gradients(values, num_rounds, num_records, noise)
    norms = np.array([1.0] + [RESIDUAL_NORM] * (len(values) - 1))
    total = np.tensordot(norms, values, axes=1) / LATTICE
    noise *= float(np.sqrt(np.square(norms).mean()))
    mean = moments[:, -1] / np.sqrt(moments[-1, -1])  # The last entry of vectors is a constant.
    total -= num_records / total.shape[1] * mean[:, None]  # Zero weights predict equal classes.
    curvature = num_records / 4.0 * moments + RIDGE * noise * np.eye(len(moments))
    return _exact(np.linalg.solve(curvature, total))


MOMENTUM = 0.9
# Limits of the standard deviation of the noise of a logit, if the loss had no curvature. Less noise
# than the lower limit makes steps so short that the most frequent class is nearly always predicted.
LOGIT_NOISE = 2.0, 4.0
# Steps are stable below the rate 2 (1 + MOMENTUM) / L (Polyak 1964). L is the largest eigenvalue of
# the second derivatives, divided by `RESIDUAL_NORM`. It is about 1/3 for features of tables.
MAX_RATE = 12.0


def weights_of_gradients(
    values: IntArray, num_rounds: int, num_records: int, noise: float
) -> FloatArray:
    """Returns the weights `[width, num_classes]` of a linear model, from noisy sums of residuals.

    This is gradient descent with momentum for softmax regression, starting from zero weights. It
    needs no second moments, so it needs no public inputs. The rate follows from the noise: if the
    loss had no curvature, all rounds together would add noise of standard deviation s to the logit
    of a vector of norm 1. The mean square of an entry of such vectors is 1 / width. Let r be the
    sum of these squares over all records, divided by the noise of all rounds together. Then s is
    proportional to r / (1 + r), which is small if there is mostly noise (a Wiener filter), within
    the limits `LOGIT_NOISE`. The result is public.

    Args:
        values: noisy sums of each round so far, as multiples of 1 / LATTICE, `[num_finished, width,
            num_classes]`. The first round contains sums by class, the other rounds residuals.
        num_rounds: planned number of rounds. After the last one, the result is the mean of the
            weights of the later half of the rounds, shrunk because of s.
        num_records: number of private records.
        noise: standard deviation in each round, in units of the maximum contribution of a record.
    """
    gradients = values / (LATTICE * num_records)
    # Zero weights predict equal classes.
    gradients[:1] -= gradients[:1].mean(axis=2, keepdims=True)
    gradients[:1] /= RESIDUAL_NORM
    records_over_noise = num_records / noise * math.sqrt(num_rounds)
    least, most = LOGIT_NOISE
    deviation = max(least, most * records_over_noise / (records_over_noise + values.shape[1]))
    rate = deviation * (1.0 - MOMENTUM) * records_over_noise / num_rounds
    velocity, weights, later = (np.zeros(values.shape[1:]) for _ in range(3))
    for step, gradient in enumerate(gradients):
        velocity = MOMENTUM * velocity + gradient
        weights += min(rate, MAX_RATE) * velocity
        if step >= num_rounds // 2:
            later += weights
    if len(values) == num_rounds:
        # Means of the later half of a random walk have 2/3 of its final variance. If a logit has
        # noise of variance v, its factor 1 / sqrt(1 + pi v / 8) gives the mean probability (MacKay
        # 1992).
        shrinkage = 1.0 / math.sqrt(1.0 + math.pi * deviation**2 * 2.0 / 3.0 / 8.0)
        weights = shrinkage * later / (num_rounds - num_rounds // 2)
    return _exact(weights)


def _exact(weights: npt.NDArray[np.floating]) -> FloatArray:
    """Rounds weights `[width, num_classes]`, so that logits are exact in any order of addition."""
    largest = MAX_LOGIT / len(weights)  # however large the noise is
    clipped = np.clip(weights, -largest, largest)
    return np.asarray(np.rint(clipped * WEIGHT_STEPS) / WEIGHT_STEPS)


def weights_of_moments(
    values: IntArray, num_classes: int, noise: float, **facts: Any
) -> FloatArray:
    """Returns the weights `[width, num_classes]` of a linear model, from noisy moments.

    The function applies `discriminants` to the result of `functions_of_moments`, which has the same
    arguments. The weights are public.
    """
    functions, shares, explained = functions_of_moments(values, num_classes, noise, **facts)
    return discriminants(functions, shares, explained, CONSTANT)


def functions_of_moments(
    values: IntArray,
    num_classes: int,
    noise: float,
    *,
    num_records: int | None = None,
    groups: IntArray | None = None,
    max_labels: int = 0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fits linear functions that predict the targets from the vectors of records.

    This is a linear regression from noisy moments (Wang 2018); the result is public. Eigenvalues of
    the centered moments that may be due to noise are shrunk by soft thresholding. For one-hot
    features, moments within a group follow from the means, and sums over a group are known. The
    weights of adjacent bins of a numeric column are correlated (a Gaussian process).

    Args:
        values: noisy sums and second moments, as multiples of 1 / LATTICE, `[width, num_classes +
            width]`. The last entry of each vector is a constant.
        num_classes: number of classes.
        noise: standard deviation of each entry, in units of the maximum contribution of a record.
        num_records: number of private records; None if this number is private.
        groups: for one-hot features, the index of each feature's group, `[width - 1]`. In each
            vector, exactly one feature of every group is not 0. The group of the bins of a numeric
            column has a negative index, and its bins are in ascending order. None if features are
            not one-hot.
        max_labels: for a target of several labels, the targets were divided by the square root of
            this number. 0 for targets with a sum of 1.

    Returns:
        Weights of the functions, `[width, num_classes]`; the mean of each target, `[num_classes]`;
        and the covariance of the functions' values, reduced by the mean effect of the noise,
        `[num_classes, num_classes]`.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    sums, moments = np.split(values * (norm / LATTICE), [num_classes], axis=1)
    sums *= math.sqrt(max(max_labels, 1))
    moments = (moments + moments.T) / (2.0 * MOMENT_WEIGHT)
    # Each entry is the mean of two noisy entries, with this standard deviation.
    deviation = noise * norm / MOMENT_WEIGHT / math.sqrt(2.0)
    threshold = deviation * math.sqrt(len(moments))  # half the largest eigenvalue of pure noise
    # The sum of all vectors was measured twice, by the sums and by the moments, which are weighted
    # by precision. For several labels, only the moments measure it.
    of_sums = 0.0 if max_labels else 1.0 / (num_classes * (noise * norm) ** 2)
    precisions = of_sums, (CONSTANT / deviation) ** 2
    total = np.average(
        [sums.sum(axis=1), moments[:, -1] / CONSTANT], axis=0, weights=precisions
    ).clip(0.0)
    number = num_records or max(total[-1] / CONSTANT, 1.0)
    counts = sums[-1] / CONSTANT
    if groups is not None:  # The sum over each group also measures the number of records.
        is_of = groups == np.unique(groups)[:, None]  # [num_groups, width - 1]
        size = math.sqrt((1.0 - CONSTANT_FRACTION) / len(is_of))  # value of features that are not 0
        precise = [CONSTANT_FRACTION, *(size**2 / is_of.sum(axis=1))]
        counts = np.average([counts, *(is_of @ sums[:-1] / size)], axis=0, weights=precise)
    shares = np.maximum(counts, 1.0)
    shares /= number if max_labels else shares.sum()
    shares = np.minimum(shares, 1.0)
    sums, total, moments = sums[:-1], total[:-1], moments[:-1, :-1]  # without the constant
    root = np.eye(len(moments))  # square root of the prior covariance of the weights
    if groups is None:
        known = np.zeros_like(moments)
        centered = moments - np.outer(total, total) / number
    else:
        total *= number * size / (np.maximum(is_of @ total, 1.0) @ is_of)
        products = np.outer(total, total) / number
        is_same = groups == groups[:, None]
        known = np.diag(size * total) - np.where(is_same, products, 0.0)
        # Within a group, the exact deviations from the mean have the sum 0. The rest is noise.
        centering = np.eye(len(groups)) - is_of.T @ (is_of / is_of.sum(axis=1, keepdims=True))
        centered = np.where(is_same, 0.0, centering @ (moments - products) @ centering)
        places = np.arange(len(groups))
        alike = np.exp(-np.abs(places[:, None] - places) / NEIGHBORS)
        covariance = root + np.where(is_same & (groups < 0), alike, 0.0)
        root = np.linalg.cholesky(covariance * (len(root) / np.trace(covariance)))
    along, directions = np.linalg.eigh(centered)
    along = np.sign(along) * np.maximum(np.abs(along) - threshold, 0.0)
    along, directions = np.linalg.eigh(
        root.T @ (known + (directions * along) @ directions.T) @ root
    )
    directions = root @ directions
    beyond = sums - np.outer(total, shares)
    inverse = 1.0 / (np.maximum(along, 0.0) + threshold / 2.0)
    weights = directions @ ((directions.T @ beyond) * inverse[:, None])
    explained = weights.T @ beyond / number
    by_noise = num_classes * (noise * norm) ** 2 * (np.square(directions) @ inverse).sum() / number
    explained *= max(1.0 - by_noise / max(np.trace(explained), np.finfo(float).tiny), 0.0)
    intercept = (shares - total @ weights / number) / CONSTANT
    return np.vstack([weights, intercept]), shares, explained
