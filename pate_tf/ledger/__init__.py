"""The ledger: no label is released before it is charged, whatever happens."""

from pate_tf.ledger.journal import (
    BudgetExceeded,
    BudgetMismatch,
    EnsembleMismatch,
    Head,
    LedgerError,
    LedgerRow,
    StoredAnswer,
)
from pate_tf.ledger.ledger import (
    Ledger,
    Spending,
    compose,
    distinct_rows,
)
from pate_tf.ledger.rollback_guard import LedgerWarning, SensitiveWarning, SourceSpending

__all__ = [
    "BudgetExceeded",
    "BudgetMismatch",
    "EnsembleMismatch",
    "Head",
    "Ledger",
    "LedgerError",
    "LedgerRow",
    "LedgerWarning",
    "SensitiveWarning",
    "SourceSpending",
    "Spending",
    "StoredAnswer",
    "compose",
    "distinct_rows",
]
