"""The ledger: no label leaves before it is paid for, whatever happens."""

from pate_tf.ledger.ledger import Ledger
from pate_tf.ledger.rollback_guard import AllEnsembles, LedgerWarning
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
from pate_tf.ledger.together import (
    compose,
    num_answered_together,
    num_queries_together,
    paid_together,
)

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
