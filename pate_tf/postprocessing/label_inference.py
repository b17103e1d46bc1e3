"""Infers labels of a whole pool from released labels, noisy counts or noisy sums.

This is post-processing, which costs no privacy. Labels are inferred twice: first from features that
were learned without labels, then from features of a network that was trained on the first result.
With much noise, the network fits the noise, so the mean of both results is used.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import scipy.special
import scipy.stats

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import Named
from pate_tf.postprocessing.label_propagation import (
    nearest_centres,
    neighbour_graph,
    propagate_counts,
    propagate_labels,
)
from pate_tf.postprocessing.public_start import public_start
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
Views = Sequence[Sequence[RealArray]]


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Infers labels from released labels, for all inputs of the pool with a clear class.

    Each input gets labels from its neighbors. Released labels that clearly contradict their
    neighborhood are left out. If noisy counts of the mechanism `GaussianHistogram` were released, a
    regression on all counts computes the weight of each class for each input instead. If no
    representation can be learned, the released labels are returned.

    A class without released labels is never predicted. In this case, no network is trained, because
    it would confidently predict other classes for inputs of this class.

    Args:
        pool: public inputs.
        released: released labels of some inputs of the pool.
        seed: seed of the features, and of the network that is trained on inferred labels.
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
    except TrainingDivergedError:  # Use the labels that were inferred without a network.
        return first
    retrained = _regression([[features]], released)
    if regression is not None and retrained is not None:
        return labels_of(class_probabilities(averaged([regression, retrained], PASS_WEIGHTS)))
    second = _propagated([[features]], released)
    return second if len(second.labels) else first


def _regression(views: Views, released: ReleasedLabels) -> Regression | None:
    """Returns a regression on counts; None unless there are counts with Gaussian noise."""
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


# The functions below infer labels of a public pool from noisy sums of private records.


# Values of `least_variance` to try for a user's encoder; see `standardisation`.
SHRINKAGES = (MIN_VARIANCE, 10.0 * MIN_VARIANCE, 1e6)
# Maximum probability that `exceed_noise` is true if sums contain only noise.
FALSE_ALARMS: Final = 0.05
# The variance of squared Laplace noise, divided by the variance of squared Gaussian noise.
LAPLACE_FACTOR: Final = 2.5


def labels_from_sums(
    pool: Pool,
    vectors: RealArray,
    values: IntArray,
    noise: float,
    *,
    centres: FloatArray | None = None,
    moments: FloatArray | None = None,
    num_records: int | None = None,
    groups: IntArray | None = None,
    representation: Named | None = None,
    seed: int = 0,
    is_frozen: bool = False,
    num_redrawn: int = 0,
    public_labels: IntArray | None = None,
) -> tuple[PoolLabels, FloatArray | None]:
    """Infers labels of a pool from noisy sums of records' contributions.

    The first case that applies determines the computation:

    - numbers and several labels: `target_functions`;
    - sums that include second moments: linear regression (`weights_of_moments`);
    - several rounds: a linear model (`weights_of_rounds`);
    - tables, texts and frozen encoders: regression on features (`linear_model`), or with public
      labels `PublicStart.improved`;
    - other images: regression on neighborhood averages of features, because neighbors usually have
      the same class.

    Args:
        pool: public inputs.
        vectors: vector that each input would contribute as a record, `[num_inputs,
            num_features + 1]`.
        values: noisy sums as multiples of 1 / LATTICE, `[num_rounds, num_rows, num_classes]`. Sums
            that include second moments have more columns; see `weights_of_moments`.
        noise: standard deviation of the noise in each round, in units of the maximum contribution
            of a record.
        centres: centers of the clusters if `values` are counts in clusters; None for sums of
            vectors.
        moments: second moments of the pool's vectors, `[width, width]`, for a linear model; empty
            without a pool. Required for several rounds.
        num_records: number of private records; None if this number is private.
        groups: group index of each feature, see `models.encoder.Part`.
        representation: name of the representation by which images are compared; None for the
            default.
        seed: seed of this representation.
        is_frozen: whether the user provided the encoder. If so, a linear model is used.
        num_redrawn: number of bootstrap samples, see `target_functions`.
        public_labels: public labels of the pool, with `UNKNOWN` for inputs without a label; None if
            the pool has no labels. A linear model from one round of sums also learns from them.

    Returns:
        A label of every input, with the probability of each class unless `centres` is given; and
        the weights of a linear model from vectors to logits, `[width, num_classes]`, or the result
        of `target_functions`. In the last of the cases above, the weights are None if `moments` is
        None.
    """
    weights = None
    total = values[0] / LATTICE
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
        weights = weights_of_rounds(values, moments, num_records or 0, noise, len(values))
        if len(values) > 1:
            confidence = scipy.special.softmax(vectors @ weights, axis=1)
            return labels_of(confidence), weights
    sums = sums_of_pool(vectors, total, noise, centres)
    if is_linear:
        if public_labels is not None:
            start, _ = public_start(vectors, public_labels, pool.dataset.num_classes)
            weights = start.improved(sums, num_records)
            return labels_of(scipy.special.softmax(vectors @ weights, axis=1)), weights
        shrinkages = SHRINKAGES if is_frozen else (MIN_VARIANCE,)
        confidence, weights = linear_model(sums, shrinkages)
        return labels_of(confidence), weights
    views = pool_features_by_name(pool, representation, seed)
    (regression,) = regress_sums(neighbourhood_averages(views), sums)
    labels = labels_of(class_probabilities(regression))
    if centres is not None:
        # With much noise, the probabilities are much lower than the accuracy. A student that learns
        # such probabilities is not confident enough to correct wrong labels.
        labels = dataclasses.replace(labels, weights=None)
    return labels, weights


def sums_of_pool(
    vectors: RealArray, total: FloatArray, noise: float, centres: FloatArray | None
) -> NoisySums:
    """Returns `NoisySums` of vectors, or of counts in clusters if `centres` is given."""
    if centres is None:
        return NoisySums.of_features(vectors, total, noise)
    return NoisySums(
        vectors=np.eye(len(total), dtype=np.float32)[nearest_centres(vectors[:, :-1], centres)],
        values=total,
        noise=noise,
        num_of_class=np.maximum(total.sum(axis=0), 0.0),
    )


def exceed_noise(
    sums: FloatArray, mechanism: ReleasesFeatureSums, *, has_pool: bool
) -> bool | None:
    """Whether noisy sums differ between classes by more than the noise.

    Let S be the exact table of sums and N the noise. If features were independent of classes, the
    columns of S would be proportional to each other: S would be an outer product u v' with |v| = 1.
    Then the squared distance of the noisy table S + N from its best rank-one approximation is at
    most |(S + N)(1 - v v')|^2 = |N (1 - v v')|^2 (Eckart and Young 1936). For Gaussian noise, d
    rows and K classes, the right side is the noise variance times a chi-squared variable with
    d (K - 1) degrees of freedom. So the distance exceeds the 95 % quantile of this variable with a
    probability of at most 5 %. Laplace noise has a kurtosis of 6, so the variance of the right side
    is up to 5/2 times larger. For Laplace noise, the right side is approximated by the scaled
    chi-squared distribution with the same mean and variance (Satterthwaite 1946).

    Args:
        sums: noisy sums, `[num_rows, num_classes]`. If there are several rounds, the sums of the
            first.
        mechanism: mechanism that drew the noise.
        has_pool: whether there are public inputs. Without them, the first of several rounds is only
            a small part of the release. The result is then None.
    """
    if not has_pool and mechanism.num_rounds > 1:
        return None
    singular = np.linalg.svd(sums / mechanism.standard_deviation, compute_uv=False)
    factor = 1.0 if mechanism.num_clusters is None else LAPLACE_FACTOR
    freedom = len(sums) * (sums.shape[1] - 1) / factor
    quantile = factor * scipy.stats.chi2.ppf(1.0 - FALSE_ALARMS, freedom)
    return bool(np.square(singular[1:]).sum() > quantile)
