"""A durable journal of privacy charges, which detects missing rows.

`Ledger`, the ledger of a silo and the journals of aggregators are subclasses of `Store`.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import json
import math
import pathlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.composition import Charge
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import rollback_guard
from pate_tf.ledger.ledger_file import (
    DEBITS,
    LedgerError,
    LedgerFile,
    LedgerRow,
    canonical_json,
    charge_of,
    first_debit,
)


class Store(LedgerFile):
    """Base class of ledgers: rows stored on disk across runs, processes and crashes.

    Guarantees. A store has the guarantees of `LedgerFile`. In addition, the registry
    (`RollbackGuard`) or a commitment detects that a store was deleted, that it was restored from an
    older copy, or that a copy of it was used separately. Such a store can't be opened until the
    user acknowledges that rows are missing. The costs of the missing rows are then charged again.

    Assumptions. Everyone who can write to the folder is trusted not to rewrite the store. The file
    system supports fsync and file locks. The registry covers only this user on this machine. A
    commitment covers only earlier rows, and only if another party has received it.

    All attributes are read-only. See `LedgerFile` for inherited attributes.

    Attributes:
        guard: the `RollbackGuard`, which records rows outside the folder; None for a store that is
            read-only or in memory.
        opened: the row that opened the store; None before it is written.
        source: the private data source that the store charges, fixed at first use.
        was_reset: whether the user ever acknowledged that rows or an earlier store were missing,
            and then continued to use this store.
        charges: charges, each with the number of times that it was made.
        num_debits: number of rows with a charge.
        epsilon_budget: the current budget; None if there is no budget.
        delta: the current delta; NaN if there is no delta.
        was_raised: whether the user ever raised the budget or its delta.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        *,
        source: PrivateSource | None = None,
        identity: rollback_guard.Identity | None = None,
        unit: str | None = None,
        read_only: bool = False,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files. Call `open_or_verify` next, or `catch_up` for reading.

        Args:
            folder: the folder of the files; its mode is set to 0700. None for simulations: the
                store is then in memory, without a guard.
            source: the private data source that the store charges; None if the run folder itself
                identifies the data.
            identity: identity of a subject that may have only one store, see `RollbackGuard`.
            unit: protected unit of the charges, such as "record" or "owner"; see `RollbackGuard`.
            read_only: whether the store is opened for reading only.
            acknowledge_reset: whether to create a new store even if the file of an earlier store is
                missing.

        Raises:
            LedgerError: if the store is damaged, was changed, or can't be used.
        """
        super().__init__(folder, read_only=read_only, acknowledge_reset=acknowledge_reset)
        self.guard: rollback_guard.RollbackGuard | None = None
        self.opened: LedgerRow | None = None
        self.source = source
        self.was_reset = False
        self.charges: Counter[Charge] = Counter()
        self.num_debits = 0
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.was_raised = False
        self._salt = b""
        self._acknowledge_reset = acknowledge_reset
        self._has_source = False
        self._charged: set[str] = set()
        self._acknowledged: set[str] = set()
        if folder is not None and not read_only:
            self.guard = rollback_guard.RollbackGuard(folder, source, identity=identity, unit=unit)
            self.callback(self.guard.close)

    def _record(self, row: LedgerRow) -> None:
        super()._record(row)
        details = row.details
        if row.kind == "opened":
            self.opened = row
            self._salt = str(details["salt"]).encode()
        if details.get("source") is not None:  # contained in the first row, except in older ledgers
            fixed = PrivateSource(**details["source"])
            source = self.source
            # A file that was moved is still the same source, so sources without a name are not
            # compared.
            if source is not None and source.is_named and not source.shares(fixed.key):
                was = fixed.name or "its run folder"
                raise LedgerError(
                    f"{self.folder}: this ledger belongs to the source {was}, not to {source.name}"
                )
            self.source = fixed
            self._has_source = True
            if self.guard is not None:
                self.guard.source = fixed
        if row.kind == "acknowledged":
            self.was_reset = True
            self._acknowledged.update(details["missing"])
        elif row.kind in DEBITS:
            charge, number = charge_of(row)
            self.charges[charge] += number
            self.num_debits += 1
            self._charged.add(first_debit(row))
        elif row.kind in ("opened", "budget") and "delta" in details:
            budget = details["epsilon_budget"]
            is_higher = row.kind == "budget" and (
                details["delta"] > self.delta or budget > (self.epsilon_budget or math.inf)
            )
            self.was_raised |= details.get("raised", is_higher)
            self.epsilon_budget = budget
            self.delta = details["delta"]

    def open_or_verify(
        self,
        opening: Mapping[str, Any],
        verify: Callable[[], None] = lambda: None,
        *,
        runs: Sequence[pathlib.Path] = (),
    ) -> None:
        """Creates a new store, or checks that an existing store contains all earlier rows.

        Warns if other ledgers of the same source are known.

        Args:
            opening: content of the first row. This method adds the source, a secret `salt`, and
                whether an earlier store is missing.
            verify: function that compares the store with the arguments of the caller; raises
                LedgerError if they differ.
            runs: run folders with statements that may refer to an earlier ledger; see
                `RollbackGuard.missing_before`.

        Raises:
            LedgerError: if the store was changed, if it belongs to another source, or if rows are
                missing and the user did not acknowledge this.
        """
        with self._locked():
            rows = self.catch_up()
            if self.opened is None:
                self._write_opening(opening, runs)
                verify()
            else:
                verify()
                missing = self._missing_rows()
                if missing is not None:
                    if not self._acknowledge_reset:
                        raise LedgerError(missing.reason)
                    with self.transaction():
                        self._append_missing(missing)
                self._note(rows)  # an earlier process may have died before it noted its last row
                if self.guard is not None and not self._has_source:
                    self.write("source", {"source": dataclasses.asdict(self.guard.source)})
        name = None if self.source is None else self.source.name
        spending = self.source_spending() if name else None
        if spending is None:
            return
        is_known = not (spending.num_unknown or spending.num_other_units)
        if is_known and spending.charges == self.charges:
            return
        total = f"epsilon {spending.epsilon(self.delta):.4g} at delta {self.delta:g}"
        if not is_known:
            total = (
                "unknown, because they protect different units, have charges that are not "
                "registered here, or drew noise from a seed"
            )
        rollback_guard.warn(
            f"{self.folder}: {spending.num_ledgers} ledgers use the records of the source {name}. "
            f"Their total cost is {total}"
        )

    def _write_opening(self, opening: Mapping[str, Any], runs: Sequence[pathlib.Path]) -> None:
        """Writes the first row. If an earlier store is missing, charges its known costs again."""
        missing = None if self.guard is None else self.guard.missing_before(runs)
        if missing is not None and not self._acknowledge_reset:
            if not missing.left_nothing:
                raise LedgerError(missing.reason)
            rollback_guard.warn(
                f"{self.folder}: an earlier ledger in this folder was deleted with its results. "
                "Its known costs are charged again, and every statement will report this."
            )
        # An earlier process may have died after it wrote the first rows and before it noted them.
        # Note them now.
        self._note([])
        details = {
            **opening,
            # The head, a hash of all rows, is published. Without the secret salt, anybody could
            # check a guess of the private data against it.
            "salt": secrets.token_hex(32),
            "source": None if self.guard is None else dataclasses.asdict(self.guard.source),
            "acknowledged": missing is not None,
            "raised": missing is not None,  # the budget of the missing store is unknown
        }
        with self.transaction():
            self.append("opened", details)
            if missing is not None:
                self._append_missing(missing)

    def _missing_rows(self) -> rollback_guard.Missing | None:
        """Returns rows that the guard has noted and this store does not have.

        Returns None if no row is missing.
        """
        if self.guard is None or self.opened is None:
            return None
        return self.guard.missing_from(self.opened.digest, self._sequences, self._acknowledged)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Gets exclusive access to the store, and reads the latest rows.

        Raises:
            LedgerError: if the store was changed, or if a copy of it was used separately.
        """
        with self._locked():
            rows = self.catch_up()
            missing = self._missing_rows()
            if missing is not None:
                raise LedgerError(missing.reason)
            self._note(rows)
            yield

    def resume(self, **details: Any) -> None:
        """Records that answers to already charged queries will be drawn. Use it inside `exclusive`.

        Raises:
            LedgerError: if a copy of this store has resumed the same charge. If two copies do so at
                the same time, at least one of them fails, because it sees the rows of both.
        """
        self.write("resumed", details)
        missing = self._missing_rows()
        if missing is not None:
            raise LedgerError(missing.reason)

    def replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        """Records a new budget and delta in a permanent row. Call it inside `exclusive`."""
        old = math.inf if self.epsilon_budget is None else self.epsilon_budget
        return self.write(
            "budget",
            {
                "epsilon_budget": epsilon_budget,
                "delta": delta,
                "previous_epsilon_budget": self.epsilon_budget,
                "previous_delta": self.delta,
                "raised": epsilon_budget > old or delta > self.delta,
            },
        )

    def witness(self, digest: str | None = None) -> bytes:
        """Returns a commitment to a row, 32 bytes, for another party to keep.

        The key of the commitment is the secret salt of the first row, so the commitment reveals
        nothing about the row. When the party returns the commitment later, `holds_witness` checks
        whether the store still has the row.

        Args:
            digest: digest of the row. Default: the last row.
        """
        content = f"witness {digest or self.head.digest}".encode()
        return hmac.digest(self._salt, content, "sha256")

    def holds_witness(self, witness: bytes) -> bool:
        """Returns whether the store has the row of a commitment, or a record that it is missing.

        If the result is False, this store was restored from an older copy, a copy of it was used
        separately, it is a different store, or the commitment is forged.
        """
        return witness.hex() in self._acknowledged or any(
            hmac.compare_digest(self.witness(digest), witness)
            for digest in reversed(self._sequences)
        )

    def acknowledge_witness(self, witness: bytes) -> bool:
        """Records that the row of a commitment is missing, if a reset was acknowledged.

        Call it inside `exclusive`. After the store is opened, only the first call can record a
        missing row, because all later commitments are to rows that this store has.

        Returns:
            Whether the reset was acknowledged. If so, the store can be used without the row.
        """
        is_acknowledged = self._acknowledge_reset
        self._acknowledge_reset = False
        if is_acknowledged:
            self.write("acknowledged", {"missing": [witness.hex()]})
        return is_acknowledged

    def source_spending(self) -> rollback_guard.SourceSpending | None:
        """Returns the charges of all ledgers of the same source, including this ledger.

        The result covers the ledgers in this user's registry. It is None if there is no registry.
        """
        if self.opened is None or self.folder is None:
            return None
        rows = self.history() if self.charges else ()
        debits = {first_debit(row): charge_of(row) for row in rows if row.kind in DEBITS}
        with contextlib.ExitStack() as stack:
            guard = self.guard or rollback_guard.RollbackGuard(self.folder, self.source)
            if self.guard is None:
                stack.callback(guard.close)
            return guard.source_spending(self.opened.digest, debits)

    def _note(self, rows: Sequence[LedgerRow]) -> None:
        """Records durable rows outside the database, so that their loss is detected."""
        super()._note(rows)
        if self.guard is None or self.opened is None or not rows:
            return
        noted: list[tuple[int, str, str | None]] = []
        for row in rows:
            debit = None
            if row.kind in DEBITS:
                debit = canonical_json(
                    {
                        "charge": row.details["charge"],
                        "number": row.details["number"],
                        "num_queries": row.details.get("num_queries", 0),
                        "secure_noise": row.details.get("secure_noise", True),
                        "carried_from": first_debit(row),
                    }
                )
            noted.append((row.sequence, row.digest, debit))
        self.guard.note(self.opened.digest, noted)

    def _append_missing(self, missing: rollback_guard.Missing) -> None:
        """Appends a row with the digests of the missing rows, and charges their costs again."""
        self.append("acknowledged", {"missing": list(missing.digests)})
        if self.guard is None:
            return
        charged = set(self._charged)
        for digest in missing.digests:
            for row in self.guard.query(
                f"{rollback_guard.SEEN}digest = ? AND debit IS NOT NULL", digest
            ):
                debit = json.loads(row["debit"])
                first = debit["carried_from"]
                if first not in charged:
                    charged.add(first)
                    # The digest of an empty list of queries.
                    queries_digest = hashlib.sha256().hexdigest()
                    details = {**debit, "queries_digest": queries_digest, "past": True}
                    charge_of(self.append("debit", details))
