"""Privacy statements for silos and for shared training: each data holder has its own ledger."""

import dataclasses
import functools
import heapq
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pate_tf.accounting.composition import (
    Charge,
    delta_of_chosen_kinds,
    group_epsilon,
    several_teachers_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.core.settings import EpsilonDelta
from pate_tf.ledger import Head
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import charges_of
from pate_tf.statement.privacy_statement import (
    REPLACE_ONE,
    SEVERAL,
    Guarantee,
    PrivacyStatement,
    at_least,
    cell,
    check_noise,
    check_unit,
    delta_text,
    epsilon_text,
    pure_if_as_small,
    require,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSpending(EpsilonDelta):
    """Public: the total cost of a silo's answers in a run.

    If a silo answered with several mechanisms, `delta` is 129 times the delta of the run, because
    the coordinator may have chosen the mechanisms based on earlier answers.

    Attributes:
        name: name of the silo.
        charged: charges for the silo's answers, each with the number of times that it was made.
        num_refused: number of queries that the silo refused because of its policy.
    """

    name: str
    charged: tuple[tuple[Charge, int], ...]
    num_refused: int

    @property
    def charges(self) -> Mapping[Charge, int]:
        """The charges as a dictionary, each with the number of times that it was made."""
        return dict(self.charged)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilosStatement(PrivacyStatement):
    """The statement for a student that learned from the labels of silos; see `PrivacyStatement`.

    `unit` is "silo" for votes, and "record" or "owner" for feature sums.

    Attributes:
        run_id: name of the run.
        query_strategy: name of the strategy that chose queries from the public pool.
        num_queries: number of queries.
        num_answered: number of queries that got a label.
        delta: delta of the run.
        silos: cost of each silo.

    Raises:
        ValueError: if there is no silo, or the unit does not match the mechanisms.
    """

    system: ClassVar[str] = "silos"
    units: ClassVar[Mapping[str, str]] = {
        "silo": "everything that one silo holds",
        "record": "each record in one silo",
        "owner": "all records of one owner in one silo",
    }
    run_id: str
    query_strategy: str
    num_queries: int
    num_answered: int
    delta: float
    silos: tuple[SiloSpending, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.silos:
            raise ValueError("silos must contain at least one silo")
        if (self.unit == "silo") != (self.sums is None):
            raise ValueError("unit must be record or owner for feature sums, and silo for votes")
        check_unit(self.unit, self.charges)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All mechanisms that were charged to silos."""
        return tuple(dict.fromkeys(charge for silo in self.silos for charge in silo.charges))

    @property
    def sums(self) -> SecureFeatureSums | None:
        """The mechanism that released feature sums; None if silos voted."""
        return next((each for each in self.charges if isinstance(each, SecureFeatureSums)), None)

    @property
    def secure(self) -> SecureFeatureSums | SecureHistogram | None:
        """The mechanism of secure aggregation; None if each silo adds noise to its own answers."""
        kinds = (SecureFeatureSums, SecureHistogram)
        return next((each for each in self.charges if isinstance(each, kinds)), None)

    @property
    def num_charged(self) -> int:
        """The number of silos that answered and were charged."""
        return sum(any(silo.charges.values()) for silo in self.silos)

    @property
    def method(self) -> str:
        """The method of labeling: "pate" or "feature_sums"."""
        return "pate" if self.sums is None else "feature_sums"

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a silo."""
        return max(silo.epsilon for silo in self.silos)

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Maps a number of silos to the epsilon for all data of these silos together.

        Each epsilon holds at `several_delta`. If each silo randomized its own answers, the charges
        of several silos compose. If all silos contribute to the same noise, changing k silos moves
        the total k times as far (group privacy).
        """
        numbers = [number for number in SEVERAL if number < self.num_charged]
        if self.num_charged > 1:
            numbers.append(self.num_charged)
        if self.secure is None:
            return {
                number: smallest_epsilon(self._most_charged(number), self.delta)[0]
                for number in numbers
            }
        return {number: self._changed_epsilon(number) for number in numbers}

    def _changed_epsilon(self, number: int | None) -> float:
        """Returns epsilon at `several_delta` for `number` silos; for a replaced owner if None."""
        most = self._most_charged(1)
        if len(self.charges) == 1:
            return several_teachers_epsilon(most, delta=self.delta, num_teachers=number)
        delta = self.several_delta
        return group_epsilon(
            lambda smaller: smallest_epsilon(most, self.delta / delta * smaller)[0],
            delta,
            num_steps=number or 2,
        )

    @property
    def several_delta(self) -> float:
        """The delta of `several`: the run's delta, or more if mechanisms may depend on answers."""
        return delta_of_chosen_kinds(self._most_charged(1), self.delta)

    def _most_charged(self, number: int) -> dict[Charge, int]:
        """Returns an upper bound on the charges of any `number` silos together."""
        counts = {each: [silo.charges.get(each, 0) for silo in self.silos] for each in self.charges}
        return {each: sum(heapq.nlargest(number, counts[each])) for each in counts}

    @functools.cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        # Delta is 0 if all charges are pure.
        stated = [pure_if_as_small(silo.charges, silo.epsilon, silo.delta) for silo in self.silos]
        of_silo = Guarantee(
            release="all answers of one silo in this run, at most",
            epsilon=max(epsilon for epsilon, _ in stated),
            delta=max(delta for _, delta in stated),
            relation=self.neighbors,
        )
        if self.unit != "owner":
            return (of_silo,)
        replaced = Guarantee(
            release=of_silo.release,
            epsilon=self._changed_epsilon(None),
            delta=self.several_delta,
            relation=REPLACE_ONE,
        )
        return of_silo, replaced

    @property
    def table(self) -> Mapping[tuple[str, ...], Sequence[str]]:
        """The table of the page: maps each row, as a tuple of cells, to the names of its silos."""
        names: dict[tuple[str, ...], list[str]] = {}
        for silo in self.silos:
            epsilon, delta = pure_if_as_small(silo.charges, silo.epsilon, silo.delta)
            row = (
                "; ".join(charge.summary() for charge in silo.charges) or "none",
                f"{sum(silo.charges.values()):,}",
                f"{silo.num_refused:,}",
                epsilon_text(epsilon),
                delta_text(delta),
            )
            names.setdefault(row, []).append(cell(silo.name))
        return names

    def check(self, stores: Sequence[Store]) -> None:
        """Checks the epsilon of each silo against its charges, and the charges against ledgers.

        A silo's ledger can contain additional charges, for other runs and for answers that arrived
        too late. The ledger contains nothing about other silos.
        """
        for silo in self.silos:
            due, _ = smallest_epsilon(silo.charges, self.delta)
            at_least("epsilon", silo.epsilon, due, f"for the answers of {silo.name}")
            at_least("delta", silo.delta, delta_of_chosen_kinds(silo.charges, self.delta))
        by_name = {silo.name: silo for silo in self.silos}
        for store in stores:
            name = "" if store.opened is None else store.opened.details.get("silo", "")
            names = ", ".join(by_name)
            require(name in by_name, f"{store.folder} is not a ledger of its silos: {names}")
            for charge, number in by_name[name].charges.items():
                require(
                    store.charges[charge] >= number,
                    f"the ledger of {name} was not charged for {charge.several(number)}",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTrainingStatement(PrivacyStatement, EpsilonDelta):
    """The statement for a model from shared training; see `PrivacyStatement`.

    `epsilon` is the largest epsilon of a participant's ledger, and covers this run and everything
    else that was charged to the ledger. The value is infinite if there is no finite bound, for
    example if no noise is added. `unit` is "record", "participant", or "none" if there is no noise.

    Attributes:
        num_participants: number of participants.
        num_parameters: number of parameters of the model.
        upload: fraction of the parameters that an upload changes.
        rounds: number of uploads of each participant.
        protocol: protocol that determines the order of uploads.
        charge: the charge of this run in each ledger; None if there is no noise.
        epsilon_source: epsilon of all releases that were charged to a participant's source on its
            machine, for the participant with the largest value; None if a participant has no
            registry.
        delta_source: delta of `epsilon_source`; None if a participant has no registry.
        num_ledgers: number of ledgers of a participant's source, for the participant with the
            largest number; None if a participant has no registry.
        fewest_records: smallest number of records of a participant; None if participants are
            protected.
        ledger_heads: sequence number and digest of the last row of each ledger. There is one ledger
            if all participants were in one process, else one for each participant.

    Raises:
        ValueError: if there is a charge without a unit, or a unit without a charge.
    """

    system: ClassVar[str] = "shared training"
    units: ClassVar[Mapping[str, str]] = {
        "none": "nothing",
        "record": "each record of one participant",
        "participant": "all records of one participant together",
    }
    model = "model"
    file: ClassVar[str] = "shared_model_statement.json"
    num_participants: int
    num_parameters: int
    upload: float
    rounds: int
    protocol: str
    charge: Charge | None = None
    epsilon_source: float | None = None
    delta_source: float | None = None
    num_ledgers: int | None = None
    fewest_records: int | None = None
    ledger_heads: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        is_whole = (self.charge is None) == (self.unit == "none")
        require(is_whole, "it needs either both a charge and a protected unit, or neither")

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Maps a number of participants to the epsilon for all of their uploads together.

        Each epsilon holds at `delta`, for a person who has one record, or all protected records, at
        each of these participants. Every participant adds independent noise, so their uploads
        compose.
        """
        if self.charge is None or self.num_participants < 2:
            return {}
        numbers = [number for number in SEVERAL if number < self.num_participants]
        return {
            number: smallest_epsilon({self.charge: number}, self.delta)[0]
            for number in [*numbers, self.num_participants]
        }

    @functools.cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        if self.charge is None:
            return ()
        this = Guarantee(
            release="this model, all uploads, and everything else charged to the participant's "
            "ledger, at most",
            epsilon=self.epsilon,
            delta=self.delta,
            relation=REPLACE_ONE,
        )
        if self.epsilon_source is None:
            return (this,)
        plural = "" if self.num_ledgers == 1 else "s"
        counted = "" if self.num_ledgers is None else f" ({self.num_ledgers} ledger{plural})"
        source = f"all releases charged to a participant's source on its machine, at most{counted}"
        return this, dataclasses.replace(
            this,
            release=source,
            epsilon=self.epsilon_source,
            delta=self.delta if self.delta_source is None else self.delta_source,
        )

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that the statement claims no more privacy than the participants' ledgers show.

        The digests in `ledger_heads` cover all earlier rows. The rows show the charges of each
        participant, delta, whether the ledger was reset, and whether the noise was secure. The
        charges give a lower bound on epsilon. Ledgers of some participants may be missing. Without
        any ledgers, epsilon is only compared with the stated charge.
        """
        if self.charge is None:
            require(not stores, "it has no epsilon to check against ledgers")
            return
        own, _ = smallest_epsilon({self.charge: 1}, self.delta)
        at_least("epsilon", self.epsilon, own, "for the stated charge")
        for store in stores:
            heads = [Head(sequence=number, digest=digest) for number, digest in self.ledger_heads]
            head = next((each for each in heads if store.holds(each)), None)
            if head is None:
                raise ValueError(f"statement: its ledger rows are not in {store.folder}")
            rows = [row for row in store.history() if row.sequence <= head.sequence]
            charges = charges_of(rows)
            require(charges[self.charge] > 0, "its ledger was not charged for this training")
            is_same = self.delta == store.delta
            require(is_same, f"delta is {self.delta:g}, but {store.delta:g} in the ledger")
            spent, _ = smallest_epsilon(charges, self.delta)
            at_least("epsilon", self.epsilon, spent, "for all charges of the ledger")
            if self.epsilon_source is not None:
                there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
                at_least("epsilon_source", self.epsilon_source, there)
            was_reset = any(row.kind == "acknowledged" for row in rows)
            is_reset = self.ledger_was_reset or not was_reset
            require(is_reset, "ledger_was_reset is False, but True in the ledger")
            check_noise(self, rows)
