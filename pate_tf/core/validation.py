"""Validators and settings; messages are one line: `name: expected ..., got ...`.

The validators of single values take what they check by keyword, so that the message has its name:

    validation.positive(sigma=sigma, clip=clip)
    validation.between(0, 1, delta=delta)
    validation.whole(2, MOST_CLASSES, num_classes=num_classes)
    validation.one_of(KINDS, kind=kind)
    validation.shape(["num_queries", 10], votes=votes)

All raise ValueError; `raise_all` does with several faults at once. NaN, bool in the place of a
number and other types are refused. No message shows the entries of an array.
"""

import dataclasses
import math
import pathlib
import re
import tomllib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING
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
            _refuse(name, f"in {ends[0]}{low:.12g}, {high:.12g}{ends[1]}", value)


def whole(least: int = 1, most: int | None = None, /, **numbers: Any) -> None:
    """Checks that numbers are integers from `least` to `most`; None for no upper limit."""
    for name, value in numbers.items():
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            limits = f"of at least {least}" if most is None else f"from {least} to {most}"
            _refuse(name, f"a whole number {limits}", value)


def one_of(choices: Collection[object], /, **values: object) -> None:
    """Checks that values are among a few, compared by type and value (True is not 1)."""
    for name, value in values.items():
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            _refuse(name, f"one of {', '.join(map(str, choices))}", value)


def shape(expected: Sequence[Any], /, **arrays: Any) -> None:
    """Checks the shapes of arrays or tensors.

    Args:
        expected: for each axis its length, or the name of a length that is the same wherever it
            stands in this call, or None for any length; `...` at the end for any further axes.
        arrays: what has a `shape`.
    """
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        axes = list(expected)
        if expected and expected[-1] is ...:
            axes[-1:] = [None] * (len(array.shape) - len(axes) + 1)
        wanted = [lengths.get(axis, axis) if isinstance(axis, str) else axis for axis in axes]
        pairs = list(zip(wanted, array.shape, strict=False))
        if len(wanted) != len(array.shape) or any(
            isinstance(axis, int) and length is not None and axis != length
            for axis, length in pairs
        ):
            raise ValueError(f"{name}: expected {wanted}, got {list(array.shape)}")
        lengths.update(
            {axis: int(length) for axis, length in pairs if isinstance(axis, str) and length}
        )


def finite(**arrays: npt.ArrayLike) -> None:
    """Checks that the numbers of arrays are neither NaN nor infinite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers, got NaN or infinite ones")


def _refuse(name: str, expected: str, value: object) -> NoReturn:
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


# Settings: dataclasses whose fields say what they mean, what they may be, and their flag.
#
# A setting is stated once. Its class checks it when it is made, the command line makes a flag of it
# (`pate_tf.cli.flags`), and the guide's reference prints its help.


KEY = "pate_tf.setting"
FUNCTION = "module:function"
LONGEST_LINE = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of one field.

    Attributes:
        help: a sentence or more; the default is added where it is shown.
        group: heading of the flag in `--help`; empty for the class's own.
        flag: name of the flag; None for the field's name.
        choices: what a text, or each of a tuple, may be; None for any. `FUNCTION` among them
            stands for every function of the user's own.
        least: smallest number; of a whole number, a whole one.
        most: largest number.
        above: bound below a number, which it must exceed.
        below: bound above a number, which it must stay below.
        advanced: whether the flag stands in `--helpfull` alone.
    """

    help: str
    group: str = ""
    flag: str | None = None
    choices: Sequence[str] | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    advanced: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises ValueError unless a value is one that the setting may have; None always is."""
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if value is None:
            return
        if self.choices is not None:
            for each in value if isinstance(value, tuple) else (value,):
                # What is no text is an object of the user's own.
                is_function = FUNCTION in self.choices and ":" in str(each)
                if isinstance(each, str) and each not in self.choices and not is_function:
                    _refuse(name, f"one of {', '.join(self.choices)}", each)
        elif low is not None or high is not None:
            ends = "[" if self.least is not None else "("
            ends += "]" if self.most is not None else ")"
            low, high = -math.inf if low is None else low, math.inf if high is None else high
            between(low, high, ends=ends, **{name: value})
            if isinstance(self.least, int):
                whole(self.least, **{name: value})


def setting(default: Any = MISSING, **facts: Any) -> Any:
    """Returns a dataclass field with what `Setting` says of it.

    Args:
        default: of the field; none for one that must be given.
        **facts: as of `Setting`: `help`, `group`, `flag`, `choices`, `least`, `most`, ...
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(**facts)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of settings: checks every field by what `setting` said of it.

    Raises:
        ValueError: if a value is none that its setting may have, in one line that begins with the
            field's name.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if KEY in field.metadata:
                field.metadata[KEY].check(field.name, getattr(self, field.name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicationSettings(Settings):
    """What the holder says of a publication, for its privacy statement. Public."""

    holder: str | None = setting(
        None, group="output", help="Who releases the model, for the privacy statement."
    )
    purpose: str | None = setting(
        None, group="output", help="What the model is released for, for the privacy statement."
    )
    run_name: str | None = setting(
        None,
        group="output",
        help="Name of the release, for the privacy statement. Default: date and version number.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("holder", "purpose", "run_name"):
            text = getattr(self, name)
            is_line = isinstance(text, str) and text.strip() and text.isprintable()
            if text is not None and not (is_line and len(text) <= LONGEST_LINE):
                raise ValueError(
                    f"{name}: expected a line of up to {LONGEST_LINE} characters, got another text"
                )


def described(kind: type) -> Mapping[str, Setting]:
    """Returns the settings of a class by field, in order; fields without one are no settings."""
    fields = dataclasses.fields(kind)
    return {field.name: field.metadata[KEY] for field in fields if KEY in field.metadata}


def value_type(kind: type, name: str) -> tuple[type, bool]:
    """Returns what a field holds, without None: str, int, float, bool, Path; and whether a tuple.

    What is a name or an object of the user's own (`str | Callable`) is a name on a command line.
    """
    hint = typing.get_type_hints(kind)[name]
    for member in _members(hint):
        if typing.get_origin(member) in (tuple, Sequence):
            return _members(typing.get_args(member)[0])[0], True
    simple = [
        member for member in _members(hint) if member in (str, int, float, bool, pathlib.Path)
    ]
    if not simple:
        raise TypeError(f"{kind.__name__}.{name}: expected a type that a flag can give, got {hint}")
    return simple[0], False


def _members(hint: Any) -> list[Any]:
    """Returns the types of a union but None, or the type itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [each for each in typing.get_args(hint) if each is not types.NoneType]
    return [hint]


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


# Limits of a training, of teachers and students: no training ends after more steps, no memory holds
# a larger batch, nothing is learned at a higher rate.


MOST_STEPS = 10**9
LARGEST_BATCH = 2**16
HIGHEST_RATE = 1.0  # of Adam; the first release's --learning_rate=5 was hundredths, for SGD


# Small TOML files become checked values; every mistake is one line that names the file.


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

    @classmethod
    def read(cls, path: pathlib.Path) -> "Fields":
        """Returns the fields of a TOML file.

        Raises:
            ValueError: if it is no TOML.
            OSError: if it can't be read.
        """
        try:
            return cls(str(path), tomllib.loads(path.read_bytes().decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path}: expected TOML, got something else: {reason}") from None

    def number(self, name: str, *, above: float = 0.0, most: float = math.inf) -> float:
        """Returns a finite number above `above` and up to `most`."""
        value = self._take(name)
        ends = "()" if math.isinf(most) else "(]"
        between(above, most, ends=ends, **{f"{self._where}: {name}": value})
        return float(value)

    def whole(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        """Returns a whole number of at least `least`."""
        value = self._take(name, default)
        whole(least, **{f"{self._where}: {name}": value})
        return int(value)

    def text(self, name: str, *, default: str | None = None) -> str:
        """Returns a text that is not empty."""
        value = self._take(name, default)
        if not isinstance(value, str) or (not value.strip() and value != default):
            _refuse(f"{self._where}: {name}", "a text", value)
        return value

    def texts(self, name: str, *, among: Sequence[str]) -> tuple[str, ...]:
        """Returns a list of one or more different texts of `among`."""
        value = self._take(name)
        if not isinstance(value, list) or not value or not all(text in among for text in value):
            _refuse(f"{self._where}: {name}", f"a list of {', '.join(among)}", value)
        return tuple(dict.fromkeys(value))

    def settings(self, kind: type, *, without: Collection[str] = ()) -> dict[str, Any]:
        """Returns the values of a class of settings that stand here, by field; it checks them."""
        values: dict[str, Any] = {}
        for name, each in described(kind).items():
            if self.has(name) and name not in without:
                is_of, is_list = value_type(kind, name)
                if is_list:
                    values[name] = self.texts(name, among=each.choices or ())
                elif is_of is float:
                    values[name] = self.number(name, above=-math.inf)
                else:
                    values[name] = self.whole(name, least=0) if is_of is int else self.text(name)
        return values

    def table(self, name: str) -> "Fields":
        """Returns a table inside of this one."""
        return Fields(f"{self._where}, [{name}]", self._take(name))

    def tables(self, name: str) -> list["Fields"]:
        """Returns an array of one or more tables."""
        value = self._take(name)
        if not isinstance(value, list) or not value:
            _refuse(self._where, f"one or more [[{name}]]", value)
        return [
            Fields(f"{self._where}, [[{name}]] {place}", each)
            for place, each in enumerate(value, 1)
        ]

    def has(self, name: str) -> bool:
        """Whether there is such a value."""
        return name in self._values

    def end(self) -> None:
        """Raises ValueError if something was not taken."""
        if self._values:
            names = ", ".join(sorted(self._values))
            raise ValueError(f"{self._where}: expected nothing else, got {names}")

    def _take(self, name: str, default: Any = None) -> Any:
        if name not in self._values and default is None:
            raise ValueError(f"{self._where}: expected {name}, got none")
        return self._values.pop(name, default)
