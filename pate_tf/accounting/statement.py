"""The privacy statement: what a student's labels cost, what that promises, and what it assumes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scipy.special import expit

from pate_tf.accounting import statement_words as words
from pate_tf.accounting.release import SanitisedEpsilon
from pate_tf.records import ReleasedLabels


def largest_share_of_right_guesses(epsilon: float, delta: float) -> float:
    """Returns how often a guess between two equally likely candidates can be right at most.

    (exp(epsilon) + delta) / (1 + exp(epsilon)): for any test between them, false alarms plus
    exp(epsilon) times misses are at least 1 - delta, and the other way round, so that half of what
    goes wrong is at least (1 - delta) / (1 + exp(epsilon)) (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1).

    Args:
      epsilon: at least 0.
      delta: from 0 to 1.
    """
    return float(1.0 - (1.0 - delta) * expit(-epsilon))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One kind of epsilon, what it promises and to whom. Publishable.

    Attributes:
      kind: "data-independent", "sanitised", "gated" or "data-dependent".
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sanitised:
    """A sanitised epsilon that was published beside a student, for all votes of its ensemble.

    Attributes:
      epsilon: of the labels and of the release itself, for these votes.
      delta: what both epsilons hold at.
      confidence: probability that the release's own noise did not make `epsilon` too small.
      worst_case_epsilon: data-independent, of the labels and of the release together.
    """

    epsilon: float
    delta: float
    confidence: float
    worst_case_epsilon: float

    @classmethod
    def of(cls, released: SanitisedEpsilon) -> "Sanitised":
        """Takes over what was released."""
        return cls(
            epsilon=released.epsilon,
            delta=released.delta,
            confidence=released.confidence,
            worst_case_epsilon=released.worst_case_epsilon,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """What may be published beside a student; nothing in it depends on votes but by a release.

    Attributes:
      dataset: name of the data set.
      unit: what is protected, "record" or "owner".
      num_teachers: number of teachers that voted.
      mechanism: the aggregation mechanism's `to_dict()`.
      query_strategy: how queries were chosen from the pool, one of `QUERY_STRATEGIES`.
      num_queries: queries asked for this student.
      num_answered: queries that got a label.
      epsilon: data-independent epsilon of this student's labels.
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
      sanitised: what `analysis.py` released of the votes, or None if it did not.

    Raises:
      ValueError: if the unit, the mechanism or the query strategy is unknown, or a sanitised
        epsilon comes with adaptive queries, which it does not hold for.
    """

    dataset: str
    unit: str
    num_teachers: int
    mechanism: Mapping[str, object]
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
    sanitised: Sanitised | None = None

    def __post_init__(self) -> None:
        if self.unit not in words.PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(words.PROTECTED)}, got {self.unit!r}")
        if self.query_strategy not in words.QUERY_STRATEGIES:
            raise ValueError(
                f"query_strategy: expected one of {', '.join(words.QUERY_STRATEGIES)}, got "
                f"{self.query_strategy!r}"
            )
        words.mechanism_in_words(self.mechanism)
        if self.sanitised is not None and self.is_adaptive:
            raise ValueError(
                f"sanitised: expected none for queries chosen by earlier noisy answers "
                f"({self.query_strategy}), got one"
            )

    @classmethod
    def of(cls, released: ReleasedLabels, **facts: Any) -> "PrivacyStatement":
        """Takes from the labels what they carry, and the remaining attributes from `facts`."""
        return cls(
            mechanism=released.mechanism,
            num_queries=released.num_queries,
            num_answered=released.num_answered,
            epsilon=released.epsilon,
            delta=released.delta,
            ledger_rows=released.ledger_rows,
            secure_noise=released.secure_noise,
            **facts,
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "PrivacyStatement":
        """Rebuilds a statement from `to_dict()`, also after a trip through JSON.

        Raises:
          ValueError: if it is no statement.
        """
        try:
            names = [field.name for field in dataclasses.fields(cls) if field.name in fields]
            facts = {name: fields[name] for name in names}
            if facts.get("sanitised") is not None:
                facts["sanitised"] = Sanitised(**facts["sanitised"])
            for name in ("ledger_rows", "ledger_head"):
                facts[name] = tuple(facts[name])
            return cls(**facts)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"statement: expected a privacy statement, got none: {error}"
            ) from error

    @property
    def kind(self) -> str:
        """What kind of epsilon it is, in words."""
        if not self.secure_noise:
            return "none: the noise was seeded, so nothing is private"
        return "data-independent, worst case over all data sets, publishable"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Every kind of epsilon, those without a number too."""
        holds_always = {
            "kind": "data-independent",
            "promises": words.in_words(words.DATA_INDEPENDENT, self.unit),
            "to_whom": words.TO_EVERYBODY,
        }
        found = [
            Guarantee(
                covers="this student's labels",
                epsilon=self.epsilon,
                delta=self.delta,
                **holds_always,
            ),
            Guarantee(
                covers="whatever this ensemble released up to here",
                epsilon=self.epsilon_ensemble,
                delta=self.delta,
                **holds_always,
            ),
        ]
        missing = {
            "sanitised": words.NO_RELEASE_IF_ADAPTIVE if self.is_adaptive else words.NO_RELEASE,
            "gated": words.NOT_GATED,
            "data-dependent": words.DATA_DEPENDENT,
        }
        if self.sanitised is not None:
            del missing["sanitised"]
            found += [
                Guarantee(
                    kind="sanitised",
                    covers="all labels of this ensemble, and this number",
                    epsilon=self.sanitised.epsilon,
                    delta=self.sanitised.delta,
                    promises=words.SANITISED.format(failure=1.0 - self.sanitised.confidence),
                    to_whom=words.TO_THOSE_IN_THE_DATA,
                ),
                Guarantee(
                    covers="all labels of this ensemble, and the sanitised number",
                    epsilon=self.sanitised.worst_case_epsilon,
                    delta=self.sanitised.delta,
                    **holds_always,
                ),
            ]
        if not self.secure_noise:
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

    @property
    def is_adaptive(self) -> bool:
        """Whether queries were chosen by earlier noisy answers."""
        return self.query_strategy in words.ADAPTIVE_STRATEGIES

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values: the attributes, and in words whatever the page says."""
        return {
            **dataclasses.asdict(self),
            "mechanism": dict(self.mechanism),
            "ledger_rows": list(self.ledger_rows),
            "ledger_head": list(self.ledger_head),
            "kind": self.kind,
            "protected": words.PROTECTED[self.unit],
            "mechanism_in_words": words.mechanism_in_words(self.mechanism),
            "guarantees": [dataclasses.asdict(guarantee) for guarantee in self.guarantees],
            "largest_share_of_right_guesses": largest_share_of_right_guesses(
                self.epsilon, self.delta
            )
            if self.secure_noise
            else None,
            "assumptions": words.assumptions(
                self.unit, self.query_strategy, secure_noise=self.secure_noise
            ),
            "not_covered": words.not_covered(self.unit),
        }
