"""Append-only rows, each carrying a hash of all rows before it, and the answers they fix.

What opening detects: any change to a row or an answer, a missing or inserted row, a damaged page
or index, a changed schema, and a tail that was cut off (`ledger.head.json` notes the last row
whenever one is written). What it can't detect: somebody who may write to the folder and rewrites
table and head together. Against that, a released statement quotes the `Head` of its ledger, and
`Chain.holds` tells whether a ledger still contains it.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pate_tf.core import artifacts
from pate_tf.core.artifacts import transaction
from pate_tf.core.validation import IntArray

# What the ledger is made of, as values: its rows, what was spent, and its few errors.


class LedgerError(Exception):
    """The ledger can't be used as asked: damaged, not writable, or of another version."""


class EnsembleMismatch(LedgerError):  # noqa: N818
    """The ensemble is not the one that this ledger was opened for."""


class BudgetMismatch(LedgerError):  # noqa: N818
    """The budget asked for is not the one that was fixed at first use."""


class BudgetExceeded(LedgerError):  # noqa: N818
    """What was to be paid doesn't fit into what remains of the budget; nothing was charged.

    Attributes:
      num_affordable: how many of the same charge would fit.
    """

    def __init__(self, message: str, *, num_affordable: int) -> None:
        super().__init__(message)
        self.num_affordable = num_affordable


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One row of the ledger. Rows are ordered by sequence; clocks may go backwards.

    Attributes:
      sequence: 1 for the row that opens the ledger, then one more for each row.
      time: UTC time by the machine's clock, ISO 8601. Told, never relied on.
      kind: "opened", "debit", "answers", "released", "budget", "planned" or "acknowledged";
        "release" in older ledgers.
      details: what the kind records, JSON values.

        - opened: `schema_version`, `salt` (secret), `ensemble_digest` (sensitive),
          `epsilon_budget` (None if there is none), `delta`, `acknowledged` (whether an earlier
          ledger of the ensemble was gone; the next row says which), `planned_release` (how the
          data-dependent cost will be released).
        - planned: `release`, the same, where a ledger of an earlier version fixed it later.
        - acknowledged: `missing`, digests of rows that were seen and are gone.
        - debit: `charge` (its `to_dict()`) and the `number` paid for, `num_queries` and
          `queries_digest` of the queries that are to be answered, `secure_noise`, `past` (whether
          it had left before it was recorded), `epsilon_before` and `epsilon_after`
          (data-independent, of the whole ledger, at `delta`), `delta`. Up to version 2
          `mechanism` instead of charge and number. One that charges what a missing row or another
          ledger of the ensemble charged names that row as `carried_from`, and no epsilons.
        - answers: `debit` (the sequence of the row that paid), `num_queries`, `num_answered`,
          `answers_digest`.
        - release: version 2's debit of a release, with its `plan`.
        - released: `debit` (the sequence of the row that paid), `kept` (sensitive: the draw, and
          what it was drawn for).
        - budget: `epsilon_budget`, `delta`, `previous_epsilon_budget`, `previous_delta`, `raised`
          (False only where a ledger without a budget was given its first one).

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
      sequence: sequence of the last row.
      digest: its digest, which depends on every row before it. The secret salt of the first row
        hides everything else that went into it, so it may be published.
    """

    sequence: int
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
    """What all debits of one or several ledgers cost together, releases included.

    Attributes:
      epsilon: data-independent epsilon at `delta`, both directions, worst case over all data.
      delta: the delta it holds at.
      moment: the moment that gave epsilon; None if none did (nothing spent, or a closed form).
      num_queries: queries paid for, whether or not they were answered.
      num_answered: queries whose answer is a label.
    """

    epsilon: float
    delta: float
    moment: float | None
    num_queries: int
    num_answered: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """The one answer that a query ever gets from a mechanism.

    Attributes:
      label: the noisy label, or None if the mechanism withheld it.
      debit: sequence of the ledger row that paid for it.
      noisy_counts: what was released with the label, `[num_classes]` in units of 1 / LATTICE
        votes; None if nothing was.
    """

    label: int | None
    debit: int
    noisy_counts: tuple[int, ...] | None = None


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces, so that equal values have equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# The SQLite file of a ledger: made private, opened checked, locked, and migrated forward.


DATABASE: Final = "ledger.sqlite3"
LOCK: Final = "ledger.lock"
MEMORY: Final = ":memory:"
WAIT_SECONDS: Final = 120.0

# One script for each schema version, applied in turn; a released script never changes.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE rows (
      sequence INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, details TEXT NOT NULL,
      digest BLOB NOT NULL) STRICT;
    CREATE TABLE answers (
      position INTEGER PRIMARY KEY, debit INTEGER NOT NULL, query BLOB NOT NULL UNIQUE,
      label INTEGER) STRICT;
    """,
    # Rows may be of the kinds "release" and "released"; the tables stay.
    "",
    # Every "debit" names a charge and its number, which puts an end to "release"; answers may hold
    # noisy counts. Rows that were written stay as they are.
    "ALTER TABLE answers ADD COLUMN noisy_counts BLOB;",
)

SCHEMA_QUERY: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"


class Database:
    """One connection to the ledger of a folder; use it in the process and thread that made it.

    SQLite runs in WAL mode with `synchronous=FULL`: what is committed survives a power cut. The
    folder has mode 0700 and its files 0600, whatever the umask.

    Attributes:
      folder: the folder of the ledger; None for one in memory, which any thread may use.
      path: the database file in it.
      read_only: whether writing is refused.

    Raises:
      LedgerError: if the file is damaged, of a newer version, not a ledger, or can't be used.
    """

    def __init__(self, folder: pathlib.Path | None, *, read_only: bool, must_exist: bool) -> None:
        self.folder = folder
        self.path = pathlib.Path(MEMORY) if folder is None else folder.resolve() / DATABASE
        self.read_only = read_only
        with self.reporting():
            if folder is None:
                self.connection = sqlite3.connect(
                    MEMORY, isolation_level=None, check_same_thread=False
                )
                self._migrate(must_exist)
                return
            if must_exist and not self.path.exists():
                raise LedgerError(f"{self.path}: expected a ledger, got no such file")
            if read_only:
                self.connection = self._connect(self._read_only_options(folder))
            else:
                artifacts.make_sensitive_folder(folder)
                with self.exclusive():
                    self._create_file(folder)
                    self.connection = self._connect("?mode=rw")
                    self.connection.execute("PRAGMA journal_mode = WAL")
                    self.connection.execute("PRAGMA synchronous = FULL")
                    self._migrate(must_exist)
            self._check_schema()
            self._check_pages()

    def close(self) -> None:
        """Closes the connection; the object can't be used afterwards."""
        self.connection.close()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps every other process and object out; freed by the system when a process dies.

        Raises:
          LedgerError: if another one holds the ledger for two minutes, or it can't be written.
        """
        if self.read_only:
            raise LedgerError(f"{self.path}: expected a writable ledger, got one opened to read")
        if self.folder is None:
            yield
            return
        with self.reporting():
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside becomes durable together, or not at all.

        A read-only database gives a snapshot of one moment instead.

        Raises:
          LedgerError: if the database can't be read or written.
        """
        with self.reporting(), transaction(self.connection, read_only=self.read_only):
            yield

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Turns what SQLite and the system raise into a LedgerError of one line."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise LedgerError(f"{self.path}: expected one answer for a query, got two") from error
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            # SQLite quotes damaged text in its messages, which then fail to decode.
            reason = " ".join(str(error).split())
            raise LedgerError(f"{self.path}: the ledger can't be used: {reason}") from error

    def _create_file(self, folder: pathlib.Path) -> None:
        # SQLite would give it the umask's mode; WAL files copy the mode of the database.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.chmod(self.path, 0o600)
        artifacts.sync_folder(folder)

    @staticmethod
    def _read_only_options(folder: pathlib.Path) -> str:
        # Where it can't create its shared memory file, SQLite reads a WAL database only if told
        # that nobody writes it.
        at_rest = not os.access(folder, os.W_OK)
        return "?mode=ro&immutable=1" if at_rest else "?mode=ro"

    def _connect(self, options: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path.as_uri() + options, uri=True, isolation_level=None, timeout=WAIT_SECONDS
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    @property
    def version(self) -> int:
        """The schema version of the file."""
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _migrate(self, must_exist: bool) -> None:
        version = self.version
        if (version == 0 and must_exist) or not 0 <= version < len(MIGRATIONS):
            return
        steps = "".join(MIGRATIONS[version:])
        self.connection.executescript(
            f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {len(MIGRATIONS)}; COMMIT;"
        )

    def _check_schema(self) -> None:
        version = self.version
        if version > len(MIGRATIONS):
            raise LedgerError(
                f"{self.path}: expected schema version {len(MIGRATIONS)} or older, got {version}: "
                "it was written by a newer pate_tf"
            )
        pattern = sqlite3.connect(":memory:")
        pattern.executescript("".join(MIGRATIONS[:version]))
        expected = pattern.execute(SCHEMA_QUERY).fetchall()
        pattern.close()
        found = self.connection.execute(SCHEMA_QUERY).fetchall()
        if version < 1 or found != expected:
            raise LedgerError(f"{self.path}: expected the tables of a ledger, got others")

    def _check_pages(self) -> None:
        if self.connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            raise LedgerError(f"{self.path}: the file is damaged")

    def _wait_for(self, lock: int) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LedgerError(
                        f"{self.path}: expected to get the ledger within {WAIT_SECONDS:.0f} "
                        "seconds, another process holds it"
                    ) from None
                time.sleep(0.002)


HEAD: Final = "ledger.head.json"
FAULT_VARIABLE: Final = "PATE_TF_FAULT_POINT"

ROW_QUERY: Final = "SELECT sequence, time, kind, details, digest FROM rows"
TOGETHER: Final = 500  # queries looked up at once; every SQLite takes 999


def fault_point(name: str) -> None:
    """Kills this process if a test named this point in the environment."""
    if os.environ.get(FAULT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class _End:
    """Where the verified part of the chain ends."""

    sequence: int = 0
    digest: bytes = bytes(32)
    num_answers: int = 0


class Chain:
    """The rows and answers of one ledger folder.

    Attributes:
      folder: the folder of the ledger; None for rows in memory.

    Raises:
      LedgerError: as `Database` does, and if rows are missing or were changed.
    """

    def __init__(self, folder: pathlib.Path | None, *, read_only: bool, must_exist: bool) -> None:
        self.folder = folder
        head_exists = folder is not None and (folder / HEAD).exists()
        self._database = Database(folder, read_only=read_only, must_exist=must_exist or head_exists)
        self._connection = self._database.connection
        # An older ledger that is only read has no such column.
        self._noisy_counts = "noisy_counts" if self._database.version >= 3 else "NULL"
        self._end = _End()
        self._noted: Head | None = None
        self.exclusive = self._database.exclusive
        self.close = self._database.close

    @property
    def head(self) -> Head:
        """The last verified row."""
        return Head(sequence=self._end.sequence, digest=self._end.digest.hex())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is appended inside becomes durable together, or not at all."""
        before = self._end
        try:
            with self._database.transaction():
                yield
        except BaseException:
            self._end = before
            raise

    def note_head(self) -> None:
        """Notes the last row outside of the database, so that losing rows is noticed.

        Call it after the row was committed, inside `exclusive`.
        """
        if self.folder is not None and self._noted != self.head:
            with self._database.reporting():
                artifacts.write_json(
                    self.folder / HEAD, dataclasses.asdict(self.head), private=True
                )
            self._noted = self.head

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Appends a row; call it inside `transaction`, after `catch_up`."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = canonical_json(dict(details))
        row = self._link(self._end.sequence + 1, now, kind, text)
        digest = bytes.fromhex(row.digest)
        self._connection.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (row.sequence, now, kind, text, digest)
        )
        self._end = dataclasses.replace(self._end, sequence=row.sequence, digest=digest)
        return row

    def append_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> LedgerRow:
        """Appends the answers that `debit` paid for, and the row that fixes them.

        Noisy counts `[num_queries, num_classes]` are kept where there is a label.

        Raises:
          LedgerError: if one of the queries has an answer already.
        """
        first = self._end.num_answers + 1
        released: list[bytes | None] = [None] * len(queries)
        if noisy_counts is not None:
            released = [
                None if label is None else row.astype("<i8").tobytes()
                for label, row in zip(labels, noisy_counts, strict=True)
            ]
        answers = [
            (first + place, debit, *answer)
            for place, answer in enumerate(zip(queries, labels, released, strict=True))
        ]
        with self._database.reporting():
            self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", answers)
        self._end = dataclasses.replace(self._end, num_answers=self._end.num_answers + len(answers))
        details = {
            "debit": debit,
            "num_queries": len(answers),
            "num_answered": sum(label is not None for label in labels),
            "answers_digest": _digest_answers(answers),
        }
        return self.append("answers", details)

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist, by query."""
        found = {}
        with self._database.reporting():
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

    def catch_up(self) -> list[LedgerRow]:
        """Verifies the rows appended since the last call and returns them; call in `transaction`.

        Raises:
          LedgerError: if a row or answer was changed, or rows are missing.
        """
        noted = self._noted = self._noted_head()
        new = []
        for sequence, moment, kind, text, digest in self._connection.execute(
            f"{ROW_QUERY} WHERE sequence > ? ORDER BY sequence", (self._end.sequence,)
        ):
            row = self._link(sequence, moment, kind, text)
            if sequence != self._end.sequence + 1 or row.digest != digest.hex():
                raise self._refusal(f"row {sequence} was changed, or one before it is missing")
            num_answers = self._end.num_answers
            if kind == "answers":
                num_answers += self._verify_answers(row)
            self._end = _End(sequence, digest, num_answers)
            if noted is not None and noted.sequence == sequence and noted != self.head:
                raise self._refusal(f"row {sequence} is not the one noted in {HEAD}")
            new.append(row)
        self._verify_end(noted)
        return new

    def holds(self, head: Head) -> bool:
        """Whether this ledger contains the row that a statement quoted."""
        return any(
            row.digest == head.digest for row in self.rows() if row.sequence == head.sequence
        )

    def rows(self) -> Iterator[LedgerRow]:
        """Yields all rows in order, as verified by `catch_up`."""
        with self._database.reporting():
            rows = self._connection.execute(
                f"{ROW_QUERY} WHERE sequence <= ? ORDER BY sequence", (self._end.sequence,)
            )
            for sequence, time, kind, text, digest in rows:
                yield LedgerRow(
                    sequence=sequence,
                    time=time,
                    kind=kind,
                    details=json.loads(text),
                    digest=digest.hex(),
                )

    def _link(self, sequence: int, time: str, kind: str, text: str) -> LedgerRow:
        content = canonical_json([sequence, time, kind, text]).encode()
        try:
            details = json.loads(text)
        except json.JSONDecodeError as error:
            raise self._refusal(f"row {sequence} was changed") from error
        return LedgerRow(
            sequence=sequence,
            time=time,
            kind=kind,
            details=details,
            digest=hashlib.sha256(self._end.digest + content).hexdigest(),
        )

    def _verify_answers(self, row: LedgerRow) -> int:
        before = self._end.num_answers
        num_queries = int(row.details["num_queries"])
        answers = self._connection.execute(
            f"SELECT position, debit, query, label, {self._noisy_counts} FROM answers "
            "WHERE position BETWEEN ? AND ? ORDER BY position",
            (before + 1, before + num_queries),
        ).fetchall()
        if _digest_answers(answers) != row.details["answers_digest"]:
            raise self._refusal(f"answers of row {row.sequence} were changed")
        return num_queries

    def _verify_end(self, noted: Head | None) -> None:
        first, last = self._connection.execute(
            "SELECT (SELECT min(position) FROM answers), (SELECT max(position) FROM answers)"
        ).fetchone()
        if (first or 1, last or 0) != (1, self._end.num_answers):
            raise self._refusal("answers were added or removed")
        if noted is None and self._end.sequence > 1:
            raise self._refusal(f"expected {HEAD} beside it, there is none")
        # A process may die between committing a row and noting it, so the table may be longer.
        if noted is not None and noted.sequence > self._end.sequence:
            raise self._refusal(
                f"expected at least {noted.sequence} rows as noted in {HEAD}, got "
                f"{self._end.sequence}: rows were removed"
            )

    def _noted_head(self) -> Head | None:
        if self.folder is None:
            return self.head
        path = self.folder / HEAD
        try:
            fields = artifacts.read_json(path)
            return Head(sequence=int(fields["sequence"]), digest=str(fields["digest"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{path}: expected the last row's sequence and digest") from error

    def _refusal(self, reason: str) -> LedgerError:
        return LedgerError(f"{self._database.path}: the ledger is refused: {reason}")


def _digest_answers(answers: Sequence[tuple[int, int, bytes, int | None, bytes | None]]) -> str:
    digest = hashlib.sha256()
    for position, debit, query, label, noisy_counts in answers:
        released = "" if noisy_counts is None else f",{noisy_counts.hex()}"
        digest.update(f"{position},{debit},{query.hex()},{label}{released}\n".encode())
    return digest.hexdigest()
