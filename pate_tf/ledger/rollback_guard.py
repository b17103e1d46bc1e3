"""Detects whether a ledger was rolled back, copied or deleted, and adds up the cost of a source.

A ledger cannot detect from its own rows that its folder was copied, restored from a copy, or
deleted. It also does not know about other ledgers for the same private data. A registry provides
this information: a database outside all run folders. The registry notes every row of every store
(ledger) that is opened for writing, the folders in which a store was seen, and its private data
source. Statements and votes in nearby folders are further evidence that there was an earlier store.

A store with missing rows can't be opened unless the user acknowledges that rows are missing. A
permanent "acknowledged" row then lists the missing rows, and their costs are charged again as past
releases.

Charges and releases never depend on a comparison of private records. Data holders give names to
their sources (`pate_tf.core.source`), and the costs of ledgers with the same source name are added.
If the same records were used under two names, a warning informs only the data holder.

The registry is in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else `~/.local/state/pate_tf`.
The folder has mode 0700, the file 0600. The registry does not cover other machines, other users, or
runs that could not use the registry.
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
ACKNOWLEDGE = "or pass `acknowledge_reset` to continue without it, which is recorded permanently"
SAME_RECORDS: Final = "same_records.json"
VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"

# Start of an SQL query for rows in the registry, with their ledgers and sources.
SEEN: Final = "SELECT rows.rowid AS place, * FROM rows JOIN ledgers USING (ledger) WHERE "

# Kind ("silo", "party" or "run") and name of a subject that may have only one store.
Identity = tuple[str, str]

TABLES: Final = pathlib.Path(__file__).with_name("registry.sql").read_text()


class LedgerWarning(UserWarning):
    """A one-line warning to the user of a ledger."""


# Function that issues a one-line warning to the user.
warn: Callable[[str], None] = functools.partial(warnings.warn, category=LedgerWarning)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """Rows that existed earlier and are missing in a store.

    Attributes:
        reason: one-line message with the reason and what to do.
        digests: digests of the missing rows.
        left_nothing: whether the folder contains neither votes nor a statement of the missing rows.
            If so, the whole run was deleted, and only the registry shows that it existed.
    """

    reason: str
    digests: tuple[str, ...]
    left_nothing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpending:
    """The charges of all ledgers of a named source, for this user on this machine.

    Attributes:
        charges: charges, each with the number of times that it was made. If copies of a ledger were
            used separately, all their rows are included, and common rows are included only once.
        num_ledgers: number of ledgers.
        num_unknown: number of ledgers with unknown cost, because they have a charge that is not
            registered here, or drew noise from a seed. Seeded noise of this ledger itself is not
            counted.
        num_other_units: number of ledgers whose protected unit is unknown or differs from the unit
            of this ledger. Their costs can't be added to this ledger's costs. A cost per record
            does not bound the cost for an owner with many records. A cost for adding or removing an
            owner does not bound the cost for replacing a record.
    """

    charges: Mapping[Charge, int]
    num_ledgers: int
    num_unknown: int = 0
    num_other_units: int = 0

    def epsilon(self, delta: float) -> float:
        """Returns the total epsilon at a delta; infinite if the cost is unknown."""
        if self.num_unknown or self.num_other_units:
            return math.inf
        return composition.smallest_epsilon(self.charges, delta)[0]


class RollbackGuard:
    """Compares a store with the user's registry and with the files in nearby folders.

    If the registry can't be used, the guard warns once and compares only the files.

    Args:
        folder: path of the store's folder.
        source: private data source of the store; None for a store that is only read.
        identity: kind and name of a subject, such as a silo, that may have only one store in all
            folders. Rows in another store of the same subject are treated as missing in this store.
            None for a ledger, because a source may have several ledgers.
        unit: protected unit of the store's charges, "record" or "owner"; None if it is unknown. A
            unit that was noted earlier takes precedence.

    Attributes:
        source: private data source of the store. `Store` sets this attribute when it has read the
            first row.
        registry: database that notes the rows of stores; None if it can't be used.
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
            # SQLite would create the file with the default mode, so it is created here.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self.registry = registry = sqlite3.connect(
                path, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
            )
            registry.row_factory = sqlite3.Row
            registry.create_function("shares", 1, lambda key: self.source.shares(key))
            registry.execute("PRAGMA synchronous = FULL")
            with registry:
                registry.execute("BEGIN IMMEDIATE")  # another process may create the tables
                (version,) = registry.execute("PRAGMA user_version").fetchone()
                if version not in (0, VERSION):
                    raise OSError(f"{path}: version {version} is unsupported. Move this file away.")
                if version == 0:
                    for statement in TABLES.split(";"):
                        registry.execute(statement)
                    registry.execute(f"PRAGMA user_version = {VERSION}")
        except (sqlite3.Error, OSError, RuntimeError) as error:  # RuntimeError: no home folder
            self._disable_registry(error)

    def close(self) -> None:
        """Closes the registry."""
        if self.registry is not None:
            self.registry.close()

    def note(self, ledger: str, rows: Sequence[tuple[int, str, str | None]]) -> None:
        """Adds durable rows of the store to the registry. Rows that it already has are not changed.

        Args:
            ledger: digest of the store's first row, which identifies the ledger.
            rows: sequence number, digest and charge of each row. The charge is in JSON; None for a
                row without a charge.
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
            self._disable_registry(error)

    def missing_before(self, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns the rows of a missing earlier store; None if there was no earlier store.

        Call it before a new store is created.

        Args:
            runs: run folders with privacy statements that may refer to an earlier ledger.
        """
        if self._identity is None:
            here = "ledger IN (SELECT ledger FROM folders WHERE folder = ?)"
            seen = self.query(f"{SEEN}shares(source) AND {here}", str(self._folder))
            where = "in this folder"
        else:
            seen = self.query(f"{SEEN}identity = ?", self._identity)
            where = f"in {self._places(seen)}"
        lost = {row["digest"]: row["sequence"] for row in seen}
        reasons = []
        if lost:
            reasons.append(f"a ledger with {max(lost.values())} rows was seen {where}")
        if any((self._folder / VOTES).glob("*.npz")):
            reasons.append(f"{self._folder / VOTES} contains votes")
        for path, digest, sequence in self._quoted(runs):
            # A statement in the folder may also refer to another ledger. If the registry contains
            # that ledger, it is not missing.
            if digest in lost or not self.query(f"{SEEN}digest = ?", digest):
                reasons.append(f"{path} refers to row {sequence} of a ledger")
                lost[digest] = sequence
        if not reasons:
            return None
        return Missing(
            reason=(
                f"{self._folder}: an earlier ledger is missing: {' and '.join(reasons)}. Restore "
                f"the ledger with all of its files, or use its folder, {ACKNOWLEDGE}"
            ),
            digests=tuple(lost),
            left_nothing=len(reasons) == 1 and bool(seen) and self._identity is None,
        )

    def missing_from(
        self, ledger: str, held: Mapping[str, int], acknowledged: Container[str]
    ) -> Missing | None:
        """Returns rows that this store had earlier and does not have now; None if it has all rows.

        Args:
            ledger: digest of the store's first row, which identifies the ledger.
            held: maps the digest of each row in the store to the row's sequence number.
            acknowledged: digests of rows whose loss was acknowledged.
        """
        column = "ledger" if self._identity is None else "identity"
        later = f"{SEEN}{column} = ? AND rows.rowid > ? ORDER BY rows.rowid"
        for row in self.query(later, self._identity or ledger, self._last_place):
            self._last_place = row["place"]
            self._unsettled[row["digest"]] = row
        # Stores and the registry never remove rows, so a row that was found is not checked again.
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
            reason = f"another ledger of this subject was used in {self._places(gone)}; use it"
        elif here < last:
            reason = (
                f"this ledger was restored from an older copy: it ends at row {here}, but row "
                f"{last} existed before. Restore the newer copy"
            )
        else:
            apart = f"this ledger and a copy of it were used separately: their rows {last} differ"
            reason = f"{apart}. Use only the other copy"
        return Missing(reason=f"{self._folder}: {reason}, {ACKNOWLEDGE}", digests=tuple(lost))

    def source_spending(
        self, ledger: str, debits: Mapping[str, tuple[Charge, int]]
    ) -> SourceSpending | None:
        """Returns the charges of all ledgers of the same source; None if there is no registry.

        Args:
            ledger: digest of the row that opened the ledger.
            debits: charges of this ledger, by the digest of the original debit row: the charge and
                the number of times that it was made.
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
                unknown.add(row["ledger"])  # its true cost exceeds the recorded charges
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
        """Yields the path of each run's statement, and the ledger row (digest and sequence) in it.

        The run of the store is included. Files that are not statements are skipped.
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
        """Returns the folders in which the ledgers of these rows were seen, oldest first."""
        ledgers = {row["ledger"]: None for row in rows}
        condition = f"ledger IN ({', '.join('?' * len(ledgers))})"
        places = self.query(f"SELECT folder FROM folders WHERE {condition}", *ledgers)
        return " and ".join(dict.fromkeys(place for (place,) in places))

    def query(self, question: str, *values: str | int | bytes) -> list[sqlite3.Row]:
        """Returns the result of an SQL query; an empty list if the registry can't be used."""
        if self.registry is None:
            return []
        try:
            return self.registry.execute(question, values).fetchall()
        except sqlite3.Error as error:
            self._disable_registry(error)
            return []

    def _disable_registry(self, error: Exception) -> None:
        self.close()
        self.registry = None
        warn(
            "the registry of ledgers can't be used. Copied or restored ledgers and other ledgers "
            "of the same source are not detected, and statements will report this. Reason: "
            f"{os.environ.get(STATE_VARIABLE, '')}: {' '.join(str(error).split())}"
        )


def warn_of_same_records(
    source: PrivateSource | None, content: bytes, sensitive: pathlib.Path
) -> None:
    """SENSITIVE: warns the data holder if the same records were used under another source name.

    No release and no charge depends on this. The warning is also stored in `same_records.json` in
    the sensitive folder. Without the registry, there is no warning.

    Args:
        source: private data source of these records; None if it is the run folder.
        content: digest of all records, independent of their order.
        sensitive: the sensitive folder of the run.
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
                "sensitive, only for the data holder: the same private records were used with "
                f"another source name, {names[0]}, so the costs are not added. Give both runs the "
                f"same --source_name ({path}).",
                SensitiveWarning,
                stacklevel=2,
            )
    guard.close()
