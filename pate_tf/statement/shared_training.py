"""The statement of a model that participants trained together."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar, Final

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.ledger import Head
from pate_tf.ledger.journal import Store, charges_of
from pate_tf.statement.privacy_statement import (
    REPLACE_ONE,
    SEVERAL,
    Guarantee,
    PrivacyStatement,
    at_least,
    check_noise,
    several_text,
    short,
)

PROTECTED: Final = {
    "record": "each record of one participant",
    "participant": "all records of one participant together",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTrainingStatement(PrivacyStatement):
    """What may be published with a model of shared training; see `PrivacyStatement`.

    Attributes:
        num_participants: how many trained together.
        num_parameters: how many the model has.
        upload: the fraction of the parameters in an upload.
        rounds: uploads of each participant.
        protocol: the order of turns.
        charge: what each ledger was charged; None without noise.
        epsilon: of the ledger that was charged most, for this run and everything else that it was
            charged for; infinite where there is no finite one, None without noise.
        delta: what it holds at; None without noise.
        unit: what is protected, "record" or "participant"; None without noise.
        epsilon_source: of a single record, for all releases charged to the source of a participant
            on its machine, at most; None if one of them kept no registry.
        delta_source: what that holds at; None as above.
        num_ledgers: how many ledgers were counted for it, at most; None as above.
        fewest_records: of a participant; None where participants are protected.
        ledger_heads: sequence and digest of the last row of each ledger: one in one process, else
            one of each participant.

    Raises:
        ValueError: if there is a charge without delta and unit, or the other way round.
    """

    system: ClassVar[str] = "shared training"
    model: ClassVar[str] = "model"
    file: ClassVar[str] = "shared_model_statement.json"
    num_participants: int
    num_parameters: int
    upload: float
    rounds: int
    protocol: str
    charge: Charge | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    epsilon_source: float | None = None
    delta_source: float | None = None
    num_ledgers: int | None = None
    fewest_records: int | None = None
    ledger_heads: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if len({value is None for value in (self.charge, self.delta, self.unit)}) != 1 or (
            self.charge is None and self.epsilon is not None
        ):
            raise ValueError(
                "statement: expected charge, epsilon, delta and unit, or none, got some"
            )
        if self.unit is not None and self.unit not in PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(PROTECTED)}, got {self.unit!r}")
        if self.charge is not None and self.epsilon is None:  # JSON has no infinity
            object.__setattr__(self, "epsilon", inf)

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Epsilon, at `delta`, of this training for so many participants' uploads together.

        It holds for a person with a record, or with all protected records, at each of them: every
        participant adds noise of its own, so that uploads of several compose.
        """
        if self.charge is None or self.delta is None or self.num_participants < 2:
            return {}
        numbers = {number for number in SEVERAL if number < self.num_participants}
        return {
            number: smallest_epsilon({self.charge: number}, self.delta)[0]
            for number in sorted({*numbers, self.num_participants})
        }

    @property
    def protected(self) -> str:  # noqa: D102
        return "nothing" if self.unit is None else PROTECTED[self.unit]

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        if self.epsilon is None or self.delta is None:
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

    def facts(self) -> Mapping[str, object]:  # noqa: D102
        heads = [f"{sequence} ({short(digest)})" for sequence, digest in self.ledger_heads]
        return {
            self.unit or "no noise": True,
            "registered": self.epsilon_source is not None,
            "trained_on": f"the private records of {self.num_participants:,} participants",
            "unit": self.unit,
            "rounds": f"{self.rounds:,}",
            "protocol": self.protocol,
            "upload": f"{self.upload:.3g}",
            "num_parameters": f"{self.num_parameters:,}",
            "mechanism": "" if self.charge is None else self.charge.in_words(),
            "several": several_text(self.several, self.delta or 0.0),
            "verified_with": "--ledger=LEDGER_OF_A_PARTICIPANT",
            "evidence": f"Ledger heads {', '.join(heads) or 'none'}",
        }

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that the statement says no less than the ledgers of participants.

        The heads that it quotes fix the rows before them: from these follow what each participant
        was charged, so that epsilon is no less, delta, resets and whether noise was secure. Ledgers
        of other participants, which lie with these, may be missing; at least one is needed.
        """
        if self.charge is None or self.delta is None or self.epsilon is None:
            if stores:
                raise ValueError("statement: it states no epsilon that ledgers could verify")
            return
        if not stores:
            raise ValueError("statement: expected a ledger to check it by, got none")
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
            if not charges[self.charge]:
                raise ValueError("statement: its ledger was not charged for this training")
            if self.delta != store.delta:
                raise ValueError(
                    f"statement: expected the ledger's delta {store.delta:g}, got {self.delta:g}"
                )
            spent, _ = smallest_epsilon(charges, self.delta)
            at_least("epsilon", self.epsilon, spent, "for all that the ledger was charged for")
            if self.epsilon_source is not None:
                there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
                at_least("epsilon_source", self.epsilon_source, there)
            if any(row.kind == "acknowledged" for row in rows) and not self.ledger_was_reset:
                raise ValueError("statement: expected ledger_was_reset True, got False")
            check_noise(self, rows)
