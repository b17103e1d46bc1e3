"""Statements of several holders, each charged in its own ledger: of silos, of shared training."""

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
    """What all of one silo's answers in a run cost it together. Public.

    `delta` is 129 times the run's where a silo answered by several mechanisms, which the
    coordinator may have chosen by earlier answers.

    Attributes:
        name: of the silo.
        charged: what its answers were charged as, and how many of each.
        num_refused: queries that it refused by policy.
    """

    name: str
    charged: tuple[tuple[Charge, int], ...]
    num_refused: int

    @property
    def charges(self) -> Mapping[Charge, int]:
        """What its answers were charged as, and how many of each."""
        return dict(self.charged)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilosStatement(PrivacyStatement):
    """What may be published with a student of many holders; see `PrivacyStatement`.

    `unit` is "silo" with votes, "record" or "owner" with feature sums.

    Attributes:
        run_id: name of the run.
        query_strategy: how queries were chosen from the public pool.
        num_queries: queries that were asked.
        num_answered: queries that got a label.
        delta: the run's.
        silos: what each silo was charged.

    Raises:
        ValueError: if there is no silo.
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
            raise ValueError("silos: expected at least 1, got none")
        if (self.unit == "silo") != (self.sums is None):
            raise ValueError("unit: expected record or owner with feature sums, silo with votes")
        check_unit(self.unit, self.charges)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every mechanism that was used."""
        return tuple(dict.fromkeys(charge for silo in self.silos for charge in silo.charges))

    @property
    def sums(self) -> SecureFeatureSums | None:
        """The mechanism of feature sums; None where silos voted."""
        return next((each for each in self.charges if isinstance(each, SecureFeatureSums)), None)

    @property
    def secure(self) -> SecureFeatureSums | SecureHistogram | None:
        """The mechanism whose noise is shared; None where each silo draws its own."""
        kinds = (SecureFeatureSums, SecureHistogram)
        return next((each for each in self.charges if isinstance(each, kinds)), None)

    @property
    def num_charged(self) -> int:
        """How many silos answered."""
        return sum(any(silo.charges.values()) for silo in self.silos)

    @property
    def method(self) -> str:
        """How labels came about: "pate" or "feature_sums"."""
        return "pate" if self.sums is None else "feature_sums"

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a silo."""
        return max(silo.epsilon for silo in self.silos)

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Epsilon for what so many silos hold, all of it changed, at `several_delta`.

        Answers that were randomized in each silo compose: so many silos cost what all their answers
        cost together. Where silos share the noise, so many of them move the total by so many
        times as much, which is group privacy.
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
        """Returns epsilon at `several_delta` of so many neighbors, or of an owner replaced."""
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
        """The delta that `several` holds at; more than the run's if answers chose mechanisms."""
        return delta_of_chosen_kinds(self._most_charged(1), self.delta)

    def _most_charged(self, number: int) -> dict[Charge, int]:
        """Returns at least what any so many silos were charged together."""
        counts = {each: [silo.charges.get(each, 0) for silo in self.silos] for each in self.charges}
        return {each: sum(heapq.nlargest(number, counts[each])) for each in counts}

    @functools.cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        # Delta is 0 where all of it is purely private.
        stated = [pure_if_as_small(silo.charges, silo.epsilon, silo.delta) for silo in self.silos]
        of_silo = Guarantee(
            release="what one silo answered in this run, at most",
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
        """Names of silos, by what their answers cost: the cells of a row of the page."""
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
        """Checks that each silo's epsilon is that of its charges, and ledgers hold these.

        A silo's ledger may hold more: of other runs, and of answers that came too late. It says
        nothing of the other silos.
        """
        for silo in self.silos:
            due, _ = smallest_epsilon(silo.charges, self.delta)
            at_least("epsilon", silo.epsilon, due, f"for what {silo.name} answered")
            at_least("delta", silo.delta, delta_of_chosen_kinds(silo.charges, self.delta))
        by_name = {silo.name: silo for silo in self.silos}
        for store in stores:
            name = "" if store.opened is None else store.opened.details.get("silo", "")
            names = ", ".join(by_name)
            require(name in by_name, f"expected the ledger of one of {names}, got {store.folder}")
            for charge, number in by_name[name].charges.items():
                require(
                    store.charges[charge] >= number,
                    f"expected charges that the ledger of {name} holds, got "
                    f"{charge.several(number)}",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTrainingStatement(PrivacyStatement, EpsilonDelta):
    """What may be published with a model of shared training; see `PrivacyStatement`.

    `epsilon` is of the ledger that was charged most, for this run and everything else that it was
    charged for; infinite where there is no finite one, as without noise. `unit` is "record",
    "participant", or "none" without noise.

    Attributes:
        num_participants: how many trained together.
        num_parameters: how many the model has.
        upload: the fraction of the parameters in an upload.
        rounds: uploads of each participant.
        protocol: the order of turns.
        charge: what each ledger was charged; None without noise.
        epsilon_source: of a single record, for all releases charged to the source of a participant
            on its machine, at most; None if one of them kept no registry.
        delta_source: what that holds at; None as above.
        num_ledgers: how many ledgers were counted for it, at most; None as above.
        fewest_records: of a participant; None where participants are protected.
        ledger_heads: sequence and digest of the last row of each ledger: one in one process, else
            one of each participant.

    Raises:
        ValueError: if there is a charge without a unit, or the other way round.
    """

    system: ClassVar[str] = "shared training"
    units: ClassVar[Mapping[str, str]] = {
        "none": "nothing",
        "record": "each record of one participant",
        "participant": "all records of one participant together",
    }
    model: ClassVar[str] = "model"
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
        require(is_whole, "expected charge and unit, or none of both, got one")

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Epsilon, at `delta`, of this training for so many participants' uploads together.

        It holds for a person with a record, or with all protected records, at each of them: every
        participant adds noise of its own, so that uploads of several compose.
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
            release="this model, all uploads, and what else the participant's ledger was charged "
            "for, at most",
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
        """Checks that the statement says no less than the ledgers of participants.

        The heads that it quotes fix the rows before them: from these follow what each participant
        was charged, so that epsilon is no less, delta, resets and whether noise was secure. Ledgers
        of other participants, which lie with these, may be missing. Without any, epsilon is no less
        than that of the charge that is stated.
        """
        if self.charge is None:
            require(not stores, "it states no epsilon that ledgers could verify")
            return
        own, _ = smallest_epsilon({self.charge: 1}, self.delta)
        at_least("epsilon", self.epsilon, own, "for the charge that is stated")
        for store in stores:
            heads = [Head(sequence=number, digest=digest) for number, digest in self.ledger_heads]
            head = next((each for each in heads if store.holds(each)), None)
            if head is None:
                raise ValueError(
                    f"statement: expected a ledger with one of the rows that are quoted; that in "
                    f"{store.folder} has another history"
                )
            rows = [row for row in store.history() if row.sequence <= head.sequence]
            charges = charges_of(rows)
            require(charges[self.charge] > 0, "its ledger was not charged for this training")
            is_same = self.delta == store.delta
            require(is_same, f"expected the ledger's delta {store.delta:g}, got {self.delta:g}")
            spent, _ = smallest_epsilon(charges, self.delta)
            at_least("epsilon", self.epsilon, spent, "for all that the ledger was charged for")
            if self.epsilon_source is not None:
                there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
                at_least("epsilon_source", self.epsilon_source, there)
            was_reset = any(row.kind == "acknowledged" for row in rows)
            require(
                self.ledger_was_reset or not was_reset, "expected ledger_was_reset True, got False"
            )
            check_noise(self, rows)
