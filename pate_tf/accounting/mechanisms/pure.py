"""What mechanisms with a pure epsilon have in common."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, Self

import numpy as np

from pate_tf.accounting.costs import pure_costs
from pate_tf.accounting.divergences import FloatArray, pure_alpha
from pate_tf.accounting.mechanisms.base import Mechanism, check_positive
from pate_tf.accounting.mechanisms.parameters import GAMMA, Parameter
from pate_tf.accounting.outcomes import NeighbourLaws, listed_outcomes
from pate_tf.accounting.quadrature import IntArray


@dataclass(frozen=True)
class PureNoisyMax(Mechanism):
    """A mechanism whose label is 2 gamma differentially private, whatever the counts.

    Its pairwise tail F satisfies F(D - s) <= e^{gamma s} F(D) for s >= 0, which Lemma 1 rests on,
    and its noise is as Theorem T3 demands (docs/theory.md).

    Attributes:
        gamma: inverse scale of the noise, per vote.
    """

    gamma: float
    parameters: ClassVar[tuple[Parameter, ...]] = (GAMMA,)
    bounds: ClassVar[tuple[str, ...]] = ("tight", "two_sided", "class_aware", "exact")

    def __post_init__(self) -> None:
        """Raises ValueError unless gamma is positive and finite."""
        check_positive("gamma", self.gamma)

    @classmethod
    def of_scale(cls, scale: float) -> Self:
        """Returns the mechanism with gamma = 1 / scale."""
        check_positive("scale", scale)
        return cls(1.0 / scale)

    @property
    def pure_epsilon(self) -> float:
        """2 gamma."""
        return 2.0 * self.gamma

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns D*(l) of 2 gamma (docs/theory.md, Proposition C2), [num_moments]."""
        return pure_alpha(self.pure_epsilon, moments)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns `cost_cap`."""
        return self.cost_cap(moments)

    def bound_costs(
        self, bound: str, q: FloatArray, u: FloatArray, moments: FloatArray
    ) -> FloatArray:
        """Returns the costs of Theorems T0 to T3, for q up to 1/(E+1), E = e^{2 gamma}."""
        costs = np.full((len(q), len(moments)), inf)
        applies = q <= 1.0 / (1.0 + exp(min(self.pure_epsilon, 700.0)))
        costs[applies] = pure_costs(bound, self.gamma, q[applies], u[applies], moments)
        return costs

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the laws at every neighbour, one column for each class."""
        outcomes = listed_outcomes(row, self.outcome_probabilities)
        return NeighbourLaws(outcomes, limit=self.pure_epsilon)

    def numbers(self) -> dict[str, float]:
        """Returns the fields, and the scale in votes."""
        return {**super().numbers(), "scale": 1.0 / self.gamma}

    def summary(self) -> str:
        """Returns name and parameters, such as `permute_and_flip, gamma 0.05 (scale 20 votes)`."""
        return f"{super().summary()} (scale {1.0 / self.gamma:g} votes)"
