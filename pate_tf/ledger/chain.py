"""What a durable store is made of: rows chained by their hashes, what they charged, and the file.

What opening detects: any change to a row or an answer, a missing or inserted row, a damaged page
or index, a changed schema, and a tail that was cut off (`ledger.head.json` notes the last row
whenever one is written). What it can't detect: somebody who may write to the folder and rewrites
table and head together. Against that, a released statement quotes the `Head` of its ledger, and
`Store.holds` tells whether a ledger still contains it.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict

FAULT_VARIABLE: Final = "PATE_TF_FAULT_POINT"
DATABASE: Final = "ledger.sqlite3"
WAIT_SECONDS: Final = 120.0

# JSON with sorted keys and no spaces, so that equal values have equal texts.
canonical_json: Callable[[object], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


def fault_point(name: str) -> None:
    """Kills this process if a test named this point in the environment."""
    if os.environ.get(FAULT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


class LedgerError(Exception):
    """The ledger can't be used as asked: damaged, not writable, or of another version.

    >>> import pate_tf
    >>> issubclass(pate_tf.BudgetExceeded, pate_tf.LedgerError)
    True
    """


class EnsembleMismatch(LedgerError):  # noqa: N818
    """The ensemble is not the one that this ledger was opened for."""


class BudgetMismatch(LedgerError):  # noqa: N818
    """The budget asked for is not the one that was fixed at first use."""


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
        kind: "opened", "debit", "answers", "released", "budget", "planned", "source" or
            "acknowledged" in a ledger; "release" in older ones; other stores have kinds of their
            own.
        details: what the kind records, JSON values.

            - opened: `schema_version`, `salt` (secret), `ensemble_digest` (sensitive),
              `epsilon_budget` (None if there is none), `delta`, `acknowledged` (whether an earlier
              ledger of the ensemble was gone; the next row says which), `planned_release` (how the
              data-dependent cost will be released), `source` (name and key of the data source that
              it is charged to; sensitive).
            - source: the same `source`, where a ledger of an earlier version fixed it later.
            - planned: `release`, the same, where a ledger of an earlier version fixed it later.
            - source: what it is charged to, where a ledger of an earlier version fixed it later.
            - acknowledged: `missing`, digests of rows that were seen and are gone.
            - debit: `charge` (its `to_dict()`) and the `number` charged, `num_queries` and
              `queries_digest` of the queries that are to be answered, `secure_noise`, `past`
              (whether it was released before it was recorded), `delta`. Up to version 2
              `mechanism` instead of charge and number. One that charges what a missing row or
              another ledger of the ensemble charged names that row as `carried_from`.
            - answers: `debit` (the sequence of the row that charged them), `num_queries`,
              `num_answered`, `answers_digest`.
            - release: version 2's debit of a release, with its `plan`.
            - released: `debit`, `kept` (sensitive: the draw, and what it was drawn for).
            - budget: `epsilon_budget`, `delta`, `previous_epsilon_budget`, `previous_delta`,
              `raised` (False only where a ledger without a budget was given its first one).

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


# What rows charged, whichever version wrote them: versions 1 and 2 wrote "debit" for queries and,
# since 2, "release" for plans.


DEBITS: Final = ("debit", "release")


def charge_fields(row: LedgerRow) -> tuple[Mapping[str, Any], int]:
    """Returns the record of what a row of `DEBITS` charged, and how often it did."""
    details = row.details
    if "charge" in details:
        return details["charge"], int(details["number"])
    if row.kind == "release":
        return details["plan"], 1
    return details["mechanism"], int(details["num_queries"])


def charge_of(row: LedgerRow) -> tuple[Charge, int]:
    """Returns what a row of `DEBITS` charged, and how often.

    Raises:
        LedgerError: if this program does not know that charge.
    """
    fields, number = charge_fields(row)
    try:
        return charge_from_dict(fields), number
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
            charge, times = charge_of(row)
            if charge.charged_per_batch:
                debits[row.sequence] = (charge, times)
        elif row.kind == "answers" and not row.details["num_answered"]:
            unanswered.add(row.details["debit"])
    together: Counter[Charge] = Counter()
    for sequence, (charge, times) in debits.items():
        if mechanism.charged_per_batch or sequence in unanswered:
            together[charge] += times
    return together


# The chain of hashes, and the file that it lies in.


Answer = tuple[int, int, bytes, int | None, bytes | None]  # position, debit, query, label, counts


def link(before: str, sequence: int, time: str, kind: str, text: str) -> LedgerRow:
    """Returns a row after the one of digest `before`; `text` is its details.

    Raises:
        ValueError: if the details are no JSON.
    """
    content = canonical_json([sequence, time, kind, text]).encode()
    return LedgerRow(
        sequence=sequence,
        time=time,
        kind=kind,
        details=json.loads(text),
        digest=hashlib.sha256(bytes.fromhex(before) + content).hexdigest(),
    )


def digest_answers(answers: Sequence[Answer]) -> str:
    """Returns what the row of answers holds of them."""
    digest = hashlib.sha256()
    for position, debit, query, label, noisy_counts in answers:
        released = "" if noisy_counts is None else f",{noisy_counts.hex()}"
        digest.update(f"{position},{debit},{query.hex()},{label}{released}\n".encode())
    return digest.hexdigest()


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


def open_database(
    path: pathlib.Path | None, *, read_only: bool, must_exist: bool
) -> tuple[sqlite3.Connection, int]:
    """Returns a checked connection to a file, and its version: the newest, unless only read.

    SQLite runs in WAL mode with `synchronous=FULL`: what is committed survives a power cut. The
    file gets mode 0600, whatever the umask.

    Args:
        path: of the file, in a folder that exists; None for tables in memory.
        read_only: whether nothing may be written.
        must_exist: whether an empty file is refused.

    Raises:
        LedgerError: if the file is damaged, of a newer version, or not a ledger.
        OSError, sqlite3.Error: as the system reports it.
    """
    target = ":memory:"
    if path is not None:
        # Where it can't create its shared memory file, SQLite reads a WAL database only if told
        # that no other process writes it.
        at_rest = "&immutable=1" if read_only and not os.access(path.parent, os.W_OK) else ""
        target = f"{path.as_uri()}?mode={'ro' if read_only else 'rw'}{at_rest}"
        if not read_only:
            # SQLite would give it the umask's mode; WAL files copy the mode of the database.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.chmod(path, 0o600)
    connection = sqlite3.connect(
        target, uri=True, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        newest = len(MIGRATIONS)
        if not read_only and (version > 0 or not must_exist) and 0 <= version < newest:
            steps = "".join(MIGRATIONS[version:])
            connection.executescript(
                f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {newest}; COMMIT;"
            )
            version = newest
        if version > newest:
            raise LedgerError(
                f"{path}: expected schema version {newest} or older, got {version}: it was written "
                f"by a newer pate_tf"
            )
        pattern = sqlite3.connect(":memory:")
        pattern.executescript("".join(MIGRATIONS[:version]))
        expected = pattern.execute(SCHEMA_QUERY).fetchall()
        pattern.close()
        if version < 1 or connection.execute(SCHEMA_QUERY).fetchall() != expected:
            raise LedgerError(f"{path}: expected the tables of a ledger, got others")
        if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            raise LedgerError(f"{path}: the file is damaged")
    except BaseException:
        connection.close()
        raise
    return connection, version
