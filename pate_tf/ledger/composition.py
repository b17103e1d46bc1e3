"""What paid queries cost together, from how many there were of each mechanism."""

import math
from collections.abc import Mapping
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
)
from pate_tf.ledger.rows import LedgerError

Totals = Mapping[Mechanism, int]


def composed_alphas(totals: Totals) -> npt.NDArray[np.float64]:
    """Returns the total data-independent cost at each of `DEFAULT_MOMENTS`, `[num_moments]`."""
    alphas = np.zeros_like(DEFAULT_MOMENTS)
    for mechanism, num_queries in totals.items():
        alphas += mechanism.data_independent_alpha(DEFAULT_MOMENTS, num_queries=num_queries)
    return alphas


def moments_epsilon(
    totals: Totals, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; (0, None) for nothing."""
    if not any(totals.values()):
        return 0.0, None
    alphas = composed_alphas(totals)
    return epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta, conversion=conversion)


def closed_form_epsilon(totals: Totals, delta: float) -> float:
    """Returns epsilon by a single mechanism's own composition theorem; infinite for a mixture."""
    if len(totals) != 1:
        return math.inf
    ((mechanism, num_queries),) = totals.items()
    return mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)[0]


def smallest_epsilon(
    totals: Totals, delta: float, *, conversion: str = "improved"
) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where a closed form gave it.

    The "classic" conversion is for comparison and uses moments alone.
    """
    epsilon, moment = moments_epsilon(totals, delta, conversion=conversion)
    if conversion == "classic":
        return epsilon, moment
    closed_form = closed_form_epsilon(totals, delta)
    return (closed_form, None) if closed_form < epsilon else (epsilon, moment)


def fits(totals: Totals, delta: float, epsilon_budget: float | None) -> bool:
    """Whether the total cost stays within the budget; None is no budget."""
    # The closed forms are slow for many queries, and moments alone decide most batches.
    return epsilon_budget is None or (
        moments_epsilon(totals, delta)[0] <= epsilon_budget
        or closed_form_epsilon(totals, delta) <= epsilon_budget
    )


def to_dp_events(totals: Totals) -> Any:
    """Returns one `dp_accounting` event for all paid queries; see `Ledger.to_dp_events`."""
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

    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(query_event(mechanism), num_queries)
            for mechanism, num_queries in totals.items()
        ]
    )
