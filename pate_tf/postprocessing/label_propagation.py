"""Label propagation over a graph of nearest neighbors.

Zhou et al. 2004, "Learning with Local and Global Consistency": every input passes on what it
receives from its neighbors, and labeled ones add their label.
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

from pate_tf.core.checks import IntArray
from pate_tf.core.public import PoolLabels

FloatArray = npt.NDArray[np.floating]

NEIGHBOURS = 10
FROM_NEIGHBOURS = 0.95  # of what arrives at an input, the share that comes from neighbors
PASSES = 50  # at most; what is still on its way then is distributed nearly evenly
NEGLIGIBLE = 1e-4  # of what began at an input, the share on its way that is worth no further pass
# Lead of a class over another one, of all influence at an input: needed to label the input, and to
# leave out a released label of the other class.
LEAST_LEAD = 0.35
LEAST_CONTRADICTION = 0.5


def neighbour_graph(views: Sequence[FloatArray]) -> scipy.sparse.csr_array:
    """Joins every input to its nearest ones.

    Args:
        views: features `[num_inputs, num_features]`, one array for each view of the inputs;
            neighbors in several views are joined more strongly.

    Returns:
        Symmetric weights `[num_inputs, num_inputs]`, divided by the roots of both degrees.
    """
    graph = scipy.sparse.csr_array(sum(map(_nearest, views[1:]), start=_nearest(views[0])))
    degrees = graph.sum(axis=1)
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)))
    return scipy.sparse.csr_array(scale @ graph @ scale).astype(np.float32)


def _nearest(features: FloatArray) -> scipy.sparse.csr_array:
    num_inputs = len(features)
    number = min(NEIGHBOURS, num_inputs - 1)
    if number < 1:
        return scipy.sparse.csr_array((num_inputs, num_inputs))
    search = sklearn.neighbors.NearestNeighbors(n_neighbors=number).fit(features)
    # Of each input, itself left out.
    graph = scipy.sparse.csr_array(search.kneighbors_graph(mode="distance"))
    distances = graph.data.reshape(num_inputs, number)  # ascending
    furthest = np.maximum(distances[:, -1:], np.finfo(np.float64).tiny)
    graph.data = np.exp(-2.0 * np.square(distances / furthest)).ravel()
    return graph.maximum(graph.T)


def propagate(
    graph: scipy.sparse.csr_array,
    start: npt.NDArray[Any],
    *,
    from_neighbours: float = FROM_NEIGHBOURS,
) -> npt.NDArray[Any]:
    """Returns what arrives at each input of values that begin at all, `[num_inputs, ...]` both.

    Of what arrives, `from_neighbours` is the share that comes from neighbors.
    """
    arrived = start
    for _ in range(min(PASSES, math.ceil(math.log(NEGLIGIBLE) / math.log(from_neighbours)))):
        arrived = from_neighbours * (graph @ arrived) + (1.0 - from_neighbours) * start
    return arrived


def influence(graph: scipy.sparse.csr_array, sources: IntArray) -> FloatArray:
    """How much of what arrives at each input began at each source, `[num_inputs, num_sources]`."""
    start = np.zeros((graph.shape[0], len(sources)), np.float32)
    start[sources, np.arange(len(sources))] = 1.0
    return propagate(graph, start)


def propagate_counts(
    graph: scipy.sparse.csr_array, labels: PoolLabels, counts: npt.NDArray[Any]
) -> PoolLabels:
    """Returns weighted labels of the inputs that noisy counts of some inputs are clear about.

    Counts propagate instead of labels: a mean of noisy counts over neighbors has less noise than
    each, whereas a label has lost what it could have told. No count is left out, since noise has
    mean zero. What became negative counts as 0 in the end, not before.

    Args:
        graph: of `neighbour_graph`.
        labels: of some of its inputs.
        counts: noisy counts of the same inputs, `[num_labels, num_classes]`, in any unit.
    """
    reach = influence(graph, labels.query_indices)
    scale = max(float(np.abs(counts).max(initial=0)), 1.0)
    received = np.maximum(reach @ (counts / scale).astype(np.float32), 0.0)
    return _clear_labels(_shares(received), labels.num_classes, with_weights=True)


def propagate_labels(graph: scipy.sparse.csr_array, labels: PoolLabels) -> PoolLabels:
    """Returns labels of the inputs, queried or not, that labels of some inputs are clear about.

    A label that the others clearly contradict is left out first, the most contradicted one before
    all others. The last label of a class stays: no other could support it.
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
        if contradiction[worst] < LEAST_CONTRADICTION:
            break
        used[worst] = False
    shares = _shares(reach @ (one_hot * used[:, None]))
    return _clear_labels(shares, labels.num_classes, with_weights=False)


def _clear_labels(shares: FloatArray, num_classes: int, *, with_weights: bool) -> PoolLabels:
    """Returns labels where the leading class of `[num_inputs, num_classes]` is clearly ahead."""
    first_two = np.sort(shares, axis=1)[:, -2:]
    is_clear = first_two[:, -1] - first_two[:, 0] * (num_classes > 1) >= LEAST_LEAD
    clear = np.flatnonzero(is_clear)
    return PoolLabels(
        query_indices=clear,
        labels=shares[clear].argmax(axis=1),
        num_classes=num_classes,
        weights=shares[clear].astype(np.float32) if with_weights else None,
    )


def _shares(influences: FloatArray) -> FloatArray:
    """Divides rows `[num_inputs, num_classes]` by their sums; where nothing arrives they stay 0."""
    total = influences.sum(axis=1, keepdims=True)
    return np.divide(influences, total, out=np.zeros_like(influences), where=total > 0)


MOST_PASSES = 30  # of k-means; later ones move next to nothing
# Vectors and centers are rounded to whole steps, whose products float64 adds up exactly. So a
# record's cluster does not depend, by rounding, on the records that are computed together with it.
CENTRE_STEP = 2.0**-15


def cluster_centres(
    vectors: npt.NDArray[np.floating], numbers: Sequence[int]
) -> list[npt.NDArray[np.float64]]:
    """Returns centers of a pool's clusters, `[num_clusters, width]` for each resolution.

    Clusters are of k-means along the principal components, one less than clusters: these are what
    k-means relaxes to (Ding and He 2004, "K-means Clustering via Principal Component Analysis").

    Args:
        vectors: of norm at most 1, `[num_inputs, width]`.
        numbers: of clusters, one for each resolution; at most one for each input.
    """
    rows = np.asarray(vectors, np.float32)
    most = max(1, min(max(numbers) - 1, *rows.shape))
    with np.errstate(divide="ignore", invalid="ignore"):  # of equal inputs, shares of variance
        along = sklearn.decomposition.PCA(most, random_state=0).fit_transform(rows)
    centres = []
    for number in numbers:
        means = sklearn.cluster.KMeans(number, n_init=1, max_iter=MOST_PASSES, random_state=0)
        clusters = means.fit_predict(along[:, : max(1, number - 1)])
        is_in = scipy.sparse.csr_array(
            (np.ones(len(rows)), clusters, np.arange(len(rows) + 1)), shape=(len(rows), number)
        )
        sizes = is_in.sum(axis=0)
        means_of = (is_in.T @ rows) / np.maximum(sizes, 1.0)[:, None]
        means_of[sizes == 0] = means_of[clusters[0]]  # of equal inputs, fewer than clusters
        centres.append(np.rint(means_of / CENTRE_STEP) * CENTRE_STEP)
    return centres


def nearest_centres(
    vectors: npt.NDArray[np.floating], centres: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Returns which center is nearest to each vector, `[num_inputs]`; of equals the first.

    Args:
        vectors: of norm at most 1, `[num_inputs, width]`.
        centres: in whole steps, `[num_clusters, width]`.
    """
    steps = centres / CENTRE_STEP
    products = np.rint(np.asarray(vectors, np.float64) / CENTRE_STEP) @ steps.T
    nearest: npt.NDArray[np.int64] = (np.square(steps).sum(axis=1) - 2.0 * products).argmin(axis=1)
    return nearest
