"""What a query costs: moments of the privacy loss, from the counts.

Every cost is a bound on alpha(l), natural logarithm, for replacing one teacher's vote. "Forward"
bounds E under the true counts only; "two-sided" bounds both directions, and alone may feed the
release of a sanitised epsilon of both directions. All are data-dependent and therefore sensitive.
What is cited here is stated and proved in docs/proofs/theory.md.

| bound | mechanisms | direction | source |
|---|---|---|---|
| `paper` | Laplace (tail of continuous noise), Gaussian | forward | Theorem T0; Proposition D5 |
| `tight` | Laplace, permute-and-flip, exponential | forward | Theorem T1 |
| `two_sided` | all with noise | both | Theorem T2; Gaussian: Proposition D5 |
| `class_aware` | Laplace, permute-and-flip, exponential | both | Theorem T3 |
| `exact` | all with noise | both | Proposition X1 |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pate_tf.accounting.composition import lacking
from pate_tf.accounting.conversions import DEFAULT_MOMENTS as DEFAULT_MOMENTS
from pate_tf.accounting.conversions import SAFETY_MARGIN, FloatArray, excess
from pate_tf.accounting.conversions import epsilon_from_alphas as epsilon_from_alphas
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import DataDependent, Tail
from pate_tf.accounting.noisy_max_costs import NeighbourOutcomes
from pate_tf.core.validation import IntArray

# Exact two-sided moments: outcome probabilities at the counts and at every neighbor.
#
# docs/proofs/theory.md, Proposition X1, says what is exact, and what a margin covers.


def exact_costs(row: IntArray, mechanism: DataDependent, moments: FloatArray) -> FloatArray:
    """Returns the two-sided cost of one query, [num_moments]: the worst neighbor at each moment.

    Capped at the data-independent cost, also where a probability is too small to compare.

    Args:
        row: int64 [num_classes], at least two classes.
        mechanism: one with the bound "exact".
        moments: [num_moments].
    """
    laws = mechanism.neighbour_laws(row)
    forward, reverse = directed_alphas(laws.outcomes, moments, limit=laws.limit, rare=laws.rare)
    costs = np.maximum(forward, reverse) * (1.0 + laws.margin)
    return np.asarray(np.fmin(costs, mechanism.cost_cap(moments)))


def directed_alphas(
    laws: NeighbourOutcomes, moments: FloatArray, *, limit: float, rare: float
) -> tuple[FloatArray, FloatArray]:
    """Returns (forward, reverse): the largest alpha of each direction, [num_moments] each.

    Args:
        laws: outcome probabilities here and at each neighbor.
        moments: [num_moments].
        limit: the mechanism's largest log ratio of any outcome, or infinity.
        rare: a probability below which underflow may have lost part of it. An outcome that is
            rarer on either side counts with probability at least `rare` and log ratio `limit`.
    """
    here, there, multiplicity = laws
    if not len(here):
        return np.zeros_like(moments), np.zeros_like(moments)
    doubtful = ~(np.minimum(here, there) >= rare)
    here = np.where(doubtful, np.fmax(here, rare), here)
    there = np.where(doubtful, np.fmax(there, rare), there)
    ratio = _log_probability(there, multiplicity) - _log_probability(here, multiplicity)
    largest = []
    for law, log_ratio in ((there, -ratio), (here, ratio)):
        terms = excess(np.where(doubtful, limit, log_ratio)[:, :, None], moments)
        mass = (multiplicity * law)[:, :, None]
        terms = np.multiply(terms, mass, out=np.zeros_like(terms), where=mass != 0.0)
        largest.append(np.log1p(np.max(np.sum(terms, axis=1), axis=0)))
    return largest[0], largest[1]


def _log_probability(law: FloatArray, multiplicity: FloatArray) -> FloatArray:
    """Returns ln of each probability, through the probability of the rest where it is large."""
    large = law > 0.75
    others = np.sum(np.where(large, 0.0, law * multiplicity), axis=1, keepdims=True)
    return np.where(large, np.log1p(-np.minimum(others, 0.25)), np.log(law))


BOUNDS = ("paper", "tight", "two_sided", "class_aware", "exact")

CHUNK_ENTRIES = 2**17
SMALLEST_PROBABILITY = 1e-300


def is_two_sided(bound: str) -> bool:
    """Returns whether the bound covers both directions of every neighboring pair."""
    return bound in ("two_sided", "class_aware", "exact")


def data_dependent(mechanism: Mechanism) -> DataDependent:
    """Returns the mechanism.

    Raises:
        ValueError: if it has no bounds on what a query costs at the true votes.
    """
    if not isinstance(mechanism, DataDependent):
        raise lacking(mechanism, "a cost at the true votes", "bounds")
    return mechanism


def check_bound(bound: str, mechanism: Mechanism) -> DataDependent:
    """Returns the mechanism; raises ValueError if it has no such bound."""
    if bound not in mechanism.bounds:
        raise ValueError(
            f"expected a bound of {list(mechanism.bounds)} for {mechanism.name}, got {bound!r}"
        )
    return data_dependent(mechanism)


def bound_tail(bound: str, mechanism: Mechanism) -> Tail:
    """Returns the pairwise tail F that a bound is evaluated with.

    The mechanism's own, but for `paper` on `LaplaceNoisyMax`: the paper's, of continuous noise,
    which holds because ties go by random priority (Proposition D1, d).
    """
    return check_bound(bound, mechanism).bound(bound, DEFAULT_MOMENTS).tail


def vote_reach(bound: str, mechanism: Mechanism) -> int:
    """Returns by how many votes q and u must be moved before `query_costs` is applied to them.

    See `Bound.reach`.
    """
    return check_bound(bound, mechanism).bound(bound, DEFAULT_MOMENTS).reach


def query_costs(
    bound: str, mechanism: Mechanism, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Returns the cost of each query, [num_queries, num_moments].

    Nondecreasing in q and in u; constant (the data-independent cost of one label; for `paper` the
    paper's) for q > 1/(E+1), E = e^{2 gamma}. No safety margin is added: results that leave the
    accounting are multiplied by 1 + SAFETY_MARGIN. A probability below 1e-300 counts as 1e-300,
    and a cost that overflows as the data-independent one.

    Two-sided costs of Gaussian mechanisms are functions of q one vote away: evaluate q with
    `union_bound(..., moved_votes=k + vote_reach(bound, mechanism))` for a cost that is to hold
    within k changes of vote.

    Args:
        bound: "paper", "tight", "two_sided" or "class_aware".
        mechanism: as listed for the bound.
        q: Pr[label != plurality] or a bound on it, [num_queries].
        u: largest single term of q, [num_queries]; read by "class_aware" alone.
        moments: [num_moments].

    Raises:
        ValueError: if the mechanism has no such bound, or the bound is "exact", which is no
            function of q and u.
    """
    formula = check_bound(bound, mechanism).bound(bound, moments)
    if bound == "exact":
        raise ValueError("expected a bound in q and u, got 'exact'")
    reached = np.maximum(q, SMALLEST_PROBABILITY)
    largest = np.minimum(np.maximum(u, SMALLEST_PROBABILITY), reached)
    with np.errstate(over="ignore", invalid="ignore"):
        costs = formula.costs(reached, largest)
    return np.asarray(np.fmin(costs, formula.cap))


def union_bound(
    tail: Tail, sorted_counts: IntArray, *, moved_votes: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Returns the largest q and u within moved_votes changes of vote, each [num_queries].

    q = sum_j F(D_j) bounds Pr[label != plurality] and u = F(D_2) is its largest term. For
    moved_votes > 0 they are qmax and umax of Lemma 2: 1 where a tie is in reach.

    Args:
        tail: F, on an array of gaps.
        sorted_counts: int64 [num_queries, num_classes], every row descending.
        moved_votes: changes of vote, 0 or more.
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
    """Returns the total cost of all queries at the true counts, [num_moments]. Sensitive.

    The order of the classes does not matter. Equal histograms are computed once. Rounded up
    by SAFETY_MARGIN. Of a mechanism that withholds labels, `counts` are those of the answered
    queries: an indication, no guarantee, for which ones are answered depends on the votes
    (Proposition D6).

    Args:
        counts: int64 [num_queries, num_classes].
        mechanism: the mechanism that answered.
        moments: [num_moments], positive.
        bound: one of BOUNDS that the mechanism has.
        num_unanswered: queries that were charged a threshold test and got no label.
        progress: called with (histograms done, histograms in all) while "exact" runs.

    Raises:
        ValueError: if the mechanism has no such bound, or no query can go unanswered.
    """
    accounted = check_bound(bound, mechanism)
    orders = np.asarray(moments, dtype=np.float64)
    if num_unanswered and not mechanism.withholds:
        raise ValueError(f"expected 0 unanswered queries of {mechanism.name}")
    tests = (len(counts) + num_unanswered) * accounted.test_alphas(orders)
    if counts.shape[1] < 2:
        return tests
    descending = -np.sort(-counts, axis=1)
    answering, total = accounted.answering, np.zeros_like(orders)
    if bound == "exact":
        # The sum over queries of the worst neighbor's cost bounds the worst sum. No query costs
        # more than its `two_sided` bound, also where probabilities underflow.
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
    """Returns the sum of the costs of histograms; those with the same bounds are computed once."""
    tail, reach = bound_tail(bound, mechanism), vote_reach(bound, mechanism)
    total, bounds = np.zeros_like(moments), np.empty(len(rows), np.complex128)
    bounds.real, bounds.imag = union_bound(tail, rows, moved_votes=reach)
    distinct, weights = np.unique(bounds, return_counts=True)  # quicker than by row
    step = max(1, CHUNK_ENTRIES // len(moments))
    for start in range(0, len(distinct), step):
        q, u = distinct.real[start : start + step], distinct.imag[start : start + step]
        costs = query_costs(bound, mechanism, q, u, moments)
        total += weights[start : start + step] @ costs
    return total
