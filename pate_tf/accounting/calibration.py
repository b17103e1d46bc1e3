"""The least noise, or the most queries, that a data-independent budget allows.

One-sided: what is returned has been accounted for, and its epsilon never exceeds the target.
"""

from __future__ import annotations

from collections.abc import Callable

from pate_tf.accounting.conversions import check_delta, check_num_queries
from pate_tf.accounting.mechanisms import (
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    PermuteAndFlip,
)

LARGEST_NUM_QUERIES = 2**40
SCALE_RANGE = (2.0**-30, 2.0**60)

_FROM_SCALE: dict[type[Mechanism], Callable[[float], Mechanism]] = {
    LaplaceNoisyMax: lambda scale: LaplaceNoisyMax(1.0 / scale),
    PermuteAndFlip: lambda scale: PermuteAndFlip(1.0 / scale),
    ExponentialMechanism: lambda scale: ExponentialMechanism(1.0 / scale),
    GaussianNoisyMax: GaussianNoisyMax,
}


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not epsilon > 0.0:
        raise ValueError(f"expected epsilon > 0, got {epsilon}")


def least_noise(
    mechanism_class: type[Mechanism], *, num_queries: int, epsilon: float, delta: float
) -> Mechanism:
    """Returns the mechanism with least noise whose num_queries labels cost at most epsilon.

    The largest gamma or smallest sigma, to about nine digits, whose data-independent epsilon at
    delta is at most the target.

    Raises:
        ValueError: if the class has no single noise parameter (`LaplaceNoisyMax`,
            `PermuteAndFlip`, `ExponentialMechanism` and `GaussianNoisyMax` have one), num_queries
            is below 1, or no noise between 2^-30 and 2^60 votes meets the target.
    """
    _check_target(epsilon, delta)
    if check_num_queries(num_queries) < 1:
        raise ValueError(f"expected num_queries >= 1, got {num_queries}")
    if mechanism_class not in _FROM_SCALE:
        names = [kind.__name__ for kind in _FROM_SCALE]
        raise ValueError(f"expected a class of {names}, got {mechanism_class.__name__}")
    from_scale = _FROM_SCALE[mechanism_class]

    def affordable(scale: float) -> bool:
        spent, _ = from_scale(scale).data_independent_epsilon(num_queries=num_queries, delta=delta)
        return spent <= epsilon

    too_little, enough = SCALE_RANGE[0], 1.0
    while not affordable(enough):
        too_little, enough = enough, enough * 4.0
        if enough > SCALE_RANGE[1]:
            raise ValueError(f"expected a reachable epsilon, got {epsilon} at delta {delta}")
    while enough > 1e-9 + too_little * (1.0 + 1e-9):
        middle = (too_little * enough) ** 0.5
        if affordable(middle):
            enough = middle
        else:
            too_little = middle
    return from_scale(enough)


def most_queries(mechanism: Mechanism, *, epsilon: float, delta: float) -> int:
    """Returns the largest number of queries, all answered, that cost at most epsilon at delta.

    0 if not even one is affordable; at most 2^40.
    """
    _check_target(epsilon, delta)

    def affordable(num_queries: int) -> bool:
        spent, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
        return spent <= epsilon

    enough, too_many = 0, 1
    while affordable(too_many):
        enough, too_many = too_many, too_many * 2
        if enough >= LARGEST_NUM_QUERIES:
            return LARGEST_NUM_QUERIES
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if affordable(middle):
            enough = middle
        else:
            too_many = middle
    return enough
