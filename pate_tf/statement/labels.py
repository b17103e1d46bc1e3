"""The statement of a student of one holder: labels from teachers' votes, or from feature sums."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.composition import Charge, several_teachers_epsilon, smallest_epsilon
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.release import SanitisedEpsilon, stored_epsilon
from pate_tf.core import validation
from pate_tf.ledger import Head, Ledger, LedgerRow
from pate_tf.ledger.journal import DEBITS, Store, batches_before, charge_of, charges_of
from pate_tf.ledger.ledger import source_facts
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.statement.privacy_statement import (
    ADD_OR_REMOVE_ONE,
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
    epsilon_text,
    pure_if_as_small,
    several_text,
    short,
)

UNITS: Final = ("owner", "record")


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
    delta = drawn["key"]["delta"] or ledger.delta
    return stored_epsilon(drawn, delta=delta, spent=ledger.spent(delta).epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsStatement(PrivacyStatement):
    """What may be published with a student of one holder's labels; see `PrivacyStatement`.

    Attributes:
        unit: what is protected, "record" or "owner".
        mechanism: what was charged; it decides `method`.
        num_teachers: number of teachers that voted; None with feature sums.
        query_strategy: how queries were chosen from the pool, one of
            `queries.strategies.STRATEGIES`.
        num_queries: queries asked for this student.
        num_answered: queries that got a label.
        num_neighbours: how many nearest public inputs a query was asked together with.
        choice: how mechanism, noise and number of queries were chosen, in sentences; or None.
        estimated_accuracy: a charged estimate of the student's accuracy on held-back private
            records, the ends of its 95 % interval, and its epsilon; None without one.
        encoder: name and digest of a pre-trained encoder that features come from; None without one.
        epsilon: worst-case epsilon of this student's labels: against replacement of a record, or
            adding or removing an owner.
        delta: the ledger's, at which epsilons hold.
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
        ValueError: if unit or query strategy is unknown, the mechanism has no words, a privately
            released epsilon comes with adaptive queries, which it does not hold for, or
            `epsilon_ledger_replaced` is missing for owners or given for records.
    """

    system: ClassVar[str] = "labels"
    unit: str
    mechanism: Mechanism
    num_teachers: int | None = None
    query_strategy: str = "first"
    num_queries: int
    num_answered: int
    num_neighbours: int = 0
    choice: str | None = None
    estimated_accuracy: tuple[float, float, float, float] | None = None
    encoder: str | None = None
    epsilon: float
    delta: float
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
        validation.one_of(UNITS, unit=self.unit)
        validation.one_of(STRATEGIES, query_strategy=self.query_strategy)
        self.mechanism.in_words()
        if (self.unit == "owner") != (self.epsilon_ledger_replaced is not None):
            raise ValueError(
                f"epsilon_ledger_replaced: expected a number where owners are protected, and none "
                f"where records are, got {self.epsilon_ledger_replaced} for unit {self.unit!r}"
            )
        if self.sanitised is not None and self.is_adaptive:
            raise ValueError(
                f"sanitised: expected none for queries chosen by earlier noisy answers "
                f"({self.query_strategy}), got one"
            )

    @classmethod
    def of(cls, released: ReleasedLabels, ledger: Ledger, **facts: Any) -> Self:
        """Takes what labels and their ledger say, and the remaining attributes from `facts`."""
        facts = {
            "mechanism": released.cost.charge,
            "unit": released.cost.unit,
            "num_queries": released.num_queries,
            "num_answered": released.num_answered,
            "epsilon": released.cost.epsilon,
            "delta": released.cost.delta,
            "charged_before": released.cost.before,
            "ledger_rows": released.ledger_rows,
            # A later charge with predictable noise spoils the ledger's earlier labels too.
            "secure_noise": released.secure_noise and ledger.is_secure,
            **ledger_facts(ledger, released.cost.unit),
            **facts,
        }
        if not STRATEGIES[facts.get("query_strategy", "first")].is_adaptive:
            facts.setdefault("sanitised", sanitised_of(ledger))
        return cls(**facts)

    @property
    def method(self) -> str:
        """How labels came about: "pate" or "feature_sums"."""
        return "feature_sums" if self.mechanism.releases_feature_sums else "pate"

    @property
    def is_adaptive(self) -> bool:
        """Whether queries were chosen by earlier noisy answers."""
        return STRATEGIES[self.query_strategy].is_adaptive

    @property
    def charged(self) -> Mapping[Charge, int]:
        """What `epsilon` counts, and how often at most."""
        # A mechanism that is charged once for a batch was charged once by each row.
        number = max(self.mechanism.number_charged(self.num_queries), len(set(self.ledger_rows)))
        return Counter({self.mechanism: number}) + Counter(dict(self.charged_before))

    @property
    def epsilon_replaced(self) -> float | None:
        """As `epsilon`, against replacing one owner's records by another's; None for records."""
        is_owner = self.unit == "owner"
        return several_teachers_epsilon(self.charged, delta=self.delta) if is_owner else None

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Epsilon, at delta, of this student's labels for several records or owners at once.

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
        if self.unit == "owner":
            return f"all records of one owner together ({self.source_in_words})"
        return f"each {'' if self.source_name is None else 'record '}of {self.source_in_words}"

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        this, ledger = "this classifier and its labels", "everything charged to this ledger"
        neighbors = ADD_OR_REMOVE_ONE if self.unit == "owner" else REPLACE_ONE
        source = None if self.source_name is None else self.epsilon_source
        delta_source = self.delta_source or self.delta
        epsilon, delta = pure_if_as_small(self.charged, self.epsilon, self.delta)
        rows: list[tuple[str, float | None, float, str, str]] = [
            (this, epsilon, delta, neighbors, WORST_CASE),
            (this, self.epsilon_replaced, self.delta, REPLACE_ONE, WORST_CASE),
        ]
        # The source's row says it all where this ledger is its only one.
        if self.unit == "owner" or (source, delta_source) != (self.epsilon_ledger, self.delta):
            rows.append((ledger, self.epsilon_ledger, self.delta, neighbors, WORST_CASE))
        replaced = self.epsilon_ledger_replaced
        rows.append((ledger, replaced, self.delta, REPLACE_ONE, WORST_CASE))
        plural = "" if self.num_ledgers == 1 else "s"
        number = "" if self.num_ledgers is None else f" ({self.num_ledgers} ledger{plural})"
        words = f"all releases charged to the source {self.source_in_words} on this machine"
        rows.append((words + number, source, delta_source, neighbors, WORST_CASE))
        if self.sanitised is not None:
            drawn, labels = self.sanitised, "all labels of this ledger"
            words = f"{labels}, and this number: {DATA_DEPENDENT}"
            rows.append((words, drawn.epsilon, drawn.delta, neighbors, DATA_DEPENDENT))
            words = f"{labels}, and the number above: worst-case"
            rows.append((words, drawn.worst_case_epsilon, drawn.delta, neighbors, WORST_CASE))
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
        interval = f"95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        compared = "what a constant answer would reach on them is private"
        cost = f"for a pure ε of {epsilon_text(epsilon)}"
        return f"{100 * accuracy:.1f} % ({interval}; {compared}), {cost}"

    def facts(self) -> Mapping[str, object]:  # noqa: D102
        is_registered = self.num_ledgers is not None or self.epsilon_source is not None
        is_counted = self.epsilon_source is not None or self.num_other_units
        words = self.mechanism.in_words()
        mapped, _, summed = words.partition(". ")
        number = "" if self.num_records is None else f" ({self.num_records:,} records)"
        before = [charge.several(number) for charge, number in self.charged_before]
        rows = ", ".join(map(str, self.ledger_rows)) or "none"
        head, digest = self.ledger_head
        return {
            self.unit: True,
            "sums": self.method == "feature_sums",
            "votes": self.method == "pate",
            "adaptive": self.is_adaptive,
            "pool": self.num_queries > 0,
            "linear": not self.num_queries,
            "several charges": self.charged_before or self.epsilon_ledger > self.epsilon,
            "late plan": self.sanitised is not None and not self.sanitised.plan_was_fixed,
            "registered": is_registered,
            "not counted": self.source_name is not None and is_registered and not is_counted,
            "source_name": self.source_name,
            "trained_on": f"{self.source_in_words}{number}",
            "num_records": self.num_records,
            "delta_times_records": epsilon_text(self.delta * (self.num_records or 0)),
            "mapped": f"{mapped}.",
            "mechanism": summed if self.method == "feature_sums" else words,
            "num_teachers": "the" if self.num_teachers is None else f"{self.num_teachers:,}",
            "num_queries": f"{self.num_queries:,}",
            "queries": STRATEGIES[self.query_strategy].words,
            "num_neighbours": self.num_neighbours,
            "charged_before": ", ".join(before),
            "choice": cell(self.choice or ""),
            "num_answered": f"{self.num_answered:,}",
            "labels_in_words": self.mechanism.labels_in_words,
            "unit": self.unit,
            "several": several_text(self.several, self.delta),
            "failure": self.sanitised and f"{1.0 - self.sanitised.confidence:.3g}",
            "epsilon_budget": self.epsilon_budget and f"{self.epsilon_budget:g}",
            "raised": ", raised after its first use" if self.budget_was_raised else "",
            "estimated": self.estimated_in_words,
            "encoder": cell(self.encoder or ""),
            "num_other_units": self.num_other_units,
            "num_ledgers": self.num_ledgers,
            "others": "single records" if self.unit == "owner" else "owners",
            "verified_with": "--train_dir=RUN",
            "evidence": f"Ledger rows {rows}, head {head} ({short(digest)})",
        }

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
        if len(stores) != 1:
            raise ValueError(f"statement: expected one ledger to check it by, got {len(stores)}")
        sequence, digest = self.ledger_head
        if not stores[0].holds(Head(sequence=sequence, digest=digest)):
            raise ValueError(
                f"statement: expected row {sequence} of the ledger to have the digest that is "
                f"quoted; this ledger has another history"
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
            if getattr(self, name) != due:
                raise ValueError(
                    f"statement: expected the ledger's {name} {due}, got {getattr(self, name)}"
                )

    def _check_student(self, rows: Sequence[LedgerRow]) -> None:
        named = set(self.ledger_rows)
        if not named:
            raise ValueError("statement: expected the ledger rows of its labels, got none")
        debits = {row.sequence: charge_of(row) for row in rows if row.kind in DEBITS}
        answers = {row.details["debit"]: row.details for row in rows if row.kind == "answers"}
        for sequence in sorted(named):
            if sequence not in debits:
                raise ValueError(f"statement: expected a debit at row {sequence}, got none")
            if debits[sequence][0] != self.mechanism:
                raise ValueError(f"statement: row {sequence} charged another mechanism")
            if sequence not in answers:
                raise ValueError(f"statement: row {sequence} was charged and never answered")
        num_queries, num_answered = self.num_queries, self.num_answered
        least = len(named) if self.method == "pate" else 0  # sums need no query
        if not (num_queries >= least and 0 <= num_answered <= num_queries):
            raise ValueError(
                f"statement: expected at least {least} queries, one for each row, and no more "
                f"answers than queries, got {num_queries} and {num_answered}"
            )
        withheld = any(answers[row]["num_answered"] < answers[row]["num_queries"] for row in named)
        if num_answered != num_queries and not withheld:
            raise ValueError(
                f"statement: expected an answer to each of the {num_queries} queries, got "
                f"{num_answered}: its rows withheld none"
            )
        led_here = batches_before(rows, self.mechanism, last=max(named))
        led_here -= Counter({self.mechanism: len(named)})
        if not Counter(dict(self.charged_before)) >= led_here:
            raise ValueError(
                "statement: expected every batch that led to these labels among charged_before, "
                "got fewer"
            )
        before = Counter(dict(self.charged_before))
        number = self.charged[self.mechanism] - before[self.mechanism]
        number = min(sum(debits[row][1] for row in named), number)
        counted = Counter({self.mechanism: number}) + before
        epsilon, _ = smallest_epsilon(counted, self.delta)
        at_least("epsilon", self.epsilon, epsilon, f"for {num_queries} queries")

    def _check_ledger(self, rows: Sequence[LedgerRow]) -> None:
        charges, everything = charges_of(rows), "for all that the ledger was charged for"
        spent, _ = smallest_epsilon(charges, self.delta)
        at_least("epsilon", self.epsilon_ledger, spent, everything)
        if self.epsilon_ledger_replaced is not None:
            replaced = several_teachers_epsilon(charges, delta=self.delta)
            what = f"against replacing an owner, {everything}"
            at_least("epsilon", self.epsilon_ledger_replaced, replaced, what)
        if not self.epsilon <= self.epsilon_ledger * (1.0 + ROUNDING):
            raise ValueError(
                f"statement: expected an epsilon up to the ledger's {self.epsilon_ledger}, "
                f"got {self.epsilon}"
            )
        if self.epsilon_source is not None:
            there, _ = smallest_epsilon(charges, self.delta_source or self.delta)
            what = "for all releases of the source"
            at_least("epsilon", self.epsilon_source, there, what)
        check_noise(self, rows)


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
    draws = [row for row in rows if row.kind == "released"]
    if not draws:
        raise ValueError("statement: expected no sanitised epsilon, the ledger stores no release")
    drawn = draws[-1].details["kept"]
    charged = charges_of(row for row in rows if row.sequence <= draws[-1].sequence)
    spent, _ = smallest_epsilon(charged, stated.delta)
    due = stored_epsilon(drawn, delta=stated.delta, spent=spent)
    for name in ("epsilon", "worst_case_epsilon"):
        at_least(f"a sanitised {name}", getattr(stated, name), getattr(due, name), "of the draw")
    if stated.plan_was_fixed and not due.plan_was_fixed:
        raise ValueError(
            "statement: it claims a plan from before there were votes, the ledger records none"
        )
    if stated.delta != due.delta:
        raise ValueError(
            f"statement: expected a sanitised delta of {due.delta:g}, got {stated.delta:g}"
        )
    if not stated.confidence <= due.confidence + ROUNDING:
        raise ValueError(
            f"statement: expected a confidence up to {due.confidence:.6g}, got {stated.confidence}"
        )
