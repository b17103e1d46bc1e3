"""The statement of a student of many holders, each of which is charged in its own ledger."""

import dataclasses
import functools
import heapq
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from pate_tf.accounting.composition import (
    Charge,
    delta_of_chosen_kinds,
    group_epsilon,
    several_teachers_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.ledger.journal import Store
from pate_tf.queries.strategies import STRATEGIES
from pate_tf.statement.privacy_statement import (
    REPLACE_ONE,
    SEVERAL,
    Guarantee,
    PrivacyStatement,
    at_least,
    cell,
    delta_text,
    epsilon_text,
    markdown_table,
    pure_if_as_small,
    several_text,
)

# What is protected, and the relation between neighboring data sets, by unit.
UNITS: Final = {
    "silo": ("everything that one silo holds", REPLACE_ONE),
    "record": ("each record in one silo", REPLACE_ONE),
    "owner": ("all records of one owner in one silo", "add-, remove- or replace-one"),
}


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
    """

    name: str
    charged: tuple[tuple[Charge, int], ...]
    num_refused: int
    epsilon: float
    delta: float

    @property
    def charges(self) -> Mapping[Charge, int]:
        """What its answers were charged as, and how many of each."""
        return dict(self.charged)


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
        return tuple(dict.fromkeys(charge for silo in self.silos for charge in silo.charges))

    @property
    def sums(self) -> SecureFeatureSums | None:
        """The mechanism of feature sums; None where silos voted."""
        return next((each for each in self.charges if isinstance(each, SecureFeatureSums)), None)

    @property
    def method(self) -> str:
        """How labels came about: "pate" or "feature_sums"."""
        return "pate" if self.sums is None else "feature_sums"

    @property
    def epsilon(self) -> float:
        """The largest epsilon of a silo."""
        return max(silo.epsilon for silo in self.silos)

    @functools.cached_property
    def several(self) -> dict[int, float]:
        """Epsilon for what so many silos hold, all of it changed, at `several_delta`.

        Answers that were randomized in each silo compose: so many silos cost what all their answers
        cost together. Where silos share the noise, so many of them move the total by so many
        times as much, which is group privacy.
        """
        num_charged = sum(any(silo.charges.values()) for silo in self.silos)
        numbers = sorted({number for number in SEVERAL if number < num_charged})
        numbers += [num_charged] * (num_charged > 1)
        most = {number: self._most_charged(number) for number in (1, *numbers)}
        if not any(isinstance(each, SecureHistogram | SecureFeatureSums) for each in self.charges):
            return {number: smallest_epsilon(most[number], self.delta)[0] for number in numbers}
        if len(self.charges) == 1:
            return {
                number: several_teachers_epsilon(most[1], delta=self.delta, num_teachers=number)
                for number in numbers
            }
        share, delta = self.delta / self.several_delta, self.several_delta
        return {
            number: group_epsilon(
                lambda smaller: smallest_epsilon(most[1], share * smaller)[0],
                delta,
                num_steps=number,
            )
            for number in numbers
        }

    @property
    def several_delta(self) -> float:
        """The delta that `several` holds at; more than the run's if answers chose mechanisms."""
        return delta_of_chosen_kinds(self._most_charged(1), self.delta)

    def _most_charged(self, number: int) -> dict[Charge, int]:
        """Returns at least what any so many silos were charged together."""
        counts = {each: [silo.charges.get(each, 0) for silo in self.silos] for each in self.charges}
        return {each: sum(heapq.nlargest(number, counts[each])) for each in counts}

    @property
    def protected(self) -> str:  # noqa: D102
        return UNITS[self.unit][0]

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:  # noqa: D102
        # Delta is 0 where all of it is purely private.
        stated = [pure_if_as_small(silo.charges, silo.epsilon, silo.delta) for silo in self.silos]
        return (
            Guarantee(
                release="what one silo answered in this run, at most",
                epsilon=max(epsilon for epsilon, _ in stated),
                delta=max(delta for _, delta in stated),
                relation=UNITS[self.unit][1],
            ),
        )

    def facts(self) -> Mapping[str, object]:  # noqa: D102
        names: dict[tuple[str, ...], list[str]] = {}
        for silo in self.silos:
            charged = "; ".join(charge.summary() for charge in silo.charges) or "none"
            counts = (sum(silo.charges.values()), silo.num_refused)
            epsilon, delta = pure_if_as_small(silo.charges, silo.epsilon, silo.delta)
            row = (charged, *(f"{count:,}" for count in counts))
            row = (*row, epsilon_text(epsilon), delta_text(delta))
            names.setdefault(row, []).append(cell(silo.name))
        head = ("silo", "mechanism", "answered", "refused", "ε", "δ")
        table = [head, *((", ".join(silos), *row) for row, silos in names.items())]
        secure = next((each for each in self.charges if isinstance(each, SecureHistogram)), None)
        shared: Any = self.sums or secure
        has_moments = self.sums is not None and self.sums.has_moments
        names_shared = ("threshold", "num_parties", "num_honest", "colluding", "least_silos")
        return {
            self.unit: True,
            "sums": self.sums is not None,
            "pool": not has_moments,
            "linear": has_moments,
            "votes": self.sums is None,
            "local": self.sums is None and secure is None,
            "secure votes": self.sums is None and secure is not None,
            **{name: getattr(shared, name, None) for name in names_shared},
            "root": f"{getattr(shared, 'num_honest', 1) ** 0.5:.3g}",
            "trained_on": f"the private records of {len(self.silos):,} silos",
            "unit": self.unit,
            "num_queries": f"{self.num_queries:,}",
            "num_answered": f"{self.num_answered:,}",
            "queries": STRATEGIES[self.query_strategy].words,
            "mechanism": " ".join(charge.in_words() for charge in self.charges),
            "num_silos": f"{len(self.silos):,}",
            "num_charged": f"{sum(any(silo.charges.values()) for silo in self.silos):,}",
            "table_of_silos": markdown_table(table),
            "several": several_text(self.several, self.several_delta),
            "verified_with": "--ledger=LEDGER_OF_A_SILO",
            "evidence": f"Run `{cell(self.run_id)}`",
        }

    def check(self, stores: Sequence[Store]) -> None:
        """Checks that each silo's epsilon is that of its charges, and ledgers hold these.

        A silo's ledger may hold more: of other runs, and of answers that came too late. It says
        nothing of the other silos.
        """
        for silo in self.silos:
            due, _ = smallest_epsilon(silo.charges, self.delta)
            at_least("epsilon", silo.epsilon, due, f"for what {silo.name} answered")
            at_least("delta", silo.delta, delta_of_chosen_kinds(silo.charges, self.delta))
        by_name = {silo.name: silo for silo in self.silos}
        for store in stores:
            name = "" if store.opened is None else store.opened.details.get("silo", "")
            if name not in by_name:
                raise ValueError(
                    f"statement: expected the ledger of one of {', '.join(by_name)}, got "
                    f"{store.folder}"
                )
            for charge, number in by_name[name].charges.items():
                if store.charges[charge] < number:
                    raise ValueError(
                        f"statement: expected charges that the ledger of {name} holds, got "
                        f"{charge.several(number)}"
                    )
