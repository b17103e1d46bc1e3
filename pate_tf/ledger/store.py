"""A durable store: rows that are only ever added, by one writer at a time, and never taken back.

`Ledger` is one, and so are the account of a silo and the journals of coordinator and parties.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import hmac
import json
import math
import os
import pathlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.core import artifacts
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger import chain
from pate_tf.ledger.chain import DEBITS, Head, LedgerError, LedgerRow, StoredAnswer, fault_point
from pate_tf.ledger.rollback_guard import Identity, Missing, RollbackGuard, SourceSpending, warn

TOGETHER: Final = 500  # queries looked up at once; every SQLite takes 999


class Store:
    """Rows about one subject, kept on disk across runs, processes and crashes.

    Guarantees. What is appended in one `transaction` is durable, all of it or nothing, before it
    counts (`_record`). Rows are never changed or deleted, by whichever processes and threads write
    at once. A store that was restored from an older copy, deleted, or copied while the copy went on
    is refused where the registry (`RollbackGuard`) or a witness tells of it, until its user
    acknowledges that. What missing rows charged is charged here, too.

    Assumptions. Who may write to the folder is trusted not to rewrite it (see
    `pate_tf.ledger.chain`). The file system honours fsync and file locks. The registry knows this
    user on this machine, and a witness what its keeper was sent.

    A subclass says by `_record` what its rows add up to, and by `name` what its files are called.
    Attributes are for reading.

    Attributes:
        folder: of the files, mode 0700; None for a store in memory.
        guard: what notes the rows elsewhere; None for a store that is only read or in memory.
        head: the last row that counts.
        opened: the row that opened the store; None before there is one.
        source: that it is charged to, fixed at first use.
        was_reset: True for ever once its user went on although rows or an earlier store were gone.
        charges: what was charged, and how often.
        epsilon_budget: the budget in force; None if there is none.
        delta: the delta in force; NaN if there is none.
        was_raised: True for ever once the budget or its delta was raised.
    """

    name: ClassVar[str] = "ledger"

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
        self.folder = folder
        self.guard: RollbackGuard | None = None
        self.head = Head()
        self.opened: LedgerRow | None = None
        self.source, self._has_source = source, False
        self.was_reset = False
        self.charges: Counter[Charge] = Counter()
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.was_raised = False
        self._read_only, self._acknowledge_reset = read_only, acknowledge_reset
        self._sequences: dict[str, int] = {}  # of rows, by their digests
        self._charged: set[str] = set()
        self._acknowledged: set[str] = set()
        self._num_answers = 0
        self._noted: Head | None = None
        self._tail: tuple[LedgerRow | None, str, int, int] = (None, "", 0, 0)
        self._threads = threading.RLock()
        self._path = None if folder is None else folder.resolve() / f"{self.name}.sqlite3"
        with self._reporting(), contextlib.ExitStack() as stack:
            must_exist = read_only
            if folder is not None and self._path is not None:
                note = folder / f"{self.name}.head.json"
                if acknowledge_reset and not self._path.exists():
                    note.unlink(missing_ok=True)
                must_exist |= note.exists()
                if must_exist and not self._path.exists():
                    raise LedgerError(f"{self._path}: expected a ledger, got no such file")
                if not read_only:
                    artifacts.make_sensitive_folder(folder)
                    stack.enter_context(self._locked())
            self._connection, version = chain.open_database(
                self._path, read_only=read_only, must_exist=must_exist
            )
        # An older ledger that is only read has no such column.
        self._noisy_counts = "noisy_counts" if version >= 3 else "NULL"
        if folder is not None and not read_only:
            self.guard = RollbackGuard(folder, source, identity=identity, unit=unit)

    def _record(self, row: LedgerRow) -> None:
        """Takes up a row that is durable, in order."""

    def close(self) -> None:
        """Closes the files; the object can't be used afterwards."""
        self._connection.close()
        if self.guard is not None:
            self.guard.close()

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows that count in the order they were written."""
        with self._reporting():
            return tuple(
                LedgerRow(
                    sequence=sequence,
                    time=moment,
                    kind=kind,
                    details=json.loads(text),
                    digest=digest.hex(),
                )
                for sequence, moment, kind, text, digest in self._connection.execute(
                    "SELECT sequence, time, kind, details, digest FROM rows WHERE sequence <= ? "
                    "ORDER BY sequence",
                    (self.head.sequence,),
                )
            )

    def holds(self, head: Head) -> bool:
        """Whether this store contains the row that a statement quoted."""
        return self._sequences.get(head.digest) == head.sequence

    def open_or_verify(
        self,
        opening: Callable[[bool], Mapping[str, Any]],
        verify: Callable[[], None] = lambda: None,
        *,
        runs: Sequence[pathlib.Path] = (),
    ) -> None:
        """Opens a store that is new, else checks that it goes on where it was seen last.

        Warns if other ledgers of the same source are known.

        Args:
            opening: gives the details of the first row, with a secret `salt`; its argument is
                whether an earlier store is missing.
            verify: checks what the store was opened with.
            runs: see `RollbackGuard.missing_before`.

        Raises:
            LedgerError: if it was changed, is charged to another source, or rows are missing and
                that was not acknowledged.
        """
        with self._locked():
            rows = self.catch_up()
            if self.opened is None:
                missing = None if self.guard is None else self.guard.missing_before(runs)
                if missing is not None and not self._acknowledge_reset:
                    if not missing.left_nothing:
                        raise LedgerError(missing.reason)
                    warn(
                        f"{self.folder}: there was a ledger here, which was deleted with all that "
                        f"it charged for; what is known of it is charged again, and every "
                        f"statement says so"
                    )
                # A process may die between committing the first rows and noting the last of them.
                self._note([])
                source = None if self.guard is None else dataclasses.asdict(self.guard.source)
                with self.transaction():
                    self.append("opened", {**opening(missing is not None), "source": source})
                    if missing is not None:
                        self._append_missing(missing)
                verify()
            else:
                verify()
                self._check_complete(acknowledge_reset=self._acknowledge_reset)
                self._note(rows)  # a process that died after its last row left it unnoted
                if self.guard is not None and not self._has_source:
                    self.write("source", {"source": dataclasses.asdict(self.guard.source)})
        name = None if self.guard is None or self.source is None else self.source.name
        spending = None if name is None else self.source_spending()
        if spending is None or (
            spending.charges == self.charges
            and not spending.num_unknown
            and not spending.num_other_units
        ):
            return
        together = f"together they have spent epsilon {spending.epsilon(self.delta):.4g} at delta "
        together += f"{self.delta:g}"
        if spending.num_unknown:
            together = (
                f"{spending.num_unknown} of them charged something that is unknown here, or drew "
                f"noise from a seed; import what defines it to know what they have spent together"
            )
        elif spending.num_other_units:
            together = (
                f"{spending.num_other_units} of them protect owners where this one protects "
                f"records, or records where it protects owners, or it is not known which, so that "
                f"no epsilon holds for all of them together"
            )
        warn(
            f"{self.folder}: {spending.num_ledgers} ledgers are charged to the source {name}; "
            f"{together}"
        )

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes and threads from writing; brings this object up to date.

        Raises:
            LedgerError: if another process holds the store for two minutes, it was changed, or a
                copy of it went on.
        """
        with self._locked():
            rows = self.catch_up()
            self._check_complete(acknowledge_reset=False)
            self._note(rows)
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is appended inside, a row or more, becomes durable together, or not at all.

        Call it inside `exclusive`.
        """
        if self._read_only:
            raise LedgerError(f"{self._path}: expected a writable ledger, got one opened to read")
        self._tail = (None, self.head.digest, self.head.sequence, self._num_answers)
        with self._reporting():
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                yield
                last = self._tail[0]
                kind = "nothing" if last is None else last.kind
                fault_point(f"{kind}_written")
        fault_point(f"{kind}_committed")
        self._note(self.catch_up(is_own=True))
        fault_point(f"{kind}_noted")

    def write(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Makes one row durable, and returns it; call it inside `exclusive`."""
        with self.transaction():
            return self.append(kind, details)

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Appends a row; call it inside `transaction`, after which it counts."""
        _, before, sequence, num_answers = self._tail
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = chain.canonical_json(dict(details))
        row = chain.link(before, sequence + 1, now, kind, text)
        self._connection.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?)",
            (row.sequence, now, kind, text, bytes.fromhex(row.digest)),
        )
        self._tail = (row, row.digest, row.sequence, num_answers)
        return row

    def append_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> LedgerRow:
        """Appends the answers that row `debit` charged, and the row that fixes them; see `append`.

        Noisy counts `[num_queries, num_classes]` are stored where there is a label.

        Raises:
            LedgerError: if one of the queries has an answer already.
        """
        row, before, sequence, num_answers = self._tail
        released: list[bytes | None] = [None] * len(queries)
        if noisy_counts is not None:
            released = [
                None if label is None else counts.astype("<i8").tobytes()
                for label, counts in zip(labels, noisy_counts, strict=True)
            ]
        answers = [
            (num_answers + place, debit, *answer)
            for place, answer in enumerate(zip(queries, labels, released, strict=True), 1)
        ]
        with self._reporting():
            self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", answers)
        self._tail = (row, before, sequence, num_answers + len(answers))
        details = {
            "debit": debit,
            "num_queries": len(answers),
            "num_answered": sum(label is not None for label in labels),
            "answers_digest": chain.digest_answers(answers),
        }
        return self.append("answers", details)

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist already, by query digest."""
        found = {}
        with self._reporting():
            for start in range(0, len(queries), TOGETHER):
                some = queries[start : start + TOGETHER]
                places = ", ".join("?" * len(some))
                for query, label, debit, counts in self._connection.execute(
                    f"SELECT query, label, debit, {self._noisy_counts} FROM answers "
                    f"WHERE query IN ({places})",
                    some,
                ):
                    if counts is not None:
                        counts = tuple(np.frombuffer(counts, "<i8").tolist())
                    found[query] = StoredAnswer(label=label, debit=debit, noisy_counts=counts)
        return found

    def stored_labels(self) -> list[tuple[int, int | None]]:
        """Returns the row that charged each answer and its label, in the order they were stored."""
        with self._reporting():
            return self._connection.execute(
                "SELECT debit, label FROM answers ORDER BY position"
            ).fetchall()

    def catch_up(self, *, is_own: bool = False) -> list[LedgerRow]:
        """Verifies the rows that were written since the last call, takes them up, and returns them.

        Args:
            is_own: whether this object wrote them just now, and has not noted them yet.

        Raises:
            LedgerError: if a row or answer was changed, or rows are missing.
        """
        refused = f"{self._path}: the ledger is refused:"
        rows, head, num_answers = [], self.head, self._num_answers
        with self._reporting():
            self._connection.execute("BEGIN")  # what is read is of one moment
            with self._connection:
                noted = self._noted if is_own else self._noted_head()
                for sequence, moment, kind, text, digest in self._connection.execute(
                    "SELECT sequence, time, kind, details, digest FROM rows WHERE sequence > ? "
                    "ORDER BY sequence",
                    (head.sequence,),
                ):
                    try:
                        row = chain.link(head.digest, sequence, moment, kind, text)
                    except json.JSONDecodeError as error:
                        raise LedgerError(f"{refused} row {sequence} was changed") from error
                    if sequence != head.sequence + 1 or row.digest != digest.hex():
                        raise LedgerError(
                            f"{refused} row {sequence} was changed, or one before it is missing"
                        )
                    head = Head(sequence=sequence, digest=row.digest)
                    if kind == "answers":
                        answers = self._connection.execute(
                            f"SELECT position, debit, query, label, {self._noisy_counts} "
                            f"FROM answers WHERE position BETWEEN ? AND ? ORDER BY position",
                            (num_answers + 1, num_answers + int(row.details["num_queries"])),
                        ).fetchall()
                        if chain.digest_answers(answers) != row.details["answers_digest"]:
                            raise LedgerError(f"{refused} answers of row {sequence} were changed")
                        num_answers += int(row.details["num_queries"])
                    if noted is not None and noted.sequence == sequence and noted != head:
                        raise LedgerError(
                            f"{refused} row {sequence} is not the one noted in "
                            f"{self.name}.head.json"
                        )
                    rows.append(row)
                first, last = self._connection.execute(
                    "SELECT (SELECT min(position) FROM answers), "
                    "(SELECT max(position) FROM answers)"
                ).fetchone()
            if (first or 1, last or 0) != (1, num_answers):
                raise LedgerError(f"{refused} answers were added or removed")
            if noted is None and head.sequence > 1 and not is_own:
                raise LedgerError(
                    f"{refused} expected {self.name}.head.json in its folder, there is none"
                )
            # A process may die between committing a row and noting it, so there may be more rows.
            if noted is not None and noted.sequence > head.sequence:
                raise LedgerError(
                    f"{refused} expected at least {noted.sequence} rows as noted in "
                    f"{self.name}.head.json, got {head.sequence}: rows were removed"
                )
        self.head, self._num_answers, self._noted = head, num_answers, noted
        for row in rows:
            details = row.details
            if row.kind == "opened":
                self.opened = row
            if details.get("source") is not None:  # the first row has it, but in older ledgers
                fixed, given = PrivateSource(**details["source"]), self.source
                # A file that was moved since is no other source.
                if given is not None and given.is_named and given != fixed:
                    was = "a file's" if given.name == fixed.name else fixed.name or "none"
                    raise LedgerError(
                        f"{self.folder}: source_name: expected {was}, to which this ledger is "
                        f"charged, got {given.name}"
                    )
                self.source, self._has_source = fixed, True
                if self.guard is not None:
                    self.guard.source = fixed
            if row.kind == "acknowledged":
                self.was_reset = True
                self._acknowledged.update(details["missing"])
            elif row.kind in DEBITS:
                charge, number = chain.charge_of(row)
                self.charges[charge] += number
                self._charged.add(chain.first_debit(row))
            if row.kind in ("opened", "budget") and "delta" in details:
                budget, delta = details["epsilon_budget"], details["delta"]
                is_higher = row.kind == "budget" and (
                    delta > self.delta or budget > (self.epsilon_budget or math.inf)
                )
                # The limit of a store that is gone is not known any more.
                self.was_raised |= details.get("raised", is_higher)
                self.was_raised |= row.kind == "opened" and details.get("acknowledged", False)
                self.epsilon_budget, self.delta = budget, delta
            self._sequences[row.digest] = row.sequence
            self._record(row)
        return rows

    def replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        """Puts a budget and delta in force, on record for ever; call it inside `exclusive`."""
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

    def seal(self, content: bytes) -> bytes:
        """Returns a digest of 32 bytes that can be made and checked with this store alone.

        Keyed by the secret salt of the first row.
        """
        salt = "" if self.opened is None else str(self.opened.details["salt"])
        return hmac.new(salt.encode(), content, hashlib.sha256).digest()

    def witness(self) -> bytes:
        """Returns what another party can keep of the last row: 32 bytes that tell nothing of it.

        Given back later it finds out a store that lost the row; see `holds_witness`.
        """
        return self.seal(f"witness {self.head.digest}".encode())

    def holds_witness(self, witness: bytes) -> bool:
        """Whether the store holds the row that a witness is of, or may go on without it.

        The witness of a row that is not here says that the store was restored from an older copy,
        that a copy of it went on, or that it is another store; or it was made up.
        """
        if witness.hex() in self._acknowledged:
            return True
        return any(
            hmac.compare_digest(self.seal(f"witness {digest}".encode()), witness)
            for digest in reversed(self._sequences)
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

    def source_spending(self) -> SourceSpending | None:
        """Returns what all ledgers of the same source were charged, this one included.

        As far as this user's registry knows. None without one.
        """
        if self.opened is None or self.folder is None:
            return None
        debits = {
            chain.first_debit(row): chain.charge_of(row)
            for row in (self.history() if self.charges else ())
            if row.kind in DEBITS
        }
        if self.guard is not None:
            return self.guard.source_spending(self.opened, debits)
        with contextlib.closing(RollbackGuard(self.folder, self.source)) as guard:
            return guard.source_spending(self.opened, debits)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps every other process, thread and object out; a process that dies frees it."""
        if self._read_only:
            raise LedgerError(f"{self._path}: expected a writable ledger, got one opened to read")
        with self._threads:
            if self.folder is None:
                yield
                return
            with self._reporting():
                lock = os.open(
                    self.folder / f"{self.name}.lock",
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                    0o600,
                )
            try:
                until = time.monotonic() + chain.WAIT_SECONDS
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > until:
                            raise LedgerError(
                                f"{self._path}: expected to get the ledger within "
                                f"{chain.WAIT_SECONDS:.0f} seconds, another process holds it"
                            ) from None
                        time.sleep(0.002)
                yield
            finally:
                os.close(lock)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turns what SQLite and the system raise into a LedgerError of one line."""
        with self._threads:
            try:
                yield
            except sqlite3.IntegrityError as error:
                raise LedgerError(
                    f"{self._path}: expected one answer for a query, got two"
                ) from error
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                # SQLite quotes damaged text in its messages, which then fail to decode.
                reason = " ".join(str(error).split())
                raise LedgerError(f"{self._path}: the ledger can't be used: {reason}") from error

    def _noted_head(self) -> Head | None:
        """Returns the last row as noted in the folder; None where nothing is noted."""
        if self.folder is None:
            return self.head
        path = self.folder / f"{self.name}.head.json"
        try:
            fields = json.loads(path.read_text())
            return Head(sequence=int(fields["sequence"]), digest=str(fields["digest"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerError(f"{path}: expected the last row's sequence and digest") from error

    def _note(self, rows: Sequence[LedgerRow]) -> None:
        """Notes durable rows outside of the database, so that losing them is noticed."""
        if self.folder is not None and self._noted != self.head:
            with (
                self._reporting(),
                artifacts.atomic_file(self.folder / f"{self.name}.head.json", private=True) as file,
            ):
                file.write(json.dumps(dataclasses.asdict(self.head)).encode())
            self._noted = self.head
        if self.guard is not None and self.opened is not None and rows:
            self.guard.note(self.opened, rows)

    def _check_complete(self, *, acknowledge_reset: bool) -> None:
        """Checks that nothing is missing; once that is acknowledged, charges what is."""
        if self.guard is None or self.opened is None:
            return
        missing = self.guard.missing_from(self.opened, self._sequences, self._acknowledged)
        if missing is None:
            return
        if not acknowledge_reset:
            raise LedgerError(missing.reason)
        with self.transaction():
            self._append_missing(missing)

    def _append_missing(self, missing: Missing) -> None:
        """Appends what is missing, and charges what missing rows charged."""
        self.append("acknowledged", {"missing": list(missing.digests)})
        debits = () if self.guard is None else self.guard.debits_of(missing.digests, self._charged)
        for debit in debits:
            try:
                charge_from_dict(debit["charge"])
            except (ValueError, TypeError) as error:
                raise LedgerError(
                    f"{self.folder}: a missing row charged something that is unknown here; import "
                    f"what defines it: {error}"
                ) from error
            queries_digest = hashlib.sha256().hexdigest()  # of none
            self.append("debit", {**debit, "queries_digest": queries_digest, "past": True})
