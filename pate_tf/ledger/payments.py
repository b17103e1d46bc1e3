"""What rows of a ledger paid for, whichever version wrote them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.ledger.rows import LedgerError, LedgerRow, canonical_json

# Versions 1 and 2 wrote "debit" for queries and, since 2, "release" for plans.
PAYMENTS = ("debit", "release")


def payment(row: LedgerRow) -> tuple[Charge, int]:
    """Returns what a row of one of `PAYMENTS` paid for, and how often.

    Raises:
      LedgerError: if this program does not know that charge.
    """
    fields, number = charge_fields(row)
    try:
        return charge_from_dict(fields), number
    except (ValueError, TypeError) as error:
        raise LedgerError(
            f"row {row.sequence} paid for something unknown here; import what defines it: {error}"
        ) from error


def charge_fields(row: LedgerRow) -> tuple[Mapping[str, Any], int]:
    """Returns the record of the charge that a row paid for, and how often it did."""
    details = row.details
    if "charge" in details:
        return details["charge"], int(details["number"])
    if row.kind == "release":
        return details["plan"], 1
    return details["mechanism"], int(details["num_queries"])


def paid_by(rows: Iterable[LedgerRow]) -> Counter[Charge]:
    """Returns what rows paid for; those of other kinds pay for nothing."""
    paid: Counter[Charge] = Counter()
    for row in rows:
        if row.kind in PAYMENTS:
            charge, number = payment(row)
            paid[charge] += number
    return paid


def batches_before(
    history: Iterable[LedgerRow], mechanism: Charge, *, last: int
) -> Counter[Charge]:
    """Returns the batches that were paid for once each and led to labels of a mechanism.

    All of them if it is itself paid once for a batch, with its own; else those that stayed shut.

    Args:
      history: rows of a ledger.
      mechanism: what drew the labels.
      last: sequence of the last row that paid for them.
    """
    payments: dict[int, tuple[Charge, int]] = {}
    shut: set[int] = set()
    for row in history:
        if row.kind in PAYMENTS and row.sequence <= last:
            charge, times = payment(row)
            if charge.is_paid_once:
                payments[row.sequence] = (charge, times)
        elif row.kind == "answers" and not row.details["num_answered"]:
            shut.add(row.details["debit"])
    together: Counter[Charge] = Counter()
    for sequence, (charge, times) in payments.items():
        if mechanism.is_paid_once or sequence in shut:
            together[charge] += times
    return together


def payment_identity(row: LedgerRow) -> str:
    """Returns the digest of the row that paid first, where a row carries over another's payment."""
    return str(row.details.get("carried_from", row.digest))


def payment_record(row: LedgerRow) -> str | None:
    """Returns what the registry notes of a row that paid; None for one of another kind."""
    if row.kind not in PAYMENTS:
        return None
    fields, number = charge_fields(row)
    return canonical_json(
        {
            "charge": dict(fields),
            "number": number,
            "num_queries": int(row.details.get("num_queries", 0)),
            "secure_noise": bool(row.details.get("secure_noise", True)),
            "carried_from": payment_identity(row),
        }
    )
