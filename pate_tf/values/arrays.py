"""Arrays with checked entries: whole numbers, labels, views that can't be written."""

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def frozen_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a read-only view, so that a value can't change after it was checked."""
    view = array.view()
    view.flags.writeable = False
    return view


def whole_numbers(values: npt.ArrayLike, what: str) -> IntArray:
    """Returns `values` as a new int64 array.

    Raises:
      ValueError: if they are not finite whole numbers. The message begins with `what` and never
        carries a value.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_ or array.dtype.kind not in "iuf":
        raise ValueError(f"{what}: expected whole numbers, got an array of type {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{what}: expected whole numbers, got NaN or infinite entries")
        if (array != np.floor(array)).any():
            raise ValueError(f"{what}: expected whole numbers, got fractions")
        if array.size and np.abs(array).max() >= 2.0**53:
            raise ValueError(f"{what}: expected numbers below 2**53, got larger ones")
    elif array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what}: expected numbers below 2**63, got larger ones")
    return array.astype(np.int64)


def labels_array(
    values: npt.ArrayLike, num_classes: int, what: str, *, lowest: int = 0
) -> IntArray:
    """Returns labels as a new int64 array.

    Raises:
      ValueError: if they are not whole numbers from `lowest` to `num_classes - 1`; as
        `whole_numbers`.
    """
    array = whole_numbers(values, what)
    if array.size and (array.min() < lowest or array.max() >= num_classes):
        raise ValueError(f"{what}: expected labels from {lowest} to {num_classes - 1}, got others")
    return array
