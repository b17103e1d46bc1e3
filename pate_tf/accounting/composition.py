"""What charges cost together: moment by moment, and by theorems of their own.

Charges with moments add up at each moment; those that are only (epsilon, delta) differentially
private add their epsilons and deltas to that (basic composition), or their losses where that gives
less (`pate_tf.accounting.approximate_dp`). All of it holds for charges of any kind in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import numpy as np

from pate_tf.accounting.approximate_dp import ApproximateGuarantee, composed_epsilon
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    check_delta,
    epsilon_from_alphas,
)
from pate_tf.accounting.divergences import FloatArray

Paid = Mapping[Charge, int]

# Beyond so many charges without moments only basic composition is tried.
MOST_APPROXIMATE = 1024


def total_alphas(paid: Paid, moments: FloatArray) -> FloatArray:
    """Returns the total cost of the parts with moments, [num_moments], whatever the data."""
    total = np.zeros_like(moments)
    for charge, number in paid.items():
        if number:  # 0 times infinity would be no number
            total += number * charge.alphas(moments)
    return total


def total_approximate(paid: Paid) -> tuple[Fraction, Fraction]:
    """Returns the total (epsilon, delta) of the parts without moments, exactly.

    Raises:
        ValueError: if one of them is not finite or negative.
    """
    total_epsilon, total_delta = Fraction(0), Fraction(0)
    for charge, number in paid.items():
        if charge.approximate is not None:
            epsilon, delta = charge.approximate
            if not (0.0 <= epsilon < inf and 0.0 <= delta < inf):
                raise ValueError(f"expected a finite epsilon and delta, got {epsilon} and {delta}")
            total_epsilon += number * Fraction(epsilon)
            total_delta += number * Fraction(delta)
    return total_epsilon, total_delta


def moments_epsilon(
    paid: Paid,
    delta: float,
    *,
    conversion: str = "improved",
    moments: FloatArray = DEFAULT_MOMENTS,
) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; None if none did.

    What the parts without moments use of delta is taken off before the moments are converted;
    infinite if they use more than there is.
    """
    check_delta(delta)
    alphas = total_alphas(paid, moments)
    added, used = total_approximate(paid)
    if used > Fraction(delta):
        return inf, None
    if not alphas.any():
        return _rounded_up(added), None
    if not used:
        return epsilon_from_alphas(alphas, moments, delta, conversion=conversion)
    left = float((Fraction(delta) - used) * (1 - Fraction(SAFETY_MARGIN)))
    if not left > 0.0:
        return inf, None
    epsilon, moment = epsilon_from_alphas(alphas, moments, left, conversion=conversion)
    return nextafter(epsilon + _rounded_up(added), inf), moment


def closed_form_epsilon(paid: Paid, delta: float) -> float:
    """Returns epsilon by a theorem other than moments; infinite where there is none.

    A single charge's own composition theorem; the losses of charges without moments.
    """
    if any(charge.approximate is not None for charge in paid):
        return _loss_epsilon(paid, delta)
    if len(paid) != 1:
        return inf
    ((charge, number),) = paid.items()
    return charge.composed_epsilon(number, delta=delta)


def _loss_epsilon(paid: Paid, delta: float) -> float:
    guarantees = approximate_guarantees(paid)
    if len(guarantees) > MOST_APPROXIMATE:
        return inf
    alphas = total_alphas(paid, DEFAULT_MOMENTS)
    return composed_epsilon(guarantees, delta=delta, alphas=alphas if alphas.any() else None)


def approximate_guarantees(paid: Paid) -> list[ApproximateGuarantee]:
    """Returns a guarantee for each charge without moments; no more than MOST_APPROXIMATE + 1."""
    guarantees: list[ApproximateGuarantee] = []
    for charge, number in paid.items():
        if charge.approximate is not None:
            epsilon, its_delta = charge.approximate
            one = ApproximateGuarantee(epsilon=epsilon, delta=its_delta)
            guarantees += [one] * min(number, MOST_APPROXIMATE + 1 - len(guarantees))
    return guarantees


def smallest_epsilon(
    paid: Paid, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where a closed form gave it.

    The "classic" conversion is for comparison and uses moments alone.
    """
    epsilon, moment = moments_epsilon(paid, delta, conversion=conversion)
    if conversion == "classic":
        return epsilon, moment
    closed_form = closed_form_epsilon(paid, delta)
    return (closed_form, None) if closed_form < epsilon else (epsilon, moment)


def fits(paid: Paid, delta: float, epsilon_budget: float) -> bool:
    """Whether the total cost stays within the budget."""
    # The closed forms are slow for many queries, and moments alone decide most batches.
    return (
        moments_epsilon(paid, delta)[0] <= epsilon_budget
        or closed_form_epsilon(paid, delta) <= epsilon_budget
    )


def delta_of_chosen_kinds(paid: Paid, delta: float) -> float:
    """Returns the delta at which a budget holds whose kinds of charge earlier answers chose.

    One kind keeps delta. Of several, any of the moments may decide, and before them the first
    kind's own theorem (docs/theory.md, Proposition S4 c).
    """
    kinds = sum(1 for number in paid.values() if number)
    return delta if kinds <= 1 else min(1.0, (len(DEFAULT_MOMENTS) + 1) * delta)


def to_dp_event(paid: Paid) -> Any:
    """Returns one `dp_accounting` event for everything paid, a part for each charge.

    Raises:
        ImportError: if the optional package dp-accounting is missing.
        ValueError: if a charge has no event.
    """
    import dp_accounting

    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(charge.to_dp_event(), number)
            for charge, number in paid.items()
        ]
    )


def _rounded_up(value: Fraction) -> float:
    found = float(value)
    return found if Fraction(found) >= value else nextafter(found, inf)
