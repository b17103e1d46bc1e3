"""Winning probabilities of noisy votes, and the pairwise tails that bound them.

Counts are int64 [num_queries, num_classes]; gaps are differences of counts and may be negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from pate_tf.accounting.divergences import erfc, softmax
from pate_tf.accounting.quadrature import (
    AdditiveNoise,
    FloatArray,
    IntArray,
    NeighbourOutcomes,
    group_outcomes,
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

    outcomes: NeighbourOutcomes
    limit: float = inf
    rare: float = SMALLEST_PROBABILITY
    margin: float = 0.0

    def __repr__(self) -> str:
        return "NeighbourLaws(<of one histogram>)"


def laplace_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns Pr[a class `gaps` votes behind overtakes] under continuous Laplace noise.

    (2 + gamma D) / (4 e^{gamma D}) for D >= 0: Lemma 4 of Papernot et al. 2017. At
    least what the discrete law has if ties go by random priority (docs/theory.md, Proposition D1).
    """
    scaled = gamma * np.abs(gaps)
    ahead = (2.0 + scaled) * np.exp(-scaled) / 4.0
    return np.where(gaps >= 0, ahead, 1.0 - ahead)


def discrete_laplace_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns Pr[a class `gaps` votes behind reaches or overtakes] under discrete Laplace noise.

    Ties count for the class behind, so that every rule of breaking ties is covered
    (docs/theory.md, Proposition D1).
    """

    def reach(distance: FloatArray) -> FloatArray:
        fall = np.exp(-gamma)
        spread = (1.0 + fall + 2.0 * fall**2) / (1.0 + fall)
        linear = (spread - np.expm1(-gamma) * distance) / (1.0 + fall) ** 2
        return np.asarray(np.exp(-gamma * distance) * linear)

    behind = reach(np.maximum(gaps, 0.0))
    ahead = 1.0 - reach(np.maximum(1.0 - gaps, 1.0))
    return np.where(gaps >= 0, behind, ahead)


def exponential_noise_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns Pr[a class `gaps` votes behind overtakes] for permute-and-flip."""
    ahead = np.exp(-gamma * np.abs(gaps)) / 2.0
    return np.where(gaps >= 0, ahead, 1.0 - ahead)


def gumbel_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns Pr[a class `gaps` votes behind overtakes] for the exponential mechanism."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(gamma * gaps))


def gaussian_tail(gaps: FloatArray, sigma: float) -> FloatArray:
    """Returns erfc(D / (2 sigma)) / 2, Pr[a class `gaps` votes behind overtakes]."""
    return np.asarray(erfc(gaps / (2.0 * sigma)) / 2.0)


def additive_outcomes(counts: IntArray, noise: AdditiveNoise) -> FloatArray:
    """Returns the law of the largest noisy count, [num_queries, num_classes]."""
    rows, inverse = np.unique(counts, axis=0, return_inverse=True)
    laws = np.empty(rows.shape)
    for row, law in zip(rows, laws, strict=True):
        values, group, multiplicity = np.unique(row, return_inverse=True, return_counts=True)
        law[:] = group_outcomes(noise, values, multiplicity)[group]
    return laws[inverse.ravel()]


def permute_and_flip_outcomes(counts: IntArray, gamma: float) -> FloatArray:
    """Returns w_j int_0^1 prod_{k != j} (1 - w_k t) dt, w = e^{-gamma (max - count)}.

    Gauss-Legendre, exact for a polynomial of that degree (docs/theory.md, Proposition D2).
    """
    behind = counts - np.max(counts, axis=1, keepdims=True)
    accepted = np.exp(gamma * behind)
    points, weights = np.polynomial.legendre.leggauss(counts.shape[1] // 2 + 1)
    law = np.zeros(counts.shape)
    for point, weight in zip((points + 1.0) / 2.0, weights / 2.0, strict=True):
        passed = np.log1p(-accepted * point)
        law += weight * np.exp(np.sum(passed, axis=1, keepdims=True) - passed)
    return np.asarray(accepted * law)


def exponential_mechanism_outcomes(counts: IntArray, gamma: float) -> FloatArray:
    """Returns e^{gamma n_j} / sum_k e^{gamma n_k}, [num_queries, num_classes]."""
    return np.asarray(softmax(gamma * counts, axis=1))


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
