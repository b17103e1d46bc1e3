"""What noisy sums of private records by class say of a whole pool, at no cost: post-processing.

Of images as of noisy counts (`diverse`), twice: by features that were learnt without labels, and by
features that a network learnt from what that yielded. The mean of both counts. Of others once.

Where groups of inputs that look alike to that network are classes, a few labels of typical inputs
say more than any function that is worked out from noise. Whether they are can be told from how
clear groups are, and from the sums themselves: labels that such groups give must fit them nearly as
well.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.queries import typical
from pate_tf.queries.diverse import BOTH
from pate_tf.representations.catalogue import pool_features_by_name
from pate_tf.representations.contrastive import student_features
from pate_tf.representations.neighbours import neighbour_graph, spread_labels
from pate_tf.representations.regression import (
    Smoothed,
    averaged,
    labels_of,
    regressed_by_sums,
    scaled,
    smoothed,
)
from pate_tf.students.batches import FloatArray
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.students.training import TrainingDivergedError

TYPICAL_OF_CLASS = 50  # whose labels name groups; of ten one wrong one counts for too much
# Of the pool, the share that groups must be clear about to be classes: 95 to 97 % of MNIST's pool
# were, 72 to 81 % of Fashion-MNIST's.
LEAST_CLEAR = 0.9
# By how much groups may make the sums less likely, as a logarithm. Noise alone moved that from 3 to
# 10 on MNIST's pool; a coherent error in one input in fifty, at an epsilon of .1, would cost about
# 50.
MOST_MISFIT = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inferred:
    """Public: what noisy sums say of a pool.

    Attributes:
      first: a label of every input, after the first time.
      learnt: what a student learns from: of a table how probable each class is of every input, of
        images how probable each is to be the likeliest one, or labels of clear groups.
      certainty: the mean probability that the label is the likeliest class; None of groups.
    """

    first: PoolLabels
    learnt: PoolLabels
    certainty: float | None


def infer(
    pool: Pool,
    vectors: npt.NDArray[np.floating],
    sums: FloatArray,
    noise: float,
    seed: int,
    *,
    representation: Named | None = None,
) -> Inferred:
    """Returns labels of a pool.

    Args:
      pool: public inputs.
      vectors: `record_vectors` of its inputs, `[num_inputs, num_features + 1]`.
      sums: of records, with noise, `[num_features + 1, num_classes]`.
      noise: its standard deviation, in the same unit.
      seed: of the features that say what is alike, and of the network that learns from labels.
      representation: what says which inputs are alike; None for the data set's default.
    """
    alike = pool_features_by_name(pool, representation, seed)
    if not learns_by_augmentation(pool.dataset):
        # What is near in a table need not be alike.
        features = scaled(np.concatenate([view for views in alike for view in views], axis=1))
        alone = Smoothed(features=features, judged=features)
        regression = regressed_by_sums([alone], vectors, sums, noise)
        once = labels_of(regression)
        shares = np.clip(regression.means, np.finfo(np.float32).eps, 1.0)
        shares /= shares.sum(axis=1, keepdims=True)
        shared = dataclasses.replace(once, weights=shares.astype(np.float32))
        return Inferred(first=once, learnt=shared, certainty=_certainty(once))
    first = regressed_by_sums(smoothed(alike), vectors, sums, noise)
    once = labels_of(first)
    if len(np.unique(once.labels)) < once.num_classes:
        return Inferred(first=once, learnt=once, certainty=_certainty(once))
    try:
        learnt = student_features(pool, once, seed)
    except TrainingDivergedError:  # of a network that nobody asked for
        return Inferred(first=once, learnt=once, certainty=_certainty(once))
    again = regressed_by_sums(smoothed([[learnt]]), vectors, sums, noise)
    found = labels_of(averaged([first, again], BOTH))
    asked = typical.choose(
        pool,
        min(TYPICAL_OF_CLASS * found.num_classes, len(pool) // 2),
        seed,
        representation=representation,
    )
    named = PoolLabels(
        query_indices=asked, labels=found.labels[asked], num_classes=found.num_classes
    )
    by_groups = spread_labels(neighbour_graph([learnt]), named)
    grouped = found.labels.copy()
    grouped[by_groups.query_indices] = by_groups.labels
    worse = misfit(grouped, vectors, sums, noise) - misfit(found.labels, vectors, sums, noise)
    are_classes = (
        len(by_groups.labels) >= LEAST_CLEAR * len(pool)
        and len(np.unique(by_groups.labels)) == found.num_classes
        and worse <= MOST_MISFIT
    )
    chosen = by_groups if are_classes else found
    return Inferred(first=once, learnt=chosen, certainty=_certainty(chosen))


def _certainty(labels: PoolLabels) -> float | None:
    if labels.weights is None:
        return None
    return float(labels.weights.max(axis=1).mean(dtype=np.float64))


def misfit(
    labels: IntArray, vectors: npt.NDArray[np.floating], sums: FloatArray, noise: float
) -> float:
    """Returns how unlikely labels of a pool make noisy sums: minus the logarithm of their density.

    Up to what is the same for all labels.

    Args:
      labels: of all inputs, `[num_inputs]`.
      vectors: of them, `[num_inputs, num_features + 1]`.
      sums: of records, with noise, `[num_features + 1, num_classes]`.
      noise: its standard deviation.
    """
    constant = float(vectors[0, -1])
    num_records = max(float(np.maximum(sums[-1] / constant, 0.0).sum()), 1.0)
    by_class = vectors.T @ np.eye(sums.shape[1], dtype=vectors.dtype)[labels]
    expected = by_class.astype(np.float64) * (num_records / len(vectors))
    return float(0.5 * np.square((sums - expected) / noise).sum())
