"""The statement of a student of one holder: labels from teachers' votes, or from feature sums."""

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
from pate_tf.statement.privacy_statement import (
    DATA_DEPENDENT,
    REPLACE_ONE,
    ROUNDING,
    SEVERAL,
    WORST_CASE,
    Guarantee,
    PrivacyStatement,
    at_least,
    cell,
    check_noise,
    check_unit,
    epsilon_text,
    pure_if_as_small,
    require,
)


def sanitised_of(ledger: Ledger) -> SanitisedEpsilon | None:
    """Returns what was released of all labels of a ledger; None if some came since, or nothing.

    A draw with noise from a seed promises nothing and is left out.
    """
    drawn = ledger.stored_release()
    if drawn is None or not drawn.get("secure_noise", True):
        return None
    # Answers are only ever added, so that as many as then are the same as then. A batch that
    # withheld all of its labels was charged and told something, too.
    kinds = [row.kind for row in ledger.history()]
    since = kinds[len(kinds) - kinds[::-1].index("released") :]
    if drawn["key"]["plan"]["num_queries"] != ledger.num_answered or "answers" in since:
        return None
    from pate_tf.analysis.sanitised_epsilon import stored_epsilon

    delta = drawn["key"]["delta"] or ledger.delta
    return stored_epsilon(drawn, delta=delta, spent=ledger.spent(delta).epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsStatement(PrivacyStatement, EpsilonDelta):
    """What may be published with a student of one holder's labels; see `PrivacyStatement`.

    `epsilon` is the worst case of this student's labels and of the estimate of its accuracy, at the
    ledger's `delta`: against replacement of a record, or adding or removing an owner. `headline`
    counts a privately released epsilon, too.

    Attributes:
        mechanism: what was charged; it decides `method`.
        num_teachers: number of teachers that voted; None with feature sums.
        query_strategy: how queries were chosen from the pool, one of
            `queries.strategies.STRATEGIES`.
        num_queries: queries asked for this student.
        num_answered: queries that got a label.
        choice: how mechanism, noise and number of queries were chosen, in sentences; or None.
        predicts: what the student predicts, where it is no class; or None.
        target_range: lowest and highest value of a number that it predicts; or None.
        estimated_accuracy: a charged estimate of the student's accuracy on held-back private
            records, the ends of its 95 % interval, and its epsilon; None without one.
        estimate_charge: what the estimate was charged as; None without one.
        estimate_is_apart: whether the estimate is of records that the labels are not of.
        encoder: name and digest of a pre-trained encoder that features come from; None without one.
        charged_before: other charges that `epsilon` counts too, and how often: batches of a
            mechanism that is charged once for a batch, which led to these labels.
        epsilon_ledger: worst-case epsilon of everything that the ledger was ever charged for.
        epsilon_ledger_replaced: for unit "owner" the same against replacing one owner's records
            by another's; None for unit "record".
        epsilon_budget: the ledger's budget, or None if it has none.
        budget_was_raised: whether budget or delta were ever raised after their first use.
        ledger_rows: rows of the ledger that charged the labels.
        ledger_head: sequence and digest of the ledger's last row when the statement was made; they
            fix the history before it, and so `epsilon_ledger`.
        sanitised: the privately released data-dependent epsilon of the ledger; None without one.
        num_records: how many private records there are; None where it is not known, or not public,
            as for owners.
        epsilon_source: worst-case epsilon of all releases charged to the source on this machine;
            None if that is not known.
        delta_source: the delta that it holds at: `delta`, or more where the batches that were
            charged by (epsilon, delta) have more of it together.
        num_ledgers: how many ledgers the source has here; None if no registry could be kept.
        num_other_units: how many of them protect something else than `unit`, or it is not known
            what, so that nothing holds for all of them.

    Raises:
        ValueError: if unit or query strategy is unknown, the mechanism has no words,
            `epsilon_ledger_replaced` is missing for owners or given for records, or an estimate
            comes without its charge.
    """

    system: ClassVar[str] = "labels"
    units: ClassVar[Mapping[str, str]] = {
        "owner": "all records of one owner together (%s)",
        "record": "each record of %s",
    }
    mechanism: Mechanism
    num_teachers: int | None = None
    query_strategy: str = "first"
    num_queries: int
    num_answered: int
    choice: str | None = None
    predicts: str | None = None
    target_range: tuple[float, float] | None = None
    estimated_accuracy: tuple[float, float, float, float] | None = None
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
                f"epsilon_ledger_replaced: expected a number where owners are protected, and none "
                f"where records are, got {self.epsilon_ledger_replaced} for unit {self.unit!r}"
            )
        if (self.estimated_accuracy is None) != (self.estimate_charge is None):
            raise ValueError("estimate_charge: give it with estimated_accuracy, and only then")

    @classmethod
    def of(cls, released: ReleasedLabels, ledger: Ledger, **facts: Any) -> Self:
        """Takes what labels and their ledger say, and the remaining attributes from `facts`."""
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
            # A later charge with predictable noise spoils the ledger's earlier labels too.
            "secure_noise": released.secure_noise and ledger.is_secure,
            **ledger_facts(ledger, released.cost.unit),
            **facts,
        }
        facts.setdefault("sanitised", sanitised_of(ledger))
        return cls(**facts)

    @property
    def charged(self) -> Counter[Charge]:
        """What the labels were charged, how often at most, and the estimate."""
        # A mechanism that is charged once for a batch was charged once by each row.
        number = max(self.mechanism.number_charged(self.num_queries), len(set(self.ledger_rows)))
        charged = Counter({self.mechanism: number}) + Counter(dict(self.charged_before))
        return charged + Counter(filter(None, [self.estimate_charge]))

    @functools.cached_property
    def headline(self) -> tuple[float, float]:
        """Epsilon and delta of everything that this page publishes.

        The labels, the classifier, the estimate of its accuracy and a privately released epsilon.
        If a record or owner is learned from or held back, by its position or name alone, the dearer
        of labels and estimate counts (docs/proofs/theory.md, Proposition C7); otherwise both add
        up. A released epsilon is of the same records as the labels, and adds up with them.
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
        """Epsilon, at delta, of labels and estimate for several records or owners at once.

        From how many there are, 2 and 5, to an epsilon that protects all of them together.
        """
        return {
            number: several_teachers_epsilon(self.charged, delta=self.delta, num_teachers=number)
            for number in SEVERAL
        }

    @property
    def source_in_words(self) -> str:
        """The private data, by the source's name if it has one."""
        name = self.source_name
        return "the private records of this run" if name is None else f"`{cell(name)}`"

    @property
    def protected(self) -> str:  # noqa: D102
        if self.unit == "record" and self.source_name is None:
            return f"each of {self.source_in_words}"
        return self.units[self.unit] % self.source_in_words

    @functools.cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        this = "this classifier and its labels"
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
        if self.unit == "owner":  # the one that comes may be in another part than the one that goes
            replaced = several_teachers_epsilon(self.charged, delta=self.delta)
            if self.sanitised is not None:  # is of all labels of the ledger
                replaced = max(replaced, self.epsilon_ledger_replaced or 0.0)
            rows.append((this, replaced, self.delta, REPLACE_ONE, WORST_CASE))
        # The source's row says it all where this ledger is its only one.
        if self.unit == "owner" or (source, delta_source) != (self.epsilon_ledger, self.delta):
            rows.append((ledger, self.epsilon_ledger, self.delta, self.neighbors, WORST_CASE))
        rows.append((ledger, self.epsilon_ledger_replaced, self.delta, REPLACE_ONE, WORST_CASE))
        plural = "" if self.num_ledgers == 1 else "s"
        number = "" if self.num_ledgers is None else f" ({self.num_ledgers} ledger{plural})"
        words = f"all releases charged to the source {self.source_in_words} on this machine"
        rows.append((words + number, source, delta_source, self.neighbors, WORST_CASE))
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
        """The estimate of the accuracy with its interval and cost; empty without one."""
        if self.estimated_accuracy is None:
            return ""
        accuracy, low, high, epsilon = self.estimated_accuracy
        compared = "what a constant answer would reach on them is private"
        cost = f"for a pure ε of {epsilon_text(epsilon)}"
        if (
            self.target_range is not None
        ):  # mean squared errors, over the squared width of the range
            width = self.target_range[1] - self.target_range[0]
            error, least, most = (width * math.sqrt(1.0 - each) for each in (accuracy, high, low))
            interval = f"95 % interval {least:,.4g} to {most:,.4g}"
            return f"a root mean squared error of {error:,.4g} ({interval}; {compared}), {cost}"
        of_labels = " of the labels are right" if self.predicts else ""
        interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        return f"{100 * accuracy:.1f} %{of_labels} ({interval}; {compared}), {cost}"

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that the statement says no less than its ledger.

        The head that it quotes fixes every row before it. From those rows follow, and are checked:
        what the ledger had spent, delta, budget and whether it was raised, whether an earlier
        ledger was lost, whether noise was secure, the privately released epsilon with its
        confidence, worst case and plan, and for the rows that are named their mechanism and that
        they were answered. For owners so is what the ledger had spent against replacing one.

        Which of the ledger's labels the student learned from is in no row. So its numbers of
        queries are only checked to be possible, and its epsilon to be that of these: somebody could
        state fewer of both. `epsilon_ledger` bounds the cost of all that the student learned. An
        input that is asked twice is charged once: where such a student also shares its rows with
        others, its true epsilon is refused as too small. What other ledgers of the source spent is
        in no row of this one either; the sum can't be less than it spent itself. Names, date, unit,
        numbers of teachers and records, query strategy, digest of the student and versions are in
        no row.
        """
        require(len(stores) == 1, f"expected one ledger to check it by, got {len(stores)}")
        sequence, digest = self.ledger_head
        require(
            stores[0].holds(Head(sequence=sequence, digest=digest)),
            f"expected row {sequence} of the ledger to have the digest that is quoted; this ledger "
            f"has another history",
        )
        rows = [row for row in stores[0].history() if row.sequence <= sequence]
        self._check_budget(rows)
        self._check_student(rows)
        self._check_ledger(rows)
        if self.sanitised is not None:
            _check_sanitised(self.sanitised, rows)

    def _check_budget(self, rows: Sequence[LedgerRow]) -> None:
        budgets = [row.details for row in rows if row.kind in ("opened", "budget")]
        source = budgets[0].get("source")  # ledgers of earlier versions have none
        for name, due in (
            ("source_name", source["name"] if source else self.source_name),
            ("delta", budgets[-1]["delta"]),
            ("epsilon_budget", budgets[-1]["epsilon_budget"]),
            ("budget_was_raised", any(details.get("raised", False) for details in budgets)),
            ("ledger_was_reset", any(row.kind == "acknowledged" for row in rows)),
        ):
            stated = getattr(self, name)
            require(stated == due, f"expected the ledger's {name} {due}, got {stated}")

    def _check_student(self, rows: Sequence[LedgerRow]) -> None:
        named = set(self.ledger_rows)
        require(bool(named), "expected the ledger rows of its labels, got none")
        debits = {row.sequence: charge_of(row) for row in rows if row.kind in DEBITS}
        answers = {row.details["debit"]: row.details for row in rows if row.kind == "answers"}
        for sequence in sorted(named):
            require(sequence in debits, f"expected a debit at row {sequence}, got none")
            is_same = debits[sequence][0] == self.mechanism
            require(is_same, f"row {sequence} charged another mechanism")
            require(sequence in answers, f"row {sequence} was charged and never answered")
        num_queries = self.num_queries
        num_answered = self.num_answered
        least = 0 if self.mechanism.releases_feature_sums else len(named)  # sums need no query
        require(
            num_queries >= least and 0 <= num_answered <= num_queries,
            f"expected at least {least} queries, one for each row, and no more answers than "
            f"queries, got {num_queries} and {num_answered}",
        )
        withheld = any(answers[row]["num_answered"] < answers[row]["num_queries"] for row in named)
        require(
            withheld or num_answered == num_queries,
            f"expected an answer to each of the {num_queries} queries, got {num_answered}: its "
            f"rows withheld none",
        )
        led_here = batches_before(rows, self.mechanism, last=max(named))
        led_here -= Counter({self.mechanism: len(named)})
        before = Counter(dict(self.charged_before))
        what = "every batch that led to these labels among charged_before"
        require(before >= led_here, f"expected {what}, got fewer")
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
        everything = "for all that the ledger was charged for"
        check_unit(self.unit, charges)
        spent, _ = smallest_epsilon(charges, self.delta)
        at_least("epsilon", self.epsilon_ledger, spent, everything)
        if self.epsilon_ledger_replaced is not None:
            replaced = several_teachers_epsilon(charges, delta=self.delta)
            what = f"against replacing an owner, {everything}"
            at_least("epsilon", self.epsilon_ledger_replaced, replaced, what)
        require(
            self.epsilon <= self.epsilon_ledger * (1.0 + ROUNDING),
            f"expected an epsilon up to the ledger's {self.epsilon_ledger}, got {self.epsilon}",
        )
        if self.epsilon_source is not None:
            there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
            what = "for all releases of the source"
            at_least("epsilon", self.epsilon_source, there, what)
        check_noise(self, rows)


def with_estimate(
    charges: Mapping[Charge, int], estimate: Charge | None, delta: float, *, is_apart: bool
) -> float:
    """Returns the epsilon, at delta, of labels and of an estimate of accuracy.

    Args:
        charges: of the labels, and how often.
        estimate: what the estimate was charged as; None without one.
        delta: that epsilon holds at.
        is_apart: whether it is of other records than the labels, so that the larger epsilon counts;
            otherwise the charges compose.
    """
    of_estimate = Counter(filter(None, [estimate]))
    if is_apart:
        return max(smallest_epsilon(each, delta)[0] for each in (charges, of_estimate))
    return smallest_epsilon(Counter(dict(charges)) + of_estimate, delta)[0]


def ledger_facts(ledger: Ledger, unit: str) -> dict[str, Any]:
    """Returns what a ledger says of everything that it charged, as fields of a statement."""
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
    require(bool(draws), "expected no sanitised epsilon, the ledger stores no release")
    drawn = draws[-1].details["kept"]
    charged = charges_of(row for row in rows if row.sequence <= draws[-1].sequence)
    spent, _ = smallest_epsilon(charged, stated.delta)
    due = stored_epsilon(drawn, delta=stated.delta, spent=spent)
    for name in ("epsilon", "worst_case_epsilon"):
        at_least(f"a sanitised {name}", getattr(stated, name), getattr(due, name), "of the draw")
    require(
        due.plan_was_fixed or not stated.plan_was_fixed,
        "it claims a plan from before there were votes, the ledger records none",
    )
    is_same = stated.delta == due.delta
    require(is_same, f"expected a sanitised delta of {due.delta:g}, got {stated.delta:g}")
    is_sure = stated.confidence <= due.confidence + ROUNDING
    require(is_sure, f"expected a confidence up to {due.confidence:.6g}, got {stated.confidence}")
