"""Digests of files and arrays."""

import hashlib
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def digest_array(array: npt.NDArray[Any]) -> str:
    """SHA-256 of an array's type, shape and bytes, as hexadecimal digits."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest_paths(paths: Iterable[pathlib.Path]) -> str:
    """SHA-256 over the names and bytes of files and of all files below folders."""
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        for file in files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(path.parent).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def digest_arrays(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 over several arrays in their order, as hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(digest_array(array).encode())
    return digest.hexdigest()
