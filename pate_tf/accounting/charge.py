"""What can be paid for, and what was paid: `Charge` and `Cost`.

A mechanism is a charge that also draws (`pate_tf.accounting.mechanisms`); a plan to release the
data-dependent cost is another one (`pate_tf.accounting.release_plan`). Whatever composes costs, the
ledger first of all, asks a charge alone and never what kind it is.
"""

from __future__ import annotations

import dataclasses
import decimal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, ClassVar

from pate_tf.accounting.conversions import pure_composition_epsilon
from pate_tf.accounting.divergences import FloatArray


class Charge(ABC):
    """Whatever can be paid for: a frozen value that says what one of it costs.

    One costs a part with moments (`alphas`) and, of some, a part that is merely (epsilon, delta)
    differentially private (`approximate`). Both hold in the worst case over all data and neighbours
    and in both directions, also where it was chosen by looking at earlier outputs.

    Attributes:
        name: in records.
        answers: whether it pays for answers to queries, rather than for something else.
        is_paid_once: whether a whole batch is charged once, instead of each of its queries.
        adds_records: whether it adds up what is known of records, and asks no teacher.
        counted: what one and several of them are called.
        labels_in_words: what the labels are called that it pays for.
        lacks: what it can't do, and why, in words that end a sentence. Every member of a family
            has all that the family asks for, or says here why not; a test holds it to that.
    """

    name: ClassVar[str]
    answers: ClassVar[bool] = False
    is_paid_once: ClassVar[bool] = False
    adds_records: ClassVar[bool] = False
    counted: ClassVar[tuple[str, str]]
    labels_in_words: ClassVar[str] = "noisy labels"
    lacks: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the largest cost of one, [num_moments], natural logarithm, whatever the data.

        l times the Renyi divergence of order l + 1; infinite where there is no finite one, zero for
        what `approximate` says all about.
        """

    @property
    def approximate(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of the part that has no finite moments; None without one."""
        return None

    @property
    def pure_epsilon(self) -> float | None:
        """The epsilon at which one is differentially private with delta 0; None without one."""
        return None

    @property
    def bounded_range(self) -> float | None:
        """How far the log ratios of its outcomes span at most; None if nothing is known."""
        return None

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of Gaussian mechanisms that cost no less than one of this together; none if empty.

        Each is a standard deviation over the sensitivity in Euclidean distance.
        """
        return ()

    @property
    def gaussian_noise_on_counts(self) -> float | None:
        """Standard deviation of the Gaussian noise on counts that leave with labels, in votes.

        None where no counts leave, or noise of another law.
        """
        return None

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon of `number` of these alone, by another theorem than moments.

        Of a pure epsilon the optimal composition of pure mechanisms; else infinite.
        """
        if self.pure_epsilon is None:
            return inf
        return pure_composition_epsilon(self.pure_epsilon, number, delta)

    def number_charged(self, num_queries: int) -> int:
        """Returns how many are charged for a batch of num_queries new queries."""
        del num_queries
        return 1

    @abstractmethod
    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields; see `pate_tf.accounting.charges.charge_from_dict`."""

    @abstractmethod
    def summary(self) -> str:
        """Returns what it is and its numbers, in a few words."""

    def several(self, number: int) -> str:
        """Returns so many of it in words, such as `20 queries of laplace_noisy_max, gamma 0.1`."""
        return f"{number:,} {self.counted[number != 1]} of {self.summary()}"

    @abstractmethod
    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""

    def to_dp_event(self) -> Any:
        """Returns a `dp_accounting` event that costs no less than one of this.

        Gaussian mechanisms of `noise_multipliers`; or zCDP with rho = epsilon^2 / 8 of a bounded
        range (docs/theory.md, Proposition D3), or epsilon^2 / 2 of a pure epsilon (Bun and Steinke
        2016, Proposition 1.4). That library has none for `approximate`.

        Raises:
            ImportError: if the optional package dp-accounting is missing.
            ValueError: if there is no such event.
        """
        import dp_accounting

        parts = [dp_accounting.GaussianDpEvent(one) for one in self.noise_multipliers]
        if not parts and self.bounded_range is not None:
            parts = [dp_accounting.ZCDpEvent(rho=self.bounded_range**2 / 8.0)]
        elif not parts and self.pure_epsilon is not None:
            parts = [dp_accounting.ZCDpEvent(rho=self.pure_epsilon**2 / 2.0)]
        if not parts or self.approximate is not None:
            raise self.lacking("an event of dp-accounting", "dp event")
        return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)

    @classmethod
    def lacking(cls, expected: str, what: str) -> ValueError:
        """Returns the refusal of something that this can't do.

        Args:
            expected: what was asked for, after "one with".
            what: the key of `lacks`.
        """
        reason = cls.lacks.get(what, f"it defines no {what}")
        return ValueError(f"expected one with {expected}, got {cls.name}: {reason}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What something that was paid for costs, whatever the data. Publishable.

    Attributes:
        charge: what was charged.
        number: how often.
        epsilon: of all of them together, at `delta`.
        delta: what epsilon holds at.
        unit: what is protected, "record" or "owner".
        before: other charges that `epsilon` counts too, and how often: batches of a mechanism that
            is paid once for a batch, which led to these.
    """

    charge: Charge
    number: int
    epsilon: float
    delta: float
    unit: str = "record"
    before: tuple[tuple[Charge, int], ...] = ()

    def in_words(self) -> str:
        """Returns the cost as one line; epsilon is rounded up."""
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} for every {self.unit}, "
            f"whatever the data: {self.charge.several(self.number)}{self._before_in_words()}"
        )

    def _before_in_words(self) -> str:
        earlier = ", ".join(charge.several(number) for charge, number in self.before)
        return f", after {earlier}" if earlier else ""

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **fields,
            "charge": self.charge.to_dict(),
            "before": charges_to_list(self.before),
        }


def charges_to_list(charges: Iterable[tuple[Charge, int]]) -> list[dict[str, object]]:
    """Returns charges and how often, as JSON values; `charges.charges_from_list` reads them."""
    return [{"charge": charge.to_dict(), "number": number} for charge, number in charges]


def rounded_up(value: float) -> str:
    """Returns four significant digits of a number, never less than it."""
    context = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value):f}"
