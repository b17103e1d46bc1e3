"""What noisy counts or feature sums say of the whole pool: Gaussian process regression.

Each class's number of votes is taken for a linear function of the pool's features with independent
weights (Rasmussen and Williams 2006, chapter 2). The noise is known, for a mechanism drew it; how
large the function is, is what makes the released counts most likely. Neighbors most often are of
one class, so an input counts as its neighborhood average. Which representation finds the
neighbors is found in the same way: each weighs as much as it makes the released counts likely
(Hoeting et al. 1999, "Bayesian Model Averaging"). All of it is post-processing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.sparse
import scipy.special

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT, RESIDUAL_NORM
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import is_labeled
from pate_tf.core.public import PoolLabels
from pate_tf.models.encoder import CONSTANT, CONSTANT_FRACTION
from pate_tf.postprocessing.label_propagation import neighbour_graph, propagate

FloatArray = npt.NDArray[np.float64]

MOST_QUERIES = 1_000  # of one regression; it takes their cube
LEAST_VARIANCE = 1.0  # that a feature counts with, over the mean one
# Of a neighborhood average, the share that is not the input's own
# (docs/how-to/small_teachers.md).
FROM_NEIGHBOURS = 0.7
AMPLITUDES = np.geomspace(0.01, 10_000.0, 90)  # standard deviations of the noise
# By which the deviations of public weights may be too small, for the private ones.
INFLATIONS = np.geomspace(1.0, 10_000.0, 60)
# Logarithm of the evidence from which public labels count less: a Bayes factor of 20, which is
# "strong" (Kass and Raftery 1995, doi:10.1080/01621459.1995.10476572).
STRONG_EVIDENCE = math.log(20.0)
STEPS = np.linspace(-6.0, 6.0, 49)  # of the largest count's integral, in standard deviations
PART = 4_096  # inputs at a time
COLUMNS = 64  # features at a time, which stay in the cache from pass to pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """What counts are expected at inputs, after noisy ones at some.

    Attributes:
        means: `[num_inputs, num_classes]`, in the unit of the counts.
        deviations: standard deviations, the same for all classes: `[num_inputs]`.
        evidence: of the noisy counts, the logarithm of their density up to what is the same for all
            features.
        weights: of the features, `[num_features, num_classes]`: means are their products, and a
            number for each class. None of several regressions.
    """

    means: FloatArray
    deviations: FloatArray
    evidence: float
    weights: FloatArray | None = None


def regress(
    features: npt.NDArray[np.floating],
    measured: npt.NDArray[np.floating],
    measurements: Sequence[tuple[FloatArray, float]],
    amplitudes: FloatArray = AMPLITUDES,
    least_evidence: float = 0.0,
) -> list[Regression]:
    """Returns linear functions of features, likeliest where they are 0, after noisy values.

    The amplitude is the one with most evidence.

    Args:
        features: of all inputs, `[num_inputs, num_features]`, of about norm 1.
        measured: what the functions were measured at, `[num_values, num_features]`.
        measurements: noisy values `[num_values, num_classes]` and their standard deviation, in the
            same unit; a regression follows from each.
        amplitudes: of the weights that are tried, in standard deviations of the noise.
        least_evidence: how much more evidence than the first amplitude another one needs.
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
        precisions = values + amplitude**-2.0
        left = lengths - np.square(along) @ (1.0 / precisions)
        least = np.finfo(np.float32).eps  # where rounding left nothing
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


def averaged(regressions: Sequence[Regression], weights: FloatArray) -> Regression:
    """Returns the mean of several that weigh `[num_regressions]`, together 1; a single one."""
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
    features: npt.NDArray[np.floating], least_variance: float = LEAST_VARIANCE
) -> tuple[FloatArray, FloatArray]:
    """Returns means `[num_features]`, and factors by which features vary about equally.

    Less their means and times these, they have norm 1 in the mean square. The larger
    `least_variance`, over the mean one, the more equal are the factors instead.
    """
    mean = features.mean(axis=0, dtype=np.float64)
    variance = np.square(features - mean).mean(axis=0)
    tiny = np.finfo(np.float64).tiny
    divisors = np.sqrt(variance + max(least_variance * float(variance.mean()), tiny))
    return mean, 1.0 / divisors / np.sqrt(max(float((variance / divisors**2).sum()), tiny))


def standardised(features: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Returns features of about equal variance, of norm 1 in the mean square."""
    mean, factors = standardisation(features)
    return ((features - mean) * factors).astype(np.float32)


# Neighborhood averages of a pool's features, `[num_inputs, num_features]`, of about norm 1: of all
# representations, then of the first one alone. By these the neighborhoods are judged, as features
# of another one look smooth in neighborhoods that they found themselves.
Averages = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def neighbourhood_average(
    graph: scipy.sparse.csr_array, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns the weighted mean features of each input and its neighborhood, of the same shape."""
    ones = np.ones((len(features), 1), np.float32)
    weights = propagate(graph, ones, from_neighbours=FROM_NEIGHBOURS)
    total = np.empty(features.shape, np.float32)
    for start in range(0, features.shape[1], COLUMNS):
        some = np.ascontiguousarray(features[:, start : start + COLUMNS])
        total[:, start : start + COLUMNS] = propagate(graph, some, from_neighbours=FROM_NEIGHBOURS)
    return total / weights


def neighbourhood_averages(
    representations: Sequence[Sequence[npt.NDArray[np.floating]]],
) -> Iterator[Averages]:
    """Yields averages of all features over the neighborhoods that each representation finds.

    A representation is its views, features `[num_inputs, num_features]`.
    """
    features = [standardised(np.concatenate(views, axis=1)) for views in representations]
    root = np.sqrt(len(features), dtype=np.float32)
    joined = np.concatenate(features, axis=1) / root
    for views in representations:
        average = neighbourhood_average(neighbour_graph(views), joined)
        yield average, average[:, : features[0].shape[1]] * root


def class_probabilities(regression: Regression) -> npt.NDArray[np.float32]:
    """Returns how probable it is that each class has the most votes, `[num_inputs, num_classes]`.

    Counts of the classes are taken for independent; the integral over the largest one is a sum.
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
    """Returns what counts are expected at all inputs, after noisy ones at some.

    Args:
        averages: over the neighborhoods of each representation; each weighs as much as it makes
            the counts likely. Of a large pool one at a time is in memory.
        queries: positions of inputs, `[num_queries]`.
        counts: noisy counts of these, `[num_queries, num_classes]`, in any unit.
        noise: standard deviation of the noise, in the same unit; above 0.
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
    """Public: noisy sums by class of what private records add, and what inputs of a pool would add.

    Attributes:
        vectors: what each input would add, `[num_inputs, width]`.
        values: of records, with noise, `[width, num_classes]`.
        noise: its standard deviation, in the same unit; above 0.
        num_of_class: records of each class, as far as the values say, at least 0, `[num_classes]`.
        is_constant: whether the last number of all vectors is the same.
    """

    vectors: npt.NDArray[np.floating] = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)
    noise: float
    num_of_class: FloatArray = dataclasses.field(repr=False)
    is_constant: bool = False

    @classmethod
    def of_features(
        cls, vectors: npt.NDArray[np.floating], values: FloatArray, noise: float
    ) -> "NoisySums":
        """Takes sums of `record_vectors`, whose last number is a constant."""
        # An input without features has no constant either.
        constant = float(vectors[:, -1].max()) or 1.0
        number = np.maximum(values[-1] / constant, 0.0)
        return cls(
            vectors=vectors, values=values, noise=noise, num_of_class=number, is_constant=True
        )

    @property
    def num_records(self) -> float:
        """Number of records, at least 1."""
        return max(float(self.num_of_class.sum()), 1.0)

    @property
    def shares(self) -> FloatArray:
        """Of each class, among the records, `[num_classes]`."""
        return self.num_of_class / self.num_records

    @functools.cached_property
    def deviation(self) -> float:
        """Standard deviation of a value from what an endless pool would make it.

        Of the noise, and of which records and which inputs of the pool happened to be drawn. What
        all classes have in common is left out: it changes no label.
        """
        spread = float(np.square(self.vectors, dtype=np.float64).mean())
        number = self.num_records
        drawn = number * (1.0 + number / len(self.vectors)) * spread
        drawn *= (self.shares * (1 - self.shares)).mean()
        return float(np.sqrt(self.noise**2 + drawn))


def public_weights(
    rows: npt.NDArray[np.floating], targets: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the normal law of a linear function's weights and intercept, given public labels.

    Bayesian linear regression. The variance of the residuals and the amplitude of the weights are
    the ones with most evidence (Bishop 2006, section 3.5).

    Args:
        rows: features of the labeled inputs, `[num_labels, num_features]`.
        targets: 1 for the class of each and 0 for others, `[num_labels, num_classes]`.

    Returns:
        The mean `[num_features + 1, num_classes]`, the intercept last; and a root of the
        covariance, the same for all classes, `[num_features + 1, num_features + 1]`.
    """
    center = rows.mean(axis=0, dtype=np.float64)
    shares = targets.mean(axis=0)
    residuals = targets - shares
    left, roots, right = np.linalg.svd(rows - center, full_matrices=False)
    values = np.square(roots)
    along = roots[:, None] * (left.T @ residuals)
    penalties = AMPLITUDES[:, None] ** -2.0
    explained = (np.square(along).sum(axis=1) / (values + penalties)).sum(axis=1)
    variances = (np.square(residuals).sum() - explained) / residuals.size
    variances = np.maximum(variances, np.finfo(np.float32).eps)
    logarithms = np.log1p(values / penalties).sum(axis=1)
    best = (len(rows) * np.log(variances) + logarithms).argmin()
    variance = variances[best]
    precisions = values + penalties[best]
    weights = right.T @ (along / precisions[:, None])
    amplitude = np.sqrt(variance / penalties[best])
    shrunk = np.sqrt(variance / precisions) - amplitude
    root = amplitude * np.eye(len(weights)) + (right.T * shrunk) @ right
    root = np.block(
        [[root, np.zeros((len(root), 1))], [-center @ root, np.sqrt(variance / len(rows))]]
    )
    return np.vstack([weights, shares - center @ weights]), root


def joined(features: npt.NDArray[np.floating], sums: NoisySums, labels: IntArray) -> Regression:
    """Returns the linear function that follows from public labels and noisy sums together.

    The public labels give the mean and the covariance of its weights before the noisy sums are
    read, which then count by their precision. If both follow different rules, the covariance is too
    small: it is multiplied by the factor with most evidence, so that the public labels count less
    (Birge 1932, https://doi.org/10.1103/PhysRev.40.207). Without strong evidence the factor is 1.

    Args:
        features: of all inputs of the pool, `[num_inputs, num_features]`.
        sums: of features, with a constant last.
        labels: public labels of the inputs, `UNKNOWN` for those without one, `[num_inputs]`.

    Returns:
        The function, whose weights are `[num_features + 1, num_classes]`, the intercept last.
    """
    is_known = is_labeled(labels)
    one_hot = np.eye(sums.values.shape[1])[labels[is_known]]
    mean, root = public_weights(features[is_known], one_hot)
    rows = np.column_stack([features, np.ones(len(features))])
    measured = sums.vectors.T.astype(np.float64) @ rows / len(rows)
    deviation = sums.deviation / sums.num_records
    beyond = [(sums.values / sums.num_records - measured @ mean, deviation)]
    inflations = INFLATIONS / deviation
    (fit,) = regress(rows @ root, measured @ root, beyond, inflations, STRONG_EVIDENCE)
    return dataclasses.replace(
        fit, means=rows @ mean + fit.means, weights=mean + root @ np.asarray(fit.weights)
    )


def regress_sums(averages: Iterable[Averages], *released: NoisySums) -> list[Regression]:
    """Returns how probable each class is at all inputs, for each of several noisy sums.

    A sum of records' vectors is, but for its noise and as far as the pool is like the records, the
    number of records times the mean of a vector and a class's probability: a linear function of
    these probabilities, and so of the pool's features where probabilities are.

    Args:
        averages: as of `regress_counts`.
        *released: of records, at least one, all with the same vectors.
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
        # What lies beyond all inputs says nothing of them; noise is as large in all directions.
        turn = np.linalg.qr(vectors.T)[0]
        vectors = vectors @ turn
        beyond = [turn.T @ each for each in beyond]

    def linear(
        features: npt.NDArray[np.float32], of_all: npt.NDArray[np.float32]
    ) -> list[Regression]:
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
    """Averages regressions at all inputs, weighed by the evidence of each one's neighborhoods.

    `regress_at` takes features of the inputs to answer for, and of all inputs.
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


def labels_of(probabilities: npt.NDArray[np.floating]) -> PoolLabels:
    """Returns the label of each input that is most probable, of `[num_inputs, num_classes]`."""
    num_inputs, num_classes = probabilities.shape
    return PoolLabels(
        query_indices=np.arange(num_inputs),
        labels=probabilities.argmax(axis=1),
        num_classes=num_classes,
        weights=probabilities.astype(np.float32),
    )


RIDGE = 3.0  # standard deviations of the noise
WEIGHT_STEPS = 2**20  # logits are exact: whole numbers that float64 adds up in any order
LARGEST_LOGIT = 2.0**18  # in steps of both, below 2^53
NEIGHBORS = 5.0  # bins over which weights of a number are alike
MOST_EXPLAINED = 0.9  # of the classes' variance, that is believed of noisy moments
LOG_FACTORS = (-3.0, 7.0)  # of logits, over what a regression expects


def likeliest_factor(logits: npt.NDArray[np.floating], targets: npt.NDArray[np.floating]) -> float:
    """Returns the factor of logits with which targets are likeliest (temperature scaling).

    Source: https://arxiv.org/abs/1706.04599.

    Args:
        logits: `[..., num_inputs, num_classes]`.
        targets: probabilities of classes, `[num_inputs, num_classes]`.
    """

    def cross_entropy(logarithm: float) -> float:
        scaled = scipy.special.log_softmax(np.exp(logarithm) * logits, axis=-1)
        return -float((targets * scaled).sum(axis=-1).mean())

    best = scipy.optimize.minimize_scalar(cross_entropy, bounds=LOG_FACTORS, method="bounded").x
    return float(np.exp(best))


def linear_model(
    sums: NoisySums,
    least_variances: Sequence[float] = (LEAST_VARIANCE,),
    labels: IntArray | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns how probable classes are of inputs of a table, and weights that say it of any input.

    Neighbors in a table need not be of one class: no averages.

    Args:
        sums: of features, with a constant last.
        least_variances: as of `standardisation`; the one with most evidence is taken, so that the
            more noise, the more is expected of the directions in which features vary most.
        labels: public labels of the inputs, as of `joined`; None for none.

    Returns:
        Probabilities `[num_inputs, num_classes]`, and weights `[width, num_classes]` from vectors
        to logits: those of the regression, by a factor at which they are most like these.
    """
    features, constant = sums.vectors[:, :-1], float(sums.vectors[:, -1].max()) or 1.0
    fits = list[tuple[Regression, FloatArray]]()
    for least_variance in least_variances:
        mean, factors = standardisation(features, least_variance)
        rows = ((features - mean) * factors).astype(np.float32)
        if labels is None:
            (fit,) = regress_sums([(rows, rows)], sums)
            weights, intercept = np.asarray(fit.weights), sums.shares
        else:
            fit = joined(rows, sums, labels)
            weights, intercept = np.split(np.asarray(fit.weights), [-1])
        weights = factors[:, None] * weights
        fits.append((fit, np.vstack([weights, (intercept - mean @ weights) / constant])))
    regression, weights = max(fits, key=lambda fit: fit[0].evidence)
    # Without an upper bound: of two means above 1 the larger one has the label.
    probabilities = np.maximum(regression.means, np.finfo(np.float32).eps)
    probabilities /= probabilities.sum(axis=1, keepdims=True)

    factor = likeliest_factor(np.asarray(regression.means), probabilities)
    return probabilities, factor * weights


def weights_of_rounds(
    values: IntArray, moments: npt.NDArray[np.float64], num_records: int, noise: float
) -> npt.NDArray[np.float64]:
    """Returns weights of the linear model that follows from noisy sums, `[width, num_classes]`.

    Newton's method for softmax regression from weights 0, whose second derivatives are taken for a
    quarter of the number of records times the pool's second moments, with a ridge of `RIDGE`
    standard deviations of the noise. Public.

    Args:
        values: noisy sums of each round, in steps of 1 / LATTICE, `[num_rounds, width,
            num_classes]`.
        moments: means of the products of two numbers of a pool's vector, `[width, width]`.
        num_records: private records.
        noise: standard deviation in each round, in what a record adds at most.
    """
    norms = np.array([1.0] + [RESIDUAL_NORM] * (len(values) - 1))
    total = np.tensordot(norms, values, axes=1) / LATTICE
    noise *= float(np.sqrt(np.square(norms).mean()))
    mean = moments[:, -1] / np.sqrt(moments[-1, -1])  # the last number is a constant
    total -= num_records / total.shape[1] * mean[:, None]  # at weights 0 all classes are equal
    curvature = num_records / 4.0 * moments + RIDGE * noise * np.eye(len(moments))
    largest = LARGEST_LOGIT / len(moments)  # whatever the noise, so that logits stay exact
    weights = np.clip(np.linalg.solve(curvature, total), -largest, largest)
    return np.asarray(np.rint(weights * WEIGHT_STEPS) / WEIGHT_STEPS)


def weights_of_moments(
    values: IntArray,
    num_classes: int,
    noise: float,
    *,
    num_records: int | None = None,
    groups: IntArray | None = None,
) -> npt.NDArray[np.float64]:
    """Returns weights of a linear model from noisy moments, `[width, num_classes]`. Public.

    Those of `functions_of_moments` are scaled as those of linear discriminant analysis, so that
    their softmax is a probability. The arguments are the same.
    """
    functions, shares, explained = functions_of_moments(
        values, num_classes, noise, num_records=num_records, groups=groups
    )
    variance = float((shares * (1.0 - shares)).sum())
    scale = (num_classes - 1) / (variance * (1.0 - min(max(explained, 0.0), MOST_EXPLAINED)))
    return scale * functions


def functions_of_moments(
    values: IntArray,
    num_classes: int,
    noise: float,
    *,
    num_records: int | None = None,
    groups: IntArray | None = None,
    max_labels: int = 0,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    """Returns linear functions of vectors that are least wrong about targets. Public.

    Linear regression on targets, after Wang 2018: eigenvalues of the centered moments
    that noise alone may have are shrunk (soft thresholding). Of one-hot features the moments
    within a group follow from the means, and sums over a group are known. Weights of a number's
    bins are expected to be alike where bins are close (a Gaussian process).

    Args:
        values: noisy, in steps of 1 / LATTICE, `[width, num_classes + width]`; the last number of
            a vector is a constant.
        num_classes: number of classes.
        noise: standard deviation on each number, in what a record adds at most.
        num_records: private records; None where that is not public.
        groups: of one-hot features, of which each group has one that is not 0: its number,
            `[width - 1]`, below 0 of the bins of a number, in ascending order. None for other
            features.
        max_labels: of several labels that may hold at once, whose targets were divided by its
            root. 0 of targets that add up to 1.

    Returns:
        Weights of the functions, `[width, num_classes]`; the mean of each target, `[num_classes]`;
        and the fraction of the targets' variance that they explain.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    sums, moments = np.split(values * (norm / LATTICE), [num_classes], axis=1)
    sums *= math.sqrt(max(max_labels, 1))
    moments = (moments + moments.T) / (2.0 * MOMENT_WEIGHT)
    deviation = noise * norm / MOMENT_WEIGHT / math.sqrt(2.0)  # of a mean of two
    threshold = deviation * math.sqrt(len(moments))  # half the largest eigenvalue of noise alone
    # Two measurements of the sum of all vectors, each by its precision; one of several labels.
    of_sums = 0.0 if max_labels else 1.0 / (num_classes * (noise * norm) ** 2)
    precisions = of_sums, (CONSTANT / deviation) ** 2
    total = np.average(
        [sums.sum(axis=1), moments[:, -1] / CONSTANT], axis=0, weights=precisions
    ).clip(0.0)
    number = num_records or max(total[-1] / CONSTANT, 1.0)
    counts = sums[-1] / CONSTANT
    if groups is not None:  # the sums of each group add up to the number of records, too
        is_of = groups == np.unique(groups)[:, None]  # [num_groups, width - 1]
        size = math.sqrt((1.0 - CONSTANT_FRACTION) / len(is_of))  # of what is not 0
        precise = [CONSTANT_FRACTION, *(size**2 / is_of.sum(axis=1))]
        counts = np.average([counts, *(is_of @ sums[:-1] / size)], axis=0, weights=precise)
    shares = np.maximum(counts, 1.0)
    shares /= number if max_labels else shares.sum()
    shares = np.minimum(shares, 1.0)
    sums, total, moments = sums[:-1], total[:-1], moments[:-1, :-1]  # without the constant
    root = np.eye(len(moments))  # of how weights are expected to vary together
    if groups is None:
        known = np.zeros_like(moments)
        centered = moments - np.outer(total, total) / number
    else:
        total *= number * size / (np.maximum(is_of @ total, 1.0) @ is_of)
        products = np.outer(total, total) / number
        is_same = groups == groups[:, None]
        known = np.diag(size * total) - np.where(is_same, products, 0.0)
        # Deviations from the mean add up to 0 within a group: what does not is noise.
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
    variance = float((shares * (1.0 - shares)).sum())
    spread = float((np.square(directions) @ inverse).sum())
    by_noise = num_classes * (noise * norm) ** 2 * spread
    explained = (float((weights * beyond).sum()) - by_noise) / (number * variance)
    intercept = (shares - total @ weights / number) / CONSTANT
    return np.vstack([weights, intercept]), shares, explained
