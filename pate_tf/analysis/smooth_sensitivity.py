"""Computes the smooth sensitivity and a smooth bound of the data-dependent privacy cost."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from math import exp, log

import numpy as np

from pate_tf.accounting.charge import check_smooth_sensitivity
from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_of
from pate_tf.core import checks
from pate_tf.core.checks import IntArray

# Smooth sensitivity of the data-dependent cost (docs/proofs/theory.md, Theorem A). The total cost
# is C_l(V) = sum_i psi_l(q(n_i)). The smooth sensitivity bounds how much the total cost can change
# if one record is replaced. It is a maximum over all possible votes, in which votes that differ
# from the given votes in d teachers are discounted by e^{-beta d}. All results are sensitive. Only
# a noisy release may be published (see `sanitised_epsilon.release`).


# The largest and the smallest union bound q over all histograms that differ in a given number of
# votes. Replacing one record, or adding or removing one owner, changes one teacher. This moves at
# most one vote in each query (docs/proofs/theory.md, Propositions S1 and S2). Lemma 2 of that page
# describes all histograms that a given number of moved votes can reach. The functions below take
# distinct sorted histograms, so that equal queries are computed only once. Gaps are whole numbers,
# so F is read from a table.


CHUNK_ENTRIES = 2**18  # maximum number of entries per chunk


@dataclasses.dataclass(frozen=True)
class DistinctHistograms:
    """Sensitive: the distinct histograms of the queries, with their frequencies.

    Attributes:
        rows: int64 [num_distinct, num_classes], each row in descending order.
        weights: int64 [num_distinct], number of queries with this histogram.
    """

    rows: IntArray = dataclasses.field(repr=False)
    weights: IntArray = dataclasses.field(repr=False)

    @property
    def num_teachers(self) -> int:
        """Number of votes for each query."""
        return int(self.rows[0].sum())


def distinct_histograms(counts: IntArray) -> DistinctHistograms:
    """Sorts the counts of each query and merges equal rows. The order of classes does not matter.

    Args:
        counts: the `values` of `VoteCounts`, with at least one query.

    Raises:
        ValueError: if queries have different numbers of votes, because the theorems do not cover
            teachers that abstain.
    """
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        raise ValueError("every teacher must vote on every query, but some votes are missing")
    rows, weights = np.unique(-np.sort(-counts, axis=1), axis=0, return_counts=True)
    return DistinctHistograms(rows, weights.astype(np.int64))


def tail_table(bound: str, mechanism: Mechanism, num_teachers: int) -> FloatArray:
    """Returns the tail F of a bound at the gaps 0 .. num_teachers.

    Raises:
        ValueError: if the mechanism does not have the bound.
    """
    return bound_of(bound, mechanism).tail(np.arange(num_teachers + 1, dtype=np.float64))


def ball_maxima(rows: IntArray, steps: IntArray, tail: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the largest q and u after d votes are moved: qmax_d and umax_d of Lemma 2.

    Both arrays have the shape [num_steps, num_rows]. If D_2 >= 2d, qmax_d is F(D_2 - 2d) +
    sum_{j>=3} F(D_j - d), and umax_d is its largest term. Otherwise, both are 1, because d moved
    votes can cause a tie.

    Args:
        rows: int64 [num_rows, num_classes], each row in descending order.
        steps: int64 [num_steps], numbers d of moved votes.
        tail: values of F at the gaps 0, 1, ..., at least up to the largest count.
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


def ball_minima(rows: IntArray, tail: FloatArray) -> Iterator[FloatArray]:
    """Yields the smallest q after d votes are moved, for d = 1, 2, ...: qmin_d of Lemma 2.

    Each array has the shape [num_rows]. Each step moves a vote from the largest other class to the
    first class.

    Args:
        rows: int64 [num_rows, num_classes], each row in descending order.
        tail: values of F at the gaps 0 .. num_teachers.
    """
    winner = rows[:, 0].copy()
    others = rows[:, 1:].copy()
    every = np.arange(len(rows))
    while True:
        if others.shape[1]:
            largest = np.argmax(others, axis=1)
            moved = (others[every, largest] > 0).astype(np.int64)
            others[every, largest] -= moved
            winner += moved
        yield tail[winner[:, None] - others].sum(axis=1)


_ROUNDING_DOWN = 1.0 - 1e-14
_PIECES = 64


def _costs(bound: str, mechanism: Mechanism, q: FloatArray, moment: float) -> FloatArray:
    """Returns the cost psi_l(q) of a query at each q, in the shape of q."""
    flat = q.reshape(-1)
    costs = bound_of(bound, mechanism).costs(flat, flat, np.array([moment]))
    return np.asarray(costs[:, 0].reshape(q.shape))


def flat_from(bound: str, mechanism: Mechanism, moment: float) -> float:
    """Returns q0 of Lemma 3: for q >= q0, the cost of a query has its maximum value.

    The result is rounded down. This is safe, because it only extends the interval (A1) in Theorem
    A.
    """
    pure_epsilon = check_smooth_sensitivity(bound, mechanism)
    cap = _costs(bound, mechanism, np.ones(1), moment)[0]
    low = 0.0
    high = 1.0 / (1.0 + exp(min(pure_epsilon, 700.0)))
    while True:
        between = np.linspace(low, high, _PIECES + 1)[1:-1]
        below = between[_costs(bound, mechanism, between, moment) < cap]
        raised = float(np.max(below, initial=low))
        lowered = float(np.min(between[between > raised], initial=high))
        if (raised, lowered) == (low, high):
            break
        low = raised
        high = lowered
    return low * _ROUNDING_DOWN


Slopes = Callable[[FloatArray, FloatArray], FloatArray]


def _slopes(bound: str, mechanism: Mechanism, moment: float) -> tuple[Slopes, float]:
    """Returns LSbar_d of Theorem A, (A1), as a function of qmax and qmin.

    Also returns its maximum.
    """
    shrink = exp(-check_smooth_sensitivity(bound, mechanism))
    start = flat_from(bound, mechanism, moment)
    cap, lowest = _costs(bound, mechanism, np.array([1.0, start * shrink]), moment)

    def slopes(q_max: FloatArray, q_min: FloatArray) -> FloatArray:
        low = np.maximum(np.minimum(start, q_max) * shrink, q_min)
        difference = _costs(bound, mechanism, q_max, moment)
        difference -= _costs(bound, mechanism, low, moment)
        return np.maximum(difference, 0.0)

    return slopes, float(cap - lowest)


def _weighted_sensitivities(
    histograms: DistinctHistograms, slopes: Slopes, tail: FloatArray
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yields distances d, in ascending order, and sum_i LSbar_d(n_i), each [num_distances]."""
    minima = ball_minima(histograms.rows, tail)
    at_once = max(1, CHUNK_ENTRIES // max(1, histograms.rows.size))
    for start in range(0, histograms.num_teachers, at_once):
        distances = np.arange(start, min(start + at_once, histograms.num_teachers))
        q_max, _ = ball_maxima(histograms.rows, distances + 1, tail)
        q_min = np.stack(list(itertools.islice(minima, len(distances))))
        yield distances, slopes(q_max, q_min) @ histograms.weights


def local_sensitivities(
    counts: IntArray, mechanism: Mechanism, *, moment: float, bound: str
) -> FloatArray:
    """SENSITIVE: returns sum_i LSbar_d(n_i) for d = 0 .. num_teachers - 1, [num_teachers].

    Formal guarantee (Theorem A, a): consider two neighboring vote tables, one of which differs from
    the true table in at most d teachers. The sum is an upper bound on the difference of their total
    costs.

    Args:
        counts: int64 [num_queries, num_classes], with one vote of every teacher in every row.
        mechanism: mechanism that has a gamma.
        moment: moment l > 0, the Renyi order minus one.
        bound: name of the bound: "paper", "tight" or "two_sided".

    Raises:
        ValueError: if the bound has no smooth sensitivity, or if the counts are not valid; see
            `smooth_sensitivity`.
    """
    check_smooth_sensitivity(bound, mechanism)
    histograms = distinct_histograms(counts)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    parts = _weighted_sensitivities(histograms, _slopes(bound, mechanism, moment)[0], tail)
    return np.concatenate([totals for _, totals in parts])


def smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, *, moment: float, beta: float, bound: str
) -> float:
    """SENSITIVE: returns U_beta of Theorem A for the total cost at one moment (natural log).

    Formal guarantee (Theorem A): U_beta is at least the beta-smooth sensitivity of C_l, and
    U_beta(V) <= e^beta U_beta(V') for neighbors V and V', up to rounding. The release adds a margin
    that covers rounding errors. Divide U_beta by the moment to get the sensitivity of the Renyi
    divergence of order l + 1.

    | special case | result |
    |---|---|
    | one class | 0: the label is always the same |
    | gamma so large that every cost overflows to its cap | 0: the computed cost can't change |
    | every reachable vote table has the maximum cost | 0: the cost can't change |

    Args:
        counts: int64 [num_queries, num_classes], with one vote of every teacher in every row.
        mechanism: mechanism that has a gamma.
        moment: moment l > 0, the Renyi order minus one.
        beta: rate of the discount per teacher, above 0, chosen without looking at the counts.
        bound: "paper", "tight" or "two_sided".

    Raises:
        ValueError: if beta or the moment is not positive, if the bound has no smooth sensitivity
            (see `check_smooth_sensitivity`), or if the counts are not valid (see
            `distinct_histograms`).
    """
    checks.positive(moment=moment, beta=beta)
    check_smooth_sensitivity(bound, mechanism)
    histograms = distinct_histograms(counts)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    slopes, largest = _slopes(bound, mechanism, moment)
    ceiling = float(histograms.weights.sum()) * largest
    best = 0.0
    for distances, totals in _weighted_sensitivities(histograms, slopes, tail):
        best = max(best, float(np.max(np.exp(-beta * distances) * totals)))
        if exp(-beta * (int(distances[-1]) + 1)) * ceiling <= best:
            break
    return best


# A smooth upper bound on the cost: its logarithm changes by at most eta between neighbors
# (docs/proofs/theory.md, Theorem B2).


def log_smooth_cost(
    counts: IntArray, mechanism: Mechanism, *, bound: str, moment: float, eta: float, floor: float
) -> float:
    """SENSITIVE: returns ln Cbar of Theorem B2, where Cbar is an upper bound on the total cost.

    Cbar = max(floor, max_k e^{-eta k} K_k), where K_k is the sum over all queries of the cost at
    the largest q and u that k changed votes can reach.

    Formal guarantee (Theorem B2) for non-adaptive queries: Cbar is at least the total cost, and ln
    Cbar changes by at most eta between neighbors. This holds up to rounding errors, which the
    caller must cover. The guarantee requires that the cost is nondecreasing in q and u, and that
    the sets of reachable counts are nested. Gaussian noise satisfies both conditions. Its formula
    is nondecreasing in q (Proposition D5). The two-sided cost is this formula at qmax_1, so K_k
    uses qmax_{k+1}, which is nested like qmax_k.

    Args:
        counts: int64 [num_queries, num_classes], with one vote of every teacher in every row.
        mechanism: mechanism that drew the labels.
        bound: bound that the mechanism has: "paper", "tight", "two_sided" or "class_aware".
        moment: moment l > 0, the Renyi order minus one.
        eta: sensitivity of ln Cbar, above 0.
        floor: public constant c_0 > 0, the smallest value of Cbar.

    Raises:
        ValueError: if the mechanism does not have the bound, or if a vote of a teacher is missing.
    """
    histograms = distinct_histograms(counts)
    formula = bound_of(bound, mechanism)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    moments = np.array([moment])
    cap = formula.costs(np.ones(1), np.ones(1), moments)[0, 0]
    ceiling = float(histograms.weights.sum()) * float(cap)
    at_once = max(1, CHUNK_ENTRIES // max(1, histograms.rows.size))
    best = floor
    for start in range(0, histograms.num_teachers + 1, at_once):
        if exp(-eta * start) * ceiling <= best:
            break
        steps = np.arange(start, min(start + at_once, histograms.num_teachers + 1))
        q, u = ball_maxima(histograms.rows, steps + formula.reach, tail)
        costs = formula.costs(q.reshape(-1), u.reshape(-1), moments)
        totals = costs[:, 0].reshape(q.shape) @ histograms.weights
        best = max(best, float(np.max(np.exp(-eta * steps) * totals)))
    return log(best)
