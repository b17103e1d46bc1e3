"""The data-independent epsilon once more, by another library: Google's dp-accounting."""

import math
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.charge import Charge


def epsilon_by_dp_accounting(num_paid: Mapping[Charge, int], delta: float) -> float:
    """Returns the epsilon of privacy-loss distributions that dominate what was paid for.

    What is epsilon-private is dominated by randomised response with that epsilon (Kairouz, Oh and
    Viswanath 2015), what has `noise_multipliers` by those Gaussian mechanisms.

    Args:
      num_paid: how many of each charge.
      delta: in (0, 1).

    Raises:
      ValueError: if dp-accounting is missing, or nothing is known that dominates a charge.
    """
    try:
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as distributions
    except ImportError as error:
        raise ValueError(
            "check_with_dp_accounting: expected the package dp-accounting, got none; "
            "pip install 'pate_tf[accounting]'"
        ) from error

    def of_one(charge: Charge) -> list[Any]:
        found = [distributions.from_gaussian_mechanism(one) for one in charge.noise_multipliers]
        if not found and charge.pure_epsilon is not None:
            flip = 2.0 / (1.0 + math.exp(charge.pure_epsilon))
            found = [distributions.from_randomized_response(flip, num_buckets=2)]
        if charge.approximate is not None:
            parameters = common.DifferentialPrivacyParameters(*charge.approximate)
            found.append(distributions.from_privacy_parameters(parameters))
        if not found:
            raise charge.lacking("noise that dp-accounting knows", "dp event")
        return found

    total = None
    for charge, number in num_paid.items():
        if number:
            for single in of_one(charge):
                several = single.self_compose(number)
                total = several if total is None else total.compose(several)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))
