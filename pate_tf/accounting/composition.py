"""What charges cost together: moment by moment, and by theorems of their own.

Charges with moments add up at each moment; those that are only (epsilon, delta) differentially
private add their epsilons and deltas to that (basic composition), or their losses where that gives
less (`pate_tf.accounting.composition`). All of it holds for charges of any kind in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import expm1, fsum, inf, log1p, nextafter
from typing import Any

import numpy as np

from pate_tf.accounting.charge import Charge, lacking
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    FloatArray,
    betaln,
    epsilon_from_alphas,
    float_above,
    least,
)
from pate_tf.core import validation

# Composition of (epsilon, delta) guarantees with each other and with moments.
#
# An (epsilon, delta)-private mechanism tells no more than this: with probability delta everything,
# else randomised response at epsilon (Kairouz, Oh and Viswanath 2015). The privacy loss of several
# such mechanisms is a discrete distribution; the moments of everything else are laid over it
# (docs/proofs/stability_gate.md, Theorems G4 and G5). Every result errs upward.


# Privacy losses beyond this number are merged into the largest of their neighbourhood.
MOST_LOSSES = 2**13

LARGEST_EPSILON = 2.0**30

# (epsilon, delta) of one mechanism, for one moved teacher, in both directions.
Guarantee = tuple[float, float]


def composed_epsilon(
    guarantees: Sequence[Guarantee], *, delta: float, alphas: FloatArray | None = None
) -> float:
    """Returns the epsilon at delta of all guarantees and all moments together, rounded up.

    The mechanisms may be interleaved, and each may depend on what the others gave out; their
    guarantees and total alphas must have been fixed in advance. Never above the basic composition
    (sum of epsilons + epsilon of the moments at what the guarantees leave of delta).

    Infinite if the guarantees' deltas use up delta. One exception: without moments, deltas that add
    up to delta exactly leave the sum of the epsilons.

    Args:
        guarantees: of each mechanism that has no moments; may be empty.
        delta: in [0, 1).
        alphas: total costs of everything else at `DEFAULT_MOMENTS`, in both directions; None if
            there is nothing else. Infinite or NaN rules a moment out.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    basic = inf
    if alphas is None and sum((Fraction(used) for _, used in guarantees), Fraction(0)) <= delta:
        basic = _up(fsum(epsilon for epsilon, _ in guarantees))
        if basic == 0.0:
            return 0.0
    losses, weights, certain_loss = privacy_losses(guarantees)
    if certain_loss > delta:
        return basic

    def holds(epsilon: float) -> bool:
        """Theorem G5: delta of epsilon, from losses of the guarantees and moments of the rest."""
        remaining = float(weights @ moments_delta(epsilon - losses, alphas))
        spent = certain_loss + (1.0 - certain_loss) * remaining
        return spent * (1.0 + SAFETY_MARGIN) <= delta

    high = 1.0
    while not holds(high):
        high *= 2.0
        if high > LARGEST_EPSILON:
            return basic
    low = 0.0 if high == 1.0 else high / 2.0
    if low == 0.0 and holds(0.0):
        return 0.0
    return min(least(holds, low, high, within=SAFETY_MARGIN) * (1.0 + SAFETY_MARGIN), basic)


def moments_delta(epsilons: FloatArray, alphas: FloatArray | None) -> FloatArray:
    """Returns the delta of the moments alone at each epsilon, also below zero.

    e^(alpha - l epsilon) (l/(l+1))^l / (l+1) at the best moment (Balle et al. 2020); of an epsilon
    below zero by the same for its reflection.
    """
    if alphas is None:
        return np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0)
    costs, size = np.where(np.isnan(alphas), inf, alphas), np.abs(epsilons)
    fixed = costs - DEFAULT_MOMENTS * np.log1p(1.0 / DEFAULT_MOMENTS) - np.log1p(DEFAULT_MOMENTS)
    exponents = np.min(fixed[None, :] - np.outer(size, DEFAULT_MOMENTS), axis=1)
    direct = np.exp(np.minimum(exponents, 0.0))
    reflected = -np.expm1(-size) + np.exp(-size) * direct
    return np.asarray(np.where(epsilons < 0.0, reflected, direct))


def privacy_losses(guarantees: Sequence[Guarantee]) -> tuple[FloatArray, FloatArray, float]:
    """Theorem G4: finite losses, their probabilities given that one occurs, and that of infinity.

    Where there are too many losses, those that lie close together count as the largest of them,
    which can only raise delta.
    """
    survived = fsum(log1p(-used) if used < 1.0 else -inf for _, used in guarantees)
    certain_loss = min(_up(-expm1(survived)) * (1.0 + SAFETY_MARGIN), 1.0)
    losses, weights = np.zeros(1), np.ones(1)
    for epsilon, number in sorted(Counter(epsilon for epsilon, _ in guarantees).items()):
        wins = np.arange(number + 1)
        new_losses: FloatArray = np.asarray(epsilon * (2.0 * wins - number), np.float64)
        # Binomial: log C(n, k) = -log(n + 1) - log B(n - k + 1, k + 1). Its rounding is far below
        # SAFETY_MARGIN for as many as there can be.
        exponents = -betaln(number - wins + 1, wins + 1) - log1p(number)
        exponents -= wins * np.log1p(np.exp(-epsilon)) + (number - wins) * np.logaddexp(0, epsilon)
        new_losses, new_weights = _merged(new_losses, np.exp(exponents))
        losses, weights = _merged(
            np.add.outer(losses, new_losses).ravel(), np.outer(weights, new_weights).ravel()
        )
    return losses, weights, certain_loss


def _merged(losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    possible = weights > 0.0
    losses, weights = losses[possible], weights[possible]
    if len(losses) <= MOST_LOSSES:
        return losses, weights
    lowest = float(losses.min())
    width = (float(losses.max()) - lowest) / (MOST_LOSSES - 1)
    if width == 0.0:
        return losses[:1], np.array([weights.sum()])
    places = np.floor((losses - lowest) / width).astype(np.int64)
    largest = np.full(MOST_LOSSES + 1, -np.inf)
    np.maximum.at(largest, places, losses)
    total = np.bincount(places, weights, MOST_LOSSES + 1).astype(np.float64)
    used = total > 0.0
    return largest[used], total[used]


def _up(value: float) -> float:
    """Returns the next larger float; zero stays zero."""
    return nextafter(value, inf) if value > 0.0 else 0.0


Charges = Mapping[Charge, int]

# Beyond so many charges without moments only basic composition is tried.
MOST_APPROXIMATE = 1024


def total_alphas(charges: Charges, moments: FloatArray) -> FloatArray:
    """Returns the total cost of the parts with moments, [num_moments], whatever the data."""
    total = np.zeros_like(moments)
    for charge, number in charges.items():
        if number:  # 0 times infinity would be no number
            total += number * charge.alphas(moments)
    return total


def total_approximate(charges: Charges) -> tuple[Fraction, Fraction]:
    """Returns the total (epsilon, delta) of the parts without moments, exactly.

    Raises:
        ValueError: if one of them is not finite or negative.
    """
    total_epsilon, total_delta = Fraction(0), Fraction(0)
    for charge, number in charges.items():
        if charge.approximate is not None:
            epsilon, delta = charge.approximate
            validation.between(0, inf, ends="[)", epsilon=epsilon, delta=delta)
            total_epsilon += number * Fraction(epsilon)
            total_delta += number * Fraction(delta)
    return total_epsilon, total_delta


def moments_epsilon(charges: Charges, delta: float) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; None if none did.

    What the parts without moments use of delta is taken off before the moments are converted;
    infinite if they use more than there is. At delta 0 it is `pure_epsilon`.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return pure_epsilon(charges), None
    alphas = total_alphas(charges, DEFAULT_MOMENTS)
    added, used = total_approximate(charges)
    if used > Fraction(delta):
        return inf, None
    if not alphas.any():
        return float_above(added), None
    if not used:
        return epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)
    left = float((Fraction(delta) - used) * (1 - Fraction(SAFETY_MARGIN)))
    if not left > 0.0:
        return inf, None
    epsilon, moment = epsilon_from_alphas(alphas, DEFAULT_MOMENTS, left)
    return nextafter(epsilon + float_above(added), inf), moment


def pure_epsilon(charges: Charges) -> float:
    """Returns epsilon at delta 0: the sum of all pure epsilons, correctly rounded.

    Infinite where a charge has none (Dwork and Roth 2014, Corollary 3.15).
    """
    total = Fraction(0)
    for charge, number in charges.items():
        if number:
            if charge.pure_epsilon is None or not charge.pure_epsilon < inf:
                return inf
            total += number * Fraction(charge.pure_epsilon)
    return float(total)


def check_pure(charge: Charge) -> None:
    """Raises ValueError unless a charge has a pure epsilon, as delta 0 needs."""
    if charge.pure_epsilon is None:
        raise ValueError(
            f"delta: expected above 0 for {charge.name}, which has no guarantee at delta 0, got 0; "
            f"laplace_noisy_max is one of those that have one"
        )


def closed_form_epsilon(charges: Charges, delta: float) -> float:
    """Returns epsilon by a theorem other than moments; infinite where there is none.

    A single charge's own composition theorem; the losses of charges without moments; of several
    pure ones the sum.
    """
    if not delta:
        return pure_epsilon(charges)
    if any(charge.approximate is not None for charge in charges):
        guarantees = approximate_guarantees(charges)
        if len(guarantees) > MOST_APPROXIMATE:
            return inf
        alphas = total_alphas(charges, DEFAULT_MOMENTS)
        return composed_epsilon(guarantees, delta=delta, alphas=alphas if alphas.any() else None)
    if len(charges) != 1:
        return pure_epsilon(charges)
    ((charge, number),) = charges.items()
    return charge.composed_epsilon(number, delta=delta)


def approximate_guarantees(charges: Charges) -> list[Guarantee]:
    """Returns a guarantee for each charge without moments; no more than MOST_APPROXIMATE + 1."""
    guarantees: list[Guarantee] = []
    for charge, number in charges.items():
        if charge.approximate is not None:
            epsilon, delta = charge.approximate
            validation.between(0, inf, ends="[)", epsilon=epsilon)
            validation.between(0, 1, ends="[]", delta=delta)
            guarantees += [(epsilon, delta)] * min(number, MOST_APPROXIMATE + 1 - len(guarantees))
    return guarantees


def smallest_epsilon(charges: Charges, delta: float) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where a closed form gave it."""
    epsilon, moment = moments_epsilon(charges, delta)
    closed_form = closed_form_epsilon(charges, delta)
    return (closed_form, None) if closed_form < epsilon else (epsilon, moment)


def fits(charges: Charges, delta: float, epsilon_budget: float) -> bool:
    """Whether the total cost stays within the budget."""
    # The closed forms are slow for many queries, and moments alone decide most batches.
    return (
        moments_epsilon(charges, delta)[0] <= epsilon_budget
        or closed_form_epsilon(charges, delta) <= epsilon_budget
    )


def delta_of_chosen_kinds(charges: Charges, delta: float) -> float:
    """Returns the delta at which a budget holds whose kinds of charge earlier answers chose.

    One kind keeps delta. Of several, any of the moments may decide, and before them the first
    kind's own theorem (docs/proofs/theory.md, Proposition S4 c).
    """
    kinds = sum(1 for number in charges.values() if number)
    return delta if kinds <= 1 else min(1.0, (len(DEFAULT_MOMENTS) + 1) * delta)


def to_dp_event(charges: Charges) -> Any:
    """Returns a `dp_accounting` event that costs no less than all charges, a part for each.

    Gaussian mechanisms of `noise_multipliers`; or zCDP with rho = epsilon^2 / 8 of a bounded
    range (docs/proofs/theory.md, Proposition D3), or epsilon^2 / 2 of a pure epsilon (Bun and
    Steinke 2016, Proposition 1.4). That library has none for `approximate`.

    Raises:
        ImportError: if the optional package dp-accounting is missing.
        ValueError: if a charge has no event.
    """
    import dp_accounting

    events = []
    for charge, number in charges.items():
        parts = [dp_accounting.GaussianDpEvent(sigma) for sigma in charge.noise_multipliers]
        if not parts and charge.bounded_range is not None:
            parts = [dp_accounting.ZCDpEvent(rho=charge.bounded_range**2 / 8.0)]
        elif not parts and charge.pure_epsilon is not None:
            parts = [dp_accounting.ZCDpEvent(rho=charge.pure_epsilon**2 / 2.0)]
        if not parts or charge.approximate is not None:
            raise lacking(charge, "an event of dp-accounting", "dp event")
        event = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
        events.append(dp_accounting.SelfComposedDpEvent(event, number))
    return dp_accounting.ComposedDpEvent(events)
