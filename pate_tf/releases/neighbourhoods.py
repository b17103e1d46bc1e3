"""Histograms within some changes of vote: the largest and the smallest union bound.

One replaced record, or one owner added or removed, changes one teacher and so moves at most one
vote in every query at once (docs/theory.md, Propositions S1 and S2); what can be reached is Lemma 2
of that page. Everything here works on distinct sorted histograms, so that equal queries are
computed once, and reads F from a table, since gaps are whole numbers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_tail
from pate_tf.values.arrays import IntArray

CHUNK_ENTRIES = 2**18


@dataclasses.dataclass(frozen=True)
class DistinctHistograms:
    """Sensitive: the different histograms among the queries, and how often each occurs.

    Attributes:
        rows: int64 [num_distinct, num_classes], every row descending.
        weights: int64 [num_distinct], number of queries with that histogram.
        num_teachers: number of votes of every query.
    """

    rows: IntArray = dataclasses.field(repr=False)
    weights: IntArray = dataclasses.field(repr=False)
    num_teachers: int

    def __repr__(self) -> str:
        return f"DistinctHistograms(<{self.num_queries} queries, {self.num_teachers} teachers>)"

    @property
    def num_queries(self) -> int:
        """Number of queries, equal ones counted as often as they occur."""
        return int(self.weights.sum())

    def steps_at_once(self) -> int:
        """Returns how many numbers of moved votes to treat in one piece of bounded memory."""
        return max(1, CHUNK_ENTRIES // max(1, self.rows.size))


def distinct_histograms(counts: IntArray) -> DistinctHistograms:
    """Sorts every query's counts and merges equal ones; the order of classes has no influence.

    Args:
        counts: int64 [num_queries, num_classes], at least one query.

    Raises:
        ValueError: if there is no query, or queries differ in their number of votes: a teacher
            that abstains is outside of the adjacency that everything here rests on.
    """
    if counts.ndim != 2 or not counts.size:
        raise ValueError(f"expected counts [num_queries, num_classes], got {list(counts.shape)}")
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        raise ValueError("expected one vote of every teacher on every query, got unequal totals")
    rows, weights = np.unique(-np.sort(-counts, axis=1), axis=0, return_counts=True)
    return DistinctHistograms(rows, weights.astype(np.int64), int(totals[0]))


def tail_table(bound: str, mechanism: Mechanism, num_teachers: int) -> FloatArray:
    """Returns F at the gaps 0 .. num_teachers that a bound is evaluated with.

    Raises:
        ValueError: if the mechanism has no such bound.
    """
    return bound_tail(bound, mechanism)(np.arange(num_teachers + 1, dtype=np.float64))


def ball_maxima(rows: IntArray, steps: IntArray, tail: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns qmax_d and umax_d of Lemma 2, each [num_steps, num_rows].

    F(D_2 - 2d) + sum_{j>=3} F(D_j - d) where D_2 >= 2d; else 1, for a tie is in reach.

    Args:
        rows: int64 [num_rows, num_classes], every row descending.
        steps: int64 [num_steps], numbers of moved votes d.
        tail: F at the gaps 0, 1, ..., at least up to the largest count.
    """
    gaps = rows[:, :1] - rows[:, 1:]
    if not gaps.shape[1]:
        nothing = np.zeros((len(steps), len(rows)))
        return nothing, nothing
    near = gaps[None, :, 0] - 2 * steps[:, None]
    apart = near >= 0
    largest = np.where(apart, tail[np.maximum(near, 0)], 1.0)
    others = np.maximum(gaps[None, :, 1:] - steps[:, None, None], 0)
    total = largest + tail[others].sum(axis=-1)
    return np.where(apart, total, 1.0), largest


class BallMinima:
    """qmin_d of Lemma 2 for d = 1, 2, ...: greedy moves from the largest other class to the first.

    Args:
        rows: int64 [num_rows, num_classes], every row descending.
        tail: F at the gaps 0 .. num_teachers.
    """

    def __init__(self, rows: IntArray, tail: FloatArray) -> None:
        self._winner = rows[:, 0].copy()
        self._others = rows[:, 1:].copy()
        self._tail = tail

    def next(self, num_steps: int) -> FloatArray:
        """Returns qmin of the next num_steps values of d, [num_steps, num_rows]."""
        gaps = np.empty((num_steps, *self._others.shape), np.int64)
        if not self._others.shape[1]:
            return np.zeros(gaps.shape[:2])
        every = np.arange(len(self._winner))
        for step in range(num_steps):
            largest = np.argmax(self._others, axis=1)
            moved = (self._others[every, largest] > 0).astype(np.int64)
            self._others[every, largest] -= moved
            self._winner += moved
            np.subtract(self._winner[:, None], self._others, out=gaps[step])
        return np.asarray(self._tail[gaps].sum(axis=-1))
