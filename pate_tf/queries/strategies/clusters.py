"""Asks for the medoids of clusters (k-means) of the pool's features, and propagates the answers.

No label, true or noisy, plays a part in the choice. Teachers agree more on medoids than on other
inputs, so that their labels are right more often. What is inferred is post-processing.
"""

import dataclasses
import math

import numpy as np

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.queries.strategies import FloatArray, Strategy, register

CHUNK = 4_096  # inputs; of a large pool only so many differences are in memory at a time
MOST_PASSES = 50  # of k-means; the last of hundreds move next to nothing
# Chosen among 1, 1.1, 1.15, 1.2, 1.25 and 1.5 by votes of 2,000 ridge teachers and 250 networks on
# MNIST's pool and labels of both pools: with 1.1 and less teachers are divided on some query more
# often, with more than 1.2 whole kinds of inputs are left out, and get other classes' labels.
CLUSTERS_A_QUERY = 1.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clusters:
    """Clusters of a pool's inputs. Public.

    Attributes:
        medoids: int64 `[num_clusters]`, of each cluster the input nearest to its centre.
        densities: float64 `[num_clusters]`, how many inputs belong to each, over their mean
            distance from its centre; 0 for an input alone.
    """

    medoids: IntArray
    densities: FloatArray


def find_clusters(
    pool: Pool, number: int, seed: int, *, representation: Named | None = None
) -> Clusters:
    """Returns k-means clusters of the pool's features, fewer than `number` if inputs are copies."""
    import sklearn.cluster

    from pate_tf.representations.catalogue import pool_features

    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    kmeans = sklearn.cluster.KMeans(number, n_init=1, max_iter=MOST_PASSES, random_state=seed).fit(
        features
    )
    distances = np.empty(len(features))
    for start in range(0, len(features), CHUNK):
        part = slice(start, start + CHUNK)
        centres = kmeans.cluster_centers_[kmeans.labels_[part]]
        distances[part] = np.linalg.norm(features[part] - centres, axis=1)
    by_distance = np.argsort(distances, kind="stable")
    labels, first, sizes = np.unique(
        kmeans.labels_[by_distance], return_index=True, return_counts=True
    )
    total = np.bincount(kmeans.labels_, distances, minlength=number)[labels]
    densities = sizes**2 / np.maximum(total, np.finfo(np.float32).tiny)
    return Clusters(
        medoids=by_distance[first],
        # An input alone lies at its own centre, and is like no other.
        densities=np.where(sizes > 1, densities, 0.0),
    )


def choose(
    pool: Pool, num_queries: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns the medoids of `num_queries` clusters, in the pool's order: int64, distinct."""
    clusters = find_clusters(pool, num_queries, seed, representation=representation)
    return _filled_up(clusters.medoids, num_queries, len(pool))


def _filled_up(chosen: IntArray, number: int, num_inputs: int) -> IntArray:
    """Returns chosen inputs in order, with others where distinct ones are fewer than `number`."""
    others = np.setdiff1d(np.arange(num_inputs), chosen)[: number - len(chosen)]
    return np.sort(np.concatenate([chosen, others]))


def choose_of_dense_clusters(
    pool: Pool, num_queries: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns the medoids of the densest of a fifth more clusters: int64 `[num_queries]`, distinct.

    For mechanisms where the query that teachers agree on least decides about all others: odd inputs
    end up in sparse clusters, which are not asked about. In the pool's order.
    """
    number = min(math.ceil(CLUSTERS_A_QUERY * num_queries), len(pool))
    clusters = find_clusters(pool, number, seed, representation=representation)
    densest = np.argsort(-clusters.densities, kind="stable")[:num_queries]
    return _filled_up(clusters.medoids[densest], num_queries, len(pool))


def infer(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns what released labels say of the whole pool: `propagation.infer_from_labels`."""
    from pate_tf.queries import propagation

    return propagation.infer_from_labels(pool, released, seed, representation=representation)


register(
    Strategy(
        name="diverse",
        help="the medoid of each cluster of features; labels propagate to neighbours",
        words="medoids of clusters of the public pool, by features computed without labels",
        choose=choose,
        infer=infer,
        uses_representation=True,
    ),
    Strategy(
        name="medoids",
        help="the same for the denser ones of a fifth more clusters, on which teachers agree most",
        words="medoids of dense clusters of the public pool, by features computed without labels",
        choose=choose_of_dense_clusters,
        infer=infer,
        uses_representation=True,
    ),
)
