"""Chooses the method, mechanism and noise from public values, before anything is charged.

`choose` is called once per run. It compares the two methods if the user did not choose one, plans
the smallest noise that meets epsilon, tries representations on labeled public samples, chooses a
suitable student, and refuses labels that are not expected to be worth their cost.
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
from pate_tf.planning.plan_of_sums import MIN_LABELED, SumsOption, accuracy_without_noise
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
from pate_tf.postprocessing.regression import MAX_QUERIES
from pate_tf.queries.strategies import STRATEGIES, QueryConfig, check_queries, recommended
from pate_tf.release.noise import check_drawable
from pate_tf.release.votes import check_sums
from pate_tf.representations import catalogue
from pate_tf.students.student_kinds import fitting
from pate_tf.teachers.run_folder import recommended_num_teachers

DEFAULT_NUM_QUERIES = 100
SMALL_SIDE = 32  # pixels; for larger photographs, features learned from the pool are weak
GOOD_ACCURACY = 0.9  # an expected accuracy that another encoder raises by at most 10 points


def choose(known: Known, settings: ReleaseSettings, reporting: Reporting = QUIET) -> ReleasePlan:
    """Returns the plan of a release: method, mechanism with its noise, queries, and the reasons.

    Args:
        known: public facts about the data, without any private value.
        settings: the user's settings. Settings that are None are chosen from public values.
        reporting: functions that show progress, notes and warnings.

    Raises:
        ForecastError: if labels are not expected to be worth their cost and the setting
            `accept_forecast` is False.
        ValueError: if the settings do not fit the data.
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
    # Only sums over individual records give a linear model. Cluster counts, votes and sums over
    # owners do not.
    has_linear_model = known.unit == "record" and getattr(plan.mechanism, "num_clusters", 0) is None
    label_accuracy = None
    trains_on_labels = settings.trains_on_labels(known.pool, plan.method)
    # If the student also learns from public labels, the forecast may be too low, because the
    # forecast for images does not use public labels. In this case, the label accuracy is unknown.
    forecast = plan.forecast
    if forecast and forecast.is_measured and has_linear_model and not trains_on_labels:
        label_accuracy = forecast.accuracy
    student, fits = fitting(
        dataset,
        of_sums=plan.method == FEATURE_SUMS,
        has_pool=len(known.pool) > 0,
        is_frozen=features is not None and not catalogue.is_known(features),
        num_rounds=getattr(plan.mechanism, "num_rounds", 1),
        label_accuracy=label_accuracy,
    )
    choices = [f"Student: {student}, {fits}."]
    if settings.budget.epsilon is not None:
        is_good = getattr(forecast, "accuracy", 0.0) >= GOOD_ACCURACY
        is_large = dataset.has_colors and max(dataset.input_shape[:2]) > SMALL_SIDE and not is_good
        helps = {"text": TEXT_ENCODER_HELPS, "image": ENCODER_HELPS if is_large else ""}
        advice = "" if settings.queries.representation else helps.get(dataset.kind, "")
        chosen_by = "chosen from public values only" if settings.method == AUTO else "your choice"
        choices = [f"Method: {plan.method}, {chosen_by}.", *filter(None, [advice]), *choices]
    if trains_on_labels:
        number = known.pool.num_labeled
        used = f"The student also learns from {number:,} public labels, which cost no privacy."
        choices.append(used)
    plan = dataclasses.replace(
        plan,
        student=student,
        trains_on_labels=trains_on_labels,
        evaluate_epsilon=settings.budget.evaluate_epsilon,
        choices=tuple(choices),
    )
    if forecast and not settings.budget.accept_forecast:
        forecast.check(known.pool.majority_share)
    return plan


def _named_method(known: Known, settings: ReleaseSettings) -> str:
    """Returns the chosen method or the only possible method; `AUTO` if both are possible."""
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
        raise ValueError("public is required with method pate: teachers label public records")
    if method == PATE and known.voters is None and has_owners and settings.num_teachers is None:
        raise ValueError(
            "num_teachers is required with unit owner, because the number of owners is private. "
            "Choose it from a public estimate, so that each teacher has several owners."
        )
    return method


def _voters(known: Known, settings: ReleaseSettings) -> Electorate:
    """Returns the given teachers, or the linear teachers that will be trained."""
    if known.voters is not None:
        return known.voters
    dataset = known.pool.dataset
    number = settings.num_teachers
    if number is None:
        number = recommended_num_teachers(known.num_records or 1, dataset)
    return Electorate(
        num_teachers=number,
        model=RIDGE,
        representation=settings.queries.representation or catalogue.default_of_teachers(dataset),
        is_planned=True,
    )


def _better_of_both(known: Known, settings: ReleaseSettings, reporting: Reporting) -> ReleasePlan:
    """Returns the plan of the method with the higher expected label accuracy.

    The methods are first compared under assumptions about votes and features. If the pool has
    enough labels, a trial of feature sums on these labels decides instead, because it needs no
    assumptions about features.
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
    of_sums = sums.tried[1] if known.pool.num_labeled >= MIN_LABELED else None
    if of_votes and of_sums:
        # Sums label the whole pool, so votes are chosen only if they are clearly more accurate.
        least = of_votes.accuracy if measured is None else of_votes.low
        if of_votes.is_noise or least <= of_sums.accuracy:
            return sums.plan()
    return _plan_of_votes(settings, voters, known, stated, comparison)


def check_answers(mechanism: Mechanism, delta: float) -> None:
    """Checks that a mechanism works with method pate and has a guarantee at delta.

    Raises:
        ValueError: if it does not work with this method, or has no guarantee at delta.
    """
    if mechanism.releases_feature_sums:
        raise ValueError(
            f"mechanism={mechanism.name} belongs to method feature_sums. With method pate, use a "
            f"mechanism that answers queries."
        )
    check_drawable(mechanism)
    if not delta:
        check_pure(mechanism)


def _plan_of_given_noise(
    settings: ReleaseSettings, voters: Electorate, known: Known
) -> ReleasePlan:
    """Returns the plan for a mechanism with given noise."""
    mechanism = settings.mechanism
    given = settings.queries
    if mechanism is None or isinstance(mechanism, type):
        raise ValueError("epsilon is required, or a mechanism with its noise")
    number = DEFAULT_NUM_QUERIES if given.num_queries is None else given.num_queries
    strategy = given.strategy or recommended(
        known.pool.dataset, number, is_whole_pool=voters.covers_pool
    )
    return _checked(settings, mechanism, number, strategy, voters, known.pool)


def _plan_of_predictions(
    settings: ReleaseSettings, voters: Electorate, known: Known
) -> ReleasePlan:
    """Returns the plan of noisy sums of predictions, for targets that are not classes.

    A linear function is learned from all sums together. With twice as many queries, the noise
    variance of each query doubles, but so does the number of observations. These effects cancel, so
    the whole pool is queried, up to the limit of the regression.

    Raises:
        ValueError: if the mechanism is not Gaussian, or the strategy propagates classes.
    """
    given = settings.queries
    mechanism = settings.mechanism or GaussianHistogram
    check_sums(mechanism)
    number = given.num_queries or min(len(known.pool), MAX_QUERIES)
    reason = None
    if isinstance(mechanism, type):
        stated = PlanSettings(known=dataclasses.replace(known, num_records=None), release=settings)
        target = dataclasses.replace(stated.target, num_queries=number)
        mechanism = GaussianHistogram.for_target(target, profile_counts(1, 2, DEFAULT_MARGIN))
        reason = f"The noise is the least possible for {number:,} queries within epsilon."
    strategy = given.strategy or ("random" if voters.covers_pool else "first")
    # All other strategies propagate classes, which these targets do not have.
    checks.one_of(("random", "first"), query_strategy=strategy)
    description = (
        f"{mechanism.summary()}, {number:,} queries by {strategy}. No accuracy forecast: it would "
        f"need the accuracy of the teachers."
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
    """Checks mechanism, strategy and pool, and returns the plan of votes on queries."""
    check_answers(mechanism, settings.budget.delta or 0.0)
    checks.one_of(STRATEGIES, strategy=strategy)
    given = settings.queries
    representation = given.representation
    if representation is None or representation == voters.representation:
        name = voters.representation
        # A function that was passed as an object has no name, so it can't be loaded later.
        has_name = isinstance(name, str) and (":" in name or catalogue.is_known(name))
        compares = STRATEGIES[strategy].infer is not None
        representation = name if has_name and compares else None
    queries = QueryConfig(
        strategy=strategy, num_queries=num_queries, representation=representation, seed=given.seed
    )
    check_queries(queries, pool)
    return ReleasePlan(mechanism=mechanism, queries=queries, voters=voters, **facts)


def stated_of_votes(settings: ReleaseSettings, voters: Electorate, known: Known) -> PlanSettings:
    """Returns the settings for a comparison of mechanisms.

    Args:
        settings: settings of the release.
        voters: the teachers.
        known: public facts about the data.
    """
    if not voters.is_planned:  # trained teachers need no check against the number of records
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
    """Returns the plan of votes with the best mechanism within epsilon, or with the given one.

    Args:
        settings: settings of the release.
        voters: the teachers.
        known: public facts about the data.
        stated: result of `stated_of_votes`.
        comparison: comparison made from `stated`; None to compute it.
    """
    pool = known.pool
    joint = None
    forecast = None
    if voters.model == RIDGE and voters.representation and known.has_augmentation:
        kinds = [
            catalogue.KINDS.get(name) for name in catalogue.joined_names(voters.representation)
        ]
        if all(kind is not None and kind.data_kinds == catalogue.IMAGES for kind in kinds):
            joint = joint_plan(stated)
    if joint is not None:
        comparison = compared(joint, None)
    else:  # accuracy forecasts are for single labels, not for counts that are used together
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
# If teachers are linear on features of the pool and the student learns from the whole pool, noisy
# counts of many queries used together give better labels than a few accurate labels
# (`pate_tf.postprocessing.regression`). So there are many queries, each with more noise.

QUERIES_PER_CLASS: Final = 20
# Standard deviation of the noise divided by the number of teachers. Above this limit the counts are
# too noisy, and mechanisms are compared instead.
MAX_RELATIVE_NOISE: Final = 1 / 2
ALL_COUNTS: Final = (
    "All noisy counts are released, for one input of each cluster. The student learns from labels "
    "that are computed from all counts together, so single counts may be inaccurate. With linear "
    "teachers, many inputs with more noise give better labels than few inputs with less noise."
)


def joint_plan(stated: PlanSettings) -> PlanSettings | None:
    """Returns settings for a plan that uses all noisy counts together; None if it is not suitable.

    The settings have a mechanism, a number of queries, a strategy and a purpose.

    The plan is not suitable if delta is 0, the standard deviation of the noise would exceed half of
    the number of teachers, there are too many queries, or the user chose another mechanism or
    strategy.

    Args:
        stated: settings of a comparison: the target cost and the numbers of teachers, classes and
            public inputs. If it states a number of queries, that number is used.
    """
    wishes = stated.release.queries
    num_queries = wishes.num_queries
    if num_queries is None:
        wanted = QUERIES_PER_CLASS * stated.known.num_classes
        num_queries = min(wanted, stated.known.pool_size, MAX_QUERIES)
    fits = (
        stated.release.mechanism in (None, GaussianHistogram)
        and wishes.strategy in (None, "diverse")
        and stated.target.delta > 0.0
        and num_queries <= MAX_QUERIES
    )
    if not fits:
        return None
    target = dataclasses.replace(stated.target, num_queries=num_queries)
    assumed = profile_counts(stated.num_teachers, stated.known.num_classes, DEFAULT_MARGIN)
    sigma = GaussianHistogram.for_target(target, assumed).sigma
    if sigma > MAX_RELATIVE_NOISE * stated.num_teachers:
        return None
    queries = dataclasses.replace(wishes, num_queries=num_queries, strategy="diverse")
    release = dataclasses.replace(stated.release, mechanism=GaussianHistogram, queries=queries)
    return dataclasses.replace(stated, release=release, purpose=ALL_COUNTS)
