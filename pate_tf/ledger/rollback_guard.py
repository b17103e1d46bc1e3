"""What is known of a store beyond its own rows: whether it goes on where it was seen last.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor that
other ensembles learnt from the same records. The registry can, for what it has seen: it notes every
row of every ledger and silo account that is opened to be written, whom it is about (its subject: an
ensemble, or a silo by its name), every folder that it was seen in, and the records that the
subject learnt from where they are known. Statements and votes in the folders around a store tell of
it, too.

A store that lacks a row it should hold is refused, unless its user acknowledges that. Then a row
"acknowledged" says for ever what was missing. What missing rows and other stores of the same
subject charged is charged here, too, as released before.

The registry lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else
`~/.local/state/pate_tf`, with mode 0700 and its file 0600. Subjects, record sets and ledgers are
known in it by digests under a random key of its own, so that it confirms no guess at private data
without that key. What it can't see: other machines, other users, and runs while it was missing.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import secrets
import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.core import artifacts
from pate_tf.core.record_set import RecordSet
from pate_tf.ledger.chain import DEBITS, Head, LedgerRow, canonical_json, charge_fields, first_debit

STATE_VARIABLE: Final = "PATE_TF_STATE"
REGISTRY: Final = "registry.sqlite3"
WAIT_SECONDS: Final = 60.0
ACKNOWLEDGE = "`acknowledge_reset` goes on without it, which stays on record for ever"

# What a store is about: "ensemble" and its digest, "silo" and its name, "party" and its key.
Subject = tuple[str, str]
Result = TypeVar("Result")

# One script for each version, applied in turn; a released script never changes.
MIGRATIONS: Final = (
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
    # What a ledger's charges protect.
    """
    ALTER TABLE ledgers ADD COLUMN unit TEXT;
    """,
)


class LedgerWarning(UserWarning):
    """Something about a ledger that its user should know, in one line."""


def warn(message: str) -> None:
    """Tells the user in one line."""
    warnings.warn(message, LedgerWarning, stacklevel=2)


class RegistryError(Exception):
    """The registry can't be used; what it would notice goes unnoticed."""


def open_registry() -> tuple[sqlite3.Connection, bytes]:
    """Returns a connection to the registry, which it makes, and the registry's key.

    Raises:
        RegistryError: if the environment names no folder for it, or it is of a newer version.
        OSError, sqlite3.Error: if it can't be made, read or written.
    """
    places = (
        (STATE_VARIABLE, "."),
        ("XDG_STATE_HOME", "pate_tf"),
        ("HOME", ".local/state/pate_tf"),
    )
    named = [(os.environ[name], below) for name, below in places if os.environ.get(name)]
    if not named:
        raise RegistryError(f"expected {STATE_VARIABLE}, XDG_STATE_HOME or HOME, none is set")
    folder = pathlib.Path(*named[0])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    path = folder.resolve() / REGISTRY
    # SQLite would give it the umask's mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.chmod(path, 0o600)
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")  # another process may be faster
        with connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                raise RegistryError(
                    f"{folder}: expected version {len(MIGRATIONS)} or older, got {version}"
                )
            for statement in ";".join(MIGRATIONS[version:]).split(";"):
                connection.execute(statement)
            if version < len(MIGRATIONS):
                connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute(
                "INSERT INTO key SELECT ? WHERE NOT EXISTS (SELECT * FROM key)",
                (secrets.token_bytes(32),),
            )
        (key,) = connection.execute("SELECT value FROM key").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


# What lies in the folders around a ledger and outlives it: statements that quote it.


VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"


def quoted_heads(folder: pathlib.Path, runs: Iterable[pathlib.Path]) -> dict[pathlib.Path, Head]:
    """Returns the statements of runs, each with the head that it quotes; the store's run is one.

    A file that is no statement quotes nothing.
    """
    folder = folder.resolve()
    own = (folder.parent,) if folder.name == artifacts.SENSITIVE else ()
    found = {}
    for run in (*own, *runs):
        path = run / artifacts.RELEASED / STATEMENT
        if path.exists():
            try:
                sequence, digest = artifacts.read_json(path)["ledger_head"]
                found[path] = Head(sequence=int(sequence), digest=str(digest))
            except (KeyError, TypeError, ValueError):
                continue
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """Rows that a store should hold and doesn't.

    Attributes:
        reason: one line: what is missing, and what to do.
        digests: of the missing rows.
        left_nothing: whether nothing lies here that they charged for, neither votes nor a
            statement: a run was deleted as a whole, and the registry alone tells of it.
    """

    reason: str
    digests: tuple[str, ...]
    left_nothing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllEnsembles:
    """What all ensembles spent that are known to have learnt from the same private records.

    Attributes:
        charges: what was charged, and how often; a ledger that went on in several copies with every
            branch, and what these have in common once.
        num_ledgers: how many ledgers they have.
        records_are_known: whether the records of this ensemble are known, so that others could be
            recognised by them.
        num_unknown: how many of the ledgers charged something that is unknown here.
        num_other_units: how many protect something else than this one, or it is not known what. A
            charge for a record says nothing of an owner's records, which can be many, and one for
            an owner added or removed nothing of an owner whose record is replaced.
    """

    charges: Mapping[Charge, int]
    num_ledgers: int
    records_are_known: bool
    num_unknown: int = 0
    num_other_units: int = 0

    def epsilon(self, delta: float) -> float:
        """Returns what all of it cost at a delta; infinite where that is not known."""
        if self.num_unknown or self.num_other_units:
            return math.inf
        return composition.smallest_epsilon(self.charges, delta)[0]


class SeenRow(NamedTuple):
    """A row that the registry saw in a ledger; `debit` is what it charged, None if nothing."""

    ledger: bytes
    digest: str
    sequence: int
    debit: Mapping[str, Any] | None


class RollbackGuard:
    """What the registry of this user and the folders around a store know of it.

    Without a registry it warns once and knows what lies around the store alone.

    Args:
        folder: the store's.
        subject: whom the store is about; None for one that is only read.
        records: what the subject learnt from; None if that is not known.
        unit: what the store's charges protect, "record" or "owner"; None if that is not known. What
            was noted first stays.
        is_single: whether a subject has one store alone, wherever it lies: what another one holds
            is missing here. Else several may go on, each charged what the others spent.

    Attributes:
        rows: what the registry noted of the subject and is not settled yet, by digest.
        records: as given.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        subject: Subject | None,
        records: RecordSet | None = None,
        *,
        unit: str | None = None,
        is_single: bool = False,
    ) -> None:
        self._folder, self._subject, self.records = folder, subject, records
        self._unit, self._is_single = unit, is_single
        self.rows: dict[str, SeenRow] = {}
        self._position = 0
        self._registry: sqlite3.Connection | None = None
        try:
            self._registry, self._key = open_registry()
        except (RegistryError, sqlite3.Error, OSError, ValueError, TypeError) as error:
            self._go_on_without(error)

    @property
    def is_kept(self) -> bool:
        """Whether a registry notes what the store does."""
        return self._registry is not None

    def close(self) -> None:
        """Closes the registry."""
        if self._registry is not None:
            self._registry.close()

    def keyed(self, kind: str, value: str) -> bytes:
        """Returns what a value is known by in the registry; it can't be guessed without its key."""
        return hashlib.blake2b(f"{kind}\0{value}".encode(), key=self._key, digest_size=32).digest()

    def note(self, opened: LedgerRow, rows: Sequence[LedgerRow]) -> None:
        """Notes rows that are durable in the store; those known already stay as they are."""
        subject, records = self._subject, self.records

        def write(registry: sqlite3.Connection) -> None:
            ledger = self.keyed("ledger", opened.digest)
            known_by = None if records is None else self.keyed("records", records.digest)
            about = None if subject is None else self.keyed(*subject)
            sketch = () if records is None else records.sketch
            noted = []
            for row in rows:
                debit = None
                if row.kind in DEBITS:
                    fields, number = charge_fields(row)
                    debit = canonical_json(
                        {
                            "charge": dict(fields),
                            "number": number,
                            "num_queries": int(row.details.get("num_queries", 0)),
                            "secure_noise": bool(row.details.get("secure_noise", True)),
                            "carried_from": first_debit(row),
                        }
                    )
                noted.append((ledger, row.sequence, row.digest, debit))
            registry.execute("BEGIN IMMEDIATE")
            with registry:
                registry.execute(
                    "INSERT INTO ledgers VALUES (?, ?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET "
                    "records = coalesce(excluded.records, records), "
                    "unit = coalesce(unit, excluded.unit)",
                    (ledger, about, known_by, self._unit),
                )
                registry.execute(
                    "INSERT OR IGNORE INTO folders VALUES (?, ?)",
                    (ledger, str(self._folder.resolve())),
                )
                registry.executemany(
                    "INSERT OR IGNORE INTO sketches VALUES (?, ?)",
                    [(ledger, self.keyed("record", one)) for one in sketch],
                )
                registry.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)", noted)

        self._ask(write, None)

    def missing_before(self, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns what a store that is about to be opened for the first time should have held.

        Args:
            runs: folders of runs whose statements may quote an earlier ledger.
        """
        self._look()
        own, reasons = str(self._folder.resolve()), list[str]()
        folders = self._folders() if self.rows else {}
        here = [row for row in self.rows.values() if own in folders.get(row.ledger, ())]
        gone = list(self.rows.values()) if self._is_single else here
        seen = {row.digest: row.sequence for row in gone}
        if seen:
            where = "here" if here else f"in {self._places(gone)}"
            reasons.append(f"one of {max(seen.values())} rows was seen {where}")
        if any((self._folder / VOTES).glob("*.npz")):
            reasons.append(f"votes that one charged for lie in {self._folder / VOTES}")
        quoted = {}
        for path, head in quoted_heads(self._folder, runs).items():
            subjects = self._subjects_of(head)
            if not subjects or (self._subject and self.keyed(*self._subject) in subjects):
                reasons.append(f"{path} quotes row {head.sequence} of one")
                quoted[head.digest] = head.sequence
        if not reasons:
            return None
        return Missing(
            reason=(
                f"{self._folder}: expected the ledger that was stored before, got none, but "
                f"{' and '.join(reasons)}; put it back with all of its files, or go on where it "
                f"lies; {ACKNOWLEDGE}"
            ),
            digests=tuple(seen | quoted),
            left_nothing=len(reasons) == 1 and bool(seen) and not self._is_single,
        )

    def missing_from(
        self, opened: LedgerRow, held: Mapping[str, int], acknowledged: Container[str]
    ) -> Missing | None:
        """Returns what was seen of a store and is not in it.

        Args:
            opened: the row that opened it.
            held: its rows: the sequence of each, by digest.
            acknowledged: digests of rows that are known to be missing.
        """
        self._look()
        own = b"" if self._registry is None else self.keyed("ledger", opened.digest)
        gone = [
            row
            for row in self.rows.values()
            if (self._is_single or row.ledger == own)
            and not (row.digest in held or row.digest in acknowledged)
        ]
        seen = {row.digest: row.sequence for row in gone}
        quoted = {}
        for head in quoted_heads(self._folder, ()).values():
            # A student of other teachers may lie here, too.
            is_known = head.digest in held or head.digest in acknowledged
            if not is_known and (head.digest in seen or not self._subjects_of(head)):
                quoted[head.digest] = head.sequence
        lost = seen | quoted
        if not lost:
            return None
        last, here = max(lost.values()), max(held.values())
        if any(row.ledger != own for row in gone):
            reason = (
                f"another ledger of the same subject went on in {self._places(gone)}; go on with "
                f"that one alone"
            )
        elif here < last:
            reason = (
                f"this ledger was restored from an older copy: row {last} was seen, row {here} is "
                f"here; put the newer one back"
            )
        else:
            reason = (
                f"this ledger and a copy of it went on apart: another row {last} was seen than is "
                f"here; go on with that copy alone"
            )
        return Missing(reason=f"{self._folder}: {reason}; {ACKNOWLEDGE}", digests=tuple(lost))

    def charged_elsewhere(self, charged: Container[str]) -> list[Mapping[str, Any]]:
        """Returns what rows of the same subject charged that is not charged here, each once.

        Call it after `missing_from` or `missing_before`, once what is missing is acknowledged.

        Args:
            charged: what is charged here, by `first_debit`.
        """
        # Rows are only ever added, here and there: what is settled once stays so.
        self.rows = {
            digest: row
            for digest, row in self.rows.items()
            if row.debit is not None and row.debit["carried_from"] not in charged
        }
        debits = [row.debit for row in self.rows.values() if row.debit is not None]
        return list({debit["carried_from"]: debit for debit in debits}.values())

    def all_ensembles(
        self, opened: LedgerRow, own: Mapping[str, tuple[Charge, int]]
    ) -> AllEnsembles | None:
        """Returns what all known ensembles of the same records charged; None without a registry.

        Ensembles whose records are not known share them with equal ensembles alone. Equal ones
        protect the same.

        Args:
            opened: the row that opened the ledger.
            own: what the ledger itself charged, by `first_debit`.
        """

        def ask(registry: sqlite3.Connection) -> AllEnsembles:
            names = {"ledger": self.keyed("ledger", opened.digest), "unit": self._unit}
            related = registry.execute(
                "WITH own AS (SELECT * FROM ledgers WHERE ledger = :ledger) "
                "SELECT ledger, subject = (SELECT subject FROM own) "
                "OR ifnull(unit = coalesce(:unit, (SELECT unit FROM own)), FALSE) "
                "FROM ledgers WHERE ledger = :ledger "
                "OR subject = (SELECT subject FROM own) "
                "OR records = (SELECT records FROM own) "
                "OR ledger IN (SELECT ledger FROM sketches WHERE record IN "
                "(SELECT record FROM sketches WHERE ledger = :ledger))",
                names,
            ).fetchall()
            known = registry.execute(
                "SELECT records FROM ledgers WHERE ledger = :ledger", names
            ).fetchone()
            debits: dict[str, tuple[Charge, int]] = {}
            unknown: set[bytes] = set()
            for ledger, _ in related:
                for (text,) in registry.execute(
                    "SELECT payment FROM rows WHERE ledger = ? AND payment IS NOT NULL", (ledger,)
                ):
                    debit = json.loads(text)
                    try:
                        charge = charge_from_dict(debit["charge"])
                    except (ValueError, TypeError):
                        unknown.add(ledger)
                        continue
                    debits[debit["carried_from"]] = (charge, int(debit["number"]))
            charges: Counter[Charge] = Counter()
            for charge, number in {**debits, **own}.values():
                charges[charge] += number
            return AllEnsembles(
                charges=dict(charges),
                num_ledgers=max(1, len(related)),
                records_are_known=known is not None and known[0] is not None,
                num_unknown=len(unknown),
                num_other_units=sum(not is_same for _, is_same in related),
            )

        return self._ask(ask, None)

    def _look(self) -> None:
        """Takes up what the registry noted of the subject since."""
        subject, position = self._subject, self._position
        if subject is None:
            return

        def seen(registry: sqlite3.Connection) -> list[tuple[int, SeenRow]]:
            found = registry.execute(
                "SELECT rows.rowid, ledger, digest, sequence, payment FROM rows "
                "JOIN ledgers USING (ledger) WHERE subject = ? AND rows.rowid > ? "
                "ORDER BY rows.rowid",
                (self.keyed(*subject), position),
            )
            return [
                (
                    place,
                    SeenRow(ledger, digest, sequence, None if text is None else json.loads(text)),
                )
                for place, ledger, digest, sequence, text in found
            ]

        for place, row in self._ask(seen, list[tuple[int, SeenRow]]()):
            self._position, self.rows[row.digest] = place, row

    def _folders(self) -> dict[bytes, list[str]]:
        """Returns the folders that each ledger of the subject was seen in, oldest first."""
        subject = self._subject
        folders: dict[bytes, list[str]] = {}
        if subject is not None:
            for ledger, folder in self._ask(
                lambda registry: registry.execute(
                    "SELECT ledger, folder FROM folders JOIN ledgers USING (ledger) "
                    "WHERE subject = ? ORDER BY folders.rowid",
                    (self.keyed(*subject),),
                ).fetchall(),
                list[tuple[bytes, str]](),
            ):
                folders.setdefault(ledger, []).append(folder)
        return folders

    def _places(self, rows: Iterable[SeenRow]) -> str:
        """Names the folders that the ledgers of rows were seen in."""
        folders = self._folders()
        places = {place for row in rows for place in folders.get(row.ledger, ())}
        return " and ".join(sorted(places))

    def _subjects_of(self, head: Head) -> list[bytes]:
        """Returns the subjects, as the registry knows them, whose ledgers hold a row."""
        return [
            subject
            for (subject,) in self._ask(
                lambda registry: registry.execute(
                    "SELECT DISTINCT subject FROM rows JOIN ledgers USING (ledger) "
                    "WHERE digest = ?",
                    (head.digest,),
                ).fetchall(),
                list[tuple[bytes]](),
            )
        ]

    def _ask(self, question: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Returns what the registry answers; without one, or once it can't be used, `otherwise`."""
        if self._registry is None:
            return otherwise
        try:
            return question(self._registry)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            self._go_on_without(error)
            return otherwise

    def _go_on_without(self, error: Exception) -> None:
        self._registry = None
        place = os.environ.get(STATE_VARIABLE, "")
        reason = " ".join(str(error).split())
        warn(
            "no registry of ledgers can be kept, so that copied or restored ledgers and other "
            f"ensembles of the same records go unnoticed, which statements say: "
            f"{reason if isinstance(error, RegistryError) else f'{place}: {reason}'}"
        )
