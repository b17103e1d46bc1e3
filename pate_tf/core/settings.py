"""Settings: dataclasses whose fields say what they mean, what they may be, and their flag.

A setting is stated once. Its class checks it when it is made, the command line makes a flag of it
(`pate_tf.cli.flags`), and the guide's reference prints its help.
"""

import dataclasses
import math
import pathlib
import secrets
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from pate_tf.core import validation

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
        low = self.least if self.above is None else self.above
        high = self.most if self.below is None else self.below
        if value is None:
            return
        if self.choices is not None:
            if isinstance(value, str):  # else an object of the user's own
                validation.one_of(self.choices, **{name: value})
        elif low is not None or high is not None:
            ends = "[" if self.least is not None else "("
            ends += "]" if self.most is not None else ")"
            low, high = -math.inf if low is None else low, math.inf if high is None else high
            validation.between(low, high, ends=ends, **{name: value})


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


# Settings and results of a run, for TensorBoard.


def write_result(
    folder: pathlib.Path, settings: Mapping[str, Any], results: Mapping[str, float]
) -> None:
    """Writes one row of TensorBoard's HPARAMS page.

    Args:
        folder: of the row; rows in folders side by side are shown together.
        settings: by name; numbers, text and booleans stay what they are, all else becomes text.
        results: by name; each is a scalar at step 0 too.
    """
    import tensorflow as tf
    from tensorboard.plugins.hparams import api as hparams_plugin

    values = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in settings.items()
    }
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step=0):
        hparams_plugin.hparams_config(
            hparams=[hparams_plugin.HParam(name) for name in values],
            metrics=[hparams_plugin.Metric(name) for name in results],
        )
        # Not the folder's path, which tells where somebody keeps their files; nor its name, by
        # which TensorBoard would put the first versions of several students into one row.
        hparams_plugin.hparams(values, trial_id=secrets.token_hex(8))
        for name, value in results.items():
            tf.summary.scalar(name, value)
    writer.close()
