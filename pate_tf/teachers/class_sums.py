"""Sums of private records by class, kept beside teachers: all that a linear model needs of records.

What a record adds is its vector (`pate_tf.models.record_vectors`) in the column of its class, of
length at most 1. What an owner's records add together has length at most 1 too: if it is longer, it
is shortened. All is cut off towards zero to whole numbers, in steps of 1 / LATTICE. So sums do not
depend on the order of records, and a length of at most 1 stays one. That it is at most 1 is checked
in whole numbers, whatever the vectors are: what is longer, or not finite, is left out.
"""

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.lattice import LATTICE
from pate_tf.values.arrays import IntArray

BELOW = 1.0 - 2.0**-40  # more than is lost by rounding, so that no length is above 1

FloatArray = npt.NDArray[np.float64]


@np.errstate(all="ignore")  # a warning would tell of a record
def class_sums(
    vectors: FloatArray,
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Returns sums of vectors by class, int64 `[num_features + 1, num_classes]`. SENSITIVE.

    Args:
      vectors: of `record_vectors`, `[num_records, num_features + 1]`. One of a length above 1, or
        that is not finite, counts as zero; so do all of an owner who has one that is not finite.
      labels: `[num_records]`.
      num_classes: number of classes.
      owners: whose each record is, `[num_records]`; all records of an owner must be here. None
        where each stands for itself.

    Returns:
      In steps of 1 / LATTICE. Each record adds a vector of length at most 1, or each owner does.
    """
    classes, found = labels, vectors
    unit: IntArray = np.arange(len(labels))
    if owners is not None:
        _, owner = np.unique(owners, return_inverse=True)
        pairs, place = np.unique(owner * num_classes + labels, return_inverse=True)
        together = np.zeros((len(pairs), vectors.shape[1]))
        np.add.at(together, place, vectors)
        unit, classes = pairs // num_classes, pairs % num_classes
        lengths = np.sqrt(np.bincount(unit, np.square(together).sum(axis=1)))
        found = together / np.maximum(lengths, 1.0)[unit, None]
    steps = np.trunc(found * (LATTICE * BELOW))
    # Whole numbers of at most 2^20, whose squares int64 adds up exactly. NaN compares as false.
    is_short: npt.NDArray[np.bool_] = np.abs(steps).max(axis=1) <= LATTICE
    squares = np.square(np.where(is_short[:, None], steps, 0.0).astype(np.int64)).sum(axis=1)
    total = np.zeros(unit.max(initial=-1) + 1, np.int64)
    np.add.at(total, unit, np.where(is_short, squares, LATTICE**2 + 1))
    steps[total[unit] > LATTICE**2] = 0.0
    # Sums of fewer than 2^33 records are whole numbers that float64 holds, in whatever order.
    return (steps.T @ np.eye(num_classes)[classes]).astype(np.int64)
