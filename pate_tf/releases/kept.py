"""What a draw that was kept says of the cost of labels, without drawing again."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.mechanisms import mechanism_from_dict
from pate_tf.accounting.release_plan import plan_from_dict
from pate_tf.releases.results import LogCost, SanitisedEpsilon


def sanitised_epsilon(
    kept: Mapping[str, Any], *, delta: float, paid_epsilon: float
) -> SanitisedEpsilon:
    """Returns the epsilon that a kept draw gives.

    Args:
      kept: as `Ledger.kept_release` returns it.
      delta: what it is to hold at; a draw by smooth sensitivity has its own and holds at that.
      paid_epsilon: data-independent, at `delta`, of all that the ledger paid for; 0 without one.
    """
    key = kept["key"]
    if key["delta"] is None:
        found = log_cost(kept).sanitised_epsilon(delta)
    else:
        plan = plan_from_dict(key["plan"])
        found = SanitisedEpsilon(delta=key["delta"], plan=plan, **kept["drawn"])
    # Whoever saw an earlier draw could choose, so every draw may fail.
    return dataclasses.replace(
        found,
        confidence=max(0.0, 1.0 - kept["failure"]),
        worst_case_epsilon=max(found.worst_case_epsilon, paid_epsilon),
    )


def log_cost(kept: Mapping[str, Any]) -> LogCost:
    """Returns the noisy logarithm of the cost that was drawn, of all but smooth sensitivity."""
    return LogCost(
        steps=kept["drawn"]["steps"],
        mechanism=mechanism_from_dict(kept["key"]["mechanism"]),
        plan=plan_from_dict(kept["key"]["plan"]),
    )
