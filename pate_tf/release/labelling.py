"""Labels of a public pool: settings become a plan, the plan is charged and released.

A `ReleasePlan` is checked against pool and teachers, or feature sums, before any ledger is opened.
`release_labels` does what it says; what it returns may be published.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels, rounded_up
from pate_tf.accounting.composition import check_pure
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.delta import check_delta, default_delta
from pate_tf.accounting.mechanisms import (
    GaussianHistogram,
    Mechanism,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, Target
from pate_tf.accounting.planning import (
    DEFAULT_MARGIN,
    planned_sums,
    profile_counts,
)
from pate_tf.accounting.planning import (
    plan as planned,
)
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.sensitive import VoteCounts
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.chain import DATABASE
from pate_tf.models import closed_form
from pate_tf.models.encoder import nearest_centres
from pate_tf.queries import propagation, rounds
from pate_tf.queries.labels import Labels, asked_inputs
from pate_tf.queries.propagation import infer_from_sums
from pate_tf.queries.rounds import QueryConfig
from pate_tf.queries.strategies import find_strategy, recommended
from pate_tf.release.drawing import VOTES, Labeller
from pate_tf.release.feature_sums import StoredSums
from pate_tf.release.graph import VoteAggregation
from pate_tf.release.noise import NoiseSource, check_drawable, check_scales
from pate_tf.release.noisy_sums import release_sums
from pate_tf.release.settings import DEFAULT_NUM_QUERIES, Budget, LabelSettings
from pate_tf.representations import catalogue
from pate_tf.representations.catalogue import is_of_images
from pate_tf.representations.regression import MOST_QUERIES, NoisySums
from pate_tf.teachers.voters import Voter

Source = Voter | StoredSums  # of labels: teachers that vote, or feature sums of the records
aggregation_of = functools.cache(VoteAggregation)  # each is traced once


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """What is released, and why; made by `plan_release`. Public.

    Attributes:
        mechanism: draws the noise and accounts for it.
        queries: which inputs of the pool, and how they are chosen.
        reason: how mechanism and noise were chosen, for every statement; None if they were given.
        description: the comparison that it was chosen from, as text; empty if there was none.
        values: the same as JSON values.
    """

    mechanism: Mechanism
    queries: QueryConfig
    reason: str | None = None
    description: str = ""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        number, strategy = self.queries.num_queries, self.queries.strategy
        return self.description or f"{self.mechanism.summary()}, {number} queries by {strategy}"


def plan_release(
    settings: LabelSettings, teachers: Source, pool: Pool, *, delta: float
) -> ReleasePlan:
    """Returns what settings ask for, completed and checked. Reads no votes and no records.

    Args:
        settings: as the user gave them.
        teachers: teachers that vote, or feature sums.
        pool: that queries are chosen from.
        delta: what epsilon holds at.

    Raises:
        ValueError: if settings, pool and teachers don't fit each other, or nothing worth its cost
            can be had for the epsilon.
    """
    check_teachers(teachers, pool)
    are_sums, mechanism = isinstance(teachers, StoredSums), settings.mechanism
    if are_sums != (settings.method == "feature_sums"):
        raise ValueError(
            f"method: expected {'feature_sums' if are_sums else 'pate'} for what labels come from, "
            f"got {settings.method}: pate asks teachers, feature_sums asks none"
        )
    if isinstance(teachers, StoredSums):
        return _plan_of_sums(settings, teachers, pool, delta=delta)
    if mechanism is None or isinstance(mechanism, type):
        plan = _planned(settings, mechanism, teachers, pool, delta=delta)
    else:
        number = DEFAULT_NUM_QUERIES if settings.num_queries is None else settings.num_queries
        strategy = settings.strategy or recommended(
            mechanism.query_strategy,
            pool.dataset,
            number,
            is_whole_pool=teachers.covers(pool.inputs),
        )
        plan = ReleasePlan(
            mechanism=mechanism, queries=_queries(settings, teachers, number, strategy)
        )
    _check_votes(plan, teachers, pool, delta)
    return plan


def _queries(
    settings: LabelSettings, teachers: Source, num_queries: int, strategy: str
) -> QueryConfig:
    """Returns the queries; by the source's representation where none is named and it is used."""
    representation = settings.representation
    if representation is None:
        if isinstance(teachers, StoredSums):
            representation = teachers.representation
        elif teachers.config is not None and find_strategy(strategy).uses_representation:
            representation = teachers.config.representation
        # A function that was given by value has no name that this process could find it by.
        is_found = isinstance(representation, str) and (
            catalogue.is_known(representation) or ":" in representation
        )
        representation = representation if is_found else None
    return QueryConfig(
        strategy=strategy,
        num_queries=num_queries,
        rounds=settings.rounds,
        seed=settings.seed,
        representation=representation,
        num_neighbours=settings.num_neighbours,
    )


def check_teachers(teachers: Source, pool: Pool) -> None:
    """Raises ValueError unless teachers or feature sums are of the data set of a pool."""
    if difference := teachers.dataset.difference(pool.dataset):
        what = "feature sums" if isinstance(teachers, StoredSums) else "teachers"
        raise ValueError(
            f"{what}: expected those for {pool.dataset.name}, got those for "
            f"{teachers.dataset.name}: {difference}"
        )


def _check_votes(plan: ReleasePlan, teachers: Voter, pool: Pool, delta: float) -> None:
    """Raises ValueError unless strategy, numbers, mechanism, pool and teachers fit each other."""
    queries, mechanism = plan.queries, plan.mechanism
    strategy, number = find_strategy(queries.strategy), queries.num_neighbours
    if mechanism.releases_feature_sums:
        raise ValueError(
            f"mechanism: expected one that answers queries with method pate, got {mechanism.name}; "
            f"it belongs to method feature_sums"
        )
    check_drawable(mechanism)
    if not delta:
        check_pure(mechanism)
    rounds.check_queries(queries, pool, with_students=mechanism.uses_student_predictions)
    if strategy.is_adaptive and not teachers.covers(pool.inputs):
        raise ValueError(
            f"strategy: expected labels of the whole pool for {queries.strategy}, whose later "
            f"queries follow from earlier labels, got labels of a part of it"
        )
    if not number:
        return
    if not strategy.uses_representation:
        raise ValueError(
            f"num_neighbours: expected none for strategy {queries.strategy}, which has no "
            f"representation, got {number}"
        )
    if number >= len(pool):
        raise ValueError(
            f"num_neighbours: expected fewer than the pool's {len(pool)} inputs, got {number}"
        )
    if not teachers.covers(pool.inputs):
        raise ValueError(
            f"num_neighbours: expected 0 with labels of a part of the pool, as those of "
            f"neighbours are not known, got {number}"
        )


# Plans of votes within an epsilon.
#
# Where teachers are linear on features of the pool, and a student learns from the whole pool, the
# noisy counts of all queries together say more of the pool than labels of few of them
# (`pate_tf.representations.regression`). So there are many queries, each with more noise. Where
# that noise is heavy, labels without any come first: of medoids, on which teachers may all agree.

QUERIES_A_CLASS: Final = 20  # two and five times as many gained nothing on Fashion-MNIST's pool
GATED_A_CLASS: Final = 10
# Standard deviation of the noise, over the teachers: above the first, counts say too little and
# other mechanisms are compared; below the second, counts say nearly as much as labels without
# noise, and the gate is not worth its share of epsilon. Chosen on the pools of MNIST and
# Fashion-MNIST.
MOST_RELATIVE_NOISE: Final = 1 / 2
LEAST_RELATIVE_NOISE: Final = 1 / 10
LEAST_SHARE: Final = 0.5  # of right labels that a plan must expect
MEDOIDS, DIVERSE = "medoids", "diverse"
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


def _planned(
    settings: LabelSettings,
    kind: type[Mechanism] | None,
    teachers: Voter,
    pool: Pool,
    *,
    delta: float,
) -> ReleasePlan:
    """Returns the best plan of votes within an epsilon, or that of the mechanism named."""
    target = Target(epsilon=settings.epsilon or 0.0, delta=delta, num_queries=1, unit=teachers.unit)
    size: dict[str, Any] = {
        "num_teachers": teachers.num_teachers,
        "num_classes": pool.dataset.num_classes,
    }
    joint, words = None, {}
    if are_joined(teachers, pool):
        joint = joint_plan(settings, target, pool_size=len(pool), **size)
    if joint is not None:
        words = {"strategy": joint.strategy, "purpose": joint.purpose}
    plan = planned(
        target.epsilon,
        delta=delta,
        num_queries=settings.num_queries if joint is None else joint.num_queries,
        pool_size=len(pool),
        unit=teachers.unit,
        margin=settings.margin,
        mechanism=kind if joint is None else joint.mechanism,
        adaptive=settings.strategy is not None and find_strategy(settings.strategy).is_adaptive,
        **size,
        **words,
    )
    if joint is None and kind is None and plan.expected_share < LEAST_SHARE:
        raise ValueError(
            f"epsilon: expected one that labels at least half of the queries correctly under the "
            f"plan's assumption, got {target.epsilon:g}: {plan.mechanism.name} would label "
            f"{plan.expected_share:.0%} of {plan.num_queries} correctly. Take more teachers or a "
            f"larger epsilon, or name a mechanism to release such labels all the same"
        )
    strategy = settings.strategy or plan.settings.strategy
    return ReleasePlan(
        mechanism=plan.mechanism,
        queries=_queries(settings, teachers, plan.num_queries, strategy),
        reason=plan.reason,
        description=plan.in_words(of_votes=True),
        values=plan.to_dict(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointPlan:
    """Noisy counts that a student learns from together: how many, of which queries, and why."""

    mechanism: type[Mechanism]
    num_queries: int
    strategy: str
    purpose: str


def are_joined(teachers: Voter, pool: Pool) -> bool:
    """Whether a student can learn from the counts of these teachers together."""
    config = teachers.config
    return (
        config is not None
        and config.model == closed_form.RIDGE
        and config.representation is not None
        and is_of_images(config.representation)
        and pool.dataset.augmentation != "none"
    )


def joint_plan(
    settings: LabelSettings, target: Target, *, num_teachers: int, num_classes: int, pool_size: int
) -> JointPlan | None:
    """Returns which noisy counts are released to be learnt from together; None for none.

    There are none at delta 0, where noise would exceed half of the teachers, there are too many
    queries, or a mechanism is named that does not release all counts.

    Args:
        settings: a mechanism, number of queries or strategy that was named is taken.
        target: what they may cost; its own number of queries is not read.
        num_teachers: that vote.
        num_classes: that they choose from.
        pool_size: the most that can be asked.
    """
    strategy = settings.strategy

    def number(of_a_class: int) -> int:
        most = min(of_a_class * num_classes, pool_size, MOST_QUERIES)
        return most if settings.num_queries is None else settings.num_queries

    def relative_noise(kind: type[Mechanism], of_a_class: int) -> float:
        planned = dataclasses.replace(target, num_queries=number(of_a_class))
        assumed = profile_counts(num_teachers, num_classes, DEFAULT_MARGIN)
        return kind.for_target(planned, assumed).noise_scales["sigma"] / num_teachers

    is_other = settings.mechanism not in (None, GaussianHistogram)
    if is_other or not target.delta or number(QUERIES_A_CLASS) > MOST_QUERIES:
        return None
    if (
        settings.mechanism is None
        and strategy in (None, MEDOIDS)
        and relative_noise(GaussianHistogram, GATED_A_CLASS) > LEAST_RELATIVE_NOISE
    ):
        with contextlib.suppress(ValueError):  # too few teachers for it
            if relative_noise(StabilityGateOrHistogram, GATED_A_CLASS) <= MOST_RELATIVE_NOISE:
                return JointPlan(
                    mechanism=StabilityGateOrHistogram,
                    num_queries=number(GATED_A_CLASS),
                    strategy=MEDOIDS,
                    purpose=WITHOUT_NOISE,
                )
    if strategy in (None, DIVERSE) and (
        relative_noise(GaussianHistogram, QUERIES_A_CLASS) <= MOST_RELATIVE_NOISE
    ):
        return JointPlan(
            mechanism=GaussianHistogram,
            num_queries=number(QUERIES_A_CLASS),
            strategy=DIVERSE,
            purpose=ALL_COUNTS,
        )
    return None


WHOLE_POOL: Final = "first"  # strategy of feature sums: all of the pool, in its order


def _plan_of_sums(
    settings: LabelSettings, sums: StoredSums, pool: Pool, *, delta: float
) -> ReleasePlan:
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
            f"of single records, which are stored neither for owners nor by Beam"
        )
    if num_rounds is None and not sums.has_vectors:
        num_rounds = 1
    mechanism = planned_sums(
        target,
        number,
        pool.dataset.num_classes,
        list(sums.centres) if _has_classes(pool) else (),
        num_rounds,
    )
    check_scales(mechanism.noise_scales)
    sigma = mechanism.standard_deviation
    is_pure = mechanism.pure_epsilon is not None
    reason = (
        f"Noise was chosen from a plan, not from private data: the least for epsilon "
        f"{target.epsilon:g} at delta {0.0 if is_pure else delta:g}. No teacher was asked."
    )
    in_rounds = ""
    if mechanism.num_rounds > 1:
        in_rounds = f" in {mechanism.num_rounds} rounds,"
        reason += f" Sums are released in {mechanism.num_rounds} rounds, charged together."
    of_class = None
    if number is not None:
        of_class = number / pool.dataset.num_classes
        reason += (
            f" With balanced classes, there are about {of_class:,.0f} records per class: "
            f"{of_class / sigma:,.1f} standard deviations of the noise."
        )
    return ReleasePlan(
        mechanism=mechanism,
        queries=_queries(settings, sums, len(pool), WHOLE_POOL),
        reason=reason,
        description=(
            f"Plan for epsilon {target.epsilon:g} at delta {0.0 if is_pure else delta:g}, for "
            f"every {target.unit}: {mechanism.released_in_words},{in_rounds} with noise of "
            f"{rounded_up(sigma)} on each number. All {len(pool):,} inputs of the pool get labels "
            f"that are computed from them."
        ),
        values={
            "target_epsilon": target.epsilon,
            "delta": delta,
            "unit": target.unit,
            "queries": len(pool),
            "queries_were_planned": True,
            "candidates": [
                {"mechanism": mechanism.to_dict(), "epsilon": target.epsilon_of(mechanism)}
            ],
            "records_of_a_class": of_class,
            "reason": reason,
        },
    )


def has_linear_model(plan: ReleasePlan, source: Source) -> bool:
    """Whether labels of a plan come with a linear model, for the student `linear_head`."""
    mechanism = plan.mechanism
    return (
        isinstance(mechanism, ReleasesFeatureSums)
        and mechanism.num_clusters is None
        and isinstance(source, StoredSums)
        and source.has_vectors
    )


def _has_classes(pool: Pool) -> bool:
    """Whether an input is taken to be of its neighbours' class: of images that may be changed."""
    return pool.dataset.augmentation != "none"


def delta_of(budget: Budget, folder: pathlib.Path, teachers: Source) -> float:
    """Returns the delta of a budget; where it has none that of the ledger, else the default.

    Args:
        budget: of everything that is released from them.
        folder: their sensitive folder.
        teachers: teachers that vote, or feature sums.

    Raises:
        ValueError: if it is large for their records.
    """
    number = teachers.num_records if teachers.unit == "record" else None  # of owners private
    delta = budget.delta
    if delta is None and (folder / DATABASE).exists():
        # One that can't be read is refused, or gone on with, where it is opened.
        with contextlib.suppress(LedgerError), Ledger.read(folder) as existing:
            delta = existing.delta
    delta = default_delta(number) if delta is None else delta
    check_delta(delta, number, teachers.unit)
    return delta


def open_ledger(
    folder: pathlib.Path,
    *,
    teachers: Source,
    budget: Budget,
    source: PrivateSource | None = None,
    student_runs: Sequence[pathlib.Path] = (),
) -> Ledger:
    """Opens the ledger of teachers or sums.

    Args:
        folder: their sensitive folder.
        teachers: what the ledger belongs to.
        budget: of everything that is released from them.
        source: named, that releases are charged to; None for that of their records.
        student_runs: run folders that their students go to, besides the ledger's own.

    Raises:
        ValueError: as `delta_of`; if a budget is to be replaced by none or by less than was spent,
            or the folder can't be written.
        LedgerError: if the ledger is damaged, belongs to others or has other numbers, or is not the
            one that was here.
    """
    for place in (folder, folder / VOTES):
        artifacts.check_can_hold_files(place)
    delta = delta_of(budget, folder, teachers)
    facts: dict[str, Any] = {
        "ensemble_digest": teachers.digest,
        "source": source or teachers.source,
        "unit": teachers.unit,
        "student_runs": student_runs,
        "acknowledge_reset": budget.acknowledge_reset,
        "planned_release": budget.planned_release,
    }
    if not budget.replace_budget or not (folder / DATABASE).exists():
        return Ledger.open(folder, delta=delta, epsilon_budget=budget.epsilon_budget, **facts)
    if budget.epsilon_budget is None:
        raise ValueError("replace_budget: expected a new epsilon_budget with it, got none")
    with Ledger.read(folder) as existing:
        old_delta, old_budget = existing.delta, existing.epsilon_budget
    ledger = Ledger.open(folder, delta=old_delta, epsilon_budget=old_budget, **facts)
    try:
        ledger.raise_budget(
            epsilon_budget=budget.epsilon_budget,
            delta=delta,
            i_understand_this_weakens_privacy=True,
        )
    except BaseException:
        ledger.close()
        raise
    return ledger


def release_labels(
    plan: ReleasePlan,
    pool: Pool,
    *,
    teachers: Source,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting = QUIET,
    labeller: Any = None,
) -> Labels:
    """Chooses queries of a pool, charges them, and returns their noisy labels.

    What was released before is returned again from the ledger and not charged.

    Args:
        plan: of `plan_release`, for this pool and these teachers or sums.
        pool: public inputs.
        teachers: teachers that vote, or feature sums.
        ledger: theirs, open; see `open_ledger`.
        noise: where privacy noise comes from.
        reporting: how progress is shown.
        labeller: as of `Labels`.

    Raises:
        BudgetExceeded: if the budget does not suffice; nothing was charged then.
        LedgerError: if the ledger can't be used.
    """
    doubts = None
    compares_inputs = find_strategy(plan.queries.strategy).uses_representation
    if isinstance(teachers, StoredSums) or compares_inputs:
        with reporting.clock_or_bar("training the representation") as progress:
            doubts = catalogue.doubts(
                pool, plan.queries.representation, plan.queries.seed, progress=progress
            )
        if doubts is not None:
            reporting.warn(doubts)
    if isinstance(teachers, StoredSums):
        labels = _labels_of_sums(plan, pool, teachers, ledger, noise, reporting)
    else:
        number = _num_neighbours(plan, pool, teachers, is_doubted=doubts is not None)
        labels = _labels_of_votes(plan, pool, teachers, number, ledger, noise, reporting)
    seal = ledger.recognise(labels.record())
    return dataclasses.replace(labels, seal=seal, labeller=labeller)


def _num_neighbours(plan: ReleasePlan, pool: Pool, teachers: Voter, *, is_doubted: bool) -> int:
    """Returns how many neighbours each query is asked together with: as said, or by default."""
    queries, strategy = plan.queries, find_strategy(plan.queries.strategy)
    if queries.num_neighbours is not None:
        return queries.num_neighbours
    # Where one query decides about all, agreement is worth more than that each label is right
    # for its own input; but neighbours of a doubtful representation would spoil a vote.
    is_useful = plan.mechanism.charged_per_batch and strategy.uses_representation and not is_doubted
    if not is_useful or not teachers.covers(pool.inputs):
        return 0
    return propagation.default_number(pool, queries.num_queries)


def _labels_of_votes(
    plan: ReleasePlan,
    pool: Pool,
    teachers: Voter,
    num_neighbours: int,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting,
) -> Labels:
    queries, mechanism = plan.queries, plan.mechanism
    is_adaptive = find_strategy(queries.strategy).is_adaptive

    def neighbours_of(indices: IntArray) -> IntArray | None:
        if not num_neighbours:
            return None
        return propagation.nearest(
            pool, indices, num_neighbours, queries.seed, representation=queries.representation
        )

    with reporting.progress_bar("asking teachers", queries.num_queries, "query") as advance:

        def voter(inputs: npt.NDArray[Any]) -> VoteCounts:
            count = teachers.group_counts if num_neighbours else teachers.counts
            return count(inputs, advance)

        labeller = Labeller(
            voter=voter,
            ledger=ledger,
            noise=noise,
            noisy_winners=aggregation_of(pool.dataset.num_classes).label,
            num_classes=pool.dataset.num_classes,
            unit=teachers.unit,
        )

        def answers(
            indices: IntArray, predictions: npt.NDArray[np.float64] | None = None
        ) -> ReleasedLabels:
            return labeller.label(
                asked_inputs(pool, indices, neighbours_of(indices)),
                mechanism=mechanism,
                query_indices=indices,
                adaptive=is_adaptive,
                num_later=queries.num_queries - len(indices),
                predictions=predictions,
            )

        labels = rounds.ask_in_rounds(
            queries,
            pool,
            answers,
            with_students=mechanism.uses_student_predictions,
            choosing=lambda: reporting.clock("choosing queries"),
        )
    return dataclasses.replace(labels, neighbours=neighbours_of(labels.queries), choice=plan.reason)


def _labels_of_sums(
    plan: ReleasePlan,
    pool: Pool,
    sums: StoredSums,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting,
) -> Labels:
    mechanism, vectors = cast(ReleasesFeatureSums, plan.mechanism), sums.vectors(pool.inputs)
    number, next_sums, weights, of_rounds = mechanism.num_clusters, None, None, None
    table = sums.sums if number is None else sums.cluster_counts[number]
    deviation = mechanism.standard_deviation
    if has_linear_model(plan, sums):
        sums.check_vectors()  # before anything is charged
    if mechanism.num_rounds > 1:
        next_sums = functools.partial(sums.residuals, noise=deviation)
    with reporting.clock("releasing sums"):
        released = release_sums(
            table, mechanism, ledger=ledger, noise=noise, unit=sums.unit, next_sums=next_sums
        )
    if has_linear_model(plan, sums):
        by_round = released.values.reshape(mechanism.num_rounds, *table.values.shape)
        weights = sums.weights(by_round, deviation)
        if mechanism.num_rounds > 1:
            of_rounds = NoisySums.of_features(
                vectors, *sums.of_rounds(by_round, vectors, deviation)
            )
    values = released.values[: len(table.values)] / LATTICE
    noisy = (
        NoisySums.of_features(vectors, values, deviation, sums.groups)
        if number is None
        else NoisySums.of_clusters(
            nearest_centres(vectors[:, :-1], sums.centres[number]), values, deviation
        )
    )
    with reporting.clock_or_bar("working out labels of the pool") as progress:
        inferred = infer_from_sums(
            pool,
            noisy,
            plan.queries.seed,
            representation=plan.queries.representation,
            weights=weights if mechanism.num_rounds > 1 else None,
            of_rounds=of_rounds,
            progress=progress,
        )
    linear = weights
    if weights is not None and inferred.weights is not None:
        linear = inferred.weights
    labels = ReleasedLabels(
        query_indices=inferred.first.query_indices,
        labels=inferred.first.labels,
        num_classes=inferred.first.num_classes,
        num_queries=len(pool),
        cost=released.cost,
        ledger_rows=released.ledger_rows,
        secure_noise=released.secure_noise,
        noisy_sums=released.values,
    )
    return Labels(
        pool=pool,
        queries=labels.query_indices,
        released=labels,
        training_labels=inferred.learnt,
        certainty=inferred.certainty,
        network=inferred.network,
        linear_head=None if linear is None else sums.linear_head(linear),
        network_is_better=inferred.network_is_better,
        sums=noisy,
        strategy=plan.queries.strategy,
        choice=plan.reason,
    )
