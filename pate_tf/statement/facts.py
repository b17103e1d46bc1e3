"""The numbers of a privacy statement, as they are kept and read back."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charges_from_list
from pate_tf.accounting.mechanisms import mechanism_from_dict
from pate_tf.accounting.moved_teachers import replaced_owner_epsilon
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.releases.results import SanitisedEpsilon
from pate_tf.statement import words


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
      query_strategy: how queries were chosen from the pool, one of `QUERY_STRATEGIES`.
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
        if self.query_strategy not in words.QUERY_STRATEGIES:
            raise ValueError(
                f"query_strategy: expected one of {', '.join(words.QUERY_STRATEGIES)}, got "
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
        return self.query_strategy in words.ADAPTIVE_STRATEGIES

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
