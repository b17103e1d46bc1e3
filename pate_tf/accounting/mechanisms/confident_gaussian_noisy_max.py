"""Gaussian noise on every count, asked only where teachers agree: Confident-GNMax."""

from __future__ import annotations

import fractions
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.mechanisms.additive import LARGEST_SUM
from pate_tf.accounting.mechanisms.base import Mechanism, check_positive
from pate_tf.accounting.mechanisms.drawing import (
    Answers,
    NoiseSource,
    NoisyWinners,
    largest_sums,
)
from pate_tf.accounting.mechanisms.gaussian_noisy_max import GaussianNoisyMax, gaussian_epsilon
from pate_tf.accounting.mechanisms.parameters import SIGMA, Flag, Parameter
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import IntArray
from pate_tf.accounting.special import ndtr
from pate_tf.accounting.target import Target

THRESHOLD = Parameter(
    field="threshold",
    flag=Flag(
        name="threshold",
        help="Votes that the leading class must reach, with noise, for a query to be answered.",
        default=200.0,
        is_positive=False,
    ),
)
SIGMA_THRESHOLD = Parameter(
    field="sigma_threshold",
    flag=Flag(
        name="sigma_threshold",
        help="Standard deviation of the noise of that test, in votes.",
        default=150.0,
    ),
)


@register
@dataclass(frozen=True)
class ConfidentGaussianNoisyMax(Mechanism):
    """`GaussianNoisyMax`, asked only where the largest count plus noise reaches a threshold.

    The threshold test is always paid. So is the label, also where it is withheld: nothing is given
    back, because how many there were is itself an output (Papernot et al. 2018, arXiv 1802.08908,
    Algorithm 1). Both noises are discrete Gaussians as in `GaussianNoisyMax`.
    `outcome_probabilities` are those of a query that passed the test.

    Attributes:
        threshold: in votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
    """

    threshold: float
    sigma_threshold: float
    sigma: float
    name: ClassVar[str] = "confident_gaussian_noisy_max"
    parameters: ClassVar[tuple[Parameter, ...]] = (THRESHOLD, SIGMA_THRESHOLD, SIGMA)
    bounds: ClassVar[tuple[str, ...]] = GaussianNoisyMax.bounds
    withholds: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {"calibration": "it has two scales and a threshold"}
    words: ClassVar[str] = (
        "A query is answered only if the largest number of votes, with Gaussian noise of standard "
        "deviation {sigma_threshold} votes, reaches {threshold} votes; it is paid for either way. "
        "Then Gaussian noise of standard deviation {sigma} votes is added to every class's number "
        "of votes. " + LARGEST_SUM
    )

    def __post_init__(self) -> None:
        """Raises ValueError unless both scales are positive and the threshold is finite."""
        check_positive("sigma_threshold", self.sigma_threshold)
        check_positive("sigma", self.sigma)
        if not abs(self.threshold) < math.inf:
            raise ValueError(f"expected a finite threshold, got {self.threshold}")

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the affordable one with least noise, and a threshold for votes that are assumed.

        The test has twice the noise of the label, which makes it a sixth of the cost or so. The
        threshold lies halfway between the most votes that a class has and half of all votes, which
        is what the larger of two classes has at least where teachers are divided.
        """
        most, total = int(counts.max()), int(counts[0].sum())
        threshold = round((most + total / 2.0) / 2.0, 1)
        return target.least_noise(lambda scale: cls(threshold, 2.0 * scale, scale))

    def expected_right(self, counts: IntArray) -> float:
        """Returns the expected number of queries that pass the test and get class 0.

        Both noises as the continuous ones; they are independent.
        """
        rows, number = np.unique(counts, axis=0, return_counts=True)
        passes = ndtr((rows.max(axis=1) - self.threshold) / self.sigma_threshold)
        return float(number @ (passes * self.outcome_probabilities(rows)[:, 0]))

    @property
    def answering(self) -> GaussianNoisyMax:
        """The mechanism that chooses the label of a query that passed the test."""
        return GaussianNoisyMax(self.sigma)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Both sigmas."""
        return {"sigma": self.sigma, "sigma_threshold": self.sigma_threshold}

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of the test, whose sensitivity is 1, and of the label."""
        return (self.sigma_threshold, *self.answering.noise_multipliers)

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws a label for each query, and withholds those whose test fails."""
        labels = self.answering.draw(counts, noise, noisy_winners=noisy_winners).labels
        test = noise.gaussian_integers(self.sigma_threshold * LATTICE, len(counts))
        threshold = math.ceil(fractions.Fraction(self.threshold) * LATTICE)
        passes = counts.max(axis=1) * LATTICE + test >= threshold
        return Answers(
            [label if passed else None for label, passed in zip(labels, passes, strict=True)]
        )

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and of the noisy counts of one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.cost_cap(moments)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.alphas(moments)

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost l (l+1) / (2 sigma_threshold^2) of one test, [num_moments]."""
        return moments * (moments + 1.0) / (2.0 * self.sigma_threshold**2)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy of tests and labels."""
        squared = number / self.sigma_threshold**2 + 2.0 * number / self.sigma**2
        return gaussian_epsilon(squared, delta)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the tail of `answering`."""
        return self.answering.pairwise_tail(gaps)

    def vote_reach(self, bound: str) -> int:
        """Returns that of `answering`."""
        return self.answering.vote_reach(bound)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label of a query that passed the test."""
        return self.answering.outcome_probabilities(counts)
