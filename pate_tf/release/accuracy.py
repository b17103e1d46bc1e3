"""A charged estimate of accuracy, from private records that nothing was learned from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import LaplaceClusterCounts
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.core.validation import IntArray

STANDARD_DEVIATIONS: Final = 1.96  # of a 95 % interval


# An accuracy with noise, the ends of its 95 % interval, and its pure epsilon. Public.
EstimatedAccuracy = tuple[float, float, float, float]


def estimate_accuracy(
    is_correct: npt.NDArray[np.bool_],
    owners: npt.NDArray[np.generic] | None,
    epsilon: float,
    release: Callable[[IntArray, LaplaceClusterCounts], IntArray],
) -> EstimatedAccuracy:
    """Releases how many answers are wrong and right, with Laplace noise.

    A record counts 1 in one of two cells; an owner's records share 1. So it is a table of
    `LaplaceClusterCounts` of one cluster (docs/proofs/theory.md, Proposition D9), whose classes are
    wrong and right. The model is public. The interval covers noise, and which records were held
    back.

    Args:
        is_correct: whether the model's answer to each record is right, `[num_records]`. SENSITIVE.
        owners: whose each record is, `[num_records]`; None where records are protected.
        epsilon: what it may cost.
        release: from exact counts `[1, 2]`, in steps of 1 / LATTICE, to charged noisy ones.
    """
    steps = np.full(len(is_correct), LATTICE)
    if owners is not None:
        _, number, sizes = np.unique(owners, return_inverse=True, return_counts=True)
        steps = LATTICE // sizes[number]
    exact = np.array([[steps[~is_correct].sum(), steps[is_correct].sum()]], np.int64)
    planned = LaplaceClusterCounts.for_target(Target(epsilon=epsilon, delta=0.0), exact * 0)
    mechanism = LaplaceClusterCounts(scale=planned.scale, num_clusters=1)
    wrong, right = (release(exact, mechanism) / LATTICE).ravel().clip(0.0)
    total = max(wrong + right, 1.0)
    accuracy = float(right / total)
    drawn = (right + 2.0) / (total + 4.0)  # Agresti and Coull 1998
    variance = drawn * (1.0 - drawn) / total + 2.0 * (mechanism.scale / total) ** 2
    half = STANDARD_DEVIATIONS * math.sqrt(variance)
    low, high = max(accuracy - half, 0.0), min(accuracy + half, 1.0)
    return accuracy, low, high, epsilon
