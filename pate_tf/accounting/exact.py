"""Exact two-sided moments: outcome probabilities at the counts and at every neighbour.

docs/theory.md, Proposition X1, says what is exact, and what a margin covers.
"""

from __future__ import annotations

import numpy as np

from pate_tf.accounting.divergences import FloatArray, excess
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.quadrature import IntArray, NeighbourOutcomes


def exact_costs(row: IntArray, mechanism: Mechanism, moments: FloatArray) -> FloatArray:
    """Returns the two-sided cost of one query, [num_moments]: the worst neighbour at each moment.

    Capped at the data-independent cost, also where a probability is too small to compare.

    Args:
        row: int64 [num_classes], at least two classes.
        mechanism: one with the bound "exact".
        moments: [num_moments].
    """
    laws = mechanism.neighbour_laws(row)
    forward, reverse = directed_alphas(laws.outcomes, moments, limit=laws.limit, rare=laws.rare)
    costs = np.maximum(forward, reverse) * (1.0 + laws.margin)
    return np.asarray(np.fmin(costs, mechanism.cost_cap(moments)))


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
