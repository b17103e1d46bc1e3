"""Settings: dataclasses whose fields have a help text, allowed values and a flag.

Each setting is declared once. Its class checks it, the command line makes a flag of it
(`pate_tf.cli.command_line`), and the guide prints its help.
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
    """Facts about one field.

    Attributes:
        help: one or more sentences; `--help` adds the default.
        group: heading of the flag in `--help`; empty for the heading of the class.
        flag: name of the flag; None for the field's name.
        choices: allowed texts, or allowed items of a tuple; None for any text. If `FUNCTION` is
            among them, all functions of the user are allowed, too.
        least: smallest allowed number; an int for whole numbers.
        most: largest allowed number.
        above: exclusive lower bound.
        below: exclusive upper bound.
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
    advanced: bool = False

    def check(self, name: str, value: object) -> None:
        """Raises ValueError unless the value is allowed; None is always allowed."""
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if value is None:
            return
        if self.choices is not None:
            for each in value if isinstance(value, tuple) else (value,):
                # Other objects come from the user.
                is_function = FUNCTION in self.choices and ":" in str(each)
                if isinstance(each, str) and each not in self.choices and not is_function:
                    refuse(name, f"one of {', '.join(self.choices)}", each)
        elif low is not None or high is not None:
            ends = "[" if self.least is not None else "("
            ends += "]" if self.most is not None else ")"
            low = -math.inf if low is None else low
            high = math.inf if high is None else high
            between(low, high, ends=ends, **{name: value})
            if isinstance(self.least, int):
                whole(self.least, **{name: value})


def setting(default: Any = MISSING, **facts: Any) -> Any:
    """Returns a dataclass field with a `Setting`.

    Args:
        default: default of the field. If it is not passed, the field is required.
        **facts: attributes of `Setting`: `help`, `group`, `flag`, `choices`, `least`, `most`, ...
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(**facts)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings; checks every field by its `Setting`.

    Attributes:
        restated: changed facts of inherited settings, by field. These settings come after all
            others, in this order.

    Raises:
        ValueError: if a value is not allowed. The message is one line that begins with the field's
            name.
    """

    restated: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        for name, each in described(type(self)).items():
            each.check(name, getattr(self, name))


def described(kind: type) -> Mapping[str, Setting]:
    """Returns the settings of a class by field, in order; skips fields without a `Setting`."""
    fields = dataclasses.fields(kind)
    found = {field.name: field.metadata[KEY] for field in fields if KEY in field.metadata}
    for base in reversed(kind.__mro__):
        for name, facts in vars(base).get("restated", {}).items():
            found[name] = dataclasses.replace(found.pop(name), **facts)
    return found


def value_type(kind: type, name: str) -> tuple[type, bool]:
    """Returns a field's type without None (str, int, float, bool, Path), and whether it is a tuple.

    A setting that takes a name or an object (`str | Callable`) takes a name on the command line.
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
    """Returns the types of a union except None, or the type itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return [each for each in typing.get_args(hint) if each is not types.NoneType]
    return [hint]


# Limits for the training of teachers and students. Larger values are mistakes.
MAX_STEPS = 10**9
MAX_BATCH = 2**16
MAX_RATE = 1.0  # of Adam; in the first version, --learning_rate=5 meant 0.05 for SGD


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
    """The two numbers of a guarantee of differential privacy.

    Attributes:
        epsilon: bounds how much one record, or owner, can change the probability of any outcome.
        delta: delta of the guarantee; 0 for pure differential privacy.
    """

    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtDelta:
    """Base class of results with several epsilons at one delta.

    Attributes:
        delta: delta of all epsilons.
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
        help="The protected unit: single records, or owners with all their records.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """Settings with a seed. Privacy noise never uses `seed`."""

    seed: int = setting(0, least=0, most=2**31 - 1, help="Seed of all random choices.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherNumber(Settings):
    """Settings with a number of teachers; None if the number is computed."""

    num_teachers: int | None = setting(
        None, flag="nb_teachers", least=1, help="Number of teachers."
    )
