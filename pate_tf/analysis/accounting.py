"""What answered queries cost, by every kind of accounting.

A roof room, without TensorFlow.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pate_tf.accounting import conversions, moments
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms import Mechanism, PureNoisyMax
from pate_tf.accounting.plan import ReleasePlan
from pate_tf.accounting.smooth_sensitivity import BOUNDS as SMOOTH_BOUNDS
from pate_tf.accounting.smooth_sensitivity import smooth_sensitivity
from pate_tf.analysis.outside_check import epsilon_by_dp_accounting
from pate_tf.analysis.votes import AnsweredVotes, VoteSource, check_totals

DEFAULT_BOUNDS = ("paper", "two_sided", "class_aware")
NUM_SMOOTH_MOMENTS = 8

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """How costs become an epsilon. Public.

    Attributes:
      delta: in (0, 1).
      num_moments: N for the moments 1, 2, ..., N of the paper. Default: the real grid
        `DEFAULT_MOMENTS`.
      conversion: "improved" or "classic".
      bounds: data-dependent bounds, each of which every mechanism must have. Default: those of
        `DEFAULT_BOUNDS` that every mechanism has.
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
        if self.num_moments is not None and self.num_moments < 1:
            raise ValueError(f"moments: expected at least 1, got {self.num_moments}")
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
        grid = self.moments
        epsilon, moment = conversions.epsilon_from_alphas(
            alphas, grid, self.delta, conversion=self.conversion
        )
        at_end = len(grid) > 1 and moment in (grid[0], grid[-1])
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """What the queries cost.

    Attributes:
      num_paid: public; how many queries were asked, by mechanism.
      config: public.
      data_independent: publishable; by kind of accounting: see `data_independent_guarantees`.
      bounds: SENSITIVE; by bound. Empty where votes are missing.
      smooth_sensitivity: SENSITIVE; U_beta of the total cost by moment, natural logarithm, or None
        if it was not asked for.
      smooth_bound: the bound whose cost it is about.
    """

    num_paid: Mapping[Mechanism, int]
    config: AnalysisConfig
    data_independent: Mapping[str, Guarantee]
    bounds: Mapping[str, Guarantee] = dataclasses.field(repr=False)
    smooth_sensitivity: Mapping[float, float] | None = dataclasses.field(default=None, repr=False)
    smooth_bound: str | None = None

    @property
    def num_queries(self) -> int:
        """How many queries were asked."""
        return sum(self.num_paid.values())

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


def data_independent_guarantees(
    num_paid: Mapping[Mechanism, int],
    config: AnalysisConfig,
    releases: Mapping[ReleasePlan, int] | None = None,
) -> dict[str, Guarantee]:
    """Returns what queries cost whatever the votes, both directions, by kind of accounting.

    `moments_theorem_2`: Theorem 2 of Papernot et al. 2017, for mechanisms with a gamma.
    `tight_moments`: the mechanism's own moments (D* of privacy.md, section 1).
    `composition`: the tightest known composition of one mechanism; left out for a mixture.
    `strong_composition`: what the paper compares itself with, for mechanisms of one gamma.
    `dp_accounting`: that library's, if the configuration asks for it.
    `with_releases`: of queries and `releases` together, if there were any.
    """
    grid, found = config.moments, {}
    paid = {mechanism: queries for mechanism, queries in num_paid.items() if queries}
    gammas = [mechanism.gamma for mechanism in paid if isinstance(mechanism, PureNoisyMax)]
    if len(gammas) == len(paid):
        theorem_2 = sum(
            (
                queries * moments.paper_alpha(gamma, grid)
                for gamma, queries in zip(gammas, paid.values(), strict=True)
            ),
            np.zeros_like(grid),
        )
        found["moments_theorem_2"] = config.guarantee(theorem_2)
    tight = np.zeros_like(grid)
    for mechanism, queries in paid.items():
        tight = tight + mechanism.data_independent_alpha(grid, num_queries=queries)
    found["tight_moments"] = config.guarantee(tight)
    if releases:
        drawn = sum(number * plan.release_alphas(grid) for plan, number in releases.items())
        found["with_releases"] = config.guarantee(tight + drawn)
    if len(paid) == 1:
        ((mechanism, queries),) = paid.items()
        epsilon, moment = mechanism.data_independent_epsilon(
            num_queries=queries, delta=config.delta
        )
        found["composition"] = Guarantee(epsilon, moment)
    if paid and len(gammas) == len(paid) and len(set(gammas)) == 1:
        found["strong_composition"] = Guarantee(
            conversions.strong_composition_epsilon(gammas[0], sum(paid.values()), config.delta)
        )
    if config.check_with_dp_accounting:
        found["dp_accounting"] = Guarantee(epsilon_by_dp_accounting(paid, config.delta))
    return found


def chosen_bounds(groups: Sequence[AnsweredVotes], config: AnalysisConfig) -> tuple[str, ...]:
    """Returns the bounds to compute.

    Raises:
      ValueError: if a bound that was asked for is lacked by a mechanism.
    """
    for bound in config.bounds or ():
        for group in groups:
            if bound not in group.mechanism.bounds:
                raise ValueError(
                    f"bound: expected some of {list(group.mechanism.bounds)} for "
                    f"{group.mechanism.name}, got {bound!r}"
                )
    if config.bounds is not None:
        return config.bounds
    return tuple(
        bound
        for bound in DEFAULT_BOUNDS
        if all(bound in group.mechanism.bounds for group in groups)
    )


def bound_alphas(
    groups: Sequence[AnsweredVotes],
    bound: str,
    grid: FloatArray,
    progress: Progress | None = None,
) -> FloatArray:
    """Returns the total cost at the true votes, `[num_moments]`. Sensitive."""
    total = np.zeros_like(grid)
    for group in groups:
        total = total + moments.data_dependent_alphas(
            group.counts.values,
            group.mechanism,
            grid,
            bound=bound,
            num_unanswered=group.num_unanswered,
            progress=progress,
        )
    return total


def analyse(
    source: VoteSource, config: AnalysisConfig, *, progress: Progress | None = None
) -> Analysis:
    """Returns what the queries of `source` cost.

    Args:
      source: votes, and how many queries were paid for.
      config: how costs become an epsilon.
      progress: called with (histograms done, histograms in all) while the bound `exact` runs.

    Raises:
      ValueError: if a mechanism lacks a bound that was asked for.
    """
    groups = source.groups or ()
    return Analysis(
        num_paid=source.num_paid,
        config=config,
        data_independent=data_independent_guarantees(source.num_paid, config, source.releases),
        bounds={
            bound: config.guarantee(bound_alphas(groups, bound, config.moments, progress))
            for bound in (chosen_bounds(groups, config) if groups else ())
        },
    )


def with_smooth_sensitivity(analysis: Analysis, source: VoteSource, *, beta: float) -> Analysis:
    """Adds the smooth sensitivity of the cost (privacy.md, Theorem A), at a few moments.

    At all moments asked for with `num_moments`, else at `NUM_SMOOTH_MOMENTS` of the grid from 1 to
    32; for the first bound of the analysis that has one.

    Raises:
      ValueError: if there is not one mechanism with votes, or no bound has a smooth sensitivity.
    """
    group = single_group(source)
    usable = [bound for bound in analysis.bounds if bound in SMOOTH_BOUNDS]
    bound = "two_sided" if "two_sided" in usable or not usable else usable[0]
    if analysis.config.num_moments is None:
        grid = np.geomspace(1.0, 32.0, NUM_SMOOTH_MOMENTS)
    else:
        grid = analysis.config.moments
    values = {
        float(moment): smooth_sensitivity(
            group.counts.values, group.mechanism, moment=float(moment), beta=beta, bound=bound
        )
        for moment in grid
    }
    return dataclasses.replace(analysis, smooth_sensitivity=values, smooth_bound=bound)


def single_group(source: VoteSource) -> AnsweredVotes:
    """Returns the votes of a source with one mechanism and one ensemble.

    Raises:
      ValueError: if there are none, or several mechanisms answered, or teachers differ in number.
    """
    if not source.groups:
        raise ValueError(
            "release: expected answered queries with their votes, chosen without looking at noisy "
            "labels, got others or none"
        )
    if len(source.groups) > 1:
        names = sorted({group.mechanism.name for group in source.groups})
        raise ValueError(
            f"release: expected one mechanism, got {len(source.groups)} ({', '.join(names)}); "
            f"account for them data-independently"
        )
    (group,) = source.groups
    check_totals(group.counts.values)
    if not group.counts.num_queries:
        raise ValueError("release: expected answered queries with their votes, got none")
    return group
