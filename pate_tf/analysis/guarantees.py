"""How an analysis turns costs into an epsilon, and what it finds out, as values.

A roof room, without TensorFlow.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from pate_tf.accounting import composition, conversions, moments
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.divergences import FloatArray

MOST_MOMENTS = 4096  # more change no digit, and take minutes


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """How costs become an epsilon. Public.

    Attributes:
      delta: in (0, 1).
      num_moments: N for the moments 1, 2, ..., N of the paper. Default: the real grid
        `DEFAULT_MOMENTS`.
      conversion: "improved" or "classic".
      bounds: data-dependent bounds, each of which every mechanism must have; none for the
        data-independent epsilon alone. Default: those of `DEFAULT_BOUNDS` that every mechanism has.
      check_with_dp_accounting: whether dp-accounting computes the data-independent epsilon too.

    Raises:
      ValueError: if a number is out of range or a bound is unknown.
    """

    delta: float = 1e-5
    num_moments: int | None = None
    conversion: str = "improved"
    bounds: tuple[str, ...] | None = None
    check_with_dp_accounting: bool = False

    def __post_init__(self) -> None:
        conversions.check_delta(self.delta)
        if self.num_moments is not None and not 1 <= self.num_moments <= MOST_MOMENTS:
            raise ValueError(f"moments: expected from 1 to {MOST_MOMENTS}, got {self.num_moments}")
        for bound in self.bounds or ():
            if bound not in moments.BOUNDS:
                raise ValueError(f"bound: expected some of {list(moments.BOUNDS)}, got {bound!r}")

    @property
    def moments(self) -> FloatArray:
        """The moments, `[num_moments]`."""
        if self.num_moments is None:
            return moments.DEFAULT_MOMENTS
        return np.arange(1.0, self.num_moments + 1.0)

    def guarantee(self, alphas: FloatArray) -> "Guarantee":
        """Returns the least epsilon of costs `[num_moments]`."""
        return self._guarantee(
            *conversions.epsilon_from_alphas(
                alphas, self.moments, self.delta, conversion=self.conversion
            )
        )

    def composed(self, paid: Mapping[Charge, int]) -> "Guarantee":
        """Returns the least data-independent epsilon of charges, by moments."""
        return self._guarantee(
            *composition.moments_epsilon(
                paid, self.delta, conversion=self.conversion, moments=self.moments
            )
        )

    def _guarantee(self, epsilon: float, moment: float | None) -> "Guarantee":
        at_end = len(self.moments) > 1 and moment in (self.moments[0], self.moments[-1])
        return Guarantee(epsilon, moment, at_end=at_end and 0.0 < epsilon < math.inf)


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """One epsilon.

    Attributes:
      epsilon: at the delta of the analysis.
      moment: l, the Renyi order less one, that gave it; None where no moment did.
      at_end: whether that moment is the first or the last of the grid, so that others might give
        less.
    """

    epsilon: float
    moment: float | None = None
    at_end: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class DataDependentGuarantee(Guarantee):
    """SENSITIVE: an epsilon that depends on the votes. Its `repr` does not show it."""

    def __repr__(self) -> str:
        return "DataDependentGuarantee(<sensitive>)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the queries cost.

    Attributes:
      num_paid: public; what the queries were charged as, by mechanism.
      num_queries: public; how many queries were asked.
      num_answered: public; how many labels left.
      config: public.
      data_independent: publishable; by kind of accounting: see `data_independent_guarantees`.
      bounds: SENSITIVE; by bound. Empty where votes are missing.
      smooth_sensitivity: SENSITIVE; U_beta of the total cost by moment, natural logarithm, or None
        if it was not asked for.
      smooth_bound: the bound whose cost it is about.
    """

    num_paid: Mapping[Charge, int]
    num_queries: int
    num_answered: int
    config: AnalysisConfig
    data_independent: Mapping[str, Guarantee]
    bounds: Mapping[str, Guarantee] = dataclasses.field(repr=False)
    smooth_sensitivity: Mapping[float, float] | None = dataclasses.field(default=None, repr=False)
    smooth_bound: str | None = None

    @property
    def best_data_independent(self) -> Guarantee:
        """The least rigorous one, releases included: the paper's strong composition is not."""
        if "with_releases" in self.data_independent:
            return self.data_independent["with_releases"]
        rigorous = [
            guarantee
            for kind, guarantee in self.data_independent.items()
            if kind not in ("strong_composition", "dp_accounting")
        ]
        return min(rigorous, key=lambda guarantee: guarantee.epsilon)

    @property
    def best_bound(self) -> Guarantee | None:
        """SENSITIVE; the tightest of `bounds`."""
        return min(self.bounds.values(), key=lambda found: found.epsilon, default=None)
