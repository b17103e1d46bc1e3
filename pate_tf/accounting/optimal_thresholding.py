"""Optimal thresholding of stability distances: pass probabilities, and the law of a gate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, inf, isfinite, nextafter
from typing import Final

import numpy as np

from pate_tf.accounting.composition import ApproximateGuarantee
from pate_tf.accounting.conversions import check_delta, least
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.quadrature import IntArray

# How often a batch may leave that some number of changed teachers could change.
#
# The largest pass function of (epsilon, delta)-privacy over a distance that one teacher changes
# by at most 1 (docs/theory_stability_gate.md, Theorems G1 and G2). Probabilities are integers
# over 2**128, made by a recursion that rounds to the safe side at every step: what is drawn
# satisfies the guarantee exactly, not up to rounding.


CERTAIN: Final = 2**128

# e^128 is far above 2**128: no larger epsilon lets more batches pass.
LARGEST_EPSILON: Final = 128

EXPONENTIAL_BITS: Final = 384


@functools.lru_cache(maxsize=1024)
def exponential_below(epsilon: float | Fraction) -> int:
    """Returns an integer of at most e^epsilon * 2**384 and at least 2**384.

    A partial sum of the series of e^x, every term rounded down.
    """
    exponent = Fraction(epsilon)
    if exponent > LARGEST_EPSILON:
        exponent = Fraction(LARGEST_EPSILON)
    term = total = 1 << EXPONENTIAL_BITS
    order = 0
    while term:
        order += 1
        term = term * exponent.numerator // (exponent.denominator * order)
        total += term
    return total


@dataclass(frozen=True, kw_only=True)
class DrawnWhileShut:
    """What is drawn instead while a gate is shut.

    Attributes:
        guarantees: (epsilon, delta) pairs, all of which it satisfies, the largest epsilon first.
        delta: of the gate and of this together.
    """

    guarantees: tuple[tuple[float, float], ...]
    delta: float

    def left_of(self, epsilon: float) -> list[tuple[Fraction, int]]:
        """Returns what each guarantee leaves of an epsilon, and how often it may be drawn for that.

        That is at least 0, and an integer over 2**128, rounded down: delta over the guarantee's.
        """
        allowed = Fraction(self.delta) * CERTAIN
        return [
            (
                max(Fraction(epsilon) - Fraction(of), Fraction(0)),
                int(allowed / Fraction(delta)) if delta else CERTAIN,
            )
            for of, delta in self.guarantees
        ]


def pass_numerator(
    epsilon: float, delta: float, distance: int, *, while_shut: DrawnWhileShut | None = None
) -> int:
    """Returns 2**128 p(distance), rounded down at every step.

    p(0) = 0, p(1) = delta, p(k+1) = min(e^eps p(k) + delta, 1 - (1 - p(k) - delta)/e^eps, 1)
    (Desfontaines, Voss, Gipson and Mandayam 2022, Theorem 1). Where something else is drawn while
    the gate is shut, the second term is 1 - (1 - p(k))/e^(eps - eps_k), and p(1) the least of all
    three; eps_k is the least epsilon of the other whose delta, times 1 - p(k), is at most the delta
    of both (Theorem G7).

    Args:
        epsilon: at least 0, of labels that leave; of both together where something else is drawn.
        delta: in (0, 1), of labels that leave.
        distance: number of changed teachers, at least 0.
        while_shut: None where nothing is drawn then.

    Raises:
        ValueError: if distance is negative or not a whole number.
    """
    if distance != int(distance) or distance < 0:
        raise ValueError(f"expected a distance >= 0, got {distance}")
    growth = exponential_below(epsilon)
    step = int(Fraction(delta) * CERTAIN)
    shut_growth, shut_step, levels = growth, step, list[tuple[Fraction, int]]()
    if while_shut is not None:
        shut_growth, shut_step, levels = 0, 0, while_shut.left_of(epsilon)
    numerator = level = 0
    for _ in range(int(distance)):
        shut = CERTAIN - numerator - shut_step
        if shut <= 0:
            return CERTAIN
        while level < len(levels) and shut <= levels[level][1]:
            shut_growth = exponential_below(levels[level][0])
            level += 1
        if not shut_growth:  # what is drawn instead satisfies too little
            return 0
        rising = (numerator * growth >> EXPONENTIAL_BITS) + step
        shut_at_least = -(-(shut << EXPONENTIAL_BITS) // shut_growth)
        numerator = min(rising, CERTAIN - shut_at_least)
    return numerator


def least_epsilon(*, distance: int, delta: float, pass_probability: float) -> float:
    """Returns the least epsilon with which a batch at this distance leaves as often as asked for.

    Rounded up, to a relative 1e-12. Infinite where no epsilon is enough: at distance 0, and at
    distance 1 above delta.

    Args:
        distance: of the batch, of a stability gate or assumed for a plan.
        delta: in (0, 1).
        pass_probability: in (0, 1).

    Raises:
        ValueError: if a value is outside of its range.
    """
    check_delta(delta)
    if not 0.0 < pass_probability < 1.0:
        raise ValueError(f"expected pass_probability in (0, 1), got {pass_probability}")
    wanted = Fraction(pass_probability) * CERTAIN
    low, high = 0.0, float(LARGEST_EPSILON)
    if pass_numerator(low, delta, distance) >= wanted:
        return low
    if pass_numerator(high, delta, distance) < wanted:
        return inf
    return least(
        lambda epsilon: pass_numerator(epsilon, delta, distance) >= wanted, low, high, within=1e-12
    )


# How many teachers have to change until a query could get another label.


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


# The law of the stability gate: every plurality label of a batch, without noise, or nothing.
#
# A batch of queries is fixed beforehand from public values. Its labels leave only if no small
# number
# of teachers could change them; whether they leave is drawn at random, so that the whole batch
# costs
# one (epsilon, delta) whatever its number of queries. A few ambiguous queries can be withheld
# (docs/theory_stability_gate.md).


_SELECTION_BITS: Final = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class StabilityGateLaw:
    """The law of `pate_tf.accounting.mechanisms.StabilityGate`, which draws from it.

    The field calls this propose-test-release (Dwork and Lei 2009), with an exact test.

    Neighbours differ in one teacher's votes, on every query at once. The batch and this gate are
    fixed before any vote on it is seen. Two steps:

    1. Only if `num_withheld` > 0: that many queries are chosen to be withheld, by the exponential
       mechanism over all sets of that size. The score of a set is the smallest distance that it
       leaves, which one teacher changes by at most 1 however many queries there are. So a few
       ambiguous queries don't decide. Which queries are withheld is public afterwards.
    2. With probability `pass_numerator(distance)` / 2**128 the labels of the other queries are
       released, else the fact alone that the gate stayed shut.

    Step 2 is (epsilon, delta)-private on every table of votes (docs/theory_stability_gate.md,
    Theorem G1), step 1 (selection_epsilon, 0)-private (Theorem G3), both together
    (selection_epsilon + epsilon, delta)-private. Paid once for a batch, released or not.

    Attributes:
        epsilon: of step 2, at least 0, finite, in natural logarithms.
        delta: in (0, 1).
        num_withheld: number of queries that get no label, at least 0. Default 0.
        selection_epsilon: of step 1, finite; above 0 if queries are withheld, else 0 (default).
    """

    epsilon: float
    delta: float
    num_withheld: int = 0
    selection_epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError if a value is outside of its range."""
        check_delta(self.delta)
        for name in ("epsilon", "selection_epsilon"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0.0):
                raise ValueError(f"expected a finite {name} >= 0, got {value}")
        if not 0 <= self.num_withheld < 2**32 or self.num_withheld != int(self.num_withheld):
            raise ValueError(f"expected num_withheld >= 0, got {self.num_withheld}")
        object.__setattr__(self, "num_withheld", int(self.num_withheld))
        if (self.num_withheld > 0) != (self.selection_epsilon > 0.0):
            raise ValueError(
                "expected a selection_epsilon above 0 exactly if queries are withheld, got "
                f"num_withheld {self.num_withheld} and selection_epsilon {self.selection_epsilon}"
            )

    @property
    def guarantees(self) -> tuple[ApproximateGuarantee, ...]:
        """What a draw costs, one guarantee for each step, for `approximate_dp.composed_epsilon`.

        Owed once the first step is drawn, whether or not labels leave.
        """
        gate = ApproximateGuarantee(epsilon=self.epsilon, delta=self.delta)
        if not self.num_withheld:
            return (gate,)
        return (ApproximateGuarantee(epsilon=self.selection_epsilon, delta=0.0), gate)

    def selection_weights(self, distances: IntArray) -> list[int]:
        """Returns how likely it is that exactly the k least stable queries are withheld for sure.

        Order the queries by distance, equal ones as they stand. A set of num_withheld queries
        holds the first k of that order and not the next one, for one k in 0 .. num_withheld; it
        leaves the distance of that next query, and so every such set is equally likely. To draw a
        set: draw k in proportion to these integers, then num_withheld - k of the queries behind
        position k uniformly, and give both to `withheld_queries`.

        The integers are exactly proportional to (number of sets) * g^(distance left) with one
        rational g of at most e^(selection_epsilon / 2) (docs/theory_stability_gate.md, Theorem
        G3).

        Args:
            distances: from `stability_distances`, [num_queries].

        Returns:
            Sensitive: num_withheld + 1 integers >= 0, not all zero.

        Raises:
            ValueError: if there are not more queries than are to be withheld.
        """
        left = self._sorted_distances(distances)[: self.num_withheld + 1]
        growth = exponential_below(Fraction(self.selection_epsilon) / 2)
        growth >>= EXPONENTIAL_BITS - _SELECTION_BITS
        num_queries = len(distances)
        return [
            comb(num_queries - k - 1, self.num_withheld - k) * growth ** (left[k] - left[0])
            << _SELECTION_BITS * (left[-1] - left[k])
            for k in range(self.num_withheld + 1)
        ]

    def withheld_queries(
        self, distances: IntArray, *, num_least_stable: int, others: Sequence[int]
    ) -> IntArray:
        """Returns the set that was drawn: ascending indices of queries, int64 [num_withheld].

        Args:
            distances: from `stability_distances`, [num_queries].
            num_least_stable: the k that was drawn from `selection_weights`.
            others: num_withheld - k different whole numbers in 0 .. num_queries - k - 2, places
                among the queries behind position k.

        Raises:
            ValueError: if the numbers don't fit each other.
        """
        num_behind = len(self._sorted_distances(distances)) - num_least_stable - 1
        # The messages don't repeat the numbers: which k was drawn is not public.
        if not 0 <= num_least_stable <= self.num_withheld:
            raise ValueError(f"expected num_least_stable in 0 .. {self.num_withheld}")
        if len(others) != len(set(others)) or len(others) + num_least_stable != self.num_withheld:
            raise ValueError(f"expected different others, {self.num_withheld} queries in all")
        if any(not 0 <= place < num_behind for place in others):
            raise ValueError("expected others among the queries behind num_least_stable")
        order = np.argsort(distances, kind="stable")
        behind = order[num_least_stable + 1 :]
        return np.sort(np.concatenate([order[:num_least_stable], behind[list(others)]]))

    def distance(self, distances: IntArray, withheld: IntArray) -> int:
        """Returns the smallest stability distance of a query that is not withheld; sensitive.

        Args:
            distances: from `stability_distances`, [num_queries].
            withheld: indices of queries, from `withheld_queries`; empty without exceptions.

        Raises:
            ValueError: if not exactly num_withheld queries are withheld, or none is left.
        """
        self._sorted_distances(distances)
        kept = np.ones(len(distances), bool)
        kept[withheld] = False
        if len(distances) - kept.sum() != self.num_withheld:
            raise ValueError(f"expected {self.num_withheld} withheld queries")
        return int(distances[kept].min())

    def pass_numerator(self, distance: int) -> int:
        """Returns t in [0, 2**128]: the gate opens if a uniform integer below 2**128 is below t.

        The probability is exactly t / 2**128. The integers of all distances together satisfy the
        (epsilon, delta) inequalities exactly (docs/theory_stability_gate.md, Theorem G2).

        Args:
            distance: of the batch, from `distance`.

        Raises:
            ValueError: if distance is negative.
        """
        return pass_numerator(self.epsilon, self.delta, distance)

    def pass_probability(self, distance: int) -> float:
        """Returns the probability that the gate opens, rounded down; for plans and plots.

        Raises:
            ValueError: if distance is negative.
        """
        return _rounded_down(Fraction(self.pass_numerator(distance), CERTAIN))

    def release_probability(self, distances: IntArray) -> float:
        """Returns the probability that labels leave, over both steps, rounded down.

        Sensitive if the distances are of real votes; meant for assumed ones, in plans.

        Args:
            distances: stability distances of the queries, [num_queries].

        Raises:
            ValueError: if there are not more queries than are to be withheld.
        """
        weights = self.selection_weights(distances)
        left = self._sorted_distances(distances)
        passed = sum(
            weight * self.pass_numerator(distance)
            for weight, distance in zip(weights, left, strict=False)
        )
        return _rounded_down(Fraction(passed, sum(weights) * CERTAIN))

    def expected_released(self, distances: IntArray, worth: FloatArray) -> float:
        """Returns the expected sum of `worth` over all queries whose label leaves; for plans.

        Args:
            distances: assumed stability distances of the queries, [num_queries].
            worth: what each label is worth, such as 1 for a right one, [num_queries].

        Raises:
            ValueError: if there are not more queries than are to be withheld.
        """
        weights = self.selection_weights(distances)
        order = np.argsort(distances, kind="stable")
        ordered, expected = np.asarray(worth, np.float64)[order], 0.0
        for k, weight in enumerate(weights):
            opens = Fraction(weight * self.pass_numerator(int(distances[order[k]])))
            chance = float(opens / (sum(weights) * CERTAIN))
            num_behind = len(ordered) - k - 1
            kept = 1.0 - (self.num_withheld - k) / num_behind if num_behind else 1.0
            expected += chance * (ordered[k] + kept * ordered[k + 1 :].sum())
        return float(expected)

    def _sorted_distances(self, distances: IntArray) -> list[int]:
        if np.ndim(distances) != 1 or len(distances) <= self.num_withheld:
            raise ValueError(
                f"expected distances of more than {self.num_withheld} queries, got "
                f"{list(np.shape(distances))}"
            )
        return [int(distance) for distance in np.sort(distances)]


def _rounded_down(value: Fraction) -> float:
    nearest = float(value)
    return nextafter(nearest, 0.0) if Fraction(nearest) > value else nearest
