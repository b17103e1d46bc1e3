"""What noisy counts of some inputs say of the whole pool: Gaussian process regression.

Each class's number of votes is taken for a linear function of the pool's features with independent
weights (Rasmussen and Williams 2006, chapter 2): nearly what votes of linear teachers are, and few
numbers beside all the counts that they are found from. The noise is known, for a mechanism drew it;
how large the function is, is what makes the counts that were released most likely. Inputs that look
alike most often are of one class, so an input counts as the mean of its surroundings. Which
representation says what looks alike is found in the same way: each weighs as much as it makes the
released counts likely (Hoeting et al. 1999, "Bayesian Model Averaging").

All of it is post-processing of what was paid for.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.special

from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.representations.neighbours import neighbour_graph, spread
from pate_tf.students.batches import FloatArray

MOST_QUERIES = 1_000  # that are learnt from together; it takes their cube
LEAST_VARIANCE = 1.0  # that a feature counts with, over the mean one
# Of an input's surroundings, the share that is not itself. A little less suits Fashion-MNIST, a
# little more MNIST (docs/many_teachers.md).
SMOOTHED = 0.7
AMPLITUDES = np.geomspace(0.01, 10_000.0, 90)  # standard deviations of the noise
STEPS = np.linspace(-6.0, 6.0, 49)  # of the largest count's integral, in standard deviations
PART = 4_096  # inputs at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """What counts are expected at inputs, after noisy ones at some.

    Attributes:
      means: `[num_inputs, num_classes]`, in the unit of the counts.
      deviations: standard deviations, the same for all classes: `[num_inputs]`.
      evidence: of the noisy counts, the logarithm of their density up to what is the same for all
        features.
    """

    means: FloatArray
    deviations: FloatArray
    evidence: float


def regress(
    features: npt.NDArray[np.floating],
    queried: npt.NDArray[np.floating],
    counts: FloatArray,
    noise: float,
) -> Regression:
    """Returns what counts are to be expected, at the amplitude with most evidence.

    Args:
      features: of all inputs, `[num_inputs, num_features]`, of about length 1.
      queried: of those with counts, at least one, `[num_queries, num_features]`.
      counts: noisy ones, `[num_queries, num_classes]`.
      noise: standard deviation of their noise, in the same unit.
    """
    middle = counts.mean()
    found = _linear(features, queried, counts - middle, noise)
    return dataclasses.replace(found, means=middle + found.means)


def _linear(
    features: npt.NDArray[np.floating],
    measured: npt.NDArray[np.floating],
    values_there: FloatArray,
    noise: float,
) -> Regression:
    """Returns linear functions of features, likeliest where they are 0, after noisy values.

    Args:
      features: as of `regress`.
      measured: what the functions were measured at, `[num_values, num_features]`.
      values_there: noisy, `[num_values, num_classes]`.
      noise: their standard deviation.
    """
    own = measured.astype(np.float64)
    values, vectors = np.linalg.eigh(own @ own.T)
    values = np.maximum(values, 0.0)
    num_classes = values_there.shape[1]
    rotated = vectors.T @ (values_there / noise)
    squares = np.square(rotated).sum(axis=1)

    def evidence(amplitude: float) -> float:
        total = amplitude**2 * values + 1.0
        return -0.5 * float((squares / total).sum() + num_classes * np.log(total).sum())

    amplitude = float(max(AMPLITUDES, key=evidence))
    known = values + amplitude**-2.0
    along = features @ (own.T @ vectors)  # [num_inputs, num_queries]
    left = np.square(features).sum(axis=1, dtype=np.float64) - np.square(along) @ (1.0 / known)
    least = np.finfo(np.float32).eps  # where rounding left nothing
    return Regression(
        means=noise * (along @ (rotated / known[:, None])),
        deviations=noise * amplitude * np.sqrt(np.maximum(left, least)),
        evidence=evidence(amplitude),
    )


def averaged(found: Sequence[Regression], weights: FloatArray) -> Regression:
    """Returns the mean of several that weigh `[num_regressions]`, together 1."""
    means = sum(weight * one.means for weight, one in zip(weights, found, strict=True))
    squares = sum(
        weight * (np.square(one.deviations) + np.square(one.means - means).mean(axis=1))
        for weight, one in zip(weights, found, strict=True)
    )
    return Regression(
        means=np.asarray(means),
        deviations=np.sqrt(squares),
        evidence=float(scipy.special.logsumexp([one.evidence for one in found], b=weights)),
    )


def scaled(features: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Returns features that vary about alike, of length 1 in the mean square."""
    centred = features - features.mean(axis=0, dtype=np.float64)
    spread_out = np.square(centred).mean(axis=0)
    tiny = np.finfo(np.float64).tiny
    found = centred / np.sqrt(spread_out + max(LEAST_VARIANCE * float(spread_out.mean()), tiny))
    length = np.sqrt(max(float(np.square(found).sum(axis=1).mean()), tiny))
    return (found / length).astype(np.float32)


def surroundings(
    graph: scipy.sparse.csr_array, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns the mean features of each input and what is near it, `[num_inputs, num_features]`."""
    weights = spread(graph, np.ones((len(features), 1), np.float32), kept=SMOOTHED)
    return np.asarray(spread(graph, features, kept=SMOOTHED) / weights, np.float32)


def class_probabilities(found: Regression) -> npt.NDArray[np.float32]:
    """Returns how probable it is that each class has the most votes, `[num_inputs, num_classes]`.

    Counts of the classes are taken for independent; the integral over the largest one is a sum.
    """
    result = np.empty(found.means.shape, np.float32)
    for start in range(0, len(result), PART):
        part = slice(start, start + PART)
        scores = found.means[part] / found.deviations[part, None]
        scores -= scores.max(axis=1, keepdims=True)
        total = np.zeros_like(scores)
        for step in STEPS:
            below = scipy.special.log_ndtr(step - scores)
            density = -0.5 * np.square(step - scores)
            total += np.exp(density + below.sum(axis=1, keepdims=True) - below)
        result[part] = total / total.sum(axis=1, keepdims=True)
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smoothed:
    """Features of a pool's inputs, each the mean of its surroundings. Public.

    Attributes:
      features: of all representations, `[num_inputs, num_features]`, of about length 1.
      judged: of the first one alone, likewise: by these it is judged who found the surroundings, as
        features of another look smooth in surroundings that they were found by themselves.
    """

    features: npt.NDArray[np.float32] = dataclasses.field(repr=False)
    judged: npt.NDArray[np.float32] = dataclasses.field(repr=False)


def smoothed(
    representations: Sequence[Sequence[npt.NDArray[np.floating]]],
) -> Iterator[Smoothed]:
    """Yields all features in the surroundings that each representation finds.

    Args:
      representations: of each its views, features `[num_inputs, num_features]`.
    """
    features = [scaled(np.concatenate(views, axis=1)) for views in representations]
    joined = np.concatenate(features, axis=1) / np.sqrt(len(features), dtype=np.float32)
    first, alone = features[0].shape[1], np.sqrt(len(features), dtype=np.float32)
    for views in representations:
        around = surroundings(neighbour_graph(views), joined)
        yield Smoothed(features=around, judged=around[:, :first] * alone)


def regressed(
    inputs: Iterable[Smoothed], asked: IntArray, counts: npt.ArrayLike, noise: float
) -> Regression:
    """Returns what counts are to be expected at all inputs, after noisy ones at some.

    Args:
      inputs: all of them, in the surroundings that each representation finds; each weighs as much
        as it makes the counts likely.
      asked: positions of inputs, `[num_queries]`.
      counts: noisy counts of these, `[num_queries, num_classes]`, in any unit.
      noise: standard deviation of the noise, in the same unit; above 0.
    """
    noisy = np.asarray(counts, np.float64)
    found, evidence = [], []
    for one in inputs:  # of a large pool one at a time is in memory
        evidence.append(regress(one.judged, one.judged[asked], noisy, noise).evidence)
        found.append(regress(one.features, one.features[asked], noisy, noise))
    return averaged(found, scipy.special.softmax(evidence))


def regressed_by_sums(
    inputs: Iterable[Smoothed],
    vectors: npt.NDArray[np.floating],
    sums: FloatArray,
    noise: float,
) -> Regression:
    """Returns how probable each class is at all inputs, after noisy sums of records by class.

    A sum of records' vectors is, but for its noise and as far as the pool is like the records, the
    number of records times the mean of a vector and a class's probability: a linear function of
    these probabilities, and so of the pool's features where probabilities are.

    Args:
      inputs: as of `regressed`.
      vectors: `models.record_vectors` of all inputs, `[num_inputs, num_features + 1]`.
      sums: of records, with noise, `[num_features + 1, num_classes]`.
      noise: its standard deviation, in the same unit; above 0.
    """
    known, constant = vectors[:, :-1], float(vectors[0, -1])
    by_class = np.maximum(sums[-1] / constant, 0.0)
    num_records = max(float(by_class.sum()), 1.0)
    shares = by_class / num_records
    beyond = sums[:-1] - num_records * np.outer(known.mean(axis=0, dtype=np.float64), shares)

    def linear(features: npt.NDArray[np.float32], judged: npt.NDArray[np.float32]) -> Regression:
        measured = (num_records / len(known)) * (known.T @ judged).astype(np.float64)
        unit = float(np.sqrt(max(np.square(measured).sum(axis=1).mean(), np.finfo(float).tiny)))
        return _linear(features, measured / unit, beyond / unit, noise / unit)

    found, evidence = [], []
    for one in inputs:  # of a large pool one at a time is in memory
        evidence.append(linear(one.judged[:1], one.judged).evidence)
        found.append(linear(one.features, one.features))
    likely = averaged(found, scipy.special.softmax(evidence))
    return dataclasses.replace(likely, means=likely.means + shares)


def labels_of(found: Regression) -> PoolLabels:
    """Returns a label with weights for every input of the pool.

    Its weights are probabilities that a class has most votes in an input's surroundings.
    """
    weights = class_probabilities(found)
    return PoolLabels(
        query_indices=np.arange(len(weights)),
        labels=weights.argmax(axis=1),
        num_classes=weights.shape[1],
        weights=weights,
    )
