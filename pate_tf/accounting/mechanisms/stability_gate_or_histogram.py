"""All plurality labels of a batch without noise or, where few teachers could change one, counts.

A stability gate that stays shut has cost its epsilon and tells nothing. Here noisy counts leave
then, for the same (epsilon, delta) in all: what leaves while the gate is open and what leaves while
it is shut are told apart by everybody, so that the labels may use all of epsilon, and only the
chance of its being shut has to share it with the noise on the counts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import ClassVar, Final, Self

import numpy as np

from pate_tf.accounting.conversions import (
    check_delta,
    check_num_queries,
    gaussian_dp_delta,
)
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.mechanisms.base import Mechanism, check_positive
from pate_tf.accounting.mechanisms.drawing import Answers, NoiseSource, NoisyWinners, largest_sums
from pate_tf.accounting.mechanisms.gaussian_histogram import GaussianHistogram
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.mechanisms.stability_gate import affordable_guarantee
from pate_tf.accounting.pass_function import CERTAIN, DrawnWhileShut, pass_numerator
from pate_tf.accounting.quadrature import IntArray
from pate_tf.accounting.stability_distances import stability_distances
from pate_tf.accounting.target import Target

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
    query_strategy: ClassVar[str] = "typical"

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
