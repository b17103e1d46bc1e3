"""Settings: dataclasses whose fields say what they mean, what they may be, and their flag.

A setting is stated once. Its class checks it when it is made, the command line makes a flag of it
(`pate_tf.cli.command_line`), and the guide's reference prints its help.
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
    """Returns a dataclass field with what `Setting` says of it.

    Args:
        default: of the field; none for one that must be given.
        **facts: as of `Setting`: `help`, `group`, `flag`, `choices`, `least`, `most`, ...
    """
    return dataclasses.field(default=default, metadata={KEY: Setting(**facts)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of settings: checks every field by what `setting` said of it.

    Attributes:
        restated: what a class says otherwise of settings that it inherits, by field: the facts of
            `Setting` that differ. They stand last, in this order.

    Raises:
        ValueError: if a value is none that its setting may have, in one line that begins with the
            field's name.
    """

    restated: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        for name, each in described(type(self)).items():
            each.check(name, getattr(self, name))


def described(kind: type) -> Mapping[str, Setting]:
    """Returns the settings of a class by field, in order; fields without one are no settings."""
    fields = dataclasses.fields(kind)
    found = {field.name: field.metadata[KEY] for field in fields if KEY in field.metadata}
    for base in reversed(kind.__mro__):
        for name, facts in vars(base).get("restated", {}).items():
            found[name] = dataclasses.replace(found.pop(name), **facts)
    return found


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


# Limits of a training, of teachers and students: no training ends after more steps, no memory holds
# a larger batch, nothing is learned at a higher rate.
MOST_STEPS = 10**9
LARGEST_BATCH = 2**16
HIGHEST_RATE = 1.0  # of Adam; the first release's --learning_rate=5 was hundredths, for SGD


LONGEST_LINE = 200


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonDelta:
    """The two numbers of a guarantee of differential privacy.

    Attributes:
        epsilon: bounds how far one record, or owner, can change the probability of any outcome.
        delta: that epsilon holds at; 0 for a pure guarantee.
    """

    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtDelta:
    """What says several epsilons, all at one delta.

    Attributes:
        delta: that each of them holds at.
    """

    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtectedUnit:
    """Whom a guarantee is for.

    Attributes:
        unit: "record", or "owner" with all records of that owner.
    """

    unit: str = setting(
        "record",
        group="mechanisms",
        advanced=True,
        choices=("record", "owner"),
        help="What is protected.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seeded(Settings):
    """What draws at random. No privacy noise comes from `seed`."""

    seed: int = setting(0, least=0, most=2**31 - 1, help="Seed of all random choices.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherNumber(Settings):
    """What has teachers, as many as a person says, or as follow where that is None."""

    num_teachers: int | None = setting(
        None, flag="nb_teachers", least=1, help="Number of teachers."
    )
