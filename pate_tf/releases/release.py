"""Releases of the data-dependent cost under a plan that was fixed before the votes were read.

| release | what is published | guarantee |
|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | instance |
| `gate` | the same, and whether it is within a public budget | worst case |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | instance |

They rest, in this order, on docs/theory.md, Theorem B2, Theorem B3 and Theorem B1.

Instance: with probability at least `confidence` over the noise of the one release, the true data
and each of its neighbours, and no other pairs, satisfy the (epsilon, delta) inequalities for
everything published, the epsilon itself included (both directions of each if the plan's bound is
two-sided, else the loss under the true data alone). Worst case: ordinary (epsilon,
delta)-differential privacy on all data.

`log_cost` and `gate` work in integers once the cost is computed, so no floating-point noise is
published; prefer them to `smooth_sensitivity`, which costs more besides. Two releases from the
same votes compose: both costs count. A `LogCost` gives both its epsilon and its gate for one cost.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import ceil, isfinite

import numpy as np

from pate_tf.accounting.conversions import (
    SAFETY_MARGIN,
    check_delta,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.accounting.release_plan import ReleasePlan
from pate_tf.releases.results import LogCost, SanitisedEpsilon, sanitised, total_cap
from pate_tf.releases.smooth_cost import log_smooth_cost
from pate_tf.releases.smooth_sensitivity import smooth_sensitivity
from pate_tf.values.arrays import IntArray

DiscreteGaussian = Callable[[float], int]

_FINE_BITS = 55  # lattice of 2^-55 standard deviations for the noise of `smooth_sensitivity`
_COARSE = 2.0**14  # published values per unit of Renyi divergence


def _check_release(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, *, adaptive: bool
) -> None:
    """Raises ValueError, whatever the votes, if the plan does not fit what is to be released."""
    if adaptive:
        raise ValueError(
            "expected queries chosen without looking at noisy labels, got adaptive ones; "
            "account for them data-independently"
        )
    plan.check_mechanism(mechanism)
    if len(counts) != plan.num_queries:
        raise ValueError(f"expected the {plan.num_queries} queries planned, got {len(counts)}")
    if not isfinite(total_cap(mechanism, plan)):
        raise ValueError(f"expected a finite cost at moment {plan.moment}, got an infinite one")


def release_log_cost(
    counts: IntArray,
    mechanism: Mechanism,
    plan: ReleasePlan,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> LogCost:
    """Draws the noisy logarithm of the smooth cost, once: `prepare_log_cost`, and its draw."""
    return prepare_log_cost(counts, mechanism, plan, adaptive=adaptive)(noise)


def prepare_log_cost(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, *, adaptive: bool
) -> Callable[[DiscreteGaussian], LogCost]:
    """Computes the smooth cost, which may take long, and returns what draws from it.

    Y = ceil(ln Cbar / step) changes by at most 1 between neighbours, so that a discrete Gaussian
    of scale sigma costs lambda / (2 sigma^2) at every Renyi order (Theorem B2).

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: the mechanism that draws the labels.
        plan: fixed before the votes were read.
        adaptive: whether queries were chosen by looking at earlier noisy labels.

    Returns:
        SENSITIVE: a function to be called once, with what draws from the discrete Gaussian of the
        scale it is given, in production `pate_tf.noise`.

    Raises:
        ValueError: for adaptive queries, or a plan for other queries, mechanisms or releases.
    """
    _check_release(counts, mechanism, plan, adaptive=adaptive)
    if plan.release == "smooth_sensitivity":
        raise ValueError(f"expected a plan for a noisy log cost, got one for {plan.release!r}")
    exact = log_smooth_cost(
        counts,
        mechanism,
        bound=plan.bound,
        moment=plan.moment,
        eta=plan.smoothness,
        floor=plan.cost_floor,
    )
    exact_steps = ceil((exact + SAFETY_MARGIN) / plan.step)

    def draw(noise: DiscreteGaussian) -> LogCost:
        steps = exact_steps + operator.index(noise(plan.sigma))
        return LogCost(steps=steps, mechanism=mechanism, plan=plan)

    return draw


def release_epsilon(
    counts: IntArray,
    mechanism: Mechanism,
    plan: ReleasePlan,
    delta: float,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> SanitisedEpsilon:
    """Draws an epsilon that may be published: `prepare_epsilon`, and its draw."""
    return prepare_epsilon(counts, mechanism, plan, delta, adaptive=adaptive)(noise)


def prepare_epsilon(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, delta: float, *, adaptive: bool
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Returns what draws an epsilon that may be published: Theorem B2, or B1 if the plan says so.

    Args, result and errors: as `prepare_log_cost`; and ValueError unless 0 < delta < 1.
    """
    check_delta(delta)
    if plan.release == "smooth_sensitivity":
        _check_release(counts, mechanism, plan, adaptive=adaptive)
        return _prepare_by_smooth_sensitivity(counts, mechanism, plan, delta)
    draw = prepare_log_cost(counts, mechanism, plan, adaptive=adaptive)
    return lambda noise: draw(noise).sanitised_epsilon(delta)


def _fine_normal(noise: DiscreteGaussian) -> float:
    """Returns a normal variable, of two draws because a source may limit the scale of one.

    The second draw has eight lattice steps of the first as its standard deviation and so fills the
    lattice up; it makes the variance larger by 2^-54.
    """
    rough, fill = operator.index(noise(2.0**30)), operator.index(noise(2.0**28))
    return ((rough << (_FINE_BITS - 30)) + fill) / 2.0**_FINE_BITS


def _prepare_by_smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, delta: float
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Theorem B1, with a Gaussian on a lattice so fine that only float rounding remains.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 move it across
    a point of the grid with a probability that the public floor under U keeps at about 1e-9; delta
    does not count it.
    """
    moment = plan.moment
    cap = plan.num_queries * float(mechanism.cost_cap(np.array([moment]))[0])
    cost = float(data_dependent_alphas(counts, mechanism, np.array([moment]), bound=plan.bound)[0])
    sensitivity = smooth_sensitivity(
        counts, mechanism, moment=moment, beta=plan.smoothness, bound=plan.bound
    )
    sensitivity = sensitivity * (1.0 + SAFETY_MARGIN) + 1e-6 * cap

    def draw(noise: DiscreteGaussian) -> SanitisedEpsilon:
        normal = _fine_normal(noise)
        divergence = (cost + plan.sigma * sensitivity * (normal + plan.shift)) / moment
        published = max(0.0, ceil(divergence * _COARSE) / _COARSE)
        return sanitised(moment * published, mechanism, plan, delta)

    return draw
