"""What charges cost together: moment by moment, and by theorems of their own.

Charges with moments add up at each moment; those that are only (epsilon, delta) differentially
private add their epsilons and deltas to that (basic composition), or their losses where that gives
less (`pate_tf.accounting.composition`). All of it holds for charges of any kind in any order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import expm1, fsum, inf, log1p, nextafter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pate_tf.accounting.charge import Charge, lacking
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    FloatArray,
    betaln,
    check_moments,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproximateGuarantee:
    """An (epsilon, delta) guarantee of one mechanism, for one moved teacher, in both directions.

    Attributes:
        epsilon: at least 0, finite, in natural logarithms.
        delta: in [0, 1]. 1 promises nothing.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Raises ValueError if a value is outside of its range."""
        validation.between(0, inf, ends="[)", epsilon=self.epsilon)
        validation.between(0, 1, ends="[]", delta=self.delta)

    def for_moved_teachers(self, num_teachers: int) -> ApproximateGuarantee:
        """Returns what holds if that many teachers differ at once, rounded up.

        (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon))), delta at most 1
        (docs/proofs/stability_gate.md, Theorem G6).

        Args:
            num_teachers: k, at least 1.

        Raises:
            ValueError: if num_teachers is below 1.
        """
        validation.whole(1, num_teachers=num_teachers)
        if num_teachers == 1:
            return self
        exponents = self.epsilon * np.arange(num_teachers)
        with np.errstate(over="ignore"):
            factor = float(np.sum(np.exp(exponents))) * (1.0 + SAFETY_MARGIN)
        delta = min(self.delta * factor, 1.0) if self.delta else 0.0
        return ApproximateGuarantee(
            epsilon=_up(self.epsilon * num_teachers), delta=min(_up(delta), 1.0)
        )


def composed_epsilon(
    guarantees: Sequence[ApproximateGuarantee],
    *,
    delta: float,
    alphas: ArrayLike | None = None,
    moments: ArrayLike = DEFAULT_MOMENTS,
) -> float:
    """Returns the epsilon at delta of all guarantees and all moments together, rounded up.

    The mechanisms may be interleaved, and each may depend on what the others gave out; their
    guarantees and total alphas must have been fixed beforehand. Never above the basic composition
    (sum of epsilons + epsilon of the moments at what the guarantees leave of delta).

    Infinite if the guarantees' deltas use up delta. One exception: without moments, deltas that add
    up to delta exactly leave the sum of the epsilons.

    Args:
        guarantees: of each mechanism that has no moments; may be empty.
        delta: in [0, 1).
        alphas: total costs of everything else, in both directions, [num_moments]. Default: there
            is nothing else. Infinite or NaN rules a moment out; zero at a moment says that
            nothing was released.
        moments: [num_moments], positive.

    Raises:
        ValueError: if a value is outside of its range or shapes differ.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    orders = check_moments(moments)
    costs = _checked_alphas(alphas, orders)
    basic = inf
    if costs is None and sum((Fraction(one.delta) for one in guarantees), Fraction(0)) <= delta:
        basic = _up(fsum(one.epsilon for one in guarantees))
        if basic == 0.0:
            return 0.0

    def exceeds(epsilon: float) -> bool:
        return not total(epsilon) <= delta

    total = _TotalDelta(guarantees, costs, orders)
    if total.certain_loss > delta:
        return basic
    high = 1.0
    while exceeds(high):
        high *= 2.0
        if high > LARGEST_EPSILON:
            return basic
    low = 0.0 if high == 1.0 else high / 2.0
    if low == 0.0 and not exceeds(0.0):
        return 0.0
    high = least(lambda epsilon: not exceeds(epsilon), low, high, within=SAFETY_MARGIN)
    return min(high * (1.0 + SAFETY_MARGIN), basic)


def composed_delta(
    guarantees: Sequence[ApproximateGuarantee],
    *,
    epsilon: float,
    alphas: ArrayLike | None = None,
    moments: ArrayLike = DEFAULT_MOMENTS,
) -> float:
    """Returns the delta at epsilon of all guarantees and all moments together, rounded up.

    See `composed_epsilon`, also for the arguments.

    Raises:
        ValueError: if a value is outside of its range or shapes differ.
    """
    if not epsilon >= 0.0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon}")
    orders = check_moments(moments)
    total = _TotalDelta(guarantees, _checked_alphas(alphas, orders), orders)
    return min(total(epsilon), 1.0)


class _TotalDelta:
    """Theorem G5: delta of epsilon, from losses of the guarantees and moments of the rest.

    Args:
        guarantees: of each mechanism that has no moments.
        alphas: [num_moments], or None if there is nothing else.
        moments: [num_moments].
    """

    def __init__(
        self,
        guarantees: Sequence[ApproximateGuarantee],
        alphas: FloatArray | None,
        moments: FloatArray,
    ) -> None:
        self._losses, self._weights, self.certain_loss = _privacy_losses(guarantees)
        self._alphas, self._moments = alphas, moments

    def __call__(self, epsilon: float) -> float:
        """Returns delta, times 1 + SAFETY_MARGIN."""
        if not epsilon < inf:
            return self.certain_loss
        rest = self._rest(epsilon - self._losses)
        spent = self.certain_loss + (1.0 - self.certain_loss) * float(self._weights @ rest)
        return spent * (1.0 + SAFETY_MARGIN)

    def _rest(self, epsilons: FloatArray) -> FloatArray:
        """Returns the delta of the moments alone at each epsilon, also below zero."""
        if self._alphas is None:
            return np.maximum(-np.expm1(np.minimum(epsilons, 0.0)), 0.0)
        size = np.abs(epsilons)
        reflected = -np.expm1(-size) + np.exp(-size) * self._direct(self._alphas, size)
        return np.where(epsilons < 0.0, reflected, self._direct(self._alphas, epsilons))

    def _direct(self, alphas: FloatArray, epsilons: FloatArray) -> FloatArray:
        """Balle et al. 2020: e^(alpha - l epsilon) (l/(l+1))^l / (l+1) at the best moment."""
        moments = self._moments
        fixed = alphas - moments * np.log1p(1.0 / moments) - np.log1p(moments)
        exponents = np.min(fixed[None, :] - np.outer(epsilons, moments), axis=1)
        return np.asarray(np.exp(np.minimum(exponents, 0.0)))


def _checked_alphas(alphas: ArrayLike | None, moments: FloatArray) -> FloatArray | None:
    if alphas is None:
        return None
    costs = np.asarray(alphas, dtype=np.float64)
    if costs.shape != moments.shape:
        raise ValueError(f"expected alphas of shape {moments.shape}, got {costs.shape}")
    if np.any(costs < 0):
        raise ValueError("expected alphas >= 0, got a negative one")
    if np.any(costs == 0.0):
        return None
    return np.where(np.isnan(costs), np.inf, costs)


def _privacy_losses(
    guarantees: Sequence[ApproximateGuarantee],
) -> tuple[FloatArray, FloatArray, float]:
    """Theorem G4: finite losses, their probabilities given that one occurs, and that of infinity.

    Where there are too many losses, those that lie close together count as the largest of them,
    which can only raise delta.
    """
    survived = fsum(log1p(-one.delta) if one.delta < 1.0 else -inf for one in guarantees)
    certain_loss = min(_up(-expm1(survived)) * (1.0 + SAFETY_MARGIN), 1.0)
    losses, weights = np.zeros(1), np.ones(1)
    for epsilon, number in sorted(Counter(one.epsilon for one in guarantees).items()):
        wins = np.arange(number + 1)
        new_losses: FloatArray = np.asarray(epsilon * (2.0 * wins - number), np.float64)
        # Binomial: log C(n, k) = -log(n + 1) - log B(n - k + 1, k + 1). Its rounding is far below
        # SAFETY_MARGIN for as many as there can be.
        exponents = -betaln(number - wins + 1, wins + 1) - log1p(number)
        exponents -= wins * np.log1p(np.exp(-epsilon)) + (number - wins) * np.logaddexp(0, epsilon)
        new_weights = np.exp(exponents)
        new_losses, new_weights = _merged(new_losses, new_weights)
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


def moments_epsilon(
    charges: Charges,
    delta: float,
    *,
    conversion: str = "improved",
    moments: FloatArray = DEFAULT_MOMENTS,
) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; None if none did.

    What the parts without moments use of delta is taken off before the moments are converted;
    infinite if they use more than there is. At delta 0 it is `pure_epsilon`.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return pure_epsilon(charges), None
    alphas = total_alphas(charges, moments)
    added, used = total_approximate(charges)
    if used > Fraction(delta):
        return inf, None
    if not alphas.any():
        return float_above(added), None
    if not used:
        return epsilon_from_alphas(alphas, moments, delta, conversion=conversion)
    left = float((Fraction(delta) - used) * (1 - Fraction(SAFETY_MARGIN)))
    if not left > 0.0:
        return inf, None
    epsilon, moment = epsilon_from_alphas(alphas, moments, left, conversion=conversion)
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


def approximate_guarantees(charges: Charges) -> list[ApproximateGuarantee]:
    """Returns a guarantee for each charge without moments; no more than MOST_APPROXIMATE + 1."""
    guarantees: list[ApproximateGuarantee] = []
    for charge, number in charges.items():
        if charge.approximate is not None:
            epsilon, its_delta = charge.approximate
            one = ApproximateGuarantee(epsilon=epsilon, delta=its_delta)
            guarantees += [one] * min(number, MOST_APPROXIMATE + 1 - len(guarantees))
    return guarantees


def smallest_epsilon(
    charges: Charges, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where a closed form gave it.

    The "classic" conversion is for comparison and uses moments alone.
    """
    epsilon, moment = moments_epsilon(charges, delta, conversion=conversion)
    if conversion == "classic":
        return epsilon, moment
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


def dp_event(charge: Charge) -> Any:
    """Returns a `dp_accounting` event that costs no less than one charge.

    Gaussian mechanisms of `noise_multipliers`; or zCDP with rho = epsilon^2 / 8 of a bounded
    range (docs/proofs/theory.md, Proposition D3), or epsilon^2 / 2 of a pure epsilon (Bun and
    Steinke 2016, Proposition 1.4). That library has none for `approximate`.

    Raises:
        ImportError: if the optional package dp-accounting is missing.
        ValueError: if there is no such event.
    """
    import dp_accounting

    parts = [dp_accounting.GaussianDpEvent(one) for one in charge.noise_multipliers]
    if not parts and charge.bounded_range is not None:
        parts = [dp_accounting.ZCDpEvent(rho=charge.bounded_range**2 / 8.0)]
    elif not parts and charge.pure_epsilon is not None:
        parts = [dp_accounting.ZCDpEvent(rho=charge.pure_epsilon**2 / 2.0)]
    if not parts or charge.approximate is not None:
        raise lacking(charge, "an event of dp-accounting", "dp event")
    return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)


def to_dp_event(charges: Charges) -> Any:
    """Returns one `dp_accounting` event for all charges, a part for each charge.

    Raises:
        ImportError: if the optional package dp-accounting is missing.
        ValueError: if a charge has no event.
    """
    import dp_accounting

    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(dp_event(charge), number)
            for charge, number in charges.items()
        ]
    )
