"""The stability gate: every plurality label of a batch, without noise, or nothing.

Everything is drawn in integers, with exactly the probabilities of
`pate_tf.accounting.optimal_thresholding`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import inf, isfinite, nextafter, sqrt
from typing import ClassVar, Final, Self

import numpy as np

from pate_tf.accounting.conversions import check_delta, check_num_queries, gaussian_dp_delta
from pate_tf.accounting.divergences import LATTICE, FloatArray
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Flag,
    Mechanism,
    NoiseSource,
    NoisyWinners,
    Parameter,
    check_positive,
    largest_sums,
    register,
)
from pate_tf.accounting.mechanisms.gaussian_histogram import GaussianHistogram
from pate_tf.accounting.optimal_thresholding import (
    CERTAIN,
    DrawnWhileShut,
    StabilityGateLaw,
    pass_numerator,
    stability_distances,
)
from pate_tf.accounting.quadrature import IntArray
from pate_tf.accounting.target import Target

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
    """Returns the epsilon and the delta that a batch which is paid once may use up of a target.

    All of epsilon for one changed teacher, and a third of delta: the rest is for whatever else the
    ensemble will release. Less delta where owners are protected, or several teachers may change,
    and their epsilon would be infinite.

    Raises:
        ValueError: if epsilon is so large that no delta is left.
    """
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
class StabilityGate(StabilityGateLaw, Mechanism):
    """Labels a whole batch without noise, for one (epsilon, delta), or releases nothing of it.

    `StabilityGateLaw` says how, and what its fields mean. The batch and the gate are fixed before
    any vote on it is seen. Paid once for a batch, whether or not labels leave; drawn once for it.

    Attributes:
        epsilon: of all labels together.
        delta: likewise; the gate uses up so much of the ledger's delta.
        num_withheld: number of queries that get no label.
        selection_epsilon: of choosing those.
    """

    name: ClassVar[str] = "stability_gate"
    parameters: ClassVar[tuple[Parameter, ...]] = (EPSILON, DELTA, NUM_WITHHELD, SELECTION_EPSILON)
    is_paid_once: ClassVar[bool] = True
    withholds: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "calibration": "it has no scale of noise; `pass_function.least_epsilon` finds the epsilon "
        "that lets a batch out",
        "dp event": "that library has no event for an (epsilon, delta) guarantee",
        "bounds": "its cost is the same for all votes",
        "outcome law": "labels of a batch leave together or not at all, so none has a law of its "
        "own",
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
        "change a label. Expect more of fewer queries, of ones that everybody agrees on, of more "
        "teachers or of a larger epsilon; any other batch is paid for again"
    )

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns zeros, [num_moments]: `approximate` says all about it."""
        return np.zeros_like(moments)

    @property
    def approximate(self) -> tuple[float, float]:
        """Epsilon of both steps, rounded up, and delta."""
        total = Fraction(self.epsilon) + Fraction(self.selection_epsilon)
        nearest = float(total)
        return (nearest if Fraction(nearest) >= total else nextafter(nearest, inf), self.delta)

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
class StabilityGateOrHistogram(Mechanism):
    """Labels a whole batch without noise or, where that is not stable, releases noisy counts of it.

    With a probability that grows with the number of teachers whose change could change any of the
    labels, all of them leave, each the class with most votes. Else the counts of all queries leave
    with Gaussian noise, as of `GaussianHistogram`. Which of both is seen by everybody. The batch
    and all fields are fixed before any vote on it is seen. (epsilon, delta)-private on every table
    of votes (docs/theory_stability_gate.md, Theorem G7). Paid once for a batch; drawn once for it.

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
    is_paid_once: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "flags": "its numbers depend on each other, and are planned: name a `target_epsilon`",
        "calibration": "it has more than a scale of noise; `for_target` plans it",
        "dp event": "that library has no event for an (epsilon, delta) guarantee",
        "bounds": "its cost is the same for all votes",
        "outcome law": "labels of a batch leave without noise together or not at all, so none has "
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
        check_delta(self.delta)
        check_positive("sigma", self.sigma)
        if not (isfinite(self.epsilon) and self.epsilon > 0.0):
            raise ValueError(f"expected a finite epsilon > 0, got {self.epsilon}")
        if check_num_queries(self.most_queries) < 1:
            raise ValueError(f"expected most_queries >= 1, got {self.most_queries}")
        object.__setattr__(self, "most_queries", int(self.most_queries))
        if not self.gate_delta > 0.0:
            raise ValueError(
                f"sigma: expected noise with which counts of {self.most_queries} queries cost less "
                f"than epsilon {self.epsilon:g}, got {self.sigma:g}"
            )

    @functools.cached_property
    def gate_delta(self) -> float:
        """How often labels leave at most that a single teacher could change; 0 if never.

        What the counts leave of delta at all of epsilon (docs/theory_stability_gate.md, Theorem
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
    def gaussian_noise_on_counts(self) -> float:
        """Sigma, where counts leave."""
        return self.sigma

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

        def sharing(of_labels: float) -> Self | None:
            """Returns the one that leaves a share of epsilon to the labels; None where it can't."""
            counted = Target(
                epsilon=total * (1.0 - of_labels),
                delta=delta * BELOW**2,
                num_queries=target.num_queries,
            ).least_noise(GaussianHistogram.of_scale)
            try:
                return cls(
                    epsilon=total, delta=delta, sigma=counted.sigma, most_queries=target.num_queries
                )
            except ValueError:  # as good as nothing is left
                return None

        def leaves(found: Self) -> bool:
            return found.pass_numerator(distance) >= PLANNED_CHANCE * CERTAIN

        low, high = 0.0, MOST_OF_EPSILON
        best = sharing(high)
        if best is None or not leaves(best):
            raise ValueError(
                f"expected more teachers or a larger epsilon for {cls.name}, got "
                f"{counts[0].sum():,} teachers and epsilon {target.epsilon:g}"
            )
        while high - low > 1e-3 * high:
            middle = (low + high) / 2.0
            tried = sharing(middle)
            if tried is not None and leaves(tried):
                high, best = middle, tried
            else:
                low = middle
        return best

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
        return GaussianHistogram(self.sigma)
