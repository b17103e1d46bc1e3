"""Exact two-sided moments: outcome probabilities at the counts and at every neighbour."""

from __future__ import annotations

from math import exp, inf

import numpy as np

from pate_tf.accounting.divergences import FloatArray, excess
from pate_tf.accounting.mechanisms import (
    LATTICE,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    PureNoisyMax,
)
from pate_tf.accounting.quadrature import IntArray, NeighbourOutcomes, neighbour_outcomes

SMALLEST_PROBABILITY = 1e-290


def exact_costs(row: IntArray, mechanism: Mechanism, moments: FloatArray) -> FloatArray:
    """Returns the two-sided cost of one query, [num_moments]: the worst neighbour at each moment.

    The law of the discrete Laplace mechanism breaks ties by random priority, so that the order of
    the classes does not matter. For `GaussianNoisyMax` the law is the continuous one; the sampler's
    lattice and its ties move a log ratio by at most about one step in LATTICE relative to one
    vote, which a relative margin of 16 steps covers. Capped at the data-independent cost, also
    where a probability is too small to compare.

    Args:
        row: int64 [num_classes], at least two classes.
        mechanism: `LaplaceNoisyMax`, `PermuteAndFlip`, `ExponentialMechanism` or
            `GaussianNoisyMax`.
        moments: [num_moments].
    """
    values, multiplicity = np.unique(row, return_counts=True)
    margin, limit, rare = 0.0, inf, SMALLEST_PROBABILITY
    if isinstance(mechanism, PureNoisyMax):
        limit = 2.0 * mechanism.gamma
    if isinstance(mechanism, LaplaceNoisyMax):
        laws = neighbour_outcomes(mechanism.noise, values, multiplicity)
        rare *= exp(min(mechanism.gamma, 700.0))
    elif isinstance(mechanism, GaussianNoisyMax):
        laws = neighbour_outcomes(mechanism.noise, values, multiplicity)
        step = 1.0 / mechanism.sigma
        rare *= exp(min(80.0 * step + step**2, 700.0))
        margin = 16.0 / LATTICE
    else:
        laws = _listed_outcomes(row, mechanism)
    forward, reverse = directed_alphas(laws, moments, limit=limit, rare=rare)
    costs = np.maximum(forward, reverse) * (1.0 + margin)
    return np.asarray(np.fmin(costs, mechanism.query_alpha(moments)))


def _listed_outcomes(row: IntArray, mechanism: Mechanism) -> NeighbourOutcomes:
    """Returns the laws at every neighbour, one column for each class."""
    _, first = np.unique(row, return_index=True)
    last = len(row) - 1 - np.unique(row[::-1], return_index=True)[1]
    lose, gain = (index.ravel() for index in np.meshgrid(first, last, indexing="ij"))
    possible = (row[lose] > 0) & (lose != gain)
    lose, gain = lose[possible], gain[possible]
    moves = np.arange(len(lose))
    neighbours = np.tile(row, (len(lose), 1))
    neighbours[moves, lose] -= 1
    neighbours[moves, gain] += 1
    here = mechanism.outcome_probabilities(row[None, :])
    there = mechanism.outcome_probabilities(neighbours)
    return NeighbourOutcomes(np.tile(here, (len(lose), 1)), there, np.ones(neighbours.shape))


def directed_alphas(
    laws: NeighbourOutcomes, moments: FloatArray, *, limit: float, rare: float
) -> tuple[FloatArray, FloatArray]:
    """Returns (forward, reverse): the largest alpha of each direction, [num_moments] each.

    Args:
        laws: outcome probabilities here and at each neighbour.
        moments: [num_moments].
        limit: the mechanism's largest log ratio of any outcome, or infinity.
        rare: a probability below which underflow may have lost part of it. An outcome that is
            rarer on either side counts with probability at least `rare` and log ratio `limit`.
    """
    here, there, multiplicity = laws
    if not len(here):
        return np.zeros_like(moments), np.zeros_like(moments)
    doubtful = ~(np.minimum(here, there) >= rare)
    here = np.where(doubtful, np.fmax(here, rare), here)
    there = np.where(doubtful, np.fmax(there, rare), there)
    ratio = _log_probability(there, multiplicity) - _log_probability(here, multiplicity)
    best = []
    for law, log_ratio in ((there, -ratio), (here, ratio)):
        terms = excess(np.where(doubtful, limit, log_ratio)[:, :, None], moments)
        mass = (multiplicity * law)[:, :, None]
        terms = np.multiply(terms, mass, out=np.zeros_like(terms), where=mass != 0.0)
        best.append(np.log1p(np.max(np.sum(terms, axis=1), axis=0)))
    return best[0], best[1]


def _log_probability(law: FloatArray, multiplicity: FloatArray) -> FloatArray:
    """Returns ln of each probability, through the probability of the rest where it is large."""
    large = law > 0.75
    rest = np.sum(np.where(large, 0.0, law * multiplicity), axis=1, keepdims=True)
    return np.where(large, np.log1p(-np.minimum(rest, 0.25)), np.log(law))
