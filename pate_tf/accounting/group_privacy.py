"""What it costs that several teachers change instead of one.

An owner's teacher is a hash of the owner's name. So adding or removing all records of one owner
changes one teacher, which is what every other cost here counts. Replacing an owner removes one and
adds another, mostly at another teacher: two votes of every query may move. Likewise k records of
one person lie with up to k teachers, and replacing all of them may move k votes of every query.

Each step leads from one neighbour to the next, and what a charge says of one step gives what holds
for k. It is more than k times as much: a Gaussian's moments grow with the square of k. For labels,
whatever the counts and whichever votes move, here for k = 2:

- Pure: each moved vote multiplies no probability by more than e^{2 gamma}, so two do not by more
  than e^{4 gamma}, and D* of 4 gamma bounds the moments. For the exponential mechanism the log
  ratio also spans at most 4 gamma, hence alpha <= (4 gamma)^2 l (l+1) / 8 (Dong et al. 2020,
  bounded range).
- Gaussian: the counts are furthest apart, by the squared distance 8, where both votes move between
  the same two classes; then alpha = 8 l (l+1) / (2 sigma^2).
- A part that is merely (epsilon, delta): (2 epsilon, delta (1 + e^epsilon))
  (docs/proofs/stability_gate.md, Theorem G6).
- Threshold: two moved votes change the largest count by at most 2; alpha = 4 l (l+1) / (2 sigma^2).

Beside them stands group privacy of whatever is released, by any composition: k steps that are
each (epsilon, delta) are together (k epsilon, (1 + e^epsilon + ... + e^((k-1) epsilon)) delta). The
smallest is taken (docs/proofs/theory.md, Proposition S2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log, nextafter, sqrt

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import (
    MOST_APPROXIMATE,
    Guarantee,
    approximate_guarantees,
    composed_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    epsilon_from_alphas,
    gaussian_dp_epsilon,
    logsumexp,
    pure_alpha,
    pure_composition_epsilon,
)
from pate_tf.core import validation


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


def replaced_owner_epsilon(charges: Mapping[Charge, int], delta: float) -> float:
    """Returns epsilon at delta against replacing one owner's records by another's.

    `pate_tf.accounting.composition.smallest_epsilon` of the same holds against adding or removing
    an owner.

    Args:
        charges: how many of each charge.
        delta: in [0, 1).

    Raises:
        ValueError: if delta is outside [0, 1), or a number is negative.
    """
    return several_teachers_epsilon(charges, delta=delta)


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
