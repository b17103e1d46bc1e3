"""What charges cost together: moment by moment, and by theorems of their own.

Charges with moments add up at each moment; those that are only (epsilon, delta) differentially
private add their epsilons and deltas to that (basic composition), or their losses where that gives
less (`pate_tf.accounting.composition`). All of it holds for charges of any kind in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import expm1, fsum, inf, log, log1p, nextafter, sqrt
from typing import Any

import numpy as np

from pate_tf.accounting.charge import Charge, lacking
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    betaln,
    epsilon_from_alphas,
    float_above,
    gaussian_dp_epsilon,
    least,
    logsumexp,
    pure_alpha,
    pure_composition_epsilon,
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


# What it costs that several teachers change instead of one.
#
# An owner's teacher is a hash of the owner's name. So adding or removing all records of one owner
# changes one teacher, which is what every other cost here counts. Replacing an owner removes one
# and adds another, mostly at another teacher: two votes of every query may move. Likewise k records
# of one person lie with up to k teachers, and replacing all of them may move k votes of every
# query.
#
# Each step leads from one neighbour to the next, and what a charge says of one step gives what
# holds for k. It is more than k times as much: a Gaussian's moments grow with the square of k. For
# labels, whatever the counts and whichever votes move, here for k = 2:
#
# - Pure: each moved vote multiplies no probability by more than e^{2 gamma}, so two do not by more
#   than e^{4 gamma}, and D* of 4 gamma bounds the moments. For the exponential mechanism the log
#   ratio also spans at most 4 gamma, hence alpha <= (4 gamma)^2 l (l+1) / 8 (Dong et al. 2020,
#   bounded range).
# - Gaussian: the counts are furthest apart, by the squared distance 8, where both votes move
#   between the same two classes; then alpha = 8 l (l+1) / (2 sigma^2).
# - A part that is merely (epsilon, delta): (2 epsilon, delta (1 + e^epsilon))
#   (docs/proofs/stability_gate.md, Theorem G6).
# - Threshold: two moved votes change the largest count by at most 2; alpha = 4 l (l+1) / (2
#   sigma^2).
#
# Beside them stands group privacy of whatever is released, by any composition: k steps that are
# each (epsilon, delta) are together (k epsilon, (1 + e^epsilon + ... + e^((k-1) epsilon)) delta).
# The smallest is taken (docs/proofs/theory.md, Proposition S2).


def moved_guarantee(guarantee: Guarantee, num_teachers: int) -> Guarantee:
    """Returns what holds if that many teachers differ at once, rounded up.

    (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon))), delta at most 1
    (docs/proofs/stability_gate.md, Theorem G6).
    """
    epsilon, delta = guarantee
    with np.errstate(over="ignore"):
        factor = float(np.sum(np.exp(epsilon * np.arange(num_teachers)))) * (1.0 + SAFETY_MARGIN)
    moved = nextafter(min(delta * factor, 1.0), inf) if delta else 0.0
    return nextafter(epsilon * num_teachers, inf) if epsilon else 0.0, min(moved, 1.0)


def several_teachers_alpha(charge: Charge, moments: FloatArray, num_teachers: int) -> FloatArray:
    """Returns the largest cost of one charge if so many teachers change, `[num_moments]`.

    From what it says of itself for one teacher; infinite where it says nothing. Without a part
    that `Charge.approximate` is about, which may be all of it.
    """
    spread, alphas = moments * (moments + 1.0), np.full_like(moments, inf)
    if charge.approximate is not None and not charge.alphas(moments).any():
        return np.zeros_like(moments)
    if charge.pure_epsilon is not None:
        alphas = np.minimum(alphas, pure_alpha(num_teachers * charge.pure_epsilon, moments))
    if charge.bounded_range is not None:
        alphas = np.minimum(alphas, (num_teachers * charge.bounded_range) ** 2 * spread / 8.0)
    if charge.noise_multipliers:
        alphas = np.minimum(alphas, _squared_distance(charge, num_teachers) * spread / 2.0)
    return alphas


def several_teachers_epsilon(
    charges: Mapping[Charge, int], *, delta: float, num_teachers: int = 2
) -> float:
    """Returns the least epsilon known at delta where so many votes of every query move.

    With two teachers it holds against replacing one owner's records by another's, where
    `smallest_epsilon` of the same holds against adding or removing an owner.

    Args:
        charges: how many of each charge, chosen adaptively or not.
        delta: in [0, 1).
        num_teachers: how many teachers change, at least 2.

    Raises:
        ValueError: if delta is outside [0, 1), a number is negative, or num_teachers is below 2.
    """
    validation.whole(2, num_teachers=num_teachers)
    validation.between(0, 1, ends="[)", delta=delta)
    for number in charges.values():
        validation.whole(0, number=number)
    charged = {charge: number for charge, number in charges.items() if number}
    if not charged:
        return 0.0
    epsilons = [
        group_epsilon(
            lambda smaller: smallest_epsilon(charged, smaller)[0], delta, num_steps=num_teachers
        )
    ]
    alphas = np.zeros_like(DEFAULT_MOMENTS)
    for charge, number in charged.items():
        alphas = alphas + number * several_teachers_alpha(charge, DEFAULT_MOMENTS, num_teachers)
    if guarantees := approximate_guarantees(charged):
        if len(guarantees) <= MOST_APPROXIMATE:
            moved = [moved_guarantee(guarantee, num_teachers) for guarantee in guarantees]
            others = alphas if alphas.any() else None
            epsilons.append(composed_epsilon(moved, delta=delta, alphas=others))
        return min(epsilons)
    epsilons.append(epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)[0])
    pure = [charge.pure_epsilon for charge in charged if charge.pure_epsilon is not None]
    if len(pure) == len(charged):
        # Of different scales, all count as the largest.
        largest = num_teachers * max(pure)
        epsilons.append(pure_composition_epsilon(largest, sum(charged.values()), delta))
    elif all(charge.noise_multipliers and charge.answers for charge in charged):
        squared = sum(
            number * _squared_distance(charge, num_teachers) for charge, number in charged.items()
        )
        # A coordinate moved by s votes adds at most s / (LATTICE sigma^2) to the loss of continuous
        # noise, and s is at most s^2. Releases of costs have another lattice.
        epsilons.append(gaussian_dp_epsilon(sqrt(squared), delta) + squared / LATTICE)
    return min(epsilons)


def group_epsilon(
    one_teacher_epsilon: Callable[[float], float], delta: float, *, num_steps: int = 2
) -> float:
    """Returns an epsilon at delta for neighbouring steps one after another, of a known curve each.

    P(S) <= e^a P'(S) + d <= e^a (e^a P''(S) + d) + d for every set of outcomes S: k steps are k a
    at (1 + e^a + ... + e^((k-1) a)) d, for any a that holds at d. The d is searched for; whichever
    is found holds.

    Args:
        one_teacher_epsilon: from delta to the epsilon of one step; infinite where none is known.
        delta: in [0, 1).
        num_steps: k, at least 2.

    Raises:
        ValueError: if delta is outside [0, 1).
    """
    validation.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return num_steps * one_teacher_epsilon(0.0) * (1.0 + SAFETY_MARGIN)

    def epsilon_if_it_holds(depth: float) -> float:
        """The epsilon of one step at d = delta e^-depth, if the sum of e^(i epsilon) d allows."""
        epsilon = one_teacher_epsilon(float(np.exp(log(delta) - depth)))
        if epsilon == inf:
            return inf
        holds = logsumexp(epsilon * np.arange(num_steps)) * (1.0 + SAFETY_MARGIN) <= depth
        return epsilon if holds else inf

    low, high = 0.0, 1.0
    deepest = log(delta) + 690.0  # below it exp(log(delta) - depth) is no normal number
    while (best := epsilon_if_it_holds(high)) == inf:
        low, high = high, 2.0 * high
        if high > deepest:
            return inf
    for _ in range(30):
        middle = (low + high) / 2.0
        if (epsilon := epsilon_if_it_holds(middle)) < inf:
            high, best = middle, min(best, epsilon)
        else:
            low = middle
    return num_steps * best * (1.0 + SAFETY_MARGIN)


def _squared_distance(charge: Charge, num_teachers: int) -> float:
    """How far k teachers take the means of Gaussian noise of scale 1: k times as far as one."""
    return sum((num_teachers / multiplier) ** 2 for multiplier in charge.noise_multipliers)
