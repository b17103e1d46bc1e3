"""Reads and writes the files of a ledger: a database, a note of the last row, and a lock file.

The database contains answers and rows. The rows form a hash chain and record all charges.

Opening a ledger detects any change to a row or an answer, a missing or inserted row, a damaged page
or index, a changed schema, and a truncated tail (every write updates `ledger.head.json`, which
notes the last row). An attacker who can write to the folder could rewrite the table and the head
together, which is not detected. For that case, a released statement contains the `Head` of its
ledger, and `LedgerFile.holds` checks whether a ledger still contains this row.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import Charge
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray

DEBITS: Final = ("debit",)  # kinds of rows that contain a charge

# JSON with sorted keys and no spaces, so that equal values have equal texts.
canonical_json: Callable[[object], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One row of a store. Rows are ordered by `sequence`, because clocks may go backwards.

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
        time: UTC time of the machine's clock, in ISO 8601 format. The time is only for information.
        kind: "opened", "debit", "resumed", "answers", "released", "budget", "source" or
            "acknowledged" in a ledger. Other stores have different kinds.
        details: JSON values that depend on the kind.

            - opened: `schema_version`, `salt` (secret), `ensemble_digest` (sensitive),
              `epsilon_budget` (None without a budget), `delta`, `acknowledged` (whether an earlier
              ledger was missing; the next row then lists the rows of that ledger),
              `planned_release` (plan to release the data-dependent cost), `source` (name and key of
              the private data source; sensitive).
            - source: `source` as in "opened". Only earlier versions wrote this row.
            - acknowledged: `missing`, the digests of missing rows that existed earlier.
            - debit: a charge: `charge` (its `to_dict()`) and the `number` of times it is charged,
              `num_queries` and `queries_digest` of the queries to be answered, `secure_noise`,
              `past` (whether the release happened before it was recorded), `delta`. If the row
              repeats the charge of a missing row, `carried_from` is the digest of the missing row.
            - resumed: `debit`, the sequence of a debit row. The process that charged it was killed,
              and another process draws the answers.
            - answers: `debit` (the sequence of the row that charged the answers), `num_queries`,
              `num_answered`, `answers_digest`.
            - released: `debit`, `kept` (sensitive: the noisy values and the release's settings).
            - budget: `epsilon_budget`, `delta`, `previous_epsilon_budget`, `previous_delta`,
              `raised` (False only if a ledger without a budget got its first one).

        digest: SHA-256 of the previous digest, the sequence and the row, hexadecimal.
    """

    sequence: int
    time: str
    kind: str
    details: Mapping[str, Any] = dataclasses.field(repr=False)
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The last row of a ledger. A statement contains it as a commitment to the whole history.

    Attributes:
        sequence: the `sequence` of the last row; 0 for an empty ledger.
        digest: digest of the last row, which depends on all earlier rows. The digest may be
            published, because the secret salt in the first row hides the content of the rows.
    """

    sequence: int = 0
    digest: str = bytes(32).hex()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """A stored answer. A query gets only one answer from a mechanism, ever.

    Attributes:
        label: the noisy label, or None if the mechanism withheld it.
        debit: the `sequence` of the row with the charge for this answer.
        noisy_counts: the noisy counts released with the label, `[num_classes]` in units of
            1 / LATTICE votes; None if only the label was released.
    """

    label: int | None
    debit: int
    noisy_counts: tuple[int, ...] | None = None


def charge_of(row: LedgerRow) -> tuple[Charge, int]:
    """Returns the charge in a row, and the number of times that it was charged.

    Raises:
        LedgerError: if the charge is not registered in this program.
    """
    try:
        return charge_from_dict(row.details["charge"]), int(row.details["number"])
    except (ValueError, TypeError) as error:
        raise LedgerError(
            f"row {row.sequence} has an unknown charge. Import the module that defines it: {error}"
        ) from error


def first_debit(row: LedgerRow) -> str:
    """Returns the digest of `row`, or of the original debit row if `row` repeats its charge."""
    return str(row.details.get("carried_from", row.digest))


def charges_of(rows: Iterable[LedgerRow]) -> Counter[Charge]:
    """Returns the total number of each charge in the rows. Only debit rows contain charges."""
    charges: Counter[Charge] = Counter()
    for row in rows:
        if row.kind in DEBITS:
            charge, number = charge_of(row)
            charges[charge] += number
    return charges


def batches_before(
    history: Iterable[LedgerRow], mechanism: Charge, *, last: int
) -> Counter[Charge]:
    """Returns the charges for whole batches of a mechanism's labels, which earlier versions made.

    If `mechanism` was charged once per batch, the result contains all such batches. Otherwise, it
    contains only the batches without a stored answer.

    Args:
        history: rows of a ledger.
        mechanism: the mechanism that drew the labels.
        last: the `sequence` of the last row with a charge for the labels.
    """
    debits: dict[int, tuple[Charge, int]] = {}
    unanswered: set[int] = set()
    for row in history:
        if row.kind in DEBITS and row.sequence <= last:
            charge, number = charge_of(row)
            if charge.approximate is not None:
                debits[row.sequence] = (charge, number)
        elif row.kind == "answers" and not row.details["num_answered"]:
            unanswered.add(row.details["debit"])
    charges: Counter[Charge] = Counter()
    for sequence, (charge, number) in debits.items():
        if mechanism.approximate is not None or sequence in unanswered:
            charges[charge] += number
    return charges


# The chain of hashes.


Answer = tuple[int, int, bytes, int | None, bytes | None]  # position, debit, query, label, counts


def chained(before: str, sequence: int, moment: str, kind: str, text: str) -> LedgerRow:
    """Returns the row after the row with the digest `before`.

    `text` contains its details in JSON.
    """
    content = canonical_json([sequence, moment, kind, text]).encode()
    digest = hashlib.sha256(bytes.fromhex(before) + content).hexdigest()
    details = json.loads(text)
    return LedgerRow(sequence=sequence, time=moment, kind=kind, details=details, digest=digest)


def digest_of_answers(answers: Sequence[Answer]) -> str:
    """Returns a digest of answers, which the ledger stores in its "answers" row."""
    digest = hashlib.sha256()
    for position, debit, query, label, noisy_counts in answers:
        released = "" if noisy_counts is None else f",{noisy_counts.hex()}"
        digest.update(f"{position},{debit},{query.hex()},{label}{released}\n".encode())
    return digest.hexdigest()


class LedgerError(Exception):
    """The ledger can't be used: it is damaged, not writable, or from another version.

    >>> import pate_tf
    >>> issubclass(pate_tf.BudgetExceeded, pate_tf.LedgerError)
    True
    """


class BudgetMismatch(LedgerError):  # noqa: N818
    """The requested budget differs from the budget that was set at the ledger's first use."""


class BudgetExceeded(LedgerError):  # noqa: N818
    """The charge exceeds the remaining budget. Nothing was charged.

    >>> import pate_tf
    >>> pate_tf.BudgetExceeded("epsilon must be at most 1", num_affordable=3).num_affordable
    3

    Attributes:
        num_affordable: number of times that the same charge fits into the remaining budget.
    """

    def __init__(self, message: str, *, num_affordable: int) -> None:
        super().__init__(message)
        self.num_affordable = num_affordable


# Rows and answers on disk.


FAULT_VARIABLE: Final = "PATE_TF_FAULT_POINT"
DATABASE: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 120.0
QUERIES_PER_SELECT: Final = 500  # every SQLite build accepts up to 999 values
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


def fault_point(name: str) -> None:
    """For tests: kills this process if an environment variable contains this name."""
    if os.environ.get(FAULT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


class LedgerFile(contextlib.ExitStack):
    """Rows and answers on disk, which are verified when they are read.

    The subclass `Store` interprets the rows. All rows of one `transaction` become durable together,
    before `_record` adds them to the totals. Rows are never changed or deleted, even if several
    processes and threads write at the same time.

    A subclass defines `_record`, which adds up the rows, and `name`, the base name of the files.
    The object can't be used after `close`.

    Attributes:
        folder: the folder of the files, mode 0700; None for a ledger in memory.
        head: the last row that was verified.
    """

    name: ClassVar[str] = "ledger"

    def __init__(
        self,
        folder: pathlib.Path | None,
        *,
        read_only: bool = False,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files. Call `catch_up` next.

        SQLite runs in WAL mode with `synchronous=FULL`: committed rows survive a power cut.

        Args:
            folder: the folder of the files; its mode is set to 0700. None for a ledger in memory.
            read_only: whether the ledger is opened for reading only.
            acknowledge_reset: whether to create a new ledger even though the file of an earlier
                ledger is missing.

        Raises:
            LedgerError: if the ledger is damaged, was changed, or can't be used.
        """
        super().__init__()
        self.folder = folder
        self.head = Head()
        self._path = None if folder is None else folder.resolve() / f"{self.name}.sqlite3"
        self._note_path = None if folder is None else folder / f"{self.name}.head.json"
        self._refused = f"{self._path}: can't trust this ledger:"  # start of some messages
        self._read_only = read_only
        self._sequences: dict[str, int] = {}  # sequence of each row, by the row's digest
        self._num_answers = 0
        self._noted: Head | None = None
        self._tail: Head | LedgerRow = self.head
        self._threads = threading.RLock()
        with self._reporting(), contextlib.ExitStack() as stack:
            is_new = True
            target = ":memory:"
            if folder is not None and self._path is not None and self._note_path is not None:
                if acknowledge_reset and not self._path.exists():
                    self._note_path.unlink(missing_ok=True)
                is_new = not (read_only or self._note_path.exists())
                if not is_new and not self._path.exists():
                    raise LedgerError(f"{self._path}: this ledger does not exist")
                target = f"{self._path.as_uri()}?mode={'ro' if read_only else 'rw'}"
                if not read_only:
                    folder.mkdir(parents=True, exist_ok=True)
                    folder.chmod(0o700)
                    stack.enter_context(self._locked())
                    # SQLite would create the file with the default mode, so it is created here. WAL
                    # files get the same mode.
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    self._path.chmod(0o600)
            self._connection = sqlite3.connect(
                target,
                uri=True,
                isolation_level=None,
                timeout=WAIT_SECONDS,
                check_same_thread=False,
            )
            self.callback(self._connection.close)
            with contextlib.ExitStack() as undo:
                undo.callback(self.close)  # if an error is raised
                self._check_tables(is_new=is_new)
                undo.pop_all()

    def _check_tables(self, *, is_new: bool) -> None:
        """Creates the tables of a new ledger; checks the tables and pages of an existing one."""
        database = self._connection
        database.execute("PRAGMA trusted_schema = OFF")
        if not self._read_only:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0 and is_new:
            database.executescript(
                f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"
            )
        elif version != VERSION:
            raise LedgerError(
                f"{self._path}: this ledger has format {version}, but this version of pate_tf "
                f"reads format {VERSION}. Use the version that wrote it, or a new folder."
            )
        with contextlib.closing(sqlite3.connect(":memory:")) as pattern:
            pattern.executescript(TABLES)
            expected = pattern.execute(SCHEMA_QUERY).fetchall()
        if database.execute(SCHEMA_QUERY).fetchall() != expected:
            raise LedgerError(f"{self._path}: this database does not have the tables of a ledger")
        if database.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            raise LedgerError(f"{self._path}: the file is damaged")

    def _record(self, row: LedgerRow) -> None:
        """Adds one durable row to the totals of this object. It is called for each row in order."""
        self._sequences[row.digest] = row.sequence

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows up to `head`, in the order in which they were written."""
        with self._reporting():
            return tuple(self._rows_after(Head(), last=self.head.sequence))

    def holds(self, head: Head) -> bool:
        """Returns whether this ledger contains a row, such as the row in a statement."""
        return self._sequences.get(head.digest) == head.sequence

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Gets exclusive access, for this object in this thread. The lock ends with the process."""
        if self._read_only:
            raise LedgerError(f"{self._path}: this ledger was opened for reading only")
        with self._threads, contextlib.ExitStack() as stack:
            if self.folder is not None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                with self._reporting():
                    lock = os.open(self.folder / f"{self.name}.lock", flags, 0o600)
                    stack.callback(os.close, lock)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Makes all rows that are appended in the block durable, or no row if there is an error.

        Call it inside `exclusive`.
        """
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
        """Appends one durable row and returns it. Call it inside `exclusive`."""
        with self.transaction():
            return self.append(kind, details)

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Appends a row, which becomes durable when the transaction ends.

        Call it inside `transaction`.

        Args:
            kind: kind of the row, see `LedgerRow`.
            details: JSON values for this kind, see `LedgerRow`.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = canonical_json(dict(details))
        row = chained(self._tail.digest, self._tail.sequence + 1, now, kind, text)
        values = (row.sequence, now, kind, text, bytes.fromhex(row.digest))
        self._connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", values)
        self._tail = row
        return row

    def store_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> None:
        """Durably stores the answers to queries that were charged. Call it inside `exclusive`.

        Args:
            debit: the `sequence` of the row that charged the answers.
            queries: digests of the queries, in the order of `labels`.
            labels: the noisy labels; None for a withheld label.
            noisy_counts: the noisy counts released with the labels, int64
                `[num_queries, num_classes]` in units of 1 / LATTICE votes, or None. Rows of
                withheld labels are not stored.

        Raises:
            LedgerError: if a query already has an answer, or if the answers can't be made durable.
                In both cases, no label may be released.
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
            "answers_digest": digest_of_answers(answers),
        }
        with self.transaction():
            self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", answers)
            self.append("answers", details)

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the stored answers by the digest of the query.

        Unanswered queries are left out.
        """
        answers = {}
        with self._reporting():
            for start in range(0, len(queries), QUERIES_PER_SELECT):
                block = queries[start : start + QUERIES_PER_SELECT]
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
        """Verifies, adds up and returns the rows that were written since the last call.

        Args:
            is_own: whether this object wrote these rows and has not noted them yet.

        Raises:
            LedgerError: if a row or an answer was changed, or if rows are missing.
        """
        with self._reporting():
            self._connection.execute("BEGIN")  # all reads see the same state
            with self._connection:
                noted = self._noted if is_own else self._read_note()
                rows = list(self._rows_after(self.head, noted=noted))
                num_answers = self._check_answers(rows)
            head = Head(sequence=rows[-1].sequence, digest=rows[-1].digest) if rows else self.head
            is_unnoted = noted is None and self.folder is not None and not is_own
            if is_unnoted and head.sequence > 1:
                raise LedgerError(f"{self._refused} {self.name}.head.json is missing")
            # The database may have more rows than the note: a process may die after it writes a row
            # and before it updates the note. Only the opposite case is an error.
            if noted is not None and noted.sequence > head.sequence:
                raise LedgerError(
                    f"{self._refused} rows were removed: {self.name}.head.json records "
                    f"{noted.sequence} rows, but only {head.sequence} are left"
                )
        self.head = head
        self._num_answers = num_answers
        self._noted = noted
        for row in rows:
            self._record(row)
        return rows

    def _rows_after(
        self, head: Head, *, noted: Head | None = None, last: int | None = None
    ) -> Iterator[LedgerRow]:
        """Verifies and yields the rows after `head`.

        Stops after the sequence `last` if it is given.
        """
        stored = self._connection.execute(
            "SELECT * FROM rows WHERE sequence > ? AND sequence <= coalesce(?, sequence) "
            "ORDER BY sequence",
            (head.sequence, last),
        )
        for sequence, moment, kind, text, digest in stored:
            row = chained(head.digest, sequence, moment, kind, text)
            if sequence != head.sequence + 1 or row.digest != digest.hex():
                raise LedgerError(f"{self._refused} row {sequence} or an earlier row was changed")
            head = Head(sequence=sequence, digest=row.digest)
            if noted is not None and noted.sequence == sequence and noted != head:
                raise LedgerError(
                    f"{self._refused} row {sequence} differs from its note in {self.name}.head.json"
                )
            yield row

    def _check_answers(self, rows: Sequence[LedgerRow]) -> int:
        """Checks that the table contains exactly the recorded answers; returns their number."""
        number = self._num_answers
        for row in rows:
            if row.kind == "answers":
                first = number + 1
                number += int(row.details["num_queries"])
                answers: list[Answer] = self._connection.execute(
                    "SELECT position, debit, query, label, noisy_counts FROM answers "
                    "WHERE position BETWEEN ? AND ? ORDER BY position",
                    (first, number),
                ).fetchall()
                if digest_of_answers(answers) != row.details["answers_digest"]:
                    raise LedgerError(f"{self._refused} answers of row {row.sequence} were changed")
        positions = self._connection.execute(
            "SELECT (SELECT min(position) FROM answers), (SELECT max(position) FROM answers)"
        ).fetchone()
        if positions != ((1, number) if number else (None, None)):
            raise LedgerError(f"{self._refused} answers were added or removed")
        return number

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Converts errors of SQLite and the operating system to a LedgerError of one line."""
        with self._threads:
            try:
                yield
            except sqlite3.IntegrityError as error:
                raise LedgerError(f"{self._path}: a query would get a second answer") from error
            except (sqlite3.Error, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
                # SQLite quotes damaged text in its messages, so decoding a message may fail.
                reason = " ".join(str(error).split())
                raise LedgerError(f"{self._path}: the ledger can't be used: {reason}") from error

    def _read_note(self) -> Head | None:
        """Returns the last row according to the note; None if there is no note."""
        if self._note_path is None or not self._note_path.exists():
            return None
        try:
            fields = json.loads(self._note_path.read_text())
            return Head(sequence=int(fields["sequence"]), digest=str(fields["digest"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerError(f"{self._note_path} is damaged. Restore the ledger") from error

    def _note(self, rows: Sequence[LedgerRow]) -> None:
        """Writes the last row to a file outside the database, so that lost rows are detected."""
        if self._note_path is not None and self._noted != self.head:
            with self._reporting(), artifacts.atomic_file(self._note_path, private=True) as file:
                file.write(json.dumps(dataclasses.asdict(self.head)).encode())
            self._noted = self.head
