"""Asks for one typical input of each group of look-alikes, and spreads the answers to the others.

No label, true or noisy, plays a part in the choice: groups are clusters (k-means) of features that
were learnt from the pool alone. Typical inputs are also those that teachers agree on, so that their
labels are right more often. What is inferred from released labels is post-processing.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import sklearn.cluster

from pate_tf.accounting.divergences import LATTICE
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.representations.catalogue import pool_features, pool_features_by_name
from pate_tf.representations.contrastive import student_features
from pate_tf.representations.neighbours import neighbour_graph, spread_counts, spread_labels
from pate_tf.representations.regression import (
    MOST_QUERIES,
    Regression,
    averaged,
    labels_of,
    regressed,
    smoothed,
)
from pate_tf.students.batches import FloatArray
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.students.training import TrainingDivergedError

CHUNK = 4_096  # inputs; of a large pool only so many differences are in memory at a time
MOST_PASSES = 50  # of k-means; the last of hundreds move next to nothing
# Standard deviation that a label without noise, 1 of its class and 0 of others, is taken to have:
# teachers may agree on a wrong one. Chosen by labels of MNIST's pool.
DOUBT = 0.1
# Of noisy counts, what features without labels say and what features learnt from that say. Where
# noise is heavy the second ones have learnt it, too. Equal parts of both lost nothing on average on
# MNIST's pool and gained a point on Fashion-MNIST's, at epsilons of .1 and .25, beside the second.
BOTH = np.array([0.5, 0.5])


def choose(
    pool: Pool, num_queries: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns the inputs nearest to the centres of `num_queries` clusters, in the pool's order.

    Args:
      pool: public inputs.
      num_queries: how many are asked.
      seed: of the features and of the first centres.
      representation: what says which inputs are alike; None for the data set's default.

    Returns:
      Positions in the pool, int64 `[num_queries]`, distinct.
    """
    groups = groups_of_look_alikes(pool, num_queries, seed, representation=representation)
    return groups.filled_up(groups.most_typical, num_queries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of inputs of a pool that look alike.

    Attributes:
      num_inputs: in the pool.
      most_typical: int64 `[num_groups]`, of each group the input nearest to its centre.
      densities: float64 `[num_groups]`, how many inputs belong to each, over their mean distance
        from its centre; 0 for an input alone.
    """

    num_inputs: int
    most_typical: IntArray
    densities: FloatArray

    def filled_up(self, chosen: IntArray, number: int) -> IntArray:
        """Returns the chosen inputs in order, with others where they are fewer than `number`."""
        if len(chosen) < number:  # fewer distinct inputs than queries
            others = np.setdiff1d(np.arange(self.num_inputs), chosen)
            chosen = np.concatenate([chosen, others[: number - len(chosen)]])
        return np.sort(chosen)


def groups_of_look_alikes(
    pool: Pool, number: int, seed: int, *, representation: Named | None = None
) -> Groups:
    """Returns clusters (k-means) of the pool's features, fewer where inputs are copies.

    Args:
      pool: public inputs.
      number: of clusters.
      seed: of the features and of the first centres.
      representation: as of `choose`.
    """
    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    clusters = sklearn.cluster.KMeans(
        number, n_init=1, max_iter=MOST_PASSES, random_state=seed
    ).fit(features)
    distances = _distances(features, clusters.cluster_centers_, clusters.labels_)
    by_distance = np.argsort(distances, kind="stable")
    _, first, sizes = np.unique(
        clusters.labels_[by_distance], return_index=True, return_counts=True
    )
    total = np.bincount(clusters.labels_, distances, minlength=number)
    found = clusters.labels_[by_distance[first]]
    densities = sizes**2 / np.maximum(total[found], np.finfo(np.float32).tiny)
    return Groups(
        num_inputs=len(pool),
        most_typical=by_distance[first],
        # An input alone lies at its own centre, and is like no other.
        densities=np.where(sizes > 1, densities, 0.0),
    )


def _distances(
    features: npt.NDArray[np.float32], centres: npt.NDArray[np.float32], labels: IntArray
) -> FloatArray:
    """Returns each input's distance from its centre, `[num_inputs]`, worked out in parts."""
    found = np.empty(len(features))
    for start in range(0, len(features), CHUNK):
        part = slice(start, start + CHUNK)
        found[part] = np.linalg.norm(features[part] - centres[labels[part]], axis=1)
    return found


def infer(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns what released labels say of the whole pool, where they are clear about it.

    They are spread twice: among inputs whose features are alike, and, with features that a network
    learnt from what that yielded, once more. Labels that their surroundings clearly contradict are
    left out, for they are partly wrong. Of labels with noisy counts of the Gaussian histogram those
    are learnt from together instead, each input getting weights of the classes, from the mean of
    both times; so are labels that left without noise, the first time. Where features could not be
    learnt, likeness means too little: the released labels are returned.

    Inputs of a class that no released label names are taken for those of other classes. There is
    no second time then: a network that was taught so finds it clear.

    Args:
      pool: public inputs.
      released: the labels that were paid for.
      seed: of the features, and of the network that learns from labels.
      representation: as of `choose`.

    Raises:
      ValueError: if no query was answered, or the labels do not belong to this pool.
    """
    released.check_pool(pool)
    if not learns_by_augmentation(pool.dataset):
        return released
    found = pool_features_by_name(pool, representation, seed)
    expected = _expected(found, released)
    once = _by_graph(found, released) if expected is None else labels_of(expected)
    if len(np.unique(once.labels)) < released.num_classes:
        return once if len(once.labels) else released
    try:
        learnt = student_features(pool, once, seed)
    except TrainingDivergedError:  # of a network that nobody asked for
        return once
    again = None if released.have_no_noise else _expected([[learnt]], released)
    if expected is not None and again is not None:
        return labels_of(averaged([expected, again], BOTH))
    twice = _by_graph([[learnt]], released)
    return twice if len(twice.labels) else once


def _expected(
    representations: Sequence[Sequence[npt.NDArray[np.floating]]], released: ReleasedLabels
) -> Regression | None:
    """What counts with Gaussian noise say together, or labels without any; None of others."""
    counts, sigma = released.noisy_counts, released.cost.charge.gaussian_noise_on_counts
    asked = released.query_indices
    if released.num_answered > MOST_QUERIES:
        return None
    if released.have_no_noise:
        sure = np.eye(released.num_classes)[released.labels]
        return regressed(smoothed(representations), asked, sure, DOUBT)
    if counts is None or sigma is None:
        return None
    return regressed(smoothed(representations), asked, counts, sigma * LATTICE)


def _by_graph(
    representations: Sequence[Sequence[npt.NDArray[np.floating]]], released: ReleasedLabels
) -> PoolLabels:
    graph = neighbour_graph([view for views in representations for view in views])
    if released.noisy_counts is None:
        return spread_labels(graph, released)
    return spread_counts(graph, released, released.noisy_counts)
