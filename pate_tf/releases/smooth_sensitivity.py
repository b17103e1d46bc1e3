"""Smooth sensitivity of the data-dependent cost (docs/theory.md, Theorem A).

How much the total cost C_l(V) = sum_i psi_l(q(n_i)) can change when one record is replaced, at the
votes at hand and, discounted by e^{-beta d}, at all votes d teachers away. All results are
sensitive: only a release (see `release`) may leave the house.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, inf

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import query_costs
from pate_tf.accounting.release_plan import check_smooth_sensitivity
from pate_tf.releases.neighbourhoods import (
    BallMinima,
    DistinctHistograms,
    ball_maxima,
    distinct_histograms,
    tail_table,
)
from pate_tf.values.arrays import IntArray

_ROUNDING_DOWN = 1.0 - 1e-14
_PIECES = 64


def _costs(bound: str, mechanism: Mechanism, q: FloatArray, moment: float) -> FloatArray:
    """Returns psi_l(q) of any shape of q."""
    flat = q.reshape(-1)
    costs = query_costs(bound, mechanism, flat, flat, np.array([moment]))
    return np.asarray(costs[:, 0].reshape(q.shape))


def flat_from(bound: str, mechanism: Mechanism, moment: float) -> float:
    """Returns q0 of Lemma 3, rounded down: from q0 on the cost of a query is its cap.

    Rounding down is the safe side: it lowers the lower end of (A1) in Theorem A.
    """
    pure_epsilon = check_smooth_sensitivity(bound, mechanism)
    cap = _costs(bound, mechanism, np.ones(1), moment)[0]
    low, high = 0.0, 1.0 / (1.0 + exp(min(pure_epsilon, 700.0)))
    while True:
        between = np.linspace(low, high, _PIECES + 1)[1:-1]
        below = between[_costs(bound, mechanism, between, moment) < cap]
        raised = float(np.max(below, initial=low))
        lowered = float(np.min(between[between > raised], initial=high))
        if (raised, lowered) == (low, high):
            break
        low, high = raised, lowered
    return low * _ROUNDING_DOWN


class _Slopes:
    """LSbar_d of Theorem A, (A1), for one bound, mechanism and moment."""

    def __init__(self, bound: str, mechanism: Mechanism, moment: float) -> None:
        self._bound, self._mechanism, self._moment = bound, mechanism, moment
        self._shrink = exp(-check_smooth_sensitivity(bound, mechanism))
        self._flat_from = flat_from(bound, mechanism, moment)
        ends = np.array([1.0, self._flat_from * self._shrink])
        cap, lowest = _costs(bound, mechanism, ends, moment)
        self.largest = float(cap - lowest)

    def __call__(self, q_max: FloatArray, q_min: FloatArray) -> FloatArray:
        low = np.maximum(np.minimum(self._flat_from, q_max) * self._shrink, q_min)
        difference = _costs(self._bound, self._mechanism, q_max, self._moment)
        difference -= _costs(self._bound, self._mechanism, low, self._moment)
        return np.maximum(difference, 0.0)


def _weighted_sensitivities(
    histograms: DistinctHistograms, slopes: _Slopes, tail: FloatArray
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yields distances d and sum_i LSbar_d(n_i), d rising, each [num_distances]."""
    minima = BallMinima(histograms.rows, tail)
    at_once = histograms.steps_at_once()
    for start in range(0, histograms.num_teachers, at_once):
        distances = np.arange(start, min(start + at_once, histograms.num_teachers))
        q_max, _ = ball_maxima(histograms.rows, distances + 1, tail)
        yield distances, slopes(q_max, minima.next(len(distances))) @ histograms.weights


def local_sensitivities(
    counts: IntArray, mechanism: Mechanism, *, moment: float, bound: str
) -> FloatArray:
    """Returns sum_i LSbar_d(n_i) for d = 0 .. num_teachers - 1, [num_teachers]. Sensitive.

    Formal guarantee (Theorem A, a): no less than the change of the total cost between two
    neighbouring vote tables, of which one is at most d teachers away from the true one.

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: a mechanism with a gamma.
        moment: l > 0, the Renyi order less one.
        bound: "paper", "tight" or "two_sided".

    Raises:
        ValueError: as `smooth_sensitivity`.
    """
    check_smooth_sensitivity(bound, mechanism)
    histograms = distinct_histograms(counts)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    parts = _weighted_sensitivities(histograms, _Slopes(bound, mechanism, moment), tail)
    return np.concatenate([totals for _, totals in parts])


def smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, *, moment: float, beta: float, bound: str
) -> float:
    """Returns U_beta of Theorem A for the total cost at one moment, natural log units. Sensitive.

    Formal guarantee (Theorem A): U_beta is at least the beta-smooth sensitivity of C_l, and
    U_beta(V) <= e^beta U_beta(V') for neighbours V and V', up to rounding; `release` adds the
    margin that covers it. Divide by the moment for the Renyi divergence of order l + 1.

    | at the edge | result |
    |---|---|
    | one class | 0: the label is known |
    | gamma so large that every cost overflows to its cap | 0: the computed cost can't change |
    | every vote table in reach has the capped cost | 0: the cost can't change |

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: a mechanism with a gamma.
        moment: l > 0, the Renyi order less one.
        beta: rate of the discount, above 0, chosen without looking at the counts.
        bound: "paper", "tight" or "two_sided".

    Raises:
        ValueError: if beta or the moment is not positive, the bound has no smooth sensitivity (see
            `check_smooth_sensitivity`) or the counts are refused (`distinct_histograms`).
    """
    for name, value in (("moment", moment), ("beta", beta)):
        if not 0.0 < value < inf:
            raise ValueError(f"expected {name} > 0 and finite, got {value}")
    check_smooth_sensitivity(bound, mechanism)
    histograms = distinct_histograms(counts)
    tail = tail_table(bound, mechanism, histograms.num_teachers)
    slopes = _Slopes(bound, mechanism, moment)
    ceiling = histograms.num_queries * slopes.largest
    best = 0.0
    for distances, totals in _weighted_sensitivities(histograms, slopes, tail):
        best = max(best, float(np.max(np.exp(-beta * distances) * totals)))
        if exp(-beta * (int(distances[-1]) + 1)) * ceiling <= best:
            break
    return best
