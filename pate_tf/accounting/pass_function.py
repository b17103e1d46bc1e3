"""How often a batch may leave that some number of changed teachers could change.

The largest pass function of (epsilon, delta)-privacy over a distance that one teacher changes by at
most 1 (docs/theory_stability_gate.md, Theorems G1 and G2). Probabilities are integers over 2**128,
made by a recursion that rounds to the safe side at every step: what is drawn satisfies the
guarantee exactly, not up to rounding.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Final

from pate_tf.accounting.conversions import check_delta

CERTAIN: Final = 2**128

# e^128 is far above 2**128: no larger epsilon lets more batches pass.
LARGEST_EPSILON: Final = 128

EXPONENTIAL_BITS: Final = 384


@functools.lru_cache(maxsize=1024)
def exponential_below(epsilon: float | Fraction) -> int:
    """Returns an integer of at most e^epsilon * 2**384 and at least 2**384.

    A partial sum of the series of e^x, every term rounded down.
    """
    exponent = Fraction(epsilon)
    if exponent > LARGEST_EPSILON:
        exponent = Fraction(LARGEST_EPSILON)
    term = total = 1 << EXPONENTIAL_BITS
    order = 0
    while term:
        order += 1
        term = term * exponent.numerator // (exponent.denominator * order)
        total += term
    return total


@dataclass(frozen=True, kw_only=True)
class DrawnWhileShut:
    """What is drawn instead while a gate is shut.

    Attributes:
        guarantees: (epsilon, delta) pairs, all of which it satisfies, the largest epsilon first.
        delta: of the gate and of this together.
    """

    guarantees: tuple[tuple[float, float], ...]
    delta: float

    def left_of(self, epsilon: float) -> list[tuple[Fraction, int]]:
        """Returns what each guarantee leaves of an epsilon, and how often it may be drawn for that.

        That is at least 0, and an integer over 2**128, rounded down: delta over the guarantee's.
        """
        allowed = Fraction(self.delta) * CERTAIN
        return [
            (
                max(Fraction(epsilon) - Fraction(of), Fraction(0)),
                int(allowed / Fraction(delta)) if delta else CERTAIN,
            )
            for of, delta in self.guarantees
        ]


def pass_numerator(
    epsilon: float, delta: float, distance: int, *, while_shut: DrawnWhileShut | None = None
) -> int:
    """Returns 2**128 p(distance), rounded down at every step.

    p(0) = 0, p(1) = delta, p(k+1) = min(e^eps p(k) + delta, 1 - (1 - p(k) - delta)/e^eps, 1)
    (Desfontaines, Voss, Gipson and Mandayam 2022, Theorem 1). Where something else is drawn while
    the gate is shut, the second term is 1 - (1 - p(k))/e^(eps - eps_k), and p(1) the least of all
    three; eps_k is the least epsilon of the other whose delta, times 1 - p(k), is at most the delta
    of both (Theorem G7).

    Args:
        epsilon: at least 0, of labels that leave; of both together where something else is drawn.
        delta: in (0, 1), of labels that leave.
        distance: number of changed teachers, at least 0.
        while_shut: None where nothing is drawn then.

    Raises:
        ValueError: if distance is negative or not a whole number.
    """
    if distance != int(distance) or distance < 0:
        raise ValueError(f"expected a distance >= 0, got {distance}")
    growth = exponential_below(epsilon)
    step = int(Fraction(delta) * CERTAIN)
    shut_growth, shut_step, levels = growth, step, list[tuple[Fraction, int]]()
    if while_shut is not None:
        shut_growth, shut_step, levels = 0, 0, while_shut.left_of(epsilon)
    numerator = level = 0
    for _ in range(int(distance)):
        shut = CERTAIN - numerator - shut_step
        if shut <= 0:
            return CERTAIN
        while level < len(levels) and shut <= levels[level][1]:
            shut_growth = exponential_below(levels[level][0])
            level += 1
        if not shut_growth:  # what is drawn instead satisfies too little
            return 0
        rising = (numerator * growth >> EXPONENTIAL_BITS) + step
        shut_at_least = -(-(shut << EXPONENTIAL_BITS) // shut_growth)
        numerator = min(rising, CERTAIN - shut_at_least)
    return numerator


def least_epsilon(*, distance: int, delta: float, pass_probability: float) -> float:
    """Returns the least epsilon with which a batch at this distance leaves as often as asked for.

    Rounded up, to a relative 1e-12. Infinite where no epsilon is enough: at distance 0, and at
    distance 1 above delta.

    Args:
        distance: of the batch, of a stability gate or assumed for a plan.
        delta: in (0, 1).
        pass_probability: in (0, 1).

    Raises:
        ValueError: if a value is outside of its range.
    """
    check_delta(delta)
    if not 0.0 < pass_probability < 1.0:
        raise ValueError(f"expected pass_probability in (0, 1), got {pass_probability}")
    wanted = Fraction(pass_probability) * CERTAIN
    low, high = 0.0, float(LARGEST_EPSILON)
    if pass_numerator(low, delta, distance) >= wanted:
        return low
    if pass_numerator(high, delta, distance) < wanted:
        return inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        enough = pass_numerator(middle, delta, distance) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high
