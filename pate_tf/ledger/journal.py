"""A durable journal: rows chained by their hashes, added by one writer at a time, never taken back.

What opening detects: any change to a row or an answer, a missing or inserted row, a damaged page
or index, a changed schema, and a tail that was cut off (`ledger.head.json` notes the last row
whenever one is written). What it can't detect: somebody who may write to the folder and rewrites
table and head together. Against that, a released statement quotes the `Head` of its ledger, and
`Store.holds` tells whether a ledger still contains it.

`Ledger` is a `Store`, and so are the ledger of a silo and the journals of aggregators.
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
import secrets
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import Charge
from pate_tf.core import artifacts
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.rollback_guard import Identity, Missing, RollbackGuard, SourceSpending, warn

FAULT_VARIABLE: Final = "PATE_TF_FAULT_POINT"
DATABASE: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 120.0
QUERIES_AT_ONCE: Final = 500  # every SQLite takes 999 values
DEBITS: Final = ("debit",)  # kinds of rows that charge
VERSION: Final = 3
TABLES: Final = """
    CREATE TABLE rows (
      sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, details TEXT NOT NULL,
      digest BLOB NOT NULL) STRICT;
    CREATE TABLE answers (
      position INTEGER PRIMARY KEY, debit INTEGER NOT NULL, query BLOB NOT NULL UNIQUE,
      label INTEGER) STRICT;
    ALTER TABLE answers ADD COLUMN noisy_counts BLOB;
"""
SCHEMA_QUERY: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"

# JSON with sorted keys and no spaces, so that equal values have equal texts.
canonical_json: Callable[[object], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


def fault_point(name: str) -> None:
    """Kills this process if a test named this point in the environment."""
    if os.environ.get(FAULT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


class LedgerError(Exception):
    """The ledger can't be used: damaged, not writable, or of another version.

    >>> import pate_tf
    >>> issubclass(pate_tf.BudgetExceeded, pate_tf.LedgerError)
    True
    """


class BudgetMismatch(LedgerError):  # noqa: N818
    """The budget is not the one that was fixed at first use."""


class BudgetExceeded(LedgerError):  # noqa: N818
    """What was to be charged doesn't fit into what remains of the budget; nothing was charged.

    >>> import pate_tf
    >>> pate_tf.BudgetExceeded("epsilon: expected at most 1", num_affordable=3).num_affordable
    3

    Attributes:
        num_affordable: how many of the same charge would fit.
    """

    def __init__(self, message: str, *, num_affordable: int) -> None:
        super().__init__(message)
        self.num_affordable = num_affordable


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One row of a store. Rows are ordered by sequence; clocks may go backwards.

    >>> import numpy as np, pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> teachers = pate_tf.Teachers.from_votes(np.zeros((9, 20), int), directory=folder / "few")
    >>> mechanism = pate_tf.LaplaceNoisyMax(scale=1.0)
    >>> with pate_tf.Labeller(teachers, mechanism, epsilon_budget=2.5, delta=1e-5) as labeller:
    ...     try:
    ...         labels = labeller.label(data.pool, num_queries=20)
    ...     except pate_tf.BudgetExceeded as error:
    ...         print(error.num_affordable)
    1

    Attributes:
        sequence: 1 for the row that opens the store, then one more for each row.
        time: UTC time by the machine's clock, ISO 8601. Stated, never relied on.
        kind: "opened", "debit", "answers", "released", "budget", "source" or "acknowledged" in a
            ledger; other stores have kinds of their own.
        details: what the kind records, JSON values.

            - opened: `schema_version`, `salt` (secret), `ensemble_digest` (sensitive),
              `epsilon_budget` (None if there is none), `delta`, `acknowledged` (whether an earlier
              ledger was gone; the next row says which), `planned_release` (how the data-dependent
              cost will be released), `source` (name and key of the data source that it is charged
              to; sensitive).
            - source: the same `source`, where a ledger of an earlier version fixed it later.
            - acknowledged: `missing`, digests of rows that were seen and are gone.
            - debit: `charge` (its `to_dict()`) and the `number` charged, `num_queries` and
              `queries_digest` of the queries that are to be answered, `secure_noise`, `past`
              (whether it was released before it was recorded), `delta`. One that charges what a
              missing row charged names that row as `carried_from`.
            - answers: `debit` (the sequence of the row that charged them), `num_queries`,
              `num_answered`, `answers_digest`.
            - released: `debit`, `kept` (sensitive: the draw, and what it was drawn for).
            - budget: `epsilon_budget`, `delta`, `previous_epsilon_budget`, `previous_delta`,
              `raised` (False only where a ledger without a budget got its first one).

        digest: SHA-256 of the row before, the sequence and the row, hexadecimal.
    """

    sequence: int
    time: str
    kind: str
    details: Mapping[str, Any] = dataclasses.field(repr=False)
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The last row of a ledger: what a statement quotes to fix the history before it.

    Attributes:
        sequence: sequence of the last row; 0 before there is one.
        digest: its digest, which depends on every row before it. The secret salt of the first row
            hides everything else that went into it, so it may be published.
    """

    sequence: int = 0
    digest: str = bytes(32).hex()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """The one answer that a query ever gets from a mechanism.

    Attributes:
        label: the noisy label, or None if the mechanism withheld it.
        debit: sequence of the row that charged it.
        noisy_counts: what was released with the label, `[num_classes]` in units of 1 / LATTICE
            votes; None if nothing was.
    """

    label: int | None
    debit: int
    noisy_counts: tuple[int, ...] | None = None


# What rows charged.


def charge_of(row: LedgerRow) -> tuple[Charge, int]:
    """Returns what a row of `DEBITS` charged, and how often.

    Raises:
        LedgerError: if this program does not know that charge.
    """
    try:
        return charge_from_dict(row.details["charge"]), int(row.details["number"])
    except (ValueError, TypeError) as error:
        raise LedgerError(
            f"row {row.sequence} charged something unknown here; import what defines it: {error}"
        ) from error


def first_debit(row: LedgerRow) -> str:
    """Returns the digest of the row that charged first, where a row repeats another's debit."""
    return str(row.details.get("carried_from", row.digest))


def charges_of(rows: Iterable[LedgerRow]) -> Counter[Charge]:
    """Returns what rows charged; those of other kinds charge nothing."""
    charges: Counter[Charge] = Counter()
    for row in rows:
        if row.kind in DEBITS:
            charge, number = charge_of(row)
            charges[charge] += number
    return charges


def batches_before(
    history: Iterable[LedgerRow], mechanism: Charge, *, last: int
) -> Counter[Charge]:
    """Returns the charges of whole batches that led to labels of a mechanism.

    All of them if the mechanism is itself charged once for a batch, with its own; else those
    without an answer.

    Args:
        history: rows of a ledger.
        mechanism: what drew the labels.
        last: sequence of the last row that charged them.
    """
    debits: dict[int, tuple[Charge, int]] = {}
    unanswered: set[int] = set()
    for row in history:
        if row.kind in DEBITS and row.sequence <= last:
            charge, number = charge_of(row)
            if charge.charged_per_batch:
                debits[row.sequence] = (charge, number)
        elif row.kind == "answers" and not row.details["num_answered"]:
            unanswered.add(row.details["debit"])
    charges: Counter[Charge] = Counter()
    for sequence, (charge, number) in debits.items():
        if mechanism.charged_per_batch or sequence in unanswered:
            charges[charge] += number
    return charges


# The chain of hashes.


Answer = tuple[int, int, bytes, int | None, bytes | None]  # position, debit, query, label, counts


def _chained(before: str, sequence: int, moment: str, kind: str, text: str) -> LedgerRow:
    """Returns a row after the one of digest `before`; `text` is its details."""
    content = canonical_json([sequence, moment, kind, text]).encode()
    digest = hashlib.sha256(bytes.fromhex(before) + content).hexdigest()
    details = json.loads(text)
    return LedgerRow(sequence=sequence, time=moment, kind=kind, details=details, digest=digest)


def _digest_of_answers(answers: Sequence[Answer]) -> str:
    """Returns what the row of answers holds of them."""
    digest = hashlib.sha256()
    for position, debit, query, label, noisy_counts in answers:
        released = "" if noisy_counts is None else f",{noisy_counts.hex()}"
        digest.update(f"{position},{debit},{query.hex()},{label}{released}\n".encode())
    return digest.hexdigest()


class Store:
    """Rows about one subject, kept on disk across runs, processes and crashes.

    Guarantees. What is appended in one `transaction` is durable, all of it or nothing, before it
    counts (`_record`). Rows are never changed or deleted, by whichever processes and threads write
    at once. A store that was restored from an older copy, deleted, or copied while the copy went on
    is refused where the registry (`RollbackGuard`) or a commitment tells of it, until its user
    acknowledges that. What missing rows charged is charged here, too.

    Assumptions. Who may write to the folder is trusted not to rewrite it. The file system honors
    fsync and file locks. The registry knows this user on this machine, and a commitment what its
    keeper was sent.

    A subclass says by `_record` what its rows add up to, and by `name` what its files are called.
    Attributes are for reading.

    Attributes:
        folder: of the files, mode 0700; None for a store in memory.
        guard: what notes the rows elsewhere; None for a store that is only read or in memory.
        head: the last row that counts.
        opened: the row that opened the store; None before there is one.
        source: that it is charged to, fixed at first use.
        was_reset: True forever once its user went on although rows or an earlier store were gone.
        charges: what was charged, and how often.
        epsilon_budget: the budget in force; None if there is none.
        delta: the delta in force; NaN if there is none.
        was_raised: True forever once the budget or its delta was raised.
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

        SQLite runs in WAL mode with `synchronous=FULL`: what is committed survives a power cut.

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
        self._appended: dict[str, Charge] = {}  # not read back yet, by the digests of their rows
        self._acknowledged: set[str] = set()
        self._num_answers = 0
        self._salt = b""
        self._noted: Head | None = None
        self._tail: Head | LedgerRow = self.head
        self._threads = threading.RLock()
        self._path = None if folder is None else folder.resolve() / f"{self.name}.sqlite3"
        target, is_new = ":memory:", True
        with self._reporting(), contextlib.ExitStack() as stack:
            if folder is not None and self._path is not None:
                note = folder / f"{self.name}.head.json"
                is_there = self._path.exists()
                if acknowledge_reset and not is_there:
                    note.unlink(missing_ok=True)
                is_new = not (read_only or note.exists())
                if not (is_new or is_there):
                    raise LedgerError(f"{self._path}: expected a ledger, got no such file")
                target = f"{self._path.as_uri()}?mode={'ro' if read_only else 'rw'}"
                if not read_only:
                    folder.mkdir(parents=True, exist_ok=True)
                    folder.chmod(0o700)
                    stack.enter_context(self.exclusive(is_current=False))
                    # SQLite would give it the umask's mode; WAL files copy the mode of the file.
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    self._path.chmod(0o600)
            self._connection = sqlite3.connect(
                target,
                uri=True,
                isolation_level=None,
                timeout=WAIT_SECONDS,
                check_same_thread=False,
            )
            try:
                self._connection.execute("PRAGMA trusted_schema = OFF")
                if not read_only:
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._connection.execute("PRAGMA synchronous = FULL")
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
                if version == 0 and is_new:
                    self._connection.executescript(
                        f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"
                    )
                elif version != VERSION:
                    raise LedgerError(
                        f"{self._path}: expected a ledger of layout {VERSION}, got {version}; use "
                        f"the version of pate_tf that wrote it, or begin in another folder"
                    )
                with contextlib.closing(sqlite3.connect(":memory:")) as pattern:
                    pattern.executescript(TABLES)
                    expected = pattern.execute(SCHEMA_QUERY).fetchall()
                if self._connection.execute(SCHEMA_QUERY).fetchall() != expected:
                    raise LedgerError(f"{self._path}: expected the tables of a ledger, got others")
                if self._connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                    raise LedgerError(f"{self._path}: the file is damaged")
            except BaseException:
                self._connection.close()
                raise
        if folder is not None and not read_only:
            self.guard = RollbackGuard(folder, source, identity=identity, unit=unit)

    def _record(self, row: LedgerRow) -> None:
        """Takes up a row that is durable, in order."""

    def close(self, *exception: object) -> None:
        """Closes the files; the object can't be used afterwards."""
        self._connection.close()
        if self.guard is not None:
            self.guard.close()

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows that count in the order they were written."""
        rows, before = list[LedgerRow](), Head().digest
        with self._reporting():
            for *values, _ in self._connection.execute(
                "SELECT * FROM rows WHERE sequence <= ? ORDER BY sequence", (self.head.sequence,)
            ):
                rows.append(_chained(before, *values))
                before = rows[-1].digest
        return tuple(rows)

    def holds(self, head: Head) -> bool:
        """Whether this store contains the row that a statement quoted."""
        return self._sequences.get(head.digest) == head.sequence

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
        with self.exclusive(is_current=False):
            rows = self.catch_up()
            source = None if self.guard is None else dataclasses.asdict(self.guard.source)
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
                # The published head is a hash of everything from here on; the salt keeps it from
                # confirming a guess at the private data.
                details = {**opening, "salt": secrets.token_hex(32), "source": source}
                # The limit of a store that is gone is not known any more.
                details |= dict.fromkeys(("acknowledged", "raised"), missing is not None)
                with self.transaction():
                    self.append("opened", details)
                    if missing is not None:
                        self._append_missing(missing)
                verify()
            else:
                verify()
                held = self.opened.digest, self._sequences, self._acknowledged
                missing = None if self.guard is None else self.guard.missing_from(*held)
                if missing is not None:
                    if not self._acknowledge_reset:
                        raise LedgerError(missing.reason)
                    with self.transaction():
                        self._append_missing(missing)
                self._note(rows)  # a process that died after its last row left it unnoted
                if source is not None and not self._has_source:
                    self.write("source", {"source": source})
        spending = self.source_spending() if self.source and self.source.name else None
        if spending is not None and (
            spending.charges != self.charges or spending.num_unknown or spending.num_other_units
        ):
            total = f"epsilon {spending.epsilon(self.delta):.4g} at delta {self.delta:g}"
            if spending.num_unknown or spending.num_other_units:
                total = (
                    "an epsilon that is not known: not all protect the same unit, or one charged "
                    "something that is unknown here or drew noise from a seed"
                )
            warn(
                f"{self.folder}: {spending.num_ledgers} ledgers are charged to the source "
                f"{self.source and self.source.name}; together they have spent {total}"
            )

    @contextlib.contextmanager
    def exclusive(self, *, is_current: bool = True) -> Iterator[None]:
        """Keeps every other process, thread and object out; a process that dies frees it.

        Args:
            is_current: whether this object is brought up to date first.

        Raises:
            LedgerError: if it was changed, or a copy of it went on.
        """
        if self._read_only:
            raise LedgerError(f"{self._path}: expected a writable ledger, got one opened to read")
        with self._threads, contextlib.ExitStack() as stack:
            if self.folder is not None:
                path, flags = self.folder / f"{self.name}.lock", os.O_RDWR | os.O_CREAT
                with self._reporting():
                    lock = os.open(path, flags | os.O_CLOEXEC, 0o600)
                    stack.callback(os.close, lock)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            rows = self.catch_up() if is_current else []
            if is_current and self.guard is not None and self.opened is not None:
                held = self.opened.digest, self._sequences, self._acknowledged
                missing = self.guard.missing_from(*held)
                if missing is not None:
                    raise LedgerError(missing.reason)
            if is_current:
                self._note(rows)
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is appended inside, a row or more, becomes durable together, or not at all.

        Call it inside `exclusive`.
        """
        if self._read_only:
            raise LedgerError(f"{self._path}: expected a writable ledger, got one opened to read")
        self._tail = self.head
        with self._reporting():
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                yield
                kind = self._tail.kind if isinstance(self._tail, LedgerRow) else "nothing"
                fault_point(f"{kind}_written")
        fault_point(f"{kind}_committed")
        self._note(self.catch_up(is_own=True))
        fault_point(f"{kind}_noted")

    def write(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Makes one row durable, and returns it; call it inside `exclusive`."""
        with self.transaction():
            return self.append(kind, details)

    def append(
        self, kind: str, details: Mapping[str, Any], *, charge: Charge | None = None
    ) -> LedgerRow:
        """Appends a row; call it inside `transaction`, after which it counts.

        Args:
            kind: of the row.
            details: what the kind records, JSON values.
            charge: that `details` describe, so that it need not be read back.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = canonical_json(dict(details))
        row = _chained(self._tail.digest, self._tail.sequence + 1, now, kind, text)
        values = (row.sequence, now, kind, text, bytes.fromhex(row.digest))
        self._connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)
        self._tail = row
        if charge is not None:
            self._appended[row.digest] = charge
        return row

    def store_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> None:
        """Stores the answers that `debit` charged durably; call it inside `exclusive`.

        Args:
            debit: sequence of the row that charged them.
            queries: digests of the queries, in the order of `labels`.
            labels: the noisy labels; None where one was withheld.
            noisy_counts: what is released with the labels, int64 `[num_queries, num_classes]` in
                units of 1 / LATTICE votes, or None; rows of withheld labels are not stored.

        Raises:
            LedgerError: if a query was answered before, or they can't be made durable; then no
                label may be released.
        """
        released: list[bytes | None] = [None] * len(queries)
        if noisy_counts is not None:
            released = [
                None if label is None else counts.astype("<i8").tobytes()
                for label, counts in zip(labels, noisy_counts, strict=True)
            ]
        answers = [
            (self._num_answers + place, debit, *answer)
            for place, answer in enumerate(zip(queries, labels, released, strict=True), 1)
        ]
        details = {
            "debit": debit,
            "num_queries": len(answers),
            "num_answered": sum(label is not None for label in labels),
            "answers_digest": _digest_of_answers(answers),
        }
        with self.transaction():
            self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", answers)
            self.append("answers", details)

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist already, by query digest."""
        answers = {}
        with self._reporting():
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                block = queries[start : start + QUERIES_AT_ONCE]
                for query, label, debit, counts in self._connection.execute(
                    f"SELECT query, label, debit, noisy_counts FROM answers "
                    f"WHERE query IN ({', '.join('?' * len(block))})",
                    block,
                ):
                    if counts is not None:
                        counts = tuple(np.frombuffer(counts, "<i8").tolist())
                    answers[query] = StoredAnswer(label=label, debit=debit, noisy_counts=counts)
        return answers

    def catch_up(self, *, is_own: bool = False) -> list[LedgerRow]:
        """Verifies the rows that were written since the last call, takes them up, and returns them.

        Args:
            is_own: whether this object wrote them just now, and has not noted them yet.

        Raises:
            LedgerError: if a row or answer was changed, or rows are missing.
        """
        refused, note = f"{self._path}: the ledger is refused:", f"{self.name}.head.json"
        rows, head, num_answers, noted = [], self.head, self._num_answers, self._noted
        with self._reporting():
            self._connection.execute("BEGIN")  # what is read is of one moment
            with self._connection:
                if not is_own and self.folder is not None:
                    try:
                        fields = json.loads((self.folder / note).read_text())
                        noted = Head(sequence=int(fields["sequence"]), digest=str(fields["digest"]))
                    except FileNotFoundError:
                        noted = None
                    except (ValueError, KeyError, TypeError, RecursionError) as error:
                        raise LedgerError(
                            f"{self.folder / note}: expected the last row's sequence and digest"
                        ) from error
                stored = self._connection.execute(
                    "SELECT * FROM rows WHERE sequence > ? ORDER BY sequence", (head.sequence,)
                )
                for sequence, moment, kind, text, digest in stored:
                    row = _chained(head.digest, sequence, moment, kind, text)
                    if sequence != head.sequence + 1 or row.digest != digest.hex():
                        raise LedgerError(
                            f"{refused} row {sequence} was changed, or one before it is missing"
                        )
                    head = Head(sequence=sequence, digest=row.digest)
                    if kind == "answers":
                        number = int(row.details["num_queries"])
                        answers = self._connection.execute(
                            "SELECT position, debit, query, label, noisy_counts "
                            "FROM answers WHERE position BETWEEN ? AND ? ORDER BY position",
                            (num_answers + 1, num_answers + number),
                        ).fetchall()
                        if _digest_of_answers(answers) != row.details["answers_digest"]:
                            raise LedgerError(f"{refused} answers of row {sequence} were changed")
                        num_answers += number
                    if noted is not None and noted.sequence == sequence and noted != head:
                        raise LedgerError(
                            f"{refused} row {sequence} is not the one noted in {note}"
                        )
                    rows.append(row)
                positions = self._connection.execute(
                    "SELECT (SELECT min(position) FROM answers), "
                    "(SELECT max(position) FROM answers)"
                ).fetchone()
            if positions != ((1, num_answers) if num_answers else (None, None)):
                raise LedgerError(f"{refused} answers were added or removed")
            if noted is None and head.sequence > 1 and not is_own and self.folder is not None:
                raise LedgerError(f"{refused} expected {note} in its folder, there is none")
            # A process may die between committing a row and noting it, so there may be more rows.
            if noted is not None and noted.sequence > head.sequence:
                raise LedgerError(
                    f"{refused} expected at least {noted.sequence} rows as noted in {note}, got "
                    f"{head.sequence}: rows were removed"
                )
        self.head, self._num_answers, self._noted = head, num_answers, noted
        for row in rows:
            details = row.details
            if row.kind == "opened":
                self.opened, self._salt = row, str(details["salt"]).encode()
            if details.get("source") is not None:  # the first row has it, but in older ledgers
                fixed, source = PrivateSource(**details["source"]), self.source
                # A file that was moved since is no other source.
                if source is not None and source.is_named and source != fixed:
                    was = "a file's" if source.name == fixed.name else fixed.name or "none"
                    raise LedgerError(
                        f"{self.folder}: source_name: expected {was}, to which this ledger is "
                        f"charged, got {source.name}"
                    )
                self.source, self._has_source = fixed, True
                if self.guard is not None:
                    self.guard.source = fixed
            if row.kind == "acknowledged":
                self.was_reset = True
                self._acknowledged.update(details["missing"])
            elif row.kind in DEBITS:
                appended = self._appended.pop(row.digest, None)
                charge = charge_of(row)[0] if appended is None else appended
                self.charges[charge] += int(details["number"])
                self._charged.add(str(details.get("carried_from", row.digest)))
            elif row.kind in ("opened", "budget") and "delta" in details:
                budget, delta = details["epsilon_budget"], details["delta"]
                is_higher = row.kind == "budget" and (
                    delta > self.delta or budget > (self.epsilon_budget or math.inf)
                )
                self.was_raised |= details.get("raised", is_higher)
                self.epsilon_budget, self.delta = budget, delta
            self._sequences[row.digest] = row.sequence
            self._record(row)
        return rows

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

    def witness(self) -> bytes:
        """Returns a commitment to the last row, for another party to keep: 32 bytes.

        Keyed by the secret salt of the first row, it tells nothing of the row. Given back later, it
        finds out a store that lost the row; see `holds_witness`.
        """
        return hmac.digest(self._salt, f"witness {self.head.digest}".encode(), "sha256")

    def holds_witness(self, witness: bytes) -> bool:
        """Whether the store holds the row of a commitment, or may go on without it.

        The commitment to a row that is not here says that the store was restored from an older
        copy, that a copy of it went on, or that it is another store; or it was made up.
        """
        if witness.hex() in self._acknowledged:
            return True
        return any(
            hmac.compare_digest(hmac.digest(self._salt, content, "sha256"), witness)
            for content in (f"witness {digest}".encode() for digest in reversed(self._sequences))
        )

    def acknowledge_witness(self, witness: bytes) -> bool:
        """Records that the row of a commitment is missing, if a reset was acknowledged.

        Call it inside `exclusive`. It is of one commitment after each opening: the next one is of a
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
        rows = self.history() if self.charges else ()
        debits = {first_debit(row): charge_of(row) for row in rows if row.kind in DEBITS}
        with contextlib.ExitStack() as stack:
            guard = self.guard or RollbackGuard(self.folder, self.source)
            if self.guard is None:
                stack.callback(guard.close)
            return guard.source_spending(self.opened.digest, debits)

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
            except (sqlite3.Error, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
                # SQLite quotes damaged text in its messages, which then fail to decode.
                reason = " ".join(str(error).split())
                raise LedgerError(f"{self._path}: the ledger can't be used: {reason}") from error

    def _note(self, rows: Sequence[LedgerRow]) -> None:
        """Notes durable rows outside of the database, so that losing them is noticed."""
        if self.folder is not None and self._noted != self.head:
            path = self.folder / f"{self.name}.head.json"
            with self._reporting(), artifacts.atomic_file(path, private=True) as file:
                file.write(json.dumps(dataclasses.asdict(self.head)).encode())
            self._noted = self.head
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
                        "carried_from": row.details.get("carried_from", row.digest),
                    }
                )
            noted.append((row.sequence, row.digest, debit))
        self.guard.note(self.opened.digest, noted)

    def _append_missing(self, missing: Missing) -> None:
        """Appends what is missing, and charges what missing rows charged."""
        self.append("acknowledged", {"missing": list(missing.digests)})
        debits = () if self.guard is None else self.guard.debits_of(missing.digests, self._charged)
        for debit in debits:
            queries_digest = hashlib.sha256().hexdigest()  # of none
            details = {**debit, "queries_digest": queries_digest, "past": True}
            charge_of(self.append("debit", details))
