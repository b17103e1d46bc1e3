"""Base classes of settings: each field has a help text, allowed values and a flag.

Each setting is declared once, as a field of a dataclass. The class checks the value, the command
line creates a flag from the field (`pate_tf.cli.command_line`), and the guide prints the help text.
"""

import dataclasses
import math
import pathlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any, ClassVar

from pate_tf.core.checks import between, refuse, whole

KEY = "pate_tf.setting"
FUNCTION = "module:function"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Describes one setting: its help text, its flag and its allowed values.

    Attributes:
        help: help text of one or more sentences. `--help` appends the default value.
        group: heading of the flag in `--help`; empty for the heading of the class.
        flag: name of the flag; None if it equals the name of the field.
        choices: allowed texts (for a tuple, allowed items); None if any text is allowed. If
            `choices` contains `FUNCTION`, the user may also pass any function.
        least: smallest allowed number; an int for whole numbers.
        most: largest allowed number.
        above: exclusive lower bound.
        below: exclusive upper bound.
        hint: text that follows the interval of allowed numbers in a message.
        advanced: whether only `--helpfull` shows the flag.
    """

    help: str
    group: str = ""
    flag: str | None = None
    choices: Sequence[str] | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    hint: str = ""
    advanced: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises ValueError unless the value is allowed; None is always allowed."""
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if value is None:
            return
        if self.choices is not None:
            for each in value if isinstance(value, tuple) else (value,):
                # An object that is not a text, such as a function, is always accepted.
                is_function = FUNCTION in self.choices and ":" in str(each)
                if isinstance(each, str) and each not in self.choices and not is_function:
                    refuse(name, f"one of {', '.join(self.choices)}", each)
        elif low is not None or high is not None:
            ends = "[" if self.least is not None else "("
            ends += "]" if self.most is not None else ")"
            low = -math.inf if low is None else low
            high = math.inf if high is None else high
            between(low, high, ends=ends, hint=self.hint, **{name: value})
            if isinstance(self.least, int):
                whole(self.least, **{name: value})


def setting(default: Any = MISSING, **facts: Any) -> Any:
    """Returns a dataclass field that is described by a `Setting`.

    Args:
        default: default value of the field. Without it, the field is required.
        **facts: attributes of `Setting`: `help`, `group`, `flag`, `choices`, `least`, `most`, ...
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(**facts)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings. It checks the value of every field against the field's `Setting`.

    Attributes:
        restated: for a subclass, maps the names of inherited fields to changed attributes of their
            `Setting`. In `--help`, these settings come last, in this order.

    Raises:
        ValueError: if a value is not allowed. The message is one line that begins with the field's
            name.
    """

    restated: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        for name, each in described(type(self)).items():
            each.check(name, getattr(self, name))


def described(kind: type) -> Mapping[str, Setting]:
    """Returns the `Setting` of each field of a class, in order. Other fields are skipped."""
    fields = dataclasses.fields(kind)
    found = {field.name: field.metadata[KEY] for field in fields if KEY in field.metadata}
    for base in reversed(kind.__mro__):
        for name, facts in vars(base).get("restated", {}).items():
            found[name] = dataclasses.replace(found.pop(name), **facts)
    return found


def value_type(kind: type, name: str) -> tuple[type, bool]:
    """Returns the type of a field or of its items, and whether the field is a tuple.

    The type is str, int, float, bool or Path; None in a union is ignored. For a field that takes a
    name or an object (`str | Callable`), the type is str, because the command line takes only
    names.
    """
    hint = typing.get_type_hints(kind)[name]
    for member in _members(hint):
        if typing.get_origin(member) in (tuple, Sequence):
            return _members(typing.get_args(member)[0])[0], True
    simple = [
        member for member in _members(hint) if member in (str, int, float, bool, pathlib.Path)
    ]
    if not simple:
        raise TypeError(f"{kind.__name__}.{name}: a flag can't have the type {hint}")
    return simple[0], False


def _members(hint: Any) -> list[Any]:
    """Returns the types of a union without None; for any other type, a list with only this type."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [each for each in typing.get_args(hint) if each is not types.NoneType]
    return [hint]


# Limits of training settings. Larger values are certainly mistakes.
MAX_STEPS = 10**9
MAX_BATCH = 2**16
MAX_RATE = 1.0  # for Adam; earlier versions used SGD, and --learning_rate=5 meant a rate of 0.05


MAX_LINE = 200  # characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicationSettings(Settings):
    """Public facts about a publication, for its privacy statement."""

    holder: str | None = setting(
        None,
        group="output",
        help="Name of the organization that releases the model, for the privacy statement.",
    )
    purpose: str | None = setting(
        None, group="output", help="Purpose of the model, for the privacy statement."
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
            if text is not None and not (is_line and len(text) <= MAX_LINE):
                raise ValueError(f"{name} must be one line of at most {MAX_LINE} characters")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonDelta:
    """The parameters epsilon and delta of a differential privacy guarantee.

    Attributes:
        epsilon: epsilon of the guarantee, in natural logarithms.
        delta: delta of the guarantee; 0 for pure differential privacy.
    """

    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtDelta:
    """Base class of results that contain several values of epsilon for the same delta.

    Attributes:
        delta: delta for which all values of epsilon hold.
    """

    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtectedUnit:
    """The unit that a guarantee protects.

    Attributes:
        unit: "record", or "owner" for all records of one owner.
    """

    unit: str = setting(
        "record",
        group="mechanisms",
        advanced=True,
        choices=("record", "owner"),
        help="What the guarantee protects: individual records, or owners with all their records.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """Settings with a seed. The privacy noise never depends on the seed."""

    seed: int = setting(0, least=0, most=2**31 - 1, help="Seed of all random choices.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherNumber(Settings):
    """Settings with a number of teachers. None means that the number is computed."""

    num_teachers: int | None = setting(
        None, flag="nb_teachers", least=1, help="Number of teachers."
    )
