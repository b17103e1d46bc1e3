"""A silo's own account: what it paid, and the one answer that each query ever gets.

Rows and answers lie in a chain of hashes (`pate_tf.ledger.chain`). Queries are known by their
digest, so that the same query in two batches, of whatever run or coordinator, is paid for once and
answered with the same stored answer. Sealed shares are of one batch: the parties draw fresh noise
for every batch, so a query that was asked under them is not answered again in another.
"""

import base64
import contextlib
import datetime
import pathlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import fits, smallest_epsilon
from pate_tf.accounting.local import silo_charge_from_dict
from pate_tf.ledger.chain import Chain
from pate_tf.ledger.rows import LedgerError, LedgerRow

DAY_SECONDS = 24 * 60 * 60


class Account:
    """SENSITIVE: one silo's debits and answers.

    Attributes:
      silo: name of the silo.
      epsilon_budget: the budget in force.
      delta: the delta in force.
      was_raised: True for ever once the budget or its delta was raised.

    Raises:
      LedgerError: if the account is damaged, was changed, or belongs to another silo.
    """

    def __init__(
        self, folder: pathlib.Path | None, *, silo: str, epsilon_budget: float, delta: float
    ) -> None:
        """Opens an account, or a new one.

        Args:
          folder: sensitive; gets mode 0700. None for a simulation, which forgets everything when
            it ends: then nothing is private.
          silo: name of the silo; fixed at first use.
          epsilon_budget: of everything that the silo ever answers. Another one than before is
            recorded for ever.
          delta: that it holds at; likewise.
        """
        self.silo, self.epsilon_budget, self.delta = silo, epsilon_budget, delta
        self.was_raised = False
        self._paid: Counter[Charge] = Counter()
        self._charges: dict[bytes, tuple[int, Charge]] = {}
        self._debits: list[tuple[float, int]] = []
        self._sealing: dict[str, int] = {}
        self._sealed: dict[str, tuple[bytes, ...]] = {}
        self._labels: dict[bytes, int] = {}
        self._pending: list[LedgerRow] = []
        self._is_opened = False
        self._numbers = (epsilon_budget, delta)
        self._chain = None if folder is None else Chain(folder, read_only=False, must_exist=False)
        try:
            numbers = {"epsilon_budget": epsilon_budget, "delta": delta}
            with self.exclusive(), self._transaction():
                if not self._is_opened:
                    salt = secrets.token_hex(16)
                    self._append("opened", {"silo": silo, "salt": salt, **numbers})
                elif self._numbers != (epsilon_budget, delta):
                    self._append("budget", numbers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files."""
        if self._chain is not None:
            self._chain.close()

    def __repr__(self) -> str:
        return f"Account(<of {self.silo}>)"

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing; brings this object up to date.

        Raises:
          LedgerError: if another process holds the account for two minutes, or it was changed.
        """
        if self._chain is None:
            yield
            return
        with self._chain.exclusive():
            with self._chain.transaction():
                self._catch_up()
            self._chain.note_head()
            yield

    @property
    def num_queries(self) -> int:
        """How many queries were paid for."""
        return self._paid.total()

    def paid(self) -> dict[Charge, int]:
        """Returns what was paid for, and how often."""
        return dict(self._paid)

    def epsilon(self) -> float:
        """Returns what all debits cost together, at delta, for the whole silo."""
        return smallest_epsilon(self._paid, self.delta)[0]

    def can_pay(self, charge: Charge, number: int) -> bool:
        """Whether so many more of a charge fit into the budget."""
        with_them = Counter(self._paid)
        with_them[charge] += number
        return fits(with_them, self.delta, self.epsilon_budget)

    def num_paid_within_a_day(self) -> int:
        """Returns how many queries were paid for in the last 24 hours by this machine's clock."""
        since = time.time() - DAY_SECONDS
        return sum(number for when, number in self._debits if when >= since)

    def charge_of(self, query: bytes) -> Charge | None:
        """Returns what a query was charged as; None if it was not paid for."""
        found = self._charges.get(query)
        return None if found is None else found[1]

    def debit(
        self, charge: Charge, queries: Sequence[bytes], *, number: int, batch: str | None = None
    ) -> None:
        """Charges durably; call it inside `exclusive`. Nothing may be drawn before it returns.

        Args:
          charge: of each query.
          queries: digests, distinct and not paid for yet.
          number: how many are charged.
          batch: key of the batch whose sealed shares this pays for; None for labels.

        Raises:
          LedgerError: if it can't be made durable; then it may have been charged.
        """
        details = {
            "charge": charge.to_dict(),
            "number": number,
            "queries": [query.hex() for query in queries],
            "batch": batch,
        }
        with self._transaction():
            self._append("debit", details)

    def is_paid_batch(self, batch: str) -> bool:
        """Whether sealed shares of a batch were paid for, sent or not."""
        return batch in self._sealing

    def labels(self, queries: Sequence[bytes]) -> dict[bytes, int]:
        """Returns the stored answers, randomised, by query."""
        if self._chain is None:
            return {query: self._labels[query] for query in queries if query in self._labels}
        stored = self._chain.stored_answers(queries)
        return {query: one.label for query, one in stored.items() if one.label is not None}

    def store_labels(self, labels: Mapping[bytes, int]) -> None:
        """Stores the answers of paid queries durably; call it inside `exclusive`.

        Raises:
          LedgerError: if a query was not paid for or was answered before, or they can't be made
            durable; then none may be sent.
        """
        by_debit: dict[int, list[bytes]] = {}
        for query in labels:
            if query not in self._charges:
                raise LedgerError("account: expected queries that were paid for, got others")
            by_debit.setdefault(self._charges[query][0], []).append(query)
        with self._transaction():
            for debit, queries in by_debit.items():
                answers = [labels[query] for query in queries]
                if self._chain is None:
                    self._labels.update(zip(queries, answers, strict=True))
                else:
                    self._chain.append_answers(debit, queries, answers)

    def sealed(self, batch: str) -> tuple[bytes, ...] | None:
        """Returns the sealed shares of a batch, as they were stored; None without."""
        return self._sealed.get(batch)

    def store_sealed(self, batch: str, sealed: Sequence[bytes]) -> None:
        """Stores the sealed shares of a paid batch durably; call it inside `exclusive`.

        Raises:
          LedgerError: if the batch was not paid for or has some, or they can't be made durable.
        """
        if batch not in self._sealing or batch in self._sealed:
            raise LedgerError("account: expected a paid batch without sealed shares, got another")
        texts = [base64.b64encode(one).decode() for one in sealed]
        with self._transaction():
            self._append("sealed", {"batch": batch, "sealed": texts})

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._chain is None:
            yield
            return
        try:
            with self._chain.transaction():
                self._catch_up()
                yield
        except BaseException:
            self._pending.clear()
            raise
        # Only what is durable counts as paid.
        for row in self._pending:
            self._record(row)
        self._pending.clear()
        self._chain.note_head()

    def _append(self, kind: str, details: Mapping[str, object]) -> None:
        if self._chain is None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            sequence = 1 + len(self._debits)
            row = LedgerRow(sequence=sequence, time=now, kind=kind, details=details, digest="")
            self._record(row)
        else:
            self._pending.append(self._chain.append(kind, details))

    def _catch_up(self) -> None:
        if self._chain is not None:
            for row in self._chain.catch_up():
                self._record(row)

    def _record(self, row: LedgerRow) -> None:
        details = row.details
        if row.kind in ("opened", "budget"):
            if row.kind == "opened" and details.get("silo") != self.silo:
                raise LedgerError(f"account: expected that of {self.silo}, got another silo's")
            numbers = float(details["epsilon_budget"]), float(details["delta"])
            if row.kind == "budget":
                self.was_raised |= numbers[0] > self._numbers[0] or numbers[1] > self._numbers[1]
            self._is_opened, self._numbers = True, numbers
        elif row.kind == "debit":
            charge = silo_charge_from_dict(details["charge"])
            self._paid[charge] += int(details["number"])
            when = datetime.datetime.fromisoformat(row.time).timestamp()
            self._debits.append((when, int(details["number"])))
            for query in details["queries"]:
                self._charges[bytes.fromhex(query)] = (row.sequence, charge)
            if details["batch"] is not None:
                self._sealing[details["batch"]] = row.sequence
        elif row.kind == "sealed":
            sealed = tuple(base64.b64decode(one) for one in details["sealed"])
            self._sealed[details["batch"]] = sealed
