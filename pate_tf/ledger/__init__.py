"""The ledger: no label leaves before it is paid for, whatever happens."""

from pate_tf.ledger.chain import (
    BudgetExceeded,
    BudgetMismatch,
    EnsembleMismatch,
    Head,
    LedgerError,
    LedgerRow,
    Spending,
    StoredAnswer,
)
from pate_tf.ledger.ledger import (
    Ledger,
    compose,
    num_answered_together,
    num_queries_together,
    paid_together,
)
from pate_tf.ledger.rollback_guard import AllEnsembles, LedgerWarning

__all__ = [
    "AllEnsembles",
    "BudgetExceeded",
    "BudgetMismatch",
    "EnsembleMismatch",
    "Head",
    "Ledger",
    "LedgerError",
    "LedgerRow",
    "LedgerWarning",
    "Spending",
    "StoredAnswer",
    "compose",
    "num_answered_together",
    "num_queries_together",
    "paid_together",
]
