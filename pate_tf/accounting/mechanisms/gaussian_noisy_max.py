"""Gaussian noise on every count: GNMax of Papernot et al. 2018."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, sqrt
from typing import ClassVar, Self

import numpy as np

from pate_tf.accounting import outcomes
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, gaussian_dp_epsilon
from pate_tf.accounting.costs import gaussian_costs
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.gaussian_worst_case import gaussian_noisy_max_alphas
from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.mechanisms.additive import LARGEST_SUM, AdditiveNoisyMax
from pate_tf.accounting.mechanisms.base import check_positive
from pate_tf.accounting.mechanisms.drawing import NoiseSource
from pate_tf.accounting.mechanisms.parameters import SIGMA, Parameter
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import GaussianNoise, IntArray, neighbour_outcomes
from pate_tf.accounting.three_outcomes import between_moments


def gaussian_epsilon(squared_distance: float, delta: float) -> float:
    """Returns epsilon of discrete Gaussians whose means are sqrt(squared_distance) scales apart.

    A discrete Gaussian is stochastically at most one lattice step above the continuous one, so
    with k shifted coordinates the privacy loss is that of the continuous one plus at most
    k / (LATTICE sigma^2): squared_distance / LATTICE when every shift is one vote.
    """
    return gaussian_dp_epsilon(sqrt(squared_distance), delta) + squared_distance / LATTICE


@register
@dataclass(frozen=True)
class GaussianNoisyMax(AdditiveNoisyMax):
    """The class with most votes after Gaussian noise is added to every count.

    The noise is a discrete Gaussian on multiples of 1 / LATTICE votes. Its Renyi divergence
    between shifts by whole votes is at most the continuous one's, l (l+1) / sigma^2 per label
    (docs/theory.md, Proposition D4). It lies between the continuous variable minus and plus one
    step in stochastic order, so that a difference of two is below the continuous difference plus
    two steps: `pairwise_tail` lowers gaps by two steps.

    Attributes:
        sigma: standard deviation of the noise, in votes.
    """

    sigma: float
    name: ClassVar[str] = "gaussian_noisy_max"
    parameters: ClassVar[tuple[Parameter, ...]] = (SIGMA,)
    bounds: ClassVar[tuple[str, ...]] = ("paper", "two_sided", "exact")
    words: ClassVar[str] = (
        "To every class's number of votes Gaussian noise of standard deviation {sigma} votes is "
        "added. " + LARGEST_SUM
    )

    def __post_init__(self) -> None:
        """Raises ValueError unless sigma is positive and finite."""
        check_positive("sigma", self.sigma)

    @classmethod
    def of_scale(cls, scale: float) -> Self:
        """Returns the mechanism with sigma = scale."""
        return cls(scale)

    @property
    def noise(self) -> GaussianNoise:
        """The law of the noise on one count, without its lattice."""
        return GaussianNoise(self.sigma)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Sigma."""
        return {"sigma": self.sigma}

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """A label is read off counts of sensitivity sqrt(2) with noise on a lattice.

        There the Renyi divergence is at most the continuous one's (docs/theory.md, Proposition D4,
        a).
        """
        return (self.sigma / sqrt(2.0),)

    def additive_noise(self, noise: NoiseSource, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Gaussian variables of scale sigma * LATTICE."""
        drawn = noise.gaussian_integers(self.sigma * LATTICE, num_queries * num_classes)
        return drawn.reshape(num_queries, num_classes)

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) / sigma^2, the cost of the noisy counts themselves, [num_moments]."""
        return moments * (moments + 1.0) / self.sigma**2

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the worst counts (docs/theory_worst_case.md, Theorem W6)."""
        grid = tuple(DEFAULT_MOMENTS.tolist())
        certified = gaussian_noisy_max_alphas(self.sigma, grid, 1.0 / LATTICE)
        return between_moments(moments, DEFAULT_MOMENTS, certified, self.cost_cap(moments))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, and the lattice's share."""
        return gaussian_epsilon(2.0 * number / self.sigma**2, delta)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns erfc(D / (2 sigma)) / 2 with D lowered by two lattice steps."""
        return outcomes.gaussian_tail(gaps - 2.0 / LATTICE, self.sigma)

    def bound_costs(
        self, bound: str, q: FloatArray, u: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Returns the costs of arXiv 1802.08908, for q below 1."""
        del bound, u
        costs = np.full((len(q), len(moments)), np.inf)
        costs[q < 1.0] = gaussian_costs(self.sigma, q[q < 1.0], moments)
        return costs

    def vote_reach(self, bound: str) -> int:
        """Returns 1 for `two_sided`: see `pate_tf.accounting.moments.vote_reach`."""
        return 1 if bound == "two_sided" else 0

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label, by quadrature of the continuous noise."""
        return outcomes.additive_outcomes(counts, self.noise)

    def neighbour_laws(self, row: IntArray) -> outcomes.NeighbourLaws:
        """Returns the laws of continuous noise.

        The sampler's lattice and its ties move a log ratio by at most about one step in LATTICE
        relative to one vote, which a relative margin of 16 steps covers.
        """
        laws = neighbour_outcomes(self.noise, *np.unique(row, return_counts=True))
        step = 1.0 / self.sigma
        rare = outcomes.SMALLEST_PROBABILITY * exp(min(80.0 * step + step**2, 700.0))
        return outcomes.NeighbourLaws(laws, rare=rare, margin=16.0 / LATTICE)
