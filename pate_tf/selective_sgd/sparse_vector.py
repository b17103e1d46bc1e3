"""The paper's private uploads: the sparse vector technique, in whole lattice steps.

As commonly described; the section of the paper is missing from our text. For reproduction: what it
costs in all is far more than the paper reports.
"""

import numpy as np

from pate_tf.accounting.noisy_training import SparseVectorTraining
from pate_tf.noise import NoiseSource
from pate_tf.selective_sgd.flat_view import FloatArray
from pate_tf.values.arrays import IntArray

STEPS = 2**16  # of gamma
MOST_SCALE = 2.0**30


def noise_scales(charge: SparseVectorTraining) -> tuple[float, float, float]:
    """Returns the scales of the noise on thresholds, comparisons and values, in steps.

    Raises:
      ValueError: if one is too large to be drawn exactly.
    """
    # A change of the participant's records moves a number by up to 2 gamma.
    spread = 2 * STEPS
    half = charge.epsilon_each * 8.0 / 9.0 / 2.0
    found = (spread / half, 2.0 * spread / half, spread / (charge.epsilon_each / 9.0))
    if max(found) > MOST_SCALE:
        raise ValueError(
            f"target_epsilon: expected more for so many numbers, got {charge.epsilon_each:.3g} for "
            f"each of them, less than can be drawn exactly"
        )
    return found


def uploaded(
    change: FloatArray,
    *,
    charge: SparseVectorTraining,
    gamma: float,
    threshold: float,
    noise: NoiseSource,
    generator: np.random.Generator,
) -> tuple[IntArray, FloatArray]:
    """Returns indices, ascending, and noisy values of one upload.

    Parameters are visited in a random order that does not look at their changes. A threshold with
    new noise after each number that passed is compared with noisy absolute values; what passed is
    clipped, gets noise of its own, and is clipped again (docs/theory_selective_sgd.md, Proposition
    F4).

    Args:
      change: of all parameters, float32 `[num_parameters]`. SENSITIVE.
      charge: what was paid for.
      gamma: the largest absolute value of a number.
      threshold: tau, as a share of gamma.
      noise: draws the noise.
      generator: draws the order, which is no secret.

    Raises:
      ValueError: as `noise_scales`.
    """
    threshold_scale, query_scale, value_scale = noise_scales(charge)
    finite = np.where(np.isfinite(change), change, 0.0).astype(np.float64)
    steps = np.trunc(np.clip(finite, -gamma, gamma) / gamma * STEPS).astype(np.int64)
    order = generator.permutation(len(steps))
    queries = np.abs(steps[order]) + noise.laplace_integers(query_scale, len(order))
    number = charge.num_uploaded
    above = round(threshold * STEPS)
    thresholds = above + noise.laplace_integers(threshold_scale, number)
    passed: list[int] = []
    start = 0
    for limit in thresholds:
        found = np.flatnonzero(queries[start : start + 64] >= limit)
        if not found.size:  # seldom: look at all that is left
            found = np.flatnonzero(queries[start:] >= limit)
            if not found.size:
                break
        start += int(found[0])
        passed.append(start)
        start += 1
    indices = np.sort(order[np.array(passed, np.int64)])
    noisy = steps[indices] + noise.laplace_integers(value_scale, len(indices))
    values = np.clip(noisy, -STEPS, STEPS) * (gamma / STEPS)
    return indices, values.astype(np.float32)
