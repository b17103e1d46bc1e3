"""How many teachers have to change until a query could get another label."""

from __future__ import annotations

import numpy as np

from pate_tf.accounting.quadrature import IntArray


def stability_distances(counts: IntArray) -> IntArray:
    """Returns how many teachers have to change until a query is tied, int64 [num_queries].

    ceil((largest count - second largest) / 2). Replacing one teacher moves at most one vote of
    every query and so changes each distance by at most 1. If two neighbours differ in the plurality
    of a query, its distance is at most 1 on both (docs/theory_stability_gate.md, Lemma G0).

    Args:
        counts: one vote of every teacher on every query, [num_queries, num_classes].

    Raises:
        ValueError: if counts are not whole numbers of that shape with at least one query and two
            classes, if one is negative, or if queries differ in their number of votes.
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.shape[0] < 1 or counts.shape[1] < 2:
        raise ValueError(
            "expected counts [num_queries, num_classes] of at least one query and two classes, "
            f"got {list(counts.shape)}"
        )
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"expected whole counts, got {counts.dtype}")
    counts = counts.astype(np.int64)
    if (counts < 0).any():
        raise ValueError("expected counts >= 0, got a negative one")
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        raise ValueError("expected one vote of every teacher on every query, got unequal totals")
    largest = np.partition(counts, -2, axis=1)[:, -2:]
    return np.asarray((largest[:, 1] - largest[:, 0] + 1) // 2)
