"""Checks values and arrays. A failed check raises ValueError: `name must be ..., got ...`.

Pass each value by keyword, so that the message contains the name of the value:

    checks.positive(sigma=sigma, clip=clip)
    checks.between(0, 1, delta=delta)
    checks.whole(2, MAX_CLASSES, num_classes=num_classes)
    checks.one_of(KINDS, kind=kind)
    checks.shape([None, 10], votes=votes)

Where a number is expected, NaN, a bool and every other type are errors. `raise_all` reports several
errors at once. No message contains entries of an array.
"""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

MAX_FAULTS: Final = 10  # maximum number of faults in one message
ITEM: Final = "\n- "  # separates the lines of a message with several faults
GUIDE: Final = "https://pate-tf.readthedocs.io/en/latest"  # address of the guide, in messages


def raise_all(what: str, faults: Sequence[str], number: int | None = None) -> None:
    """Raises ValueError with one line for each fault; returns if there are no faults.

    Args:
        what: beginning of the message.
        faults: description of each fault. The message contains the first `MAX_FAULTS` descriptions.
        number: total number of faults, if `faults` does not contain all faults. Default:
            `len(faults)`.
    """
    if not faults:
        return
    more = (len(faults) if number is None else number) - len(faults[:MAX_FAULTS])
    if len(faults) == 1 and not more:
        raise ValueError(f"{what}: {faults[0]}")
    lines = [f"{what}:", *faults[:MAX_FAULTS], *([f"and {more:,} more"] if more else [])]
    raise ValueError(ITEM.join(lines))


def positive(**numbers: Any) -> None:
    """Checks that numbers are above 0 and finite."""
    between(0, math.inf, **numbers)


def between(low: float, high: float, /, *, ends: str = "()", hint: str = "", **values: Any) -> None:
    """Checks that numbers are in an interval that excludes ("()") or includes ("[]") its ends.

    For example, with `between(0, math.inf, ends="(]", budget=budget)`, 0 is an error and infinity
    is allowed. `hint` follows the interval in the message.
    """
    for name, value in values.items():
        is_number = isinstance(value, int | float | np.integer | np.floating)  # NaN fails below
        if not (
            is_number
            and not isinstance(value, bool)
            and (low < value or (ends[0] == "[" and value == low))
            and (value < high or (ends[1] == "]" and value == high))
        ):
            refuse(name, f"a number in {ends[0]}{low:.12g}, {high:.12g}{ends[1]}{hint}", value)


def whole(least: int = 1, most: int | None = None, /, **numbers: Any) -> None:
    """Checks that numbers are integers from `least` to `most` (no upper limit if None)."""
    for name, value in numbers.items():
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            refuse(name, f"a whole number {limits}", value)


def one_of(choices: Collection[object], /, **values: object) -> None:
    """Checks that values are among the choices, compared by type and value (True is not 1)."""
    for name, value in values.items():
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            refuse(name, f"one of {', '.join(map(str, choices))}", value)


def shape(expected: Sequence[Any], /, **arrays: Any) -> None:
    """Checks the shapes of arrays.

    Args:
        expected: length of each axis. Use a text or None for an axis of any length; the message
            shows the text.
        arrays: objects with a `shape`.
    """
    for name, array in arrays.items():
        found = list(array.shape)
        pairs = zip(expected, found, strict=False)
        is_other = any(isinstance(axis, int) and axis != length for axis, length in pairs)
        if is_other or len(found) != len(expected):
            wanted = ", ".join(map(str, expected))
            raise ValueError(f"{name} must have the shape [{wanted}], got {found}")


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raises ValueError with the value, or with its type if it is neither a number nor a text."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        got = repr(value)
        got = got if len(got) <= 80 else got[:77] + "..."
    else:
        got = type(value).__name__
    raise ValueError(f"{name} must be {expected}, got {got}")


# Arrays with checked entries: whole numbers, labels, read-only views.
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
SingleArray = npt.NDArray[np.float32]
RealArray = npt.NDArray[np.floating]


def frozen_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a read-only view, so that a checked array can't change."""
    view = array.view()
    view.flags.writeable = False
    return view


def whole_numbers(
    values: npt.ArrayLike, what: str, *, below: int | None = None, lowest: int = 0
) -> IntArray:
    """Returns `values` as a new read-only int64 array.

    Args:
        values: numbers of any shape.
        what: beginning of the message.
        below: exclusive upper bound of the numbers; None for no upper bound.
        lowest: inclusive lower bound of the numbers, if `below` is given.

    Raises:
        ValueError: if an entry of `values` is not a finite whole number or is out of range. The
            message contains no entry.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_ or array.dtype.kind not in "iuf":
        raise ValueError(f"{what} must be whole numbers, got an array of type {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{what} must be whole numbers, got NaN or infinite entries")
        if (array != np.floor(array)).any():
            raise ValueError(f"{what} must be whole numbers, got fractions")
        if array.size and np.abs(array).max() >= 2.0**53:
            raise ValueError(f"{what} must be below 2**53")
    elif array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what} must be below 2**63")
    if below is not None and not ((array >= lowest) & (array < below)).all():
        raise ValueError(f"{what} must be from {lowest} to {below - 1}")
    numbers = array.astype(np.int64)
    numbers.flags.writeable = False
    return numbers


# Names that are allowed in files and certificates.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(name: object, what: str) -> str:
    """Returns a name that is allowed in files and certificates.

    Raises:
        ValueError: unless the name consists of 1 to 64 letters, digits, dots, hyphens or
            underscores, and begins with a letter or digit.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{what} must have 1 to 64 letters, digits, dots, hyphens or underscores")
    return name
