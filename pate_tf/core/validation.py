"""Checked arrays, names, training settings and fields of TOML files."""

import math
import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Arrays with checked entries: whole numbers, labels, views that can't be written.


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


# Names that may stand in files and certificates.


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: object, what: str) -> str:
    """Returns a name that may stand in files and certificates.

    Raises:
      ValueError: unless it is 1 to 64 letters, digits, dots, hyphens or underscores and begins
        with a letter or digit.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{what}: expected 1 to 64 letters, digits, dots, hyphens or underscores, got others"
        )
    return name


# Numbers that fix a training, of teachers and students alike, checked before it begins.


MOST_STEPS = 10**9
LARGEST_BATCH = 2**16
HIGHEST_RATE = 1.0  # of Adam; the first release's --learning_rate=5 was hundredths, for SGD


def check_training(
    *, max_steps: int | None, batch_size: int, learning_rate: float, seed: int
) -> None:
    """Checks the numbers of a training.

    Args:
      max_steps: how many steps; None for a number that follows from the data.
      batch_size: examples a step.
      learning_rate: of Adam.
      seed: of the training.

    Raises:
      ValueError: if a number is out of range: no training ends after more steps, no memory holds a
        larger batch, nothing is learnt at a higher rate.
    """
    for name, value, most in (
        ("max_steps", max_steps, MOST_STEPS),
        ("batch_size", batch_size, LARGEST_BATCH),
    ):
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"{name}: expected from 1 to {most}, got {value}")
    if not 0.0 < learning_rate <= HIGHEST_RATE:
        raise ValueError(
            f"learning_rate: expected above 0 and at most {HIGHEST_RATE:g}, of Adam, got "
            f"{learning_rate}"
        )
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed: expected from 0 to 2**31 - 1, got {seed}")


# Reads small TOML files into checked values; every mistake is one line that names the file.


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Returns the tables of a TOML file.

    Raises:
      ValueError: if it is no TOML.
      OSError: if it can't be read.
    """
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: expected TOML, got something else: {reason}") from None


class Fields:
    """Takes the values of one table one by one; what is left at the end is a mistake.

    Args:
      where: begins every message: the file and the table.
      values: of the table.
    """

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: expected a table, got something else")
        self._where = where
        self._values = dict(values)

    def number(self, name: str, *, above: float = 0.0, most: float = math.inf) -> float:
        """Returns a finite number above `above` and up to `most`."""
        value = self._take(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not above < value <= most:
            limit = "" if math.isinf(most) else f" and up to {most:g}"
            raise ValueError(
                f"{self._where}: expected {name} as a number above {above:g}{limit}, got {value!r}"
            )
        return float(value)

    def whole(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        """Returns a whole number of at least `least`."""
        if default is not None and name not in self._values:
            return default
        value = self._take(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{self._where}: expected {name} as a whole number of at least {least}, got "
                f"{value!r}"
            )
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """Returns a text that is not empty."""
        if default is not None and name not in self._values:
            return default
        value = self._take(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{self._where}: expected {name} as a text, got {value!r}")
        return value

    def texts(self, name: str, *, among: Sequence[str]) -> tuple[str, ...]:
        """Returns a list of one or more different texts of `among`."""
        value = self._take(name)
        if not isinstance(value, list) or not value or not all(one in among for one in value):
            raise ValueError(
                f"{self._where}: expected {name} as a list of {', '.join(among)}, got {value!r}"
            )
        return tuple(dict.fromkeys(value))

    def table(self, name: str) -> "Fields":
        """Returns a table inside of this one."""
        return Fields(f"{self._where}, [{name}]", self._take(name))

    def tables(self, name: str) -> list["Fields"]:
        """Returns an array of one or more tables."""
        value = self._take(name)
        if not isinstance(value, list) or not value:
            raise ValueError(f"{self._where}: expected one or more [[{name}]], got none")
        return [
            Fields(f"{self._where}, [[{name}]] {place}", one) for place, one in enumerate(value, 1)
        ]

    def has(self, name: str) -> bool:
        """Whether there is such a value."""
        return name in self._values

    def end(self) -> None:
        """Raises ValueError if something was not taken."""
        if self._values:
            names = ", ".join(sorted(self._values))
            raise ValueError(f"{self._where}: expected nothing else, got {names}")

    def _take(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{self._where}: expected {name}, got none")
        return self._values.pop(name)
