"""Flags: made from the dataclasses of settings, and those of mechanisms from their registry."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any, TypeVar

from absl import flags

from pate_tf.accounting.mechanisms import Mechanism, base
from pate_tf.cli import command_line
from pate_tf.core.validation import FUNCTION, Setting, described, value_type
from pate_tf.data.data_source import FileSource

FLAGS = flags.FLAGS
Kind = TypeVar("Kind")

# Flags of settings' dataclasses.


def define(
    kind: type,
    *,
    group: str,
    without: Iterable[str] = (),
    advanced: Iterable[str] = (),
    **defaults: Any,
) -> None:
    """Defines a flag for each setting of a dataclass (`pate_tf.core.validation`).

    A flag that another class defined before is shared: same name, same meaning.

    Args:
        kind: the dataclass.
        group: heading in `--help` of settings that name none.
        without: fields that this command has no flag for.
        advanced: flags that stand in this command's `--helpfull` alone, besides those that say so.
        **defaults: of fields whose default in this command is another.
    """
    values = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, each in described(kind).items():
        flag = each.flag or name
        if name in without:
            continue
        is_advanced = each.advanced or flag in advanced
        command_line.shown_in_help(flag, each.group or group, advanced=is_advanced)
        if flag in FLAGS:
            continue
        default = defaults.get(name, values[name])
        _define(kind, name, flag, each, None if default is dataclasses.MISSING else default)


def _define(kind: type, name: str, flag: str, each: Setting, default: Any) -> None:
    is_of, is_list = value_type(kind, name)
    if is_list:
        flags.DEFINE_list(flag, [str(value) for value in default or ()] or default, each.help)
    elif is_of is bool:
        flags.DEFINE_boolean(flag, default, each.help)
    elif is_of is int:
        flags.DEFINE_integer(flag, default, each.help)
    elif is_of is float:
        flags.DEFINE_float(flag, default, each.help)
    elif each.choices is not None and FUNCTION not in each.choices:
        flags.DEFINE_enum(flag, default, list(each.choices), each.help)
    else:
        flags.DEFINE_string(flag, None if default is None else str(default), each.help)


def read(kind: type[Kind], **values: Any) -> Kind:
    """Returns the settings that the flags give.

    Args:
        kind: the dataclass, whose flags `define` defined.
        **values: of fields that no flag gives, or that the command worked out.

    Raises:
        FlagValueError: if a value is none that its setting may have.
        ValueError: if values do not fit each other.
    """
    return kind(**{**values_of(kind), **values})


def values_of(kind: type) -> dict[str, Any]:
    """Returns the values that flags give the settings of a dataclass, by field.

    Raises:
        FlagValueError: if a value is none that its setting may have.
    """
    values: dict[str, Any] = {}
    for name, each in described(kind).items():
        flag = each.flag or name
        if flag not in FLAGS:
            continue
        is_of, is_list = value_type(kind, name)
        value = FLAGS[flag].value
        if is_list and value is not None:
            try:
                values[name] = tuple(is_of(text) for text in value)
            except ValueError:
                raise ValueError(
                    f"{name}: expected numbers with commas between, got {','.join(value)!r}"
                ) from None
        else:
            is_none = value is None or (value == "" and is_of is pathlib.Path)
            values[name] = None if is_none else is_of(value)
        try:
            each.check(name, values[name])
        except ValueError as error:
            raise command_line.FlagValueError(str(error)) from None
    return values


def flag_of_argument(*kinds: type) -> dict[str, str]:
    """Returns the flag that gives an argument of the library, where the names differ.

    Of arguments that several dataclasses have, the first one's counts.
    """
    table: dict[str, str] = {}
    for kind in kinds:
        for name, each in described(kind).items():
            table.setdefault(name, each.flag or name)
    return {name: flag for name, flag in table.items() if name != flag}


# The flags that name a user's own data: two tables with a schema, or two folders of images.


OF_PRIVATE = ("private", "owner", "on_bad_record")


def define_data_flags(*, with_private: bool) -> None:
    """Defines the flags.

    Args:
        with_private: whether the command may open private records.
    """
    define(FileSource, group="data", without=() if with_private else OF_PRIVATE)


def own_files(*, with_private: bool, needs_public: bool = True) -> FileSource | None:
    """Returns the files that the flags name; None for none.

    Args:
        with_private: whether private records may be opened, and have to be named.
        needs_public: whether public ones have to be named where no private ones are.

    Raises:
        ValueError: if flags are missing that belong together, or --dataset is given too.
    """
    names = [name for name in described(FileSource) if with_private or name not in OF_PRIVATE]
    given = {name: FLAGS[name].value for name in names if FLAGS[name].present}
    if not given:
        return None
    for name in ("private",) if with_private else ("public",) * needs_public:
        if not given.get(name):
            raise ValueError(f"{name}: expected it with --{next(iter(given))}, got none")
    for name in ("dataset", "data_dir"):
        if name in FLAGS and FLAGS[name].present:
            raise ValueError(f"{name}: expected --{name} or --{next(iter(given))}, got both")
    return read(FileSource)


# The flags of `--mechanism` and its parameters, from the registry of mechanisms.


SHARED = ("epsilon",)  # a gate's epsilon is that of the release
DEFAULTS = {"lap_scale": 20.0, "noise_eps": 0.1}  # as in the first release


def define_mechanism_flags(*, default: str | None, help_text: str) -> None:
    """Defines `--mechanism`, and a flag for each parameter that a mechanism offers.

    Args:
        default: of `--mechanism`.
        help_text: of `--mechanism`.
    """
    flags.DEFINE_enum("mechanism", default, list(base.offered()), help_text)
    command_line.shown_in_help("mechanism", "privacy")
    for kind in base.offered().values():
        define_parameters(kind)


def define_parameters(kind: type[Mechanism], *, in_analysis: bool = False) -> None:
    """Defines a flag for each parameter of a mechanism; without a value where none is given.

    In an analysis a gamma is `--noise_eps` alone, as in the first release.
    """
    without = () if in_analysis else ("gamma",)
    nothing: dict[str, Any] = dict.fromkeys(described(kind))
    define(kind, group="mechanisms", without=without, **nothing)
    if "gamma" in nothing and not in_analysis and "lap_scale" not in FLAGS:
        flags.DEFINE_float(
            "lap_scale",
            None,
            "Scale b of the noise, in votes: Lap(b), or gamma = 1/b for the other mechanisms with "
            f"a gamma. Default: {DEFAULTS['lap_scale']:g}.",
        )
        command_line.shown_in_help("lap_scale", "mechanisms", advanced=True)


def parameters(kind: type[Mechanism], *, in_analysis: bool = False) -> dict[str, str]:
    """Returns the name of the flag of each parameter of a mechanism, by field."""
    return {
        field: "lap_scale" if field == "gamma" and not in_analysis else each.flag or field
        for field, each in described(kind).items()
    }


def given() -> list[str]:
    """Returns the names of the parameters' flags that were given."""
    tables = map(parameters, base.offered().values())
    names = dict.fromkeys(name for table in tables for name in table.values())
    return [name for name in names if name not in SHARED and FLAGS[name].value is not None]


def chosen_kind() -> type[Mechanism]:
    """Returns the mechanism that `--mechanism` names, else the default one.

    Without a default, the first of `laplace_noisy_max` and `gaussian_noisy_max` that has the
    parameters which were given.

    Raises:
        ValueError: if a parameter was given that the mechanism does not have.
    """
    offered, typed = base.offered(), set(given())
    kinds = [offered[name] for name in ("laplace_noisy_max", "gaussian_noisy_max")]
    if FLAGS.mechanism:
        kinds = [offered[FLAGS.mechanism]]
    names = [set(parameters(kind).values()) for kind in kinds]
    place = next((place for place, some in enumerate(names) if typed <= some), 0)
    for name in sorted(typed - names[place]):
        expected = parameters(kinds[place]).values()
        raise ValueError(
            f"{name}: expected {' and '.join(f'--{each}' for each in expected)} for "
            f"{kinds[place].name}, got --{name}"
        )
    return kinds[place]


def chosen(kind: type[Mechanism] | None = None, *, in_analysis: bool = False) -> Mechanism:
    """Returns the mechanism that the flags describe.

    Args:
        kind: the mechanism; that of `chosen_kind` by default.
        in_analysis: as of `define_parameters`.

    Raises:
        ValueError: as `chosen_kind`, or if a parameter is missing or out of range.
    """
    kind = kind or chosen_kind()
    required = {
        field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
    }
    values: dict[str, Any] = {}
    intervals = described(kind)
    for field, flag in parameters(kind, in_analysis=in_analysis).items():
        value = FLAGS[flag].value
        value = DEFAULTS.get(flag) if value is None else value
        try:
            intervals[field].check(flag, value)
        except ValueError as error:
            raise command_line.FlagValueError(str(error)) from None
        if value is not None:
            values["scale" if flag == "lap_scale" else field] = value
        elif field in required:
            raise ValueError(f"{flag}: expected a number for {kind.name}, got none")
    return kind(**values)
