"""Text, JSON and arrays: written whole, and read without running anything."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.artifacts.atomic import atomic_file


def write_text(path: pathlib.Path, text: str, *, private: bool = False) -> None:
    """Writes UTF-8 text, whole or not at all."""
    with atomic_file(path, private=private) as file:
        file.write(text.encode())


def write_json(path: pathlib.Path, value: Mapping[str, Any], *, private: bool = False) -> None:
    """Writes a JSON object, whole or not at all; NaN is refused."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      ValueError: if the file does not hold a JSON object.
    """
    try:
        value = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got something else ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def write_arrays(
    path: pathlib.Path, arrays: Mapping[str, npt.NDArray[Any]], *, private: bool = False
) -> None:
    """Writes named arrays as `.npz`, whole or not at all."""
    with atomic_file(path, private=private) as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def read_arrays(
    path: pathlib.Path, names: Iterable[str] | None = None, *, lacking_ok: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """Reads the named arrays of an `.npz` file.

    Args:
      path: of the file.
      names: of the arrays that are read; None for all of them.
      lacking_ok: whether those of them that the file lacks are left out.

    Raises:
      ValueError: if the file is truncated, lacks an array or is not an `.npz` file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = archive.files if names is None else names
            return {
                name: archive[name] for name in wanted if not lacking_ok or name in archive.files
            }
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, NumPy and zlib each raise their own kinds
        raise ValueError(f"{path}: expected a complete .npz file, got a broken one") from error


def read_array(path: pathlib.Path) -> npt.NDArray[Any]:
    """Reads one array from a `.npy` file.

    Raises:
      ValueError: if the file is truncated or is not a `.npy` file.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise
    except Exception as error:  # EOFError, ValueError and others, by where the file breaks
        raise ValueError(f"{path}: expected a complete .npy file, got a broken one") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: expected one .npy array, got an archive of several")
    return array
