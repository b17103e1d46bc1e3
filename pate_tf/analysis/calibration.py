"""The least noise for a number of queries, or the most queries for a noise.

A roof room, without TensorFlow. Data-independent throughout, so publishable.
"""

import dataclasses
from collections.abc import Mapping

from pate_tf.accounting import calibration, mechanisms
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.accounting import Guarantee

CALIBRATED: Mapping[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        mechanisms.LaplaceNoisyMax,
        mechanisms.PermuteAndFlip,
        mechanisms.ExponentialMechanism,
        mechanisms.GaussianNoisyMax,
    )
}


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


def calibrate(
    mechanism: type[Mechanism] | Mechanism,
    *,
    target_epsilon: float,
    delta: float,
    num_queries: int | None = None,
) -> Calibration:
    """Returns the least noise for a number of queries, or the most queries for a noise.

    Args:
      mechanism: its class, with `num_queries`; or the mechanism itself, without.
      target_epsilon: data-independent.
      delta: in (0, 1).
      num_queries: at least 1, with a class.

    Raises:
      ValueError: if a number is out of range, or the target can't be met.
    """
    if isinstance(mechanism, Mechanism):
        found = mechanism
        queries = calibration.most_queries(found, epsilon=target_epsilon, delta=delta)
    elif num_queries is not None:
        queries = num_queries
        found = calibration.least_noise(
            mechanism, num_queries=queries, epsilon=target_epsilon, delta=delta
        )
    else:
        raise ValueError("calibrate: expected a number of queries or a mechanism with its noise")
    epsilon, moment = found.data_independent_epsilon(num_queries=queries, delta=delta)
    return Calibration(
        mechanism=found,
        num_queries=queries,
        guarantee=Guarantee(epsilon, moment),
        target_epsilon=target_epsilon,
        delta=delta,
    )
