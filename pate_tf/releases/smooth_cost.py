"""The eta-smooth cost, whose logarithm has a global sensitivity (docs/theory.md, Theorem B2)."""

from __future__ import annotations

from math import exp, log

import numpy as np

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import query_costs, vote_reach
from pate_tf.releases.neighbourhoods import ball_maxima, distinct_histograms, tail_table
from pate_tf.values.arrays import IntArray


def log_smooth_cost(
    counts: IntArray,
    mechanism: Mechanism,
    *,
    bound: str,
    moment: float,
    eta: float,
    floor: float,
) -> float:
    """Returns ln Cbar of Theorem B2, in natural logarithms. Sensitive.

    Cbar = max(floor, max_k e^{-eta k} K_k), K_k = sum_i of the cost at the largest q and u within k
    changes of vote.

    Formal guarantee (Theorem B2), for non-adaptive queries and up to rounding errors, which the
    caller covers: Cbar is at least the total cost, and ln Cbar changes by at most eta between
    neighbours. It needs a cost that is nondecreasing in q and u, and nested balls. Gaussian noise
    has both: the formula is nondecreasing in q (Proposition D5), and the two-sided cost is
    that formula at qmax_1, so that K_k reads qmax_{k+1}, which is nested like qmax_k.

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: a mechanism with noise.
        bound: "paper", "tight", "two_sided" or "class_aware", as the mechanism has it.
        moment: l > 0, the Renyi order less one.
        eta: the sensitivity, above 0.
        floor: c_0 > 0, a public constant.

    Raises:
        ValueError: if the mechanism has no such bound, or a row lacks a teacher's vote.
    """
    histograms = distinct_histograms(counts)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    reach = vote_reach(bound, mechanism)
    moments = np.array([moment])
    cap = query_costs(bound, mechanism, np.ones(1), np.ones(1), moments)[0, 0]
    ceiling = histograms.num_queries * float(cap)
    at_once = histograms.steps_at_once()
    best = floor
    for start in range(0, histograms.num_teachers + 1, at_once):
        if exp(-eta * start) * ceiling <= best:
            break
        steps = np.arange(start, min(start + at_once, histograms.num_teachers + 1))
        q, u = ball_maxima(histograms.rows, steps + reach, tail)
        costs = query_costs(bound, mechanism, q.reshape(-1), u.reshape(-1), moments)
        totals = costs[:, 0].reshape(q.shape) @ histograms.weights
        best = max(best, float(np.max(np.exp(-eta * steps) * totals)))
    return log(best)
