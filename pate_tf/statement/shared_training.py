"""The privacy statement of a model that participants trained together."""

import dataclasses
from collections.abc import Mapping, Sequence
from math import exp, isfinite
from typing import Any, Final

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.noisy_training import Training, training_from_dict
from pate_tf.statement.privacy_statement import (
    is_delta_large,
    largest_share_of_right_guesses,
    to_html,
)

NO_GUARANTEE: Final = (
    "**There is no privacy guarantee.** No noise was added to what participants uploaded. Choosing "
    "few of the parameters, clipping and sending few bytes protect nobody: uploads of a tenth of "
    "the parameters tell about as much about single records as uploads of all."
)
SEEDED: Final = (
    "**Nothing here is private.** The noise came from a seed, so whoever knows the seed can take "
    "it away. The numbers below would hold for real noise; they promise nothing here."
)
PROTECTED: Final = {
    "record": "one record of one participant, against replacement by any other record",
    "participant": "all records of one participant together, against replacement by any others",
}
PROMISES: Final = (
    "Whatever anybody concludes from the model, from all uploads and from any other knowledge, the "
    "server and all other participants together included: the probability of that conclusion is at "
    "most exp(epsilon) times what it would be with {changed} replaced, plus delta. It holds for "
    "every possible data set."
)
CHANGED: Final = {"record": "that record", "participant": "that participant's records"}
ASSUMPTIONS: Final = (
    "Each participant runs this program as it is, and keeps its noise and, where records are "
    "drawn, which were drawn, to itself.",
    "Settings, the first parameters and the choice of what is uploaded do not depend on private "
    "records.",
    "The noise is drawn from the operating system's entropy, on a lattice in whole numbers; it "
    "costs no more than the continuous noise that was accounted for.",
    "How many records each participant has is public where single records are protected.",
    "A run goes on in one place. Of copies of its folder one alone goes on where the same user "
    "on the same machine starts them; elsewhere nothing notices a copy, and what it draws adds to "
    "epsilon.",
    "What ensembles and other runs of the same records released adds to epsilon, too; the sum of "
    "all that is known of stands beside it.",
)
NOT_COVERED: Final = (
    "Who took part, how many records each has, the sizes and times of messages; how long a round "
    "takes depends on how many records were drawn.",
    "How good the model is for single participants: such numbers are in the report, not here.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTrainingStatement:
    """What may be published beside a model of shared training.

    Attributes:
      dataset: name of the data set.
      num_participants: how many trained together.
      num_parameters: how many the model has.
      upload: the share of the parameters in an upload.
      rounds: uploads of each participant.
      protocol: the order of turns.
      charge: what each ledger was charged; None without noise.
      epsilon: of the ledger that was charged most, for this run and whatever else it was charged
        for; None without noise.
      delta: what it holds at; None likewise.
      unit: what is protected, "record" or "participant"; None likewise.
      epsilon_all_ensembles: of a single record, for all ensembles and runs of the same records that
        are known to the users who ran the participants; None if one of them kept no account.
      delta_all_ensembles: what that holds at; None likewise.
      num_ledgers: how many ledgers were counted for it, at most; None likewise.
      holders: how many participants hold the same record at most; its costs are added up.
      fewest_records: of a participant; None where participants are protected.
      ledger_heads: sequence and digest of the last row of each ledger: one in one process, else one
        of each participant.
      secure_noise: False if noise came from a seed.
      ledger_was_reset: whether a participant went on although an earlier ledger was gone.
      student_digest: SHA-256 of the model's weights, under the name that every served model's has.
      versions: version of each library that took part.

    Raises:
      ValueError: if there is a charge without epsilon, or the other way round.
    """

    dataset: str
    num_participants: int
    num_parameters: int
    upload: float
    rounds: int
    protocol: str
    charge: Training | None = None
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None
    holders: int = 1
    fewest_records: int | None = None
    ledger_heads: tuple[tuple[int, str], ...] = ()
    secure_noise: bool = True
    ledger_was_reset: bool = False
    student_digest: str
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        given = [one is not None for one in (self.charge, self.epsilon, self.delta, self.unit)]
        if len(set(given)) != 1:
            raise ValueError("statement: expected charge, epsilon, delta and unit, or none of them")
        if self.unit is not None and self.unit not in PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(PROTECTED)}, got {self.unit!r}")

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if self.charge is None:
            return "none: nothing was noised, so there is no guarantee"
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return "data-independent, worst case over all data sets, publishable"

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; an infinite epsilon is None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        is_finite = self.epsilon is not None and isfinite(self.epsilon)
        return {
            **fields,
            "statement": "shared training",
            "kind": self.kind,
            "charge": None if self.charge is None else self.charge.to_dict(),
            "epsilon": self.epsilon if is_finite else None,
            "ledger_heads": [list(head) for head in self.ledger_heads],
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "SharedTrainingStatement":
        """Rebuilds a statement from `to_dict()`, also after a trip through JSON.

        Raises:
          ValueError: if it is none.
        """
        try:
            names = [field.name for field in dataclasses.fields(cls)]
            facts = {name: fields[name] for name in names}
            if facts["charge"] is not None:
                facts["charge"] = training_from_dict(facts["charge"])
            facts["ledger_heads"] = tuple(
                (int(sequence), str(digest)) for sequence, digest in facts["ledger_heads"]
            )
            return cls(**facts)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"statement: expected one of shared training, got none: {error}"
            ) from error

    def to_markdown(self) -> str:
        """Returns the statement as a page; all of it may be published."""
        lines = ["# Privacy statement", ""]
        if self.charge is None:
            lines += [NO_GUARANTEE, ""]
        elif not self.secure_noise:
            lines += [SEEDED, ""]
        if self.ledger_was_reset:
            lines += [
                "**A ledger went on although an earlier one, or rows of it, were gone; what they "
                "charged is counted as far as it is known.**",
                "",
            ]
        lines += [
            f"{self.num_participants:,} participants trained a model of {self.num_parameters:,} "
            f"parameters on records of `{self.dataset}` that stayed with each of them. In each of "
            f"{self.rounds:,} rounds ({self.protocol}) each uploaded changes of at most "
            f"{self.upload:.4g} of the parameters.",
            "",
        ]
        if self.charge is not None:
            lines += self._guarantee()
        lines += [
            "## How to check it",
            "",
            *_table(
                ("", ""),
                ("digest of the model's weights", f"`{self.student_digest}`"),
                *(
                    (f"ledger {number} at row {sequence}", f"`{digest}`")
                    for number, (sequence, digest) in enumerate(self.ledger_heads)
                ),
                ("made with", ", ".join(f"{k} {v}" for k, v in self.versions.items())),
            ),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [("kind", self.kind), ("participants", f"{self.num_participants:,}")]
        if self.epsilon is not None:
            rows += [("epsilon", rounded_up(self.epsilon)), ("delta", f"{self.delta:g}")]
            rows.append(("one record, in all ensembles and runs", self._of_all_ensembles()))
        return to_html("Privacy statement", rows)

    def _of_all_ensembles(self) -> str:
        if self.epsilon_all_ensembles is None:
            return "not known: no account was kept of other ensembles and runs"
        counted = "1 ledger" if self.num_ledgers == 1 else f"{self.num_ledgers} ledgers"
        return (
            f"epsilon **{rounded_up(self.epsilon_all_ensembles)}** at delta "
            f"{self.delta_all_ensembles:g}, as far as known ({counted})"
        )

    def _guarantee(self) -> list[str]:
        if self.charge is None or self.epsilon is None or self.delta is None or self.unit is None:
            return []
        is_finite = isfinite(self.epsilon)
        share = 100.0 * largest_share_of_right_guesses(self.epsilon, self.delta)
        lines = [self.charge.in_words(), ""]
        if self.holders > 1:
            lines += [
                f"A record may be held by up to {self.holders} participants; the epsilon below "
                f"counts all of them.",
                "",
            ]
        if self.fewest_records and is_delta_large(self.delta, self.fewest_records):
            lines += [
                f"**Delta is large**: above a tenth of one over {self.fewest_records:,}, the "
                f"records of the smallest participant.",
                "",
            ]
        promise = PROMISES.format(changed=CHANGED[self.unit])
        return [
            *lines,
            "## What is promised",
            "",
            *_table(
                ("", ""),
                ("protected", PROTECTED[self.unit]),
                ("epsilon", f"**{rounded_up(self.epsilon)}**" if is_finite else "infinite"),
                ("delta", f"{self.delta:g}"),
                ("one record, in all ensembles and runs", self._of_all_ensembles()),
                ("kind", self.kind),
                ("right guesses between two candidates", f"at most {rounded_up(share)} %"),
                ("exp(epsilon)", f"{exp(min(self.epsilon, 700.0)):.3g}"),
            ),
            promise if self.secure_noise else SEEDED,
            "",
            "## What was assumed",
            "",
            *(f"- {sentence}" for sentence in ASSUMPTIONS),
            "",
            "## What is not covered",
            "",
            *(f"- {sentence}" for sentence in NOT_COVERED),
            "",
        ]


def _table(*rows: Sequence[str]) -> list[str]:
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|" + "---|" * len(rows[0]), *rest, ""]
