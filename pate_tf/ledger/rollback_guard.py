"""What is known of a store beyond its own rows: whether it goes on where it was seen last.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor what
other ledgers are charged for the same private data. The registry can, for what it has seen: it
notes every row of every store that is opened to be written, every folder that it was seen in, and
the named source that its releases are charged to. Statements and votes in the folders around a
store tell of it, too.

A store that lacks a row it should hold is refused, unless its user acknowledges that. Then a row
"acknowledged" says for ever what was missing, and what missing rows charged is charged here, too,
as released before.

Nothing is ever recognised by the private records: which ledgers add up follows from the names of
their sources, which a data holder gives (`pate_tf.core.source`).

The registry lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else
`~/.local/state/pate_tf`, with mode 0700 and its file 0600. What it can't see: other machines, other
users, and runs while it was missing.
"""

import contextlib
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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.core import artifacts
from pate_tf.core.source import PrivateSource
from pate_tf.ledger.chain import DEBITS, Head, LedgerRow, canonical_json, charge_fields, first_debit

STATE_VARIABLE: Final = "PATE_TF_STATE"
REGISTRY: Final = "ledgers.sqlite3"
VERSION: Final = 1
WAIT_SECONDS: Final = 60.0
ACKNOWLEDGE = "`acknowledge_reset` goes on without it, which stays on record for ever"
SAME_RECORDS: Final = "same_records.json"
VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"

Identity = tuple[str, str]  # of what has one store alone: "silo", "party" or "run", and its name
Result = TypeVar("Result")

TABLES: Final = """
CREATE TABLE key (value BLOB NOT NULL) STRICT;
CREATE TABLE ledgers (
  ledger BLOB PRIMARY KEY, identity TEXT, source TEXT NOT NULL, unit TEXT) STRICT;
CREATE INDEX charged ON ledgers (source);
CREATE TABLE folders (
  ledger BLOB NOT NULL, folder TEXT NOT NULL, UNIQUE (ledger, folder)) STRICT;
CREATE TABLE rows (
  ledger BLOB NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, debit TEXT,
  UNIQUE (digest, ledger)) STRICT;
CREATE INDEX noted ON rows (ledger);
CREATE TABLE contents (content BLOB NOT NULL, source TEXT NOT NULL, name TEXT,
  UNIQUE (content, source)) STRICT
"""


class LedgerWarning(UserWarning):
    """Something about a ledger that its user should know, in one line."""


class SensitiveWarning(UserWarning):
    """SENSITIVE: something about the private records, for the data holder alone."""


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
            if version > VERSION:
                raise RegistryError(f"{folder}: expected version {VERSION} or older, got {version}")
            if version < VERSION:
                for statement in TABLES.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO key VALUES (?)", (secrets.token_bytes(32),))
                connection.execute(f"PRAGMA user_version = {VERSION}")
        (key,) = connection.execute("SELECT value FROM key").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection, bytes(key)


def warn_of_same_records(
    source: PrivateSource | None, content: bytes, sensitive: pathlib.Path
) -> None:
    """SENSITIVE: warns a data holder whose records were used under another name before.

    Nothing that is released or charged depends on it. What it finds is stored in
    `sensitive/same_records.json`, too. Without a registry nothing is known.

    Args:
        source: that releases from the records are charged to; None for the run folder.
        content: a digest of all records that does not depend on their order.
        sensitive: the run's folder for what is private.
    """
    source = source or PrivateSource(name=None, key=f"run {sensitive.resolve()}")
    try:
        registry, key = open_registry()
        with contextlib.closing(registry):
            keyed = hashlib.blake2b(content, key=key, digest_size=32).digest()
            registry.execute(
                "INSERT OR IGNORE INTO contents VALUES (?, ?, ?)", (keyed, source.key, source.name)
            )
            others = registry.execute(
                "SELECT name, source FROM contents WHERE content = ? AND source != ? "
                "ORDER BY rowid",
                (keyed, source.key),
            ).fetchall()
    except (RegistryError, sqlite3.Error, OSError, ValueError, TypeError):
        return  # which opening a ledger warns of
    if not others:
        return
    name, where = others[0]
    give = "give both one --source_name" if name is None else f"give --source_name={name}"
    path = artifacts.make_sensitive_folder(sensitive) / SAME_RECORDS
    artifacts.write_json(path, {"sources": [key for _, key in others]}, private=True)
    warnings.warn(
        f"sensitive, for the data holder alone: the same private records were used under another "
        f"source, {where}; their releases don't add up: {give} ({path})",
        SensitiveWarning,
        stacklevel=2,
    )


def quoted_heads(folder: pathlib.Path, runs: Iterable[pathlib.Path]) -> dict[pathlib.Path, Head]:
    """Returns the statements of runs, each with the head that it quotes; the store's run is one.

    A file that is no statement quotes nothing.
    """
    folder = folder.resolve()
    own_run = (folder.parent,) if folder.name == artifacts.SENSITIVE else ()
    heads = {}
    for run in (*own_run, *runs):
        path = run / artifacts.RELEASED / STATEMENT
        if path.exists():
            try:
                sequence, digest = artifacts.read_json(path)["ledger_head"]
                heads[path] = Head(sequence=int(sequence), digest=str(digest))
            except (KeyError, TypeError, ValueError):
                continue
    return heads


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
class SourceSpending:
    """What all ledgers of a named source were charged on this machine, for this user.

    Attributes:
        charges: what was charged, and how often; a ledger that went on in several copies with every
            branch, and what these have in common once.
        num_ledgers: how many ledgers they are.
        num_unknown: how many of them charged something that is unknown here, or drew noise from a
            seed, which bounds nothing (this ledger's own such noise not counted).
        num_other_units: how many protect something else than this one, or it is not known what. A
            charge for a record says nothing of an owner's records, which can be many, and one for
            an owner added or removed nothing of an owner whose record is replaced.
    """

    charges: Mapping[Charge, int]
    num_ledgers: int
    num_unknown: int = 0
    num_other_units: int = 0

    def epsilon(self, delta: float) -> float:
        """Returns what all of it cost at a delta; infinite where that is not known."""
        if self.num_unknown or self.num_other_units:
            return math.inf
        return composition.smallest_epsilon(self.charges, delta)[0]


class SeenRow(NamedTuple):
    """A row that the registry saw in a ledger, at a place of its own.

    `debit` is what it charged, None if nothing.
    """

    place: int
    ledger: bytes
    digest: str
    sequence: int
    debit: Mapping[str, Any] | None


class RollbackGuard:
    """What the registry of this user and the folders around a store know of it.

    Without a registry it warns once and knows what lies around the store alone.

    Args:
        folder: the store's.
        source: that it is charged to; None for one that is only read.
        identity: of a party that has one store alone, wherever it lies: what another one of it
            holds is missing here. None for a ledger, of which there may be several.
        unit: what the store's charges protect, "record" or "owner"; None if that is not known. What
            was noted first stays.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        source: PrivateSource | None,
        *,
        identity: Identity | None = None,
        unit: str | None = None,
    ) -> None:
        self._folder, self._unit = folder.resolve(), unit
        self.source = source or PrivateSource(name=None, key=f"run {self._folder}")
        self._identity = None if identity is None else canonical_json(identity)
        self._unsettled: dict[str, SeenRow] = {}
        self._last_place = 0
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

    def note(self, opened: LedgerRow, rows: Sequence[LedgerRow]) -> None:
        """Notes rows that are durable in the store; those known already stay as they are."""

        def write(registry: sqlite3.Connection) -> None:
            ledger = self._keyed(opened.digest)
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
                    "unit = coalesce(unit, excluded.unit)",
                    (ledger, self._identity, self.source.key, self._unit),
                )
                registry.execute(
                    "INSERT OR IGNORE INTO folders VALUES (?, ?)", (ledger, str(self._folder))
                )
                registry.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)", noted)

        self._ask(write, None)

    def missing_before(self, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns what a store that is about to be opened for the first time should have held.

        Args:
            runs: folders of runs whose statements may quote an earlier ledger.
        """
        seen = self._seen(
            "source = ? AND ledger IN (SELECT ledger FROM folders WHERE folder = ?)",
            *(self.source.key, str(self._folder)),
        )
        where = "here"
        if self._identity is not None:
            seen = self._seen("identity = ?", self._identity)
            where = f"in {self._places(seen)}"
        lost, reasons = {row.digest: row.sequence for row in seen}, list[str]()
        if lost:
            reasons.append(f"one of {max(lost.values())} rows was seen {where}")
        if any((self._folder / VOTES).glob("*.npz")):
            reasons.append(f"votes that one charged for lie in {self._folder / VOTES}")
        for path, head in quoted_heads(self._folder, runs).items():
            # A student of other ledgers may lie here, too.
            if head.digest in lost or not self._seen("digest = ?", head.digest):
                reasons.append(f"{path} quotes row {head.sequence} of one")
                lost[head.digest] = head.sequence
        if not reasons:
            return None
        return Missing(
            reason=(
                f"{self._folder}: expected the ledger that was stored before, got none, but "
                f"{' and '.join(reasons)}; put it back with all of its files, or go on where it "
                f"lies; {ACKNOWLEDGE}"
            ),
            digests=tuple(lost),
            left_nothing=len(reasons) == 1 and bool(seen) and self._identity is None,
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
        ledger = self._keyed(opened.digest) if self.is_kept else b""
        whose = ("ledger", ledger) if self._identity is None else ("identity", self._identity)
        for row in self._seen(f"{whose[0]} = ? AND rows.rowid > ?", whose[1], self._last_place):
            self._last_place, self._unsettled[row.digest] = row.place, row
        # Rows are only ever added, here and there: what is settled once stays so.
        self._unsettled = {
            digest: row
            for digest, row in self._unsettled.items()
            if digest not in held and digest not in acknowledged
        }
        gone = list(self._unsettled.values())
        lost = {row.digest: row.sequence for row in gone}
        for head in quoted_heads(self._folder, ()).values():
            is_known = head.digest in held or head.digest in acknowledged
            if not is_known and not self._seen("digest = ?", head.digest):
                lost[head.digest] = head.sequence
        if not lost:
            return None
        last, here = max(lost.values()), max(held.values())
        if any(row.ledger != ledger for row in gone):
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

    def debits_of(
        self, digests: Iterable[str], charged: Container[str]
    ) -> Iterator[Mapping[str, Any]]:
        """Yields what missing rows charged that is not charged here, each once.

        Args:
            digests: of the rows.
            charged: what is charged here, by `first_debit`.
        """
        yielded = set[str]()
        for digest in digests:
            for row in self._seen("digest = ?", digest):
                if row.debit is None:
                    continue
                first = str(row.debit["carried_from"])
                if first not in charged and first not in yielded:
                    yielded.add(first)
                    yield row.debit

    def source_spending(
        self, opened: LedgerRow, debits: Mapping[str, tuple[Charge, int]]
    ) -> SourceSpending | None:
        """Returns what all ledgers of the same source were charged; None without a registry.

        Args:
            opened: the row that opened the ledger.
            debits: what the ledger itself charged, by `first_debit`.
        """

        def ask(registry: sqlite3.Connection) -> SourceSpending:
            names = {"ledger": self._keyed(opened.digest), "unit": self._unit}
            names["source"] = self.source.key
            same_source = registry.execute(
                "SELECT ledger, ifnull(unit = coalesce(:unit, "
                "(SELECT unit FROM ledgers WHERE ledger = :ledger)), FALSE) "
                "FROM ledgers WHERE ledger = :ledger OR source = :source "
                "OR source = (SELECT source FROM ledgers WHERE ledger = :ledger)",
                names,
            ).fetchall()
            others: dict[str, tuple[Charge, int]] = {}
            unknown: set[bytes] = set()
            for ledger, _ in same_source:
                for (text,) in registry.execute(
                    "SELECT debit FROM rows WHERE ledger = ? AND debit IS NOT NULL", (ledger,)
                ):
                    debit = json.loads(text)
                    if not debit["secure_noise"] and debit["carried_from"] not in debits:
                        unknown.add(ledger)  # it costs more than it was charged for
                    try:
                        charge = charge_from_dict(debit["charge"])
                    except (ValueError, TypeError):
                        unknown.add(ledger)
                        continue
                    others[debit["carried_from"]] = (charge, int(debit["number"]))
            charges: Counter[Charge] = Counter()
            for charge, number in {**others, **debits}.values():
                charges[charge] += number
            return SourceSpending(
                charges=dict(charges),
                num_ledgers=max(1, len(same_source)),
                num_unknown=len(unknown),
                num_other_units=sum(
                    not is_same for ledger, is_same in same_source if ledger != names["ledger"]
                ),
            )

        return self._ask(ask, None)

    def _keyed(self, digest: str) -> bytes:
        """Returns what a ledger is known by; it can't be guessed without the registry's key."""
        return hashlib.blake2b(digest.encode(), key=self._key, digest_size=32).digest()

    def _seen(self, condition: str, *values: str | bytes | int) -> list[SeenRow]:
        """Returns the rows that the registry noted, of those ledgers or of that digest."""
        return self._ask(
            lambda registry: [
                SeenRow(place, ledger, digest, sequence, None if text is None else json.loads(text))
                for place, ledger, digest, sequence, text in registry.execute(
                    f"SELECT rows.rowid, ledger, digest, sequence, debit FROM rows "
                    f"JOIN ledgers USING (ledger) WHERE {condition} ORDER BY rows.rowid",
                    values,
                )
            ],
            list[SeenRow](),
        )

    def _places(self, rows: Iterable[SeenRow]) -> str:
        """Names the folders that the ledgers of rows were seen in, oldest first."""
        ledgers = list({row.ledger: None for row in rows})
        places = self._ask(
            lambda registry: registry.execute(
                "SELECT DISTINCT folder FROM folders WHERE ledger IN "
                f"({', '.join('?' * len(ledgers))}) ORDER BY rowid",
                ledgers,
            ).fetchall(),
            list[tuple[str]](),
        )
        return " and ".join(place for (place,) in places)

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
            f"ledgers of the same source go unnoticed, which statements say: "
            f"{reason if isinstance(error, RegistryError) else f'{place}: {reason}'}"
        )
