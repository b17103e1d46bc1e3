"""The stability gate: every plurality label of a batch, without noise, or nothing.

Everything is drawn in integers, with exactly the probabilities of
`pate_tf.accounting.mechanisms.stability_gate`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import comb, inf, nextafter, sqrt
from typing import ClassVar, Final, Self

import numpy as np

from pate_tf.accounting.conversions import (
    LATTICE,
    FloatArray,
    float_above,
    gaussian_dp_delta,
    least,
)
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Expected,
    Flag,
    NoiseSource,
    NoisyWinners,
    Parameter,
    Planned,
    Target,
    largest_sums,
    register,
)
from pate_tf.accounting.mechanisms.noisy_max import GaussianHistogram
from pate_tf.core.validation import IntArray, between, positive, whole, whole_numbers

# How often a batch may leave that some number of changed teachers could change.
#
# The largest pass function of (epsilon, delta)-privacy over a distance that one teacher changes
# by at most 1 (docs/proofs/stability_gate.md, Theorems G1 and G2). Probabilities are integers
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
    whole(0, distance=distance)
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
    between(0, 1, delta=delta, pass_probability=pass_probability)
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
    of a query, its distance is at most 1 on both (docs/proofs/stability_gate.md, Lemma G0).

    Args:
        counts: one vote of every teacher on every query, [num_queries, num_classes].

    Raises:
        ValueError: if counts are not whole numbers of that shape with at least one query and two
            classes, if one is negative, or if queries differ in their number of votes.
    """
    counts = whole_numbers(counts, "counts")
    if counts.ndim != 2 or counts.shape[0] < 1 or counts.shape[1] < 2 or (counts < 0).any():
        raise ValueError(
            "counts: expected [num_queries, num_classes], at least 0, of at least one query and "
            f"two classes, got {list(counts.shape)} or negative ones"
        )
    totals = counts.sum(axis=1)
    if (totals != totals[0]).any():
        raise ValueError("expected one vote of every teacher on every query, got unequal totals")
    largest = np.partition(counts, -2, axis=1)[:, -2:]
    return np.asarray((largest[:, 1] - largest[:, 0] + 1) // 2)


_SELECTION_BITS: Final = 64


# A batch that leaves as often needs an epsilon of some 9 % more than with all of delta, which would
# leave nothing to anything else; and two changed teachers, of a replaced owner or of two records of
# one person, use up 1 + exp(epsilon) times as much.
SHARE_OF_DELTA: Final = 1.0 / 3.0
EPSILON = Parameter(
    field="epsilon",
    flag=Flag(
        name="epsilon",
        help="Epsilon of a stability gate: of all labels of a batch together.",
        default=0.25,
        more_is_noisier=False,
        unit="",
    ),
)
DELTA = Parameter(
    field="delta",
    flag=Flag(
        name="gate_delta",
        help="Delta that a stability gate uses up. What it leaves of --delta is for whatever else "
        "the ensemble ever releases: a second batch, or labels of another mechanism.",
        default=SHARE_OF_DELTA * 1e-5,
        same_as="delta",
        share=SHARE_OF_DELTA,
        more_is_noisier=False,
        unit="",
    ),
)
NUM_WITHHELD = Parameter(
    field="num_withheld",
    flag=Flag(
        name="num_withheld",
        help="Queries that a stability gate may leave without a label, so that a few on which "
        "teachers disagree don't shut it. Needs a --selection_epsilon.",
        default=0.0,
        is_whole=True,
        is_positive=False,
        unit="queries",
    ),
)
SELECTION_EPSILON = Parameter(
    field="selection_epsilon",
    flag=Flag(
        name="selection_epsilon",
        help="Epsilon of choosing the queries that a stability gate leaves without a label.",
        default=0.0,
        is_positive=False,
        more_is_noisier=False,
        unit="",
    ),
)
SELECTION_SHARES: Final = tuple(np.linspace(0.05, 0.95, 19).tolist())
WITHHELD: Final = (
    " Of the batch {num_withheld} queries got no label. They were chosen with an epsilon of "
    "{selection_epsilon} more, those on which teachers disagree with a larger probability."
)


def affordable_guarantee(target: Target) -> tuple[float, float]:
    """Returns the epsilon and the delta that a batch which is charged once may use up of a target.

    All of epsilon for one changed teacher, and a third of delta: the rest is for whatever else the
    ensemble will release. Less delta where owners are protected, or several teachers may change,
    and their epsilon would be infinite.

    Raises:
        ValueError: if delta is 0, or epsilon so large that none of it is left.
    """
    if not target.delta:
        raise ValueError("delta: expected above 0 for a mechanism that uses up some of it, got 0")
    changed = target.num_changed_teachers
    # Rounded down by more than all that rounds up where several teachers are accounted for.
    total = target.epsilon if changed == 1 else target.epsilon / changed * (1.0 - 1e-9)
    protected = max(changed, 2 if target.unit == "owner" else 1)
    with np.errstate(over="ignore"):
        spread = float(np.exp(total * np.arange(protected)).sum()) * (1.0 + 1e-8)
    delta = min(SHARE_OF_DELTA * target.delta, target.delta / spread)
    if not delta > 0.0:
        raise ValueError(f"expected an epsilon that leaves a delta, got {target.epsilon}")
    return total, delta


@register
@dataclass(frozen=True, kw_only=True)
class StabilityGate(Planned, Expected):
    """Labels a whole batch without noise, for one (epsilon, delta), or releases nothing of it.

    The field calls this propose-test-release (Dwork and Lei 2009), with an exact test. The batch
    and the gate are fixed before any vote on it is seen. Neighbours differ in one teacher's votes,
    on every query at once. Two steps, drawn and charged once for a batch, released or not:

    1. Only if `num_withheld` > 0: that many queries are chosen to be withheld, by the exponential
       mechanism over all sets of that size. The score of a set is the smallest distance that it
       leaves, which one teacher changes by at most 1 however many queries there are. So a few
       ambiguous queries don't decide. Which queries are withheld is public afterwards.
    2. With probability `pass_numerator(distance)` / 2**128 the labels of the other queries are
       released, else the fact alone that the gate stayed shut.

    Step 2 is (epsilon, delta)-private on every table of votes (docs/proofs/stability_gate.md,
    Theorem G1), step 1 (selection_epsilon, 0)-private (Theorem G3), both together
    (selection_epsilon + epsilon, delta)-private.

    >>> import pate_tf
    >>> gate = pate_tf.StabilityGate(epsilon=0.25, delta=3e-6)
    >>> [round(gate.pass_probability(distance), 2) for distance in (30, 80)]
    [0.02, 1.0]

    Attributes:
        epsilon: of step 2, at least 0, finite, in natural logarithms.
        delta: in (0, 1); the gate uses up so much of the ledger's delta.
        num_withheld: number of queries that get no label, at least 0. Default 0.
        selection_epsilon: of step 1, finite; above 0 if queries are withheld, else 0 (default).
    """

    epsilon: float
    delta: float
    num_withheld: int = 0
    selection_epsilon: float = 0.0
    name: ClassVar[str] = "stability_gate"
    parameters: ClassVar[tuple[Parameter, ...]] = (EPSILON, DELTA, NUM_WITHHELD, SELECTION_EPSILON)
    charged_per_batch: ClassVar[bool] = True
    withholds: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "calibration": "it has no scale of noise; `pass_function.least_epsilon` finds the epsilon "
        "that lets a batch out",
        "dp event": "that library has no event for an (epsilon, delta) guarantee",
        "bounds": "its cost is the same for all votes",
        "outcome law": "labels are released together or not at all, so none has a law of its own",
    }
    words: ClassVar[str] = (
        "A batch of queries was fixed beforehand. All its labels, each the class with most votes, "
        "left together and without noise, or none did: the more teachers it would take to change "
        "any of them, the likelier they left, and where a single one could, they left with a "
        "probability of at most {delta}. That is ({epsilon}, {delta}) differentially private, "
        "whatever the number of labels."
    )
    labels_in_words: ClassVar[str] = "labels without noise"
    query_strategy: ClassVar[str] = "medoids"
    unanswered_advice: ClassVar[str] = (
        "the gate stayed shut, which is drawn at random, the likelier the fewer teachers could "
        "change a label. Expect more of fewer queries, of typical ones, of more "
        "teachers or of a larger epsilon; any other batch is charged again"
    )

    def __post_init__(self) -> None:
        """Raises ValueError if a value is outside of its range."""
        between(0, 1, delta=self.delta)
        between(0, inf, ends="[)", epsilon=self.epsilon, selection_epsilon=self.selection_epsilon)
        whole(0, 2**32 - 1, num_withheld=self.num_withheld)
        if (self.num_withheld > 0) != (self.selection_epsilon > 0.0):
            raise ValueError(
                "expected a selection_epsilon above 0 exactly if queries are withheld, got "
                f"num_withheld {self.num_withheld} and selection_epsilon {self.selection_epsilon}"
            )

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns zeros, [num_moments]: `approximate` says all about it."""
        return np.zeros_like(moments)

    @property
    def approximate(self) -> tuple[float, float]:
        """Epsilon of both steps, rounded up, and delta."""
        return float_above(Fraction(self.epsilon) + Fraction(self.selection_epsilon)), self.delta

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the gate with `affordable_guarantee` of the target.

        Queries on which assumed votes are divided are withheld, as many as there are; the share of
        epsilon that chooses them is the one that lets most labels out.

        Raises:
            ValueError: if no delta is left to it.
        """
        divided = int((stability_distances(counts) <= 1).sum())
        withheld = divided if divided < len(counts) else 0
        total, delta = affordable_guarantee(target)
        gates = [
            cls(
                epsilon=total * (1.0 - share) * (1.0 - 1e-15 * bool(share)),
                delta=delta,
                num_withheld=withheld,
                selection_epsilon=total * share,
            )
            for share in (SELECTION_SHARES if withheld else (0.0,))
        ]
        return max(gates, key=lambda gate: gate.expected_right(counts))

    def expected_right(self, counts: IntArray) -> float:
        """Returns the expected number of labels of class 0 that leave."""
        return self.expected_released(stability_distances(counts), np.argmax(counts, axis=1) == 0)

    def check_counts(self, counts: IntArray) -> None:
        """Raises ValueError unless every query has all votes and not all queries are withheld."""
        if len(stability_distances(counts)) <= self.num_withheld:
            raise ValueError(
                f"num_withheld: expected fewer than the {len(counts)} new queries of the batch, "
                f"got {self.num_withheld}"
            )

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws which queries are withheld, and whether the labels of the others leave."""
        del noisy_winners
        distances = stability_distances(counts)
        withheld = self._drawn_withheld(distances, noise)
        passes = self.pass_numerator(self.distance(distances, withheld))
        if noise.uniform_below(CERTAIN) >= passes:
            return Answers([None] * len(counts))
        labels: list[int | None] = np.argmax(counts, axis=1).tolist()
        for query in withheld:
            labels[query] = None
        return Answers(labels)

    def in_words(self) -> str:
        """Returns what it does; of the queries that are withheld only where there are some."""
        words = self.words + (WITHHELD if self.num_withheld else "")
        return words.format(**dataclasses.asdict(self))

    def summary(self) -> str:
        """Returns name and parameters; of the queries that are withheld only where there are."""
        shown = f"{self.name}, epsilon {self.epsilon:g}, delta {self.delta:g}"
        if not self.num_withheld:
            return shown
        return (
            f"{shown}, num_withheld {self.num_withheld}, selection_epsilon "
            f"{self.selection_epsilon:g}"
        )

    def selection_weights(self, distances: IntArray) -> list[int]:
        """Returns how likely it is that exactly the k least stable queries are withheld for sure.

        Order the queries by distance, equal ones as they stand. A set of num_withheld queries
        holds the first k of that order and not the next one, for one k in 0 .. num_withheld; it
        leaves the distance of that next query, and so every such set is equally likely. To draw a
        set: draw k in proportion to these integers, then num_withheld - k of the queries behind
        position k uniformly, and give both to `withheld_queries`.

        The integers are exactly proportional to (number of sets) * g^(distance left) with one
        rational g of at most e^(selection_epsilon / 2) (docs/proofs/stability_gate.md, Theorem
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
        (epsilon, delta) inequalities exactly (docs/proofs/stability_gate.md, Theorem G2).

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
        exact = Fraction(self.pass_numerator(distance), CERTAIN)
        nearest = float(exact)
        return nextafter(nearest, 0.0) if Fraction(nearest) > exact else nearest

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

    def _drawn_withheld(self, distances: IntArray, noise: NoiseSource) -> IntArray:
        ends = list(accumulate(self.selection_weights(distances)))
        drawn = noise.uniform_below(ends[-1])
        num_least_stable = next(k for k, end in enumerate(ends) if drawn < end)
        others = noise.uniform_subset(
            self.num_withheld - num_least_stable, below=len(distances) - num_least_stable - 1
        )
        return self.withheld_queries(distances, num_least_stable=num_least_stable, others=others)


# All plurality labels of a batch without noise or, where few teachers could change one, counts.
#
# A stability gate that stays shut has cost its epsilon and tells nothing. Here noisy counts leave
# then, for the same (epsilon, delta) in all: what leaves while the gate is open and what leaves
# while
# it is shut are told apart by everybody, so that the labels may use all of epsilon, and only the
# chance of its being shut has to share it with the noise on the counts.


BELOW: Final = 1.0 - 2.0**-40  # more than is lost by rounding
# Epsilons at which the cost of counts is looked up, evenly spread: twice as many took a thousandth
# off the noise of a plan.
LEVELS: Final = 256
# What a plan is made for: labels of which the least stable one is changed by a tenth of the
# teachers leave 95 times in a hundred. Of 100 typical queries of MNIST's pool with 2,000 teachers
# that was 167 to 343 of them, by features of three seeds that were learnt twice.
PLANNED_SHARE: Final = 1 / 10
PLANNED_CHANCE: Final = 0.95
# Where that takes more of epsilon, counts alone tell more.
MOST_OF_EPSILON: Final = 1 / 4


@register
@dataclass(frozen=True, kw_only=True)
class StabilityGateOrHistogram(Planned, Expected):
    """Labels a whole batch without noise or, where that is not stable, releases noisy counts of it.

    With a probability that grows with the number of teachers whose change could change any of the
    labels, all of them leave, each the class with most votes. Else the counts of all queries leave
    with Gaussian noise, as of `GaussianHistogram`. Which of both is seen by everybody. The batch
    and all fields are fixed before any vote on it is seen. (epsilon, delta)-private on every table
    of votes (docs/proofs/stability_gate.md, Theorem G7). Drawn and charged once for a batch.

    >>> import pate_tf
    >>> mechanism = pate_tf.StabilityGateOrHistogram(
    ...     epsilon=0.1, delta=3e-6, sigma=1000.0, most_queries=100)
    >>> round(mechanism.pass_numerator(120) / 2**128, 2)
    0.86

    Attributes:
        epsilon: of all that leaves together, above what the counts alone cost.
        delta: likewise, in (0, 1).
        sigma: standard deviation of the noise on each count, in votes.
        most_queries: how many queries a batch has at most, which the cost of counts is for.
    """

    epsilon: float
    delta: float
    sigma: float
    most_queries: int
    name: ClassVar[str] = "stability_gate_or_histogram"
    releases_counts: ClassVar[bool] = True
    charged_per_batch: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "flags": "its numbers depend on each other, and are planned: name a `target_epsilon`",
        "calibration": "it has more than a scale of noise; `for_target` plans it",
        "dp event": "that library has no event for an (epsilon, delta) guarantee",
        "bounds": "its cost is the same for all votes",
        "outcome law": "labels are released without noise together or not at all, so none has "
        "a law of its own",
    }
    words: ClassVar[str] = (
        "A batch of at most {most_queries} queries was fixed beforehand. Either all its labels "
        "left without noise, each the class with most votes: the more teachers it would take to "
        "change any of them, the likelier. Or the number of votes of every class on every query "
        "left, each with Gaussian noise of standard deviation {sigma} votes. Both together are "
        "({epsilon}, {delta}) differentially private, whatever the number of labels."
    )
    labels_in_words: ClassVar[str] = "labels, without noise or from noisy counts"
    query_strategy: ClassVar[str] = "medoids"

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range, or the counts cost as much as all may."""
        between(0, 1, delta=self.delta)
        positive(sigma=self.sigma, epsilon=self.epsilon)
        whole(1, most_queries=self.most_queries)
        if not self.gate_delta > 0.0:
            raise ValueError(
                f"sigma: expected noise with which counts of {self.most_queries} queries cost less "
                f"than epsilon {self.epsilon:g}, got {self.sigma:g}"
            )

    @functools.cached_property
    def gate_delta(self) -> float:
        """How often labels leave at most that a single teacher could change; 0 if never.

        What the counts leave of delta at all of epsilon (docs/proofs/stability_gate.md, Theorem
        G7).
        """
        return max(self.delta * BELOW - self._delta_of_counts(self.epsilon), 0.0)

    def _delta_of_counts(self, epsilon: float) -> float:
        """Delta of the counts of all queries at epsilon; 1 where the lattice takes all of it."""
        squared = 2.0 * self.most_queries / self.sigma**2
        on_lattice = epsilon * BELOW - squared / LATTICE
        return gaussian_dp_delta(sqrt(squared), on_lattice) if on_lattice > 0.0 else 1.0

    @functools.cached_property
    def _drawn_while_shut(self) -> DrawnWhileShut:
        levels = (self.epsilon * (place / LEVELS) for place in range(LEVELS, 0, -1))
        return DrawnWhileShut(
            guarantees=tuple((level, self._delta_of_counts(level)) for level in levels),
            delta=self.delta * BELOW,
        )

    def pass_numerator(self, distance: int) -> int:
        """Returns t in [0, 2**128]: labels leave if a uniform integer below 2**128 is below t.

        Args:
            distance: the least number of teachers that could change a label; sensitive.

        Raises:
            ValueError: if distance is negative.
        """
        return pass_numerator(
            self.epsilon, self.gate_delta, distance, while_shut=self._drawn_while_shut
        )

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns zeros, [num_moments]: `approximate` says all about it."""
        return np.zeros_like(moments)

    @property
    def approximate(self) -> tuple[float, float]:
        """Epsilon and delta."""
        return (self.epsilon, self.delta)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Sigma."""
        return {"sigma": self.sigma}

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the one with least noise on counts whose labels leave as planned.

        Args:
            target: what both together may cost.
            counts: assumed, int64 [num_queries, num_classes]; their sums tell how many teachers
                there are, and nothing else of them is read.

        Raises:
            ValueError: if too little of epsilon would be left to the counts.
        """
        total, delta = affordable_guarantee(target)
        distance = int(PLANNED_SHARE * counts[0].sum())

        made = functools.partial(cls, epsilon=total, delta=delta, most_queries=target.num_queries)

        def sigma(of_labels: float) -> float:
            """Returns the least noise on counts that leaves a share of epsilon to the labels."""
            counted = Target(
                epsilon=total * (1.0 - of_labels),
                delta=delta * BELOW**2,
                num_queries=target.num_queries,
            )
            return counted.least_noise(GaussianHistogram.of_scale).sigma

        def leaves(of_labels: float) -> bool:
            try:
                found = made(sigma=sigma(of_labels))
            except ValueError:  # as good as nothing is left to the counts
                return False
            return found.pass_numerator(distance) >= PLANNED_CHANCE * CERTAIN

        if not leaves(MOST_OF_EPSILON):
            raise ValueError(
                f"expected more teachers or a larger epsilon for {cls.name}, got "
                f"{counts[0].sum():,} teachers and epsilon {target.epsilon:g}"
            )
        return made(sigma=sigma(least(leaves, 0.0, MOST_OF_EPSILON, within=1e-3)))

    def expected_right(self, counts: IntArray) -> float:
        """Returns the expected number of labels of class 0."""
        opens = self.pass_numerator(int(stability_distances(counts).min())) / CERTAIN
        right = float((np.argmax(counts, axis=1) == 0).sum())
        return opens * right + (1.0 - opens) * self._histogram.expected_right(counts)

    def check_counts(self, counts: IntArray) -> None:
        """Raises ValueError unless every query has all votes and there are not too many."""
        stability_distances(counts)
        if len(counts) > self.most_queries:
            raise ValueError(
                f"most_queries: expected a batch of at most {self.most_queries} new queries, got "
                f"{len(counts)}"
            )

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws whether labels leave without noise, and the noise on counts where they don't."""
        distance = int(stability_distances(counts).min())
        if noise.uniform_below(CERTAIN) < self.pass_numerator(distance):
            return Answers(np.argmax(counts, axis=1).tolist())
        return self._histogram.draw(counts, noise, noisy_winners=noisy_winners)

    @property
    def _histogram(self) -> GaussianHistogram:
        return GaussianHistogram(sigma=self.sigma)
