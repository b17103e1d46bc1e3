"""Requests of labels: checked, planned with neighbours, asked of the labeller."""

import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planning import PlannedRelease
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.aggregation import labeller
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.labeller import VOTES
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api import feature_sums
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import VoteCounts
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerWarning
from pate_tf.ledger.chain import DATABASE
from pate_tf.queries import neighbours, rounds
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.queried import QueriedLabels, asked_inputs
from pate_tf.queries.strategies import find_strategy
from pate_tf.representations import catalogue
from pate_tf.statement.privacy_statement import is_delta_large
from pate_tf.teachers import voters
from pate_tf.teachers.classifiers import ClassifierEnsemble
from pate_tf.teachers.ensemble import Ensemble
from pate_tf.teachers.records import KnowsRecords
from pate_tf.teachers.voters import Voter, covers

# Whether queries are asked together with their look-alikes, and with how many.


def check(queries: QueryConfig, pool: Pool, teachers: Voter) -> None:
    """Checks that queries can be asked with as many look-alikes as somebody said.

    Raises:
      ValueError: if the strategy does not look at likeness, there are too few inputs, or nobody
        knows the teachers' labels of all of them.
    """
    number = queries.num_neighbours
    if not number:
        return
    if not find_strategy(queries.strategy).uses_representation:
        raise ValueError(
            f"num_neighbours: expected none for strategy {queries.strategy}, which does not look "
            f"at likeness, got {number}"
        )
    if number >= len(pool):
        raise ValueError(
            f"num_neighbours: expected fewer than the pool's {len(pool)} inputs, got {number}"
        )
    if not covers(teachers, pool.inputs):
        raise ValueError(
            f"num_neighbours: expected 0 with labels of a part of the pool, as nobody knows those "
            f"of all look-alikes, got {number}"
        )


def default_number(queries: QueryConfig, mechanism: Mechanism, pool: Pool, teachers: Voter) -> int:
    """Returns how many look-alikes each query is asked together with where nobody says.

    Where the query that teachers agree on least decides about all others, agreement is worth more
    than that each label is right for its own input.
    """
    by_likeness = find_strategy(queries.strategy).uses_representation
    if not mechanism.is_paid_once or not by_likeness or not covers(teachers, pool.inputs):
        return 0
    return neighbours.default_number(pool, queries.num_queries)


# Labels are bought: the ledger is opened, all that could fail is checked, then it pays.
#
# What comes back may be published, kept in a folder (`QueriedLabels.save`), and learnt from by
# whatever code; no student is needed to buy labels.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRequest:
    """Which labels are bought. Public.

    Attributes:
      queries: how many of the pool are put to the teachers, and how they are chosen.
      mechanism: draws the labels and accounts for them.
      noise: where privacy noise comes from.
      choice: how mechanism, noise and number of queries were chosen, in sentences that every
        statement of these labels repeats; None if nobody said.
    """

    queries: QueryConfig
    mechanism: Mechanism
    noise: NoiseSource
    choice: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What an ensemble's labels may cost in all. Public.

    Attributes:
      delta: fixed at first use.
      epsilon_budget: fixed at the first use that gives one; None for no limit.
      replace_budget: whether to put these numbers in the place of the old ones, for ever on record.
      acknowledge_reset: whether to go on although an earlier ledger, or rows of this one, are gone;
        for ever on record, in the ledger and in every later statement.
      planned_release: how the data-dependent cost will be released, if ever; fixed at first use,
        before there are votes. None for what was fixed, at first the default plan.
    """

    delta: float
    epsilon_budget: float | None = None
    replace_budget: bool = False
    acknowledge_reset: bool = False
    planned_release: PlannedRelease | None = None


def open_ledger(
    folder: pathlib.Path,
    *,
    teachers: Voter,
    budget: Budget,
    student_runs: Sequence[pathlib.Path] = (),
) -> Ledger:
    """Opens an ensemble's ledger; warns of a delta that is too large for its records.

    Args:
      folder: the sensitive folder beside the ensemble.
      teachers: the ensemble that the ledger belongs to.
      budget: of all its labels.
      student_runs: run folders that its students go to, beside the ledger's own.

    Raises:
      ValueError: if a budget is to be replaced by none or by less than was spent, or the folder
        can't be written.
      LedgerError: if the ledger is damaged, belongs to another ensemble or other numbers, or is not
        the one that was here.
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
        _warn_of_delta(budget.delta, records.num_records)
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


def _warn_of_delta(delta: float, num_records: int) -> None:
    if is_delta_large(delta, num_records):
        warnings.warn(
            f"delta: expected at most 0.1 over the number of private records, which is "
            f"{0.1 / num_records:.2g}, got {delta:g}: delta times their number is "
            f"{delta * num_records:.2g}, and a system that publishes some "
            f"records as they are could keep to the guarantee; every statement says so",
            LedgerWarning,
            stacklevel=3,
        )


def check_teachers(teachers: Voter, pool: Pool) -> None:
    """Checks that an ensemble was trained for the data set of a pool.

    Raises:
      ValueError: if it was trained for another.
    """
    if difference := teachers.dataset.difference(pool.dataset):
        raise ValueError(
            f"teachers: expected an ensemble for {pool.dataset.name}, got one for "
            f"{teachers.dataset.name}: {difference}"
        )


def check_request(request: LabelRequest, pool: Pool, teachers: Voter) -> None:
    """Checks everything about a request that can be checked before anything is chosen or paid.

    Raises:
      ValueError: if strategy, numbers, mechanism, pool and teachers don't fit each other.
    """
    feature_sums.check_mechanism(request.mechanism)
    check_teachers(teachers, pool)
    if request.mechanism.adds_records:
        feature_sums.check_sums(request.queries, teachers, pool)
        return
    rounds.check_queries(request.queries, pool, with_students=request.mechanism.heeds_predictions)
    strategy = request.queries.strategy
    if find_strategy(strategy).is_adaptive and not covers(teachers, pool.inputs):
        raise ValueError(
            f"strategy: expected labels of the whole pool for {strategy}, whose "
            f"later queries nobody knows beforehand, got labels of a part of it"
        )
    check(request.queries, pool, teachers)


def with_representation(queries: QueryConfig, teachers: Voter) -> QueryConfig:
    """Returns a request with the teachers' representation, where it names none and they have one.

    That of a function which is no longer known by a name is the data set's default.
    """
    config = teachers.config if isinstance(teachers, Ensemble | ClassifierEnsemble) else None
    known = None if config is None else config.representation
    if queries.representation is not None or not isinstance(known, str):
        return queries
    if not catalogue.is_known(known) and ":" not in known:
        return queries
    return dataclasses.replace(queries, representation=known)


def ask(
    request: LabelRequest,
    pool: Pool,
    *,
    teachers: Voter,
    ledger: Ledger,
    reporting: Reporting = QUIET,
) -> QueriedLabels:
    """Chooses queries of a pool, pays for them, and returns their noisy labels.

    What was answered before is answered again from the ledger, for nothing.

    Args:
      request: which labels.
      pool: public inputs, whose queries are put to the teachers.
      teachers: the ensemble.
      ledger: the ensemble's ledger, open; see `open_ledger`.
      reporting: how progress is shown.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    check_request(request, pool, teachers)
    queries, num_classes = with_representation(request.queries, teachers), pool.dataset.num_classes
    doubts = None
    if request.mechanism.adds_records or find_strategy(queries.strategy).uses_representation:
        with reporting.clock("learning what is alike"):
            doubts = catalogue.doubts(pool, queries.representation, queries.seed)
        if doubts is not None:
            reporting.warn(doubts)
    if request.mechanism.adds_records:
        found = feature_sums.labels_by_sums(
            pool,
            teachers,
            request.mechanism,
            queries,
            ledger=ledger,
            noise=request.noise,
            reporting=reporting,
        )
        return _sealed(dataclasses.replace(found, choice=request.choice), ledger)
    number = queries.num_neighbours
    if number is None:
        # Look-alikes that are in doubt would rather spoil a vote.
        usual = default_number(queries, request.mechanism, pool, teachers)
        number = 0 if doubts else usual

    def look_alikes_of(indices: IntArray) -> IntArray | None:
        if not number:
            return None
        return neighbours.nearest(
            pool, indices, number, queries.seed, representation=queries.representation
        )

    def counted(inputs: npt.NDArray[Any]) -> VoteCounts:
        count = voters.counts_of_groups if number else voters.counts
        return count(teachers, inputs, advance)

    with reporting.progress_bar("asking teachers", queries.num_queries, "query") as advance:
        door = labeller.Labeller(
            voter=counted,
            ledger=ledger,
            noise=request.noise,
            noisy_winners=_aggregation(num_classes).label,
            num_classes=num_classes,
            unit=teachers.unit,
        )

        def answers(
            indices: IntArray, predictions: npt.NDArray[np.float64] | None = None
        ) -> ReleasedLabels:
            return door.label(
                asked_inputs(pool, indices, look_alikes_of(indices)),
                mechanism=request.mechanism,
                query_indices=indices,
                adaptive=find_strategy(queries.strategy).is_adaptive,
                num_later=queries.num_queries - len(indices),
                predictions=predictions,
            )

        heeds = request.mechanism.heeds_predictions
        is_used = find_strategy(queries.strategy).uses_representation
        queried = rounds.ask_in_rounds(
            queries if is_used else dataclasses.replace(queries, representation=None),
            pool,
            answers,
            with_students=heeds,
            choosing=lambda: reporting.clock("choosing queries"),
        )
    return _sealed(
        dataclasses.replace(
            queried, choice=request.choice, neighbours=look_alikes_of(queried.queries)
        ),
        ledger,
    )


def _sealed(labels: QueriedLabels, ledger: Ledger) -> QueriedLabels:
    return dataclasses.replace(labels, seal=ledger.seal(labels.record()))


@functools.cache
def _aggregation(num_classes: int) -> VoteAggregation:
    """Returns the counting graph, traced once."""
    return VoteAggregation(num_classes)
