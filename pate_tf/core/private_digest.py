"""Keyed digests of private values: they tell equal from different to holders of the key alone."""

import contextlib
import hashlib
import hmac
import os
import pathlib
import secrets
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts

KEY_FILE: Final = "digest.key"
KEY_BYTES: Final = 32


def private_digest(sensitive_folder: pathlib.Path, *arrays: npt.NDArray[Any]) -> str:
    """Returns the HMAC-SHA256 of arrays, by dtype, shape and bytes, as hexadecimal digits.

    A plain digest of private records confirms a guess at them. This one does so with the key alone,
    which is drawn at first use and lies in the folder with mode 0600.

    Args:
        sensitive_folder: a run's `sensitive/`, or a folder below it; created if need be.
        arrays: of any numeric or string type.

    Raises:
        ValueError: if the key file holds something else, or an array holds objects.
        OSError: if the key can't be read or written.
    """
    path = artifacts.make_sensitive_folder(sensitive_folder) / KEY_FILE
    if not path.exists():
        temporary = artifacts.temporary_name(path)
        with artifacts.atomic_file(temporary, private=True) as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # of two processes, the first one's key stays
            os.link(temporary, path)
        temporary.unlink()
        artifacts.sync_folder(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path}: expected a key of {KEY_BYTES} bytes, got {len(key)}")
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for array in arrays:
        if array.dtype.hasobject:
            raise ValueError("private values: expected numbers or strings, got objects")
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
