"""The cheapest stability gate for stability distances that are assumed, before any vote is seen."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nextafter
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from pate_tf.accounting.mechanisms.stability_gate import CERTAIN, SELECTION_SHARES, StabilityGate
from pate_tf.core import validation
from pate_tf.core.validation import IntArray

LARGEST_TOTAL: Final = 64.0


def release_probability(gate: StabilityGate, distances: IntArray) -> float:
    """Returns the probability that labels leave, over both steps, rounded down."""
    weights = gate.selection_weights(distances)
    opens = (gate.pass_numerator(int(distance)) for distance in np.sort(distances))
    passed = sum(weight * one for weight, one in zip(weights, opens, strict=False))
    exact = Fraction(passed, sum(weights) * CERTAIN)
    nearest = float(exact)
    return nextafter(nearest, 0.0) if Fraction(nearest) > exact else nearest


def cheapest_gate(
    distances: ArrayLike, *, delta: float, often: float, num_withheld: int = 0
) -> StabilityGate:
    """Returns the gate of least total epsilon that releases an assumed batch as often as asked for.

    Total: selection_epsilon + epsilon, to a relative 1e-6, over shares of the selection in steps of
    five hundredths.

    Args:
        distances: assumed from public values, never measured on the votes to be released: a gate
            chosen by looking at those has no guarantee. [num_queries].
        delta: in (0, 1).
        often: how often it is released, in (0, 1).
        num_withheld: number of queries that get no label. Default 0.

    Raises:
        ValueError: if a value is outside of its range, or no gate releases this batch so often.
    """
    validation.between(0, 1, often=often)
    assumed = np.asarray(distances, np.int64)
    best, least = None, inf
    for share in SELECTION_SHARES if num_withheld else (0.0,):

        def gate(total: float, share: float = share) -> StabilityGate:
            return StabilityGate(
                epsilon=(1.0 - share) * total,
                delta=delta,
                num_withheld=num_withheld,
                selection_epsilon=share * total,
            )

        # A share that is no better than the best one is dropped at its first evaluation.
        high = min(least, LARGEST_TOTAL)
        if release_probability(gate(high), assumed) < often:
            continue
        low = 0.0
        while high - low > 1e-6 * high:
            middle = (low + high) / 2.0
            if release_probability(gate(middle), assumed) < often:
                low = middle
            else:
                high = middle
        best, least = gate(high), nextafter(high, 0.0)
    if best is None:
        raise ValueError(
            f"expected distances that let a gate open with probability {often}, "
            f"got ones that don't at any epsilon up to {LARGEST_TOTAL}"
        )
    return best
