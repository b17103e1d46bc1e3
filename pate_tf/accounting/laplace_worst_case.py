"""The tight worst case of the noisy maximum with discrete Laplace noise.

docs/theory_worst_case.md, Theorem W4. Given which other class is largest, and all others, its lead
is a mixture of geometric variables. So the label costs no more than the worst position (x, y) of
two classes in a race against one geometric variable. Moments are convex and the laws are affine in
simple functions of the position, so that finitely many pairs bound all positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

import numpy as np

from pate_tf.accounting.divergences import FloatArray, pure_alpha
from pate_tf.accounting.three_outcomes import (
    Evaluated,
    Experiments,
    chosen,
    evaluated,
    excesses,
    joined,
    largest_excess,
)

SMALLEST_GAMMA, LARGEST_GAMMA = 0.004, 10.0
ROUNDING = 1e-7

_GAMMAS_PER_DOUBLING = 512
_WINDOW, _LEAST_WINDOW, _LARGEST_COUNT = 30.0, 14.0, 1500.0
_HALVINGS = 8
_TOLERANCE = 2e-3


def laplace_noisy_max_alphas(gamma: float, moments: tuple[float, ...]) -> FloatArray:
    """Returns a bound on the cost of one label, whatever the counts, [num_moments].

    Holds for any number of classes, for both directions, and for every order of the classes that
    breaks ties and does not look at the counts. Never above D*(l) of 2 gamma, which is returned
    where numbers overflow and for gamma outside of 0.004 .. 10. gamma is rounded up to a geometric
    grid: more noise never costs more (Lemma W3).

    Args:
        gamma: inverse scale of the noise, per vote.
        moments: positive and ascending.
    """
    cap = pure_alpha(2.0 * gamma, np.array(moments))
    if not SMALLEST_GAMMA <= gamma <= LARGEST_GAMMA:
        return cap
    above = 2.0 ** (ceil(log2(gamma) * _GAMMAS_PER_DOUBLING) / _GAMMAS_PER_DOUBLING)
    return np.asarray(np.minimum(_alphas(max(above, gamma), moments), cap))


@lru_cache(maxsize=256)
def _alphas(gamma: float, moments: tuple[float, ...]) -> tuple[float, ...]:
    orders = np.array(moments)
    largest = np.maximum(_beyond(gamma, orders), largest_excess(_inside(gamma, orders), orders))
    return tuple((np.log1p(largest) * (1.0 + ROUNDING)).tolist())


def _window(gamma: float) -> int:
    """Returns the largest gap x - y that is looked at one by one."""
    return ceil(max(_LEAST_WINDOW / gamma, min(_WINDOW / gamma, _LARGEST_COUNT))) + 2


def _inside(gamma: float, moments: FloatArray) -> list[Evaluated]:
    """Returns pairs among whose mixtures are the pairs of all positions inside the window.

    Where x - y is held, the laws are affine in (z, z^2), z = p^x: a curve that lies within the
    triangles of some of its points and of where their tangents meet (Lemma W5). A piece is halved
    where its tangents meet above what true positions reach.
    """
    gaps = np.arange(-_window(gamma), _window(gamma) + 1.0)
    parts = [evaluated(_one_against_the_others(gamma), moments)]
    for ties_to_a in (True, False):
        race = _Race(gamma, ties_to_a)
        low, high = 0.0 * gaps, race.fall ** np.maximum(0.0, gaps - 1.0)
        parts += [evaluated(race.pairs(gaps, z, z * z), moments) for z in (low, high)]
        reached = np.max(np.concatenate([part.at_knots for part in parts], axis=1), axis=1)
        place = gaps
        for halvings in range(_HALVINGS + 1):
            middle = (low + high) / 2.0
            above = evaluated(race.pairs(place, middle, low * high), moments)
            split = np.any(above.at_knots > reached[:, None] * (1.0 + _TOLERANCE), axis=0)
            split &= halvings < _HALVINGS
            parts.append(Evaluated(chosen(above.pairs, ~split), above.at_knots[:, ~split]))
            if not np.any(split):
                break
            place, low, middle, high = place[split], low[split], middle[split], high[split]
            parts.append(evaluated(race.pairs(place, middle, middle * middle), moments))
            reached = np.maximum(reached, np.max(parts[-1].at_knots, axis=1))
            place = np.tile(place, 2)
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return parts


def _beyond(gamma: float, moments: FloatArray) -> FloatArray:
    """Returns a bound on the excess of all positions outside of the window, [num_moments].

    There one outcome lacks at most q, and Theorem T2 of privacy.md applies to that q.
    """
    race = _Race(gamma, True)
    gap = float(_window(gamma))
    miss = 2.0 * float(race.difference_tail(np.array(gap - 3.0))) + 2.0 * float(
        race.geometric_tail(np.array(gap - 3.0))
    )
    return _two_sided_excess(gamma, miss, moments)


def _two_sided_excess(gamma: float, miss: float, moments: FloatArray) -> FloatArray:
    """Returns max(f1(Eq), f2(q)) - 1 of Theorem T2."""
    other = miss * np.exp(2.0 * gamma)
    found = []
    for here, there in ((other, miss), (miss, other)):
        pair = Experiments(
            np.array([[here, 1.0 - here, 0.0]]), np.array([[there, 1.0 - there, 0.0]])
        )
        found.append(excesses(pair, moments)[:, 0])
    return np.asarray(np.maximum(*found))


def _one_against_the_others(gamma: float) -> Experiments:
    """Returns the pairs with one of the two classes infinitely far behind, inside the window."""
    others = _Race(gamma, True).geometric_tail(np.arange(_window(gamma) + 1.0))
    laws = np.column_stack([1.0 - others, np.zeros_like(others), others])
    return joined([Experiments(laws[:-1], laws[1:]), Experiments(laws[1:], laws[:-1])])


@dataclass(frozen=True)
class _Race:
    """Classes a and b at x and y before a vote moves from a to b; the others at 0 and above.

    With independent discrete Laplace Z, Z' and geometric G on 0, 1, ...: a wins if x + Z is at
    least G and above y + Z' (or equal, if ties go to a), b wins likewise, else another class wins.
    """

    gamma: float
    ties_to_a: bool

    @property
    def fall(self) -> float:
        """The probability p = e^-gamma."""
        return float(np.exp(-self.gamma))

    @property
    def rise(self) -> float:
        """The probability 1 - p."""
        return float(-np.expm1(-self.gamma))

    def difference_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[Z - Z' >= gaps] for gaps >= 0."""
        p = self.fall
        spread = (1.0 + p + 2.0 * p * p) / (1.0 + p) + self.rise * gaps
        return np.asarray(np.exp(-self.gamma * gaps) * spread / (1.0 + p) ** 2)

    def geometric_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[G - Z >= gaps] for gaps >= 0."""
        p = self.fall
        spread = self.rise * (1.0 + gaps) + p + p * p / (1.0 + p)
        return np.asarray(np.exp(-self.gamma * gaps) * spread / (1.0 + p))

    def _lost(self, lead: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns A1, A2 with Pr[x + Z >= m + Z', x + Z < G] = A1 p^x + A2 p^2x, lead = x - m."""
        p, both = self.fall, self.rise * (1.0 + self.fall)
        peak = self.rise / (1.0 + p)
        steps = np.maximum(lead + 1.0, 0.0) + p ** (np.abs(lead + 1.0) + 1.0) / both
        cubed = -np.expm1(-3.0 * self.gamma) * (1.0 + p)
        tail = np.where(
            lead >= -1.0,
            p**3 / both - p ** (lead + 5.0) / cubed,
            p ** (2.0 - lead) / both - p ** (2.0 - 2.0 * lead) / cubed,
        )
        return peak * (p * steps + tail), -peak * p ** (3.0 - lead) / ((1.0 + p) * both)

    def _laws(self, gaps: FloatArray, z: FloatArray, squares: FloatArray) -> FloatArray:
        """Returns the laws at x - y = gaps where (z, squares) = (p^x, p^2x), [num_pairs, 3]."""
        needed = (0.0 if self.ties_to_a else 1.0) - gaps
        smaller = self.difference_tail(np.maximum(needed, 1.0 - needed))
        a_before = np.where(needed > 0.0, smaller, 1.0 - smaller)
        b_before = np.where(needed > 0.0, 1.0 - smaller, smaller)
        linear, square = self._lost(-needed)
        a_lost = linear * z + square * squares
        linear, square = self._lost(needed - 1.0)
        b_lost = linear * z * self.fall**-gaps + square * squares * self.fall ** (-2.0 * gaps)
        return np.stack([a_before - a_lost, b_before - b_lost, a_lost + b_lost], axis=-1)

    def pairs(self, gaps: FloatArray, z: FloatArray, squares: FloatArray) -> Experiments:
        """Returns pairs at x - y = gaps where (z, squares) = (p^x, p^2x), all [num_pairs]."""
        return Experiments(
            self._laws(gaps, z, squares),
            self._laws(gaps - 2.0, z / self.fall, squares / self.fall**2),
        )
