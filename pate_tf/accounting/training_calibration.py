"""The least noise of a training that meets a target; see `NoisyTraining`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from pate_tf.accounting.conversions import (
    check_delta,
    epsilon_from_alphas,
)
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.noisy_training import NoisyTraining

_FEW_MOMENTS: FloatArray = np.geomspace(0.5, 128.0, 24)
LARGEST_MULTIPLIER = 1024.0


def noise_for(
    target_epsilon: float, *, delta: float, sampling_rate: float, rounds: int, unit: str = "record"
) -> NoisyTraining:
    """Returns the training of the least noise whose epsilon at delta is at most the target.

    Within a thousandth of the least noise multiplier.

    Raises:
        ValueError: if no noise multiplier up to 1,024 suffices, or a value is out of its range.
    """
    check_delta(delta)
    if not 0.0 < target_epsilon < inf:
        raise ValueError(f"target_epsilon: expected above 0 and finite, got {target_epsilon}")

    def training(sigma: float) -> NoisyTraining:
        return NoisyTraining(
            sampling_rate=sampling_rate, noise_multiplier=sigma, rounds=rounds, unit=unit
        )

    def by_moments(sigma: float) -> bool:
        costs = training(sigma).alphas(_FEW_MOMENTS)
        return epsilon_from_alphas(costs, _FEW_MOMENTS, delta)[0] <= target_epsilon

    def by_losses(sigma: float) -> bool:
        return training(sigma).composed_epsilon(1, delta=delta) <= target_epsilon

    high = 0.5
    while not by_moments(high):
        high *= 2.0
        if high > LARGEST_MULTIPLIER:
            raise ValueError(
                f"target_epsilon: expected one that noise of {LARGEST_MULTIPLIER:g} clipping "
                f"lengths can reach, got {target_epsilon} for {rounds} rounds"
            )
    high = _least(by_moments, high / 2.0, high)
    # The distribution of losses is slower and needs a little less noise.
    return training(_least(by_losses, 0.8 * high, high))


def _least(suffices: Callable[[float], bool], low: float, high: float) -> float:
    """Returns a number that suffices, as `high` does, at most a thousandth above the least."""
    while high > low * 1.001:
        middle = round((low + high) / 2.0, 4)
        if not low < middle < high:
            break
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high
