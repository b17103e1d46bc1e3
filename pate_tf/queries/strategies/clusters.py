"""Asks for the medoids of clusters (k-means) of the pool's features, and propagates the answers.

No label, true or noisy, plays a part in the choice. Teachers agree more on medoids than on other
inputs, so that their labels are correct more often. What is inferred is post-processing.
"""

import math

import numpy as np

from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named

MOST_PASSES = 50  # of k-means; the last of hundreds move next to nothing
# With fewer, teachers are divided on some query more often; with more, whole kinds of inputs are
# left out, and get other classes' labels.
CLUSTERS_A_QUERY = 1.2


def choose(
    pool: Pool,
    num_queries: int,
    seed: int,
    *,
    representation: Named | None = None,
    clusters_a_query: float = 1.0,
) -> IntArray:
    """Returns medoids of the densest clusters, in the pool's order: int64 `[num_queries]`.

    They are distinct; where clusters are fewer than queries, as copies are in one cluster, the
    first other inputs are added. The density of a cluster is its number of inputs over their mean
    distance from its center; of an input alone, which is like no other, 0.

    Args:
        pool: public inputs.
        num_queries: how many.
        seed: of the clusters.
        representation: whose features inputs are compared by; None for the data set's default.
        clusters_a_query: above 1 for mechanisms where the query that teachers agree on least
            decides about all others: odd inputs end up in sparse clusters, which are not asked
            about.
    """
    import sklearn.cluster

    from pate_tf.representations.catalogue import pool_features

    number = min(math.ceil(clusters_a_query * num_queries), len(pool))
    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    kmeans = sklearn.cluster.KMeans(number, n_init=1, max_iter=MOST_PASSES, random_state=seed).fit(
        features
    )
    distances = kmeans.transform(features)[np.arange(len(features)), kmeans.labels_]
    by_distance = np.argsort(distances, kind="stable")
    labels, first, sizes = np.unique(
        kmeans.labels_[by_distance], return_index=True, return_counts=True
    )
    total = np.bincount(kmeans.labels_, distances, minlength=number)[labels]
    densities = np.where(sizes > 1, sizes**2 / np.maximum(total, np.finfo(np.float32).tiny), 0.0)
    medoids = by_distance[first][np.argsort(-densities, kind="stable")[:num_queries]]
    others = np.setdiff1d(np.arange(len(pool)), medoids)[: num_queries - len(medoids)]
    return np.sort(np.concatenate([medoids, others]))
