"""What a noisy maximum costs: bounds at the counts, and the worst case over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import ceil, floor, log2, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.conversions import FloatArray, excess, exp_remainder, ndtr, pure_alpha

# Cost formulas of one query: alpha(l) from the probability that the label is not the plurality.
#
# docs/proofs/theory.md, Theorems T0 to T3, of which T0 is that of Papernot et al. 2017, and
# Proposition D5, the Gaussian formula of arXiv 1802.08908. Mechanisms name them;
# `pate_tf.accounting.moments` applies them to counts.


def _scaled_expm1(scale: FloatArray, exponent: FloatArray) -> FloatArray:
    """Returns scale * (e^exponent - 1), or a little more where e^exponent alone overflows."""
    return np.where(exponent < 700.0, scale * np.expm1(exponent), np.exp(np.log(scale) + exponent))


def _pair_excess(
    masses: tuple[FloatArray, ...],
    log_ratios: tuple[float, ...],
    moments: FloatArray,
    *,
    reverse: bool = True,
) -> FloatArray:
    """Returns the larger excess E[ratio^l] - 1 of both directions, or of the forward one.

    The pair: classes of probability `masses` ([num_queries] each) under P, each times
    e^log_ratio under P', and one more class that takes the rest of both.
    """
    ratios = np.array(log_ratios)
    here = np.stack(masses, axis=1)
    there = here * np.exp(ratios)
    winner = np.log1p(here @ np.expm1(ratios) / (1.0 - np.sum(there, axis=1)))
    largest = np.zeros((len(here), len(moments)))
    directions = [(there, winner, -ratios)] + [(here, -winner, ratios)] * reverse
    for law, winner_ratio, other_ratios in directions:
        # `excess` of every winner, in place: these are long arrays.
        total = exp_remainder(np.outer(winner_ratio, moments + 1.0))
        total -= np.outer(exp_remainder(winner_ratio), moments + 1.0)
        np.maximum(total, 0.0, out=total)
        total *= (1.0 - np.sum(law, axis=1))[:, None]
        total += law @ excess(other_ratios[:, None], moments)
        np.maximum(largest, np.where(np.isnan(total), np.inf, total), out=largest)
    return largest


def pure_costs(
    bound: str, gamma: float, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Returns the costs of a mechanism with tail F(D - s) <= e^{gamma s} F(D), of each query.

    paper: Theorem T0, ln[(1-q) ((1-q)/(1-Eq))^l + q E^l], as a sum of two positive excesses.
    tight: Theorem T1, ln max(f1(q), f2(q)).
    two_sided: Theorem T2, ln max(f1(Eq), f2(q)), the two directions of one pair.
    class_aware: Theorem T3.

    Args:
        bound: "paper", "tight", "two_sided" or "class_aware".
        gamma: inverse scale of the noise, per vote.
        q: Pr[label != plurality] or a bound on it, [num_queries], above 0 and up to 1/(E+1).
        u: largest single term of q, [num_queries]; read by "class_aware" alone.
        moments: [num_moments].
    """
    ratio = 2.0 * gamma
    if bound == "paper":
        rise = np.expm1(ratio)
        winner = np.log1p(rise * q / (1.0 - (1.0 + rise) * q))
        total = (1.0 - q)[:, None] * np.expm1(np.outer(winner, moments))
        total += _scaled_expm1(q[:, None], ratio * moments[None, :])
    elif bound == "tight":
        total = np.maximum(
            _pair_excess((q,), (ratio,), moments, reverse=False),
            _pair_excess((q,), (-ratio,), moments, reverse=False),
        )
    elif bound == "two_sided":
        total = _pair_excess((q,), (ratio,), moments)
    else:
        total = _class_aware_excess(gamma, q, u, moments)
    return np.asarray(np.log1p(total))


def _class_aware_excess(
    gamma: float, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Theorem T3: the largest of both directions over its mass vectors and corner ratios."""
    none, others = np.zeros_like(q), np.maximum(q - u, 0.0)
    second = np.minimum(u, others)
    remaining = np.maximum(others - second, 0.0)
    vectors = (
        *((none, none, q), (u, none, others), (none, u, others)),
        *((u, second, remaining), (second, u, remaining)),
    )
    corners = tuple(product((-2.0 * gamma, 0.0), (0.0, 2.0 * gamma), (-gamma, gamma)))
    largest = np.zeros((len(q), len(moments)))
    for masses in vectors:
        is_used = [mass is not none for mass in masses]
        for ratios in {tuple(np.multiply(corner, is_used).tolist()) for corner in corners}:
            np.maximum(largest, _pair_excess(masses, ratios, moments), out=largest)
    return largest


def gaussian_costs(sigma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Proposition D5: arXiv 1802.08908, Theorem 6 with Propositions 7 and 10, rewritten.

    With h = 1/sigma and q = e^{-s^2}, mu_2 = s/h, mu_1 = mu_2 + 1 and eps_i = mu_i h^2, so that
    A^l (1-q) = (1 - e^{-s^2})^{l+1} (1 - e^{-(s-h)^2})^{-l} and q B^l = e^{-s^2 + 2lsh + lh^2}; the
    conditions are s > h, s >= lh and (s-h) e^{2sh-h^2} >= s + h, all of which hold from some s on.

    The sum falls in s, so the cost is nondecreasing in q: with P, Q the two brackets, y = P/Q >= 1,
    b = (s-lh) e^{2lsh+lh^2}, its derivative has the sign of (l+1)s - l(s-h)e^{2sh-h^2} y - b y^-l
    <= (l+1)s - l(s+h)y - b y^-l. If b <= s+h this is largest at y = 1 and b >= s - lh makes it
    <= 0; otherwise l(s+h)y + b y^-l >= (l+1)((s+h)^l b)^{1/(l+1)} >= (l+1)s.
    """
    step = 1.0 / sigma
    depth = np.sqrt(np.maximum(-np.log(q), 0.0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        applies = (depth > step) & (
            np.log(depth - step) + 2.0 * depth * step - step**2 >= np.log(depth + step)
        )
        log_a = np.log1p(-q) - np.log1p(-np.exp(-((depth - step) ** 2)))
        log_b = 2.0 * depth * step + step**2
        total = (1.0 - q)[:, None] * np.expm1(np.outer(log_a, moments))
        total += _scaled_expm1(q[:, None], np.outer(log_b, moments))
        valid = applies[:, None] & (depth[:, None] >= moments[None, :] * step)
        return np.where(valid & ~np.isnan(total), np.log1p(total), np.inf)


# The three-outcome experiment that a noisy maximum comes down to in the worst case.
#
# One vote moves from class a to class b. Given the noise of all other classes, what the label tells
# is which of a, b and "another class" won. So no moment of the label exceeds the largest moment of
# that experiment over all positions of a and b (docs/proofs/worst_case.md, Theorem W1).


_EVERY = 4
_CHUNK = 2**13


class Evaluated(NamedTuple):
    """Pairs of laws of the outcomes, with their moments at the knots of a list of moments.

    Attributes:
        pairs: probabilities where the vote has not moved, and after the move, [num_pairs, 2, 3].
        at_knots: `excesses` at the moments of `chord_knots`, [num_knots, num_pairs].
    """

    pairs: FloatArray
    at_knots: FloatArray


def evaluated(pairs: FloatArray, moments: FloatArray) -> Evaluated:
    """Returns the pairs with their moments at the knots of `moments`."""
    return Evaluated(pairs, excesses(pairs, moments[chord_knots(len(moments))]))


def between_moments(
    moments: FloatArray, grid: FloatArray, certified: FloatArray, cap: FloatArray
) -> FloatArray:
    """Returns bounds at any moments from bounds at a grid of moments, and at most the cap.

    The cost of every pair of laws is convex in l and 0 at l = 0, and so is the largest of them:
    chords bound it from above. Beyond the last moment the cap alone does.
    """
    chords = np.interp(moments, np.append(0.0, grid), np.append(0.0, certified), right=np.inf)
    return np.asarray(np.minimum(chords, cap))


def largest_excess(parts: list[Evaluated], moments: FloatArray) -> FloatArray:
    """Returns max E_here[(here / there)^l] - 1 over all pairs, [num_moments].

    Infinite where a moment overflows. The logarithm of a moment is convex in l for every pair. So
    between knots those pairs alone are evaluated whose chord exceeds what another pair reaches.

    Args:
        parts: pairs, evaluated at the knots of `moments`.
        moments: [num_moments], positive, ascending.
    """
    pairs = np.concatenate([part.pairs for part in parts])
    at_knots = np.concatenate([part.at_knots for part in parts], axis=1)
    knots = chord_knots(len(moments))
    largest = np.zeros(len(moments))
    largest[knots] = np.max(at_knots, axis=1)
    logs = np.log1p(at_knots)
    for index, (left, right) in enumerate(pairwise(knots)):
        inner = np.arange(left + 1, right)
        if not np.isfinite(largest[right]):
            largest[inner] = np.inf
        elif inner.size:
            share = (moments[inner] - moments[left]) / (moments[right] - moments[left])
            ends = slice(index, index + 2)
            leaders = np.argmax(at_knots[ends], axis=1)
            reached = np.max(excesses(pairs[leaders], moments[inner]), axis=1)
            chords = np.stack([1.0 - share, share], axis=1) @ logs[ends]
            rivals = np.any(chords > np.log1p(reached)[:, None], axis=0)
            rivals[leaders] = True
            largest[inner] = np.max(excesses(pairs[rivals], moments[inner]), axis=1)
    return largest


def chord_knots(num_moments: int) -> NDArray[np.int64]:
    """Returns the indices of the moments at which every pair is evaluated."""
    return np.unique(np.append(np.arange(0, num_moments, _EVERY), num_moments - 1))


def excesses(pairs: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns E_here[(here / there)^l] - 1 of every pair, [num_moments, num_pairs].

    An outcome without probability under both laws adds nothing. Infinite on overflow, and where a
    probability came out negative.
    """
    here, there = pairs[:, 0], pairs[:, 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.log1p((here - there) / there)
        ratios[(here == 0.0) & (there == 0.0)] = 0.0
        ratios[(here < 0.0) | (there < 0.0)] = np.nan
        total = np.zeros((len(moments), len(ratios)))
        for start in range(0, len(ratios), _CHUNK):
            part = slice(start, start + _CHUNK)
            for outcome in range(ratios.shape[1]):
                terms = np.expm1(np.outer(moments, ratios[part, outcome]))
                terms *= here[part, outcome]
                total[:, part] += terms
    return np.asarray(np.where(np.isnan(total), np.inf, np.maximum(total, 0.0)))


# The tight worst case of the noisy maximum with Gaussian noise.
#
# docs/proofs/worst_case.md, Theorem W6. A Gaussian variable is, up to a factor of 1e-13, a
# mixture of
# slightly narrower ones that are centred on a grid. So the worst position (x, y) of two classes
# against a fixed third count is bounded by the worst position on the grid, with 1 % less variance.
# Far from the origin an outcome is rare, and simple bounds hold.


SMALLEST_SIGMA, LARGEST_SIGMA = 0.5, 2.0**14
GAUSSIAN_ROUNDING = 1e-10

_GROUPS = (1.0, 4.0)  # l / sigma up to which one box serves
_SIGMAS_PER_DOUBLING = 512
_KEPT_VARIANCE = 0.994
_GRID_STEP = 0.8 * sqrt(1.0 - _KEPT_VARIANCE)
_MIXING_ERROR = 4e-13  # 2 sum_j e^{-2 pi^2 j^2 / 0.64}, normalised, of two variables
_RARE = 5.0
_NODES = 24
_BEYOND = 12.0


def gaussian_noisy_max_alphas(
    sigma: float, moments: tuple[float, ...], lattice_step: float
) -> FloatArray:
    """Returns a bound on the cost of one label, whatever the counts, [num_moments].

    Holds for any number of classes, both directions, any way to break ties, and the noise that is
    drawn: a discrete Gaussian on a lattice. Never above l (l+1) / sigma^2, which is returned for
    l > 4 sigma and for sigma outside of 0.5 .. 2^14. sigma is rounded down to a geometric grid:
    more noise never costs more (Lemma W7).

    Args:
        sigma: standard deviation of the noise, in votes.
        moments: positive and ascending.
        lattice_step: of the noise, in votes.
    """
    cap = np.array(moments) * (np.array(moments) + 1.0) / sigma**2
    if not SMALLEST_SIGMA <= sigma <= LARGEST_SIGMA:
        return cap
    below = 2.0 ** (floor(log2(sigma) * _SIGMAS_PER_DOUBLING) / _SIGMAS_PER_DOUBLING)
    return np.asarray(np.minimum(_gaussian_alphas(min(below, sigma), moments, lattice_step), cap))


@lru_cache(maxsize=256)
def _gaussian_alphas(
    sigma: float, moments: tuple[float, ...], lattice_step: float
) -> tuple[float, ...]:
    """Returns the bound at every moment, infinite above the last group."""
    orders = np.array(moments)
    alphas = np.full(len(orders), np.inf)
    scale = sigma * sqrt(_KEPT_VARIANCE)
    shift, slack = 1.0 / scale, 2.0 * lattice_step / scale
    lowest = 0.0
    for highest in _GROUPS:
        some = (orders * shift > lowest) & (orders * shift <= highest)
        lowest = highest
        if np.any(some):
            alphas[some] = _group_alphas(shift, slack, orders[some], highest)
    return tuple(alphas.tolist())


def _group_alphas(shift: float, slack: float, moments: FloatArray, reach: float) -> FloatArray:
    """Returns the bound where moments * shift <= reach; lengths in standard deviations."""
    # Rounded down to the lattice, so that points of the grid are points of the lattice.
    step = floor(_GRID_STEP / slack) * slack
    near = ceil((reach + _RARE + shift) / step)
    a_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * shift) / step) + 1
    b_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * reach) / step) + 1
    close: FloatArray = np.arange(-near, near + 1.0) * step
    a_leads: FloatArray = np.arange(near + 1.0, a_far + 1.0) * step
    b_leads: FloatArray = np.arange(near + 1.0, b_far + 1.0) * step
    parts = [
        evaluated(_positions(shift, slack, np.append(close, a_leads), close), moments),
        evaluated(_positions(shift, slack, close, b_leads), moments),
    ]
    gaps: FloatArray = np.arange(-b_far, a_far + 1.0) * step
    race = [evaluated(_two_classes(shift, slack, gaps), moments)]
    bounds = []
    for group in (parts, race):
        # The enclosed probabilities of a pair may add up to more than 1.
        total = max(float(np.max(np.sum(part.pairs[:, 0], axis=1))) for part in group)
        bounds.append(np.log1p(largest_excess(group, moments) + max(total - 1.0, 0.0)))
    inside, two = bounds
    whole = moments * (moments + 1.0) * shift**2
    rare = 4.0 * float(ndtr(slack - _RARE))
    outside = np.logaddexp(
        np.maximum(two, whole / 2.0) - moments * np.log1p(-rare), whole + np.log(rare)
    )
    return np.asarray(
        np.maximum(inside, outside) + (2.0 * moments + 1.0) * (_MIXING_ERROR + GAUSSIAN_ROUNDING)
    )


def _positions(shift: float, slack: float, x: FloatArray, y: FloatArray) -> FloatArray:
    """Returns pairs at all (x, y): the first above, the second below the laws on the lattice."""
    laws = []
    for a, b, more in ((x, y, slack), (x - shift, y + shift, -slack)):
        neither = np.outer(ndtr(more - a), ndtr(more - b))
        outcomes = (_wins(a + more, b), _wins(b + more, a).T, neither)
        laws.append(np.stack([outcome.ravel() for outcome in outcomes], axis=1))
    return np.stack(laws, axis=1)


def _wins(mine: FloatArray, others: FloatArray) -> FloatArray:
    """Returns Pr[mine + Z >= max(others + Z', 0)], [len(mine), len(others)].

    The integral over v > 0 of phi(v - mine) Phi(v - others), by Gauss-Legendre on pieces of
    length 1: all terms are positive, and the error is below 1e-13 of the value (Lemma W8).
    """
    pieces = ceil(max(float(mine[-1]), float(others[-1])) + _BEYOND)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    points = (np.arange(pieces)[:, None] + (nodes + 1.0) / 2.0).ravel()
    density = np.exp(-((points - mine[:, None]) ** 2) / 2.0) / np.sqrt(2.0 * np.pi)
    return np.asarray((density * np.tile(weights / 2.0, pieces)) @ ndtr(points[:, None] - others))


def _two_classes(shift: float, slack: float, gaps: FloatArray) -> FloatArray:
    """Returns pairs of two classes alone, whose means are `gaps` apart, [num_pairs, 2, 2]."""
    moved = gaps - 2.0 * shift
    here = [ndtr((gaps + slack) / sqrt(2.0)), ndtr((slack - gaps) / sqrt(2.0))]
    there = [ndtr((moved - slack) / sqrt(2.0)), ndtr((-slack - moved) / sqrt(2.0))]
    return np.stack([np.stack(here, axis=1), np.stack(there, axis=1)], axis=1)


# The tight worst case of the noisy maximum with discrete Laplace noise.
#
# docs/proofs/worst_case.md, Theorem W4. Given which other class is largest, and all others, its
# lead
# is a mixture of geometric variables. So the label costs no more than the worst position (x, y) of
# two classes in a race against one geometric variable. Moments are convex and the laws are affine
# in
# simple functions of the position, so that finitely many pairs bound all positions.


SMALLEST_GAMMA, LARGEST_GAMMA = 0.004, 10.0
LAPLACE_ROUNDING = 1e-7

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
    return np.asarray(np.minimum(_laplace_alphas(max(above, gamma), moments), cap))


@lru_cache(maxsize=256)
def _laplace_alphas(gamma: float, moments: tuple[float, ...]) -> tuple[float, ...]:
    orders = np.array(moments)
    largest = np.maximum(_beyond(gamma, orders), largest_excess(_inside(gamma, orders), orders))
    return tuple((np.log1p(largest) * (1.0 + LAPLACE_ROUNDING)).tolist())


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
            parts.append(Evaluated(above.pairs[~split], above.at_knots[:, ~split]))
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

    There one outcome lacks at most q, and Theorem T2 applies to that q.
    """
    race = _Race(gamma, True)
    gap = float(_window(gamma))
    miss = 2.0 * float(race.difference_tail(np.array(gap - 3.0))) + 2.0 * float(
        race.geometric_tail(np.array(gap - 3.0))
    )
    # max(f1(Eq), f2(q)) - 1 of Theorem T2.
    other = miss * np.exp(2.0 * gamma)
    above, below = [other, 1.0 - other, 0.0], [miss, 1.0 - miss, 0.0]
    return np.asarray(np.max(excesses(np.array([[above, below], [below, above]]), moments), axis=1))


def _one_against_the_others(gamma: float) -> FloatArray:
    """Returns the pairs with one of the two classes infinitely far behind, inside the window."""
    others = _Race(gamma, True).geometric_tail(np.arange(_window(gamma) + 1.0))
    laws = np.column_stack([1.0 - others, np.zeros_like(others), others])
    pairs = np.stack([laws[:-1], laws[1:]], axis=1)
    return np.concatenate([pairs, pairs[:, ::-1]])


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

    def pairs(self, gaps: FloatArray, z: FloatArray, squares: FloatArray) -> FloatArray:
        """Returns pairs at x - y = gaps where (z, squares) = (p^x, p^2x), all [num_pairs]."""
        here = self._laws(gaps, z, squares)
        there = self._laws(gaps - 2.0, z / self.fall, squares / self.fall**2)
        return np.stack([here, there], axis=1)
