"""Computes the data-dependent cost of queries: moments of the privacy loss at given votes.

Each cost is a bound on alpha(l) (natural logarithm) if the vote of one teacher is replaced. A
"forward" bound covers only the expectation under the true counts. A "two-sided" bound also covers
the expectation under the neighboring counts. Differential privacy must hold in both directions, so
only an epsilon from a two-sided bound can be released. All costs are data-dependent and therefore
sensitive. See docs/proofs/theory.md for statements and proofs.

| bound | mechanisms | direction | source |
|---|---|---|---|
| `paper` | Laplace (tail of continuous noise), Gaussian | forward | Theorem T0; Proposition D5 |
| `tight` | Laplace | forward | Theorem T1 |
| `two_sided` | all with noise | both | Theorem T2; Gaussian: Proposition D5 |
| `class_aware` | Laplace | both | Theorem T3 |
| `exact` | all with noise | both | Proposition X1 |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pate_tf.accounting.conversions import DEFAULT_MOMENTS as DEFAULT_MOMENTS
from pate_tf.accounting.conversions import SAFETY_MARGIN, FloatArray, excess
from pate_tf.accounting.conversions import epsilon_from_alphas as epsilon_from_alphas
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import Bound, DataDependent, Tail
from pate_tf.accounting.noisy_max_costs import NeighbourLaws
from pate_tf.core.checks import IntArray

# Exact two-sided moments are computed from the outcome probabilities at the counts and at every
# neighbor.
#
# See docs/proofs/theory.md, Proposition X1, for the exact terms and the safety margin.


def exact_costs(row: IntArray, mechanism: DataDependent, moments: FloatArray) -> FloatArray:
    """Returns the two-sided cost of one query for the worst neighbor at each moment.

    The result never exceeds the data-independent cost, even if a probability is too small to
    compute.

    Args:
        row: vote counts of the query, int64 [num_classes], with at least two classes.
        mechanism: mechanism that has the bound "exact".
        moments: [num_moments].
    """
    laws = mechanism.neighbour_laws(row)
    forward, reverse = directed_alphas(laws, moments)
    costs = np.maximum(forward, reverse) * (1.0 + laws.excess)
    return np.asarray(np.fmin(costs, mechanism.cost_cap(moments)))


def directed_alphas(laws: NeighbourLaws, moments: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the largest forward alphas and the largest reverse alphas, [num_moments] each.

    If the probability of an outcome is below `laws.rare` at the counts or at the neighbor, the
    probability is replaced by this value, and its log ratio by `laws.limit`.

    Args:
        laws: outcome probabilities at the counts and at each neighbor.
        moments: [num_moments].
    """
    if not len(laws.here):
        return np.zeros_like(moments), np.zeros_like(moments)
    doubtful = ~(np.minimum(laws.here, laws.there) >= laws.rare)
    here = np.where(doubtful, np.fmax(laws.here, laws.rare), laws.here)
    there = np.where(doubtful, np.fmax(laws.there, laws.rare), laws.there)
    ratio = _log_probability(there, laws.multiplicity) - _log_probability(here, laws.multiplicity)
    largest = []
    for law, log_ratio in ((there, -ratio), (here, ratio)):
        terms = excess(np.where(doubtful, laws.limit, log_ratio)[:, :, None], moments)
        mass = (laws.multiplicity * law)[:, :, None]
        terms = np.multiply(terms, mass, out=np.zeros_like(terms), where=mass != 0.0)
        largest.append(np.log1p(np.max(np.sum(terms, axis=1), axis=0)))
    return largest[0], largest[1]


def _log_probability(law: FloatArray, multiplicity: FloatArray) -> FloatArray:
    """Returns ln of each probability. Near 1, it is computed from the complement for accuracy."""
    large = law > 0.75
    others = np.sum(np.where(large, 0.0, law * multiplicity), axis=1, keepdims=True)
    return np.where(large, np.log1p(-np.minimum(others, 0.25)), np.log(law))


BOUNDS = ("paper", "tight", "two_sided", "class_aware", "exact")

CHUNK_ENTRIES = 2**17


def direction(bound: str) -> str:
    """Returns a description of the directions (forward or both) that a bound covers."""
    return "both directions" if bound in ("two_sided", "class_aware", "exact") else "forward"


def check_bound(bound: str, mechanism: Mechanism) -> DataDependent:
    """Returns `mechanism`; raises ValueError if it does not have the bound."""
    if bound not in mechanism.bounds or not isinstance(mechanism, DataDependent):
        raise ValueError(f"{mechanism.name} has no bound {bound!r}, only {list(mechanism.bounds)}")
    return mechanism


def bound_of(name: str, mechanism: Mechanism) -> Bound:
    """Returns the data-dependent bound of a mechanism with the given name.

    Raises:
        ValueError: if the mechanism does not have the bound, or if the name is "exact", because
            this bound is not a function of q and u.
    """
    accounted = check_bound(name, mechanism)
    if name == "exact":
        raise ValueError("the bound 'exact' is not a function of q and u")
    return accounted.bound(name)


def union_bound(
    tail: Tail, sorted_counts: IntArray, *, moved_votes: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Returns the largest q and u if up to `moved_votes` votes change, [num_queries] each.

    q = sum_j F(D_j) is an upper bound on Pr[label != plurality], and u = F(D_2) is its largest
    term. If votes move, the results are qmax and umax of Lemma 2. The results are 1 if the moved
    votes can cause a tie.

    Args:
        tail: function F, which takes an array of gaps.
        sorted_counts: int64 [num_queries, num_classes], each row in descending order.
        moved_votes: maximum number of changed votes, 0 or more.
    """
    gaps = (sorted_counts[:, :1] - sorted_counts[:, 1:]).astype(np.float64)
    if not gaps.shape[1]:
        return np.zeros(len(gaps)), np.zeros(len(gaps))
    gaps[:, :1] -= 2.0 * moved_votes
    gaps[:, 1:] -= moved_votes
    terms = tail(gaps)
    if not moved_votes:
        return np.sum(terms, axis=1), terms[:, 0].copy()
    apart = gaps[:, 0] >= 0
    return np.where(apart, np.sum(terms, axis=1), 1.0), np.where(apart, terms[:, 0], 1.0)


def data_dependent_alphas(
    counts: IntArray,
    mechanism: Mechanism,
    moments: FloatArray,
    *,
    bound: str,
    num_unanswered: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> FloatArray:
    """SENSITIVE: returns the total cost of all queries at the true counts, [num_moments].

    The order of the classes does not matter. The cost of equal histograms is computed only once.
    The result is rounded up by SAFETY_MARGIN. If the mechanism can withhold labels, `counts`
    contains only answered queries. The cost is then an estimate without a guarantee, because the
    votes determine which queries are answered (Proposition D6).

    Args:
        counts: vote counts, int64 [num_queries, num_classes].
        mechanism: mechanism that drew the labels.
        moments: [num_moments], positive.
        bound: name of the bound, from `BOUNDS`.
        num_unanswered: number of queries that failed the threshold test: they were charged but got
            no label.
        progress: function that is called with the number of finished histograms and the total
            number while "exact" runs.

    Raises:
        ValueError: if the mechanism does not have the bound, or if `num_unanswered` is not 0
            although the mechanism answers every query.
    """
    accounted = check_bound(bound, mechanism)
    orders = np.asarray(moments, dtype=np.float64)
    if num_unanswered and not mechanism.withholds:
        raise ValueError(f"num_unanswered must be 0: {mechanism.name} answers every query")
    tests = (len(counts) + num_unanswered) * accounted.test_alphas(orders)
    if counts.shape[1] < 2:
        return tests
    descending = -np.sort(-counts, axis=1)
    answering = accounted.answering
    if bound == "exact":
        # The worst-case total is at most the sum over all queries of the cost for the worst
        # neighbor. No query costs more than its `two_sided` bound, even if probabilities underflow.
        total = np.zeros_like(orders)
        rows, weights = np.unique(descending, axis=0, return_counts=True)
        for done, (row, weight) in enumerate(zip(rows, weights, strict=True), start=1):
            bounded = _bounded_alphas(row[None, :], answering, orders, "two_sided")
            total += weight * np.fmin(exact_costs(row, answering, orders), bounded)
            if progress is not None:
                progress(done, len(rows))
    else:
        total = _bounded_alphas(descending, answering, orders, bound)
    return (tests + total) * (1.0 + SAFETY_MARGIN)


def _bounded_alphas(
    rows: IntArray, mechanism: DataDependent, moments: FloatArray, bound: str
) -> FloatArray:
    """Returns the total cost of histograms.

    The cost of equal pairs (q, u) is computed only once.
    """
    formula = bound_of(bound, mechanism)
    total = np.zeros_like(moments)
    bounds = np.empty(len(rows), np.complex128)
    bounds.real, bounds.imag = union_bound(formula.tail, rows, moved_votes=formula.reach)
    distinct, weights = np.unique(bounds, return_counts=True)  # faster than comparing whole rows
    step = max(1, CHUNK_ENTRIES // len(moments))
    for start in range(0, len(distinct), step):
        part = slice(start, start + step)
        costs = formula.costs(distinct.real[part], distinct.imag[part], moments)
        total += weights[part] @ costs
    return total
