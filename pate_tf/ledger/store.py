"""A durable store: rows that are only ever added, by one writer at a time, and never taken back.

`Ledger` is made of one, and so is the account of a silo.
"""

import contextlib
import hashlib
import hmac
import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.core.record_set import RecordSet
from pate_tf.core.validation import IntArray
from pate_tf.ledger.chain import DATABASE, HEAD, Chain, LedgerError, LedgerRow, fault_point
from pate_tf.ledger.registry import PAYMENTS, Subject, payment, payment_identity
from pate_tf.ledger.rollback_guard import AllEnsembles, Missing, RollbackGuard, warn


class Store(ABC):
    """Rows about one subject, kept on disk across runs, processes and crashes.

    Guarantees. What is appended in one `transaction` is durable, all of it or nothing, before it
    counts (`_record`). Rows are never changed or deleted, by whichever processes write at once. A
    store that was restored from an older copy, deleted, or copied while the copy went on is
    refused where the registry (`pate_tf.ledger.registry`) or a witness tells of it, until somebody
    acknowledges that. What other stores of the same subject spent is charged here, too.

    Assumptions. Who may write to the folder is trusted not to rewrite it (see
    `pate_tf.ledger.chain`). The file system honours fsync and file locks. The registry knows this
    user on this machine, and a witness what its keeper was sent.

    Use one object per process, in the thread that made it.

    Attributes:
      chain: the rows.
      guard: what notes them elsewhere; None for a store that is only read, or in memory.
      opened: the row that opened the store; None before there is one.
      was_reset: True for ever once somebody went on although rows or an earlier store were gone.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        *,
        subject: Subject | None = None,
        records: RecordSet | None = None,
        is_single: bool = False,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files; call `open_or_verify` next, or `catch_up` to read.

        Args:
          folder: gets mode 0700. None for a store in memory that nothing guards, for a simulation.
          subject: what the store is about; None to read alone.
          records: what the subject learnt from; None if that is not known.
          is_single: see `RollbackGuard`.
          acknowledge_reset: whether to go on although the file is gone that should be there.

        Raises:
          LedgerError: if it is damaged, was changed, or can't be used.
        """
        is_read = folder is not None and subject is None
        if folder is not None and acknowledge_reset and not (folder / DATABASE).exists():
            (folder / HEAD).unlink(missing_ok=True)
        self.chain = Chain(folder, read_only=is_read, must_exist=is_read)
        self.guard: RollbackGuard | None = None
        if folder is not None and subject is not None:
            self.guard = RollbackGuard(folder, subject, records, is_single=is_single)
        self.opened: LedgerRow | None = None
        self.was_reset = False
        self._acknowledge_reset = acknowledge_reset
        self._held: dict[str, int] = {}
        self._charged: set[str] = set()
        self._acknowledged: set[str] = set()
        self._pending: list[LedgerRow] = []

    @abstractmethod
    def _record(self, row: LedgerRow) -> None:
        """Takes up a row that is durable, in order."""

    @property
    def folder(self) -> pathlib.Path | None:
        """The folder that the store lies in; None for one in memory."""
        return self.chain.folder

    def close(self) -> None:
        """Closes the files; the object can't be used afterwards."""
        self.chain.close()
        if self.guard is not None:
            self.guard.close()

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        return tuple(self.chain.rows())

    def catch_up(self) -> None:
        """Reads the rows that were written since."""
        with self.chain.transaction():
            rows = self.chain.catch_up()
        self._take(rows)

    def open_or_verify(
        self,
        opening: Callable[[bool], Mapping[str, Any]],
        verify: Callable[[], None] = lambda: None,
        *,
        runs: Sequence[pathlib.Path] = (),
    ) -> None:
        """Opens a store that is new, else checks that it goes on where it was seen last.

        Args:
          opening: gives the details of the first row, with a secret `salt`; told whether an earlier
            store of the subject is missing.
          verify: checks what the store was opened with.
          runs: see `RollbackGuard.missing_before`.

        Raises:
          LedgerError: if it was changed, or rows are missing and that was not acknowledged.
        """
        with self.chain.exclusive():
            self.catch_up()
            is_new = self.opened is None
            missing = None
            if self.opened is None:
                missing = None if self.guard is None else self.guard.missing_before(runs)
                if missing is not None and not self._acknowledge_reset:
                    if not missing.left_nothing:
                        raise LedgerError(missing.reason)
                    warn(
                        f"{self.folder}: there was a ledger here, which was deleted with all that "
                        f"it paid for; what is known of it is charged again, and every statement "
                        f"says so"
                    )
                with self.transaction():
                    self.append("opened", opening(missing is not None))
                    self._charge_elsewhere(missing)
            verify()
            self._go_on(acknowledge_reset=self._acknowledge_reset)
            if self.guard is not None and self.opened is not None:
                # A process that died after its last row left it unnoted.
                self.guard.note(self.opened, self.history())
            if is_new and missing is None and self._charged:
                warn(
                    f"{self.folder}: what other ledgers of the same subject spent is charged here, "
                    f"too"
                )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing; brings this object up to date.

        Raises:
          LedgerError: if another process holds the store for two minutes, it was changed, or a copy
            of it went on.
        """
        with self.chain.exclusive():
            self.catch_up()
            self._go_on(acknowledge_reset=False)
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is appended inside, a row or more, becomes durable together, or not at all.

        Call it inside `exclusive`.
        """
        try:
            with self.chain.transaction():
                yield
                kind = self._pending[-1].kind
                fault_point(f"{kind}_written")
        except BaseException:
            self._pending.clear()
            raise
        rows, self._pending = self._pending, []
        self._take(rows)
        fault_point(f"{kind}_committed")
        self.chain.note_head()
        if self.guard is not None and self.opened is not None:
            self.guard.note(self.opened, rows)
        fault_point(f"{kind}_noted")

    def write(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Makes one row durable, and returns it; call it inside `exclusive`."""
        with self.transaction():
            return self.append(kind, details)

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Appends a row; call it inside `transaction`, after which it counts."""
        self._pending.append(self.chain.append(kind, details))
        return self._pending[-1]

    def append_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> LedgerRow:
        """Appends the answers that `debit` charged; see `Chain.append_answers` and `append`."""
        self._pending.append(self.chain.append_answers(debit, queries, labels, noisy_counts))
        return self._pending[-1]

    def seal(self, content: bytes) -> bytes:
        """Returns a digest of 32 bytes that can be made and checked with this store alone.

        Keyed by the secret salt of the first row.
        """
        salt = "" if self.opened is None else str(self.opened.details["salt"])
        return hmac.new(salt.encode(), content, hashlib.sha256).digest()

    def witness(self) -> bytes:
        """Returns what somebody else can keep of the last row: 32 bytes that tell nothing of it.

        Given back later it finds out a store that lost the row; see `holds_witness`.
        """
        return self._witness_of(self.chain.head.digest)

    def holds_witness(self, witness: bytes) -> bool:
        """Whether the store holds the row that a witness is of, or may go on without it.

        The witness of a row that is not here says that the store was restored from an older copy,
        that a copy of it went on, or that it is another store; or it was made up.
        """
        if witness.hex() in self._acknowledged:
            return True
        return any(
            hmac.compare_digest(self._witness_of(digest), witness)
            for digest in reversed(self._held)
        )

    def acknowledge_witness(self, witness: bytes) -> bool:
        """Records that the row of a witness is missing, if a reset was acknowledged.

        Call it inside `exclusive`. It is of one witness after each opening: the next one is of a
        row that is here.

        Returns:
          Whether it was, so that the store may go on without the row.
        """
        is_acknowledged, self._acknowledge_reset = self._acknowledge_reset, False
        if is_acknowledged:
            self.write("acknowledged", {"missing": [witness.hex()]})
        return is_acknowledged

    def all_ensembles(self) -> AllEnsembles | None:
        """Returns what all known ensembles of the same records spent; None without a registry."""
        if self.opened is None or self.folder is None:
            return None
        own = {
            payment_identity(row): payment(row) for row in self.chain.rows() if row.kind in PAYMENTS
        }
        guard = RollbackGuard(self.folder, None) if self.guard is None else self.guard
        try:
            return guard.all_ensembles(self.opened, own)
        finally:
            if guard is not self.guard:
                guard.close()

    def warn_of_others(self, paid: Mapping[Charge, int], delta: float) -> None:
        """Warns if other stores of the same records are known to have spent more than this."""
        found = self.all_ensembles()
        if found is not None and found.num_unknown:
            warn(
                f"{self.folder}: {found.num_ledgers} ledgers of ensembles of the same private "
                f"records are known; {found.num_unknown} of them paid for something that is "
                f"unknown here, so that nobody can say what they have spent together; import what "
                f"defines it"
            )
        elif found is not None and dict(paid) != dict(found.paid):
            warn(
                f"{self.folder}: {found.num_ledgers} ledgers of ensembles of the same private "
                f"records are known; together they have spent epsilon {found.epsilon(delta):.4g} "
                f"at delta {delta:g}"
            )

    def _take(self, rows: Sequence[LedgerRow]) -> None:
        for row in rows:
            if row.kind == "opened":
                self.opened = row
            elif row.kind == "acknowledged":
                self.was_reset = True
                self._acknowledged.update(row.details["missing"])
            elif row.kind in PAYMENTS:
                self._charged.add(payment_identity(row))
            self._held[row.digest] = row.sequence
            self._record(row)

    def _go_on(self, *, acknowledge_reset: bool) -> None:
        """Checks that nothing is missing, and charges what was spent elsewhere."""
        self.chain.note_head()
        if self.guard is None or self.opened is None:
            return
        missing = self.guard.missing_from(self.opened, self._held, self._acknowledged)
        if missing is not None and not acknowledge_reset:
            raise LedgerError(missing.reason)
        if missing is not None or self.guard.payments_elsewhere(self._charged):
            with self.transaction():
                self._charge_elsewhere(missing)

    def _charge_elsewhere(self, missing: Missing | None) -> None:
        """Appends what is missing, and charges what rows that are not here charged."""
        if missing is not None:
            self.append("acknowledged", {"missing": list(missing.digests)})
        for one in [] if self.guard is None else self.guard.payments_elsewhere(self._charged):
            try:
                charge_from_dict(one["charge"])
            except (ValueError, TypeError) as error:
                raise LedgerError(
                    f"{self.folder}: another ledger of the same subject charged something that is "
                    f"unknown here; import what defines it: {error}"
                ) from error
            queries_digest = hashlib.sha256().hexdigest()  # of none
            self.append("debit", {**one, "queries_digest": queries_digest, "past": True})

    def _witness_of(self, digest: str) -> bytes:
        return self.seal(f"witness {digest}".encode())
