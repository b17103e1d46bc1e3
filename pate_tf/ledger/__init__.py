"""The ledger: no label is released before it is charged, whatever happens."""

from pate_tf.core.sensitive import SensitiveWarning as SensitiveWarning
from pate_tf.ledger.journal import BudgetExceeded as BudgetExceeded
from pate_tf.ledger.journal import BudgetMismatch as BudgetMismatch
from pate_tf.ledger.journal import Head as Head
from pate_tf.ledger.journal import LedgerError as LedgerError
from pate_tf.ledger.journal import LedgerRow as LedgerRow
from pate_tf.ledger.journal import StoredAnswer as StoredAnswer
from pate_tf.ledger.ledger import Ledger as Ledger
from pate_tf.ledger.ledger import Spending as Spending
from pate_tf.ledger.ledger import compose as compose
from pate_tf.ledger.ledger import distinct_rows as distinct_rows
from pate_tf.ledger.rollback_guard import LedgerWarning as LedgerWarning
