"""The data-independent epsilon once more, by another library: Google's dp-accounting."""

import math
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    Mechanism,
    PureNoisyMax,
)


def epsilon_by_dp_accounting(num_paid: Mapping[Mechanism, int], delta: float) -> float:
    """Returns the epsilon of privacy-loss distributions that dominate what was paid for.

    A mechanism that is 2 gamma private is dominated by randomised response with that epsilon
    (Kairouz, Oh and Viswanath 2015); a Gaussian noisy max is post-processing of a Gaussian
    mechanism of sensitivity sqrt(2), its threshold test one of sensitivity 1.

    Args:
      num_paid: how many queries of each mechanism.
      delta: in (0, 1).

    Raises:
      ValueError: if dp-accounting is missing, or a mechanism has no noise.
    """
    try:
        from dp_accounting.pld import privacy_loss_distribution as distributions
    except ImportError as error:
        raise ValueError(
            "check_with_dp_accounting: expected the package dp-accounting, got none; "
            "pip install 'pate_tf[accounting]'"
        ) from error

    def of_one_query(mechanism: Mechanism) -> list[Any]:
        if isinstance(mechanism, PureNoisyMax):
            flip = 2.0 / (1.0 + math.exp(2.0 * mechanism.gamma))
            return [distributions.from_randomized_response(flip, num_buckets=2)]
        if isinstance(mechanism, GaussianNoisyMax):
            return [distributions.from_gaussian_mechanism(mechanism.sigma / math.sqrt(2.0))]
        if isinstance(mechanism, ConfidentGaussianNoisyMax):
            test = distributions.from_gaussian_mechanism(mechanism.sigma_threshold)
            return [test, *of_one_query(mechanism.answering)]
        raise ValueError(f"expected a mechanism with noise, got {mechanism.name}")

    total = None
    for mechanism, queries in num_paid.items():
        if queries:
            for single in of_one_query(mechanism):
                several = single.self_compose(queries)
                total = several if total is None else total.compose(several)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))
