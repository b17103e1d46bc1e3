"""What a release publishes, and what that promises: an epsilon, or whether a gate passed.

What they rest on is said in `pate_tf.analysis.release`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import exp, floor, inf, log
from typing import Any

import numpy as np

from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    epsilon_from_alphas,
)
from pate_tf.accounting.cost_release import CostRelease, release_from_dict, steps_above
from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.core import validation


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
    plan: CostRelease
    worst_case_epsilon: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateDecision:
    """Publishable: whether the labels may be released, under a guarantee that holds either way.

    A form of propose-test-release (Dwork and Lei 2009): the cost is tested, the labels released.

    Attributes:
        passed: release the noisy labels if so; else release nothing, or the fallback.
        epsilon: the worst case for all data, passed or not.
        delta: its delta in total: that of the conversion and the failures of all attempts.
        plan: what was fixed before the votes were read.
    """

    passed: bool
    epsilon: float
    delta: float
    plan: CostRelease


def total_cap(mechanism: Mechanism, plan: CostRelease) -> float:
    """Returns what the labels cost at most at the plan's moment, whatever the votes."""
    moments = np.array([plan.moment])
    return float(total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, moments)[0])


def sanitised(
    alpha: float,
    mechanism: Mechanism,
    plan: CostRelease,
    delta: float,
) -> SanitisedEpsilon:
    """Returns the smaller epsilon of a noisy cost at the plan's moment and of the worst case.

    The worst case of labels and release together holds always and may use any moment.
    """
    total = min(alpha, total_cap(mechanism, plan)) + plan.alpha(plan.moment)
    worst = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, DEFAULT_MOMENTS)
    worst = worst + plan.alphas(DEFAULT_MOMENTS)
    worst_epsilon, _ = epsilon_from_alphas(worst * (1.0 + SAFETY_MARGIN), DEFAULT_MOMENTS, delta)
    return SanitisedEpsilon(
        epsilon=min(_epsilon(total, plan, delta), worst_epsilon),
        delta=delta,
        confidence=1.0 - plan.failure,
        plan=plan,
        worst_case_epsilon=worst_epsilon,
    )


def _epsilon(alpha: float, plan: CostRelease, delta: float) -> float:
    return epsilon_from_alphas([alpha * (1.0 + SAFETY_MARGIN)], [plan.moment], delta)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogCost:
    """Publishable: an upper bound on the logarithm of the cost, noisy, in whole steps.

    The whole value costs moment (moment + 1) / (2 sigma^2) (Theorem B2); everything read from it
    is free.

    Attributes:
        steps: Y + discrete Gaussian of scale plan.sigma, Y = ceil(ln Cbar / plan.step). Not shown
            by `repr`: it is sensitive until it is published.
        mechanism: the mechanism of the labels.
        plan: what was fixed before the votes were read.
    """

    steps: int = dataclasses.field(repr=False)
    mechanism: Mechanism
    plan: CostRelease

    @property
    def _upper_steps(self) -> int:
        """Below Y with probability at most plan.failure."""
        return self.steps + steps_above(self.plan.sigma, self.plan.failure)

    def sanitised_epsilon(self, delta: float) -> SanitisedEpsilon:
        """Returns the epsilon of the labels and of this value together (Theorem B2).

        Raises:
            ValueError: unless 0 < delta < 1.
        """
        alpha = exp(min(self.plan.step * self._upper_steps, 700.0))
        return sanitised(alpha, self.mechanism, self.plan, delta)

    def gate(self, delta: float, *, attempts: int = 1, fallback_alpha: float = 0.0) -> GateDecision:
        """Returns whether the upper bound is within the plan's budget (Theorem B3).

        Args:
            delta: total; the conversion gets what attempts * plan.failure leaves of it.
            attempts: gates run on these votes in all, with equal plans; each one's noise and
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
    plan: CostRelease,
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
    validation.between(0, 1, delta=delta)
    validation.whole(1, attempts=attempts)
    validation.between(0, inf, ends="[]", fallback_alpha=fallback_alpha)
    budget = min(plan.gate_budget, total_cap(mechanism, plan))
    if not delta > attempts * plan.failure:
        raise ValueError(
            f"expected delta above {attempts} x the failure probability {plan.failure}, got {delta}"
        )
    alpha = max(budget, fallback_alpha) + attempts * plan.alpha(plan.moment)
    return _epsilon(alpha, plan, (delta - attempts * plan.failure) * (1.0 - SAFETY_MARGIN))


# What a stored draw says of the cost of labels, without drawing again.


def sanitised_epsilon(drawn: Mapping[str, Any], *, delta: float, spent: float) -> SanitisedEpsilon:
    """Returns the epsilon that a stored draw gives.

    Args:
        drawn: as `Ledger.stored_release` returns it.
        delta: what it is to hold at; a draw by smooth sensitivity has its own and holds at that.
        spent: data-independent, at `delta`, of all that the ledger charged; 0 without one.
    """
    key = drawn["key"]
    if key["delta"] is None:
        found = log_cost(drawn).sanitised_epsilon(delta)
    else:
        plan = release_from_dict(key["plan"])
        found = SanitisedEpsilon(delta=key["delta"], plan=plan, **drawn["drawn"])
    # Those who saw an earlier draw could choose, so every draw may fail.
    return dataclasses.replace(
        found,
        confidence=max(0.0, 1.0 - drawn["failure"]),
        worst_case_epsilon=max(found.worst_case_epsilon, spent),
    )


def log_cost(drawn: Mapping[str, Any]) -> LogCost:
    """Returns the noisy logarithm of the cost that was drawn, of all but smooth sensitivity."""
    return LogCost(
        steps=drawn["drawn"]["steps"],
        mechanism=mechanism_from_dict(drawn["key"]["mechanism"]),
        plan=release_from_dict(drawn["key"]["plan"]),
    )
