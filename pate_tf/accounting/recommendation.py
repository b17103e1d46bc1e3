"""Which mechanism, with how much noise: what came of comparing all of them, before any vote.

Everything here is computed from public values. The comparison rests on an assumption about how far
teachers agree; what the labels cost does not.
"""

from __future__ import annotations

import dataclasses
import html
import textwrap
from typing import Any, Final

from pate_tf.accounting.assumed_votes import AssumedVotes
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.mechanisms import Mechanism, Parameter
from pate_tf.accounting.target import Target

WIDTH: Final = 96


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One mechanism, with the least noise that keeps to the target. Public.

    Attributes:
        mechanism: with its noise.
        epsilon: what the labels cost, whatever the votes; never above the target.
        expected_right: expected number of right labels, if the assumption holds.
        expected_right_at_half: the same if teachers agree half as well.
    """

    mechanism: Mechanism
    epsilon: float
    expected_right: float
    expected_right_at_half: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Mechanisms compared within one budget, the recommended one first. Public.

    Attributes:
        target: what the labels may cost.
        assumed: the votes that are assumed.
        candidates: at least one; the first is recommended.
        is_num_queries_planned: whether the number of queries is a part of the recommendation.
        strategy: how queries are chosen: typical ones, which what is assumed of votes is about,
            unless the plan is for others.
        purpose: what the labels are for, if single labels need not be right; in sentences.
    """

    target: Target
    assumed: AssumedVotes
    candidates: tuple[Candidate, ...]
    is_num_queries_planned: bool = False
    strategy: str = "typical"
    purpose: str = ""

    @property
    def mechanism(self) -> Mechanism:
        """The recommended mechanism."""
        return self.candidates[0].mechanism

    @property
    def num_queries(self) -> int:
        """How many queries to ask."""
        return self.target.num_queries

    @property
    def expected_share(self) -> float:
        """Expected share of the queries that get a right label, if the assumption holds."""
        return self.candidates[0].expected_right / self.num_queries

    @property
    def flags(self) -> tuple[str, ...]:
        """What to type for the recommended one: flags of `train_student.py`."""
        if "flags" in self.mechanism.lacks:  # a plan alone gives its numbers
            typed: tuple[str, ...] = (f"--target_epsilon={self.target.epsilon!r}",)
        else:
            typed = mechanism_flags(self.mechanism, delta=self.target.delta)
            if self.purpose:
                typed = (f"--query_strategy={self.strategy}", *typed)
        return (
            f"--nb_teachers={self.assumed.num_teachers}",
            f"--queries={self.num_queries}",
            f"--delta={self.target.delta!r}",
            *typed,
        )

    @property
    def reason(self) -> str:
        """Why this one, and that no vote had a say; for statements and reports."""
        number = ", noise and number of queries" if self.is_num_queries_planned else " and noise"
        return (
            f"Mechanism{number} were chosen from a plan, not from votes: for epsilon "
            f"{self.target.epsilon:g} at delta {self.target.delta:g} and {self.num_queries:,} "
            f"queries, assuming that {self.assumed.in_words()}. Under that assumption "
            f"{self.mechanism.name} labels {_share(self.expected_share)} of the queries right. The "
            f"assumption is from public values; what the labels cost does not depend on it."
            f"{' ' if self.purpose else ''}{self.purpose}"
        )

    def in_words(self) -> str:
        """Returns the comparison as a table in text, with what it rests on and what to type."""
        names = [one.mechanism.name for one in self.candidates]
        width = max(map(len, names))
        lines = [
            f"Plan for epsilon {self.target.epsilon:g} at delta {self.target.delta:g}, "
            f"{self._protected()}, and {self.num_queries:,} queries",
            "",
            f"  {'mechanism'.ljust(width)}  epsilon  right labels  at half the margin",
        ]
        for name, one in zip(names, self.candidates, strict=True):
            lines.append(
                f"  {name.ljust(width)}  {self._epsilon(one.epsilon):>7}  "
                f"{self._right(one.expected_right):>12}  "
                f"{self._right(one.expected_right_at_half):>18}"
            )
        return "\n".join(
            [
                *lines,
                "",
                f"Recommended: {self.mechanism.name}",
                f"  {' '.join(self.flags)}",
                "",
                *(textwrap.fill(sentence, WIDTH) for sentence in self.sentences()),
            ]
        )

    __str__ = in_words

    def sentences(self) -> list[str]:
        """Returns what the comparison rests on, a sentence or two each."""
        found = [
            f"Assumed, not measured: {self.assumed.in_words()}. That is a guess from public "
            f"values, and an optimistic one where people disagree. If teachers agree less, fewer "
            f"labels are right; epsilon holds whatever the votes."
        ]
        if self.mechanism.is_paid_once and not self.purpose:
            found.append(
                f"Labels of {self.mechanism.name} leave together or not at all, and the query that "
                f"teachers agree on least decides: ask typical ones."
            )
        if self.purpose:
            found.append(self.purpose)
        elif self.expected_share < 0.9:
            found.append(
                "No mechanism labels nine in ten queries right: take more teachers, a larger "
                "epsilon or fewer queries."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "target_epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "unit": self.target.unit,
            "num_changed_teachers": self.target.num_changed_teachers,
            "queries": self.num_queries,
            "queries_were_planned": self.is_num_queries_planned,
            "assumed": {**dataclasses.asdict(self.assumed), "in_words": self.assumed.in_words()},
            "candidates": [
                {**vars(one), "mechanism": one.mechanism.to_dict()} for one in self.candidates
            ],
            "flags": list(self.flags),
            "reason": self.reason,
        }

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.in_words())}</pre>"

    def _protected(self) -> str:
        number = self.target.num_changed_teachers
        if self.target.unit == "owner" and number == 2:
            return "against replacing one owner by another"
        several = f"{number} {self.target.unit}s at once" if number > 1 else f"{self.target.unit}"
        return f"for {several if number > 1 else 'every ' + several}"

    def _epsilon(self, epsilon: float) -> str:
        # Rounding up must not make a number that keeps to the target look as if it did not.
        shown = rounded_up(epsilon)
        return shown if float(shown) <= self.target.epsilon else f"{self.target.epsilon:.12g}"

    def _right(self, expected: float) -> str:
        return f"{expected:,.1f} {_share(expected / self.num_queries):>8}"


def mechanism_flags(mechanism: Mechanism, *, delta: float) -> tuple[str, ...]:
    """Returns the flags that give a mechanism: `--mechanism=NAME` and its parameters.

    Numbers are rounded to nine digits, towards more noise.

    Args:
        mechanism: any that is offered.
        delta: of the labels, which some parameters are unless they are given.
    """
    fields = dataclasses.asdict(mechanism)
    return (
        f"--mechanism={mechanism.name}",
        *(
            f"--{one.flag.name}={one.flag.shown(fields[one.field])}"
            for one in mechanism.parameters
            if fields[one.field] != _by_default(one, delta)
        ),
    )


def _by_default(parameter: Parameter, delta: float) -> float:
    # Flags that are not about delta are left out at 0, where they do nothing.
    return parameter.flag.by_default({"delta": delta}) if parameter.flag.same_as else 0.0


def _share(value: float) -> str:
    """Returns a share in per cent; all and nearly all are told apart."""
    return f"{int(value * 1000.0 + 1e-6) / 10.0:.1f} %"
