"""Sums by class with second moments: linear regression without a public pool."""

import math

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT
from pate_tf.core.validation import IntArray
from pate_tf.release.noisy_sums import BELOW, PART_STEPS

RIDGE = 0.7  # of the largest eigenvalue of the noise alone


@np.errstate(all="ignore")  # a warning would tell of a record
def moments_by_class(
    vectors: npt.NDArray[np.float64],
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Returns sums by class beside second moments, `[width, num_classes + width]`. SENSITIVE.

    A record adds the outer product of its vector v and (its class's one-hot vector, w v), w being
    `MOMENT_WEIGHT`, divided by sqrt(1 + w^2). Both factors are truncated towards zero to whole
    steps, and what is negative counts as 0. So the norm of their product is verified exactly, and
    sums do not depend on the order of records. An owner's tables are added up, and shortened to a
    norm of 1 together. What is longer, or not finite, counts as zero.

    Args:
        vectors: of `models.encoder.record_vectors`, `[num_records, width]`.
        labels: `[num_records]`.
        num_classes: number of classes.
        owners: whose each record is, `[num_records]`; all records of an owner must be here. None
            where single records are protected.

    Returns:
        In steps of 1 / LATTICE.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    targets = np.hstack([np.eye(num_classes)[labels], MOMENT_WEIGHT * vectors]) / norm
    factors = [
        np.trunc(np.maximum(factor, 0.0) * (PART_STEPS * BELOW)) for factor in (vectors, targets)
    ]
    squares = math.prod(np.square(factor).sum(axis=1) for factor in factors)
    is_short = squares <= LATTICE**2  # NaN compares as false
    first, second = (np.where(is_short[:, None], factor, 0.0) for factor in factors)
    if owners is None:  # whole numbers that float64 holds, as are their sums
        return (first.T @ second).astype(np.int64)
    total = np.zeros((first.shape[1], second.shape[1]))
    _, owner = np.unique(owners, return_inverse=True)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1]
    for rows in np.split(order, ends):
        table = first[rows].T @ second[rows]
        table /= max(1.0, np.sqrt(np.square(table).sum()) / (LATTICE * BELOW))
        table = np.trunc(table)
        total += np.where(np.square(table).sum() <= LATTICE**2, table, 0.0)
    return total.astype(np.int64)


def weights_of_moments(values: IntArray, num_classes: int, noise: float) -> npt.NDArray[np.float64]:
    """Returns weights of linear regression on noisy moments, `[width, num_classes]`. Public.

    Args:
        values: noisy, in steps of 1 / LATTICE, `[width, num_classes + width]`.
        num_classes: number of classes.
        noise: standard deviation on each number, in what a record adds at most.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    sums, moments = np.split(values * (norm / LATTICE), [num_classes], axis=1)
    moments = (moments + moments.T) / (2.0 * MOMENT_WEIGHT)
    ridge = RIDGE * noise * norm / MOMENT_WEIGHT * np.sqrt(len(values))
    along, directions = np.linalg.eigh(moments)
    projected = (directions.T @ sums) / (np.maximum(along, 0.0) + ridge)[:, None]
    return np.asarray(directions @ projected)
