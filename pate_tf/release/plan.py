"""Which labels are released, planned from public values before a ledger is opened.

TensorFlow is imported where a representation is looked up, alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pate_tf.accounting import planning
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.charges import PlannedRelease
from pate_tf.accounting.composition import check_pure
from pate_tf.accounting.conversions import DELTA
from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism, StabilityGateOrHistogram
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.mechanisms.charged_once import MOST_ROUNDS
from pate_tf.accounting.planning import DEFAULT_MARGIN, METHODS, planned_sums, profile_counts
from pate_tf.core import validation
from pate_tf.core.public import Pool
from pate_tf.core.validation import Settings, setting
from pate_tf.data.named_function import Named
from pate_tf.models import closed_form
from pate_tf.queries.labels import QueryConfig
from pate_tf.queries.strategies import AUTO, STRATEGIES, find_strategy
from pate_tf.release.noise import check_drawable
from pate_tf.teachers.voters import Voter

if TYPE_CHECKING:
    from pate_tf.release.feature_sums import FeatureSums, LabelSource

DEFAULT_NUM_QUERIES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSettings(Settings):
    """Which labels are released. Public; `Labeller.plan` completes it.

    Either `epsilon` is given, and a plan that reads no private value finds the noise; or
    `mechanism` is a mechanism with its noise. How queries are chosen is as `QueryConfig` has it;
    None for the planned value, or for what suits the mechanism.
    """

    method: str = setting(
        "pate",
        group="method",
        choices=METHODS,
        help="pate: noisy labels of queries that teachers vote on. feature_sums: noisy sums of "
        "each class's clipped feature vectors, from which all of the pool gets labels.",
    )
    epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Epsilon of this release at --delta, in the worst case. Mechanism, noise and number "
        "of queries are planned from public values; with --mechanism, noise and number alone.",
    )
    mechanism: Mechanism | type[Mechanism] | None = None
    num_queries: int | None = None
    strategy: str | None = None  # None: `strategies.recommended`
    num_neighbours: int | None = None
    rounds: int | None = None
    num_rounds: int | None = setting(
        None,
        group="privacy",
        least=1,
        most=MOST_ROUNDS,
        advanced=True,
        help="With --method=feature_sums: how many rounds of sums are released within --epsilon, "
        "each later one of what a linear model of the earlier ones misses. Default: planned.",
    )
    seed: int = 0
    representation: Named | None = None
    margin: float = setting(
        DEFAULT_MARGIN,
        group="privacy",
        above=0.0,
        most=1.0,
        advanced=True,
        help="With --epsilon: the vote margin that the plan assumes of every query, as a fraction "
        "of the teachers; never measured on the votes.",
    )
    insecure_seed: int | None = setting(
        None,
        group="privacy",
        least=0,
        advanced=True,
        help="Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is "
        "private then; ledger and statement say so forever.",
    )
    accept_forecast: bool = setting(False, group="privacy", **planning.ACCEPT_FORECAST)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == AUTO:
            object.__setattr__(self, "strategy", None)
        has_noise = self.mechanism is not None and not isinstance(self.mechanism, type)
        if self.method == "pate" and (self.epsilon is None) != has_noise:
            got = "both" if has_noise else "neither"
            raise ValueError(
                f"epsilon: expected a number, or a mechanism with its noise, got {got}"
            )
        if self.method == "pate" and self.num_rounds is not None:
            raise ValueError(
                f"num_rounds: expected none with method pate, got {self.num_rounds}; method "
                f"feature_sums takes it"
            )
        if self.method == "feature_sums" and self.epsilon is None:
            raise ValueError(
                "epsilon: expected a number with method feature_sums, which its noise follows "
                "from, got none"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """What all labels of an ensemble may cost together. Public."""

    delta: float | None = setting(None, group="privacy", **DELTA)
    epsilon_budget: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="The most that all releases from these teachers may ever cost, as epsilon at --delta; "
        "fixed at first use. Default: no limit.",
    )
    replace_budget: bool = setting(
        False,
        group="privacy",
        flag="new_budget_i_understand",
        advanced=True,
        help="Replace the budget by --epsilon_budget and --delta, both of which must be given. The "
        "ledger and every later statement say so forever.",
    )
    acknowledge_reset: bool = setting(
        False,
        group="privacy",
        flag="reset_ledger_i_understand",
        advanced=True,
        help="Continue although the ledger, or rows of it, are gone. Their known cost is charged "
        "again. The ledger and every later statement say so forever.",
    )
    planned_release: str | None = setting(
        None,
        group="privacy",
        choices=("sanitised", "smooth_sensitivity"),
        advanced=True,
        help="How analysis.py will release the data-dependent cost, if ever; fixed at first use, "
        "before there are votes. Default: sanitised.",
    )
    planned: PlannedRelease | None = None  # default: what `planned_release` says

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.planned_release is not None:
            is_smooth = self.planned_release == "smooth_sensitivity"
            planned = PlannedRelease(release="smooth_sensitivity" if is_smooth else "log_cost")
            object.__setattr__(self, "planned", planned)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelPlan:
    """What is released, and why; made by `Labeller.plan`. Public.

    Attributes:
        mechanism: draws the noise and accounts for it.
        queries: which inputs of the pool, and how they are chosen.
        reason: how mechanism and noise were chosen, for every statement; None if they were given.
        description: the comparison that it was chosen from, as text; empty if there was none.
        forecast: expected accuracy of the labels; None if there is no forecast.
    """

    mechanism: Mechanism
    queries: QueryConfig
    reason: str | None = None
    description: str = ""
    forecast: planning.Forecast | None = None

    def __str__(self) -> str:
        number, strategy = self.queries.num_queries, self.queries.strategy
        return self.description or f"{self.mechanism.summary()}, {number} queries by {strategy}"


def of_other_data(source: LabelSource, pool: Pool) -> ValueError:
    """Returns the refusal of teachers or feature sums of another data set than a pool's."""
    what = "feature sums" if source.num_teachers is None else "teachers"
    return ValueError(
        f"{what}: expected those for {pool.dataset.name}, got those for "
        f"{source.dataset.name}: {source.dataset.difference(pool.dataset)}"
    )


def plan_release(
    settings: LabelSettings, source: LabelSource, pool: Pool, *, delta: float
) -> LabelPlan:
    """Plans within the epsilon of settings. Reads no votes and no records.

    Args:
        settings: as the user gave them, with an epsilon.
        source: teachers that vote, or feature sums.
        pool: that queries are chosen from.
        delta: what epsilon holds at.

    Raises:
        ForecastError: if labels are not expected to be worth their cost, unless it is accepted.
        ValueError: if settings, pool and source don't fit each other.
    """
    if isinstance(source, Voter):
        plan = _plan_of_votes(settings, source, pool, delta=delta)
        check_answers(plan.mechanism, delta)
    else:
        plan = _plan_of_sums(settings, source, pool, delta=delta)
    if plan.forecast is not None and not settings.accept_forecast:
        plan.forecast.check(pool.majority_share)
    return plan


def check_answers(mechanism: Mechanism, delta: float) -> None:
    """Checks that a mechanism can answer queries with method pate, with a guarantee at delta.

    Raises:
        ValueError: if it can't.
    """
    if mechanism.releases_feature_sums:
        raise ValueError(
            f"mechanism: expected one that answers queries with method pate, got {mechanism.name}; "
            f"it belongs to method feature_sums"
        )
    check_drawable(mechanism)
    if not delta:
        check_pure(mechanism)


def default_representation(source: LabelSource, strategy: str) -> Named | None:
    """Returns the source's representation, where queries are chosen by it; else None."""
    from pate_tf.representations import catalogue

    if isinstance(source, Voter) and not STRATEGIES[strategy].uses_representation:
        return None
    representation = source.representation
    # A function that was given by value has no name that this process could find it by.
    has_name = isinstance(representation, str) and ":" in representation
    is_found = representation is not None and (has_name or catalogue.is_known(representation))
    return representation if is_found else None


def _queries(
    settings: LabelSettings, source: LabelSource, num_queries: int, strategy: str
) -> QueryConfig:
    validation.one_of(STRATEGIES, strategy=strategy)
    return QueryConfig(
        strategy=strategy,
        num_queries=num_queries,
        rounds=settings.rounds,
        seed=settings.seed,
        representation=settings.representation or default_representation(source, strategy),
        num_neighbours=settings.num_neighbours,
    )


# Plans of votes within an epsilon.
#
# Where teachers are linear on features of the pool, and a student learns from the whole pool, the
# noisy counts of all queries together say more of the pool than labels of few of them
# (`pate_tf.representations.regression`). So there are many queries, each with more noise. Where
# that noise is heavy, labels without any come first: of medoids, on which teachers may all agree.

QUERIES_OF_CLASS: Final = 20
GATED_OF_CLASS: Final = 10
# Standard deviation of the noise, over the teachers: above the first, counts say too little and
# other mechanisms are compared; below the second, counts say nearly as much as labels without
# noise, and the gate is not worth its fraction of epsilon.
MOST_RELATIVE_NOISE: Final = 1 / 2
LEAST_RELATIVE_NOISE: Final = 1 / 10
TOGETHER: Final = (
    "What a student learns is computed from all counts together. So single labels need not be "
    "right: of teachers that are linear on features of the pool, more inputs with more noise say "
    "more than few with little."
)
WITHOUT_NOISE: Final = (
    "Labels are released without noise if teachers agree on all of these queries, which are "
    f"medoids of dense clusters; else all noisy counts are. {TOGETHER}"
)
ALL_COUNTS: Final = f"All noisy counts are released, of one input of each cluster. {TOGETHER}"


def joint_plan(
    settings: LabelSettings, target: Target, *, num_teachers: int, num_classes: int, pool_size: int
) -> dict[str, Any] | None:
    """Returns which noisy counts are released to be learned from together; None for none.

    Mechanism, number of queries, strategy and purpose, as arguments of `planning.plan`.

    There are none at delta 0, where noise would exceed half of the teachers, there are too many
    queries, or a mechanism is named that does not release all counts.

    Args:
        settings: a mechanism, number of queries or strategy that was named is taken.
        target: what they may cost; its own number of queries is not read.
        num_teachers: that vote.
        num_classes: that they choose from.
        pool_size: the most that can be asked.
    """
    from pate_tf.representations.regression import MOST_QUERIES

    kind, strategy = settings.mechanism, settings.strategy

    def number(of_class: int) -> int:
        most = min(of_class * num_classes, pool_size, MOST_QUERIES)
        return most if settings.num_queries is None else settings.num_queries

    def relative_noise(mechanism: type[Mechanism], num_queries: int) -> float:
        planned = dataclasses.replace(target, num_queries=num_queries)
        assumed = profile_counts(num_teachers, num_classes, DEFAULT_MARGIN)
        return mechanism.for_target(planned, assumed).noise_scales["sigma"] / num_teachers

    most = number(QUERIES_OF_CLASS)
    if kind not in (None, GaussianHistogram) or not target.delta or most > MOST_QUERIES:
        return None
    plans = list[tuple[type[Mechanism], int, str, str]]()
    if (
        kind is None
        and strategy in (None, "medoids")
        and relative_noise(GaussianHistogram, number(GATED_OF_CLASS)) > LEAST_RELATIVE_NOISE
    ):
        gated = number(GATED_OF_CLASS)
        plans.append((StabilityGateOrHistogram, gated, "medoids", WITHOUT_NOISE))
    if strategy in (None, "diverse"):
        plans.append((GaussianHistogram, most, "diverse", ALL_COUNTS))
    for plan in plans:
        with contextlib.suppress(ValueError):  # too few teachers for it
            if relative_noise(*plan[:2]) <= MOST_RELATIVE_NOISE:
                names = ("mechanism", "num_queries", "strategy", "purpose")
                return dict(zip(names, plan, strict=True))
    return None


def _plan_of_votes(
    settings: LabelSettings, teachers: Voter, pool: Pool, *, delta: float
) -> LabelPlan:
    """Returns the best plan of votes within an epsilon, or that of the mechanism named."""
    from pate_tf.release.pseudo_labels import accuracy_without_noise, may_agree

    target = Target(epsilon=settings.epsilon or 0.0, delta=delta, num_queries=1, unit=teachers.unit)
    size: dict[str, Any] = {
        "num_teachers": teachers.num_teachers,
        "num_classes": pool.dataset.num_classes,
        "pool_size": len(pool),
    }
    config, joint = teachers.config, None
    if config is not None and config.model == closed_form.RIDGE and config.representation:
        from pate_tf.representations.catalogue import IMAGES, KINDS, joined_names

        kinds = [KINDS.get(name) for name in joined_names(config.representation)]
        are_of_images = all(kind is not None and kind.data_kinds == IMAGES for kind in kinds)
        if are_of_images and pool.dataset.augmentation != "none":
            joint = joint_plan(settings, target, **size)
    kind = settings.mechanism if isinstance(settings.mechanism, type) else None
    plan = planning.plan(
        target.epsilon,
        delta=delta,
        unit=teachers.unit,
        margin=settings.margin,
        may_agree=may_agree(pool),
        adaptive=settings.strategy is not None and find_strategy(settings.strategy).is_adaptive,
        **size,
        **(joint or {"num_queries": settings.num_queries, "mechanism": kind}),
    )
    strategy, forecast = settings.strategy or plan.settings.strategy, None
    if joint is None:  # of counts that are learned from together no single label matters
        forecast = plan.forecast(planning.PATE, measured=accuracy_without_noise(pool))
    return LabelPlan(
        mechanism=plan.mechanism,
        queries=_queries(settings, teachers, plan.num_queries, strategy),
        reason=f"{plan.reason} {planning.compared_in_words(pool.majority_share)}",
        description=plan.in_words(of_votes=True),
        forecast=forecast,
    )


def _plan_of_sums(
    settings: LabelSettings, sums: FeatureSums, pool: Pool, *, delta: float
) -> LabelPlan:
    """Returns the plan of feature sums: the least noise within epsilon."""
    for name in ("mechanism", "num_queries", "strategy", "rounds", "num_neighbours"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name}: expected none with method feature_sums, which labels all of the pool "
                f"and asks no teacher, got one; method pate takes it"
            )
    target = Target(epsilon=settings.epsilon or 0.0, delta=delta, num_queries=1, unit=sums.unit)
    # The number of records is private where owners are protected.
    number = sums.num_records if sums.unit == "record" else None
    num_rounds = settings.num_rounds
    if (num_rounds or 1) > 1 and not sums.has_vectors:
        raise ValueError(
            f"num_rounds: expected 1 for these sums, got {num_rounds}: later rounds read vectors "
            f"of single records, which are stored neither for owners nor by Beam "
            f"nor without a pool"
        )
    if num_rounds is None and not sums.has_vectors:
        num_rounds = 1
    mechanism = planned_sums(
        target,
        number,
        pool.dataset.num_classes,
        list(sums.cluster_counts) if pool.dataset.augmentation != "none" else (),
        num_rounds,
        # A trial says more than the ratio of records to noise.
        accept_forecast=settings.accept_forecast or sums.forecast is not None,
        has_pool=len(pool) > 0,
    )
    check_drawable(mechanism)
    sigma = mechanism.standard_deviation
    is_pure = mechanism.pure_epsilon is not None
    reason = (
        f"Noise was chosen from a plan, not from private data: the least for epsilon "
        f"{target.epsilon:g} at delta {0.0 if is_pure else delta:g}. No teacher was asked."
    )
    in_rounds, forecast = "", sums.forecast
    if mechanism.num_rounds > 1:
        in_rounds = f" in {mechanism.num_rounds} rounds,"
        reason += f" Sums are released in {mechanism.num_rounds} rounds, charged together."
    if number is not None:
        of_class = number / pool.dataset.num_classes
        reason += (
            f" With balanced classes, there are about {of_class:,.0f} records per class: "
            f"{of_class / sigma:,.1f} standard deviations of the noise."
        )
        stated = planning.PlanSettings(
            epsilon=target.epsilon,
            delta=delta,
            num_classes=pool.dataset.num_classes,
            num_records=number,
            pool_size=len(pool) or number,  # without a pool, as if it were as large
            num_teachers=1,
        )
        candidate = planning.sums_candidate(stated, mechanism)
        width = len(sums.summands.scale)
        forecast = forecast or planning.forecast_of_sums(candidate, stated, width)
        if not pool and of_class < sigma * width**0.5:  # more noise than the longest sum of a class
            forecast = forecast._replace(is_noise=True)
    expected = ""
    if forecast is not None and pool:
        expected = f" Expected: {forecast.in_words(pool.majority_share)}"
    return LabelPlan(
        mechanism=mechanism,
        queries=_queries(settings, sums, len(pool), "first"),
        reason=reason,
        description=(
            f"Plan for epsilon {target.epsilon:g} at delta {0.0 if is_pure else delta:g}, for "
            f"every {target.unit}: {mechanism.released_in_words},{in_rounds} with noise of "
            f"{rounded_up(sigma)} on each number. "
            + (
                f"All {len(pool):,} inputs of the pool get labels that are computed from them."
                if pool
                else "A linear model follows from them; there are no public inputs."
            )
            + expected
        ),
        forecast=forecast,
    )
