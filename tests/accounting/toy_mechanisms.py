"""Mechanisms as a contributor would add them, one of each kind, which tests register.

Nothing else in the library knows their names. The library draws, charges, calibrates and states
them, and offers them on the command line, from these definitions only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

# Import from these modules and not from their package, because the package imports a mechanism.
from pate_tf.accounting.conversions import LATTICE, FloatArray
from pate_tf.accounting.mechanisms.base import (
    Answers,
    NoiseDraws,
    OfSigma,
    OutcomeLaw,
    Target,
    parameter,
    register,
)
from pate_tf.accounting.mechanisms.noisy_max import AdditiveNoisyMax, laplace_tail
from pate_tf.accounting.noisy_max_costs import discrete_laplace
from pate_tf.core.checks import IntArray


@dataclass(frozen=True, kw_only=True)
class ToyNoisyMax(AdditiveNoisyMax, OutcomeLaw):
    """Discrete Laplace noise of scale 2 / epsilon: one vote moves two counts by one."""

    epsilon: float = parameter(flag="toy_eps", above=0.0, help="Pure epsilon of a toy label.")
    name: ClassVar[str] = "toy_noisy_max"
    words: ClassVar[str] = "Toy noise of epsilon {self.epsilon:g} is added to numbers of votes."
    lacks: ClassVar[Mapping[str, str]] = {"bounds": "none was derived for a toy"}
    noise_law = ("gamma", discrete_laplace)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pure_epsilon", self.epsilon)

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the affordable mechanism with the least noise."""
        return target.least_noise(lambda scale: cls(epsilon=2.0 / scale))

    @property
    def gamma(self) -> float:
        """Inverse scale of the noise, per vote."""
        return self.epsilon / 2.0

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """1 / gamma, rounded up."""
        return {"2/epsilon": math.nextafter(2.0 / self.epsilon, math.inf)}

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the tail of continuous noise (docs/proofs/theory.md, Proposition D1)."""
        return laplace_tail(gaps, self.gamma)

    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns the noise and a random order of the classes for ties."""
        drawn = noise.laplace_integers(self.noise_scales["2/epsilon"], num_queries * num_classes)
        order = noise.random_orders(num_queries, num_classes)
        return drawn.reshape(num_queries, num_classes) * LATTICE + order


@dataclass(frozen=True, kw_only=True)
class ToyHistogram(OfSigma):
    """Releases every noisy count, with the class of the largest noisy count as label."""

    name: ClassVar[str] = "toy_histogram"
    words: ClassVar[str] = "Noisy numbers of votes leave, sigma {self.sigma:g}."
    lacks: ClassVar[Mapping[str, str]] = {"bounds": "a toy"}

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        drawn = noise.gaussian_integers(self.sigma * LATTICE, counts.size).reshape(counts.shape)
        return Answers(noise.noisy_winners(counts, drawn).tolist(), counts * LATTICE + drawn)


TOYS = (ToyNoisyMax, ToyHistogram)


def register_toys() -> None:
    """Registers the toys for good. Call it in a separate process."""
    for toy in TOYS:
        register(toy)
