"""Releases of the data-dependent cost under a plan that was fixed before the votes were read.

| release | what is published | privacy.md | guarantee |
|---|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | 3, B2 | instance |
| `gate` | the same, and whether it is within a public budget | 3, B3 | worst case |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | 3, B1 | instance |

Instance: with probability at least `confidence` over the noise of the release, the true data and
all its neighbours satisfy the (epsilon, delta) inequalities for everything published, the epsilon
itself included (both directions of each if the plan's bound is two-sided, else the loss under the
true data alone). Worst case: ordinary (epsilon, delta)-differential privacy on all data.

`log_cost` and `gate` work in integers once the cost is computed, so no floating-point noise is
published; prefer them to `smooth_sensitivity`, which costs more besides. Two releases from the
same votes compose: both costs count. A `LogCost` gives both its epsilon and its gate for one cost.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from math import ceil, exp, floor, isfinite, log

import numpy as np

from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    check_delta,
    epsilon_from_alphas,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.accounting.plan import ReleasePlan, steps_above
from pate_tf.accounting.smooth_cost import log_smooth_cost
from pate_tf.accounting.smooth_sensitivity import smooth_sensitivity
from pate_tf.records import IntArray

DiscreteGaussian = Callable[[float], int]

_FINE_BITS = 55  # lattice of 2^-55 standard deviations for the noise of `smooth_sensitivity`
_COARSE = 2.0**14  # published values per unit of Renyi divergence


@dataclasses.dataclass(frozen=True, kw_only=True)
class SanitisedEpsilon:
    """Publishable: an epsilon that covers the labels and itself.

    Attributes:
        epsilon: in natural logarithms.
        delta: the delta that it holds at.
        confidence: least probability, over the noise of the release, that it is not too low.
        plan: what was fixed before the votes were read.
        worst_case_epsilon: of labels and release together, on all data: once this is published,
            the data-independent epsilon of the labels alone no longer says it all.
    """

    epsilon: float
    delta: float
    confidence: float
    plan: ReleasePlan
    worst_case_epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateDecision:
    """Publishable: whether the labels may be released, under a guarantee that holds either way.

    Attributes:
        passed: release the noisy labels if so; else release nothing, or the fallback.
        epsilon: the worst case for all data, passed or not.
        delta: its delta in total: that of the conversion and the failures of all attempts.
        plan: what was fixed before the votes were read.
    """

    passed: bool
    epsilon: float
    delta: float
    plan: ReleasePlan


def _total_cap(mechanism: Mechanism, plan: ReleasePlan) -> float:
    moments = np.array([plan.moment])
    return float(mechanism.data_independent_alpha(moments, num_queries=plan.num_queries)[0])


def _sanitised(
    alpha: float,
    mechanism: Mechanism,
    plan: ReleasePlan,
    delta: float,
) -> SanitisedEpsilon:
    """Returns the smaller epsilon of a noisy cost at the plan's moment and of the worst case.

    The worst case of labels and release together holds always and may use any moment.
    """
    total = min(alpha, _total_cap(mechanism, plan)) + plan.release_alpha(plan.moment)
    worst = mechanism.data_independent_alpha(DEFAULT_MOMENTS, num_queries=plan.num_queries)
    worst = worst + plan.release_alphas(DEFAULT_MOMENTS)
    worst_epsilon, _ = epsilon_from_alphas(worst * (1.0 + SAFETY_MARGIN), DEFAULT_MOMENTS, delta)
    return SanitisedEpsilon(
        epsilon=min(_epsilon(total, plan, delta), worst_epsilon),
        delta=delta,
        confidence=1.0 - plan.failure,
        plan=plan,
        worst_case_epsilon=worst_epsilon,
    )


def _epsilon(alpha: float, plan: ReleasePlan, delta: float) -> float:
    return epsilon_from_alphas([alpha * (1.0 + SAFETY_MARGIN)], [plan.moment], delta)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogCost:
    """Publishable: an upper bound on the logarithm of the cost, noisy, in whole steps.

    The whole value costs moment (moment + 1) / (2 sigma^2) (Theorem B2); everything read from it
    is free.

    Attributes:
        steps: Y + discrete Gaussian of scale plan.sigma, Y = ceil(ln Cbar / plan.step).
        mechanism: the mechanism of the labels.
        plan: what was fixed before the votes were read.
    """

    steps: int
    mechanism: Mechanism
    plan: ReleasePlan

    @property
    def _upper_steps(self) -> int:
        """Below Y with probability at most plan.failure."""
        return self.steps + steps_above(self.plan.sigma, self.plan.failure)

    def sanitised_epsilon(self, delta: float) -> SanitisedEpsilon:
        """Returns the epsilon of the labels and of this value together (B2).

        Raises:
            ValueError: unless 0 < delta < 1.
        """
        alpha = exp(min(self.plan.step * self._upper_steps, 700.0))
        return _sanitised(alpha, self.mechanism, self.plan, delta)

    def gate(self, delta: float, *, attempts: int = 1, fallback_alpha: float = 0.0) -> GateDecision:
        """Returns whether the upper bound is within the plan's budget (B3).

        Args:
            delta: total; the conversion gets what attempts * plan.failure leaves of it.
            attempts: gates run on these votes in all, with plans alike; each one's noise and
                failure count.
            fallback_alpha: cost at the plan's moment of what is released if the last one fails.

        Raises:
            ValueError: as `gate_epsilon`.
        """
        epsilon = gate_epsilon(
            self.mechanism,
            self.plan,
            delta,
            attempts=attempts,
            fallback_alpha=fallback_alpha,
        )
        passed = self._upper_steps <= floor(log(self.plan.gate_budget) / self.plan.step)
        return GateDecision(passed=passed, epsilon=epsilon, delta=delta, plan=self.plan)


def gate_epsilon(
    mechanism: Mechanism,
    plan: ReleasePlan,
    delta: float,
    *,
    attempts: int = 1,
    fallback_alpha: float = 0.0,
) -> float:
    """Returns the epsilon of the gate on all data, before any vote is read (Theorem B3).

    At total delta, from alpha = max(budget, fallback_alpha) + attempts l (l+1) / (2 sigma^2) at
    delta - attempts failure. Labels never cost more than their data-independent alpha, so a budget
    above that counts as that.

    Several attempts: for a pair of neighbours of which one costs at most the budget, whatever is
    released costs at most the larger alpha. If both cost more, no gate passes but with probability
    attempts * failure, and otherwise the output is a function of the noisy costs and the fallback.

    Raises:
        ValueError: if the plan is not for a gate, delta is outside (0, 1) or not above
            attempts * plan.failure, attempts < 1 or fallback_alpha < 0.
    """
    plan.check_mechanism(mechanism)
    check_delta(delta)
    if attempts < 1:
        raise ValueError(f"expected attempts >= 1, got {attempts}")
    if not fallback_alpha >= 0.0:
        raise ValueError(f"expected fallback_alpha >= 0, got {fallback_alpha}")
    budget = min(plan.gate_budget, _total_cap(mechanism, plan))
    if not delta > attempts * plan.failure:
        raise ValueError(
            f"expected delta above {attempts} x the failure probability {plan.failure}, got {delta}"
        )
    alpha = max(budget, fallback_alpha) + attempts * plan.release_alpha(plan.moment)
    return _epsilon(alpha, plan, (delta - attempts * plan.failure) * (1.0 - SAFETY_MARGIN))


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
    if not isfinite(_total_cap(mechanism, plan)):
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
    """Computes the smooth cost, which may take long, and returns what draws from it (B2 and B3).

    Y = ceil(ln Cbar / step) changes by at most 1 between neighbours, so that a discrete Gaussian
    of scale sigma costs lambda / (2 sigma^2) at every Renyi order (Canonne, Kamath and Steinke
    2020, Theorem 4).

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: the mechanism that draws the labels.
        plan: fixed before the votes were read.
        adaptive: whether queries were chosen by looking at earlier noisy labels.

    Returns:
        SENSITIVE: a function to be called once, with what draws from the discrete Gaussian of the
        scale it is given, in production `pate_tf.aggregation.noise`.

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
    """Returns what draws an epsilon that may be published: B2, or B1 if the plan says so.

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
    """B1, with a Gaussian on a lattice so fine that only float rounding remains.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 move it across
    a point of the grid with a probability that the public floor under U keeps at about 1e-9; delta
    does not count it.
    """
    moment = plan.moment
    cap = _total_cap(mechanism, plan)
    cost = float(data_dependent_alphas(counts, mechanism, np.array([moment]), bound=plan.bound)[0])
    sensitivity = smooth_sensitivity(
        counts, mechanism, moment=moment, beta=plan.smoothness, bound=plan.bound
    )
    sensitivity = sensitivity * (1.0 + SAFETY_MARGIN) + 1e-6 * cap

    def draw(noise: DiscreteGaussian) -> SanitisedEpsilon:
        normal = _fine_normal(noise)
        divergence = (cost + plan.sigma * sensitivity * (normal + plan.shift)) / moment
        published = max(0.0, ceil(divergence * _COARSE) / _COARSE)
        return _sanitised(moment * published, mechanism, plan, delta)

    return draw
