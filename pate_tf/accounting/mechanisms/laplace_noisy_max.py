"""Laplace noise on every count: the mechanism of Papernot et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import exp, inf, nextafter
from typing import ClassVar

import numpy as np

from pate_tf.accounting import outcomes
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.costs import paper_alpha
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.laplace_worst_case import laplace_noisy_max_alphas
from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.mechanisms.additive import LARGEST_SUM, AdditiveNoisyMax
from pate_tf.accounting.mechanisms.base import Tail
from pate_tf.accounting.mechanisms.drawing import NoiseSource
from pate_tf.accounting.mechanisms.pure import PureNoisyMax
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import DiscreteLaplaceNoise, IntArray, neighbour_outcomes
from pate_tf.accounting.three_outcomes import between_moments


@register
@dataclass(frozen=True)
class LaplaceNoisyMax(AdditiveNoisyMax, PureNoisyMax):
    """The class with most votes after discrete Laplace noise is added to every count.

    Pr[noise = k] = (1 - p)/(1 + p) p^|k| with p = e^-gamma: the integer form of Equation 1 of
    Papernot et al. 2017; docs/theory.md, Proposition D1.
    """

    name: ClassVar[str] = "laplace_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", *PureNoisyMax.bounds)
    words: ClassVar[str] = (
        "To every class's number of votes a random whole number is added, from the discrete "
        "Laplace law of scale {scale} votes. " + LARGEST_SUM
    )

    @property
    def noise(self) -> DiscreteLaplaceNoise:
        """The law of the noise on one count."""
        return DiscreteLaplaceNoise(self.gamma)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """1 / gamma, rounded up: the noise drawn is never smaller than what is accounted for."""
        return {"1/gamma": nextafter(1.0 / self.gamma, inf)}

    def additive_noise(self, noise: NoiseSource, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Laplace variables times LATTICE, plus each class's place in an order.

        The order is uniformly random, one for each query, and breaks ties.
        """
        drawn = noise.laplace_integers(self.noise_scales["1/gamma"], num_queries * num_classes)
        priorities = noise.random_orders(num_queries, num_classes)
        return drawn.reshape(num_queries, num_classes) * LATTICE + priorities

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the worst counts (docs/theory_worst_case.md, Theorem W4)."""
        certified = laplace_noisy_max_alphas(self.gamma, tuple(DEFAULT_MOMENTS.tolist()))
        return between_moments(moments, DEFAULT_MOMENTS, certified, self.cost_cap(moments))

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[difference of two discrete Laplace variables >= gaps]."""
        return outcomes.discrete_laplace_tail(gaps, self.gamma)

    def bound_tail(self, bound: str) -> Tail:
        """Returns the tail; for `paper` that of continuous noise (Proposition D1)."""
        if bound == "paper":
            return partial(outcomes.laplace_tail, gamma=self.gamma)
        return self.pairwise_tail

    def bound_cap(self, bound: str, moments: FloatArray) -> FloatArray:
        """Returns the worst case; for `paper` the paper's own."""
        return paper_alpha(self.gamma, moments) if bound == "paper" else self.cost_cap(moments)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label, ties broken by random priority."""
        return outcomes.additive_outcomes(counts, self.noise)

    def neighbour_laws(self, row: IntArray) -> outcomes.NeighbourLaws:
        """Returns the exact laws, which do not depend on the order of the classes."""
        laws = neighbour_outcomes(self.noise, *np.unique(row, return_counts=True))
        rare = outcomes.SMALLEST_PROBABILITY * exp(min(self.gamma, 700.0))
        return outcomes.NeighbourLaws(laws, limit=self.pure_epsilon, rare=rare)
