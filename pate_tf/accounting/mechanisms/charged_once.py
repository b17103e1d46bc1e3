"""Mechanisms that are charged once: for all labels of a batch, or for sums of what records add."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter, sqrt
from typing import ClassVar, Final, Self

import numpy as np

from pate_tf.accounting.conversions import LATTICE, gaussian_dp_delta, least
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Mechanism,
    NoiseDraws,
    OfSigma,
    ReleasesFeatureSums,
    Target,
    parameter,
    register,
)
from pate_tf.accounting.mechanisms.noisy_max import GaussianHistogram
from pate_tf.core.checks import IntArray, whole

# Sums by class of what private records add, with noise: no teacher is asked.


CHANGED = 2.0  # L2 sensitivity of the sums to the replacement of one record
FEWEST_OF_CLASS = 20.0  # records over classes, over the noise on a number of a sum
MOST_ROUNDS = 64
# Length to which a record's part of a later round is clipped: most are shorter, and the noise is in
# proportion to it.
RESIDUAL_NORM = 0.5
MOMENT_WEIGHT = 1.0  # of second moments beside sums by class


@register
@dataclass(frozen=True, kw_only=True)
class GaussianFeatureSums(OfSigma, ReleasesFeatureSums):
    """Releases the sum of the records' vectors of each class, with Gaussian noise.

    A record adds a vector of L2 norm at most 1 to the column of its class, which follows from the
    record and public values alone; the records of an owner together add L2 norm at most 1, too. So
    the L2 sensitivity of the sums is 2 if a record is replaced, and with unit "owner" 1 if an owner
    is added or removed and 2 if one is replaced: a Gaussian mechanism on multiples of 1 / LATTICE
    (docs/proofs/theory.md, Proposition D8). Nothing is assumed of how records are partitioned among
    teachers. Perturbed sufficient statistics: Vu and Slavkovic 2009, Foulds et al. 2016.

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.GaussianFeatureSums(sigma=61.5).composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number; a record's vector has L2 norm 1.
        unit: "record" (default) is charged for a record replaced, or any change of an owner;
            "owner" for an owner added or removed.
    """

    name: ClassVar[str] = "gaussian_feature_sums"
    squared_sensitivity: ClassVar[float] = CHANGED**2
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it adds up records' features and asks no teacher; name a `target_epsilon`",
        "bounds": "it costs the same for all records",
    }
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1 by a public function. The vectors "
        "were added up by class. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of the sums, once. Nothing else was "
        "computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    @property
    def sensitivity(self) -> str:
        """How far a neighbor moves the sums, in words."""
        squared = self.squared_sensitivity
        replaced = "2" if squared == CHANGED**2 else f"sqrt({squared:g})"
        if self.unit == "owner":
            return f"sensitivity 1 to an owner added or removed, {replaced} to one replaced"
        return f"sensitivity {replaced}"

    @property
    def fewest_of_class(self) -> float:
        """Private records over classes from which labels of sums are worth their cost."""
        return FEWEST_OF_CLASS * self.sigma


@register
@dataclass(frozen=True, kw_only=True)
class GaussianResidualSums(GaussianFeatureSums):
    """Releases feature sums, then sums of what a public model misses of them, round by round.

    Round 1 is `GaussianFeatureSums`. In each later round a record adds its vector times
    `e_y - p`, clipped to L2 norm `RESIDUAL_NORM` and divided by it, where p are the probabilities
    that a model of the earlier noisy sums gives the record. Each round is a Gaussian mechanism of
    sensitivity 2; all rounds are charged together before the first is drawn
    (docs/proofs/theory.md, Proposition D10).

    >>> import pate_tf
    >>> sums = pate_tf.mechanisms.GaussianResidualSums(sigma=123.0, num_rounds=4)
    >>> round(sums.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number of each round.
        num_rounds: rounds, at least 1.
    """

    num_rounds: int = parameter(1, least=1, most=MOST_ROUNDS, help="Rounds of sums.")

    name: ClassVar[str] = "gaussian_residual_sums"
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1 by a public function. The vectors "
        "were added up by class. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of the sums, once. This was the first of "
        "{self.num_rounds} rounds: in each later one a linear model followed from the noisy sums "
        "so far; a record added its vector times the difference between its class and the model's "
        "probabilities, clipped to a fixed L2 norm and divided by it, with the same noise. Nothing "
        "else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class, then sums of what a linear "
        "model misses of them"
    )


@register
@dataclass(frozen=True, kw_only=True)
class GaussianMoments(GaussianFeatureSums):
    """Releases sums of vectors by class and second moments together, with Gaussian noise, once.

    A record adds the outer product of its vector v, of L2 norm at most 1 and without negative
    numbers, with (its class's one-hot vector, w v) / sqrt(1 + w^2), w being `MOMENT_WEIGHT`: a
    table of norm at most 1; an owner's records add a norm of at most 1 together. Two such tables
    have no negative inner product. So replacing a record or an owner moves the total by at most
    sqrt(2), adding or removing an owner by at most 1 (docs/proofs/theory.md, Proposition D11).
    These are the sufficient statistics of linear regression (Vu and Slavkovic 2009, Wang 2018).

    >>> import pate_tf
    >>> moments = pate_tf.mechanisms.GaussianMoments(sigma=43.5)
    >>> round(moments.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number; a record's table has L2 norm 1.
    """

    name: ClassVar[str] = "gaussian_moments"
    squared_sensitivity: ClassVar[float] = 2.0
    replaced_steps = sqrt(2.0)
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1, without negative numbers, by a "
        "public function. The vectors were added up by class, and so were the products of any two "
        "numbers of a vector, scaled so that a record adds a table of norm at most 1. Discrete "
        "Gaussian noise of standard deviation {self.sigma:.3g} ({self.sensitivity}) was added to "
        "each number of both sums, once. Nothing else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class, and their second moments"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy moments"


@register
@dataclass(frozen=True, kw_only=True)
class LaplaceClusterCounts(ReleasesFeatureSums):
    """Releases how many records of each class are in each public cluster, with Laplace noise.

    A record adds 1 in the cell of its cluster and its class; an owner's records add at most 1
    together. Replacing a record, or an owner, moves the table by at most 2 in the L1 norm, so that
    noise of scale b costs a pure epsilon of 2 / b at delta 0; adding or removing an owner 1 / b
    (Proposition D9).

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.LaplaceClusterCounts(scale=20.0, num_clusters=50).pure_epsilon, 3)
    0.1

    Attributes:
        scale: b of the discrete Laplace noise, in records.
        num_clusters: rows of the table.
        unit: as of `GaussianFeatureSums`.
    """

    scale: float = parameter(above=0.0, help="Scale of the discrete Laplace noise, in records.")
    num_clusters: int = parameter(1, least=1, help="Clusters of the pool.")
    name: ClassVar[str] = "laplace_cluster_counts"
    noise_fields: ClassVar[tuple[str, ...]] = ("scale",)
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it counts records in clusters and asks no teacher; it is planned for an `epsilon`",
        "bounds": "it costs the same for all records",
    }
    words: ClassVar[str] = (
        "Each record was assigned to one of {self.num_clusters} clusters of the public pool. Of "
        "each cluster the number of records of each class was released, after a random whole "
        "number from the discrete Laplace law of scale {self.scale:.3g} was added to it. Nothing "
        "else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "how many private records of each class are in each cluster of the pool"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy counts of records in clusters"

    @property
    def standard_deviation(self) -> float:
        """About sqrt(2) scales."""
        return sqrt(2.0) * self.scale

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range; sets `pure_epsilon`, rounded up."""
        super().__post_init__()
        moved = 1.0 if self.unit == "owner" else CHANGED
        object.__setattr__(self, "pure_epsilon", nextafter(moved / self.scale, inf))

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Adds discrete Laplace variables, in steps of 1 / LATTICE."""
        scale = nextafter(self.scale * LATTICE, inf)
        return sums + noise.laplace_integers(scale, sums.size).reshape(sums.shape)


# The stability gate: every plurality label of a batch, without noise, or nothing.
#
# Everything is drawn in integers, with exactly the probabilities that are accounted for: how often
# a batch may leave that some number of changed teachers could change.
#
# The largest pass function of (epsilon, delta)-privacy over a distance that one teacher changes
# by at most 1 (docs/proofs/stability_gate.md, Theorems G1 and G2). Probabilities are integers
# over 2**128, made by a recursion that rounds to the safe side at every step: what is drawn
# satisfies the guarantee exactly, not up to rounding.


CERTAIN: Final = 2**128
LARGEST_EPSILON: Final = 128  # e^128 is far above 2**128: no larger epsilon lets more batches pass
EXPONENTIAL_BITS: Final = 384

# (epsilon, delta) pairs, the largest epsilon first.
Guarantees = tuple[tuple[float, float], ...]


@functools.lru_cache(maxsize=1024)
def exponential_below(epsilon: float | Fraction) -> int:
    """Returns an integer of at most e^epsilon * 2**384 and at least 2**384.

    A partial sum of the series of e^x, every term rounded down.
    """
    exponent = min(Fraction(epsilon), Fraction(LARGEST_EPSILON))
    term = total = 1 << EXPONENTIAL_BITS
    order = 0
    while term:
        order += 1
        term = term * exponent.numerator // (exponent.denominator * order)
        total += term
    return total


def pass_numerator(
    epsilon: float,
    delta: float,
    distance: int,
    *,
    while_shut: Guarantees = (),
    total_delta: float = 0.0,
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
        while_shut: all guarantees of what is drawn while the gate is shut; none where nothing is.
        total_delta: of both together, where something else is drawn.

    Raises:
        ValueError: if distance is negative or not a whole number.
    """
    whole(0, distance=distance)
    growth = exponential_below(epsilon)
    step = int(Fraction(delta) * CERTAIN)
    shut_growth, shut_step = (0, 0) if while_shut else (growth, step)
    # What each guarantee leaves of epsilon, and how often it may be drawn for that.
    levels = [
        (
            max(Fraction(epsilon) - Fraction(epsilon_while_shut), Fraction(0)),
            int(Fraction(total_delta) * CERTAIN / Fraction(delta_while_shut))
            if delta_while_shut
            else CERTAIN,
        )
        for epsilon_while_shut, delta_while_shut in while_shut
    ]
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


def stability_distances(counts: IntArray) -> IntArray:
    """Returns how many teachers have to change until a query is tied, int64 [num_queries].

    ceil((largest count - second largest) / 2). Replacing one teacher moves at most one vote of
    every query and so changes each distance by at most 1. If two neighbors differ in the plurality
    of a query, its distance is at most 1 on both (docs/proofs/stability_gate.md, Lemma G0).

    Args:
        counts: one vote of every teacher on every query, int64 [num_queries, num_classes].
    """
    largest = np.partition(counts, -2, axis=1)[:, -2:]
    return np.asarray((largest[:, 1] - largest[:, 0] + 1) // 2)


# A batch that leaves as often needs an epsilon of some 9 % more than with all of delta, which would
# leave nothing to anything else; and a replaced owner, who changes two teachers, uses up
# 1 + exp(epsilon) times as much.
SHARE_OF_DELTA: Final = 1.0 / 3.0


@dataclass(frozen=True, kw_only=True)
class BatchGate(Mechanism):
    """A mechanism that may release all plurality labels of a batch without noise.

    The batch and all fields are fixed before any vote on it is seen; it is drawn and charged once
    for a batch. Neighbors differ in one teacher's votes, on every query at once.

    Attributes:
        epsilon: of all that leaves together, in natural logarithms.
        delta: likewise, in (0, 1); so much of the ledger's delta is used up.
    """

    epsilon: float = parameter(
        least=0.0, help="Epsilon of a stability gate: of all labels of a batch together."
    )
    delta: float = parameter(
        flag="gate_delta",
        above=0.0,
        below=1.0,
        help="Delta that a stability gate uses up. What it leaves of --delta is for whatever else "
        "the ensemble ever releases: a second batch, or labels of another mechanism.",
    )
    charged_per_batch: ClassVar[bool] = True
    query_strategy: ClassVar[str] = "medoids"

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range."""
        super().__post_init__()
        object.__setattr__(self, "approximate", (self.epsilon, self.delta))

    def pass_numerator(self, distance: int) -> int:
        """Returns t in [0, 2**128]: labels leave if a uniform integer below 2**128 is below t.

        The probability is exactly t / 2**128. The integers of all distances together satisfy the
        (epsilon, delta) inequalities exactly (docs/proofs/stability_gate.md, Theorem G2).

        Args:
            distance: the least number of teachers that could change a label; sensitive.

        Raises:
            ValueError: if distance is negative.
        """
        return pass_numerator(self.epsilon, self.delta, distance)

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws whether labels leave without noise, and what is drawn where they don't."""
        instead = Answers([None] * len(counts))
        if self.releases_counts:
            # Drawn in any case: a process that is killed for its time or memory would tell which
            # branch it was in, and an open batch may be drawn anew under the same debit.
            instead = GaussianHistogram(sigma=self.noise_scales["sigma"]).draw(counts, noise)
        distance = int(stability_distances(counts).min())
        if noise.uniform_below(CERTAIN) < self.pass_numerator(distance):
            return Answers(np.argmax(counts, axis=1).tolist())
        return instead

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of labels of class 0 that leave without noise."""
        opens = self.pass_numerator(int(stability_distances(counts).min())) / CERTAIN
        return opens * float((np.argmax(counts, axis=1) == 0).sum())


@register
@dataclass(frozen=True, kw_only=True)
class StabilityGate(BatchGate):
    """Labels a whole batch without noise, for one (epsilon, delta), or releases nothing of it.

    The field calls this propose-test-release (Dwork and Lei 2009), with an exact test. With
    probability `pass_numerator(distance)` / 2**128 the labels are released, else the fact alone
    that the test failed. (epsilon, delta)-private on every table of votes
    (docs/proofs/stability_gate.md, Theorem G1).

    >>> import pate_tf
    >>> gate = pate_tf.mechanisms.StabilityGate(epsilon=0.25, delta=3e-6)
    >>> [round(gate.pass_numerator(distance) / 2**128, 2) for distance in (30, 80)]
    [0.02, 1.0]

    Attributes:
        epsilon: of the batch, at least 0, finite, in natural logarithms.
        delta: in (0, 1); the gate uses up so much of the ledger's delta.
    """

    name: ClassVar[str] = "stability_gate"
    withholds: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {"bounds": "its cost is the same for all votes"}
    words: ClassVar[str] = (
        "A batch of queries was fixed in advance. All its labels, each the class with most votes, "
        "left together and without noise, or none did: the more teachers it would take to change "
        "any of them, the likelier they left, and where a single one could, they left with a "
        "probability of at most {self.delta}. That is ({self.epsilon}, {self.delta}) "
        "differentially private, whatever the number of labels."
    )
    labels_in_words: ClassVar[str] = "labels without noise"
    unanswered_advice: ClassVar[str] = (
        "the test failed, which is drawn at random, the likelier the fewer teachers could change a "
        "label. Expect more of fewer queries, of typical ones, of more teachers or of a larger "
        "epsilon; any other batch is charged again"
    )

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the gate that may use up all of epsilon, and a third of delta.

        The rest of delta is for whatever else the ensemble will release. Less delta where owners
        are protected, or the epsilon of a replaced one would be infinite. `counts` are not read.

        Raises:
            ValueError: if delta is 0, or epsilon so large that none of it is left.
        """
        del counts
        if not target.delta:
            raise ValueError(
                "delta: expected above 0 for a mechanism that uses up some of it, got 0"
            )
        with np.errstate(over="ignore"):
            spread = 1.0 + (float(np.exp(target.epsilon)) if target.unit == "owner" else 0.0)
        delta = min(SHARE_OF_DELTA * target.delta, target.delta / (spread * (1.0 + 1e-8)))
        if not delta > 0.0:
            raise ValueError(f"expected an epsilon that leaves a delta, got {target.epsilon}")
        return cls(epsilon=target.epsilon, delta=delta)


# All plurality labels of a batch without noise or, where that is not stable, counts.
#
# A stability gate whose test fails has cost its epsilon and tells nothing. Here noisy counts leave
# then, for the same (epsilon, delta) in all: what leaves while the gate is open and what leaves
# while it is shut are told apart by everybody, so that the labels may use all of epsilon, and only
# the chance of its being shut has to share it with the noise on the counts.


BELOW: Final = 1.0 - 2.0**-40  # more than is lost by rounding, so that no norm is above 1
LEVELS: Final = 256  # epsilons at which the cost of counts is looked up, evenly spread
# What a plan is made for: labels of which the least stable one is changed by a tenth of the
# teachers leave 95 times in a hundred.
PLANNED_SHARE: Final = 1 / 10
PLANNED_CHANCE: Final = 0.95
# Where that takes more of epsilon, counts alone tell more.
MOST_OF_EPSILON: Final = 1 / 4


@register
@dataclass(frozen=True, kw_only=True)
class StabilityGateOrHistogram(BatchGate):
    """Labels a whole batch without noise or, where that is not stable, releases noisy counts of it.

    With a probability that grows with the number of teachers whose change could change any of the
    labels, all of them leave, each the class with most votes. Else the counts of all queries leave
    with Gaussian noise, as of `GaussianHistogram`. Which of both is seen by everybody.
    (epsilon, delta)-private on every table of votes (docs/proofs/stability_gate.md, Theorem G7).

    >>> import pate_tf
    >>> mechanism = pate_tf.mechanisms.StabilityGateOrHistogram(
    ...     epsilon=0.1, delta=3e-6, sigma=1000.0, most_queries=100)
    >>> round(mechanism.pass_numerator(120) / 2**128, 2)
    0.86

    Attributes:
        epsilon: of all that leaves together, above what the counts alone cost.
        delta: likewise, in (0, 1).
        sigma: standard deviation of the noise on each count, in votes.
        most_queries: how many queries a batch has at most, which the cost of counts is for.
    """

    sigma: float = parameter(above=0.0, help="Standard deviation of the noise on each count.")
    most_queries: int = parameter(least=1, help="Queries of a batch at most.")
    name: ClassVar[str] = "stability_gate_or_histogram"
    releases_counts: ClassVar[bool] = True
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    lacks: ClassVar[Mapping[str, str]] = {
        **StabilityGate.lacks,
        "flags": "its numbers depend on each other, and are planned: name a `target_epsilon`",
    }
    words: ClassVar[str] = (
        "A batch of at most {self.most_queries} queries was fixed in advance. Either all its "
        "labels left without noise, each the class with most votes: the more teachers it would "
        "take to change any of them, the likelier. Or the number of votes of every class on every "
        "query left, each with Gaussian noise of standard deviation {self.sigma:.3g} votes. Both "
        "together are ({self.epsilon:.3g}, {self.delta:.3g}) differentially private, whatever the "
        "number of labels."
    )
    labels_in_words: ClassVar[str] = "labels, without noise or from noisy counts"

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range, or the counts cost as much as all may."""
        super().__post_init__()
        if not self.gate_delta > 0.0:
            raise ValueError(
                f"sigma: expected noise with which counts of {self.most_queries} queries cost less "
                f"than epsilon {self.epsilon:g}, got {self.sigma:g}"
            )

    def delta_of_counts(self, epsilon: float) -> float:
        """Returns delta of the counts at epsilon; 1 where the lattice takes all of it."""
        squared = 2.0 * self.most_queries / self.sigma**2
        on_lattice = epsilon * BELOW - squared / LATTICE
        return float(gaussian_dp_delta(sqrt(squared), on_lattice)) if on_lattice > 0.0 else 1.0

    @functools.cached_property
    def gate_delta(self) -> float:
        """How often labels leave at most that a single teacher could change; 0 if never.

        What the counts leave of delta at all of epsilon (docs/proofs/stability_gate.md, Theorem
        G7).
        """
        return max(self.delta * BELOW - self.delta_of_counts(self.epsilon), 0.0)

    @functools.cached_property
    def guarantees_of_counts(self) -> Guarantees:
        """(epsilon, delta) pairs of the counts, the largest epsilon first."""
        levels = [self.epsilon * (place / LEVELS) for place in range(LEVELS, 0, -1)]
        return tuple((level, self.delta_of_counts(level)) for level in levels)

    def pass_numerator(self, distance: int) -> int:
        """Returns as every gate, by Theorem G7."""
        return pass_numerator(
            self.epsilon,
            self.gate_delta,
            distance,
            while_shut=self.guarantees_of_counts,
            total_delta=self.delta * BELOW,
        )

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> StabilityGateOrHistogram:
        """Returns the one with least noise on counts whose labels leave as planned.

        Args:
            target: what both together may cost.
            counts: assumed, int64 [num_queries, num_classes]; their sums tell how many teachers
                there are, and nothing else of them is read.

        Raises:
            ValueError: if too little of epsilon would be left to the counts.
        """
        gate = StabilityGate.for_target(target, counts)
        number = target.num_queries
        distance = int(PLANNED_SHARE * int(counts[0].sum()))

        def member(of_labels: float) -> StabilityGateOrHistogram:
            """Returns the one with least noise on counts that leaves a share to the labels."""
            of_counts = gate.epsilon * (1.0 - of_labels)
            target_of_counts = Target(
                epsilon=of_counts, delta=gate.delta * BELOW**2, num_queries=number
            )
            sigma = GaussianHistogram.for_target(target_of_counts, counts).sigma
            return cls(epsilon=gate.epsilon, delta=gate.delta, most_queries=number, sigma=sigma)

        def leaves(of_labels: float) -> bool:
            try:
                return member(of_labels).pass_numerator(distance) >= PLANNED_CHANCE * CERTAIN
            except ValueError:  # as good as nothing is left to the counts
                return False

        if not leaves(MOST_OF_EPSILON):
            raise ValueError(
                f"expected more teachers or a larger epsilon for {cls.name}, got epsilon "
                f"{target.epsilon:g}"
            )
        return member(least(leaves, 0.0, MOST_OF_EPSILON, within=1e-3))

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of labels of class 0, with and without noise."""
        shut = 1.0 - self.pass_numerator(int(stability_distances(counts).min())) / CERTAIN
        noisy = GaussianHistogram(sigma=self.sigma).expected_correct(counts)
        return super().expected_correct(counts) + shut * noisy
