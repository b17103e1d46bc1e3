"""The statement of a model that participants trained together."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.ledger import Head
from pate_tf.ledger.chain import charges_of
from pate_tf.ledger.store import Store
from pate_tf.statement.labels import at_least, check_noise
from pate_tf.statement.privacy_statement import (
    ENTROPY,
    WORST_CASE,
    Guarantee,
    PrivacyStatement,
)

NO_GUARANTEE: Final = (
    "**There is no privacy guarantee.** No noise was added to what participants uploaded. Choosing "
    "few of the parameters, clipping and sending few bytes protect no one: uploads of a tenth of "
    "the parameters tell about as much about single records as uploads of all."
)
PROTECTED: Final = {
    "record": "one record of one participant, against replacement by any other record",
    "participant": "all records of one participant together, against replacement by any others",
}
CHANGED: Final = {"record": "that record", "participant": "that participant's records"}
PROMISE: Final = (
    "Any conclusion from the model, from all uploads and from any other knowledge, the server and "
    "all other participants together included, has a probability of at most exp(epsilon) times "
    "what it would be with {changed} replaced, plus delta. It holds for every possible data set."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTrainingStatement(PrivacyStatement):
    """What may be published with a model of shared training; see `PrivacyStatement`.

    Attributes:
        num_participants: how many trained together.
        num_parameters: how many the model has.
        upload: the share of the parameters in an upload.
        rounds: uploads of each participant.
        protocol: the order of turns.
        charge: what each ledger was charged; None without noise.
        epsilon: of the ledger that was charged most, for this run and everything else that it was
            charged for; infinite where there is no finite one, None without noise.
        delta: what it holds at; None without noise.
        unit: what is protected, "record" or "participant"; None without noise.
        epsilon_all_ensembles: of a single record, for all ensembles and runs of the same records
            that are known to the users who ran the participants; None if one of them kept no
            account.
        delta_all_ensembles: what that holds at; None as above.
        num_ledgers: how many ledgers were counted for it, at most; None as above.
        holders: how many participants hold the same record at most; its costs are added up.
        fewest_records: of a participant; None where participants are protected.
        ledger_heads: sequence and digest of the last row of each ledger: one in one process, else
            one of each participant.

    Raises:
        ValueError: if there is a charge without delta and unit, or the other way round.
    """

    system: ClassVar[str] = "shared training"
    num_participants: int
    num_parameters: int
    upload: float
    rounds: int
    protocol: str
    charge: Charge | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None
    holders: int = 1
    fewest_records: int | None = None
    ledger_heads: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if len({one is None for one in (self.charge, self.delta, self.unit)}) != 1 or (
            self.charge is None and self.epsilon is not None
        ):
            raise ValueError(
                "statement: expected charge, epsilon, delta and unit, or none, got some"
            )
        if self.unit is not None and self.unit not in PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(PROTECTED)}, got {self.unit!r}")
        if self.charge is not None and self.epsilon is None:  # JSON has no infinity
            object.__setattr__(self, "epsilon", inf)

    @property
    def kind(self) -> str:  # noqa: D102
        if self.charge is None:
            return "none: nothing was noised, so there is no guarantee"
        return super().kind

    @property
    def protected(self) -> str:  # noqa: D102
        return "nothing" if self.unit is None else PROTECTED[self.unit]

    def warnings(self) -> Sequence[str]:  # noqa: D102
        found = [NO_GUARANTEE] if self.charge is None else [*super().warnings()]
        if self.ledger_was_reset:
            found.append(
                "**A ledger went on although an earlier one, or rows of it, were gone; what they "
                "charged is counted as far as it is known.**"
            )
        return found

    def introduction(self) -> str:  # noqa: D102
        return (
            f"{self.num_participants:,} participants trained a model of {self.num_parameters:,} "
            f"parameters on records of `{self.dataset}` that stayed with each of them. In each of "
            f"{self.rounds:,} rounds ({self.protocol}) each uploaded changes of at most "
            f"{self.upload:.4g} of the parameters."
            + ("" if self.charge is None else f" {self.charge.in_words()}")
        )

    def facts(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        yield "participants", f"{self.num_participants:,}"
        if self.holders > 1:
            yield "a record is held by", f"up to {self.holders} participants, all of them counted"
        if self.charge is not None and self.epsilon_all_ensembles is None:
            words = "not known: no account was kept of other ensembles and runs"
            yield "one record, in all ensembles and runs", words

    def promised(self) -> tuple[Guarantee, ...]:  # noqa: D102
        if self.unit is None:
            return ()
        promise = PROMISE.format(changed=CHANGED[self.unit])
        found = Guarantee(
            kind=WORST_CASE,
            covers="this run, and what else its ledgers were charged for",
            epsilon=self.epsilon,
            delta=self.delta,
            promises=promise,
        )
        if self.epsilon_all_ensembles is None:
            return (found,)
        counted = "1 ledger" if self.num_ledgers == 1 else f"{self.num_ledgers} ledgers"
        return found, dataclasses.replace(
            found,
            covers=f"one record, in all ensembles and runs, as far as known ({counted})",
            epsilon=self.epsilon_all_ensembles,
            delta=self.delta_all_ensembles,
        )

    def not_released(self) -> Sequence[str]:  # noqa: D102
        noise = "" if self.charge is None else " and the noise was added"
        return (
            "The participants' records.",
            f"Gradients, and changes of parameters before some were selected{noise}: the raw sums.",
            "Which records were drawn in a round.",
        )

    def assumptions(self) -> Sequence[str]:  # noqa: D102
        return (
            "Each participant runs this program as it is, and keeps its noise and, where records "
            "are drawn, which were drawn, to itself.",
            "Settings, the first parameters and the choice of what is uploaded do not depend on "
            "private records.",
            "How many records each participant has is public where single records are protected.",
            "A run goes on in one place. Of copies of its folder only one goes on where the same "
            "user on the same machine starts them; elsewhere nothing notices a copy, and what it "
            "draws adds to epsilon.",
            "What ensembles and other runs of the same records released adds to epsilon, too.",
            *(
                [
                    f"{ENTROPY} It is on a lattice in whole numbers, which costs no more than the "
                    f"continuous noise that was accounted for."
                ]
                if self.charge is not None and self.secure_noise
                else []
            ),
        )

    def not_covered(self) -> Sequence[str]:  # noqa: D102
        return (
            "Who took part, how many records each has, the sizes and times of messages; how long a "
            "round takes depends on how many records were drawn.",
            "How good the model is for single participants: such numbers are in the report, not "
            "here.",
        )

    def evidence(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        for number, (sequence, digest) in enumerate(self.ledger_heads):
            yield f"ledger {number} at row {sequence}", f"`{digest}`"

    def derived(self) -> Mapping[str, Any]:  # noqa: D102
        return {"method": "shared_training"}

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
            head = next((one for one in heads if store.holds(one)), None)
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
            if self.epsilon_all_ensembles is not None:
                there, _ = smallest_epsilon(charges, self.delta_all_ensembles or self.delta)
                at_least("epsilon_all_ensembles", self.epsilon_all_ensembles, there)
            if any(row.kind == "acknowledged" for row in rows) and not self.ledger_was_reset:
                raise ValueError("statement: expected ledger_was_reset True, got False")
            check_noise(self, rows)
