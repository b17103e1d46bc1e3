"""The least noise, or the most queries, that a data-independent budget allows.

One-sided: what is returned has been accounted for, and its epsilon never exceeds the target.
"""

from __future__ import annotations

from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.target import Target

LARGEST_NUM_QUERIES = 2**40


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not epsilon > 0.0:
        raise ValueError(f"expected epsilon > 0, got {epsilon}")


def least_noise(
    mechanism_class: type[Mechanism], *, num_queries: int, epsilon: float, delta: float
) -> Mechanism:
    """Returns the mechanism with least noise whose num_queries labels cost at most epsilon.

    The smallest scale, `Mechanism.of_scale`, to about nine digits, whose data-independent epsilon
    at delta is at most the target.

    Raises:
        ValueError: if the class has no single scale of noise, num_queries is below 1, or no noise
            between 2^-30 and 2^60 votes meets the target.
    """
    target = Target(epsilon=epsilon, delta=delta, num_queries=num_queries)
    return target.least_noise(mechanism_class.of_scale)


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
