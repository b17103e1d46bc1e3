"""Settings: dataclasses whose fields say what they mean, what they may be, and their flag.

A setting is stated once. Its class checks it when it is made, the command line makes a flag of it
(`pate_tf.cli.flags`), and the guide's reference prints its help.
"""

import dataclasses
import math
import pathlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

KEY = "pate_tf.setting"
LONGEST_LINE = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of one field.

    Attributes:
        help: a sentence or more; the default is added where it is shown.
        group: heading of the flag in `--help`; empty for the class's own.
        flag: name of the flag; None for the field's name.
        choices: what a text may be; None for any.
        least: smallest number.
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
        if value is None:
            return
        if self.choices is not None:
            if isinstance(value, str) and value not in self.choices:
                raise ValueError(f"{name}: expected {_either(self.choices)}, got {value!r}")
            return
        if {self.least, self.most, self.above, self.below} == {None}:
            return
        fits = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        if not fits:
            raise ValueError(f"{name}: expected {self._limits()}, got {value!r}")

    def _limits(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.least:.15g} to {self.most:.15g}"
        limits = (
            ("at least", self.least),
            ("above", self.above),
            ("at most", self.most),
            ("below", self.below),
        )
        found = [f"{words} {limit:.15g}" for words, limit in limits if limit is not None]
        return " and ".join(found + ["finite"] * (len(found) == 1))


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
        for name, each in described(type(self)).items():
            each.check(name, getattr(self, name))


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
    for one in _members(hint):
        if typing.get_origin(one) in (tuple, Sequence):
            return _members(typing.get_args(one)[0])[0], True
    simple = [one for one in _members(hint) if one in (str, int, float, bool, pathlib.Path)]
    if not simple:
        raise TypeError(f"{kind.__name__}.{name}: expected a type that a flag can give, got {hint}")
    return simple[0], False


def _members(hint: Any) -> list[Any]:
    """Returns the types of a union but None, or the type itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [one for one in typing.get_args(hint) if one is not types.NoneType]
    return [hint]


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last
