"""Every local randomiser by its name, and whatever else a silo can be charged for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.local.base import LocalRandomiser
from pate_tf.accounting.local.secure_histogram import SecureHistogram

LOCAL_RANDOMISERS: dict[str, type[LocalRandomiser]] = {}
SILO_CHARGES: dict[str, type[Charge]] = {SecureHistogram.name: SecureHistogram}

Kind = TypeVar("Kind", bound=type[LocalRandomiser])


def register(kind: Kind) -> Kind:
    """Makes a local randomiser known: to ledgers of silos, policies and statements.

    Raises:
        ValueError: if its name is taken, or it lacks words or help.
    """
    if kind.name in SILO_CHARGES:
        raise ValueError(f"expected a new name for a local randomiser, got {kind.name!r} again")
    lacking = [what for what in ("help", "words") if not getattr(kind, what, "")]
    if lacking:
        raise ValueError(f"{kind.name}: expected {' and '.join(lacking)}, got none")
    LOCAL_RANDOMISERS[kind.name] = kind
    SILO_CHARGES[kind.name] = kind
    return kind


def silo_charge_from_dict(fields: Mapping[str, Any]) -> Charge:
    """Returns the charge of a silo that its `to_dict` described.

    Raises:
        ValueError: if the name is unknown or the fields are not exactly the charge's own.
    """
    values = dict(fields)
    name = values.pop("name", None)
    if name not in SILO_CHARGES:
        raise ValueError(f"expected a charge of {sorted(SILO_CHARGES)}, got {name!r}")
    kind = SILO_CHARGES[name]
    expected = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(values) != expected:
        raise ValueError(f"expected fields {sorted(expected)} of {name}, got {sorted(values)}")
    return kind(**values)
