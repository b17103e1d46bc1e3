"""What was paid for, and what it costs together, moment by moment."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    Mechanism,
    PureNoisyMax,
    mechanism_from_dict,
)
from pate_tf.accounting.plan import ReleasePlan, plan_from_dict
from pate_tf.ledger.rows import LedgerError, LedgerRow


@dataclasses.dataclass(frozen=True)
class Paid:
    """What was paid for, or is to be.

    Attributes:
      queries: how many, by the mechanism that answers them.
      releases: how many draws of the noisy data-dependent cost, by their plan.
    """

    queries: Counter[Mechanism] = dataclasses.field(default_factory=Counter)
    releases: Counter[ReleasePlan] = dataclasses.field(default_factory=Counter)

    def __add__(self, other: Paid) -> Paid:
        return Paid(self.queries + other.queries, self.releases + other.releases)

    @classmethod
    def for_queries(cls, mechanism: Mechanism, num_queries: int) -> Paid:
        """Queries of one mechanism."""
        return cls(queries=Counter({mechanism: num_queries}))

    @classmethod
    def for_release(cls, plan: ReleasePlan) -> Paid:
        """One draw."""
        return cls(releases=Counter({plan: 1}))


def paid_by(rows: Iterable[LedgerRow]) -> Paid:
    """Returns what rows paid for; those of other kinds pay for nothing."""
    paid = Paid()
    for row in rows:
        if row.kind == "debit":
            mechanism = mechanism_from_dict(row.details["mechanism"])
            paid += Paid.for_queries(mechanism, row.details["num_queries"])
        elif row.kind == "release":
            paid += Paid.for_release(plan_from_dict(row.details["plan"]))
    return paid


def composed_alphas(paid: Paid) -> npt.NDArray[np.float64]:
    """Returns the total data-independent cost at each of `DEFAULT_MOMENTS`, `[num_moments]`."""
    alphas = np.zeros_like(DEFAULT_MOMENTS)
    for mechanism, num_queries in paid.queries.items():
        alphas += mechanism.data_independent_alpha(DEFAULT_MOMENTS, num_queries=num_queries)
    for plan, number in paid.releases.items():
        alphas += number * plan.release_alphas(DEFAULT_MOMENTS)
    return alphas


def moments_epsilon(
    paid: Paid, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; (0, None) for nothing."""
    if not (any(paid.queries.values()) or paid.releases):
        return 0.0, None
    alphas = composed_alphas(paid)
    return epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta, conversion=conversion)


def closed_form_epsilon(paid: Paid, delta: float) -> float:
    """Returns epsilon by a single mechanism's own composition theorem; infinite for a mixture."""
    if len(paid.queries) != 1 or paid.releases:
        return math.inf
    ((mechanism, num_queries),) = paid.queries.items()
    return mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)[0]


def smallest_epsilon(
    paid: Paid, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where a closed form gave it.

    The "classic" conversion is for comparison and uses moments alone.
    """
    epsilon, moment = moments_epsilon(paid, delta, conversion=conversion)
    if conversion == "classic":
        return epsilon, moment
    closed_form = closed_form_epsilon(paid, delta)
    return (closed_form, None) if closed_form < epsilon else (epsilon, moment)


def fits(paid: Paid, delta: float, epsilon_budget: float | None) -> bool:
    """Whether the total cost stays within the budget; None is no budget."""
    # The closed forms are slow for many queries, and moments alone decide most batches.
    return epsilon_budget is None or (
        moments_epsilon(paid, delta)[0] <= epsilon_budget
        or closed_form_epsilon(paid, delta) <= epsilon_budget
    )


def to_dp_events(paid: Paid) -> Any:
    """Returns one `dp_accounting` event for everything paid; see `Ledger.to_dp_events`."""
    import dp_accounting

    def query_event(mechanism: Mechanism) -> Any:
        if isinstance(mechanism, ExponentialMechanism):
            return dp_accounting.ZCDpEvent(rho=mechanism.gamma**2 / 2.0)
        if isinstance(mechanism, PureNoisyMax):
            return dp_accounting.ZCDpEvent(rho=2.0 * mechanism.gamma**2)
        if isinstance(mechanism, ConfidentGaussianNoisyMax):
            test = dp_accounting.GaussianDpEvent(mechanism.sigma_threshold)
            return dp_accounting.ComposedDpEvent([test, query_event(mechanism.answering)])
        if isinstance(mechanism, GaussianNoisyMax):
            return dp_accounting.GaussianDpEvent(mechanism.sigma / math.sqrt(2.0))
        raise LedgerError(f"expected a mechanism with an event, got {mechanism}")

    def release_event(plan: ReleasePlan) -> Any:
        if plan.release == "smooth_sensitivity":
            raise LedgerError(f"expected a release with an event, got {plan.release}")
        return dp_accounting.GaussianDpEvent(plan.sigma)

    parts = [(query_event(mechanism), number) for mechanism, number in paid.queries.items()]
    parts += [(release_event(plan), number) for plan, number in paid.releases.items()]
    return dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(event, number) for event, number in parts]
    )
