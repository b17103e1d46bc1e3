"""The statement of a student of many holders, each of which is charged in its own account."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.composition import delta_of_chosen_kinds, smallest_epsilon
from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.ledger.store import Store
from pate_tf.statement.labels import at_least
from pate_tf.statement.privacy_statement import (
    WORST_CASE,
    Guarantee,
    Part,
    PrivacyStatement,
    pure_if_as_small,
)

PROTECTED: Final = (
    "everything that a silo holds, and so each of its records, against replacement by anything else"
)
PROTECTED_RECORD: Final = "each record of each silo, against replacement by any other record"
PROTECTED_OWNER: Final = (
    "all records of an owner in a silo, against being added, removed or replaced"
)
PROMISE_OF_SUMS: Final = (
    "Any conclusion from the total and any other knowledge has a probability of at most "
    "exp(epsilon) times what it would be if what is protected were changed, plus delta. It holds "
    "for everything that silos may hold."
)
PROMISE: Final = (
    "Any conclusion from the answers of a silo and any other knowledge has a probability of at "
    "most exp(epsilon) times what it would be if that silo held anything else, plus delta. It "
    "holds for everything that silos may hold."
)
LOCAL: Final = (
    ("a silo", "the public queries, its own data, its votes, its own account"),
    (
        "the coordinator",
        "each silo's randomised votes, refusals by policy, and witnesses of the silos' accounts, "
        "which it can't read",
    ),
    ("several silos together", "what each of them sees"),
    ("the network", "sizes and timing"),
)
SECURE: Final = (
    ("a silo", "the public queries, its own data, its votes, its own account"),
    (
        "the coordinator",
        "the noisy histogram, sealed shares and witnesses of the silos' accounts, none of which it "
        "can read, who took part",
    ),
    (
        "up to {threshold} of {num_parties} parties together",
        "shares that say nothing, their own noise, the noisy histogram",
    ),
    ("more parties than that together", "every vote"),
    ("the network", "sizes and timing"),
)
SUMS: Final = (
    ("a silo", "the public representation, its own data, sums, noise and account"),
    (
        "the coordinator",
        "the noisy total, sealed shares and witnesses of the silos' accounts, none of which it can "
        "read, who took part",
    ),
    (
        "up to {threshold} of {num_parties} parties together",
        "shares that say nothing, the noisy total",
    ),
    (
        "more parties than that together",
        "each silo's sums with its own share of the noise alone, not without",
    ),
    ("the network", "sizes and timing"),
)
COALITIONS_SUMS: Final = (
    "Epsilon holds against the coordinator, up to {threshold} of the {num_parties} parties and up "
    "to {colluding} of the silos together. The total of at least {least_silos} silos opens, or "
    "nothing; so {colluding} of them may leave out their noise, and that of the other {num_honest} "
    "suffices. Silos that drop out take none of it away. If all parties pooled what they know, "
    "each silo's own noise would remain, of 1 / {root:.3g} of that standard deviation."
)
COALITIONS_LOCAL: Final = (
    "Each silo's vote was randomised inside of the silo. Its epsilon holds against the coordinator "
    "and all other silos together."
)
COALITIONS_SECURE: Final = (
    "Epsilon holds against the coordinator, any number of other silos and up to {threshold} of the "
    "{num_parties} parties together, as long as the other {num_honest} parties add their noise as "
    "agreed. A party that omits its noise, or more parties than that together, can break it. A "
    "silo that joins the coalition knows its own vote, which takes nothing from the noise."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSpending:
    """What one silo's answers in a run cost it. Public.

    Attributes:
        name: of the silo.
        charged: what its answers were charged as, and how many of each.
        num_refused: queries that it refused by policy.
        epsilon: of all its answers in this run together, at `delta`.
        delta: that epsilon holds at; 129 times the run's where a silo answered by several
            mechanisms, which the coordinator may have chosen by earlier answers.
        num_declared: how many queries it declared in public to answer in all.
    """

    name: str
    charged: tuple[tuple[Charge, int], ...]
    num_refused: int
    epsilon: float
    delta: float
    num_declared: int

    @property
    def charges(self) -> Mapping[Charge, int]:
        """What its answers were charged as, and how many of each."""
        return dict(self.charged)

    @property
    def stated(self) -> tuple[float, float]:
        """Epsilon and delta as the page has them: delta is 0 where all of it is purely private."""
        return pure_if_as_small(self.charges, self.epsilon, self.delta)

    @property
    def num_answered(self) -> int:
        """How many queries it answered."""
        return sum(self.charges.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilosStatement(PrivacyStatement):
    """What may be published with a student of many holders; see `PrivacyStatement`.

    Attributes:
        run_id: name of the run.
        query_strategy: how queries were chosen from the public pool.
        num_queries: queries that were asked.
        num_answered: queries that got a label.
        delta: the run's.
        silos: what each silo was charged.
        unit: what is protected: "silo" with votes; "record" or "owner" with feature sums.

    Raises:
        ValueError: if there is no silo.
    """

    system: ClassVar[str] = "silos"
    run_id: str
    query_strategy: str
    num_queries: int
    num_answered: int
    delta: float
    silos: tuple[SiloSpending, ...]
    unit: str = "silo"

    def __post_init__(self) -> None:
        if not self.silos:
            raise ValueError("silos: expected at least 1, got none")
        if (self.unit == "silo") != (self.sums is None):
            raise ValueError("unit: expected record or owner with feature sums, silo with votes")

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every mechanism that was used."""
        return tuple(dict.fromkeys(charge for one in self.silos for charge in one.charges))

    @property
    def secure(self) -> SecureHistogram | None:
        """The mechanism of secure aggregation; None where votes were randomised locally."""
        return next((one for one in self.charges if isinstance(one, SecureHistogram)), None)

    @property
    def sums(self) -> SecureFeatureSums | None:
        """The mechanism of feature sums; None where silos voted."""
        return next((one for one in self.charges if isinstance(one, SecureFeatureSums)), None)

    @property
    def method(self) -> str:
        """How labels came about: "pate" or "feature_sums"."""
        return "pate" if self.sums is None else "feature_sums"

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a silo."""
        return max(one.epsilon for one in self.silos)

    @property
    def sees(self) -> tuple[tuple[str, str], ...]:
        """Who sees what, in words."""
        rows = LOCAL if self.secure is None else SECURE
        rows = rows if self.sums is None else SUMS
        return tuple((who.format(**self._numbers()), what) for who, what in rows)

    @property
    def coalitions(self) -> str:
        """Against whom together epsilon holds, in words."""
        words = COALITIONS_LOCAL if self.secure is None else COALITIONS_SECURE
        words = words if self.sums is None else COALITIONS_SUMS
        return words.format(**self._numbers())

    def _numbers(self) -> dict[str, float]:
        names = ("threshold", "num_parties", "num_honest")
        if self.sums is not None:
            numbers = {name: getattr(self.sums, name) for name in names}
            return {
                **numbers,
                "colluding": self.sums.colluding,
                "least_silos": self.sums.least_silos,
                "root": self.sums.num_honest**0.5,
            }
        return {name: getattr(self.secure, name) for name in names if self.secure}

    @property
    def protected(self) -> str:  # noqa: D102
        return {"silo": PROTECTED, "record": PROTECTED_RECORD, "owner": PROTECTED_OWNER}[self.unit]

    def introduction(self) -> str:  # noqa: D102
        words = " ".join(one.in_words() for one in self.charges)
        if self.sums is not None:
            return (
                f"{len(self.silos):,} silos hold records of `{self.dataset}`, which stayed with "
                f"each. In the run `{self.run_id}` {self._num_charged:,} of them shared sums of "
                f"their records' features, and no teacher was asked. {words}"
            )
        return (
            f"{len(self.silos):,} silos hold records of `{self.dataset}`, which stayed with each. "
            f"In the run `{self.run_id}` {self.num_answered:,} of {self.num_queries:,} public "
            f"queries (chosen by `{self.query_strategy}`) got a label. {words}"
        )

    def facts(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        yield "method", f"`{self.method}`, by silos"
        if self.sums is not None:
            yield "silos asked / that shared sums", f"{len(self.silos):,} / {self._num_charged:,}"
            return
        yield "queries asked / answered", f"{self.num_queries:,} / {self.num_answered:,}"

    @property
    def _num_charged(self) -> int:
        return sum(one.num_answered > 0 for one in self.silos)

    def promised(self) -> tuple[Guarantee, ...]:  # noqa: D102
        stated = [one.stated for one in self.silos]
        return (
            Guarantee(
                kind=WORST_CASE,
                covers="what a silo answered in this run, at most",
                epsilon=max(epsilon for epsilon, _ in stated),
                delta=max(delta for _, delta in stated),
                promises=PROMISE if self.sums is None else PROMISE_OF_SUMS,
            ),
        )

    def not_released(self) -> Sequence[str]:  # noqa: D102
        if self.sums is not None:
            votes = "The sums of single silos, with or without noise, and the total without noise."
        elif self.secure is None:
            votes = "The votes of a silo before they were randomised."
        else:
            votes = "The votes, and the numbers of votes without noise: the raw sums."
        return ("The silos' records and models.", votes, "The silos' own accounts.")

    def parts(self) -> Iterator[Part]:  # noqa: D102
        head = ("silo", "mechanism", "answered", "refused", "declared", "epsilon", "delta")
        rows = [
            (
                one.name,
                "; ".join(charge.summary() for charge in one.charges) or "none",
                f"{one.num_answered:,}",
                f"{one.num_refused:,}",
                f"{one.num_declared:,}",
                rounded_up(one.stated[0]),
                f"{one.stated[1]:g}",
            )
            for one in self.silos
        ]
        yield Part(title="What each silo answered", table=[head, *rows])
        table = [("", "sees"), *self.sees]
        yield Part(title="Who sees what", text=self.coalitions, table=table)

    def assumptions(self) -> Sequence[str]:  # noqa: D102
        sums = self.sums
        honest = (
            ()
            if sums is None
            else (
                f"Of the silos whose total opened at most {sums.colluding} left out their noise "
                f"or pooled what they know, and at most {sums.threshold} parties did. The list of "
                "silos and parties with their keys is from the people who run them, so that a "
                "coordinator can't make silos up.",
            )
        )
        return (
            *honest,
            "Each silo ran the published code on a machine of its own and drew from the operating "
            "system's entropy, which no one else can predict.",
            "No silo answered with an account that had lost rows: a silo refuses where its own "
            "machine or the coordinator of the run has seen later ones.",
            "The numbers above are those of answers that arrived; an answer that came too late was "
            "charged too and stands in the silo's own account.",
        )

    def not_covered(self) -> Sequence[str]:  # noqa: D102
        return (
            "Who takes part, the sizes of messages and how long an answer takes.",
            "A silo that lies: it can spoil labels, and harms no one's privacy"
            + (
                "."
                if self.sums is None
                else " but by leaving out its noise. What it adds to the total is not bounded, as "
                "secure aggregation hides it and no range is proved."
            ),
            "A coordinator that chooses its queries badly: labels may be useless, epsilon still "
            "holds.",
            "Records that k silos hold: epsilon is k times as large for them, at a delta k "
            "exp((k - 1) epsilon) times as large (group privacy).",
            "What a silo answered in other runs: its own account has it, and its own budget ends "
            "it.",
            "The public queries themselves, which are not protected.",
        )

    def evidence(self) -> Iterator[tuple[str, str]]:  # noqa: D102
        yield "run", f"`{self.run_id}`"

    def derived(self) -> Mapping[str, Any]:  # noqa: D102
        return {
            "method": self.method,
            "epsilon": self.epsilon,
            "mechanisms_in_words": [one.in_words() for one in self.charges],
            "sees": [{"who": who, "what": what} for who, what in self.sees],
            "coalitions": self.coalitions,
        }

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that each silo's epsilon is that of its charges, and accounts hold these.

        A silo's account may hold more: of other runs, and of answers that came too late. It says
        nothing of the other silos; the coordinator's journal has all of them.
        """
        for one in self.silos:
            due, _ = smallest_epsilon(one.charges, self.delta)
            at_least("epsilon", one.epsilon, due, f"for what {one.name} answered")
            at_least("delta", one.delta, delta_of_chosen_kinds(one.charges, self.delta))
        by_name = {one.name: one for one in self.silos}
        for store in stores:
            name = "" if store.opened is None else store.opened.details.get("silo", "")
            if name not in by_name:
                raise ValueError(
                    f"statement: expected the account of one of {', '.join(by_name)}, got "
                    f"{store.folder}"
                )
            for charge, number in by_name[name].charges.items():
                if store.charges[charge] < number:
                    raise ValueError(
                        f"statement: expected charges that the account of {name} holds, got "
                        f"{charge.several(number)}"
                    )

    def check_journal(self, charges: Mapping[str, Mapping[Charge, int]]) -> None:
        """Checks that each silo answered what the coordinator's journal of the run has.

        Args:
            charges: what the answers of each silo were charged as, and how many, by its name.

        Raises:
            ValueError: if a silo is missing, or answered otherwise.
        """
        stated = {one.name: dict(one.charges) for one in self.silos}
        for name in {**stated, **charges}:
            if stated.get(name) != dict(charges.get(name, {})):
                raise ValueError(f"statement: the journal says otherwise what {name} answered")
