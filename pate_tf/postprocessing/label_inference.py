"""Infers labels of a whole pool from released labels or noisy counts (free post-processing).

First uses features that were learned without labels, then features of a network that learned from
the inferred labels. With much noise the network fits noise, so the mean of both results is used.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import scipy.special
import scipy.stats

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import Named
from pate_tf.postprocessing.label_propagation import (
    nearest_centres,
    neighbour_graph,
    propagate_counts,
    propagate_labels,
)
from pate_tf.postprocessing.regression import (
    MAX_QUERIES,
    MIN_VARIANCE,
    NoisySums,
    Regression,
    averaged,
    class_probabilities,
    labels_of,
    linear_model,
    neighbourhood_averages,
    regress_counts,
    regress_sums,
    weights_of_moments,
    weights_of_rounds,
)
from pate_tf.postprocessing.targets import predictions_of_pool, target_functions
from pate_tf.representations.catalogue import pool_features_by_name
from pate_tf.representations.contrastive import student_features
from pate_tf.students.student_training import TrainingDivergedError

PASS_WEIGHTS = np.array([0.5, 0.5])
Views = Sequence[Sequence[npt.NDArray[np.floating]]]


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns labels of all inputs of the pool with a clear class, inferred from released labels.

    Labels propagate to neighbors. Labels that clearly contradict their neighborhood are left out.
    For noisy counts of the Gaussian histogram, a regression on all counts gives weights of the
    classes for each input instead. If no representation can be learned, returns the released
    labels.

    A class without a released label is never predicted. In that case no network is trained, because
    it would confidently predict other classes for the inputs of the missing class.

    Args:
        pool: public inputs.
        released: released labels.
        seed: seed of the features, and of the network that learns from labels.
        representation: name of the representation; None for the default of the data set.

    Raises:
        ValueError: if no query was answered, or the labels do not belong to this pool.
    """
    released.check_pool(pool)
    if pool.dataset.augmentation == "none":
        return released
    views = pool_features_by_name(pool, representation, seed)
    regression = _regression(views, released)
    first = (
        _propagated(views, released)
        if regression is None
        else labels_of(class_probabilities(regression))
    )
    if len(np.unique(first.labels)) < released.num_classes:
        return first if len(first.labels) else released
    try:
        features = student_features(pool, first, seed)
    except TrainingDivergedError:  # the labels without the network are good enough
        return first
    retrained = _regression([[features]], released)
    if regression is not None and retrained is not None:
        return labels_of(class_probabilities(averaged([regression, retrained], PASS_WEIGHTS)))
    second = _propagated([[features]], released)
    return second if len(second.labels) else first


def _regression(views: Views, released: ReleasedLabels) -> Regression | None:
    """Returns a regression on counts with Gaussian noise; None for other labels."""
    charge = released.cost.charge
    counts = released.noisy_counts
    if counts is None or not charge.releases_counts or released.num_answered > MAX_QUERIES:
        return None
    averages = neighbourhood_averages(views)
    deviation = charge.noise_scales["sigma"] * LATTICE
    return regress_counts(averages, released.query_indices, counts, deviation)


def _propagated(views: Views, released: ReleasedLabels) -> PoolLabels:
    graph = neighbour_graph([view for group in views for view in group])
    if released.noisy_counts is None:
        return propagate_labels(graph, released)
    return propagate_counts(graph, released, released.noisy_counts)


# Labels of a public pool from noisy sums of private records.


# Values of `least_variance` to try for a frozen encoder, see `standardisation`.
SHRINKAGES = (MIN_VARIANCE, 10.0 * MIN_VARIANCE, 1e6)
FALSE_ALARMS: Final = 0.05  # largest probability that sums without any signal exceed noise
LAPLACE_FACTOR: Final = 2.5  # variance of squared Laplace noise over squared Gaussian noise


def labels_from_sums(
    pool: Pool,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    centres: npt.NDArray[np.float64] | None = None,
    moments: npt.NDArray[np.float64] | None = None,
    num_records: int | None = None,
    groups: IntArray | None = None,
    representation: Named | None = None,
    seed: int = 0,
    is_frozen: bool = False,
    num_redrawn: int = 0,
    public_labels: IntArray | None = None,
) -> tuple[PoolLabels, npt.NDArray[np.float64] | None]:
    """Infers labels of a pool from noisy sums of contributions of records.

    The computation depends on the sums and the inputs:

    - numbers and several labels: `target_functions`;
    - second moments: linear regression (`weights_of_moments`);
    - several rounds: their linear model (`weights_of_rounds`);
    - tables, texts and frozen encoders: regression on features (`linear_model`);
    - other images: regression on neighborhood averages of features, because neighbors usually have
      the same class.

    Args:
        pool: public inputs.
        vectors: contribution of each input, `[num_inputs, num_features + 1]`.
        values: noisy sums in steps of 1 / LATTICE, `[num_rounds, num_rows, num_classes]`, or see
            `weights_of_moments`.
        noise: standard deviation in each round, in units of the maximum contribution of a record.
        centres: centers of the clusters of counts; None for sums of vectors.
        moments: second moments of the pool's vectors, `[width, width]`, for a linear model; several
            rounds need them.
        num_records: number of private records; None if it is private.
        groups: groups of one-hot features, see `weights_of_moments`.
        representation: name of the representation for comparing images; None for the default.
        seed: seed of these features.
        is_frozen: whether the user provided the encoder, so that a linear model is used.
        num_redrawn: see `target_functions`.
        public_labels: public labels of the pool, `UNKNOWN` for inputs without one, which a linear
            model from one round of sums uses in addition. None without public labels.

    Returns:
        A label of every input, with the probability of each class unless `centres` is given; and
        the weights of a linear model from vectors to logits, `[width, num_classes]`, or the result
        of `target_functions`. The weights are None for clusters, and for images without moments.
    """
    weights, total = None, values[0] / LATTICE
    if pool.dataset.target != CLASS:
        weights = target_functions(
            pool.dataset,
            vectors,
            values[0],
            noise,
            num_redrawn=num_redrawn,
            labels=public_labels,
            num_records=num_records,
            groups=groups,
        )
        return predictions_of_pool(vectors @ weights, pool.dataset), weights
    if values.shape[2] > pool.dataset.num_classes:
        weights = weights_of_moments(
            values[0], pool.dataset.num_classes, noise, num_records=num_records, groups=groups
        )
        return labels_of(scipy.special.softmax(vectors @ weights, axis=1)), weights
    is_linear = pool.dataset.augmentation == "none" or is_frozen
    if moments is not None and (len(values) > 1 or not is_linear):
        weights = weights_of_rounds(values, moments, num_records or 0, noise)
        if len(values) > 1:
            confidence = scipy.special.softmax(vectors @ weights, axis=1)
            return labels_of(confidence), weights
    sums = sums_of_pool(vectors, total, noise, centres)
    if is_linear:
        if public_labels is not None and num_records:  # the noisy number may be inaccurate
            sums = dataclasses.replace(sums, num_of_class=num_records * sums.shares)
        shrinkages = SHRINKAGES if is_frozen else (MIN_VARIANCE,)
        confidence, weights = linear_model(sums, shrinkages, public_labels)
        return labels_of(confidence), weights
    views = pool_features_by_name(pool, representation, seed)
    (regression,) = regress_sums(neighbourhood_averages(views), sums)
    labels = labels_of(class_probabilities(regression))
    if centres is not None:
        # Counts are released if there is much noise. Then probabilities are much lower than the
        # accuracy, and a student that learns them is too uncertain to correct wrong labels.
        labels = dataclasses.replace(labels, weights=None)
    return labels, weights


def sums_of_pool(
    vectors: npt.NDArray[np.floating],
    total: npt.NDArray[np.float64],
    noise: float,
    centres: npt.NDArray[np.float64] | None,
) -> NoisySums:
    """Returns noisy sums of vectors, or noisy counts in clusters with these centers."""
    if centres is None:
        return NoisySums.of_features(vectors, total, noise)
    return NoisySums(
        vectors=np.eye(len(total), dtype=np.float32)[nearest_centres(vectors[:, :-1], centres)],
        values=total,
        noise=noise,
        num_of_class=np.maximum(total.sum(axis=0), 0.0),
    )


def exceed_noise(sums: npt.NDArray[np.float64], mechanism: ReleasesFeatureSums) -> bool:
    """Whether noisy sums differ between classes by more than the noise. Post-processing.

    If features were independent of classes, the exact sums S of the classes would be proportional
    to each other: an outer product u v' with |v| = 1. Then the squared distance of the noisy table
    S + N from its best rank-one approximation is at most |(S + N)(1 - v v')|^2 = |N (1 - v v')|^2
    (Eckart and Young 1936). For Gaussian noise, d rows and K classes, the right side is the noise
    variance times a chi-squared variable with d (K - 1) degrees of freedom. So such sums exceed its
    95 % quantile with a probability of at most 5 %. Laplace noise has a kurtosis of 6, so the
    variance of that sum is up to 5/2 times larger. It is approximated by the scaled chi-squared
    distribution with the same mean and variance (Satterthwaite 1946).

    Args:
        sums: noisy sums, `[num_rows, num_classes]`; the first of several rounds.
        mechanism: mechanism that drew the noise.
    """
    singular = np.linalg.svd(sums / mechanism.standard_deviation, compute_uv=False)
    factor = 1.0 if mechanism.num_clusters is None else LAPLACE_FACTOR
    freedom = len(sums) * (sums.shape[1] - 1) / factor
    quantile = factor * scipy.stats.chi2.ppf(1.0 - FALSE_ALARMS, freedom)
    return bool(np.square(singular[1:]).sum() > quantile)
