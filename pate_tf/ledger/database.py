"""The SQLite file of a ledger: made private, opened checked, locked, and migrated forward."""

import contextlib
import fcntl
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Final

from pate_tf import artifacts
from pate_tf.artifacts.transactions import transaction
from pate_tf.ledger.rows import LedgerError

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
