"""Reads any charge back from a record: the one list of families of charges."""

from collections.abc import Iterable, Mapping
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.cost_release import release_from_dict
from pate_tf.accounting.local import SILO_CHARGES, silo_charge_from_dict
from pate_tf.accounting.mechanisms import mechanism_from_dict
from pate_tf.accounting.noisy_training import training_from_dict


def charge_from_dict(fields: Mapping[str, Any]) -> Charge:
    """Returns the charge that `Charge.to_dict` described.

    Raises:
        ValueError: if the fields are those of no charge.
    """
    if fields.get("name") in SILO_CHARGES:
        return silo_charge_from_dict(fields)
    if "release" in fields:
        return release_from_dict(fields)
    return training_from_dict(fields) if "training" in fields else mechanism_from_dict(fields)


def charges_from_list(listed: Iterable[Mapping[str, Any]]) -> tuple[tuple[Charge, int], ...]:
    """Returns the charges of `Cost.before` from what `Cost.to_dict` wrote, and how often each.

    Raises:
        ValueError: if one is no charge, or its number is below 1.
    """
    charges = tuple((charge_from_dict(row["charge"]), int(row["number"])) for row in listed)
    if any(number < 1 for _, number in charges):
        raise ValueError("number: expected charges of at least one each, got others")
    return charges
