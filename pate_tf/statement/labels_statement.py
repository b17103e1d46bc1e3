"""The privacy statement of a student that a single data holder trained."""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pate_tf.accounting.charge import ReleasedLabels, SanitisedEpsilon
from pate_tf.accounting.composition import (
    Charge,
    pure_epsilon,
    several_teachers_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core import checks
from pate_tf.core.settings import EpsilonDelta
from pate_tf.ledger import Head, Ledger, LedgerRow
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DEBITS, batches_before, charge_of, charges_of
from pate_tf.ledger.privacy_ledger import source_facts
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.release.noisy_sums import EstimatedAccuracy
from pate_tf.statement.privacy_statement import (
    DATA_DEPENDENT,
    REPLACE_ONE,
    ROUNDING,
    SEVERAL,
    TEMPLATES,
    WORST_CASE,
    Guarantee,
    PrivacyStatement,
    at_least,
    cell,
    check_noise,
    check_unit,
    pure_if_as_small,
    require,
)


def sanitised_of(ledger: Ledger) -> SanitisedEpsilon | None:
    """Returns the released data-dependent epsilon of a ledger; None if there is no valid release.

    The epsilon covers all labels of the ledger. A release becomes invalid when further labels are
    charged, and is never valid if its noise came from a seed.
    """
    drawn = ledger.stored_release()
    if drawn is None or not drawn.get("secure_noise", True):
        return None
    # Answers are never removed. So if the number of answers has not changed since the release, the
    # ledger has no newer answers. A batch whose labels were all withheld adds no answers, but it
    # also reveals something and was charged. So the release must have no later row of answers.
    kinds = [row.kind for row in ledger.history()]
    since = kinds[len(kinds) - kinds[::-1].index("released") :]
    if drawn["key"]["plan"]["num_queries"] != ledger.num_answered or "answers" in since:
        return None
    from pate_tf.analysis.sanitised_epsilon import stored_epsilon

    delta = drawn["key"]["delta"] or ledger.delta
    return stored_epsilon(drawn, delta=delta, spent=ledger.spent(delta).epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsStatement(PrivacyStatement, EpsilonDelta):
    """The statement for a student that a single data holder trained; see `PrivacyStatement`.

    `epsilon` is the worst-case cost of this student's labels and of the accuracy estimate, at the
    `delta` of the ledger, if a record is replaced, or if an owner is added or removed. `headline`
    also includes the cost of a privately released epsilon.

    Attributes:
        mechanism: mechanism that was charged. It determines `method`.
        num_teachers: number of teachers that voted; None for feature sums.
        query_strategy: name of the strategy that chose queries from the pool, from
            `queries.strategies.STRATEGIES`.
        num_queries: number of queries for this student.
        num_answered: number of queries that got a label.
        choice: description of how the mechanism, the noise and the number of queries were chosen,
            or None.
        target_range: minimum and maximum of a predicted number; None for other targets.
        estimated_accuracy: estimate of the student's accuracy on held-out private records, with
            noise; the limits of its 95 % interval; its epsilon; and, for two classes, the share of
            the most frequent class. None if there is no estimate.
        estimate_charge: charge of the accuracy estimate; None if there is no estimate.
        estimate_is_apart: whether the accuracy estimate and the labels use different records.
        encoder: name and digest of the pre-trained encoder; None if the features need no encoder.
        charged_before: additional charges that `epsilon` includes, each with its number: earlier
            batches for these labels, if the mechanism is charged per batch.
        epsilon_ledger: worst-case epsilon of all charges of the ledger.
        epsilon_ledger_replaced: for unit "owner", the epsilon of the same charges if the records of
            one owner are replaced by the records of another owner; None for unit "record".
        epsilon_budget: budget of the ledger; None if there is no budget.
        budget_was_raised: whether the budget or delta was raised after its first use.
        ledger_rows: sequence numbers of the ledger rows with the charges for the labels.
        ledger_head: sequence number and digest of the ledger's last row when the statement was
            made. The digest covers all earlier rows, and so it determines `epsilon_ledger`.
        sanitised: the data-dependent epsilon of the ledger that was released with noise, or None.
        num_records: number of private records; None if this number is unknown or private. If owners
            are protected, it is always private.
        epsilon_source: worst-case epsilon of all releases charged to the source on this machine;
            None if it is unknown.
        delta_source: delta of `epsilon_source`. This delta equals `delta`, or is larger if the
            deltas of batches that were charged as (epsilon, delta) add up to more.
        num_ledgers: number of ledgers of the source on this machine; None if there is no registry.
        num_other_units: number of ledgers of the source whose protected unit is unknown or differs
            from `unit`. If there are any, no guarantee covers all ledgers.

    Raises:
        ValueError: if the unit or the query strategy is unknown, if the mechanism has no
            description, if `epsilon_ledger_replaced` is missing for owners or given for records, or
            if an estimate has no charge.
    """

    system: ClassVar[str] = "labels"
    units: ClassVar[Mapping[str, str]] = {
        "owner": "all records of one owner in %s",
        "record": "each record of %s",
    }
    mechanism: Mechanism
    num_teachers: int | None = None
    query_strategy: str = "first"
    num_queries: int
    num_answered: int
    choice: str | None = None
    target_range: tuple[float, float] | None = None
    estimated_accuracy: EstimatedAccuracy | None = None
    estimate_charge: Mechanism | None = None
    estimate_is_apart: bool = False
    encoder: str | None = None
    charged_before: tuple[tuple[Charge, int], ...] = ()
    epsilon_ledger: float
    epsilon_ledger_replaced: float | None = None
    epsilon_budget: float | None
    budget_was_raised: bool
    ledger_rows: tuple[int, ...]
    ledger_head: tuple[int, str]
    sanitised: SanitisedEpsilon | None = None
    num_records: int | None = None
    epsilon_source: float | None = None
    delta_source: float | None = None
    num_ledgers: int | None = None
    num_other_units: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(STRATEGIES, query_strategy=self.query_strategy)
        self.mechanism.in_words()
        check_unit(self.unit, self.charged)
        if (self.unit == "owner") != (self.epsilon_ledger_replaced is not None):
            raise ValueError(
                f"epsilon_ledger_replaced must be a number for unit 'owner' and None for unit "
                f"'record', got {self.epsilon_ledger_replaced} for unit {self.unit!r}"
            )
        if (self.estimated_accuracy is None) != (self.estimate_charge is None):
            raise ValueError("estimate_charge and estimated_accuracy must be given together")

    @classmethod
    def of(cls, released: ReleasedLabels, ledger: Ledger, **facts: Any) -> Self:
        """Makes a statement from labels and their ledger. `facts` are all other attributes."""
        epsilon = released.cost.epsilon
        if estimate := facts.get("estimate_charge"):
            cost = released.cost
            charges = Counter({cost.charge: cost.number}) + Counter(dict(cost.before))
            is_apart = facts.get("estimate_is_apart", False)
            epsilon = with_estimate(charges, estimate, cost.delta, is_apart=is_apart)
        facts = {
            "mechanism": released.cost.charge,
            "unit": released.cost.unit,
            "num_queries": released.num_queries,
            "num_answered": released.num_answered,
            "epsilon": epsilon,
            "delta": released.cost.delta,
            "charged_before": released.cost.before,
            "ledger_rows": released.ledger_rows,
            # A later charge with seeded noise also makes earlier labels of the ledger insecure.
            "secure_noise": released.secure_noise and ledger.is_secure,
            **ledger_facts(ledger, released.cost.unit),
            **facts,
        }
        facts.setdefault("sanitised", sanitised_of(ledger))
        return cls(**facts)

    @property
    def charged(self) -> Counter[Charge]:
        """The charges for the labels and for the accuracy estimate.

        Each charge is mapped to the maximum number of times that it was charged.
        """
        # If a mechanism is charged per batch, each row contains one charge, so the rows are
        # counted.
        number = max(self.mechanism.number_charged(self.num_queries), len(set(self.ledger_rows)))
        charged = Counter({self.mechanism: number}) + Counter(dict(self.charged_before))
        return charged + Counter(filter(None, [self.estimate_charge]))

    @functools.cached_property
    def headline(self) -> tuple[float, float]:
        """Epsilon and delta of everything that the statement's page publishes.

        The page publishes the labels, the classifier, the accuracy estimate and a privately
        released epsilon. If each record or owner is either used for training or held out, depending
        only on its position or name, the result contains the larger of the costs of labels and
        estimate (docs/proofs/theory.md, Proposition C7). Otherwise, both costs add up. A released
        epsilon uses the same records as the labels, so the costs of these two add up.
        """
        estimate: Counter[Charge] = Counter(filter(None, [self.estimate_charge]))
        at_delta, _ = smallest_epsilon(estimate, self.delta)
        of_labels = self.charged - estimate if self.estimate_is_apart else self.charged
        costs = [
            pure_if_as_small(of_labels, self.epsilon, self.delta),
            pure_if_as_small(estimate, at_delta, self.delta),
        ]
        if self.sanitised is not None:
            epsilon = self.sanitised.worst_case_epsilon
            if estimate and not self.estimate_is_apart:
                epsilon = math.nextafter(epsilon + pure_epsilon(estimate), math.inf)
            costs.append((epsilon, self.sanitised.delta))
        return max(epsilon for epsilon, _ in costs), max(delta for _, delta in costs)

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Maps a number of records or owners (2 and 5) to the epsilon for all of them together.

        Each epsilon covers the labels and the estimate, at `delta`.
        """
        return {
            number: several_teachers_epsilon(self.charged, delta=self.delta, num_teachers=number)
            for number in SEVERAL
        }

    @property
    def source_in_words(self) -> str:
        """A description of the private data, with the name of the source if it has a name."""
        name = self.source_name
        return "the private records of this run" if name is None else cell(name)

    @property
    def protected(self) -> str:  # noqa: D102
        if self.unit == "record" and self.source_name is None:
            return f"each of {self.source_in_words}"
        return self.units[self.unit] % self.source_in_words

    @functools.cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        this = f"this {self.model} and its {'labels' if self.num_queries else 'noisy sums'}"
        ledger = "everything charged to this ledger"
        labels = "all labels of this ledger"
        if self.estimate_charge is not None:
            this += ", and the estimate of its accuracy"
        if self.sanitised is not None:
            this += ", and the released number below"
        source = None if self.source_name is None else self.epsilon_source
        delta_source = self.delta_source or self.delta
        epsilon, delta = self.headline
        rows: list[tuple[str, float | None, float, str, str]] = [
            (this, epsilon, delta, self.neighbors, WORST_CASE)
        ]
        if self.unit == "owner":  # the old and the new owner can be in different parts of the data
            replaced = several_teachers_epsilon(self.charged, delta=self.delta)
            if self.sanitised is not None:  # this release covers all labels of the ledger
                replaced = max(replaced, self.epsilon_ledger_replaced or 0.0)
            rows.append((this, replaced, self.delta, REPLACE_ONE, WORST_CASE))
        # If this is the only ledger of the source, the row of the source covers this ledger, so the
        # ledger gets no row.
        plural = "" if self.num_ledgers == 1 else "s"
        number = "" if self.num_ledgers is None else f" ({self.num_ledgers} ledger{plural})"
        everything = f"everything released from {self.source_in_words} on this machine{number}"
        is_only = (source, delta_source) == (self.epsilon_ledger, self.delta)
        if self.unit == "owner":
            is_only = is_only and self.num_ledgers == 1
        if not is_only:
            rows.append((ledger, self.epsilon_ledger, self.delta, self.neighbors, WORST_CASE))
        rows.append((everything, source, delta_source, self.neighbors, WORST_CASE))
        ledger = everything if is_only else ledger
        rows.append((ledger, self.epsilon_ledger_replaced, self.delta, REPLACE_ONE, WORST_CASE))
        if self.sanitised is not None:
            drawn = self.sanitised
            words = f"{labels}, and this number: {DATA_DEPENDENT}"
            rows.append((words, drawn.epsilon, drawn.delta, self.neighbors, DATA_DEPENDENT))
            words = f"{labels}, and the number above: worst-case"
            rows.append((words, drawn.worst_case_epsilon, drawn.delta, self.neighbors, WORST_CASE))
        return tuple(
            Guarantee(release=release, epsilon=epsilon, delta=delta, relation=relation, kind=kind)
            for release, epsilon, delta, relation, kind in rows
            if epsilon is not None
        )

    @property
    def estimated_in_words(self) -> str:
        """Text with the accuracy estimate, its interval and its cost; empty without an estimate."""
        if self.estimated_accuracy is None:
            return ""
        return TEMPLATES.get_template("estimate.md").render(statement=self).strip()

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that the statement claims no more privacy than its ledger shows.

        The digest of the last row (`ledger_head`) covers all earlier rows. The following facts are
        computed from the rows and checked: the epsilon of the ledger (for owners, also the epsilon
        if one owner is replaced); delta; the budget and whether it was raised; whether an earlier
        ledger was lost; whether noise was secure; the privately released epsilon with its
        confidence, worst case and plan; and, for each row in `ledger_rows`, its mechanism and
        whether it was answered.

        Some facts can't be checked fully. The ledger does not record from which of its labels the
        student learned. So this method checks only that the numbers of queries are possible, and
        that epsilon matches these numbers. A statement in which both the numbers of queries and
        epsilon are smaller would also pass. However, `epsilon_ledger` is an upper bound on the cost
        of everything that the student learned. An input that is queried twice is charged once. If
        the student queried inputs twice, and `ledger_rows` also contain labels of another student,
        the check fails although epsilon is correct. The ledger also does not record whether the
        labels and the accuracy estimate come from different records (`estimate_is_apart`). A false
        value there, with the smaller epsilon, would pass. This ledger does not contain the
        cost of other ledgers of the source. So the total must only be at least the cost of this
        ledger. The ledger does not contain names, date, unit, the numbers of teachers and records,
        the query strategy, the digest of the student and versions.
        """
        require(len(stores) == 1, f"it must be checked against exactly 1 ledger, got {len(stores)}")
        sequence, digest = self.ledger_head
        require(
            stores[0].holds(Head(sequence=sequence, digest=digest)),
            f"row {sequence} of the ledger has another digest than in the statement",
        )
        rows = [row for row in stores[0].history() if row.sequence <= sequence]
        self._check_budget(rows)
        self._check_student(rows)
        self._check_ledger(rows)
        if self.sanitised is not None:
            _check_sanitised(self.sanitised, rows)

    def _check_budget(self, rows: Sequence[LedgerRow]) -> None:
        budgets = [row.details for row in rows if row.kind in ("opened", "budget")]
        source = budgets[0].get("source")  # ledgers of earlier versions have no source
        for name, due in (
            ("source_name", source["name"] if source else self.source_name),
            ("delta", budgets[-1]["delta"]),
            ("epsilon_budget", budgets[-1]["epsilon_budget"]),
            ("budget_was_raised", any(details.get("raised", False) for details in budgets)),
            ("ledger_was_reset", any(row.kind == "acknowledged" for row in rows)),
        ):
            stated = getattr(self, name)
            require(stated == due, f"its {name} is {stated}, but {due} in the ledger")

    def _check_student(self, rows: Sequence[LedgerRow]) -> None:
        named = set(self.ledger_rows)
        require(bool(named), "it does not contain the ledger rows of its labels")
        debits = {row.sequence: charge_of(row) for row in rows if row.kind in DEBITS}
        answers = {row.details["debit"]: row.details for row in rows if row.kind == "answers"}
        for sequence in sorted(named):
            require(sequence in debits, f"row {sequence} of the ledger is not a charge")
            is_same = debits[sequence][0] == self.mechanism
            require(is_same, f"row {sequence} charged a different mechanism")
            require(sequence in answers, f"row {sequence} was charged but never answered")
        num_queries = self.num_queries
        num_answered = self.num_answered
        least = 0 if self.mechanism.releases_feature_sums else len(named)  # sums need no queries
        require(
            num_queries >= least and 0 <= num_answered <= num_queries,
            f"it must state at least {least} queries, one per row, and no more answers than "
            f"queries, got {num_queries} queries and {num_answered} answers",
        )
        withheld = any(answers[row]["num_answered"] < answers[row]["num_queries"] for row in named)
        require(
            withheld or num_answered == num_queries,
            f"it states {num_answered} answers to {num_queries} queries, but its rows withheld 0",
        )
        led_here = batches_before(rows, self.mechanism, last=max(named))
        led_here -= Counter({self.mechanism: len(named)})
        before = Counter(dict(self.charged_before))
        require(before >= led_here, "charged_before omits batches that led to these labels")
        number = self.charged[self.mechanism] - before[self.mechanism]
        number = min(sum(debits[row][1] for row in named), number)
        counted = Counter({self.mechanism: number}) + before
        is_charged = self.estimate_charge in {None, *charges_of(rows)}
        require(is_charged, "its estimate of accuracy was not charged to the ledger")
        due = with_estimate(
            counted, self.estimate_charge, self.delta, is_apart=self.estimate_is_apart
        )
        at_least("epsilon", self.epsilon, due, f"for {num_queries} queries and an estimate")

    def _check_ledger(self, rows: Sequence[LedgerRow]) -> None:
        charges = charges_of(rows)
        everything = "for all charges of the ledger"
        check_unit(self.unit, charges)
        spent, _ = smallest_epsilon(charges, self.delta)
        at_least("epsilon", self.epsilon_ledger, spent, everything)
        if self.epsilon_ledger_replaced is not None:
            replaced = several_teachers_epsilon(charges, delta=self.delta)
            what = f"against replacing an owner, {everything}"
            at_least("epsilon", self.epsilon_ledger_replaced, replaced, what)
        require(
            self.epsilon <= self.epsilon_ledger * (1.0 + ROUNDING),
            f"epsilon is {self.epsilon}, but only {self.epsilon_ledger} for the whole ledger",
        )
        if self.epsilon_source is not None:
            there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
            what = "for all releases of the source"
            at_least("epsilon", self.epsilon_source, there, what)
        check_noise(self, rows)


def with_estimate(
    charges: Mapping[Charge, int], estimate: Charge | None, delta: float, *, is_apart: bool
) -> float:
    """Returns the total epsilon of labels and an accuracy estimate, at delta.

    Args:
        charges: charges for the labels, each with the number of times that it was made.
        estimate: charge of the accuracy estimate; None if there is no estimate.
        delta: delta of the guarantee.
        is_apart: whether the estimate and the labels use different records. If so, the result is
            the larger of the two epsilons. Otherwise, the charges compose.
    """
    of_estimate = Counter(filter(None, [estimate]))
    if is_apart:
        return max(smallest_epsilon(each, delta)[0] for each in (charges, of_estimate))
    return smallest_epsilon(Counter(dict(charges)) + of_estimate, delta)[0]


def ledger_facts(ledger: Ledger, unit: str) -> dict[str, Any]:
    """Returns the fields of a statement that describe the whole ledger."""
    return {
        "epsilon_ledger": ledger.spent().epsilon,
        "epsilon_ledger_replaced": several_teachers_epsilon(ledger.charges, delta=ledger.delta)
        if unit == "owner"
        else None,
        "epsilon_budget": ledger.epsilon_budget,
        "budget_was_raised": ledger.was_raised,
        "ledger_head": (ledger.head.sequence, ledger.head.digest),
        **source_facts(ledger),
    }


def _check_sanitised(stated: SanitisedEpsilon, rows: Sequence[LedgerRow]) -> None:
    from pate_tf.analysis.sanitised_epsilon import stored_epsilon

    draws = [row for row in rows if row.kind == "released"]
    require(bool(draws), "it has a sanitised epsilon, but the ledger stores no release")
    drawn = draws[-1].details["kept"]
    charged = charges_of(row for row in rows if row.sequence <= draws[-1].sequence)
    spent, _ = smallest_epsilon(charged, stated.delta)
    due = stored_epsilon(drawn, delta=stated.delta, spent=spent)
    for name in ("epsilon", "worst_case_epsilon"):
        at_least(f"a sanitised {name}", getattr(stated, name), getattr(due, name), "of the draw")
    require(
        due.plan_was_fixed or not stated.plan_was_fixed,
        "it claims a plan from before there were votes, but the ledger has no such plan",
    )
    is_same = stated.delta == due.delta
    require(is_same, f"the sanitised delta is {stated.delta:g}, but {due.delta:g} in the ledger")
    is_sure = stated.confidence <= due.confidence + ROUNDING
    require(is_sure, f"confidence is {stated.confidence}, but {due.confidence:.6g} in the ledger")
