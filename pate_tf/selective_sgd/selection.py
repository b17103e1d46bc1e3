"""Which parameters are uploaded and downloaded."""

import numpy as np
import numpy.typing as npt

from pate_tf.values.arrays import IntArray


def largest(changes: npt.NDArray[np.float32], number: int) -> IntArray:
    """Returns the indices of the largest changes in absolute value, ascending, `[number]`.

    They depend on private records: without noise on them this protects nobody.
    """
    if number >= len(changes):
        return np.arange(len(changes))
    return np.sort(np.argpartition(-np.abs(changes), number - 1)[:number])


def random_above(
    changes: npt.NDArray[np.float32], number: int, tau: float, generator: np.random.Generator
) -> IntArray:
    """Returns indices of at most `number` random changes above tau in absolute value, ascending."""
    above = np.flatnonzero(np.abs(changes) > tau)
    return np.sort(generator.permutation(above)[:number])


def most_updated(
    counts: npt.NDArray[np.float64], number: int, generator: np.random.Generator
) -> IntArray:
    """Returns the indices of the largest counts, ascending, `[number]`; ties at random."""
    if number < 1:
        return np.zeros(0, np.int64)
    if number >= len(counts):
        return np.arange(len(counts))
    order = np.lexsort((generator.random(len(counts)), -counts))
    return np.sort(order[:number])
