"""What a plan must keep to: so many queries for so much epsilon, and the least noise that does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, TypeVar

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import check_delta, check_num_queries
from pate_tf.accounting.moved_teachers import several_teachers_epsilon

SCALE_RANGE: Final = (2.0**-30, 2.0**60)
UNITS: Final = ("record", "owner")
TOLERANCE: Final = 1e-9

Kind = TypeVar("Kind", bound=Charge)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What the labels of a plan may cost, in the worst case over all data.

    Attributes:
        epsilon: the most that they may cost together, above 0.
        delta: what it holds at.
        num_queries: how many queries are asked, at least 1.
        unit: what is protected, "record" (default) or "owner".
        num_changed_teachers: how many teachers the change may reach that epsilon protects against:
            1 (default) for one record replaced, or one owner added or removed; 2 for one owner
            replaced by another; k for k records of one person.

    Raises:
        ValueError: if a value is out of range.
    """

    epsilon: float
    delta: float
    num_queries: int
    unit: str = "record"
    num_changed_teachers: int = 1

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0.0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon: expected above 0 and finite, got {self.epsilon}")
        if check_num_queries(self.num_queries) < 1:
            raise ValueError(f"num_queries: expected at least 1, got {self.num_queries}")
        if self.unit not in UNITS:
            raise ValueError(f"unit: expected one of {', '.join(UNITS)}, got {self.unit!r}")
        number = self.num_changed_teachers
        if number != int(number) or number < 1:
            raise ValueError(f"num_changed_teachers: expected at least 1, got {number}")

    def epsilon_of(self, charge: Charge) -> float:
        """Returns what `num_queries` of a charge cost at delta; infinite where nothing is known."""
        paid = {charge: charge.number_charged(self.num_queries)}
        if self.num_changed_teachers == 1:
            return smallest_epsilon(paid, self.delta)[0]
        return several_teachers_epsilon(
            paid, delta=self.delta, num_teachers=self.num_changed_teachers
        )

    def affords(self, charge: Charge) -> bool:
        """Whether `num_queries` of a charge cost no more than epsilon."""
        return self.epsilon_of(charge) <= self.epsilon

    def least_noise(
        self, of_scale: Callable[[float], Kind], *, tolerance: float = TOLERANCE
    ) -> Kind:
        """Returns the affordable member with the least scale, which is never too small.

        Args:
            of_scale: from a scale of noise in votes to the charge that has it; more noise never
                costs more.
            tolerance: relative, of the scale.

        Raises:
            ValueError: if no scale between 2^-30 and 2^60 votes is affordable.
        """
        too_little, enough = SCALE_RANGE[0], 1.0
        while not self.affords(of_scale(enough)):
            too_little, enough = enough, enough * 4.0
            if enough > SCALE_RANGE[1]:
                raise ValueError(
                    f"expected a reachable epsilon, got {self.epsilon} at delta {self.delta}"
                )
        while enough > tolerance + too_little * (1.0 + tolerance):
            middle = (too_little * enough) ** 0.5
            if self.affords(of_scale(middle)):
                enough = middle
            else:
                too_little = middle
        return of_scale(enough)
