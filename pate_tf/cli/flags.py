"""Flags: made from the dataclasses of settings, and those of mechanisms from their registry."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from absl import flags

from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Flag, Mechanism, Parameter, base
from pate_tf.cli import command_line
from pate_tf.core.settings import Setting, described, value_type
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
    """Defines a flag for each setting of a dataclass (`pate_tf.core.settings`).

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
        flags.DEFINE_list(flag, [str(one) for one in default or ()] or default, each.help)
    elif is_of is bool:
        flags.DEFINE_boolean(flag, default, each.help)
    elif is_of is int:
        flags.DEFINE_integer(flag, default, each.help)
    elif is_of is float:
        flags.DEFINE_float(flag, default, each.help)
    elif each.choices is not None:
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
            values[name] = tuple(_converted(name, is_of, one) for one in value)
        else:
            is_none = value is None or (value == "" and is_of is pathlib.Path)
            values[name] = None if is_none else is_of(value)
        try:
            each.check(name, values[name])
        except ValueError as error:
            raise command_line.FlagValueError(str(error)) from None
    return values


def _converted(name: str, is_of: type, text: str) -> Any:
    try:
        return is_of(text)
    except ValueError:
        raise ValueError(f"{name}: expected numbers with commas between, got {text!r}") from None


def flag_of_argument(*kinds: type) -> dict[str, str]:
    """Returns the flag that gives an argument of the library, where the names differ.

    Of arguments that several dataclasses have, the first one's counts.
    """
    table: dict[str, str] = {}
    for kind in kinds:
        for name, each in described(kind).items():
            table.setdefault(name, each.flag or name)
    return {name: flag for name, flag in table.items() if name != flag}


def names_of(kind: type) -> list[str]:
    """Returns the names of the flags of a dataclass."""
    return [each.flag or name for name, each in described(kind).items()]


# The flags that name a user's own data: two tables with a schema, or two folders of images.


NAMES = ("public", "schema", "label", "name", "image_size")


def define_data_flags(*, with_private: bool) -> None:
    """Defines the flags.

    Args:
        with_private: whether the command may open private records.
    """
    without = () if with_private else ("private", "owner")
    define(FileSource, group="data", without=without)


def own_files(*, with_private: bool) -> FileSource | None:
    """Returns the files that the flags name; None for none.

    Raises:
        ValueError: if flags are missing that belong together, or --dataset is given too.
    """
    names = (*NAMES, *(("private", "owner") if with_private else ()))
    given = {name: FLAGS[name].value for name in names if FLAGS[name].present}
    if not given:
        return None
    for name in ("public", *(("private",) if with_private else ())):
        if not given.get(name):
            raise ValueError(f"{name}: expected it with --{next(iter(given))}, got none")
    for name in ("dataset", "data_dir"):
        if FLAGS[name].present:
            raise ValueError(f"{name}: expected --{name} or --public, got both")
    return read(FileSource)


# The flags of `--mechanism` and its parameters, from the registry of mechanisms.


LEAST, MOST = 1e-9, 1e9  # of a parameter that must be positive; `noise.check_drawable` has 2**30


_SHARED: set[str] = set()  # parameters of mechanisms that are settings of the command, too


def define_mechanism_flags(
    *, default: str | None, help_text: str, in_analysis: bool = False
) -> None:
    """Defines `--mechanism`, and a flag for each parameter that a mechanism offers.

    Args:
        default: of `--mechanism`.
        help_text: of `--mechanism`.
        in_analysis: whether the flags are those of an analysis.
    """
    flags.DEFINE_enum("mechanism", default, list(base.offered()), help_text)
    command_line.shown_in_help("mechanism", "privacy")
    end = ", or what the ledger says" if in_analysis else ""
    for flag in _distinct(in_analysis):
        if flag.name in FLAGS:  # --epsilon is what a release costs, of a gate too
            _SHARED.add(flag.name)
            continue
        command_line.shown_in_help(flag.name, "mechanisms", advanced=True)
        help_of_flag = f"{flag.help} Default: {default_in_words(flag)}{end}."
        if flag.is_whole:
            flags.DEFINE_integer(flag.name, None, help_of_flag, lower_bound=0)
            continue
        flags.DEFINE_float(flag.name, None, help_of_flag)
        if flag.is_positive:
            flags.register_validator(
                flag.name,
                lambda value: value is None or LEAST <= value <= MOST,
                message=f"expected a number from {LEAST:g} to {MOST:g}",
            )
        else:
            flags.register_validator(
                flag.name,
                lambda value: value is None or abs(value) < float("inf"),
                message="expected a finite number",
            )


def default_in_words(flag: Flag) -> str:
    """Returns what a flag is where it is not given."""
    if not flag.same_as:
        return f"{flag.default:g}"
    share = {1.0: "that", 1.0 / 3.0: "a third"}.get(flag.share, f"{flag.share:g} times that")
    return f"{share} of --{flag.same_as}"


def names(*, in_analysis: bool = False) -> list[str]:
    """Returns the names of the parameters' flags."""
    return [flag.name for flag in _distinct(in_analysis)]


def given(*, in_analysis: bool = False) -> list[str]:
    """Returns the names of the parameters' flags that were given."""
    own = [name for name in names(in_analysis=in_analysis) if name not in _SHARED]
    return [name for name in own if FLAGS[name].value is not None]


def chosen_kind(*, in_analysis: bool = False) -> type[Mechanism]:
    """Returns the mechanism that `--mechanism` names, else the default one.

    Without a default, the first of `laplace_noisy_max` and `gaussian_noisy_max` that has the
    parameters which were given.

    Raises:
        ValueError: if a parameter was given that the mechanism does not have.
    """
    offered, said = base.offered(), set(given(in_analysis=in_analysis))
    kinds = [offered[name] for name in ("laplace_noisy_max", "gaussian_noisy_max")]
    kind = offered[FLAGS.mechanism] if FLAGS.mechanism else kinds[0]
    if not FLAGS.mechanism:
        kind = next(
            (one for one in kinds if said <= set(names_of_kind(one, in_analysis=in_analysis))), kind
        )
    own = names_of_kind(kind, in_analysis=in_analysis)
    for name in sorted(said - set(own)):
        expected = " and ".join(f"--{one}" for one in own) or "no parameter"
        raise ValueError(f"{name}: expected {expected} for {kind.name}, got --{name}")
    return kind


def chosen(*, in_analysis: bool = False) -> Mechanism:
    """Returns the mechanism that the flags describe, with defaults for what was not given.

    Raises:
        ValueError: as `chosen_kind`, or if a parameter is out of range.
    """
    kind = chosen_kind(in_analysis=in_analysis)
    values = {}
    for parameter in kind.parameters:
        flag = _flag(parameter, in_analysis)
        said = FLAGS[flag.name].value
        if said is None:
            others = {"delta": DEFAULT_DELTA}  # of an analysis that was given none
            if flag.same_as and FLAGS[flag.same_as].value is not None:
                others[flag.same_as] = FLAGS[flag.same_as].value
            said = flag.by_default(others)
        values[parameter.field] = flag.to_field(said)
    return kind(**values)


def said_fields() -> dict[str, object]:
    """Returns what an analysis was told of a ledger's mechanism: its name and fields."""
    said: dict[str, object] = {"name": FLAGS.mechanism} if FLAGS.mechanism else {}
    for parameter in _parameters(base.offered().values()):
        flag = _flag(parameter, in_analysis=True)
        if FLAGS[flag.name].value is not None:
            said[parameter.field] = flag.to_field(FLAGS[flag.name].value)
    return said


def _parameters(kinds: Iterable[type[Mechanism]]) -> Iterator[Parameter]:
    for kind in kinds:
        yield from kind.parameters


def _flag(parameter: Parameter, in_analysis: bool) -> Flag:
    return (parameter.analysis_flag or parameter.flag) if in_analysis else parameter.flag


def names_of_kind(kind: type[Mechanism], *, in_analysis: bool = False) -> list[str]:
    """Returns the names of the flags that a mechanism's parameters have."""
    return [_flag(parameter, in_analysis).name for parameter in kind.parameters]


def _distinct(in_analysis: bool) -> list[Flag]:
    parameters = _parameters(base.offered().values())
    return list(dict.fromkeys(_flag(parameter, in_analysis) for parameter in parameters))
