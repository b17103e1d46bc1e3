"""The ledger: no label leaves before it is paid for, whatever happens."""

from pate_tf.ledger.ledger import Ledger, compose
from pate_tf.ledger.rows import (
    BudgetExceeded,
    BudgetMismatch,
    EnsembleMismatch,
    Head,
    LedgerError,
    LedgerRow,
    Spending,
    StoredAnswer,
)

__all__ = [
    "BudgetExceeded",
    "BudgetMismatch",
    "EnsembleMismatch",
    "Head",
    "Ledger",
    "LedgerError",
    "LedgerRow",
    "Spending",
    "StoredAnswer",
    "compose",
]
