"""Flags that several commands share: a user's own data, mechanisms, plans."""

import pathlib
from collections.abc import Iterable, Iterator

from absl import flags

from pate_tf.accounting.mechanisms import Flag, Mechanism, Parameter, base
from pate_tf.accounting.planning import DEFAULT_MARGIN
from pate_tf.api.files import FileSource
from pate_tf.cli import command_line

# The flags that name a user's own data: two tables with a schema, or two folders of images.


FLAGS = flags.FLAGS
NAMES = ("public", "schema", "label")


def define_data_flags(*, with_private: bool) -> None:
    """Defines the flags.

    Args:
      with_private: whether the command may open private records.
    """
    if with_private:
        flags.DEFINE_string(
            "private",
            None,
            "Private records, instead of --dataset: a file of comma-separated values or Parquet, "
            "or a folder with a folder of images for each class. --public goes with it.",
        )
        flags.DEFINE_string(
            "owner",
            None,
            "Column that says whose a private record is: all records of one owner go to one "
            "teacher. Default: what the schema says, if anything.",
        )
    flags.DEFINE_string(
        "public",
        None,
        "Public records, instead of --dataset: a file, or a folder of images. They need no labels.",
    )
    flags.DEFINE_string(
        "schema",
        None,
        "Of files: a TOML file with each column's range or categories, and the classes, from "
        "public knowledge; pate-schema drafts it from the public file.",
    )
    flags.DEFINE_string("label", None, "Of files: the label's column. Default: the schema's.")


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
    return FileSource(
        public=pathlib.Path(given["public"]),
        private=command_line.path(given.get("private")),
        schema=command_line.path(given.get("schema")),
        label=given.get("label"),
        owner=given.get("owner"),
    )


# The flags of `--mechanism` and its parameters, from the registry of mechanisms.


FLAGS = flags.FLAGS
LEAST, MOST = 1e-9, 1e9  # of a parameter that must be positive; `noise.check_drawable` has 2**30


def define_mechanism_flags(
    *, default: str | None, help_text: str, in_analysis: bool = False
) -> None:
    """Defines `--mechanism`, and a flag for each parameter that a mechanism offers.

    Args:
      default: of `--mechanism`.
      help_text: of `--mechanism`.
      in_analysis: whether the flags are those of an analysis.
    """
    known = [*base.offered(), *([] if in_analysis else base.adders())]
    flags.DEFINE_enum("mechanism", default, known, help_text)
    end = ", or what the ledger says" if in_analysis else ""
    for flag in _distinct(in_analysis):
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
    return [name for name in names(in_analysis=in_analysis) if FLAGS[name].value is not None]


def chosen_kind(*, in_analysis: bool = False) -> type[Mechanism]:
    """Returns the mechanism that `--mechanism` names, else the default one.

    Without a default, the first of `laplace_noisy_max` and `gaussian_noisy_max` that has the
    parameters which were given.

    Raises:
      ValueError: if a parameter was given that the mechanism does not have.
    """
    offered, said = base.offered(), set(given(in_analysis=in_analysis))
    if FLAGS.mechanism in base.adders():
        return base.adders()[FLAGS.mechanism]
    kinds = [offered[name] for name in ("laplace_noisy_max", "gaussian_noisy_max")]
    kind = offered[FLAGS.mechanism] if FLAGS.mechanism else kinds[0]
    if not FLAGS.mechanism:
        kind = next((one for one in kinds if said <= set(_own(one, in_analysis))), kind)
    own = _own(kind, in_analysis)
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
            others = {flag.same_as: FLAGS[flag.same_as].value} if flag.same_as else {}
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


def _own(kind: type[Mechanism], in_analysis: bool) -> list[str]:
    return [_flag(parameter, in_analysis).name for parameter in kind.parameters]


def _distinct(in_analysis: bool) -> list[Flag]:
    parameters = _parameters(base.offered().values())
    return list(dict.fromkeys(_flag(parameter, in_analysis) for parameter in parameters))


# The flags of a plan: what it assumes of votes that nobody has looked at.


def define_plan_flags(*, needed: str) -> None:
    """Defines `--margin` and `--exceptions`.

    Args:
      needed: the flag that they go with.
    """
    flags.DEFINE_float(
        "margin",
        DEFAULT_MARGIN,
        f"With {needed}: what the plan assumes of every query, that the first class leads "
        "the second by this share of the teachers. A guess from public values, never to be "
        "measured on the votes.",
    )
    flags.DEFINE_integer(
        "exceptions",
        0,
        f"With {needed}: queries on which the plan assumes that teachers are divided.",
        lower_bound=0,
    )
    flags.register_validator(
        "margin", lambda value: 0.0 < value <= 1.0, message="expected a share of the teachers"
    )
