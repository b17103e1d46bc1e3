"""Label propagation over a graph of nearest neighbors.

This is the method of Zhou et al. 2004, "Learning with Local and Global Consistency". Every labeled
input sends its label to its neighbors. Every input passes the labels that it receives on to its
neighbors.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import sklearn.cluster
import sklearn.decomposition
import sklearn.neighbors

from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.public import PoolLabels

NEIGHBOURS = 10
FROM_NEIGHBOURS = 0.95  # fraction of the influence on an input that comes from its neighbors
PASSES = 50  # maximum number of passes; the remaining influence is then almost uniform
NEGLIGIBLE = 1e-4  # propagation stops when this fraction of the initial influence remains
# Minimum margins between two classes, as fractions of the total influence on an input. An input is
# labeled if its best class exceeds the second-best class by the first margin. A released label is
# left out if the best class exceeds the released class by the second margin.
MIN_MARGIN = 0.35
MIN_CONTRADICTION = 0.5


def neighbour_graph(views: Sequence[RealArray]) -> scipy.sparse.csr_array:
    """Returns the graph of nearest neighbors.

    Args:
        views: one or several feature arrays of the same inputs, `[num_inputs, num_features]`.
            Inputs that are neighbors in several views get larger weights.

    Returns:
        Symmetric weights `[num_inputs, num_inputs]`. Each weight is divided by the square roots of
        the degrees of both inputs.
    """
    graph = scipy.sparse.csr_array(sum(map(_nearest, views[1:]), start=_nearest(views[0])))
    degrees = graph.sum(axis=1)
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)))
    return scipy.sparse.csr_array(scale @ graph @ scale).astype(np.float32)


def _nearest(features: RealArray) -> scipy.sparse.csr_array:
    num_inputs = len(features)
    number = min(NEIGHBOURS, num_inputs - 1)
    if number < 1:
        return scipy.sparse.csr_array((num_inputs, num_inputs))
    search = sklearn.neighbors.NearestNeighbors(n_neighbors=number).fit(features)
    # If no inputs are passed, kneighbors_graph does not return an input as its own neighbor.
    graph = scipy.sparse.csr_array(search.kneighbors_graph(mode="distance"))
    distances = graph.data.reshape(num_inputs, number)  # in ascending order
    furthest = np.maximum(distances[:, -1:], np.finfo(np.float64).tiny)
    graph.data = np.exp(-2.0 * np.square(distances / furthest)).ravel()
    return graph.maximum(graph.T)


def propagate(
    graph: scipy.sparse.csr_array,
    start: npt.NDArray[Any],
    *,
    from_neighbours: float = FROM_NEIGHBOURS,
) -> npt.NDArray[Any]:
    """Returns the values of each input after propagation, `[num_inputs, ...]`.

    Args:
        graph: weights from `neighbour_graph`.
        start: initial values `[num_inputs, ...]`.
        from_neighbours: fraction of each value that comes from neighbors, from 0 to 1.
    """
    arrived = start
    for _ in range(min(PASSES, math.ceil(math.log(NEGLIGIBLE) / math.log(from_neighbours)))):
        arrived = from_neighbours * (graph @ arrived) + (1.0 - from_neighbours) * start
    return arrived


def influence(graph: scipy.sparse.csr_array, sources: IntArray) -> RealArray:
    """Returns the influence of each source on each input, `[num_inputs, num_sources]`."""
    start = np.zeros((graph.shape[0], len(sources)), np.float32)
    start[sources, np.arange(len(sources))] = 1.0
    return propagate(graph, start)


def propagate_counts(
    graph: scipy.sparse.csr_array, labels: PoolLabels, counts: npt.NDArray[Any]
) -> PoolLabels:
    """Infers labels with class weights from noisy counts of some inputs.

    Only inputs with a clear class get a label. Counts are propagated instead of labels, because a
    label does not show its vote margin, and because a mean of noisy counts over neighbors has less
    noise than a single count. No count is left out, because the noise has mean 0. Negative values
    are replaced by 0 only at the end.

    Args:
        graph: weights from `neighbour_graph`.
        labels: labels of some inputs.
        counts: noisy counts of the same inputs, `[num_labels, num_classes]`, in any unit.
    """
    reach = influence(graph, labels.query_indices)
    scale = max(float(np.abs(counts).max(initial=0)), 1.0)
    received = np.maximum(reach @ (counts / scale).astype(np.float32), 0.0)
    return _clear_labels(_shares(received), labels.num_classes, with_weights=True)


def propagate_labels(graph: scipy.sparse.csr_array, labels: PoolLabels) -> PoolLabels:
    """Infers labels of all inputs with a clear class from labels of some inputs.

    First, labels that other labels clearly contradict are left out, starting with the label that is
    contradicted most. The last label of a class is kept, because no other label could support it.
    """
    reach = influence(graph, labels.query_indices)
    one_hot = np.eye(labels.num_classes, dtype=np.float32)[labels.labels]
    among = reach[labels.query_indices]  # [num_sources, num_sources]
    np.fill_diagonal(among, 0.0)
    used = np.ones(len(one_hot), np.bool_)
    while True:
        shares = _shares(among @ (one_hot * used[:, None]))
        support = shares[np.arange(len(one_hot)), labels.labels]
        is_last = (one_hot * used[:, None]).sum(axis=0)[labels.labels] <= 1
        contradiction = np.where(used & ~is_last, shares.max(axis=1, initial=0.0) - support, 0.0)
        worst = int(contradiction.argmax())
        if contradiction[worst] < MIN_CONTRADICTION:
            break
        used[worst] = False
    shares = _shares(reach @ (one_hot * used[:, None]))
    return _clear_labels(shares, labels.num_classes, with_weights=False)


def _clear_labels(shares: RealArray, num_classes: int, *, with_weights: bool) -> PoolLabels:
    """Returns labels of all inputs with a sufficient margin between classes."""
    first_two = np.sort(shares, axis=1)[:, -2:]
    is_clear = first_two[:, -1] - first_two[:, 0] * (num_classes > 1) >= MIN_MARGIN
    clear = np.flatnonzero(is_clear)
    return PoolLabels(
        query_indices=clear,
        labels=shares[clear].argmax(axis=1),
        num_classes=num_classes,
        weights=shares[clear].astype(np.float32) if with_weights else None,
    )


def _shares(influences: RealArray) -> RealArray:
    """Divides rows `[num_inputs, num_classes]` by their sums. Rows of zeros are not changed."""
    total = influences.sum(axis=1, keepdims=True)
    return np.divide(influences, total, out=np.zeros_like(influences), where=total > 0)


MAX_PASSES = 30  # maximum number of k-means passes; later passes hardly move centers
# Vectors and centers are rounded to multiples of this step. Sums of products of such numbers are
# exact in float64, so the cluster of a record can't depend on other records in the same batch.
CENTRE_STEP = 2.0**-15


def cluster_centres(vectors: RealArray, numbers: Sequence[int]) -> list[FloatArray]:
    """Computes clusters of a pool; returns their centers for each number of clusters.

    Each array of centers has the shape `[num_clusters, width]`. k-means runs on the first
    num_clusters - 1 principal components, which solve a relaxation of k-means (Ding and He 2004,
    "K-means Clustering via Principal Component Analysis").

    Args:
        vectors: vectors of norm at most 1, `[num_inputs, width]`.
        numbers: numbers of clusters, each at most the number of inputs.
    """
    rows = np.asarray(vectors, np.float32)
    most = max(1, min(max(numbers) - 1, *rows.shape))
    with np.errstate(divide="ignore", invalid="ignore"):  # if inputs are equal, variances are 0
        along = sklearn.decomposition.PCA(most, random_state=0).fit_transform(rows)
    centres = []
    for number in numbers:
        means = sklearn.cluster.KMeans(number, n_init=1, max_iter=MAX_PASSES, random_state=0)
        clusters = means.fit_predict(along[:, : max(1, number - 1)])
        is_in = scipy.sparse.csr_array(
            (np.ones(len(rows)), clusters, np.arange(len(rows) + 1)), shape=(len(rows), number)
        )
        sizes = is_in.sum(axis=0)
        means_of = (is_in.T @ rows) / np.maximum(sizes, 1.0)[:, None]
        means_of[sizes == 0] = means_of[clusters[0]]  # if inputs are equal, clusters can be empty
        centres.append(np.rint(means_of / CENTRE_STEP) * CENTRE_STEP)
    return centres


def nearest_centres(vectors: RealArray, centres: FloatArray) -> npt.NDArray[np.int64]:
    """Returns the index of each vector's nearest center, `[num_inputs]`; lowest index for ties.

    Args:
        vectors: vectors of norm at most 1, `[num_inputs, width]`.
        centres: centers in multiples of `CENTRE_STEP`, `[num_clusters, width]`.
    """
    steps = centres / CENTRE_STEP
    products = np.rint(np.asarray(vectors, np.float64) / CENTRE_STEP) @ steps.T
    nearest: npt.NDArray[np.int64] = (np.square(steps).sum(axis=1) - 2.0 * products).argmin(axis=1)
    return nearest
