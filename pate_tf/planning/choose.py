"""One decision: which method, mechanism and noise, from public values, before anything is charged.

`choose` is called once per run. It compares both methods where the person named none, plans the
least noise within epsilon, tries representations on labeled public samples, names the student that
fits, and refuses labels that are not expected to be worth their cost.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from pate_tf.accounting.charge import profile_counts
from pate_tf.accounting.composition import check_pure
from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism
from pate_tf.core import checks
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.models.ridge import RIDGE
from pate_tf.planning.comparison import ALWAYS_CHOSEN, Plan, PlanSettings, compared
from pate_tf.planning.forecast import ENCODER_HELPS, TEXT_ENCODER_HELPS, compared_in_words
from pate_tf.planning.plan_of_sums import FEWEST_LABELED, SumsOption, accuracy_without_noise
from pate_tf.planning.release_settings import (
    AUTO,
    DEFAULT_MARGIN,
    FEATURE_SUMS,
    PATE,
    Electorate,
    Known,
    ReleasePlan,
    ReleaseSettings,
)
from pate_tf.postprocessing.regression import MOST_QUERIES
from pate_tf.queries.strategies import STRATEGIES, QueryConfig, check_queries, recommended
from pate_tf.release.noise import check_drawable
from pate_tf.release.votes import check_sums
from pate_tf.representations.catalogue import (
    IMAGES,
    KINDS,
    default_of_teachers,
    is_known,
    joined_names,
)
from pate_tf.students.student_kinds import fitting
from pate_tf.teachers.run_folder import recommended_num_teachers

DEFAULT_NUM_QUERIES = 100
SMALL_SIDE = 32  # pixels; of larger photographs the pool alone teaches little


def choose(known: Known, settings: ReleaseSettings, reporting: Reporting = QUIET) -> ReleasePlan:
    """Returns what is released: method, mechanism with its noise, queries, and why.

    Args:
        known: of the data. No private value is in it.
        settings: what the person decided. What is None follows from public values.
        reporting: how progress is shown.

    Raises:
        ForecastError: if labels are not expected to be worth their cost, unless that is accepted.
        ValueError: if settings and data do not fit each other.
    """
    if settings.queries.strategy == AUTO:
        queries = dataclasses.replace(settings.queries, strategy=None)
        settings = dataclasses.replace(settings, queries=queries)
    method = _named_method(known, settings)
    if method == PATE and known.pool.dataset.target != CLASS:
        plan = _plan_of_predictions(settings, _voters(known, settings), known)
    elif settings.budget.epsilon is None:
        plan = _plan_of_given_noise(settings, _voters(known, settings), known)
    elif method == FEATURE_SUMS:
        plan = SumsOption(known, settings, reporting).plan()
    elif method == PATE:
        voters = _voters(known, settings)
        plan = _plan_of_votes(settings, voters, known, stated_of_votes(settings, voters, known))
    else:
        plan = _better_of_both(known, settings, reporting)
    dataset = known.pool.dataset
    features = plan.representation if plan.voters is None else plan.voters.representation
    # Sums of single records give weights of a linear model; counts in clusters, votes and sums of
    # owners do not.
    has_linear_model = known.unit == "record" and getattr(plan.mechanism, "num_clusters", 0) is None
    label_accuracy = None
    trains_on_labels = settings.trains_on_labels(known.pool, plan.method, settings.num_rounds)
    # A network learns from the public labels of images; their linear model does not.
    if (
        not trains_on_labels
        and has_linear_model
        and plan.forecast is not None
        and plan.forecast.is_measured
    ):
        label_accuracy = plan.forecast.accuracy
    student, fits = fitting(
        dataset,
        of_sums=plan.method == FEATURE_SUMS,
        has_pool=len(known.pool) > 0,
        is_frozen=features is not None and not is_known(features),
        num_rounds=getattr(plan.mechanism, "num_rounds", 1),
        label_accuracy=label_accuracy,
    )
    choices = [f"The student that fits: {student}, {fits}."]
    if settings.budget.epsilon is not None:
        is_large = dataset.has_colors and max(dataset.input_shape[:2]) > SMALL_SIDE
        helps = {"text": TEXT_ENCODER_HELPS, "image": ENCODER_HELPS if is_large else ""}
        advice = "" if settings.queries.representation else helps.get(dataset.kind, "")
        chosen_by = "chosen from public values" if settings.method == AUTO else "as you asked"
        choices = [f"Method {plan.method}, {chosen_by}.", *filter(None, [advice]), *choices]
    if trains_on_labels:
        number = known.pool.num_labeled
        used = f"The student also learned from {number:,} public labels, which cost no privacy."
        plan = dataclasses.replace(plan, reason=" ".join(filter(None, [plan.reason, used])))
    plan = dataclasses.replace(
        plan,
        student=student,
        trains_on_labels=trains_on_labels,
        evaluate_epsilon=settings.budget.evaluate_epsilon,
        choices=tuple(choices),
    )
    if plan.forecast is not None and not settings.budget.accept_forecast:
        plan.forecast.check(known.pool.majority_share)
    return plan


def _named_method(known: Known, settings: ReleaseSettings) -> str:
    """Returns the method that settings name, or the only one there is; else `AUTO`."""
    method = settings.method
    has_owners = known.unit == "owner"
    if method == AUTO:
        if known.voters is not None or settings.budget.epsilon is None:
            method = PATE
        elif (known.sums is not None and known.sums.digest) or has_owners or not known.pool:
            method = FEATURE_SUMS
        elif settings.mechanism is not None or settings.queries.num_queries is not None:
            method = PATE
        elif known.pool.dataset.target != CLASS:
            method = FEATURE_SUMS
    if method == PATE and not known.pool:
        raise ValueError(
            "public: expected public records with method pate, whose teachers label them, got none"
        )
    if method == PATE and known.voters is None and has_owners and settings.num_teachers is None:
        raise ValueError(
            "num_teachers: expected it with owners, whose number is private, got none; choose it "
            "by what is publicly known of that number, several owners a teacher"
        )
    return method


def _voters(known: Known, settings: ReleaseSettings) -> Electorate:
    """Returns the teachers that there are, or those that will be trained: linear on features."""
    if known.voters is not None:
        return known.voters
    dataset = known.pool.dataset
    number = settings.num_teachers
    if number is None:
        number = recommended_num_teachers(known.num_records or 1, dataset)
    return Electorate(
        num_teachers=number,
        model=RIDGE,
        representation=settings.queries.representation or default_of_teachers(dataset),
        is_planned=True,
    )


def _better_of_both(known: Known, settings: ReleaseSettings, reporting: Reporting) -> ReleasePlan:
    """Returns the plan whose labels are expected to be more accurate.

    By what is assumed of votes and of features first. A trial of feature sums on labels of the pool
    is more than an assumption: it decides where there are such labels.
    """
    sums = SumsOption(known, settings, reporting)
    outlooks = () if sums.planned.refusal else sums.planned.outlooks
    if outlooks and outlooks[1].accuracy >= ALWAYS_CHOSEN:
        return sums.plan()
    voters = _voters(known, settings)
    stated = stated_of_votes(settings, voters, known)
    comparison = compared(stated, sums.planned)
    if comparison.method == FEATURE_SUMS:
        return sums.plan()
    measured = accuracy_without_noise(known.pool)
    of_votes = comparison.forecast(PATE, measured=measured)
    of_sums = sums.tried[1] if known.pool.num_labeled >= FEWEST_LABELED else None
    if of_votes and of_sums:
        # Sums label all of the pool, so that votes must be clearly more accurate.
        least = of_votes.accuracy if measured is None else of_votes.low
        if of_votes.is_noise or least <= of_sums.accuracy:
            return sums.plan()
    return _plan_of_votes(settings, voters, known, stated, comparison)


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


def _plan_of_given_noise(
    settings: ReleaseSettings, voters: Electorate, known: Known
) -> ReleasePlan:
    """Returns the plan of a mechanism that was given with its noise."""
    mechanism = settings.mechanism
    given = settings.queries
    if mechanism is None or isinstance(mechanism, type):
        raise ValueError("mechanism: give one with its noise, or an epsilon")
    number = DEFAULT_NUM_QUERIES if given.num_queries is None else given.num_queries
    strategy = given.strategy or recommended(
        known.pool.dataset, number, is_whole_pool=voters.covers_pool
    )
    return _checked(settings, mechanism, number, strategy, voters, known.pool)


def _plan_of_predictions(
    settings: ReleaseSettings, voters: Electorate, known: Known
) -> ReleasePlan:
    """Returns the plan of noisy sums of what teachers predict: numbers or several labels.

    A linear function is learned from all sums together. Twice as many queries double the variance
    of the noise on each, so all of the pool is asked about, as far as one regression takes it.

    Raises:
        ValueError: if another mechanism or a strategy that propagates classes is named.
    """
    given = settings.queries
    mechanism = settings.mechanism or GaussianHistogram
    check_sums(mechanism)
    number = given.num_queries or min(len(known.pool), MOST_QUERIES)
    reason = None
    if isinstance(mechanism, type):
        stated = PlanSettings(known=dataclasses.replace(known, num_records=None), release=settings)
        target = dataclasses.replace(stated.target, num_queries=number)
        mechanism = GaussianHistogram.for_target(target, profile_counts(1, 2, DEFAULT_MARGIN))
        reason = f"The noise is the least that {number:,} queries within epsilon need."
    strategy = given.strategy or ("random" if voters.covers_pool else "first")
    checks.one_of(("random", "first"), query_strategy=strategy)  # others propagate classes
    description = (
        f"{mechanism.summary()}, {number:,} queries by {strategy}. No forecast: it is not known "
        f"beforehand how well teachers predict."
    )
    facts = {"reason": reason, "description": description}
    return _checked(settings, mechanism, number, strategy, voters, known.pool, **facts)


def _checked(
    settings: ReleaseSettings,
    mechanism: Mechanism,
    num_queries: int,
    strategy: str,
    voters: Electorate,
    pool: Pool,
    **facts: Any,
) -> ReleasePlan:
    """Returns the plan of votes on queries: what was given of them, and what follows."""
    check_answers(mechanism, settings.budget.delta or 0.0)
    checks.one_of(STRATEGIES, strategy=strategy)
    given = settings.queries
    representation = given.representation
    if representation is None or representation == voters.representation:
        name = voters.representation
        # A function that was given by value has no name that this process could find it by.
        has_name = isinstance(name, str) and (":" in name or is_known(name))
        compares = STRATEGIES[strategy].infer is not None
        representation = name if has_name and compares else None
    queries = QueryConfig(
        strategy=strategy, num_queries=num_queries, representation=representation, seed=given.seed
    )
    check_queries(queries, pool)
    return ReleasePlan(mechanism=mechanism, queries=queries, voters=voters, **facts)


def stated_of_votes(settings: ReleaseSettings, voters: Electorate, known: Known) -> PlanSettings:
    """Returns what a comparison of mechanisms is made from.

    Args:
        settings: of the release.
        voters: that are asked.
        known: of the data.
    """
    if not voters.is_planned:  # they learned from what there was
        known = dataclasses.replace(known, num_records=None)
    release = dataclasses.replace(settings, num_teachers=voters.num_teachers)
    return PlanSettings(known=known, release=release)


def _plan_of_votes(
    settings: ReleaseSettings,
    voters: Electorate,
    known: Known,
    stated: PlanSettings,
    comparison: Plan | None = None,
) -> ReleasePlan:
    """Returns the best plan of votes within an epsilon, or that of the mechanism named.

    Args:
        settings: of the release.
        voters: that are asked.
        known: of the data.
        stated: of `stated_of_votes`.
        comparison: that was made from it, if there is one.
    """
    pool = known.pool
    joint = None
    forecast = None
    if voters.model == RIDGE and voters.representation and known.has_augmentation:
        kinds = [KINDS.get(name) for name in joined_names(voters.representation)]
        if all(kind is not None and kind.data_kinds == IMAGES for kind in kinds):
            joint = joint_plan(stated)
    if joint is not None:
        comparison = compared(joint, None)
    else:  # of counts that are learned from together no single label matters
        comparison = comparison or compared(stated, None)
        forecast = comparison.forecast(PATE, measured=accuracy_without_noise(pool))
    return _checked(
        settings,
        comparison.mechanism,
        comparison.num_queries,
        comparison.settings.release.queries.strategy or "medoids",
        voters,
        pool,
        reason=f"{comparison.reason} {compared_in_words(pool.majority_share)}",
        description=comparison.in_words(of_votes=True),
        forecast=forecast,
    )


# Plans of votes within an epsilon.
#
# Where teachers are linear on features of the pool, and a student learns from the whole pool, the
# noisy counts of all queries together say more of the pool than labels of few of them
# (`pate_tf.postprocessing.regression`). So there are many queries, each with more noise.

QUERIES_OF_CLASS: Final = 20
# Standard deviation of the noise, over the teachers. Above it counts say too little, and mechanisms
# are compared.
MOST_RELATIVE_NOISE: Final = 1 / 2
ALL_COUNTS: Final = (
    "All noisy counts are released, of one input of each cluster. What a student learns is "
    "computed from all counts together. So single labels need not be right: of teachers that are "
    "linear on features of the pool, more inputs with more noise say more than few with little."
)


def joint_plan(stated: PlanSettings) -> PlanSettings | None:
    """Returns which noisy counts are released to be learned from together; None for none.

    Settings of a comparison with mechanism, number of queries, strategy and purpose.

    There are none at delta 0, where noise would exceed half of the teachers, there are too many
    queries, or a mechanism or strategy is named that does not fit.

    Args:
        stated: what they may cost, and how many teachers, classes and public inputs there are. A
            number of queries that was named is taken.
    """
    wishes = stated.release.queries
    num_queries = wishes.num_queries
    if num_queries is None:
        of_classes = QUERIES_OF_CLASS * stated.known.num_classes
        num_queries = min(of_classes, stated.known.pool_size, MOST_QUERIES)
    fits = (
        stated.release.mechanism in (None, GaussianHistogram)
        and wishes.strategy in (None, "diverse")
        and stated.target.delta > 0.0
        and num_queries <= MOST_QUERIES
    )
    if not fits:
        return None
    target = dataclasses.replace(stated.target, num_queries=num_queries)
    assumed = profile_counts(stated.num_teachers, stated.known.num_classes, DEFAULT_MARGIN)
    sigma = GaussianHistogram.for_target(target, assumed).sigma
    if sigma > MOST_RELATIVE_NOISE * stated.num_teachers:
        return None
    queries = dataclasses.replace(wishes, num_queries=num_queries, strategy="diverse")
    release = dataclasses.replace(stated.release, mechanism=GaussianHistogram, queries=queries)
    return dataclasses.replace(stated, release=release, purpose=ALL_COUNTS)
