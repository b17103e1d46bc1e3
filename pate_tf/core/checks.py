"""Checks of single values and arrays; messages are one line: `name: expected ..., got ...`.

The checks of single values take what they check by keyword, so that the message has its name:

    checks.positive(sigma=sigma, clip=clip)
    checks.between(0, 1, delta=delta)
    checks.whole(2, MOST_CLASSES, num_classes=num_classes)
    checks.one_of(KINDS, kind=kind)
    checks.shape([None, 10], votes=votes)

All raise ValueError; `raise_all` does with several faults at once. NaN, bool in the place of a
number and other types are refused. No message shows the entries of an array.
"""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

MOST_FAULTS: Final = 10  # that a message lists
ITEM: Final = "\n- "  # begins each line of a message of several


def raise_all(what: str, faults: Sequence[str], number: int | None = None) -> None:
    """Raises ValueError that lists faults, a line for each, if there are some.

    Args:
        what: begins the message.
        faults: of which the first `MOST_FAULTS` are shown.
        number: how many there are; None for those that are listed.
    """
    if not faults:
        return
    more = (len(faults) if number is None else number) - len(faults[:MOST_FAULTS])
    if len(faults) == 1 and not more:
        raise ValueError(f"{what}: {faults[0]}")
    lines = [f"{what}:", *faults[:MOST_FAULTS], *([f"and {more:,} more"] if more else [])]
    raise ValueError(ITEM.join(lines))


def positive(**numbers: Any) -> None:
    """Checks that numbers are above 0 and finite."""
    between(0, math.inf, **numbers)


def between(low: float, high: float, /, *, ends: str = "()", **numbers: Any) -> None:
    """Checks that numbers lie in an interval with neither end ("()"), both ("[]") or one of them.

    `between(0, math.inf, ends="(]", budget=budget)` allows infinity.
    """
    for name, value in numbers.items():
        is_number = isinstance(value, int | float | np.integer | np.floating)  # NaN fails below
        if not (
            is_number
            and not isinstance(value, bool)
            and (low < value or (ends[0] == "[" and value == low))
            and (value < high or (ends[1] == "]" and value == high))
        ):
            refuse(name, f"in {ends[0]}{low:.12g}, {high:.12g}{ends[1]}", value)


def whole(least: int = 1, most: int | None = None, /, **numbers: Any) -> None:
    """Checks that numbers are integers from `least` to `most`; None for no upper limit."""
    for name, value in numbers.items():
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            refuse(name, f"a whole number {limits}", value)


def one_of(choices: Collection[object], /, **values: object) -> None:
    """Checks that values are among a few, compared by type and value (True is not 1)."""
    for name, value in values.items():
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            refuse(name, f"one of {', '.join(map(str, choices))}", value)


def shape(expected: Sequence[Any], /, **arrays: Any) -> None:
    """Checks the shapes of arrays.

    Args:
        expected: for each axis its length; a name, or None, for one of any length.
        arrays: what has a `shape`.
    """
    for name, array in arrays.items():
        found = list(array.shape)
        pairs = zip(expected, found, strict=False)
        is_other = any(isinstance(axis, int) and axis != length for axis, length in pairs)
        if is_other or len(found) != len(expected):
            raise ValueError(f"{name}: expected {list(expected)}, got {found}")


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raises ValueError in one line; only scalars and short texts are shown, of others the type."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        got = repr(value)
        got = got if len(got) <= 80 else got[:77] + "..."
    else:
        got = type(value).__name__
    raise ValueError(f"{name}: expected {expected}, got {got}")


# Arrays with checked entries: whole numbers, labels, views that can't be written.
IntArray = npt.NDArray[np.int64]


def frozen_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a read-only view, so that a value can't change after it was checked."""
    view = array.view()
    view.flags.writeable = False
    return view


def whole_numbers(
    values: npt.ArrayLike, what: str, *, num_classes: int | None = None, lowest: int = 0
) -> IntArray:
    """Returns `values` as a new int64 array that can't be written.

    Args:
        values: numbers of any shape.
        what: begins the message.
        num_classes: of labels: they must lie from `lowest` to `num_classes - 1`. None for numbers
            of any size.
        lowest: the least number that a label may be.

    Raises:
        ValueError: if they are not finite whole numbers, or no such labels. The message never
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
    if num_classes is not None and not ((array >= lowest) & (array < num_classes)).all():
        raise ValueError(f"{what}: expected labels from {lowest} to {num_classes - 1}, got others")
    numbers = array.astype(np.int64)
    numbers.flags.writeable = False
    return numbers


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
