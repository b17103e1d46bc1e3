"""Every count with Gaussian noise, and the class with the largest sum as label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Self

from pate_tf.accounting import outcomes
from pate_tf.accounting.divergences import LATTICE, FloatArray
from pate_tf.accounting.mechanisms.base import (
    SIGMA,
    Answers,
    Mechanism,
    NoiseSource,
    NoisyWinners,
    Parameter,
    check_positive,
    largest_sums,
    register,
)
from pate_tf.accounting.mechanisms.noisy_max import gaussian_epsilon
from pate_tf.accounting.quadrature import GaussianNoise, IntArray


@register
@dataclass(frozen=True)
class GaussianHistogram(Mechanism):
    """Releases all counts of a query with Gaussian noise; its label is the largest one's class.

    One vote of a query moves two counts by one: a Gaussian mechanism of sensitivity sqrt(2), on
    multiples of 1 / LATTICE votes (docs/theory.md, Proposition D4). Several queries are
    sqrt(2 num_queries) / sigma Gaussian differentially private. A label says which class is ahead;
    the counts also say by how much, which a mean over look-alikes makes good use of.

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
    """

    sigma: float
    name: ClassVar[str] = "gaussian_histogram"
    parameters: ClassVar[tuple[Parameter, ...]] = (SIGMA,)
    lacks: ClassVar[Mapping[str, str]] = {
        "bounds": "the noisy counts leave too, which costs the same for all votes"
    }
    words: ClassVar[str] = (
        "To every class's number of votes Gaussian noise of standard deviation {sigma} votes is "
        "added. All these sums leave, and the class with the largest one is the label."
    )

    def __post_init__(self) -> None:
        """Raises ValueError unless sigma is positive and finite."""
        check_positive("sigma", self.sigma)

    @classmethod
    def of_scale(cls, scale: float) -> Self:
        """Returns the mechanism with sigma = scale."""
        return cls(scale)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Sigma."""
        return {"sigma": self.sigma}

    @property
    def gaussian_noise_on_counts(self) -> float:
        """Sigma."""
        return self.sigma

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """The counts have sensitivity sqrt(2); noise on a lattice costs no more."""
        return (self.sigma / sqrt(2.0),)

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws discrete Gaussian variables of scale sigma * LATTICE; all sums are released."""
        drawn = noise.gaussian_integers(self.sigma * LATTICE, counts.size).reshape(counts.shape)
        winners = noisy_winners(counts, drawn)
        return Answers(winners.tolist(), counts * LATTICE + drawn)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) / sigma^2, [num_moments]."""
        return moments * (moments + 1.0) / self.sigma**2

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, and the lattice's share."""
        return gaussian_epsilon(2.0 * number / self.sigma**2, delta)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns erfc(D / (2 sigma)) / 2 with D lowered by two lattice steps."""
        return outcomes.gaussian_tail(gaps - 2.0 / LATTICE, self.sigma)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label alone, by quadrature of the continuous noise."""
        return outcomes.additive_outcomes(counts, GaussianNoise(self.sigma))
