"""Asks for one typical input of each group of look-alikes, and spreads the answers to the others.

No label, true or noisy, plays a part in the choice: groups are clusters (k-means) of features that
were learnt from the pool alone. Typical inputs are also those that teachers agree on, so that their
labels are right more often. What is inferred from released labels is post-processing.
"""

import numpy as np
import sklearn.cluster

from pate_tf.queries.features import pool_features
from pate_tf.queries.neighbours import neighbour_graph, spread_labels
from pate_tf.queries.taught import taught_features
from pate_tf.records import IntArray, Pool, PoolLabels, ReleasedLabels
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.students.training import TrainingDivergedError

MOST_PASSES = 50  # of k-means; the last of hundreds move next to nothing


def choose(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns the inputs nearest to the centres of `num_queries` clusters, in the pool's order.

    Args:
      pool: public inputs.
      num_queries: how many are asked.
      seed: of the features and of the first centres.

    Returns:
      Positions in the pool, int64 `[num_queries]`, distinct.
    """
    features = np.concatenate(pool_features(pool, seed), axis=1)
    clusters = sklearn.cluster.KMeans(
        num_queries, n_init=1, max_iter=MOST_PASSES, random_state=seed
    ).fit(features)
    distances = np.linalg.norm(features - clusters.cluster_centers_[clusters.labels_], axis=1)
    by_distance = np.argsort(distances, kind="stable")
    found, first = np.unique(clusters.labels_[by_distance], return_index=True)
    chosen = by_distance[first]
    if len(found) < num_queries:  # fewer distinct inputs than queries
        others = np.setdiff1d(np.arange(len(pool)), chosen)
        chosen = np.concatenate([chosen, others[: num_queries - len(found)]])
    return np.sort(chosen)


def infer(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns what released labels say of the whole pool, where they are clear about it.

    They are spread twice: among inputs whose features are alike, and, with features that a network
    learnt from what that yielded, once more. Labels that their surroundings clearly contradict are
    left out, for they are partly wrong. Where features could not be learnt, likeness means too
    little: the released labels are returned.

    Inputs of a class that no released label names are taken for those of other classes. There is
    no second time then: a network that was taught so finds it clear.

    Args:
      pool: public inputs.
      released: the labels that were paid for.
      seed: of the features, and of the network that learns from labels.

    Raises:
      ValueError: if no query was answered, or the labels do not belong to this pool.
    """
    released.check_pool(pool)
    if not learns_by_augmentation(pool.dataset):
        return released
    once = spread_labels(neighbour_graph(pool_features(pool, seed)), released)
    if len(np.unique(once.labels)) < released.num_classes:
        return once if len(once.labels) else released
    try:
        taught = taught_features(pool, once, seed)
    except TrainingDivergedError:  # of a network that nobody asked for
        return once
    twice = spread_labels(neighbour_graph([taught]), released)
    return twice if len(twice.labels) else once
