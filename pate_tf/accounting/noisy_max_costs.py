"""Computes label probabilities and privacy costs of noisy maxima.

A noisy maximum is the class with the largest noisy vote count. In this module, the law of a random
variable is its probability distribution. Counts are int64 [num_queries, num_classes]. Gaps are
differences of counts and may be negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, product
from math import ceil, floor, inf, log, sqrt
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_tf.accounting.conversions import DEFAULT_MOMENTS, LATTICE, FloatArray, excess
from pate_tf.core.checks import IntArray

NODES = 24
UNDERFLOW = 760.0
MAX_EXPONENT = 24.0


# The law (the probability distribution) of the label.


class Quadrature(NamedTuple):
    """Points and weights for numerical integration over the largest noisy count.

    Attributes:
        points: noisy counts, [num_points].
        log_weights: logarithms of the weights of the points, [num_points].
        below: probability that a given class wins and all noisy counts are below the points.
        ties: points in (0, 1) and weights to integrate over the priority that breaks a tie; a
            single point if ties have probability zero.
        log_law: function of distances and a priority, which returns two arrays of the same shape as
            distances: ln Pr[noise = distance], and ln(Pr[noise < distance] + priority * Pr[noise =
            distance]). Between two kinks of the distribution, distances may be any real numbers.
    """

    points: FloatArray
    log_weights: FloatArray
    below: float
    ties: tuple[FloatArray, FloatArray]
    log_law: Callable[[FloatArray, float], tuple[FloatArray, FloatArray]]


@lru_cache(maxsize=4096)
def integer_rule(length: int) -> tuple[FloatArray, FloatArray]:
    """Returns points in [0, length - 1] and weights to compute sums f(0) + ... + f(length - 1).

    If `length` is at most NODES, the points are all integers. Otherwise, they are the points of the
    Gauss rule for discrete Chebyshev polynomials. The rule is exact for polynomials up to degree 2
    NODES - 1.
    """
    if length <= NODES:
        return np.arange(length, dtype=np.float64), np.ones(length)
    k = np.arange(1, NODES, dtype=np.float64)
    squares = k**2 * (float(length) ** 2 - k**2) / (4.0 * (4.0 * k**2 - 1.0))
    off = np.diag(np.sqrt(squares), 1)
    points, vectors = np.linalg.eigh(np.diag(np.full(NODES, (length - 1) / 2.0)) + off + off.T)
    return points, vectors[0] ** 2 * length


def discrete_laplace(gamma: float, values: IntArray, num_classes: int, total: int) -> Quadrature:
    """Returns the quadrature of discrete Laplace noise.

    The noise has the distribution Pr[k] = (1 - p)/(1 + p) p^|k|, where p = e^-gamma. The points are
    integers near the counts, Gauss points between them, and points in both geometric tails. The
    upper tail uses the Gauss rule of the little q-Legendre polynomials, sum_i p^i f(p^i) = sum w
    f(s), which is exact for f up to degree num_classes + 1. Ties are broken by random priority.

    Args:
        gamma: inverse scale of the noise, per vote.
        values: distinct counts minus the largest count of the histogram, in ascending order.
        num_classes: number of classes.
        total: sum over all classes of the count minus the largest count.
    """
    fall = np.exp(-gamma)
    rise = -np.expm1(-gamma)

    def log_law(distances: FloatArray, priority: float) -> tuple[FloatArray, FloatArray]:
        decay = -gamma * np.abs(distances)
        behind = decay - np.log1p(fall)
        ahead = np.log1p(-np.exp(behind) * (1.0 - priority * rise))
        log_cdf = np.where(distances < 0, behind + np.log(fall + priority * rise), ahead)
        return log(rise) - np.log1p(fall) + decay, log_cdf

    top = int(values[-1])
    bottom = max(int(values[0]), top - ceil(UNDERFLOW / gamma))
    longest = max(1, int(MAX_EXPONENT / (gamma * max(4, num_classes))))
    kinks = np.unique(np.append(values[values >= bottom], bottom))
    pieces = [(float(top), *integer_rule(1))]
    for start, stop in pairwise(kinks):
        count = ceil(int(stop - start) / longest)
        edges = start + (stop - start) * np.arange(count + 1) // count
        pieces += [
            (float(left), *integer_rule(int(right - left))) for left, right in pairwise(edges)
        ]
    weights = np.concatenate([w for _, _, w in pieces])
    n = np.arange(num_classes // 2 + 1, dtype=np.float64)

    def step(lower: FloatArray, shift: FloatArray) -> FloatArray:
        odd = -np.expm1(-gamma * (2.0 * lower + 1.0))
        missed = -np.expm1(-gamma * shift)
        return np.exp(-gamma * lower) / odd * missed / (1.0 + np.exp(-gamma * shift))

    rising = step(n, n + 1.0)
    falling = step(n, n)
    off = np.diag(np.sqrt(rising[:-1] * falling[1:]), 1)
    falls, vectors = np.linalg.eigh(np.diag(rising + falling) + off + off.T)
    falls = np.clip(falls, 1e-300, 1.0)
    tail_weights = vectors[0] ** 2 / rise
    with np.errstate(divide="ignore"):
        log_weights = np.log(np.concatenate([weights, tail_weights / falls]))
    points = np.concatenate([left + nodes for left, nodes, _ in pieces])
    points = np.append(points, top + 1.0 - np.log(falls) / gamma)
    below = 0.0
    if bottom == values[0]:
        above = total - num_classes * bottom + num_classes
        below = float(np.exp(-gamma * above - num_classes * np.log1p(fall))) / num_classes
    # This rule is exact for the product of the distribution functions of all num_classes - 1 other
    # classes.
    ties, tie_weights = np.polynomial.legendre.leggauss(num_classes // 2 + 1)
    return Quadrature(points, log_weights, below, ((ties + 1.0) / 2.0, tie_weights / 2.0), log_law)


def gaussian(sigma: float, values: IntArray, num_classes: int, total: int) -> Quadrature:
    """Returns the quadrature of the normal distribution with standard deviation sigma.

    The points are composite Gauss-Legendre points. They cover the range in which the density of a
    winning count is not negligible. Ties have probability zero. For the arguments, see
    `discrete_laplace`.
    """
    del total

    def log_law(distances: FloatArray, _: float) -> tuple[FloatArray, FloatArray]:
        scaled = distances / sigma
        return -(scaled**2) / 2.0 - log(sigma * sqrt(2.0 * np.pi)), scipy.special.log_ndtr(scaled)

    top = float(values[-1])
    low = max(float(values[0]), top - 60.0 * sigma) - 10.0 * sigma
    high = top + 14.0 * sigma
    pieces = ceil((high - low) / sigma * max(1.0, sqrt(num_classes) / 4.0))
    width = (high - low) / pieces
    points, weights = np.polynomial.legendre.leggauss(NODES)
    starts = low + width * np.arange(pieces)
    grid = (starts[:, None] + (points + 1.0) * width / 2.0).ravel()
    log_weights = np.tile(np.log(weights * width / 2.0), pieces)
    return Quadrature(grid, log_weights, 0.0, (np.full(1, 0.5), np.ones(1)), log_law)


# A function of values, num_classes and total (see `discrete_laplace`) that returns a quadrature.
AdditiveNoise = Callable[[IntArray, int, int], Quadrature]


MIN_PROBABILITY = 1e-290


@dataclass(frozen=True)
class NeighbourLaws:
    """Sensitive: the label probabilities at one histogram and at each of its neighbors.

    Each column of the arrays describes a group of classes that have equal probabilities in both
    cases. The last two columns are the class that loses a vote and the class that gains a vote.

    Attributes:
        here: probability of each class of the group at the histogram, [num_neighbours, num_groups].
        there: probability of each class of the group at the neighbor, of the same shape.
        multiplicity: number of classes in the group, [num_neighbours, num_groups].
        limit: upper bound on the log ratio of the probabilities of any label; infinite if there is
            none.
        rare: threshold below which probabilities may be inaccurate because of underflow.
        excess: relative margin: costs are multiplied by 1 + `excess`. This covers effects that the
            probabilities do not include, such as the rounding of the noise to a lattice.
    """

    here: FloatArray = dataclasses.field(repr=False)
    there: FloatArray = dataclasses.field(repr=False)
    multiplicity: FloatArray = dataclasses.field(repr=False)
    limit: float = inf
    rare: float = MIN_PROBABILITY
    excess: float = 0.0


def neighbour_outcomes(
    noise: AdditiveNoise, values: IntArray, multiplicity: IntArray
) -> NeighbourLaws:
    """Returns the label probabilities at a histogram and at each of its neighbors.

    Neighbors that differ only by a permutation of classes with equal counts are listed once. A
    probability may be NaN if the ratio of two distribution functions overflows.

    Args:
        noise: function that returns a `Quadrature` for the noise.
        values: distinct counts of the histogram, in ascending order, [num_groups].
        multiplicity: number of classes with each of these counts, [num_groups].
    """
    behind = values - values[-1]
    kinks = np.unique(np.concatenate([behind - 1, behind, behind + 1]))
    grid = noise(kinks, int(np.sum(multiplicity)), int(np.sum(behind * multiplicity)))
    distances = grid.points - behind[:, None]
    moved = np.stack([distances, distances + 1.0, distances - 1.0])
    size = len(values)
    here = np.full(size, grid.below)
    others = np.full((size, size, size), grid.below)
    losers = np.full((size, size), grid.below)
    gainers = np.full((size, size), grid.below)
    for priority, weight in zip(*grid.ties, strict=True):
        density, (cdf, after_loss, after_gain) = grid.log_law(moved, priority)
        weighted = grid.log_weights + density
        won, lost_and_won, gained_and_won = weight * np.exp(weighted + (multiplicity @ cdf - cdf))
        here += np.sum(won, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            easier = np.exp(after_loss - cdf)
            harder = np.exp(after_gain - cdf)
            for group in range(size):
                others[group] += (won * easier[group]) @ harder.T
            losers += lost_and_won @ harder.T
            gainers += easier @ gained_and_won.T
    moves = np.indices((size, size)).reshape(2, -1)
    possible = (values[moves[0]] > 0) & ((moves[0] != moves[1]) | (multiplicity[moves[0]] > 1))
    lose, gain = moves[:, possible]
    rows = np.arange(len(lose))
    remaining = np.tile(multiplicity.astype(np.float64), (len(lose), 1))
    np.subtract.at(remaining, (rows, lose), 1.0)
    np.subtract.at(remaining, (rows, gain), 1.0)
    single = np.ones((len(lose), 2))
    return NeighbourLaws(
        here=np.column_stack([np.tile(here, (len(lose), 1)), here[lose], here[gain]]),
        there=np.column_stack([others[lose, :, gain], losers[lose, gain], gainers[lose, gain]]),
        multiplicity=np.column_stack([remaining, single]),
    )


def additive_outcomes(counts: IntArray, noise: AdditiveNoise) -> FloatArray:
    """Returns the probability that each class has the largest noisy count.

    The result has the shape [num_queries, num_classes]. Classes with equal counts have equal
    probabilities.
    """
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    laws = np.empty(rows.shape)
    for row, law in zip(rows, laws, strict=True):
        values, group, multiplicity = np.unique(row, return_inverse=True, return_counts=True)
        behind = values - values[-1]
        grid = noise(behind, len(row), int(np.sum(behind * multiplicity)))
        distances = grid.points - behind[:, None]
        won = np.full(len(values), grid.below)
        for priority, weight in zip(*grid.ties, strict=True):
            density, cdf = grid.log_law(distances, priority)
            others = multiplicity @ cdf - cdf
            won += np.sum(np.exp(density + grid.log_weights + others), axis=1) * weight
        law[:] = won[group]
    return laws[inverse.ravel()]


# Formulas for the cost alpha(l) of one query, given the probability that the label is not the
# plurality.
#
# See docs/proofs/theory.md, Theorems T0 (Papernot et al. 2017) to T3, and Proposition D5 (the
# Gaussian formula of arXiv 1802.08908). Mechanisms select a formula, and
# `pate_tf.accounting.moments` applies it to counts.


def _scaled_expm1(scale: FloatArray, exponent: FloatArray) -> FloatArray:
    """Returns scale * (e^exponent - 1), or scale * e^exponent if e^exponent would overflow."""
    return np.where(exponent < 700.0, scale * np.expm1(exponent), np.exp(np.log(scale) + exponent))


def _pair_excess(
    masses: tuple[FloatArray, ...],
    log_ratios: tuple[float, ...],
    moments: FloatArray,
    *,
    reverse: bool = True,
) -> FloatArray:
    """Returns E[ratio^l] - 1 for two distributions of the label, in one or both directions.

    Under the distribution P, some classes have the probabilities `masses` ([num_queries] each).
    Under P', each of these probabilities is multiplied by e^log_ratio. One further class has the
    remaining probability under each distribution. If `reverse` is False, the result is
    E_P[(P/P')^l] - 1. Otherwise, it is the maximum of this value and E_P'[(P'/P)^l] - 1.
    """
    ratios = np.array(log_ratios)
    here = np.stack(masses, axis=1)
    there = here * np.exp(ratios)
    winner = np.log1p(here @ np.expm1(ratios) / (1.0 - np.sum(there, axis=1)))
    largest = np.zeros((len(here), len(moments)))
    directions = [(there, winner, -ratios)] + [(here, -winner, ratios)] * reverse
    for law, winner_ratio, other_ratios in directions:
        total = excess(winner_ratio[:, None], moments)
        total *= (1.0 - np.sum(law, axis=1))[:, None]
        total += law @ excess(other_ratios[:, None], moments)
        np.maximum(largest, np.where(np.isnan(total), np.inf, total), out=largest)
    return largest


def pure_costs(
    bound: str, gamma: float, q: FloatArray, u: FloatArray, moments: FloatArray
) -> FloatArray:
    """Returns the cost of each query if the tail satisfies F(D - s) <= e^{gamma s} F(D).

    paper: Theorem T0, ln[(1-q) ((1-q)/(1-Eq))^l + q E^l], computed as a sum of two positive terms.
    tight: Theorem T1, ln max(f1(q), f2(q)). two_sided: Theorem T2, ln max(f1(Eq), f2(q)), which
    covers both directions of a pair. class_aware: Theorem T3.

    Args:
        bound: name of the bound, "paper", "tight", "two_sided" or "class_aware".
        gamma: inverse scale of the noise, per vote.
        q: Pr[label != plurality] or an upper bound on it, [num_queries], above 0 and at most
            1/(E+1).
        u: largest term of q, [num_queries]. Only the bound "class_aware" uses it.
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
        # Theorem T3 takes the maximum over both directions, and over its mass vectors and corner
        # ratios.
        none = np.zeros_like(q)
        others = np.maximum(q - u, 0.0)
        second = np.minimum(u, others)
        remaining = np.maximum(others - second, 0.0)
        vectors = [
            (none, none, q),
            (u, none, others),
            (none, u, others),
            (u, second, remaining),
            (second, u, remaining),
        ]
        corners = tuple(product((-ratio, 0.0), (0.0, ratio), (-gamma, gamma)))
        total = np.zeros((len(q), len(moments)))
        for masses in vectors:
            is_used = [mass is not none for mass in masses]
            for ratios in {tuple(np.multiply(corner, is_used).tolist()) for corner in corners}:
                np.maximum(total, _pair_excess(masses, ratios, moments), out=total)
    return np.asarray(np.log1p(total))


def gaussian_costs(sigma: float, q: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns the cost of each query with Gaussian noise, [num_queries, num_moments].

    This is Proposition D5, which rewrites Theorem 6 of arXiv 1802.08908 with Propositions 7 and 10.

    Let h = 1/sigma and q = e^{-s^2}. Then mu_2 = s/h, mu_1 = mu_2 + 1 and eps_i = mu_i h^2, so
    A^l (1-q) = (1 - e^{-s^2})^{l+1} (1 - e^{-(s-h)^2})^{-l} and q B^l = e^{-s^2 + 2lsh + lh^2}. The
    conditions are s > h, s >= lh and (s-h) e^{2sh-h^2} >= s + h, which all hold for large enough s.

    The sum decreases with s, so the cost is nondecreasing in q. Let P and Q be the two brackets,
    y = P/Q >= 1 and b = (s-lh) e^{2lsh+lh^2}. The derivative has the sign of
    (l+1)s - l(s-h)e^{2sh-h^2} y - b y^-l <= (l+1)s - l(s+h)y - b y^-l. If b <= s+h, the right side
    is largest at y = 1, where it is <= 0 because b >= s - lh. Otherwise,
    l(s+h)y + b y^-l >= (l+1)((s+h)^l b)^{1/(l+1)} >= (l+1)s.
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


# The worst case of a noisy maximum is reduced to an experiment with three outcomes.
#
# One vote moves from class a to class b. Given the noise of all other classes, the label only
# reveals whether a, b or "another class" won. So each moment of the label is at most the largest
# moment of this experiment over all positions of a and b (docs/proofs/worst_case.md, Theorem W1).


_EVERY = 4
PER_DOUBLING = 512  # the worst case is computed for this many scales per factor of 2
_CHUNK = 2**13


# Two arrays. Each pair in the first array contains the distributions of the three outcomes before
# and after the vote moves, [num_pairs, 2, 3]. The second array contains the `excesses` of these
# pairs at some of the moments (the knots), [num_knots, num_pairs].
Evaluated = tuple[FloatArray, FloatArray]


def largest_excess(
    parts: list[Evaluated], moments: FloatArray, knots: NDArray[np.int64]
) -> FloatArray:
    """Returns max E_here[(here / there)^l] - 1 over all pairs, [num_moments].

    The result is infinite if a moment overflows. For each pair, the logarithm of the moment is
    convex in l, so its chord between two knots is an upper bound. Between two knots, a pair is
    evaluated only if its chord exceeds the value of another pair.

    Args:
        parts: pairs, and their `excesses` at `moments[knots]`.
        moments: positive moments in ascending order, [num_moments].
        knots: indices of some moments in ascending order, including the first and the last index.
    """
    pairs = np.concatenate([pairs for pairs, _ in parts])
    at_knots = np.concatenate([at_knots for _, at_knots in parts], axis=1)
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


def excesses(pairs: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns E_here[(here / there)^l] - 1 for every pair, [num_moments, num_pairs].

    An outcome that has probability 0 before and after the vote moves contributes nothing. An entry
    is infinite if it overflows, or if rounding made a probability negative.
    """
    here = pairs[:, 0]
    there = pairs[:, 1]
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
# See docs/proofs/worst_case.md, Theorem W6. Up to a relative error of 1e-13, a Gaussian variable is
# a mixture of slightly narrower Gaussians that are centered on a grid. Let x and y be the counts of
# two classes minus a fixed noisy count of a third class. The cost at any position (x, y) is at most
# the largest cost at a position on the grid, for noise with 0.6 % less variance. Far from the
# origin, an outcome is rare, and simple bounds hold.


MIN_SIGMA = 0.5
MAX_SIGMA = 2.0**14
GAUSSIAN_ROUNDING = 1e-10

_GROUPS = (1.0, 4.0)  # ends of ranges of l / sigma; each range has its own grid of positions
_KEPT_VARIANCE = 0.994
_GRID_STEP = 0.8 * sqrt(1.0 - _KEPT_VARIANCE)
_MIXING_ERROR = 4e-13  # for two variables: 2 sum_j e^{-2 pi^2 j^2 / 0.64}, normalized
_RARE = 5.0
_NODES = 24
_BEYOND = 12.0


@lru_cache(maxsize=256)
def gaussian_noisy_max_alphas(sigma: float) -> tuple[float, ...]:
    """Returns bounds on the cost of one label that hold for all counts, at `DEFAULT_MOMENTS`.

    The bound holds for any number of classes, for both directions, and for any way to break ties.
    The bound holds for the noise that is really drawn: a discrete Gaussian on multiples of 1 /
    LATTICE votes. The bound is infinite for l > 4 sigma. Inside this function, lengths are measured
    in standard deviations.

    Args:
        sigma: standard deviation of the noise, in votes, from 0.5 to 2^14.
    """
    ndtr = scipy.special.ndtr
    alphas = np.full_like(DEFAULT_MOMENTS, np.inf)
    scale = sigma * sqrt(_KEPT_VARIANCE)
    shift = 1.0 / scale
    slack = 2.0 / LATTICE / scale

    def wins(mine: FloatArray, others: FloatArray) -> FloatArray:
        """Returns the probability Pr[mine + Z >= max(others + Z', 0)] for all pairs of positions.

        The result has the shape [len(mine), len(others)]. It is the integral over v > 0 of phi(v -
        mine) Phi(v - others), computed by Gauss-Legendre quadrature on pieces of length 1. All
        terms are positive, and the relative error is below 1e-13 (Lemma W8).
        """
        pieces = ceil(max(float(mine[-1]), float(others[-1])) + _BEYOND)
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        points = (np.arange(pieces)[:, None] + (nodes + 1.0) / 2.0).ravel()
        density = np.exp(-((points - mine[:, None]) ** 2) / 2.0) / np.sqrt(2.0 * np.pi)
        before = ndtr(points[:, None] - others)
        return np.asarray((density * np.tile(weights / 2.0, pieces)) @ before)

    def positions(x: FloatArray, y: FloatArray) -> FloatArray:
        """Returns bounds on the probabilities before and after the vote moves, at all (x, y).

        Probabilities before the move get upper bounds. Probabilities after the move get lower
        bounds.
        """
        laws = []
        for a, b, more in ((x, y, slack), (x - shift, y + shift, -slack)):
            neither = np.outer(ndtr(more - a), ndtr(more - b))
            outcomes = (wins(a + more, b), wins(b + more, a).T, neither)
            laws.append(np.stack([outcome.ravel() for outcome in outcomes], axis=1))
        return np.stack(laws, axis=1)

    lowest = 0.0
    for reach in _GROUPS:
        in_group = (DEFAULT_MOMENTS * shift > lowest) & (DEFAULT_MOMENTS * shift <= reach)
        lowest = reach
        orders = DEFAULT_MOMENTS[in_group]
        if not orders.size:
            continue
        knots = np.unique(np.append(np.arange(0, len(orders), _EVERY), len(orders) - 1))
        # Rounding down makes every point of the grid a point of the lattice.
        step = floor(_GRID_STEP / slack) * slack
        near = ceil((reach + _RARE + shift) / step)
        a_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * shift) / step) + 1
        b_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * reach) / step) + 1
        close: FloatArray = np.arange(-near, near + 1.0) * step
        a_leads: FloatArray = np.arange(near + 1.0, a_far + 1.0) * step
        b_leads: FloatArray = np.arange(near + 1.0, b_far + 1.0) * step
        inside = [positions(np.append(close, a_leads), close), positions(close, b_leads)]
        # If there are only two classes, `gaps` are the possible differences of their means.
        gaps: FloatArray = np.arange(-b_far, a_far + 1.0) * step
        moved = gaps - 2.0 * shift
        here = [ndtr((gaps + slack) / sqrt(2.0)), ndtr((slack - gaps) / sqrt(2.0))]
        there = [ndtr((moved - slack) / sqrt(2.0)), ndtr((-slack - moved) / sqrt(2.0))]
        race = np.stack([np.stack(here, axis=1), np.stack(there, axis=1)], axis=1)
        bounds = []
        for pairs in (inside, [race]):
            # The upper bounds on the probabilities of all outcomes may add up to more than 1. The
            # excess must be added to the moment.
            total = max(float(np.max(np.sum(part[:, 0], axis=1))) for part in pairs)
            parts = [(part, excesses(part, orders[knots])) for part in pairs]
            bounds.append(np.log1p(largest_excess(parts, orders, knots) + max(total - 1.0, 0.0)))
        whole = orders * (orders + 1.0) * shift**2
        rare = 4.0 * float(ndtr(slack - _RARE))
        near_two = np.maximum(bounds[1], whole / 2.0) - orders * np.log1p(-rare)
        outside = np.logaddexp(near_two, whole + np.log(rare))
        rounding = (2.0 * orders + 1.0) * (_MIXING_ERROR + GAUSSIAN_ROUNDING)
        alphas[in_group] = np.maximum(bounds[0], outside) + rounding
    return tuple(alphas.tolist())


# The tight worst case of the noisy maximum with discrete Laplace noise.
#
# See docs/proofs/worst_case.md, Theorem W4. Fix which other class is largest, and the counts of all
# remaining classes. Then the margin of this class is a mixture of geometric variables. Consider a
# race of two classes with the counts x and y against one geometric variable. The cost of the label
# is at most the largest cost of such a race at any position (x, y). Moments are convex, and the
# probabilities are affine in simple functions of the position. Therefore, finitely many pairs bound
# all positions.


MIN_GAMMA = 0.004
MAX_GAMMA = 10.0
LAPLACE_ROUNDING = 1e-7
_WINDOW = 30.0
_MIN_WINDOW = 14.0
_MAX_COUNT = 1500.0
_HALVINGS = 8
_TOLERANCE = 2e-3


@lru_cache(maxsize=256)
def laplace_noisy_max_alphas(gamma: float) -> tuple[float, ...]:
    """Returns bounds on the cost of one label that hold for all counts, at `DEFAULT_MOMENTS`.

    The bound holds for any number of classes, for both directions, and for any order of the classes
    that breaks ties, if the order does not depend on the counts.

    Let x and y be the positions of two classes. For fixed x - y, the probabilities of the outcomes
    are affine in (z, z^2), where z = p^x. This curve is covered by triangles. The corners of a
    triangle are the two ends of a piece of the curve and the intersection of the tangents at these
    ends (Lemma W5). A piece is halved if the value at the intersection exceeds the largest value at
    true positions. If x - y is outside the window, one outcome has probability at least 1 - q, and
    Theorem T2 applies to q.

    Args:
        gamma: inverse scale of the noise, per vote, from 0.004 to 10.
    """
    orders = DEFAULT_MOMENTS
    fall = float(np.exp(-gamma))
    knots = np.unique(np.append(np.arange(0, len(orders), _EVERY), len(orders) - 1))

    def evaluated(pairs: FloatArray) -> Evaluated:
        return pairs, excesses(pairs, orders[knots])

    # The largest gap x - y that is evaluated individually.
    window = ceil(max(_MIN_WINDOW / gamma, min(_WINDOW / gamma, _MAX_COUNT))) + 2

    def geometric_tail(gaps: FloatArray) -> FloatArray:
        """Returns Pr[G - Z >= gaps] for gaps >= 0."""
        spread = -np.expm1(-gamma) * (1.0 + gaps) + fall + fall * fall / (1.0 + fall)
        return np.asarray(np.exp(-gamma * gaps) * spread / (1.0 + fall))

    gap = np.array([window - 3.0])
    # Probability that class b wins if it has `gap` votes less than class a and there are no other
    # classes.
    behind = _race_pairs(gamma, False, gap, np.zeros(1), np.zeros(1))[0, 0, 1]
    miss = 2.0 * float(behind) + 2.0 * float(geometric_tail(gap)[0])
    # Theorem T2 gives max(f1(Eq), f2(q)) - 1.
    other = miss * np.exp(2.0 * gamma)
    above = [other, 1.0 - other, 0.0]
    below = [miss, 1.0 - miss, 0.0]
    outside = np.max(excesses(np.array([[above, below], [below, above]]), orders), axis=1)
    # In these pairs, one of the two classes is infinitely far behind.
    others = geometric_tail(np.arange(window + 1.0))
    laws = np.column_stack([1.0 - others, np.zeros_like(others), others])
    pairs = np.stack([laws[:-1], laws[1:]], axis=1)
    parts = [evaluated(np.concatenate([pairs, pairs[:, ::-1]]))]
    gaps = np.arange(-window, window + 1.0)
    for ties_to_a in (True, False):
        race = partial(_race_pairs, gamma, ties_to_a)
        low = 0.0 * gaps
        high = fall ** np.maximum(0.0, gaps - 1.0)
        parts += [evaluated(race(gaps, z, z * z)) for z in (low, high)]
        reached = np.max(np.concatenate([at_knots for _, at_knots in parts], axis=1), axis=1)
        place = gaps
        for halvings in range(_HALVINGS + 1):
            middle = (low + high) / 2.0
            meet, at_knots = evaluated(race(place, middle, low * high))
            split = np.any(at_knots > reached[:, None] * (1.0 + _TOLERANCE), axis=0)
            split &= halvings < _HALVINGS
            parts.append((meet[~split], at_knots[:, ~split]))
            if not np.any(split):
                break
            place, low, middle, high = np.stack([place, low, middle, high])[:, split]
            parts.append(evaluated(race(place, middle, middle * middle)))
            reached = np.maximum(reached, np.max(parts[-1][1], axis=1))
            place = np.tile(place, 2)
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    largest = np.maximum(outside, largest_excess(parts, orders, knots))
    return tuple((np.log1p(largest) * (1.0 + LAPLACE_ROUNDING)).tolist())


def _race_pairs(
    gamma: float, ties_to_a: bool, gaps: FloatArray, z: FloatArray, squares: FloatArray
) -> FloatArray:
    """Returns outcome probabilities before and after a vote moves from class a to class b.

    The result has the shape [num_pairs, 2, 3]; the outcomes are a, b and any other class. Classes a
    and b are at the positions x and y before the vote moves. Let Z and Z' be independent discrete
    Laplace variables. The largest noisy count of the other classes is G, a geometric variable on 0,
    1, ... Class a wins if x + Z is at least G and above y + Z' (or equal to y + Z', if a wins
    ties). Class b wins similarly. Otherwise, another class wins.

    Args:
        gamma: inverse scale of the noise, per vote; p = e^-gamma.
        ties_to_a: whether a wins ties with b.
        gaps: difference x - y for each pair, [num_pairs].
        z: value of p^x for each pair, [num_pairs].
        squares: value of p^(2x) for each pair, or a value that replaces it, [num_pairs].
    """
    p = float(np.exp(-gamma))
    rise = float(-np.expm1(-gamma))

    def lost(lead: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns A1, A2 with Pr[m + Z' <= x + Z < G] = A1 p^x + A2 p^(2x), where lead = x - m."""
        both = rise * (1.0 + p)
        peak = rise / (1.0 + p)
        steps = np.maximum(lead + 1.0, 0.0) + p ** (np.abs(lead + 1.0) + 1.0) / both
        cubed = -np.expm1(-3.0 * gamma) * (1.0 + p)
        tail = np.where(
            lead >= -1.0,
            p**3 / both - p ** (lead + 5.0) / cubed,
            p ** (2.0 - lead) / both - p ** (2.0 - 2.0 * lead) / cubed,
        )
        return peak * (p * steps + tail), -peak * p ** (3.0 - lead) / ((1.0 + p) * both)

    laws = []
    for lead, first, second in ((gaps, z, squares), (gaps - 2.0, z / p, squares / p**2)):
        needed = (0.0 if ties_to_a else 1.0) - lead
        # Computes the probability Pr[Z - Z' >= apart] for apart >= 0.
        apart = np.maximum(needed, 1.0 - needed)
        spread = (1.0 + p + 2.0 * p * p) / (1.0 + p) - np.expm1(-gamma) * apart
        smaller = np.exp(-gamma * apart) * spread / (1.0 + p) ** 2
        a_before = np.where(needed > 0.0, smaller, 1.0 - smaller)
        b_before = np.where(needed > 0.0, 1.0 - smaller, smaller)
        linear, square = lost(-needed)
        a_lost = linear * first + square * second
        linear, square = lost(needed - 1.0)
        b_lost = linear * first * p**-lead + square * second * p ** (-2.0 * lead)
        laws.append(np.stack([a_before - a_lost, b_before - b_lost, a_lost + b_lost], axis=-1))
    return np.stack(laws, axis=1)
