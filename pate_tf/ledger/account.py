"""The rows of a ledger, what they add up to, and what is known of them elsewhere, in step."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pate_tf.ledger.budget import Budget
from pate_tf.ledger.chain import Chain, fault_point
from pate_tf.ledger.memory import AllEnsembles, Memory, Missing
from pate_tf.ledger.payments import PAYMENTS, payment, payment_identity
from pate_tf.ledger.rows import LedgerError, LedgerRow


class Account:
    """A chain of rows with its running sums, and the memory that notes them.

    Args:
      chain: the rows on disk.
      memory: what notes them; None for a ledger that is only read.

    Attributes:
      chain: the rows.
      memory: what notes them.
      budget: what the rows add up to, as far as this object has read them.
      opened: the row that opened the ledger; None before there is one.
    """

    def __init__(self, chain: Chain, memory: Memory | None = None) -> None:
        self.chain = chain
        self.memory = memory
        self.budget = Budget()
        self.opened: LedgerRow | None = None
        self._held: dict[str, int] = {}

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return self.chain.folder

    def close(self) -> None:
        """Closes the files; the object can't be used afterwards."""
        self.chain.close()
        if self.memory is not None:
            self.memory.close()

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        return tuple(self.chain.rows())

    def catch_up(self) -> None:
        """Reads the rows that were written since."""
        with self.chain.transaction():
            rows = self.chain.catch_up()
        self._record(rows)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing; see `Ledger.exclusive`."""
        with self.chain.exclusive():
            self.catch_up()
            if (missing := self.missing()) is not None:
                raise LedgerError(missing.reason)
            yield

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Makes one row durable, and returns it."""
        return self.commit(lambda: [self.chain.append(kind, details)])

    def commit(self, append: Callable[[], Sequence[LedgerRow]]) -> LedgerRow:
        """Makes rows durable together and returns the last."""
        with self.chain.transaction():
            rows = append()
            row = rows[-1]
            fault_point(f"{row.kind}_written")
        self._record(rows)
        fault_point(f"{row.kind}_committed")
        self.chain.note_head()
        self.note(rows)
        fault_point(f"{row.kind}_noted")
        return row

    def missing(self) -> Missing | None:
        """Returns what was seen of this ledger and is not in it."""
        if self.memory is None or self.opened is None:
            return None
        return self.memory.missing_from(self.opened, self._held, self.budget.acknowledged)

    def note(self, rows: Sequence[LedgerRow]) -> None:
        """Tells the memory of rows that are durable."""
        if self.memory is not None and self.opened is not None:
            self.memory.note(self.opened, rows)

    def all_ensembles(self) -> AllEnsembles | None:
        """Returns what all known ensembles of the same records paid; None without a registry."""
        if self.opened is None:
            return None
        own = {
            payment_identity(row): payment(row) for row in self.chain.rows() if row.kind in PAYMENTS
        }
        memory = Memory(self.folder) if self.memory is None else self.memory
        try:
            return memory.all_ensembles(self.opened, own)
        finally:
            if memory is not self.memory:
                memory.close()

    def _record(self, rows: Sequence[LedgerRow]) -> None:
        for row in rows:
            if row.kind == "opened":
                self.opened = row
            self._held[row.digest] = row.sequence
            self.budget.record(row)
