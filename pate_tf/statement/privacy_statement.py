"""The privacy statement: what a student's labels cost, what that promises, and what it assumes."""

import dataclasses
import functools
from math import isfinite
from typing import Any, Final

from pate_tf.accounting.charge import Charge, charges_to_list, rounded_up
from pate_tf.accounting.moved_teachers import several_teachers_epsilon
from pate_tf.statement import words
from pate_tf.statement.facts import StatedFacts
from pate_tf.statement.guarantees import (
    Guarantee,
    guarantees,
    is_delta_large,
    largest_share_of_right_guesses,
)
from pate_tf.statement.html import to_html

SEVERAL: Final = (2, 5)


@functools.lru_cache(maxsize=64)
def _several_epsilon(paid: tuple[tuple[Charge, int], ...], delta: float, several: int) -> float:
    return several_teachers_epsilon(dict(paid), delta=delta, num_teachers=several)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement(StatedFacts):
    """What may be published beside a student, in numbers and in words.

    Its attributes, and the errors that making one raises, are those of `StatedFacts`.
    """

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return "data-independent, worst case over all data sets, publishable"

    @property
    def several(self) -> dict[int, float]:
        """Epsilon, at delta, of this student's labels for several records or owners at once.

        From how many there are, 2 and 5, to an epsilon that protects all of them together.
        """
        return {
            number: _several_epsilon(tuple(self.paid.items()), self.delta, number)
            for number in SEVERAL
        }

    @property
    def delta_times_records(self) -> float | None:
        """Delta times the number of private records; None where that is not known or not public."""
        return None if self.num_records is None else self.delta * self.num_records

    @property
    def is_delta_large(self) -> bool:
        """Whether delta is above a tenth of one over the number of private records."""
        return self.num_records is not None and is_delta_large(self.delta, self.num_records)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Every kind of epsilon, those without a number too."""
        return guarantees(self)

    @property
    def not_covered(self) -> list[str]:
        """What the guarantees leave out, a sentence each."""
        return words.not_covered(self.unit, self.delta, self.num_records)

    @property
    def one_ledger(self) -> list[str]:
        """What the numbers of the ensemble rest on, and what could not be checked."""
        return words.one_ledger(
            was_reset=self.ledger_was_reset,
            is_registered=(self.num_ledgers, self.epsilon_all_ensembles) != (None, None),
            is_counted=self.epsilon_all_ensembles is not None,
            records_are_known=self.records_are_known,
        )

    def _repr_html_(self) -> str:
        promised = [one for one in self.guarantees if one.epsilon is not None]
        rows = [
            ("kind", "covers", "epsilon", "delta", "to whom"),
            *(
                (one.kind, one.covers, rounded_up(one.epsilon), f"{one.delta:g}", one.to_whom)
                for one in promised
                if one.epsilon is not None
            ),
            ("protected", words.PROTECTED[self.unit]),
            ("mechanism", self.mechanism.in_words()),
            ("queries", f"{self.num_answered:,} of {self.num_queries:,} answered"),
            *([("chosen", self.choice)] if self.choice else []),
            *([] if self.secure_noise else [("privacy", words.NOT_PRIVATE)]),
        ]
        return to_html("Privacy statement", rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the attributes, and in words whatever the page says."""
        return {
            **dataclasses.asdict(self),
            "mechanism": self.mechanism.to_dict(),
            "paid_before": charges_to_list(self.paid_before),
            "ledger_rows": list(self.ledger_rows),
            "ledger_head": list(self.ledger_head),
            "kind": self.kind,
            "protected": words.PROTECTED[self.unit],
            "mechanism_in_words": self.mechanism.in_words(),
            "guarantees": [dataclasses.asdict(guarantee) for guarantee in self.guarantees],
            "largest_share_of_right_guesses": largest_share_of_right_guesses(
                self.epsilon, self.delta
            )
            if self.secure_noise
            else None,
            "assumptions": words.assumptions(
                self.unit,
                self.query_strategy,
                secure_noise=self.secure_noise,
                by_sums=self.mechanism.adds_records,
            ),
            "not_covered": self.not_covered,
            "several": [
                {"number": number, "epsilon": epsilon if isfinite(epsilon) else None}
                for number, epsilon in self.several.items()
            ],
            "delta_times_records": self.delta_times_records,
            "is_delta_large": self.is_delta_large,
            "one_ledger": self.one_ledger,
        }
