"""What answered queries cost, by every kind of accounting. TensorFlow is not imported."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pate_tf.accounting import composition, conversions, moments
from pate_tf.accounting.charge import Charge, lacking
from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.cost_release import SMOOTH_BOUNDS
from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.analysis.smooth_sensitivity import smooth_sensitivity
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core.settings import Settings, setting

MOST_MOMENTS = 4096  # more change no digit, and take minutes


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig(Settings):
    """How costs become an epsilon. Public."""

    delta: float = setting(DEFAULT_DELTA, least=0.0, below=1.0, help="Delta of every epsilon.")
    conversion: str = setting(
        "improved",
        choices=("improved", "classic"),
        advanced=True,
        help="From moments to epsilon, natural logarithm: improved (Balle et al. 2020) or classic "
        "(Abadi et al. 2016).",
    )
    num_moments: int | None = setting(
        None,
        flag="moments",
        least=1,
        most=MOST_MOMENTS,
        advanced=True,
        help="N: the moments are 1, 2, ..., N, as in the paper (its N is 8). Default: real "
        f"moments, log-spaced from {moments.DEFAULT_MOMENTS[0]:g} to "
        f"{moments.DEFAULT_MOMENTS[-1]:g}. A moment is the Renyi order less one.",
    )
    bounds: tuple[str, ...] | None = setting(
        None,
        flag="bound",
        help="Data-dependent bounds, of paper (forward), tight (forward), two_sided, class_aware "
        "and exact (slow); every mechanism must have them. Default: those of paper, two_sided and "
        "class_aware that it has. SENSITIVE.",
    )
    check_with_dp_accounting: bool = setting(
        False,
        advanced=True,
        help="Also compute the data-independent epsilon with the package dp-accounting, by "
        "privacy-loss distributions.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for bound in self.bounds or ():
            if bound not in moments.BOUNDS:
                raise ValueError(f"bounds: expected some of {list(moments.BOUNDS)}, got {bound!r}")

    @property
    def moments(self) -> FloatArray:
        """The moments, `[num_moments]`."""
        if self.num_moments is None:
            return moments.DEFAULT_MOMENTS
        return np.arange(1.0, self.num_moments + 1.0)

    def guarantee(self, alphas: FloatArray) -> "Guarantee":
        """Returns the least epsilon of costs `[num_moments]`."""
        epsilon, moment = conversions.epsilon_from_alphas(
            alphas, self.moments, self.delta, conversion=self.conversion
        )
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
        num_charged: public; what the queries were charged as, by mechanism.
        num_queries: public; how many queries were asked.
        num_answered: public; how many labels were released.
        config: public.
        data_independent: publishable; of everything charged, both directions, whatever the data.
        labels_alone: publishable; the same of the labels, where more than labels was charged.
        by_dp_accounting: publishable; that library's bound of the labels, if it was asked for.
        bounds: SENSITIVE; by bound. Empty where votes are missing.
        smooth_sensitivity: SENSITIVE; U_beta of the total cost by moment, natural logarithm, or
            None if it was not asked for.
        smooth_bound: the bound whose cost it is about.
    """

    num_charged: Mapping[Charge, int]
    num_queries: int
    num_answered: int
    config: AnalysisConfig
    data_independent: Guarantee
    labels_alone: Guarantee | None = None
    by_dp_accounting: Guarantee | None = None
    bounds: Mapping[str, Guarantee] = dataclasses.field(repr=False, default_factory=dict)
    smooth_sensitivity: Mapping[float, float] | None = dataclasses.field(default=None, repr=False)
    smooth_bound: str | None = None

    def with_releases(self, releases: Mapping[Charge, int]) -> "Analysis":
        """Returns the analysis of the same labels with all `releases` that were charged."""
        labels, everything = (
            Guarantee(*composition.smallest_epsilon(charges, self.config.delta))
            for charges in (self.num_charged, {**self.num_charged, **releases})
        )
        return dataclasses.replace(
            self, data_independent=everything, labels_alone=labels if releases else None
        )

    @property
    def best_bound(self) -> Guarantee | None:
        """SENSITIVE; the tightest of `bounds`."""
        return min(self.bounds.values(), key=lambda found: found.epsilon, default=None)


# The data-independent epsilon once more, by another library: Google's dp-accounting.


def epsilon_by_dp_accounting(charges: Mapping[Charge, int], delta: float) -> float:
    """Returns the epsilon of privacy-loss distributions that dominate charges.

    What is epsilon-private is dominated by randomised response with that epsilon (Kairouz, Oh and
    Viswanath 2015), what has `noise_multipliers` by those Gaussian mechanisms.

    Args:
        charges: how many of each.
        delta: in [0, 1).

    Raises:
        ValueError: if dp-accounting is missing, or nothing is known that dominates a charge.
    """
    try:
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as distributions
    except ImportError as error:
        raise ValueError(
            "check_with_dp_accounting: expected the package dp-accounting, got none; "
            "pip install 'pate_tf[accounting]'"
        ) from error

    def of_one(charge: Charge) -> list[Any]:
        found = [distributions.from_gaussian_mechanism(one) for one in charge.noise_multipliers]
        if not found and charge.pure_epsilon is not None:
            flip = 2.0 / (1.0 + math.exp(charge.pure_epsilon))
            found = [distributions.from_randomized_response(flip, num_buckets=2)]
        if charge.approximate is not None:
            parameters = common.DifferentialPrivacyParameters(*charge.approximate)
            found.append(distributions.from_privacy_parameters(parameters))
        if not found:
            raise lacking(charge, "noise that dp-accounting knows", "dp event")
        return found

    total = None
    for charge, number in charges.items():
        if number:
            for single in of_one(charge):
                several = single.self_compose(number)
                total = several if total is None else total.compose(several)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


DEFAULT_BOUNDS = ("paper", "two_sided", "class_aware")
NUM_SMOOTH_MOMENTS = 8

Progress = Callable[[int, int], None]


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
        source: votes, and how many queries were charged.
        config: how costs become an epsilon.
        progress: called with (histograms done, histograms in all) while the bound `exact` runs.

    Raises:
        ValueError: if a mechanism lacks a bound that was asked for.
    """
    groups = source.groups or ()
    checked = None
    if config.check_with_dp_accounting:
        checked = Guarantee(epsilon_by_dp_accounting(source.num_charged, config.delta))
    analysis = Analysis(
        num_charged=source.num_charged,
        num_queries=source.num_queries,
        num_answered=source.num_queries if source.num_answered is None else source.num_answered,
        config=config,
        data_independent=Guarantee(0.0),
        by_dp_accounting=checked,
        bounds={
            bound: DataDependentGuarantee(
                **vars(config.guarantee(bound_alphas(groups, bound, config.moments, progress)))
            )
            for bound in (chosen_bounds(groups, config) if groups else ())
        },
    )
    return analysis.with_releases(source.releases)


def with_smooth_sensitivity(analysis: Analysis, source: VoteSource, *, beta: float) -> Analysis:
    """Adds the smooth sensitivity of the cost (docs/proofs/theory.md, Theorem A), at a few moments.

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
    group.counts.check_totals()
    if not group.counts.num_queries:
        raise ValueError("release: expected answered queries with their votes, got none")
    return group
