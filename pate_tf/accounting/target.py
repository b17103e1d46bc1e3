"""What a plan must keep to: so many queries for so much epsilon, and the least noise that does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import exp, log
from typing import Final, TypeVar

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import check_delta, check_num_queries
from pate_tf.accounting.group_privacy import several_teachers_epsilon

SCALE_RANGE: Final = (2.0**-30, 2.0**60)
UNITS: Final = ("record", "owner")
TOLERANCE: Final = 1e-9

_FAR: Final = 50.0  # a factor of e^50 too much is as bad as infinitely much
_SMALLEST_STEP: Final = 1e-14  # of a logarithm

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
        from scipy.optimize import brentq  # a silo plans nothing, and stays small without it

        lowest, highest = (log(scale) for scale in SCALE_RANGE)

        def excess(log_scale: float) -> float:
            """By what factor too much is paid, as a logarithm; finite, for the search."""
            spent = self.epsilon_of(of_scale(exp(log_scale))) / self.epsilon
            return min(max(log(spent), -_FAR), _FAR) if spent > 0.0 else -_FAR

        too_little, enough = lowest, 0.0
        while (over := excess(enough)) > 0.0:
            # Epsilon falls at least as fast as the scale grows: this one step is most often enough.
            too_little, enough = enough, enough + min(max(over, log(2.0)), log(64.0))
            if enough > highest:
                raise ValueError(
                    f"expected a reachable epsilon, got {self.epsilon} at delta {self.delta}"
                )
        if excess(too_little) > 0.0:
            step = max(tolerance / 4.0, _SMALLEST_STEP)
            enough = brentq(excess, too_little, enough, xtol=step, rtol=_SMALLEST_STEP)
        else:
            enough = too_little
        # The search ends on either side of where the target is met.
        while not self.affords(of_scale(exp(enough))):
            enough += max(tolerance / 2.0, 2.0 * _SMALLEST_STEP)
        return of_scale(exp(enough))
