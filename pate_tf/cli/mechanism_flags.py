"""The flags of `--mechanism` and its parameters, from the registry of mechanisms."""

from collections.abc import Iterable, Iterator

from absl import flags

from pate_tf.accounting.mechanisms import Flag, Mechanism, Parameter, registry

FLAGS = flags.FLAGS
LEAST, MOST = 1e-9, 1e9  # of a parameter that must be positive; `noise.check_drawable` has 2**30


def define(*, default: str | None, help_text: str, in_analysis: bool = False) -> None:
    """Defines `--mechanism`, and a flag for each parameter that a mechanism offers.

    Args:
      default: of `--mechanism`.
      help_text: of `--mechanism`.
      in_analysis: whether the flags are those of an analysis.
    """
    known = [*registry.offered(), *([] if in_analysis else registry.adders())]
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
    offered, said = registry.offered(), set(given(in_analysis=in_analysis))
    if FLAGS.mechanism in registry.adders():
        return registry.adders()[FLAGS.mechanism]
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
    for parameter in _parameters(registry.offered().values()):
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
    parameters = _parameters(registry.offered().values())
    return list(dict.fromkeys(_flag(parameter, in_analysis) for parameter in parameters))
