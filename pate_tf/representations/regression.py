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
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.special

from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.representations.label_propagation import neighbour_graph, propagate

FloatArray = npt.NDArray[np.float64]

MOST_QUERIES = 1_000  # of one regression; it takes their cube
LEAST_VARIANCE = 1.0  # that a feature counts with, over the mean one
# Of a neighborhood average, the share that is not the input's own
# (docs/how-to/small_teachers.md).
FROM_NEIGHBOURS = 0.7
AMPLITUDES = np.geomspace(0.01, 10_000.0, 90)  # standard deviations of the noise
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
) -> list[Regression]:
    """Returns linear functions of features, likeliest where they are 0, after noisy values.

    The amplitude is the one with most evidence.

    Args:
        features: of all inputs, `[num_inputs, num_features]`, of about norm 1.
        measured: what the functions were measured at, `[num_values, num_features]`.
        measurements: noisy values `[num_values, num_classes]` and their standard deviation, in the
            same unit; a regression follows from each.
    """
    rows = measured.astype(np.float64)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    values, turned = np.maximum(values, 0.0), rows.T @ vectors
    along = features @ turned  # [num_inputs, num_values]
    lengths = np.square(features).sum(axis=1, dtype=np.float64)
    totals = np.square(AMPLITUDES)[:, None] * values + 1.0  # [num_amplitudes, num_values]
    logarithms = np.log(totals).sum(axis=1)
    regressions = []
    for values_there, noise in measurements:
        rotated = vectors.T @ (values_there / noise)
        by_amplitude = (np.square(rotated).sum(axis=1) / totals).sum(axis=1)
        evidence = -0.5 * (by_amplitude + values_there.shape[1] * logarithms)
        amplitude = float(AMPLITUDES[evidence.argmax()])
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
        """Takes sums of `models.encoder.record_vectors`, whose last number is a constant."""
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
        number, spread = self.num_records, float(np.square(self.vectors, dtype=np.float64).mean())
        shares = self.shares
        drawn = (
            number * (1.0 + number / len(self.vectors)) * spread * (shares * (1 - shares)).mean()
        )
        return float(np.sqrt(self.noise**2 + drawn))


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
        vectors, beyond = vectors @ turn, [turn.T @ each for each in beyond]

    def linear(
        features: npt.NDArray[np.float32], of_all: npt.NDArray[np.float32]
    ) -> list[Regression]:
        measured = (vectors.T @ of_all).astype(np.float64) / len(vectors)
        unit = float(np.sqrt(max(np.square(measured).sum(axis=1).mean(), np.finfo(float).tiny)))
        noises = [sums.deviation / sums.num_records / unit for sums in released]
        values = [each / unit for each in beyond]
        return regress(features, measured / unit, list(zip(values, noises, strict=True)))

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
    regressions, judged = [], []
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
