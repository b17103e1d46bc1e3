"""What released labels or noisy counts say of a whole pool: post-processing, free.

First by features that were learned without labels, then by those of a network that learned from
the labels so found. Under heavy noise the network fits noise, so the mean of both is taken.
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
    LEAST_VARIANCE,
    MOST_QUERIES,
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
    """Returns labels of the pool that follow from released ones, where these are clear.

    Labels propagate to neighbors; those that their neighborhood clearly contradicts are left out.
    Labels with noisy counts of the Gaussian histogram are learned from together by regression
    instead: each input gets weights of the classes. Where no
    representation can be learned the released labels are returned.

    A class that no released label names is never predicted. No network is trained then: it would
    learn the missing class's inputs as other classes, with confidence.

    Args:
        pool: public inputs.
        released: the labels.
        seed: of the features, and of the network that learns from labels.
        representation: by its name; None for the data set's default.

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
    except TrainingDivergedError:  # of an auxiliary network: the first labels suffice
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
    if counts is None or not charge.releases_counts or released.num_answered > MOST_QUERIES:
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


SHRINKAGES = (LEAST_VARIANCE, 10.0 * LEAST_VARIANCE, 1e6)  # of a frozen encoder's directions
FALSE_ALARMS: Final = 0.05  # at most, of sums without any signal that exceed noise
LAPLACE_FACTOR: Final = 2.5  # variance of a square of Laplace noise over that of Gaussian noise


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
    """Infers labels of a pool from noisy sums of what records add.

    By linear regression on second moments, where these were released; by the linear model of
    several rounds; else by regression: of images on averages of features
    over neighborhoods, as neighbors most often are of one class, of tables and of a frozen encoder
    on features themselves. Of numbers and several labels by `target_functions`.

    Args:
        pool: public inputs.
        vectors: what each input would add, `[num_inputs, num_features + 1]`.
        values: noisy sums in steps of 1 / LATTICE, `[num_rounds, num_rows, num_classes]`, or as of
            `weights_of_moments`.
        noise: standard deviation of each round, in what a record adds at most.
        centres: of the clusters that records were counted in; None for sums of vectors.
        moments: of the pool's vectors, `[width, width]`, for a linear model; several rounds need
            them.
        num_records: private records, as far as it is public.
        groups: of one-hot features, as of `weights_of_moments`.
        representation: of images, by its name, whose features are compared; None for the default.
        seed: of these features.
        is_frozen: whether a person brought the encoder: its classes are taken for linear.
        num_redrawn: as of `target_functions`.
        public_labels: public labels of the pool, `UNKNOWN` where there is none, that join one round
            of sums where a linear model follows from them. None for none.

    Returns:
        A label of every input, with the probability of each class except where centers are given;
        and weights of a linear model from vectors to logits, `[width, num_classes]`: None of
        clusters, and of sums of images without moments; of numbers and several labels those of
        `target_functions`.
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
        if public_labels is not None and num_records:  # a noisy number may be far from it
            sums = dataclasses.replace(sums, num_of_class=num_records * sums.shares)
        shrinkages = SHRINKAGES if is_frozen else (LEAST_VARIANCE,)
        confidence, weights = linear_model(sums, shrinkages, public_labels)
        return labels_of(confidence), weights
    views = pool_features_by_name(pool, representation, seed)
    (regression,) = regress_sums(neighbourhood_averages(views), sums)
    labels = labels_of(class_probabilities(regression))
    if centres is not None:
        # Counts are released where noise is heavy. Probabilities are far below the accuracy then,
        # and a student that learns them never becomes confident enough to correct wrong labels.
        labels = dataclasses.replace(labels, weights=None)
    return labels, weights


def sums_of_pool(
    vectors: npt.NDArray[np.floating],
    total: npt.NDArray[np.float64],
    noise: float,
    centres: npt.NDArray[np.float64] | None,
) -> NoisySums:
    """Returns noisy sums of vectors, or noisy counts in clusters of these centers."""
    if centres is None:
        return NoisySums.of_features(vectors, total, noise)
    return NoisySums(
        vectors=np.eye(len(total), dtype=np.float32)[nearest_centres(vectors[:, :-1], centres)],
        values=total,
        noise=noise,
        num_of_class=np.maximum(total.sum(axis=0), 0.0),
    )


def exceed_noise(sums: npt.NDArray[np.float64], mechanism: ReleasesFeatureSums) -> bool:
    """Whether noisy sums differ between classes by more than noise does. Post-processing.

    If features said nothing of classes, the exact sums S would be proportional to each other, an
    outer product u v' with |v| = 1. All squares of the noisy table S + N but its best rank-one part
    are then at most |(S + N)(1 - v v')|^2 = |N (1 - v v')|^2 (Eckart and Young 1936). Of Gaussian
    noise the right side is the variance times a chi-squared variable with d (K - 1) degrees of
    freedom, for d rows and K classes; so such sums exceed its 95 % quantile with a probability of
    at most 5 %. Laplace noise has a kurtosis of 6, and up to 5/2 the variance of that sum: the
    scaled chi-squared law with the same mean and variance is taken (Satterthwaite 1946).

    Args:
        sums: noisy, `[num_rows, num_classes]`; of several rounds, the first.
        mechanism: that drew the noise.
    """
    singular = np.linalg.svd(sums / mechanism.standard_deviation, compute_uv=False)
    factor = 1.0 if mechanism.num_clusters is None else LAPLACE_FACTOR
    freedom = len(sums) * (sums.shape[1] - 1) / factor
    quantile = factor * scipy.stats.chi2.ppf(1.0 - FALSE_ALARMS, freedom)
    return bool(np.square(singular[1:]).sum() > quantile)
