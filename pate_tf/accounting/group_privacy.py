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
from math import inf, log, sqrt

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import (
    MOST_APPROXIMATE,
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


def several_teachers_alpha(
    charge: Charge, moments: FloatArray, *, num_teachers: int = 2
) -> FloatArray:
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
    charges: Mapping[Charge, int],
    *,
    delta: float,
    one_teacher_epsilon: Callable[[float], float] | None = None,
    num_teachers: int = 2,
) -> float:
    """Returns the least epsilon known at delta where so many votes of every query move.

    Args:
        charges: how many of each charge, chosen adaptively or not.
        delta: in [0, 1).
        one_teacher_epsilon: from any delta to the epsilon of the same where one vote of each moves;
            infinite where none is known. Default: `composition.smallest_epsilon`.
        num_teachers: how many teachers change, at least 2.

    Raises:
        ValueError: if delta is outside [0, 1), a number is negative, or num_teachers is below 2.
    """
    validation.whole(2, num_teachers=num_teachers)
    validation.between(0, 1, ends="[)", delta=delta)
    for number in charges.values():
        validation.whole(0, number=number)
    asked = {one: number for one, number in charges.items() if number}
    if not asked:
        return 0.0
    step = one_teacher_epsilon or (lambda smaller: smallest_epsilon(asked, smaller)[0])
    found = [group_epsilon(step, delta, num_steps=num_teachers)]
    alphas = np.zeros_like(DEFAULT_MOMENTS)
    for charge, number in asked.items():
        alphas = alphas + number * several_teachers_alpha(
            charge, DEFAULT_MOMENTS, num_teachers=num_teachers
        )
    if guarantees := approximate_guarantees(asked):
        if len(guarantees) <= MOST_APPROXIMATE:
            moved = [one.for_moved_teachers(num_teachers) for one in guarantees]
            rest = alphas if alphas.any() else None
            found.append(composed_epsilon(moved, delta=delta, alphas=rest))
        return min(found)
    found.append(epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)[0])
    pure = [one.pure_epsilon for one in asked if one.pure_epsilon is not None]
    if len(pure) == len(asked):
        # Of different scales, all count as the largest.
        largest = num_teachers * max(pure)
        found.append(pure_composition_epsilon(largest, sum(asked.values()), delta))
    elif all(one.noise_multipliers and one.answers for one in asked):
        squared = sum(
            number * _squared_distance(one, num_teachers) for one, number in asked.items()
        )
        # A coordinate moved by s votes adds at most s / (LATTICE sigma^2) to the loss of continuous
        # noise, and s is at most s^2. Plans have another lattice.
        found.append(gaussian_dp_epsilon(sqrt(squared), delta) + squared / LATTICE)
    return min(found)


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
    return several_teachers_epsilon(charges, delta=delta, num_teachers=2)


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
        one = one_teacher_epsilon(float(np.exp(log(delta) - depth)))
        if one == inf:
            return inf
        holds = logsumexp(one * np.arange(num_steps)) * (1.0 + SAFETY_MARGIN) <= depth
        return one if holds else inf

    low, high = 0.0, 1.0
    deepest = log(delta) + 690.0  # below it exp(log(delta) - depth) is no normal number
    while (best := epsilon_if_it_holds(high)) == inf:
        low, high = high, 2.0 * high
        if high > deepest:
            return inf
    for _ in range(30):
        middle = (low + high) / 2.0
        if (one := epsilon_if_it_holds(middle)) < inf:
            high, best = middle, min(best, one)
        else:
            low = middle
    return num_steps * best * (1.0 + SAFETY_MARGIN)


def _squared_distance(charge: Charge, num_teachers: int) -> float:
    """How far k teachers take the means of Gaussian noise of scale 1: k times as far as one."""
    return sum((num_teachers / multiplier) ** 2 for multiplier in charge.noise_multipliers)
