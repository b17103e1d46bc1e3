"""Arrays as packed bytes: type and shape are checked before anything is made of them."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.net.array_pb2 import Array

DTYPES: Final = ("|u1", "<u4", "<f4", "<f8", "<i8")
MOST_AXES: Final = 8


def pack(array: npt.NDArray[Any]) -> Array:
    """Returns an array as a message; raises ValueError if its type is none of `DTYPES`."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in DTYPES:
        raise ValueError(f"array: expected a type of {', '.join(DTYPES)}, got {array.dtype}")
    return Array(dtype=little.dtype.str, shape=array.shape, data=little.tobytes())


def unpack(message: Array, what: str, *, dtypes: Sequence[str] = DTYPES) -> npt.NDArray[Any]:
    """Returns the array of a message, which can't be written.

    Args:
        message: from anybody.
        what: what it is, for the error.
        dtypes: types that are expected.

    Raises:
        ValueError: if type, shape and bytes don't fit each other, it has no numbers, or one of them
            is NaN or infinite.
    """
    if message.dtype not in dtypes:
        raise ValueError(f"{what}: expected a type of {', '.join(dtypes)}, got another")
    if not 1 <= len(message.shape) <= MOST_AXES:
        raise ValueError(f"{what}: expected 1 to {MOST_AXES} axes, got {len(message.shape)}")
    dtype = np.dtype(message.dtype)
    size = math.prod(message.shape)  # whole numbers of any size: nothing wraps around
    if size < 1 or size * dtype.itemsize != len(message.data):
        raise ValueError(f"{what}: expected as many bytes as its shape has, got another number")
    array = np.frombuffer(message.data, dtype).reshape(tuple(message.shape))
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{what}: expected finite numbers, got NaN or infinite ones")
    return array
