"""Exact composition: the privacy loss of many answers is a sum of independent whole multiples.

Every result errs upward.
"""

from __future__ import annotations

from math import inf

import numpy as np

from pate_tf.accounting.conversions import SAFETY_MARGIN, check_delta, check_num_queries
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.quadrature import IntArray

# Sums of more different losses than this are left to other theorems.
MOST_LOSSES = 2**15

# Above all that underflow can take away from the sum's law.
LOST = 1e-290


def composed_epsilon(
    step: float, multiples: IntArray, here: FloatArray, *, number: int, delta: float
) -> float:
    """Returns the epsilon at delta of so many adaptive answers (docs/theory_local.md, Theorem L3).

    delta(epsilon) is the sum over losses above epsilon of Pr[loss] (1 - e^(epsilon - loss)), where
    the loss is a sum of independent ones.

    Args:
        step: losses are multiples of it.
        multiples: of one answer, ascending by equal steps, int64 `[num_losses]`.
        here: their probabilities, `[num_losses]`.
        number: of answers.
        delta: in (0, 1).

    Returns:
        Epsilon, rounded up; infinite if the sum takes more than `MOST_LOSSES` values.
    """
    check_delta(delta)
    if check_num_queries(number) == 0:
        return 0.0
    if number * (len(multiples) - 1) + 1 > MOST_LOSSES:
        return inf
    weights = _power(here, number)
    width = int(multiples[1] - multiples[0])
    losses = step * (number * int(multiples[0]) + width * np.arange(len(weights)))
    most = float(losses[-1])

    def exceeds(epsilon: float) -> bool:
        above = losses > epsilon
        spent = float(weights[above] @ -np.expm1(epsilon - losses[above]))
        return spent * (1.0 + SAFETY_MARGIN) + LOST > delta

    low, high = 0.0, most
    if not exceeds(low):
        return 0.0
    while high - low > SAFETY_MARGIN * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return min(high * (1.0 + SAFETY_MARGIN), most * (1.0 + SAFETY_MARGIN))


def _power(weights: FloatArray, number: int) -> FloatArray:
    """Returns the law of a sum of so many, by squaring. All terms are positive: nothing cancels."""
    total, square = np.ones(1), weights
    while True:
        if number % 2:
            total = np.convolve(total, square)
        number //= 2
        if not number:
            return total
        square = np.convolve(square, square)
