"""The statement of a student of one holder: labels from teachers' votes, or from feature sums."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Final, Self

from pate_tf.accounting.charge import Charge, ReleasedLabels
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.group_privacy import replaced_owner_epsilon, several_teachers_epsilon
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.release_results import sanitised_epsilon
from pate_tf.ledger import Head, Ledger, LedgerRow
from pate_tf.ledger.chain import DEBITS, batches_before, charge_of, charges_of
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.ledger.store import Store
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.statement.privacy_statement import (
    ENTROPY,
    TO_NO_ONE,
    WORST_CASE,
    Guarantee,
    Part,
    PrivacyStatement,
    bold,
    largest_share_of_right_guesses,
    pure_if_as_small,
    table_cell,
)

ROUNDING: Final = 1e-9
SEVERAL: Final = (2, 5)

# The words of this statement. `{one}` and the like depend on the unit that is protected.


PROTECTED: Final = {
    "record": "one record of the private data, against replacement by any other record",
    "owner": "all records of one owner together, against adding or removing them",
}
UNITS: Final = {
    "record": {
        "one": "one record",
        "changed": "one record replaced by another",
        "each": "Each record",
    },
    "owner": {
        "one": "one owner's records",
        "changed": "all records of one owner added or removed",
        "each": "Each owner, with all records,",
    },
}
CANDIDATES: Final = {
    "record": "Somebody knows all of the private data but one record, and of the missing one knows "
    "that it is one of two candidates, each as likely as the other.",
    "owner": "Somebody knows all of the private data but for one owner, knows that owner's records "
    "too, and not whether these are among the private data: either is as likely. (Against "
    "replacement: which of two owners' records are, each as likely as the other's.)",
}
PROMISE: Final = (
    "Any conclusion from the student, its labels and any other knowledge has a probability of at "
    "most exp(epsilon) times what it would be with {changed}, plus delta. It holds for every "
    "possible data set."
)
AGAINST_REPLACEMENT: Final = "data-independent, against replacement"
OWNER_REPLACED: Final = (
    "The same with one owner's records replaced by another owner's. That removes one owner and "
    "adds one, two changes, which cost more than one."
)
SANITISED: Final = (
    "The same for the data set as it was against every neighbour of it, and for no other pair of "
    "data sets; but for a probability of {failure:.3g} that the noise on this number made it too "
    "small. Choosing among several such numbers has no such probability."
)
LATE_PLAN: Final = (
    " Nothing shows that its plan was fixed before there were votes; if it was chosen by looking "
    "at them, this number promises less than it says."
)
WITHOUT_NUMBER: Final = {
    "sanitised": "None is named here. `analysis.py` can release one for all labels, which is "
    "charged as labels are; the page of the run then names it, with its own cost.",
    "gated": "Not used: these labels did not wait for a noisy bound on their cost.",
    "data-dependent": "Not published. It is a function of the private votes and would itself tell "
    "something about them; it is for those who hold the private data.",
}
ADAPTIVE_HAS_NONE: Final = (
    "None, because it would not hold: queries were chosen by earlier noisy answers."
)
NEIGHBOURS: Final = (
    "the {} public inputs nearest to it; of them together each teacher named one class, so that a "
    "query costs what it costs alone"
)
NOT_RELEASED: Final = {
    "pate": (
        "The private records, and which record went to which teacher.",
        "The teachers, their weights and their predictions.",
        "The votes, and the numbers of votes without noise.",
        "How accurate the teachers are on private records.",
    ),
    "feature_sums": (
        "The private records and their feature vectors.",
        "The raw sums: the sum of feature vectors of each class without noise.",
        "The number of records of each class, and in each cluster, without noise.",
    ),
}
FIXED_QUERIES: Final = (
    "Which queries were asked, and how many, was fixed without looking at private data or at "
    "earlier noisy answers."
)
ADAPTIVE_QUERIES: Final = (
    "Which queries were asked depended on public data and on earlier noisy answers alone, and how "
    "many was fixed beforehand. The data-independent epsilon covers such a choice, because it adds "
    "up worst cases."
)
ASSUMED: Final = {
    "pate": (
        "{each} reached one teacher only, and which one did not depend on the others. What a "
        "teacher learnt depended on its own records, on public values and on a seed alone.",
        "The pool that the queries came from is public.",
        "Models, settings, noise and numbers of queries were not chosen by looking at the private "
        "data, nor by how accurate the teachers were that learnt from them.",
    ),
    "feature_sums": (
        "What was added up of {one} depended on nothing but that, on public values and on its "
        "place among the private data.",
        "The pool whose inputs were labelled is public.",
        "Models, settings and noise were not chosen by looking at the private data.",
    ),
}
SEVERAL_CHARGES: Final = (
    "Where several mechanisms were charged, which ones and how often each was fixed without "
    "looking at earlier answers; or all that could be charged was, and all of it is counted."
)
ENCODER: Final = (
    "The training data of the pre-trained encoder ({}) are vouched for by the user: no private "
    "record was among them, as far as the user knows; nothing here checks it."
)
LEFT_OUT: Final = (
    "What the data set as a whole teaches: facts about a population that hold with or without "
    "{one} may be learnt.",
    "Anything else that was ever published about the same data, by this or another system.",
    "Everything below `sensitive/`, which must not be published.",
    "What is released after this statement, labels or a sanitised epsilon: the ledger is charged "
    "for it, and later statements include it.",
)
LEFT_OUT_OF_UNIT: Final = {
    "record": (
        "Whether a record is there at all, and how many there are: replacing a record is covered, "
        "adding or removing one is not.",
        "Several records of the same person: together they are protected by a larger epsilon only, "
        "which can be more than the sum of theirs; see the table. Where persons have several "
        "records each, name them as owners.",
    ),
    "owner": (
        "Somebody who counts as several owners: together these are protected by a larger epsilon "
        "only, which can be more than the sum of theirs; see the table.",
    ),
}
DELTA: Final = "What happens with a probability of up to delta. "
NO_FINITE_EPSILON: Final = (
    " (infinite where nothing is known at this delta: if a mechanism has a delta of its own for "
    "{one}, each further one adds a delta that is larger by a factor of e to the epsilon)"
)
OTHER_UNITS: Final = (
    "NOT KNOWN: {number} of {all} ledgers of the same private records protect {others}, or it is "
    "not known what. No epsilon of {one} holds for all of them together: what they released is not "
    "covered by any number above."
)
ONE_LEDGER: Final = (
    "What was released is what the one ledger says. That holds if the ledger was never deleted, "
    "restored from a copy or copied, and if none of those who may write to it rewrote it.",
    "This machine's record of ledgers notices a ledger that was deleted, restored or copied, and "
    "other ensembles of the same private records, for this user alone and from the day on that it "
    "began. Copies on other machines or under another user can't be seen, nor can records that "
    "were changed in any way before they were used again.",
)
NOT_REGISTERED: Final = (
    "NOT CHECKED: no record of ledgers could be kept on this machine, so that a ledger that was "
    "restored or copied, and other ensembles of the same records, would have gone unnoticed."
)
NOT_COUNTED: Final = (
    "NOT KNOWN: another ensemble of the same private records charged something that is unknown "
    "here, so that the cost of all of them together is not known."
)
RECORDS_UNKNOWN: Final = (
    "NOT CHECKED: which private records were learnt from is not known here, so that other "
    "ensembles of the same records could not be recognised; what these released is not counted."
)
WAS_RESET: Final = (
    "THE LEDGER WAS RESET: an earlier ledger, or rows of this one, were gone, and its user went on "
    "regardless. What was known of their cost is counted here; what else they charged is not, and "
    "no number above covers it."
)


# Facts, and what follows from them.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sanitised:
    """A sanitised epsilon that was published with a student, for all votes of its ensemble.

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
    def of(cls, drawn: Mapping[str, Any], *, delta: float, spent: float) -> "Sanitised":
        """Reads what a draw says.

        Args:
            drawn: as `Ledger.stored_release` returns it.
            delta: that it is to hold at, where the draw has none of its own.
            spent: data-independent epsilon of all that the ledger charged, at that delta.
        """
        found = sanitised_epsilon(drawn, delta=delta, spent=spent)
        names = ("epsilon", "delta", "confidence", "worst_case_epsilon")
        fixed = bool(drawn.get("plan_was_fixed", False))
        return cls(**{name: getattr(found, name) for name in names}, plan_was_fixed=fixed)

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> "Sanitised | None":
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
        return cls.of(drawn, delta=delta, spent=ledger.spent(delta).epsilon)


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
        encoder: name and digest of a pre-trained encoder that features come from; None without one.
        epsilon: data-independent epsilon of this student's labels: against replacement of a record,
            or adding or removing an owner.
        delta: the ledger's, at which epsilons hold.
        charged_before: other charges that `epsilon` counts too, and how often: batches of a
            mechanism that is charged once for a batch, which led to these labels.
        epsilon_ensemble: data-independent epsilon of everything that the ledger was ever charged
            for.
        epsilon_ensemble_replaced: for unit "owner" the same against replacing one owner's records
            by another's; None for unit "record".
        epsilon_budget: the ledger's budget, or None if it has none.
        budget_was_raised: whether budget or delta were ever raised after their first use.
        ledger_rows: rows of the ledger that charged the labels.
        ledger_head: sequence and digest of the ledger's last row when the statement was made; they
            fix the history before it, and so `epsilon_ensemble`.
        sanitised: what `analysis.py` released of the votes, or None if it did not.
        num_records: how many private records there are; None where it is not known, or not public,
            as for owners.
        epsilon_all_ensembles: data-independent epsilon of all that ensembles of the same private
            records released, as far as known to this user on this machine; None if that is not
            known.
        delta_all_ensembles: the delta that it holds at: `delta`, or more where the batches of all
            of them that were charged by (epsilon, delta) have more of it together.
        num_ledgers: how many ledgers were counted for it.
        num_other_units: how many of them protect something else than `unit`, or it is not known
            what, so that nothing holds for all of them.
        records_are_known: whether the records could be compared with those of other ensembles; if
            not, only ensembles with equal teachers were counted.

    Raises:
        ValueError: if unit or query strategy is unknown, the mechanism has no words, a sanitised
            epsilon comes with adaptive queries, which it does not hold for, or
            `epsilon_ensemble_replaced` is missing for owners or given for records.
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
    encoder: str | None = None
    epsilon: float
    delta: float
    charged_before: tuple[tuple[Charge, int], ...] = ()
    epsilon_ensemble: float
    epsilon_ensemble_replaced: float | None = None
    epsilon_budget: float | None
    budget_was_raised: bool
    ledger_rows: tuple[int, ...]
    ledger_head: tuple[int, str]
    sanitised: Sanitised | None = None
    num_records: int | None = None
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None
    num_other_units: int = 0
    records_are_known: bool = False

    def __post_init__(self) -> None:
        if self.unit not in PROTECTED:
            raise ValueError(f"unit: expected one of {sorted(PROTECTED)}, got {self.unit!r}")
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
                f"{self.unit!r}"
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
            # A later charge with predictable noise spoils the ensemble's earlier labels too.
            "secure_noise": released.secure_noise and ledger.is_secure,
            **ledger_facts(ledger, released.cost.unit),
            **facts,
        }
        if not STRATEGIES[facts.get("query_strategy", "first")].is_adaptive:
            facts.setdefault("sanitised", Sanitised.of_ledger(ledger))
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
    def number_charged(self) -> int:
        """How often the mechanism was charged for this student's labels, at most."""
        # A mechanism that is charged once for a batch was charged once by each row.
        return max(self.mechanism.number_charged(self.num_queries), len(set(self.ledger_rows)))

    @property
    def charged(self) -> Mapping[Charge, int]:
        """What `epsilon` counts, and how often."""
        return Counter({self.mechanism: self.number_charged}) + Counter(dict(self.charged_before))

    @property
    def epsilon_replaced(self) -> float | None:
        """As `epsilon`, against replacing one owner's records by another's; None for records."""
        is_owner = self.unit == "owner"
        return replaced_owner_epsilon(self.charged, self.delta) if is_owner else None

    @property
    def several(self) -> dict[int, float]:
        """Epsilon, at delta, of this student's labels for several records or owners at once.

        From how many there are, 2 and 5, to an epsilon that protects all of them together.
        """
        charged = tuple(self.charged.items())
        return {number: _several_epsilon(charged, self.delta, number) for number in SEVERAL}

    @property
    def delta_times_records(self) -> float | None:
        """Delta times the number of private records; None where that is not known or not public."""
        return None if self.num_records is None else self.delta * self.num_records

    @property
    def protected(self) -> str:  # noqa: D102
        return PROTECTED[self.unit]

    def candidates(self) -> str:  # noqa: D102
        return CANDIDATES[self.unit]

    def warnings(self) -> Sequence[str]:  # noqa: D102
        found = [*super().warnings()]
        if self.ledger_was_reset:
            found.append(f"**{WAS_RESET}**")
        return found

    def introduction(self) -> str:  # noqa: D102
        learnt = f"A classifier (the *student*) learnt from {self.num_answered:,} "
        learnt += self.mechanism.labels_in_words
        if self.method == "feature_sums":
            return f"{learnt} of `{self.dataset}`. {self.mechanism.in_words()}"
        number = "" if self.num_teachers is None else f"{self.num_teachers:,} "
        return (
            f"{learnt}. {number}*teachers*, trained on disjoint parts of the private data set "
            f"`{self.dataset}`, voted for them, each for one class. {self.mechanism.in_words()}"
        )

    def facts(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        fields = [
            f"{name} = {one}" for name, one in self.mechanism.to_dict().items() if name != "name"
        ]
        yield "method", f"`{self.method}`"
        yield "mechanism", f"`{self.mechanism.name}` ({', '.join(fields)})"
        for charge, number in self.charged_before:
            yield "counted too", charge.several(number)
        if self.method == "feature_sums":
            yield "public inputs labelled", f"{self.num_answered:,}"
        else:
            yield "queries asked / answered", f"{self.num_queries:,} / {self.num_answered:,}"
            yield "which queries", STRATEGIES[self.query_strategy].words
        if self.num_neighbours:
            yield "each asked with", NEIGHBOURS.format(self.num_neighbours)
        if self.choice:
            yield "how chosen", table_cell(self.choice)
        if self.encoder:
            yield "pre-trained encoder", table_cell(self.encoder)
        budget = "none was set"
        if self.epsilon_budget is not None:
            raised = ", raised after its first use" if self.budget_was_raised else ""
            budget = f"epsilon {self.epsilon_budget:g} at delta {self.delta:g}{raised}"
        yield "budget", budget

    def promised(self) -> tuple[Guarantee, ...]:  # noqa: D102
        def always(covers: str, epsilon: float, delta: float) -> Guarantee:
            promise = PROMISE.format(**UNITS[self.unit])
            return Guarantee(
                kind=WORST_CASE, covers=covers, epsilon=epsilon, delta=delta, promises=promise
            )

        own = pure_if_as_small(self.charged, self.epsilon, self.delta)
        everything = "everything that the ledger was charged for up to here"
        found = [
            always("this student's labels", *own),
            always(everything, self.epsilon_ensemble, self.delta),
        ]
        if self.epsilon_all_ensembles is not None:
            plural = "" if self.num_ledgers == 1 else "s"
            counted = "" if self.num_ledgers is None else f" ({self.num_ledgers} ledger{plural})"
            covers = (
                "everything that ensembles of the same private records released up to here, as far "
                f"as known on this machine{counted}"
            )
            delta = self.delta_all_ensembles or self.delta
            found.append(always(covers, self.epsilon_all_ensembles, delta))
        if self.epsilon_ensemble_replaced is not None:
            replaced = (self.epsilon_replaced, self.epsilon_ensemble_replaced)
            for one, epsilon in zip(found[:2], replaced, strict=True):
                found.append(
                    Guarantee(
                        kind=AGAINST_REPLACEMENT,
                        covers=f"{one.covers}, against replacement by another owner's records",
                        epsilon=epsilon,
                        delta=self.delta,
                        promises=OWNER_REPLACED,
                    )
                )
        missing = dict(WITHOUT_NUMBER)
        if self.method == "feature_sums":
            missing = {}  # it has no votes that a cost could depend on
        elif self.is_adaptive:
            missing["sanitised"] = ADAPTIVE_HAS_NONE
        if self.sanitised is not None:
            missing.pop("sanitised", None)
            drawn = self.sanitised
            promise = SANITISED.format(failure=1.0 - drawn.confidence)
            found += [
                Guarantee(
                    kind="sanitised",
                    covers="all labels of this ensemble, and this number",
                    epsilon=drawn.epsilon,
                    delta=drawn.delta,
                    promises=promise + ("" if drawn.plan_was_fixed else LATE_PLAN),
                    to_whom="those in the data",
                    bounds_guesses=False,  # it holds for these votes alone
                ),
                always(
                    "all labels of this ensemble, and the sanitised number",
                    drawn.worst_case_epsilon,
                    drawn.delta,
                ),
            ]
        return (
            *found,
            *(
                Guarantee(kind=kind, promises=reason, to_whom=TO_NO_ONE)
                for kind, reason in missing.items()
            ),
        )

    def not_released(self) -> Sequence[str]:  # noqa: D102
        return NOT_RELEASED[self.method]

    def assumptions(self) -> Sequence[str]:  # noqa: D102
        queries = ADAPTIVE_QUERIES if self.is_adaptive else FIXED_QUERIES
        sentences = [one.format(**UNITS[self.unit]) for one in ASSUMED[self.method]]
        return [
            *([queries] if self.method == "pate" else []),
            *sentences,
            SEVERAL_CHARGES,
            *([ENCODER.format(self.encoder)] if self.encoder else []),
            *([ENTROPY] if self.secure_noise else []),
        ]

    def not_covered(self) -> Sequence[str]:  # noqa: D102
        if self.unit == "owner":
            delta = (
                "How many owners there are is not stated, as adding or removing one changes it: "
                f"delta, {self.delta:g}, should be far smaller than one over that number, which "
                "those who hold the private data can check."
            )
        elif self.num_records is None:
            delta = (
                f"How many private records there are is not known here: delta, {self.delta:g}, "
                "should be far smaller than one over that number."
            )
        else:
            delta = (
                f"Delta times the number of private records, {self.num_records:,}, is "
                f"{self.delta * self.num_records:.3g}; it should be far below 0.1."
            )
        sentences = (*LEFT_OUT, *LEFT_OUT_OF_UNIT[self.unit])
        return [*(one.format(**UNITS[self.unit]) for one in sentences), DELTA + delta]

    @property
    def one_ledger(self) -> list[str]:
        """What the numbers of the ensemble rest on, and what could not be checked."""
        found = [*([WAS_RESET] if self.ledger_was_reset else []), *ONE_LEDGER]
        if (self.num_ledgers, self.epsilon_all_ensembles) == (None, None):
            return [*found, NOT_REGISTERED]
        if self.num_other_units:
            words = OTHER_UNITS.format(
                **UNITS[self.unit],
                number=self.num_other_units,
                all=self.num_ledgers,
                others="single records" if self.unit == "owner" else "owners",
            )
            return [*found, words]
        if self.epsilon_all_ensembles is None:
            return [*found, NOT_COUNTED]
        return [*found, *([] if self.records_are_known else [RECORDS_UNKNOWN])]

    def parts(self) -> Iterator[Part]:  # noqa: D102
        rows = [(str(number), bold(epsilon)) for number, epsilon in self.several.items()]
        is_finite = inf not in self.several.values()
        why = "" if is_finite else NO_FINITE_EPSILON.format(**UNITS[self.unit])
        yield Part(
            title=f"Several {self.unit}s of one person",
            text=f"For several {self.unit}s of one person at once, the epsilon of this student's "
            f"labels, at the same delta{why}:",
            table=[(f"{self.unit}s of one person", "epsilon"), *rows],
        )
        yield Part(title="One ensemble, one ledger", sentences=self.one_ledger)

    def evidence(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        yield "charged by ledger rows", ", ".join(map(str, self.ledger_rows)) or "none"
        yield f"ledger at row {self.ledger_head[0]}", f"`{self.ledger_head[1]}`"

    def derived(self) -> Mapping[str, Any]:  # noqa: D102
        share = largest_share_of_right_guesses(self.epsilon, self.delta)
        return {
            "method": self.method,
            "mechanism_in_words": self.mechanism.in_words(),
            "largest_share_of_right_guesses": share if self.secure_noise else None,
            "several": [
                {"number": number, "epsilon": epsilon} for number, epsilon in self.several.items()
            ],
            "delta_times_records": self.delta_times_records,
            "one_ledger": self.one_ledger,
        }

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that the statement says no less than its ledger.

        The head that it quotes fixes every row before it. From those rows follow, and are checked:
        what the ensemble had spent, delta, budget and whether it was raised, whether an earlier
        ledger was lost, whether noise was secure, the sanitised epsilon with its confidence, worst
        case and plan, and for the rows that are named their mechanism and that they were answered.
        For owners so is what the ensemble had spent against replacing one.

        Which of the ensemble's labels the student learnt from is in no row. So its numbers of
        queries are only checked to be possible, and its own epsilon to be that of these: somebody
        could state fewer of both. `epsilon_ensemble` bounds the cost of all that the student
        learnt. An input that is asked twice is charged once: where such a student also shares its
        rows with others, its true epsilon is refused as too small. What other ensembles of the same
        records spent is in no row of this ledger either; the sum can't be less than it spent
        itself. Data set, unit, numbers of teachers and records, query strategy, digest of the
        student and versions are in no row.
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
        self._check_ensemble(rows)
        if self.sanitised is not None:
            _check_sanitised(self.sanitised, rows)

    def _check_budget(self, rows: Sequence[LedgerRow]) -> None:
        budgets = [row.details for row in rows if row.kind in ("opened", "budget")]
        for name, due in (
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
        asked, answered = self.num_queries, self.num_answered
        if not (asked >= len(named) and 0 <= answered <= asked):
            raise ValueError(
                f"statement: expected at least {len(named)} queries, one for each row, and no more "
                f"answers than queries, got {asked} and {answered}"
            )
        withheld = any(answers[row]["num_answered"] < answers[row]["num_queries"] for row in named)
        if answered != asked and not withheld:
            raise ValueError(
                f"statement: expected an answer to each of the {asked} queries, got {answered}: "
                f"its rows withheld none"
            )
        led_here = batches_before(rows, self.mechanism, last=max(named))
        led_here -= Counter({self.mechanism: len(named)})
        if not Counter(dict(self.charged_before)) >= led_here:
            raise ValueError(
                "statement: expected every batch that led to these labels among charged_before, "
                "got fewer"
            )
        number = min(sum(debits[one][1] for one in named), self.number_charged)
        counted = Counter({self.mechanism: number}) + Counter(dict(self.charged_before))
        least, _ = smallest_epsilon(counted, self.delta)
        at_least("epsilon", self.epsilon, least, f"for {asked} queries")

    def _check_ensemble(self, rows: Sequence[LedgerRow]) -> None:
        charges, everything = charges_of(rows), "for all that the ensemble had released"
        spent, _ = smallest_epsilon(charges, self.delta)
        at_least("epsilon", self.epsilon_ensemble, spent, everything)
        if self.epsilon_ensemble_replaced is not None:
            replaced = replaced_owner_epsilon(charges, self.delta)
            what = f"against replacing an owner, {everything}"
            at_least("epsilon", self.epsilon_ensemble_replaced, replaced, what)
        if not self.epsilon <= self.epsilon_ensemble * (1.0 + ROUNDING):
            raise ValueError(
                f"statement: expected an epsilon up to the ensemble's {self.epsilon_ensemble}, "
                f"got {self.epsilon}"
            )
        if self.epsilon_all_ensembles is not None:
            there, _ = smallest_epsilon(charges, self.delta_all_ensembles or self.delta)
            what = "for all ensembles of the records"
            at_least("epsilon", self.epsilon_all_ensembles, there, what)
        check_noise(self, rows)


@functools.lru_cache(maxsize=64)
def _several_epsilon(charged: tuple[tuple[Charge, int], ...], delta: float, several: int) -> float:
    return several_teachers_epsilon(dict(charged), delta=delta, num_teachers=several)


def ledger_facts(ledger: Ledger, unit: str) -> dict[str, Any]:
    """Returns what a ledger says of everything that it charged, as fields of a statement."""
    return {
        "epsilon_ensemble": ledger.spent().epsilon,
        "epsilon_ensemble_replaced": ledger.replaced_owner_epsilon() if unit == "owner" else None,
        "epsilon_budget": ledger.epsilon_budget,
        "budget_was_raised": ledger.was_raised,
        "ledger_head": (ledger.head.sequence, ledger.head.digest),
        **facts_beyond_the_ledger(ledger),
    }


# Checks that statements of several systems share.


def at_least(name: str, said: float, due: float, what: str = "") -> None:
    """Checks that a stated number is not below a due one; NaN is.

    Raises:
        ValueError: if it is.
    """
    if not said >= due * (1.0 - ROUNDING):
        raise ValueError(f"statement: expected at least {name} {due:.6g} {what}, got {said}")


def check_noise(statement: PrivacyStatement, rows: Sequence[LedgerRow]) -> None:
    """Checks that a statement of secure noise is one of rows with secure noise.

    Raises:
        ValueError: if a row records noise from a seed.
    """
    is_secure = all(row.details.get("secure_noise", True) for row in rows if row.kind in DEBITS)
    if statement.secure_noise and not is_secure:
        raise ValueError("statement: it claims secure noise, the ledger records seeded noise")


def _check_sanitised(said: Sanitised, rows: Sequence[LedgerRow]) -> None:
    draws = [row for row in rows if row.kind == "released"]
    if not draws:
        raise ValueError("statement: expected no sanitised epsilon, the ledger stores no release")
    drawn = draws[-1].details["kept"]
    charged = charges_of(row for row in rows if row.sequence <= draws[-1].sequence)
    due = Sanitised.of(drawn, delta=said.delta, spent=smallest_epsilon(charged, said.delta)[0])
    for name in ("epsilon", "worst_case_epsilon"):
        at_least(f"a sanitised {name}", getattr(said, name), getattr(due, name), "of the draw")
    if said.plan_was_fixed and not due.plan_was_fixed:
        raise ValueError(
            "statement: it claims a plan from before there were votes, the ledger records none"
        )
    if said.delta != due.delta:
        raise ValueError(
            f"statement: expected a sanitised delta of {due.delta:g}, got {said.delta:g}"
        )
    if not said.confidence <= due.confidence + ROUNDING:
        raise ValueError(
            f"statement: expected a confidence up to {due.confidence:.6g}, got {said.confidence}"
        )
