"""What is known of a store beyond its own rows: whether it goes on where it was seen last.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor what
other ledgers are charged for the same private data. The registry can, for what it has seen: it
notes every row of every store that is opened to be written, every folder that it was seen in, and
the named source that its releases are charged to. Statements and votes in the folders around a
store tell of it, too.

A store that lacks a row it should hold is refused, unless its user acknowledges that. Then a row
"acknowledged" says forever what was missing, and what missing rows charged is charged here, too,
as released before.

Nothing is charged or released by comparing private records: which ledgers add up follows from the
names of their sources, which a data holder gives (`pate_tf.core.source`). Equal records under two
names are noted for the data holder alone.

The registry lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else
`~/.local/state/pate_tf`, with mode 0700 and its file 0600. What it can't see: other machines, other
users, and runs while it was missing.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import platformdirs

from pate_tf.accounting import composition
from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import Charge
from pate_tf.core import artifacts
from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.core.source import PrivateSource

STATE_VARIABLE: Final = "PATE_TF_STATE"
REGISTRY: Final = "ledgers.sqlite3"
VERSION: Final = 2
WAIT_SECONDS: Final = 60.0
ACKNOWLEDGE = "`acknowledge_reset` continues without it, on record forever"
SAME_RECORDS: Final = "same_records.json"
VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"

SEEN: Final = (  # rows that the registry noted, with their places, ledgers and sources
    "SELECT rows.rowid AS place, * FROM rows JOIN ledgers USING (ledger) WHERE "
)

Identity = tuple[str, str]  # of what has one store alone: "silo", "party" or "run", and its name

TABLES: Final = """
CREATE TABLE ledgers (
  ledger TEXT PRIMARY KEY, identity TEXT, source TEXT NOT NULL, unit TEXT) STRICT;
CREATE INDEX charged ON ledgers (source);
CREATE TABLE folders (
  ledger TEXT NOT NULL, folder TEXT NOT NULL, UNIQUE (ledger, folder)) STRICT;
CREATE TABLE rows (
  ledger TEXT NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, debit TEXT,
  UNIQUE (digest, ledger)) STRICT;
CREATE INDEX noted ON rows (ledger);
CREATE TABLE contents (
  content BLOB NOT NULL, source TEXT NOT NULL, UNIQUE (content, source)) STRICT;
CREATE TABLE keys AS SELECT randomblob(32) AS key
"""


class LedgerWarning(UserWarning):
    """Something about a ledger that its user should know, in one line."""


# Warns the user in one line.
warn: Callable[[str], None] = functools.partial(warnings.warn, category=LedgerWarning)


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

    Attributes:
        source: as above; that of the store once it is known.
        registry: where the store's rows are noted; None if that can't be done.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        source: PrivateSource | None,
        *,
        identity: Identity | None = None,
        unit: str | None = None,
    ) -> None:
        self._folder = folder.resolve()
        self._unit = unit
        self.source = source or PrivateSource(name=None, key=f"run {self._folder}")
        self._identity = None if identity is None else json.dumps(identity)
        self._unsettled: dict[str, sqlite3.Row] = {}
        self._last_place = 0
        self.registry: sqlite3.Connection | None = None
        try:
            place = os.environ.get(STATE_VARIABLE) or platformdirs.user_state_dir("pate_tf")
            state = pathlib.Path(place)
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            state.chmod(0o700)
            path = state.resolve() / REGISTRY
            # SQLite would give it the umask's mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self.registry = registry = sqlite3.connect(
                path, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
            )
            registry.row_factory = sqlite3.Row
            registry.create_function("shares", 1, lambda key: self.source.shares(key))
            registry.execute("PRAGMA synchronous = FULL")
            with registry:
                registry.execute("BEGIN IMMEDIATE")  # another process may be faster
                (version,) = registry.execute("PRAGMA user_version").fetchone()
                if version not in (0, VERSION):
                    raise OSError(
                        f"{path}: expected version {VERSION}, got {version}; move it away"
                    )
                if version == 0:
                    for statement in TABLES.split(";"):
                        registry.execute(statement)
                    registry.execute(f"PRAGMA user_version = {VERSION}")
        except (sqlite3.Error, OSError, RuntimeError) as error:  # the last one: no home folder
            self._go_on_without(error)

    def close(self) -> None:
        """Closes the registry."""
        if self.registry is not None:
            self.registry.close()

    def note(self, ledger: str, rows: Sequence[tuple[int, str, str | None]]) -> None:
        """Notes rows that are durable in the store; those noted already stay as they are.

        Args:
            ledger: digest of the row that opened the store.
            rows: of each the sequence, the digest, and what it charged as JSON, None if nothing.
        """
        if self.registry is None:
            return
        try:
            with self.registry as registry:
                registry.execute("BEGIN IMMEDIATE")
                registry.execute(
                    "INSERT INTO ledgers VALUES (?, ?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET "
                    "unit = coalesce(unit, excluded.unit)",
                    (ledger, self._identity, self.source.key, self._unit),
                )
                registry.execute(
                    "INSERT OR IGNORE INTO folders VALUES (?, ?)", (ledger, str(self._folder))
                )
                registry.executemany(
                    "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)",
                    [(ledger, *row) for row in rows],
                )
        except sqlite3.Error as error:
            self._go_on_without(error)

    def missing_before(self, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns what a store that is about to be opened for the first time should have held.

        Args:
            runs: folders of runs whose statements may quote an earlier ledger.
        """
        if self._identity is None:
            here = "ledger IN (SELECT ledger FROM folders WHERE folder = ?)"
            seen = self.query(f"{SEEN}shares(source) AND {here}", str(self._folder))
            where = "here"
        else:
            seen = self.query(f"{SEEN}identity = ?", self._identity)
            where = f"in {self._places(seen)}"
        lost = {row["digest"]: row["sequence"] for row in seen}
        reasons = []
        if lost:
            reasons.append(f"one of {max(lost.values())} rows was seen {where}")
        if any((self._folder / VOTES).glob("*.npz")):
            reasons.append(f"votes that one charged for lie in {self._folder / VOTES}")
        for path, digest, sequence in self._quoted(runs):
            # A student of other ledgers may lie here, too.
            if digest in lost or not self.query(f"{SEEN}digest = ?", digest):
                reasons.append(f"{path} quotes row {sequence} of one")
                lost[digest] = sequence
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
        self, ledger: str, held: Mapping[str, int], acknowledged: Container[str]
    ) -> Missing | None:
        """Returns what was seen of a store and is not in it.

        Args:
            ledger: digest of the row that opened it.
            held: its rows: the sequence of each, by digest.
            acknowledged: digests of rows that are known to be missing.
        """
        column = "ledger" if self._identity is None else "identity"
        later = f"{SEEN}{column} = ? AND rows.rowid > ? ORDER BY rows.rowid"
        for row in self.query(later, self._identity or ledger, self._last_place):
            self._last_place = row["place"]
            self._unsettled[row["digest"]] = row
        # Rows are only ever added, here and there: what is settled once stays so.
        self._unsettled = {
            digest: row
            for digest, row in self._unsettled.items()
            if digest not in held and digest not in acknowledged
        }
        gone = list(self._unsettled.values())
        lost = {row["digest"]: row["sequence"] for row in gone}
        for _, digest, sequence in self._quoted(()):
            is_settled = digest in held or digest in acknowledged
            if not is_settled and not self.query(f"{SEEN}digest = ?", digest):
                lost[digest] = sequence
        if not lost:
            return None
        last = max(lost.values())
        here = max(held.values())
        if any(row["ledger"] != ledger for row in gone):
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

    def source_spending(
        self, ledger: str, debits: Mapping[str, tuple[Charge, int]]
    ) -> SourceSpending | None:
        """Returns what all ledgers of the same source were charged; None without a registry.

        Args:
            ledger: digest of the row that opened the ledger.
            debits: what the ledger itself charged, by digest of the row that charged it first.
        """
        ledgers = self.query("SELECT ledger, unit FROM ledgers WHERE shares(source)")
        units: dict[str, str | None] = {row["ledger"]: row["unit"] for row in ledgers}
        together: dict[str, tuple[Charge, int]] = {}
        unknown = set[str]()
        charged = "ledger IN (SELECT ledger FROM ledgers WHERE shares(source))"
        for row in self.query(f"{SEEN}{charged} AND debit IS NOT NULL"):
            debit = json.loads(row["debit"])
            first = debit["carried_from"]
            if not debit["secure_noise"] and first not in debits:
                unknown.add(row["ledger"])  # it costs more than it was charged for
            try:
                together[first] = (charge_from_dict(debit["charge"]), int(debit["number"]))
            except (ValueError, TypeError):
                unknown.add(row["ledger"])
        if self.registry is None:
            return None
        charges: Counter[Charge] = Counter()
        for charge, number in {**together, **debits}.values():
            charges[charge] += number
        unit = self._unit or units.get(ledger)
        return SourceSpending(
            charges=dict(charges),
            num_ledgers=len({ledger, *units}),
            num_unknown=len(unknown),
            num_other_units=sum(
                other != unit or unit is None for name, other in units.items() if name != ledger
            ),
        )

    def _quoted(self, runs: Iterable[pathlib.Path]) -> Iterator[tuple[pathlib.Path, str, int]]:
        """Yields the statements of runs, each with digest and sequence of the row that it quotes.

        The store's run is one of them. A file that is no statement quotes nothing.
        """
        own = [self._folder.parent] if self._folder.name == artifacts.SENSITIVE else []
        for run in [*own, *runs]:
            path = run / artifacts.RELEASED / STATEMENT
            try:
                sequence, digest = json.loads(path.read_text())["ledger_head"]
                yield path, str(digest), int(sequence)
            except (OSError, KeyError, TypeError, ValueError, RecursionError):
                continue

    def _places(self, rows: Iterable[sqlite3.Row]) -> str:
        """Names the folders that the ledgers of rows were seen in, oldest first."""
        ledgers = {row["ledger"]: None for row in rows}
        condition = f"ledger IN ({', '.join('?' * len(ledgers))})"
        places = self.query(f"SELECT folder FROM folders WHERE {condition}", *ledgers)
        return " and ".join(dict.fromkeys(place for (place,) in places))

    def query(self, question: str, *values: str | int | bytes) -> list[sqlite3.Row]:
        """Returns what the registry answers; without one, or once it can't be used, nothing."""
        if self.registry is None:
            return []
        try:
            return self.registry.execute(question, values).fetchall()
        except sqlite3.Error as error:
            self._go_on_without(error)
            return []

    def _go_on_without(self, error: Exception) -> None:
        self.close()
        self.registry = None
        warn(
            "no registry of ledgers can be kept, so that copied or restored ledgers and other "
            "ledgers of the same source go unnoticed, which statements say: "
            f"{os.environ.get(STATE_VARIABLE, '')}: {' '.join(str(error).split())}"
        )


def warn_of_same_records(
    source: PrivateSource | None, content: bytes, sensitive: pathlib.Path
) -> None:
    """SENSITIVE: warns a data holder whose records were used under another source before.

    Nothing that is released or charged depends on it. It is stored in `same_records.json` of the
    folder, too. Without a registry nothing is noticed.

    Args:
        source: that releases from the records are charged to; None for the run folder.
        content: a digest of all records, whatever their order.
        sensitive: the run's folder for what is private.
    """
    guard = RollbackGuard(sensitive, source)
    for (key,) in guard.query("SELECT key FROM keys"):
        source_key = guard.source.key
        keyed = hashlib.blake2b(content, key=key, digest_size=32).digest()
        guard.query("INSERT OR IGNORE INTO contents VALUES (?, ?)", keyed, source_key)
        others = guard.query(
            "SELECT source FROM contents WHERE content = ? AND NOT shares(source) AND source != ?",
            keyed,
            f"run {sensitive.resolve()}",
        )
        if others:
            path = artifacts.make_sensitive_folder(sensitive) / SAME_RECORDS
            names = [name for (name,) in others]
            artifacts.write_json(path, {"sources": names}, private=True)
            warnings.warn(
                f"sensitive, for the data holder alone: the same private records were used under "
                f"another source, {names[0]}; their releases don't add up: give both the same "
                f"--source_name ({path})",
                SensitiveWarning,
                stacklevel=2,
            )
    guard.close()
