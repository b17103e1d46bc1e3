"""Spreads labels over a graph of neighbours, and finds the labels that their surroundings deny.

Zhou et al. 2004, "Learning with Local and Global Consistency": every input passes on what it
receives from its neighbours, and labelled ones add their label.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import sklearn.neighbors

from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.students.batches import FloatArray

NEIGHBOURS = 10
KEPT = 0.95  # of what arrives at an input, the share that comes from neighbours
PASSES = 50  # at most; by then what is still on its way is spread out all but evenly
LEFT = 1e-4  # of what began at an input, the share on its way that is not worth another pass
# By how much a class must be ahead of another one, of all influence at an input: to name the input,
# and to deny a label that was paid for.
CLEAR, DENIED = 0.35, 0.5


def neighbour_graph(views: Sequence[npt.NDArray[np.floating]]) -> scipy.sparse.csr_array:
    """Joins every input to its nearest ones.

    Args:
      views: features `[num_inputs, num_features]`, one array for each way of looking at the inputs;
        neighbours in several views are joined more strongly.

    Returns:
      Symmetric weights `[num_inputs, num_inputs]`, divided by the roots of both degrees.
    """
    graph = scipy.sparse.csr_array(sum(map(_nearest, views[1:]), start=_nearest(views[0])))
    degrees = graph.sum(axis=1)
    scale = scipy.sparse.diags_array(1.0 / np.sqrt(np.where(degrees > 0, degrees, 1.0)))
    return scipy.sparse.csr_array(scale @ graph @ scale).astype(np.float32)


def _nearest(features: npt.NDArray[np.floating]) -> scipy.sparse.csr_array:
    num_inputs = len(features)
    num_neighbours = min(NEIGHBOURS, num_inputs - 1)
    if num_neighbours < 1:
        return scipy.sparse.csr_array((num_inputs, num_inputs))
    search = sklearn.neighbors.NearestNeighbors(n_neighbors=num_neighbours).fit(features)
    distances, neighbours = search.kneighbors()  # of each input, itself left out
    rows = np.repeat(np.arange(num_inputs), num_neighbours)
    graph = scipy.sparse.csr_array(
        (weights_of(distances).ravel(), (rows, neighbours.ravel())), shape=(num_inputs, num_inputs)
    )
    return graph.maximum(graph.T)


def weights_of(distances: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Returns how much neighbours count, by ascending distances `[num_inputs, num_neighbours]`."""
    furthest = np.maximum(distances[:, -1:], np.finfo(np.float64).tiny)
    found: npt.NDArray[np.floating] = np.exp(-2.0 * np.square(distances / furthest))
    return found


def influence(graph: scipy.sparse.csr_array, sources: IntArray) -> FloatArray:
    """How much of what arrives at each input began at each source, `[num_inputs, num_sources]`."""
    start = np.zeros((graph.shape[0], len(sources)), np.float32)
    start[sources, np.arange(len(sources))] = 1.0
    return spread(graph, start)


def spread(
    graph: scipy.sparse.csr_array, start: npt.NDArray[Any], *, kept: float = KEPT
) -> npt.NDArray[Any]:
    """Returns what arrives at each input of values that begin at all, `[num_inputs, ...]` both.

    Args:
      graph: of `neighbour_graph`.
      start: what each input adds.
      kept: of what arrives, the share that comes from neighbours.
    """
    found = start
    for _ in range(min(PASSES, math.ceil(math.log(LEFT) / math.log(kept)))):
        found = kept * (graph @ found) + (1.0 - kept) * start
    return found


def spread_counts(
    graph: scipy.sparse.csr_array, labels: PoolLabels, counts: npt.NDArray[Any]
) -> PoolLabels:
    """Returns what noisy counts of some inputs say of the pool, where they are clear about it.

    Counts are spread instead of labels: a mean of noisy counts over look-alikes has less noise than
    each, whereas a label has lost what it could have told. No count is left out, since none is
    wrong: noise has mean zero. What became negative counts as 0 in the end, not before.

    Args:
      graph: of `neighbour_graph`.
      labels: of some of its inputs.
      counts: noisy counts of the same inputs, `[num_labels, num_classes]`, in any unit.

    Returns:
      Labels, with weights, of the inputs whose leading class is clearly ahead of the next.
    """
    reach = influence(graph, labels.query_indices)
    scale = max(float(np.abs(counts).max(initial=0)), 1.0)
    received = np.maximum(reach @ (counts / scale).astype(np.float32), 0.0)
    return _clear_labels(_shares(received), labels.num_classes, with_weights=True)


def spread_labels(graph: scipy.sparse.csr_array, labels: PoolLabels) -> PoolLabels:
    """Returns what labelled inputs say of the pool, where they are clear about it.

    A label that the other labels clearly contradict is left out first, the most contradicted one
    before all others. The last label of a class stays: none could speak for it.

    Args:
      graph: of `neighbour_graph`.
      labels: of some of its inputs; partly wrong.

    Returns:
      Labels of the inputs, asked or not, whose leading class is clearly ahead of the next.
    """
    reach = influence(graph, labels.query_indices)
    one_hot = np.eye(labels.num_classes, dtype=np.float32)[labels.labels]
    among = reach[labels.query_indices]  # [num_sources, num_sources]
    np.fill_diagonal(among, 0.0)
    kept = np.ones(len(one_hot), np.bool_)
    while True:
        shares = _shares(among @ (one_hot * kept[:, None]))
        own = shares[np.arange(len(one_hot)), labels.labels]
        is_last = (one_hot * kept[:, None]).sum(axis=0)[labels.labels] <= 1
        contradiction = np.where(kept & ~is_last, shares.max(axis=1, initial=0.0) - own, 0.0)
        worst = int(contradiction.argmax())
        if contradiction[worst] < DENIED:
            break
        kept[worst] = False
    shares = _shares(reach @ (one_hot * kept[:, None]))
    return _clear_labels(shares, labels.num_classes, with_weights=False)


def _clear_labels(shares: FloatArray, num_classes: int, *, with_weights: bool) -> PoolLabels:
    """Returns labels where the leading class of `[num_inputs, num_classes]` is clearly ahead."""
    first_two = np.sort(shares, axis=1)[:, -2:]
    is_clear = first_two[:, -1] - first_two[:, 0] * (num_classes > 1) >= CLEAR
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
