"""A durable journal: what the rows of a ledger add up to, and whether some of them are missing.

`Ledger` is a `Store`, and so are the ledger of a silo and the journals of aggregators.
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
from pate_tf.ledger.ledger_file import (
    DEBITS,
    LedgerError,
    LedgerFile,
    LedgerRow,
    canonical_json,
    charge_of,
    first_debit,
)
from pate_tf.ledger.rollback_guard import (
    SEEN,
    Identity,
    Missing,
    RollbackGuard,
    SourceSpending,
    warn,
)


class Store(LedgerFile):
    """Rows about one subject, kept on disk across runs, processes and crashes.

    Guarantees. Those of `LedgerFile`. A store that was restored from an older copy, deleted, or
    copied while the copy went on is refused where the registry (`RollbackGuard`) or a commitment
    tells of it, until its user acknowledges that. What missing rows charged is charged here, too.

    Assumptions. Who may write to the folder is trusted not to rewrite it. The file system honors
    fsync and file locks. The registry knows this user on this machine, and a commitment what its
    keeper was sent.

    Attributes are for reading; `LedgerFile` has more.

    Attributes:
        guard: what notes the rows elsewhere; None for a store that is only read or in memory.
        opened: the row that opened the store; None before there is one.
        source: that it is charged to, fixed at first use.
        was_reset: True forever once its user went on although rows or an earlier store were gone.
        charges: what was charged, and how often.
        num_debits: how many times something was charged.
        epsilon_budget: the budget in force; None if there is none.
        delta: the delta in force; NaN if there is none.
        was_raised: True forever once the budget or its delta was raised.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        *,
        source: PrivateSource | None = None,
        identity: Identity | None = None,
        unit: str | None = None,
        read_only: bool = False,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files; call `open_or_verify` next, or `catch_up` to read.

        Args:
            folder: gets mode 0700. None for a store in memory that nothing guards, for a
                simulation.
            source: that it is charged to; None for the run folder itself.
            identity: see `RollbackGuard`.
            unit: what its charges protect; see `RollbackGuard`.
            read_only: whether nothing will be written.
            acknowledge_reset: whether to go on although the file is gone that should be there.

        Raises:
            LedgerError: if it is damaged, was changed, or can't be used.
        """
        super().__init__(folder, read_only=read_only, acknowledge_reset=acknowledge_reset)
        self.guard: RollbackGuard | None = None
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
            self.guard = RollbackGuard(folder, source, identity=identity, unit=unit)
            self.callback(self.guard.close)

    def _record(self, row: LedgerRow) -> None:
        super()._record(row)
        details = row.details
        if row.kind == "opened":
            self.opened = row
            self._salt = str(details["salt"]).encode()
        if details.get("source") is not None:  # the first row has it, but in older ledgers
            fixed = PrivateSource(**details["source"])
            source = self.source
            # A file that was moved since is no other source.
            if source is not None and source.is_named and not source.shares(fixed.key):
                was = "a file's" if source.name == fixed.name else fixed.name or "none"
                raise LedgerError(
                    f"{self.folder}: source_name: expected {was}, to which this ledger is charged, "
                    f"got {source.name}"
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
        """Opens a store that is new, else checks that it goes on where it was seen last.

        Warns if other ledgers of the same source are known.

        Args:
            opening: what the first row says beside its source, a secret `salt` and whether an
                earlier store is missing.
            verify: checks what the store was opened with.
            runs: see `RollbackGuard.missing_before`.

        Raises:
            LedgerError: if it was changed, is charged to another source, or rows are missing and
                that was not acknowledged.
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
                self._note(rows)  # a process that died after its last row left it unnoted
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
                "an epsilon that is not known: not all protect the same unit, or one charged "
                "something that is unknown here or drew noise from a seed"
            )
        warn(
            f"{self.folder}: {spending.num_ledgers} ledgers are charged to the source {name}; "
            f"together they have spent {total}"
        )

    def _write_opening(self, opening: Mapping[str, Any], runs: Sequence[pathlib.Path]) -> None:
        """Writes the first row, and what an earlier store in this place charged."""
        missing = None if self.guard is None else self.guard.missing_before(runs)
        if missing is not None and not self._acknowledge_reset:
            if not missing.left_nothing:
                raise LedgerError(missing.reason)
            warn(
                f"{self.folder}: there was a ledger here, which was deleted with all that it "
                f"charged for; what is known of it is charged again, and every statement says so"
            )
        # A process may die between committing the first rows and noting the last of them.
        self._note([])
        details = {
            **opening,
            # The published head is a hash of everything from here on; the salt keeps it from
            # confirming a guess at the private data.
            "salt": secrets.token_hex(32),
            "source": None if self.guard is None else dataclasses.asdict(self.guard.source),
            "acknowledged": missing is not None,
            "raised": missing is not None,  # the limit of a store that is gone is not known
        }
        with self.transaction():
            self.append("opened", details)
            if missing is not None:
                self._append_missing(missing)

    def _missing_rows(self) -> Missing | None:
        """Returns what the registry has seen of this store that is not here."""
        if self.guard is None or self.opened is None:
            return None
        return self.guard.missing_from(self.opened.digest, self._sequences, self._acknowledged)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps every other process, thread and object out, and brings this object up to date.

        Raises:
            LedgerError: if it was changed, or a copy of it went on.
        """
        with self._locked():
            rows = self.catch_up()
            missing = self._missing_rows()
            if missing is not None:
                raise LedgerError(missing.reason)
            self._note(rows)
            yield

    def replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        """Puts a budget and delta in force, on record forever; call it inside `exclusive`."""
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
        """Returns a commitment to a row, for another party to keep: 32 bytes.

        Keyed by the secret salt of the first row, it tells nothing of the row. Given back later, it
        finds out a store that lost the row; see `holds_witness`.

        Args:
            digest: of the row. Default: the last one.
        """
        content = f"witness {digest or self.head.digest}".encode()
        return hmac.digest(self._salt, content, "sha256")

    def holds_witness(self, witness: bytes) -> bool:
        """Whether the store holds the row of a commitment, or may go on without it.

        The commitment to a row that is not here says that the store was restored from an older
        copy, that a copy of it went on, or that it is another store; or it was made up.
        """
        return witness.hex() in self._acknowledged or any(
            hmac.compare_digest(self.witness(digest), witness)
            for digest in reversed(self._sequences)
        )

    def acknowledge_witness(self, witness: bytes) -> bool:
        """Records that the row of a commitment is missing, if a reset was acknowledged.

        Call it inside `exclusive`. It is of one commitment after each opening: the next one is of a
        row that is here.

        Returns:
            Whether it was, so that the store may go on without the row.
        """
        is_acknowledged = self._acknowledge_reset
        self._acknowledge_reset = False
        if is_acknowledged:
            self.write("acknowledged", {"missing": [witness.hex()]})
        return is_acknowledged

    def source_spending(self) -> SourceSpending | None:
        """Returns what all ledgers of the same source were charged, this one included.

        As far as this user's registry knows. None without one.
        """
        if self.opened is None or self.folder is None:
            return None
        rows = self.history() if self.charges else ()
        debits = {first_debit(row): charge_of(row) for row in rows if row.kind in DEBITS}
        with contextlib.ExitStack() as stack:
            guard = self.guard or RollbackGuard(self.folder, self.source)
            if self.guard is None:
                stack.callback(guard.close)
            return guard.source_spending(self.opened.digest, debits)

    def _note(self, rows: Sequence[LedgerRow]) -> None:
        """Notes durable rows outside of the database, so that losing them is noticed."""
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

    def _append_missing(self, missing: Missing) -> None:
        """Appends what is missing, and charges what missing rows charged."""
        self.append("acknowledged", {"missing": list(missing.digests)})
        if self.guard is None:
            return
        charged = set(self._charged)
        for digest in missing.digests:
            for row in self.guard.query(f"{SEEN}digest = ? AND debit IS NOT NULL", digest):
                debit = json.loads(row["debit"])
                first = debit["carried_from"]
                if first not in charged:
                    charged.add(first)
                    queries_digest = hashlib.sha256().hexdigest()  # of none
                    details = {**debit, "queries_digest": queries_digest, "past": True}
                    charge_of(self.append("debit", details))
