"""Every mechanism by its name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.parameters import Flag

MECHANISMS: dict[str, type[Mechanism]] = {}

Kind = TypeVar("Kind", bound=type[Mechanism])


def register(kind: Kind) -> Kind:
    """Makes a mechanism known: to records, flags, calibration and statements.

    Raises:
        ValueError: if its name is taken, it lacks something and does not say why in `lacks`, or one
            of its flags has the name of another mechanism's different one.
    """
    if kind.name in MECHANISMS:
        raise ValueError(f"expected a new name for a mechanism, got {kind.name!r} again")
    unexplained = [what for what in missing(kind) if what not in kind.lacks]
    if unexplained:
        raise ValueError(
            f"{kind.name}: expected a reason in `lacks` for what it lacks, got none for "
            f"{', '.join(unexplained)}"
        )
    known = flags()
    for parameter in kind.parameters:
        for flag in parameter.flags:
            if known.get(flag.name, flag) != flag:
                raise ValueError(
                    f"{kind.name}: expected the flag {flag.name} as other mechanisms have it, got "
                    "another of that name"
                )
    MECHANISMS[kind.name] = kind
    return kind


def missing(kind: type[Mechanism]) -> list[str]:
    """Returns what a mechanism lacks of what the family asks for, by the keys of `lacks`."""

    def overrides(*names: str) -> bool:
        return any(
            vars(base).get(name) is not None
            for base in kind.__mro__[: kind.__mro__.index(Mechanism)]
            for name in names
        )

    there = {
        "draw": overrides("draw"),
        "words": bool(kind.words),
        "flags": {parameter.field for parameter in kind.parameters}
        == {field.name for field in dataclasses.fields(kind)},
        "calibration": overrides("of_scale"),
        "bounds": bool(kind.bounds),
        "outcome law": overrides("outcome_probabilities"),
        "dp event": overrides("to_dp_event", "noise_multipliers", "pure_epsilon"),
    }
    return [what for what, is_there in there.items() if not is_there]


def flags() -> dict[str, Flag]:
    """Returns every flag of every mechanism, by its name."""
    return {
        flag.name: flag
        for kind in MECHANISMS.values()
        for parameter in kind.parameters
        for flag in parameter.flags
    }


def offered() -> dict[str, type[Mechanism]]:
    """Returns the mechanisms that draw and whose parameters have flags, by name in order."""
    return {
        name: kind
        for name, kind in sorted(MECHANISMS.items())
        if not {"draw", "flags"} & set(kind.lacks)
    }


def adders() -> dict[str, type[Mechanism]]:
    """Returns the mechanisms that add up records and ask no teacher, by name in order."""
    return {name: kind for name, kind in sorted(MECHANISMS.items()) if kind.adds_records}


def check_mechanism(given: object) -> None:
    """Raises ValueError unless something is a registered mechanism's value."""
    if type(given) not in MECHANISMS.values():
        raise ValueError(
            f"mechanism: expected one such as LaplaceNoisyMax.of_scale(5.0), got "
            f"{type(given).__name__}"
        )


def mechanism_from_dict(fields: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism that `Mechanism.to_dict` described.

    Raises:
        ValueError: if the name is unknown or the fields are not exactly the mechanism's own.
    """
    values = dict(fields)
    name = values.pop("name", None)
    if name not in MECHANISMS:
        raise ValueError(f"expected a mechanism of {sorted(MECHANISMS)}, got {name!r}")
    kind = MECHANISMS[name]
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(values) != expected:
        raise ValueError(f"expected fields {sorted(expected)} of {name}, got {sorted(values)}")
    return kind(**values)
