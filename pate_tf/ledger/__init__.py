"""The privacy ledger: the cost of every release is stored on disk before noise is drawn."""

from pate_tf.core.sensitive import SensitiveWarning as SensitiveWarning
from pate_tf.ledger.ledger_file import BudgetExceeded as BudgetExceeded
from pate_tf.ledger.ledger_file import BudgetMismatch as BudgetMismatch
from pate_tf.ledger.ledger_file import Head as Head
from pate_tf.ledger.ledger_file import LedgerError as LedgerError
from pate_tf.ledger.ledger_file import LedgerRow as LedgerRow
from pate_tf.ledger.privacy_ledger import Ledger as Ledger
from pate_tf.ledger.privacy_ledger import Spending as Spending
from pate_tf.ledger.privacy_ledger import compose as compose
from pate_tf.ledger.privacy_ledger import distinct_rows as distinct_rows
from pate_tf.ledger.rollback_guard import LedgerWarning as LedgerWarning
