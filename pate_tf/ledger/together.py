"""What several ledgers cost together; one is the simplest case."""

from collections.abc import Sequence
from typing import Protocol

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.ledger.payments import PAYMENTS, paid_by, payment_identity
from pate_tf.ledger.rows import LedgerRow, Spending


class HasHistory(Protocol):
    """A ledger, as far as its sums need one."""

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        ...


def compose(
    ledgers: Sequence[HasHistory], *, delta: float, conversion: str = "improved"
) -> Spending:
    """Returns what several ledgers cost together, for ensembles trained on the same records.

    Everything paid counts, whether or not its labels were ever released. Of copies of one ledger
    that went on apart, every branch counts, and what they have in common once: rows are the same
    if their digests are, which depend on all rows before.

    Args:
      ledgers: the ledgers.
      delta: the one delta that the sum holds at.
      conversion: from moments to epsilon, "improved" (default) or "classic"; with "classic" no
        composition theorem other than moments is used.

    Raises:
      ValueError: if delta is outside (0, 1) or the conversion is unknown.
    """
    paid = paid_together(ledgers)
    epsilon, moment = composition.smallest_epsilon(paid, delta, conversion=conversion)
    return Spending(
        epsilon=epsilon,
        delta=delta,
        moment=moment,
        num_queries=num_queries_together(ledgers),
        num_answered=num_answered_together(ledgers),
    )


def paid_together(ledgers: Sequence[HasHistory]) -> dict[Charge, int]:
    """Returns what several ledgers paid for; see `compose`."""
    return dict(paid_by(_distinct(ledgers)))


def num_queries_together(ledgers: Sequence[HasHistory]) -> int:
    """Returns how many queries several ledgers paid for; see `compose`."""
    paid = [row.details for row in _distinct(ledgers) if row.kind in PAYMENTS]
    return sum(details.get("num_queries", 0) for details in paid)


def num_answered_together(ledgers: Sequence[HasHistory]) -> int:
    """Returns how many labels left several ledgers; see `compose`."""
    answers = [row.details for row in _distinct(ledgers) if row.kind == "answers"]
    return sum(details["num_answered"] for details in answers)


def _distinct(ledgers: Sequence[HasHistory]) -> list[LedgerRow]:
    rows = {payment_identity(row): row for ledger in ledgers for row in ledger.history()}
    return list(rows.values())
