"""The least noise for a number of queries, or the most queries for a noise.

A roof room, without TensorFlow. Data-independent throughout, so publishable.
"""

import dataclasses

from pate_tf.accounting import planning
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.guarantees import Guarantee


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """Noise and number of queries that meet a target. Public.

    Attributes:
      mechanism: with its noise.
      num_queries: how many labels it gives.
      guarantee: data-independent; never above the target.
      target_epsilon: what was asked for.
      delta: of both.
    """

    mechanism: Mechanism
    num_queries: int
    guarantee: Guarantee
    target_epsilon: float
    delta: float


def least_noise(
    mechanism: type[Mechanism], *, num_queries: int, target_epsilon: float, delta: float
) -> Calibration:
    """Returns the least noise for a number of queries, data-independent.

    Raises:
      ValueError: if a number is out of range, the target can't be met, or the mechanism has no
        single scale of noise.
    """
    found = planning.least_noise(
        mechanism, num_queries=num_queries, epsilon=target_epsilon, delta=delta
    )
    return of_mechanism(found, num_queries=num_queries, target_epsilon=target_epsilon, delta=delta)


def most_queries(mechanism: Mechanism, *, target_epsilon: float, delta: float) -> Calibration:
    """Returns the most queries for a noise, data-independent.

    Raises:
      ValueError: if a number is out of range.
    """
    queries = planning.most_queries(mechanism, epsilon=target_epsilon, delta=delta)
    return of_mechanism(mechanism, num_queries=queries, target_epsilon=target_epsilon, delta=delta)


def of_mechanism(
    mechanism: Mechanism, *, num_queries: int, target_epsilon: float, delta: float
) -> Calibration:
    """Returns what a mechanism costs, beside what was asked for."""
    epsilon, moment = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
    return Calibration(
        mechanism=mechanism,
        num_queries=num_queries,
        guarantee=Guarantee(epsilon, moment),
        target_epsilon=target_epsilon,
        delta=delta,
    )
