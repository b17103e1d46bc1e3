"""The privacy statement: what a student's labels cost, what that promises, and what it assumes."""

import dataclasses
import functools
import html
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final, Self

from pate_tf.accounting.charge import Charge, charges_to_list, rounded_up
from pate_tf.accounting.charges import charges_from_list
from pate_tf.accounting.divergences import expit
from pate_tf.accounting.group_privacy import replaced_owner_epsilon, several_teachers_epsilon
from pate_tf.accounting.mechanisms import mechanism_from_dict
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.analysis.release_results import SanitisedEpsilon
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.statement import words

# Tables as a notebook renders them.


def to_html(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table under a title; all texts are escaped.

    Args:
      title: what it is a table of.
      rows: the texts of each, the first of them its name.
    """
    lines = [f"<p><strong>{html.escape(title)}</strong></p>", "<table>"]
    for name, *values in rows:
        cells = "".join(f"<td>{html.escape(value)}</td>" for value in values)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</table>"])


# The numbers of a privacy statement, as they are kept and read back.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sanitised:
    """A sanitised epsilon that was published beside a student, for all votes of its ensemble.

    Attributes:
      epsilon: of the labels and of the release itself, for these votes.
      delta: what both epsilons hold at.
      confidence: probability that the release's own noise did not make `epsilon` too small.
      worst_case_epsilon: data-independent, of the labels and of the release together.
      plan_was_fixed: whether its plan was fixed before there were votes, as the ledger shows.
    """

    epsilon: float
    delta: float
    confidence: float
    worst_case_epsilon: float
    plan_was_fixed: bool = False

    @classmethod
    def of(cls, released: SanitisedEpsilon, *, plan_was_fixed: bool) -> "Sanitised":
        """Takes over what was released."""
        return cls(
            epsilon=released.epsilon,
            delta=released.delta,
            confidence=released.confidence,
            worst_case_epsilon=released.worst_case_epsilon,
            plan_was_fixed=plan_was_fixed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatedFacts:
    """What a privacy statement says in numbers; nothing depends on votes but by a release.

    Attributes:
      dataset: name of the data set.
      unit: what is protected, "record" or "owner".
      num_teachers: number of teachers that voted.
      mechanism: the aggregation mechanism.
      query_strategy: how queries were chosen from the pool, one of `queries.strategies.STRATEGIES`.
      num_queries: queries asked for this student.
      num_answered: queries that got a label.
      epsilon: data-independent epsilon of this student's labels: against replacement of a record,
        or adding or removing an owner.
      delta: the delta that both epsilons hold at.
      epsilon_ensemble: data-independent epsilon of every label that this ensemble ever released,
        this student's among them.
      epsilon_budget: the ensemble's budget, or None if it has none.
      budget_was_raised: whether budget or delta were ever raised after their first use.
      ledger_rows: rows of the ledger that paid for the labels.
      ledger_head: sequence and digest of the ledger's last row when the statement was made; they
        fix the history before it, and so `epsilon_ensemble`.
      secure_noise: False if the noise came from a seed.
      student_digest: SHA-256 of the student's weights.
      versions: version of each library that took part.
      epsilon_ensemble_replaced: for unit "owner", as `epsilon_ensemble`, against replacing one
        owner's records by another's; None for unit "record".
      sanitised: what `analysis.py` released of the votes, or None if it did not.
      num_records: how many private records there are; None where it is not known, or not public, as
        for owners.
      ledger_was_reset: whether somebody went on although an earlier ledger of the ensemble, or rows
        of it, were gone.
      epsilon_all_ensembles: data-independent epsilon of all that ensembles of the same private
        records released, as far as known to this user on this machine; None if nothing kept
        account of that.
      delta_all_ensembles: the delta that `epsilon_all_ensembles` holds at: `delta`, or more where
        the ensembles' batches that were paid by (epsilon, delta) have more of it together.
      num_ledgers: how many ledgers were counted for it.
      choice: how mechanism, noise and number of queries were chosen, in sentences; None if nobody
        said.
      num_neighbours: how many inputs of the pool that look most like a query it was asked together
        with, each teacher voting once for all of them.
      paid_before: other charges that `epsilon` counts too, and how often: batches of a mechanism
        that is paid once for a batch, which led to these labels.
      records_are_known: whether the records could be compared with those of other ensembles; if
        not, only ensembles with equal teachers were counted.

    Raises:
      ValueError: if unit or query strategy is unknown, the mechanism has no words, a sanitised
        epsilon comes with adaptive queries, which it does not hold for, or
        `epsilon_ensemble_replaced` is missing for owners or given for records.
    """

    dataset: str
    unit: str
    num_teachers: int
    mechanism: Charge
    query_strategy: str = "first"
    num_queries: int
    num_answered: int
    epsilon: float
    delta: float
    epsilon_ensemble: float
    epsilon_budget: float | None
    budget_was_raised: bool
    ledger_rows: tuple[int, ...]
    ledger_head: tuple[int, str]
    secure_noise: bool
    student_digest: str
    versions: Mapping[str, str]
    epsilon_ensemble_replaced: float | None = None
    sanitised: Sanitised | None = None
    num_records: int | None = None
    ledger_was_reset: bool = False
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None
    records_are_known: bool = False
    paid_before: tuple[tuple[Charge, int], ...] = ()
    choice: str | None = None
    num_neighbours: int = 0

    def __post_init__(self) -> None:
        if self.unit not in words.PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(words.PROTECTED)}, got {self.unit!r}")
        if self.query_strategy not in STRATEGIES:
            raise ValueError(
                f"query_strategy: expected one of {', '.join(STRATEGIES)}, got "
                f"{self.query_strategy!r}"
            )
        self.mechanism.in_words()
        if (self.unit == "owner") != (self.epsilon_ensemble_replaced is not None):
            raise ValueError(
                f"epsilon_ensemble_replaced: expected a number where owners are protected, and "
                f"none where records are, got {self.epsilon_ensemble_replaced} for unit "
                f"{self.unit!r}; statements on owners of earlier versions do not hold"
            )
        if self.sanitised is not None and self.is_adaptive:
            raise ValueError(
                f"sanitised: expected none for queries chosen by earlier noisy answers "
                f"({self.query_strategy}), got one"
            )

    @classmethod
    def of(cls, released: ReleasedLabels, **facts: Any) -> Self:
        """Takes from the labels what they carry, and the remaining attributes from `facts`."""
        return cls(
            mechanism=released.cost.charge,
            unit=released.cost.unit,
            num_queries=released.num_queries,
            num_answered=released.num_answered,
            epsilon=released.cost.epsilon,
            delta=released.cost.delta,
            paid_before=released.cost.before,
            ledger_rows=released.ledger_rows,
            secure_noise=released.secure_noise,
            **facts,
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds a statement from `to_dict()`, also after a trip through JSON.

        Raises:
          ValueError: if it is no statement.
        """
        try:
            names = [field.name for field in dataclasses.fields(cls) if field.name in fields]
            facts = {name: fields[name] for name in names}
            facts["mechanism"] = mechanism_from_dict(facts["mechanism"])
            if facts.get("sanitised") is not None:
                facts["sanitised"] = Sanitised(**facts["sanitised"])
            facts["paid_before"] = charges_from_list(facts.get("paid_before", ()))
            for name in ("ledger_rows", "ledger_head"):
                facts[name] = tuple(facts[name])
            return cls(**facts)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"statement: expected a privacy statement, got none: {error}"
            ) from error

    @property
    def is_adaptive(self) -> bool:
        """Whether queries were chosen by earlier noisy answers."""
        return STRATEGIES[self.query_strategy].is_adaptive

    @property
    def number_charged(self) -> int:
        """How often the mechanism was charged for this student's labels, at most."""
        # A mechanism that is paid once for a batch was paid once by each row.
        return max(self.mechanism.number_charged(self.num_queries), len(set(self.ledger_rows)))

    @property
    def paid(self) -> Mapping[Charge, int]:
        """What `epsilon` counts, and how often: the mechanism, and what was paid before it."""
        return Counter({self.mechanism: self.number_charged}) + Counter(dict(self.paid_before))

    @property
    def epsilon_replaced(self) -> float | None:
        """As `epsilon`, against replacing one owner's records by another's; None for records."""
        if self.unit == "record":
            return None
        return replaced_owner_epsilon(self.paid, self.delta)


# What a statement promises: every kind of epsilon, and what follows from one in plain numbers.


LARGEST_DELTA_TIMES_RECORDS: Final = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One kind of epsilon, what it promises and to whom. Publishable.

    Attributes:
      kind: "data-independent", "sanitised", "gated" or "data-dependent"; for owners also
        "data-independent, against replacement".
      covers: what it counts.
      epsilon: None where no such number was published.
      delta: None likewise.
      promises: what somebody may rely on, or why there is no number.
      to_whom: who may rely on it.
    """

    kind: str
    covers: str
    epsilon: float | None = None
    delta: float | None = None
    promises: str
    to_whom: str


def guarantees(stated: StatedFacts) -> tuple[Guarantee, ...]:
    """Returns every kind of epsilon, those without a number too."""
    holds_always = {
        "kind": "data-independent",
        "promises": words.in_words(words.DATA_INDEPENDENT, stated.unit),
        "to_whom": words.TO_EVERYBODY,
    }
    found = [
        Guarantee(
            covers="this student's labels",
            epsilon=stated.epsilon,
            delta=stated.delta,
            **holds_always,
        ),
        Guarantee(
            covers="whatever this ensemble released up to here",
            epsilon=stated.epsilon_ensemble,
            delta=stated.delta,
            **holds_always,
        ),
    ]
    if stated.epsilon_all_ensembles is not None:
        found.append(
            Guarantee(
                covers=words.all_ensembles(stated.num_ledgers),
                epsilon=stated.epsilon_all_ensembles,
                delta=stated.delta_all_ensembles or stated.delta,
                **holds_always,
            )
        )
    if stated.unit == "owner":
        found += [
            Guarantee(
                kind=words.AGAINST_REPLACEMENT,
                covers=f"{one.covers}, against replacement by another owner's records",
                epsilon=epsilon,
                delta=stated.delta,
                promises=words.OWNER_REPLACED,
                to_whom=words.TO_EVERYBODY,
            )
            for one, epsilon in zip(
                found[:2], (stated.epsilon_replaced, stated.epsilon_ensemble_replaced), strict=True
            )
        ]
    missing = {
        "sanitised": words.NO_RELEASE_IF_ADAPTIVE if stated.is_adaptive else words.NO_RELEASE,
        "gated": words.NOT_GATED,
        "data-dependent": words.DATA_DEPENDENT,
    }
    if stated.sanitised is not None:
        del missing["sanitised"]
        found += [
            Guarantee(
                kind="sanitised",
                covers="all labels of this ensemble, and this number",
                epsilon=stated.sanitised.epsilon,
                delta=stated.sanitised.delta,
                promises=words.sanitised(
                    failure=1.0 - stated.sanitised.confidence,
                    plan_was_fixed=stated.sanitised.plan_was_fixed,
                ),
                to_whom=words.TO_THOSE_IN_THE_DATA,
            ),
            Guarantee(
                covers="all labels of this ensemble, and the sanitised number",
                epsilon=stated.sanitised.worst_case_epsilon,
                delta=stated.sanitised.delta,
                **holds_always,
            ),
        ]
    if not stated.secure_noise:
        found = [
            dataclasses.replace(one, promises=words.NOTHING, to_whom=words.TO_NOBODY)
            for one in found
        ]
    return (
        *found,
        *(
            Guarantee(kind=kind, covers="", promises=reason, to_whom=words.TO_NOBODY)
            for kind, reason in missing.items()
        ),
    )


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Returns how often a guess between two equally likely candidates can be right at most.

    (exp(epsilon) + delta) / (1 + exp(epsilon)): for any test between them, false alarms plus
    exp(epsilon) times misses are at least 1 - delta, and the other way round, so that half of what
    goes wrong is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1; docs/theory.md, Proposition C6).

    Args:
      epsilon: at least 0.
      delta: from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * expit(-epsilon))


def is_delta_large(delta: float, num_records: int) -> bool:
    """Whether delta is above a tenth of one over the number of private records.

    What publishes one record in so many, chosen at random, has that delta at epsilon 0.
    """
    return delta * num_records > LARGEST_DELTA_TIMES_RECORDS


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
