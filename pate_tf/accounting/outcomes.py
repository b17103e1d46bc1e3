"""Winning probabilities of noisy votes, and the pairwise tails that bound them.

Counts are int64 [num_queries, num_classes]; gaps are differences of counts and may be negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.conversions import log_ndtr

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NODES = 24
UNDERFLOW = 760.0
LARGEST_EXPONENT = 24.0


class Grid(NamedTuple):
    """Where the sum over noisy counts is evaluated.

    Attributes:
        points: noisy counts, [num_points], and for each the logarithm of its weight.
        log_weights: [num_points].
        below: what each class wins where every noisy count is below the grid.
    """

    points: FloatArray
    log_weights: FloatArray
    below: float


def gauss_rule(diagonal: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns points and weights (of sum 1) from the recurrence of orthogonal polynomials.

    Args:
        diagonal: alpha_0 .. alpha_{n-1}.
        squares: beta_1 .. beta_{n-1} of the monic recurrence.
    """
    off = np.sqrt(squares)
    points, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    return points, vectors[0] ** 2


@lru_cache(maxsize=4096)
def integer_rule(length: int) -> tuple[FloatArray, FloatArray]:
    """Returns points in [0, length - 1] and weights that sum smooth f(0) + ... + f(length - 1).

    Every integer for up to NODES of them; else the Gauss rule of the discrete Chebyshev
    polynomials, exact to degree 2 NODES - 1.
    """
    if length <= NODES:
        return np.arange(length, dtype=np.float64), np.ones(length)
    k = np.arange(1, NODES, dtype=np.float64)
    squares = k**2 * (float(length) ** 2 - k**2) / (4.0 * (4.0 * k**2 - 1.0))
    points, weights = gauss_rule(np.full(NODES, (length - 1) / 2.0), squares)
    return points, weights * length


@lru_cache(maxsize=64)
def geometric_rule(gamma: float, nodes: int) -> tuple[FloatArray, FloatArray]:
    """Returns s and w with sum_i p^i f(p^i) = sum w f(s), p = e^-gamma, f of degree < 2 nodes.

    The Gauss rule of the little q-Legendre polynomials.
    """
    n = np.arange(nodes, dtype=np.float64)

    def miss(power: FloatArray) -> FloatArray:
        return -np.expm1(-gamma * power)

    def step(lower: FloatArray, shift: FloatArray) -> FloatArray:
        scale = np.exp(-gamma * lower) / miss(2.0 * lower + 1.0)
        return scale * miss(shift) / (1.0 + np.exp(-gamma * shift))

    rising, falling = step(n, n + 1.0), step(n, n)
    points, weights = gauss_rule(rising + falling, rising[:-1] * falling[1:])
    return np.clip(points, 1e-300, 1.0), weights / -np.expm1(-gamma)


@dataclass(frozen=True)
class DiscreteLaplaceNoise:
    """Pr[k] = (1 - p)/(1 + p) p^|k|, p = e^-gamma, ties broken by random priority."""

    gamma: float

    def grid(self, values: IntArray, num_classes: int, total: int) -> Grid:
        """Returns a grid on which log_weights sum all noisy counts.

        Integers near the counts, Gauss points between, and both geometric tails.

        Args:
            values: every count that is in use, relative to the largest one of the histogram,
                ascending and distinct.
            num_classes: number of classes.
            total: sum of the counts of all classes, relative to the largest one.
        """
        top = int(values[-1])
        bottom = max(int(values[0]), top - ceil(UNDERFLOW / self.gamma))
        longest = max(1, int(LARGEST_EXPONENT / (self.gamma * max(4, num_classes))))
        kinks = np.unique(np.append(values[values >= bottom], bottom))
        pieces = [(float(top), *integer_rule(1))]
        for start, stop in pairwise(kinks):
            count = ceil(int(stop - start) / longest)
            edges = start + (stop - start) * np.arange(count + 1) // count
            pieces += [
                (float(left), *integer_rule(int(right - left))) for left, right in pairwise(edges)
            ]
        points = np.concatenate([left + nodes for left, nodes, _ in pieces])
        weights = np.concatenate([w for _, _, w in pieces])
        falls, tail_weights = geometric_rule(self.gamma, num_classes // 2 + 1)
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.concatenate([weights, tail_weights / falls]))
        points = np.append(points, top + 1.0 - np.log(falls) / self.gamma)
        if bottom > values[0]:
            return Grid(points, log_weights, 0.0)
        above = total - num_classes * bottom + num_classes
        each = np.exp(-self.gamma * above - num_classes * np.log1p(np.exp(-self.gamma)))
        return Grid(points, log_weights, float(each) / num_classes)

    def log_density(self, distances: FloatArray) -> FloatArray:
        """Returns ln Pr[noise = distances], distances real between the kinks."""
        peak = log(-np.expm1(-self.gamma)) - np.log1p(np.exp(-self.gamma))
        return np.asarray(peak - self.gamma * np.abs(distances))

    def log_cdf(self, distances: FloatArray, priority: float) -> FloatArray:
        """Returns ln(Pr[noise < distances] + priority * Pr[noise = distances])."""
        fall, rise = np.exp(-self.gamma), -np.expm1(-self.gamma)
        behind = -self.gamma * np.abs(distances) - np.log1p(fall)
        ahead = np.log1p(-np.exp(behind) * (1.0 - priority * rise))
        return np.asarray(np.where(distances < 0, behind + np.log(fall + priority * rise), ahead))

    def ties(self, num_classes: int) -> tuple[FloatArray, FloatArray]:
        """Returns the Gauss-Legendre rule that is exact for the product of num_classes - 1."""
        points, weights = np.polynomial.legendre.leggauss(num_classes // 2 + 1)
        return (points + 1.0) / 2.0, weights / 2.0


@dataclass(frozen=True)
class GaussianNoise:
    """The normal law of standard deviation sigma; ties have probability zero."""

    sigma: float

    def grid(self, values: IntArray, num_classes: int, total: int) -> Grid:
        """Returns composite Gauss-Legendre points wherever a winning density can be found."""
        top = float(values[-1])
        low = max(float(values[0]), top - 60.0 * self.sigma) - 10.0 * self.sigma
        high = top + 14.0 * self.sigma
        pieces = ceil((high - low) / self.sigma * max(1.0, sqrt(num_classes) / 4.0))
        width = (high - low) / pieces
        points, weights = np.polynomial.legendre.leggauss(NODES)
        starts = low + width * np.arange(pieces)
        grid = (starts[:, None] + (points + 1.0) * width / 2.0).ravel()
        return Grid(grid, np.tile(np.log(weights * width / 2.0), pieces), 0.0)

    def log_density(self, distances: FloatArray) -> FloatArray:
        """Returns the logarithm of the normal density."""
        scaled = distances / self.sigma
        return np.asarray(-(scaled**2) / 2.0 - log(self.sigma * sqrt(2.0 * np.pi)))

    def log_cdf(self, distances: FloatArray, priority: float) -> FloatArray:
        """Returns ln Phi(distances / sigma)."""
        return np.asarray(log_ndtr(distances / self.sigma))

    def ties(self, num_classes: int) -> tuple[FloatArray, FloatArray]:
        """Returns a single point."""
        return np.full(1, 0.5), np.ones(1)


# The law of the noise on one count. `ties` are quadrature points and weights on (0, 1) of the
# priority that breaks a tie; a single point where ties have probability zero.
AdditiveNoise = DiscreteLaplaceNoise | GaussianNoise


class NeighbourOutcomes(NamedTuple):
    """The law of the label at one histogram and at each of its neighbours.

    A column is a group of `multiplicity` classes of equal probability under both laws. The last
    two columns are the class that loses a vote and the class that gains one.

    Attributes:
        here: probability of each class of the group, [num_neighbours, num_groups].
        there: the same at the neighbour.
        multiplicity: classes in the group, [num_neighbours, num_groups].
    """

    here: FloatArray
    there: FloatArray
    multiplicity: FloatArray


def group_outcomes(noise: AdditiveNoise, values: IntArray, multiplicity: IntArray) -> FloatArray:
    """Returns the probability of one class of each group, [num_groups].

    Args:
        noise: the law of the noise on each count.
        values: distinct counts, ascending, [num_groups].
        multiplicity: number of classes with that count, [num_groups].
    """
    behind = values - values[-1]
    num_classes, total = int(np.sum(multiplicity)), int(np.sum(behind * multiplicity))
    grid = noise.grid(behind, num_classes, total)
    distances = grid.points - behind[:, None]
    weighted = noise.log_density(distances) + grid.log_weights
    won = np.full(len(values), grid.below)
    for priority, weight in zip(*noise.ties(num_classes), strict=True):
        cdf = noise.log_cdf(distances, priority)
        won += np.sum(np.exp(weighted + (multiplicity @ cdf - cdf)), axis=1) * weight
    return won


def neighbour_outcomes(
    noise: AdditiveNoise, values: IntArray, multiplicity: IntArray
) -> NeighbourOutcomes:
    """Returns the laws at a histogram and at every neighbour; arguments as in `group_outcomes`.

    Neighbours that differ only in which of several equal classes moves are listed once.
    Where the ratio of two distribution functions overflows, a probability may come out as NaN.
    """
    behind = values - values[-1]
    num_classes, total = int(np.sum(multiplicity)), int(np.sum(behind * multiplicity))
    kinks = np.unique(np.concatenate([behind - 1, behind, behind + 1]))
    grid = noise.grid(kinks, num_classes, total)
    distances = grid.points - behind[:, None]
    weighted = grid.log_weights + noise.log_density(
        np.stack([distances, distances + 1.0, distances - 1.0])
    )
    size = len(values)
    here = np.full(size, grid.below)
    others = np.full((size, size, size), grid.below)
    losers, gainers = np.full((size, size), grid.below), np.full((size, size), grid.below)
    for priority, weight in zip(*noise.ties(num_classes), strict=True):
        cdf, after_loss, after_gain = noise.log_cdf(
            np.stack([distances, distances + 1.0, distances - 1.0]), priority
        )
        won, lost_and_won, gained_and_won = weight * np.exp(weighted + (multiplicity @ cdf - cdf))
        here += np.sum(won, axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            easier, harder = np.exp(after_loss - cdf), np.exp(after_gain - cdf)
            for group in range(size):
                others[group] += (won * easier[group]) @ harder.T
            losers += lost_and_won @ harder.T
            gainers += easier @ gained_and_won.T
    lose, gain = (index.ravel() for index in np.indices((size, size)))
    possible = (values[lose] > 0) & ((lose != gain) | (multiplicity[lose] > 1))
    lose, gain = lose[possible], gain[possible]
    rows = np.arange(len(lose))
    remaining = np.tile(multiplicity.astype(np.float64), (len(lose), 1))
    np.subtract.at(remaining, (rows, lose), 1.0)
    np.subtract.at(remaining, (rows, gain), 1.0)
    moved = np.ones((len(lose), 2))
    return NeighbourOutcomes(
        here=np.column_stack([np.tile(here, (len(lose), 1)), here[lose], here[gain]]),
        there=np.column_stack([others[lose, :, gain], losers[lose, gain], gainers[lose, gain]]),
        multiplicity=np.column_stack([remaining, moved]),
    )


SMALLEST_PROBABILITY = 1e-290


@dataclass(frozen=True)
class NeighbourLaws:
    """Sensitive: the exact laws at a histogram and its neighbours, and how exact they are.

    Attributes:
        outcomes: the laws.
        limit: the mechanism's largest log ratio of any outcome; infinite without one.
        rare: a probability below which underflow may have lost part of it.
        margin: relative excess that covers what the laws leave out of a cost.
    """

    outcomes: NeighbourOutcomes = dataclasses.field(repr=False)
    limit: float = inf
    rare: float = SMALLEST_PROBABILITY
    margin: float = 0.0


def additive_outcomes(counts: IntArray, noise: AdditiveNoise) -> FloatArray:
    """Returns the law of the largest noisy count, [num_queries, num_classes]."""
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    laws = np.empty(rows.shape)
    for row, law in zip(rows, laws, strict=True):
        values, group, multiplicity = np.unique(row, return_inverse=True, return_counts=True)
        law[:] = group_outcomes(noise, values, multiplicity)[group]
    return laws[inverse.ravel()]


def listed_outcomes(row: IntArray, law: Callable[[IntArray], FloatArray]) -> NeighbourOutcomes:
    """Returns the laws at a histogram [num_classes] and at every neighbour, a column a class.

    Args:
        row: int64 [num_classes], at least two classes.
        law: from counts [num_queries, num_classes] to the law of the label, same shape.
    """
    _, first = np.unique(row, return_index=True)
    last = len(row) - 1 - np.unique(row[::-1], return_index=True)[1]
    lose, gain = (index.ravel() for index in np.meshgrid(first, last, indexing="ij"))
    possible = (row[lose] > 0) & (lose != gain)
    lose, gain = lose[possible], gain[possible]
    moves = np.arange(len(lose))
    neighbours = np.tile(row, (len(lose), 1))
    neighbours[moves, lose] -= 1
    neighbours[moves, gain] += 1
    here, there = law(row[None, :]), law(neighbours)
    return NeighbourOutcomes(np.tile(here, (len(lose), 1)), there, np.ones(neighbours.shape))
