"""What one user on one machine has seen of ledgers, kept outside of every run folder.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor that
other ensembles learnt from the same records. The registry can, for what it has seen: it notes every
row of every ledger and silo account that is opened to be written, whom it is about (its subject: an
ensemble, or a silo by its name), every folder that it was seen in, and the records that the subject
learnt from where they are known.

It lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else `~/.local/state/pate_tf`, with
mode 0700 and its file 0600. Subjects, record sets and ledgers are known in it by digests under a
random key of its own, so that it confirms no guess at private data to whoever lacks the key. What
it can't see: other machines, other users, and runs while it was missing.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.core.artifacts import transaction
from pate_tf.core.record_set import RecordSet
from pate_tf.ledger.chain import LedgerError, LedgerRow, canonical_json

# What rows of a ledger paid for, whichever version wrote them.


# Versions 1 and 2 wrote "debit" for queries and, since 2, "release" for plans.
PAYMENTS = ("debit", "release")


def payment(row: LedgerRow) -> tuple[Charge, int]:
    """Returns what a row of one of `PAYMENTS` paid for, and how often.

    Raises:
      LedgerError: if this program does not know that charge.
    """
    fields, number = charge_fields(row)
    try:
        return charge_from_dict(fields), number
    except (ValueError, TypeError) as error:
        raise LedgerError(
            f"row {row.sequence} paid for something unknown here; import what defines it: {error}"
        ) from error


def charge_fields(row: LedgerRow) -> tuple[Mapping[str, Any], int]:
    """Returns the record of the charge that a row paid for, and how often it did."""
    details = row.details
    if "charge" in details:
        return details["charge"], int(details["number"])
    if row.kind == "release":
        return details["plan"], 1
    return details["mechanism"], int(details["num_queries"])


def paid_by(rows: Iterable[LedgerRow]) -> Counter[Charge]:
    """Returns what rows paid for; those of other kinds pay for nothing."""
    paid: Counter[Charge] = Counter()
    for row in rows:
        if row.kind in PAYMENTS:
            charge, number = payment(row)
            paid[charge] += number
    return paid


def batches_before(
    history: Iterable[LedgerRow], mechanism: Charge, *, last: int
) -> Counter[Charge]:
    """Returns the batches that were paid for once each and led to labels of a mechanism.

    All of them if it is itself paid once for a batch, with its own; else those that stayed shut.

    Args:
      history: rows of a ledger.
      mechanism: what drew the labels.
      last: sequence of the last row that paid for them.
    """
    payments: dict[int, tuple[Charge, int]] = {}
    shut: set[int] = set()
    for row in history:
        if row.kind in PAYMENTS and row.sequence <= last:
            charge, times = payment(row)
            if charge.is_paid_once:
                payments[row.sequence] = (charge, times)
        elif row.kind == "answers" and not row.details["num_answered"]:
            shut.add(row.details["debit"])
    together: Counter[Charge] = Counter()
    for sequence, (charge, times) in payments.items():
        if mechanism.is_paid_once or sequence in shut:
            together[charge] += times
    return together


def payment_identity(row: LedgerRow) -> str:
    """Returns the digest of the row that paid first, where a row carries over another's payment."""
    return str(row.details.get("carried_from", row.digest))


def payment_record(row: LedgerRow) -> str | None:
    """Returns what the registry notes of a row that paid; None for one of another kind."""
    if row.kind not in PAYMENTS:
        return None
    fields, number = charge_fields(row)
    return canonical_json(
        {
            "charge": dict(fields),
            "number": number,
            "num_queries": int(row.details.get("num_queries", 0)),
            "secure_noise": bool(row.details.get("secure_noise", True)),
            "carried_from": payment_identity(row),
        }
    )


# The file of the registry, its tables, and the key that hides what it is about.


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


# What a ledger is about: "ensemble" and its digest, or "silo" and its name.
Subject = tuple[str, str]


class SeenRow(NamedTuple):
    """A row that was seen in a ledger.

    Attributes:
      ledger: what its ledger is known by here.
      digest: of the row.
      sequence: of the row.
      payment: what it paid for, see `pate_tf.ledger.registry.payment_record`; None for a row of
        another kind.
    """

    ledger: bytes
    digest: str
    sequence: int
    payment: Mapping[str, Any] | None


class Registry:
    """The registry of this user; use it in the process and thread that made it.

    Args:
      folder: where it lies. Default: `state_folder()`.

    Raises:
      RegistryError: if it can't be made, read or written.
    """

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._file = RegistryFile(state_folder() if folder is None else folder)
        self._connection = self._file.connection

    def close(self) -> None:
        """Closes the file; the object can't be used afterwards."""
        self._file.close()

    def note(
        self,
        opened: LedgerRow,
        rows: Iterable[LedgerRow],
        *,
        subject: Subject,
        folder: pathlib.Path,
        records: RecordSet | None = None,
    ) -> None:
        """Notes rows of a ledger, durably; those that are known already stay as they are.

        Args:
          opened: the row that opened the ledger.
          rows: its rows, or those that came since the last call.
          subject: what the ledger is about.
          folder: where it lies.
          records: what its subject learnt from; None if that is not known.

        Raises:
          RegistryError: if it can't be written.
        """
        ledger = self.ledger_key(opened)
        with self._file.writing():
            self._connection.execute(
                "INSERT INTO ledgers VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET "
                "records = coalesce(excluded.records, records)",
                (
                    ledger,
                    self.subject_key(subject),
                    None if records is None else self._file.keyed("records", records.digest),
                ),
            )
            self._connection.execute(
                "INSERT OR IGNORE INTO folders VALUES (?, ?)", (ledger, str(folder.resolve()))
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO sketches VALUES (?, ?)",
                [
                    (ledger, self._file.keyed("record", one))
                    for one in (() if records is None else records.sketch)
                ],
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)",
                [(ledger, row.sequence, row.digest, payment_record(row)) for row in rows],
            )

    def seen(self, subject: Subject, after: int = 0) -> tuple[list[SeenRow], int]:
        """Returns the rows noted of all ledgers of a subject, in their order, and a position.

        Args:
          subject: what the ledgers are about.
          after: the position that an earlier call returned, for what was noted since. Default: all.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            found = self._connection.execute(
                "SELECT ledger, digest, sequence, payment, rows.rowid FROM rows "
                "JOIN ledgers USING (ledger) WHERE subject = ? AND rows.rowid > ? "
                "ORDER BY rows.rowid",
                (self.subject_key(subject), after),
            ).fetchall()
            rows = [
                SeenRow(ledger, digest, sequence, None if text is None else json.loads(text))
                for ledger, digest, sequence, text, _ in found
            ]
        return rows, found[-1][4] if found else after

    def folders(self, subject: Subject) -> dict[bytes, list[str]]:
        """Returns the folders that each ledger of a subject was seen in.

        Raises:
          RegistryError: if it can't be read.
        """
        found: dict[bytes, list[str]] = {}
        with self._file.reporting():
            for ledger, folder in self._connection.execute(
                "SELECT ledger, folder FROM folders JOIN ledgers USING (ledger) "
                "WHERE subject = ? ORDER BY folders.rowid",
                (self.subject_key(subject),),
            ):
                found.setdefault(ledger, []).append(folder)
        return found

    def ledger_key(self, opened: LedgerRow) -> bytes:
        """Returns what a ledger is known by here, by the row that opened it."""
        return self._file.keyed("ledger", opened.digest)

    def subject_key(self, subject: Subject) -> bytes:
        """Returns what a subject is known by here."""
        return self._file.keyed(*subject)

    def subjects_of(self, digest: str) -> list[bytes]:
        """Returns the subjects, as they are known here, whose ledgers hold a row.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return [
                subject
                for (subject,) in self._connection.execute(
                    "SELECT DISTINCT subject FROM rows JOIN ledgers USING (ledger) "
                    "WHERE digest = ?",
                    (digest,),
                )
            ]

    def related(self, opened: LedgerRow) -> list[bytes]:
        """Returns the ledgers of ensembles that are known to share records with a ledger's.

        The ledger itself is among them. Ensembles whose records are not known share them with
        equal ensembles alone.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return [
                ledger
                for (ledger,) in self._connection.execute(
                    "WITH own AS (SELECT * FROM ledgers WHERE ledger = :ledger) "
                    "SELECT ledger FROM ledgers WHERE ledger = :ledger "
                    "OR subject = (SELECT subject FROM own) "
                    "OR records = (SELECT records FROM own) "
                    "OR ledger IN (SELECT ledger FROM sketches WHERE record IN "
                    "(SELECT record FROM sketches WHERE ledger = :ledger)) ORDER BY ledger",
                    {"ledger": self.ledger_key(opened)},
                )
            ]

    def knows_records(self, opened: LedgerRow) -> bool:
        """Whether the records of a ledger's ensemble are known, so that others can share them.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            row = self._connection.execute(
                "SELECT records FROM ledgers WHERE ledger = ?", (self.ledger_key(opened),)
            ).fetchone()
        return row is not None and row[0] is not None

    def paid(self, ledgers: Sequence[bytes]) -> tuple[dict[str, tuple[Charge, int]], set[bytes]]:
        """Returns what ledgers paid for, every branch of each, by the digest of who paid first.

        And those of the ledgers that paid for something which is unknown here, as a mechanism of a
        user's own is where nobody imports it. Nobody knows what they spent.

        Raises:
          RegistryError: if it can't be read.
        """
        found: dict[str, tuple[Charge, int]] = {}
        unknown: set[bytes] = set()
        with self._file.reporting():
            for ledger in ledgers:
                for (text,) in self._connection.execute(
                    "SELECT payment FROM rows WHERE ledger = ? AND payment IS NOT NULL", (ledger,)
                ):
                    payment = json.loads(text)
                    try:
                        charge = charge_from_dict(payment["charge"])
                    except (ValueError, TypeError):
                        unknown.add(ledger)
                        continue
                    found[payment["carried_from"]] = (charge, int(payment["number"]))
        return found, unknown
