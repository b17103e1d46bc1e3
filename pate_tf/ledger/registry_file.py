"""The file of the registry, its tables, and the key that hides what it is about."""

import contextlib
import hashlib
import os
import pathlib
import secrets
import sqlite3
from collections.abc import Iterator
from typing import Final

from pate_tf.artifacts.transactions import transaction

STATE_VARIABLE: Final = "PATE_TF_STATE"
DATABASE: Final = "registry.sqlite3"
WAIT_SECONDS: Final = 60.0
# One script for each version, applied in turn; a released script never changes.
_MIGRATIONS: Final = (
    """
    CREATE TABLE key (value BLOB NOT NULL) STRICT;
    CREATE TABLE ledgers (
      ledger BLOB PRIMARY KEY, ensemble BLOB NOT NULL, folder TEXT NOT NULL, records BLOB) STRICT;
    CREATE TABLE sketches (
      ledger BLOB NOT NULL, record BLOB NOT NULL, UNIQUE (ledger, record)) STRICT;
    CREATE INDEX sketched ON sketches (record);
    CREATE TABLE rows (
      ledger BLOB NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, payment TEXT,
      UNIQUE (ledger, digest)) STRICT;
    CREATE INDEX noted ON rows (ledger);
    """,
    # A ledger that was copied or moved lies in several folders, and is about more than ensembles.
    """
    CREATE TABLE folders (
      ledger BLOB NOT NULL, folder TEXT NOT NULL, UNIQUE (ledger, folder)) STRICT;
    INSERT INTO folders SELECT ledger, folder FROM ledgers;
    ALTER TABLE ledgers DROP COLUMN folder;
    ALTER TABLE ledgers RENAME COLUMN ensemble TO subject;
    CREATE INDEX about ON ledgers (subject);
    """,
)


class RegistryError(Exception):
    """The registry can't be used; what it would notice goes unnoticed."""


def state_folder() -> pathlib.Path:
    """Returns the folder that the registry lies in, which need not exist.

    Raises:
      RegistryError: if the environment names none.
    """
    for variable, below in ((STATE_VARIABLE, "."), ("XDG_STATE_HOME", "pate_tf")):
        if named := os.environ.get(variable):
            return pathlib.Path(named) / below
    if home := os.environ.get("HOME"):
        return pathlib.Path(home) / ".local" / "state" / "pate_tf"
    raise RegistryError(f"expected {STATE_VARIABLE}, XDG_STATE_HOME or HOME, none is set")


class RegistryFile:
    """An open registry; use it in the process and thread that made it.

    Args:
      folder: where it lies.

    Attributes:
      folder: where it lies.
      connection: to its tables.

    Raises:
      RegistryError: if it can't be made, read or written.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        with self.reporting():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.folder, 0o700)
            path = self.folder.resolve() / DATABASE
            # SQLite would give it the umask's mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(path, 0o600)
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)
            self.connection.execute("PRAGMA synchronous = FULL")
            self._key = self._made()

    def close(self) -> None:
        """Closes the file; the object can't be used afterwards."""
        self.connection.close()

    def keyed(self, kind: str, value: str) -> bytes:
        """Returns what a value is known by here; nobody without the key can guess it."""
        return hashlib.blake2b(f"{kind}\0{value}".encode(), key=self._key, digest_size=32).digest()

    def _made(self) -> bytes:
        with self.writing():  # another process may be faster
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if version > len(_MIGRATIONS):
                raise RegistryError(
                    f"{self.folder}: expected version {len(_MIGRATIONS)} or older, got {version}"
                )
            for statement in ";".join(_MIGRATIONS[version:]).split(";"):
                self.connection.execute(statement)
            if version < len(_MIGRATIONS):
                self.connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
            self.connection.execute(
                "INSERT INTO key SELECT ? WHERE NOT EXISTS (SELECT * FROM key)",
                (secrets.token_bytes(32),),
            )
        (key,) = self.connection.execute("SELECT value FROM key").fetchone()
        return bytes(key)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Runs a transaction: all of it, or nothing."""
        with self.reporting(), transaction(self.connection):
            yield

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Turns whatever goes wrong with the file into a RegistryError."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            raise RegistryError(f"{self.folder}: {' '.join(str(error).split())}") from error
