"""Labels of a public pool: what is said becomes a plan, the plan is charged and released.

A `ReleasePlan` is checked against pool and teachers when it is made, before any ledger is opened.
`release_labels` then does what it says. What comes back may be published.
"""

import contextlib
import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.divergences import LATTICE
from pate_tf.accounting.mechanisms import (
    ClassSums,
    GaussianHistogram,
    Mechanism,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.planning import DEFAULT_MARGIN, profile_counts, recommend
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.accounting.target import Target
from pate_tf.aggregation.feature_sums import release_sums
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.labeller import VOTES, Labeller
from pate_tf.aggregation.noise import NoiseSource, check_drawable, check_scales
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.api.settings import DEFAULT_NUM_QUERIES, Budget, LabelSettings
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import FeatureSums, VoteCounts
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerWarning
from pate_tf.ledger.chain import DATABASE
from pate_tf.models import closed_form
from pate_tf.models.encoder import record_vectors
from pate_tf.queries import neighbours, rounds
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.propagation import infer_from_sums
from pate_tf.queries.queried import QueriedLabels, asked_inputs
from pate_tf.queries.strategies import find_strategy
from pate_tf.representations import catalogue
from pate_tf.representations.catalogue import OF_IMAGES, joined_names
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.statement.privacy_statement import is_delta_large
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.teachers import voters
from pate_tf.teachers.classifiers import ClassifierEnsemble
from pate_tf.teachers.ensemble import Ensemble
from pate_tf.teachers.records import KnowsRecords
from pate_tf.teachers.voters import Voter, covers


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

    @property
    def is_of_sums(self) -> bool:
        """Whether feature sums are released, and no teacher is asked."""
        return self.mechanism.adds_records

    def __str__(self) -> str:
        number, strategy = self.queries.num_queries, self.queries.strategy
        return self.description or f"{self.mechanism.summary()}, {number} queries by {strategy}"


def plan_release(
    settings: LabelSettings, teachers: Voter, pool: Pool, *, delta: float
) -> ReleasePlan:
    """Returns what settings ask for, completed and checked. Reads no votes and no records.

    Args:
        settings: what somebody said.
        teachers: who vote, or whose records' feature sums are released.
        pool: that queries are chosen from.
        delta: what epsilon holds at.

    Raises:
        ValueError: if settings, pool and teachers don't fit each other, or nothing worth its cost
            can be had for the epsilon.
    """
    check_teachers(teachers, pool)
    if settings.method == "feature_sums":
        return _plan_of_sums(settings, teachers, pool, delta=delta)
    mechanism = settings.mechanism
    if mechanism is not None and not isinstance(mechanism, type):
        queries = _queries(
            settings,
            DEFAULT_NUM_QUERIES if settings.num_queries is None else settings.num_queries,
            settings.strategy or mechanism.query_strategy,
        )
        plan = ReleasePlan(mechanism=mechanism, queries=queries)
    else:
        plan = _planned(settings, mechanism, teachers, pool, delta=delta)
    plan = dataclasses.replace(plan, queries=_with_representation(plan.queries, teachers))
    _check_votes(plan, teachers, pool)
    return plan


def _queries(settings: LabelSettings, num_queries: int, strategy: str) -> QueryConfig:
    return QueryConfig(
        strategy=strategy,
        num_queries=num_queries,
        rounds=settings.rounds,
        seed=settings.seed,
        representation=settings.representation,
        num_neighbours=settings.num_neighbours,
    )


def _with_representation(
    queries: QueryConfig, teachers: Voter, *, is_of_sums: bool = False
) -> QueryConfig:
    """Returns queries with the teachers' representation, where they name none and it has a name."""
    config = teachers.config if isinstance(teachers, Ensemble | ClassifierEnsemble) else None
    name = None if config is None else config.representation
    is_used = find_strategy(queries.strategy).uses_representation or is_of_sums
    if queries.representation is not None or not isinstance(name, str) or not is_used:
        return queries
    if not catalogue.is_known(name) and ":" not in name:  # a function that was given by value
        return queries
    return dataclasses.replace(queries, representation=name)


def check_teachers(teachers: Voter, pool: Pool) -> None:
    """Raises ValueError unless an ensemble was trained for the data set of a pool."""
    if difference := teachers.dataset.difference(pool.dataset):
        raise ValueError(
            f"teachers: expected an ensemble for {pool.dataset.name}, got one for "
            f"{teachers.dataset.name}: {difference}"
        )


def _check_votes(plan: ReleasePlan, teachers: Voter, pool: Pool) -> None:
    """Raises ValueError unless strategy, numbers, mechanism, pool and teachers fit each other."""
    queries, mechanism = plan.queries, plan.mechanism
    strategy, number = find_strategy(queries.strategy), queries.num_neighbours
    if mechanism.adds_records:
        raise ValueError(
            f"mechanism: expected one that answers queries with method pate, got {mechanism.name}; "
            f"it belongs to method feature_sums"
        )
    check_drawable(mechanism)
    rounds.check_queries(queries, pool, with_students=mechanism.heeds_predictions)
    if strategy.is_adaptive and not covers(teachers, pool.inputs):
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
    if not covers(teachers, pool.inputs):
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
WITHOUT_NOISE: Final = (
    "Labels are released without noise if teachers agree on all of these queries, which are "
    "medoids of dense clusters; else all noisy counts are."
)
ALL_COUNTS: Final = "All noisy counts are released, of one input of each cluster."
TOGETHER: Final = (
    "What a student learns is worked out from all counts together. So single labels need not be "
    "right: of teachers that are linear on features of the pool, more inputs with more noise say "
    "more than few with little."
)


def _planned(
    settings: LabelSettings,
    kind: type[Mechanism] | None,
    teachers: Voter,
    pool: Pool,
    *,
    delta: float,
) -> ReleasePlan:
    """Returns the best plan of votes within an epsilon, or that of the mechanism named."""
    epsilon = settings.epsilon or 0.0
    joint = _joint_plan(settings, teachers, pool, delta=delta)
    number = settings.num_queries if joint is None else joint.num_queries
    found = recommend(
        target_epsilon=epsilon,
        delta=delta,
        num_teachers=teachers.num_teachers,
        num_classes=pool.dataset.num_classes,
        num_queries=number,
        pool_size=len(pool),
        unit=teachers.unit,
        margin=settings.margin,
        num_exceptions=settings.num_exceptions,
        mechanism=kind if joint is None else joint.mechanism,
        adaptive=settings.strategy is not None and find_strategy(settings.strategy).is_adaptive,
    )
    if joint is not None:
        found = dataclasses.replace(
            found,
            is_num_queries_planned=settings.num_queries is None,
            strategy=joint.strategy,
            purpose=joint.purpose,
        )
    elif kind is None and found.expected_share < LEAST_SHARE:
        raise ValueError(
            f"epsilon: expected one that labels at least half of the queries right under the "
            f"plan's assumption, got {epsilon:g}: {found.mechanism.name} would label "
            f"{found.expected_share:.0%} of {found.num_queries} right. Take more teachers or a "
            f"larger epsilon, or name a mechanism to release such labels all the same"
        )
    return ReleasePlan(
        mechanism=found.mechanism,
        queries=_queries(settings, found.num_queries, settings.strategy or found.strategy),
        reason=found.reason,
        description=found.in_words(),
        values=found.to_dict(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointPlan:
    """Noisy counts that a student learns from together: how many, of which queries, and why."""

    mechanism: type[Mechanism]
    num_queries: int
    strategy: str
    purpose: str


def are_joined(teachers: Voter, pool: Pool) -> bool:
    """Whether counts of these teachers can be learnt from together."""
    config = teachers.config if isinstance(teachers, Ensemble) else None
    return (
        config is not None
        and config.model == closed_form.RIDGE
        and config.representation is not None
        and set(joined_names(config.representation)) <= set(OF_IMAGES)
        and learns_by_augmentation(pool.dataset)
    )


def _joint_plan(
    settings: LabelSettings, teachers: Voter, pool: Pool, *, delta: float
) -> JointPlan | None:
    """Returns the plan of noisy counts together, where these teachers allow it."""
    if not are_joined(teachers, pool):
        return None
    return joint_plan(
        settings,
        Target(epsilon=settings.epsilon or 0.0, delta=delta, num_queries=1, unit=teachers.unit),
        num_teachers=teachers.num_teachers,
        num_classes=pool.dataset.num_classes,
        pool_size=len(pool),
    )


def joint_plan(
    settings: LabelSettings, target: Target, *, num_teachers: int, num_classes: int, pool_size: int
) -> JointPlan | None:
    """Returns which noisy counts are released to be learnt from together; None for none.

    There are none where noise would exceed half of the teachers, there are too many queries, or a
    mechanism is named that does not release all counts.

    Args:
        settings: a mechanism, number of queries or strategy that was named is taken.
        target: what they may cost; its own number of queries is not read.
        num_teachers: who vote.
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

    if number(QUERIES_A_CLASS) > MOST_QUERIES or settings.mechanism not in (
        None,
        GaussianHistogram,
    ):
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
                    purpose=f"{WITHOUT_NOISE} {TOGETHER}",
                )
    if strategy in (None, DIVERSE) and (
        relative_noise(GaussianHistogram, QUERIES_A_CLASS) <= MOST_RELATIVE_NOISE
    ):
        return JointPlan(
            mechanism=GaussianHistogram,
            num_queries=number(QUERIES_A_CLASS),
            strategy=DIVERSE,
            purpose=f"{ALL_COUNTS} {TOGETHER}",
        )
    return None


# Feature sums: what a record says reaches a sum by itself, not as a part of one vote among
# thousands. So for the same epsilon the pool's labels are more accurate than those of votes,
# wherever features tell classes apart and records are many beside the noise.

PART: Final = 4_096  # inputs whose vectors are in memory in double precision
WHOLE_POOL: Final = "first"  # strategy of sums: all of the pool, in its order


def sums_of(teachers: Voter) -> tuple[Ensemble, FeatureSums]:
    """Returns an ensemble with the feature sums of its records.

    Raises:
        ValueError: if it has none.
    """
    if not isinstance(teachers, Ensemble) or teachers.class_sums is None:
        raise ValueError(
            "method: expected teachers on features for feature_sums, such as ridge ones, got others"
        )
    return teachers, teachers.class_sums


def _plan_of_sums(
    settings: LabelSettings, teachers: Voter, pool: Pool, *, delta: float
) -> ReleasePlan:
    """Returns the plan of feature sums: the least noise within epsilon."""
    ensemble, _ = sums_of(teachers)
    for name in ("mechanism", "num_queries", "strategy", "rounds", "num_neighbours"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name}: expected none with method feature_sums, which labels all of the pool "
                f"and asks no teacher, got one; method pate takes it"
            )
    target = Target(epsilon=settings.epsilon or 0.0, delta=delta, num_queries=1, unit=teachers.unit)
    mechanism = target.least_noise(ClassSums.of_scale)
    check_scales(mechanism)
    sigma = mechanism.noise_scales["sigma"]
    reason = (
        f"Noise was chosen from a plan, not from private data: the least for epsilon "
        f"{target.epsilon:g} at delta {delta:g}. No teacher was asked."
    )
    of_class = None
    if ensemble.unit == "record" and ensemble.records is not None:  # else the number is private
        of_class = ensemble.records.num_records / pool.dataset.num_classes
        reason += (
            f" There are about {of_class:,.0f} private records of a class, which is "
            f"{of_class / sigma:,.1f} times the noise on a number of its sum."
        )
    return ReleasePlan(
        mechanism=mechanism,
        queries=_with_representation(
            _queries(settings, len(pool), WHOLE_POOL), teachers, is_of_sums=True
        ),
        reason=reason,
        description=(
            f"Plan for epsilon {target.epsilon:g} at delta {delta:g}, for every {target.unit}: "
            f"the sum of the private records' feature vectors of each class, with noise of "
            f"{rounded_up(sigma)} on each number. All {len(pool):,} inputs of the pool get labels "
            f"that are worked out from them."
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


# The ledger that everything is charged to.


def open_ledger(
    folder: pathlib.Path,
    *,
    teachers: Voter,
    budget: Budget,
    student_runs: Sequence[pathlib.Path] = (),
) -> Ledger:
    """Opens an ensemble's ledger; warns of a delta that is too large for its records.

    Args:
        folder: the ensemble's sensitive folder.
        teachers: the ensemble that the ledger belongs to.
        budget: of all its labels.
        student_runs: run folders that its students go to, besides the ledger's own.

    Raises:
        ValueError: if a budget is to be replaced by none or by less than was spent, or the folder
            can't be written.
        LedgerError: if the ledger is damaged, belongs to another ensemble or other numbers, or is
            not the one that was here.
    """
    for place in (folder, folder / VOTES):
        artifacts.check_can_hold_files(place)
    records = teachers.records if isinstance(teachers, KnowsRecords) else None
    facts: dict[str, Any] = {
        "ensemble_digest": teachers.digest,
        "records": records,
        "student_runs": student_runs,
        "acknowledge_reset": budget.acknowledge_reset,
        "planned_release": budget.planned_release,
    }
    if records is not None and teachers.unit == "record":
        number, delta = records.num_records, budget.delta
        if is_delta_large(delta, number):
            warnings.warn(
                f"delta: expected at most 0.1 over the number of private records, which is "
                f"{0.1 / number:.2g}, got {delta:g}: delta times their number is "
                f"{delta * number:.2g}, and a system that publishes some records as they are "
                f"could keep to the guarantee; every statement says so",
                LedgerWarning,
                stacklevel=2,
            )
    if not budget.replace_budget or not (folder / DATABASE).exists():
        return Ledger.open(
            folder, delta=budget.delta, epsilon_budget=budget.epsilon_budget, **facts
        )
    if budget.epsilon_budget is None:
        raise ValueError("replace_budget: expected a new epsilon_budget with it, got none")
    with Ledger.read(folder) as existing:
        old_delta, old_budget = existing.delta, existing.epsilon_budget
    ledger = Ledger.open(folder, delta=old_delta, epsilon_budget=old_budget, **facts)
    try:
        ledger.raise_budget(
            epsilon_budget=budget.epsilon_budget,
            delta=budget.delta,
            i_understand_this_weakens_privacy=True,
        )
    except BaseException:
        ledger.close()
        raise
    return ledger


# The release.


def release_labels(
    plan: ReleasePlan,
    pool: Pool,
    *,
    teachers: Voter,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting = QUIET,
) -> QueriedLabels:
    """Chooses queries of a pool, charges them, and returns their noisy labels.

    What was released before is returned again from the ledger and not charged.

    Args:
        plan: of `plan_release`, for this pool and these teachers.
        pool: public inputs.
        teachers: the ensemble.
        ledger: the ensemble's ledger, open; see `open_ledger`.
        noise: where privacy noise comes from.
        reporting: how progress is shown.

    Raises:
        BudgetExceeded: if the budget does not suffice; nothing was charged then.
        LedgerError: if the ledger can't be used.
    """
    doubts = None
    if plan.is_of_sums or find_strategy(plan.queries.strategy).uses_representation:
        with reporting.clock("training the representation"):
            doubts = catalogue.doubts(pool, plan.queries.representation, plan.queries.seed)
        if doubts is not None:
            reporting.warn(doubts)
    if plan.is_of_sums:
        labels = _labels_of_sums(plan, pool, teachers, ledger, noise, reporting)
    else:
        labels = _labels_of_votes(
            plan, pool, teachers, ledger, noise, reporting, is_doubted=doubts is not None
        )
    labels = dataclasses.replace(labels, choice=plan.reason)
    return dataclasses.replace(labels, seal=ledger.recognise(labels.record()))


def _labels_of_votes(
    plan: ReleasePlan,
    pool: Pool,
    teachers: Voter,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting,
    *,
    is_doubted: bool,
) -> QueriedLabels:
    queries, mechanism = plan.queries, plan.mechanism
    strategy = find_strategy(queries.strategy)
    number = queries.num_neighbours
    if number is None:
        # Where one query decides about all, agreement is worth more than that each label is right
        # for its own input; but neighbours of a doubtful representation would spoil a vote.
        is_useful = mechanism.is_paid_once and strategy.uses_representation and not is_doubted
        has_votes = is_useful and covers(teachers, pool.inputs)
        number = neighbours.default_number(pool, queries.num_queries) if has_votes else 0

    def neighbours_of(indices: IntArray) -> IntArray | None:
        if not number:
            return None
        return neighbours.nearest(
            pool, indices, number, queries.seed, representation=queries.representation
        )

    with reporting.progress_bar("asking teachers", queries.num_queries, "query") as advance:

        def voter(inputs: npt.NDArray[Any]) -> VoteCounts:
            count = voters.counts_of_groups if number else voters.counts
            return count(teachers, inputs, advance)

        labeller = Labeller(
            voter=voter,
            ledger=ledger,
            noise=noise,
            noisy_winners=_aggregation(pool.dataset.num_classes).label,
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
                adaptive=strategy.is_adaptive,
                num_later=queries.num_queries - len(indices),
                predictions=predictions,
            )

        labels = rounds.ask_in_rounds(
            queries,
            pool,
            answers,
            with_students=mechanism.heeds_predictions,
            choosing=lambda: reporting.clock("choosing queries"),
        )
    return dataclasses.replace(labels, neighbours=neighbours_of(labels.queries))


@functools.cache
def _aggregation(num_classes: int) -> VoteAggregation:
    """Returns the counting graph, traced once."""
    return VoteAggregation(num_classes)


def _labels_of_sums(
    plan: ReleasePlan,
    pool: Pool,
    teachers: Voter,
    ledger: Ledger,
    noise: NoiseSource,
    reporting: Reporting,
) -> QueriedLabels:
    ensemble, sums = sums_of(teachers)
    features = ensemble.features(pool.inputs)
    vectors = np.empty((len(pool), features.shape[1] + 1), np.float32)
    for start in range(0, len(pool), PART):
        part = slice(start, start + PART)
        vectors[part] = record_vectors(features[part], ensemble.scale)
    released = release_sums(sums, plan.mechanism, ledger=ledger, noise=noise, unit=teachers.unit)
    with reporting.clock("working out labels of the pool"):
        inferred = infer_from_sums(
            pool,
            vectors,
            released.values / LATTICE,
            plan.mechanism.noise_scales["sigma"],
            plan.queries.seed,
            representation=plan.queries.representation,
        )
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
    return QueriedLabels(
        queries=labels.query_indices,
        released=labels,
        labels=inferred.learnt,
        certainty=inferred.certainty,
        strategy=plan.queries.strategy,
        pool_digest=artifacts.digest_array(pool.inputs),
    )
