"""What a coordinator asked and was answered, on disk: it goes on where it was killed.

Nothing in it is secret: answers are randomised or sealed before they come here.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.artifacts import transaction
from pate_tf.ledger.chain import LedgerError
from pate_tf.silos.messages import (
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    reply_digest,
)

DATABASE: Final = "coordinator.sqlite3"
VERSION: Final = 2

SCHEMA: Final = """
CREATE TABLE run (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), run_id TEXT NOT NULL) STRICT;
CREATE TABLE rounds (
  round INTEGER PRIMARY KEY, fields TEXT NOT NULL, queries BLOB NOT NULL, asked BLOB NOT NULL,
  result BLOB) STRICT;
CREATE TABLE replies (
  round INTEGER NOT NULL, silo TEXT NOT NULL, kind TEXT NOT NULL, digest BLOB NOT NULL,
  payload BLOB NOT NULL, witness BLOB, PRIMARY KEY (round, silo)) STRICT;
"""


class JournalError(LedgerError):
    """The journal can't be used as asked: damaged, not writable, or of another run."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Queries that were put to silos together. Public.

    Attributes:
      number: 1 for the first round.
      queries: `[num_queries, ...]`.
      asked: whether a silo is asked a query, bool `[num_silos, num_queries]`, in the roster's
        order.
      mechanisms: of each silo, `QueryBatch.mechanism`, by its name.
      num_classes: number of classes.
      deadline: in seconds since 1970.
    """

    number: int
    queries: npt.NDArray[Any] = dataclasses.field(repr=False)
    asked: npt.NDArray[np.bool_] = dataclasses.field(repr=False)
    mechanisms: Mapping[str, Mapping[str, Any]]
    num_classes: int
    deadline: float

    @property
    def batch_id(self) -> str:
        """Name of the round's batches."""
        return f"round-{self.number}"


class Journal:
    """The record of one run; may be used from several threads.

    Raises:
      JournalError: if the file is damaged, of another run, or can't be used.
    """

    def __init__(self, folder: pathlib.Path | None, run_id: str) -> None:
        """Opens a journal, or a new one.

        Args:
          folder: where it lies; None to keep it in memory.
          run_id: name of the run; fixed at first use.
        """
        self._lock = threading.RLock()
        with self._reporting():
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            path = ":memory:" if folder is None else str(folder / DATABASE)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                raise JournalError(f"{path}: expected version {VERSION}, got {version}")
            if version == 0:
                self._connection.executescript(
                    f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;"
                )
            self._connection.execute("INSERT OR IGNORE INTO run VALUES (1, ?)", (run_id,))
            (found,) = self._connection.execute("SELECT run_id FROM run").fetchone()
        if found != run_id:
            self.close()
            raise JournalError(f"{path}: expected the run {run_id}, got the journal of {found}")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def add_round(self, one: Round) -> None:
        """Keeps a round durably; nobody may be asked before this returns."""
        fields = {
            "mechanisms": {name: dict(value) for name, value in one.mechanisms.items()},
            "num_classes": one.num_classes,
            "deadline": one.deadline,
        }
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, NULL)",
                (one.number, json.dumps(fields), _to_bytes(one.queries), _to_bytes(one.asked)),
            )

    def rounds(self) -> list[Round]:
        """Returns all rounds in their order."""
        with self._reporting():
            rows = self._connection.execute(
                "SELECT round, fields, queries, asked FROM rounds ORDER BY round"
            ).fetchall()
            return [
                Round(
                    number=number,
                    queries=_to_array(queries),
                    asked=_to_array(asked),
                    **json.loads(fields),
                )
                for number, fields, queries, asked in rows
            ]

    def keep_reply(self, number: int, reply: Reply) -> None:
        """Keeps a reply to a round durably; the silo may not have one already."""
        if isinstance(reply, RandomisedVotes):
            payload = _to_bytes(reply.labels)
        elif isinstance(reply, SealedShares):
            payload = _to_bytes(np.array([len(one) for one in reply.sealed]))
            payload += b"".join(reply.sealed)
        else:
            payload = reply.reason.value.encode()
        kind = type(reply).__name__
        witness = None if isinstance(reply, Refusal) else reply.witness
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO replies VALUES (?, ?, ?, ?, ?, ?)",
                (number, reply.silo, kind, reply_digest(reply), payload, witness),
            )

    def witnesses(self) -> dict[str, bytes]:
        """Returns the witness that each silo sent last, by its name."""
        with self._reporting():
            return dict(
                self._connection.execute(
                    "SELECT silo, witness FROM replies WHERE witness IS NOT NULL ORDER BY rowid"
                ).fetchall()
            )

    def digest_of_reply(self, number: int, silo: str) -> bytes | None:
        """Returns `reply_digest` of what a silo replied to a round; None if it did not."""
        with self._reporting():
            row = self._connection.execute(
                "SELECT digest FROM replies WHERE round = ? AND silo = ?", (number, silo)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def replies(self, one: Round, run_id: str) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        with self._reporting():
            rows = self._connection.execute(
                "SELECT silo, kind, payload FROM replies WHERE round = ?", (one.number,)
            ).fetchall()
            return {
                silo: _to_reply(kind, payload, run_id=run_id, batch_id=one.batch_id, silo=silo)
                for silo, kind, payload in rows
            }

    def repliers(self, number: int) -> set[str]:
        """Returns who replied to a round."""
        with self._reporting():
            rows = self._connection.execute(
                "SELECT silo FROM replies WHERE round = ?", (number,)
            ).fetchall()
        return {silo for (silo,) in rows}

    def close_round(self, number: int, result: npt.NDArray[Any]) -> None:
        """Keeps what came of a round, `[num_queries, ...]`; no reply is taken afterwards."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE rounds SET result = ? WHERE round = ? AND result IS NULL",
                (_to_bytes(result), number),
            )

    def result(self, number: int) -> npt.NDArray[Any] | None:
        """Returns what came of a round; None while it is open."""
        with self._reporting():
            row = self._connection.execute(
                "SELECT result FROM rounds WHERE round = ?", (number,)
            ).fetchone()
        return None if row is None or row[0] is None else _to_array(row[0])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reporting(), transaction(self._connection):
            yield self._connection

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split())
                raise JournalError(f"journal: it can't be used: {reason}") from error


def _to_bytes(array: npt.NDArray[Any]) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()


def _to_array(content: bytes) -> npt.NDArray[Any]:
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))


def _to_reply(kind: str, payload: bytes, **names: str) -> Reply:
    if kind == "RandomisedVotes":
        return RandomisedVotes(labels=_to_array(payload), witness=None, **names)
    if kind == "Refusal":
        return Refusal(reason=Reason(payload.decode()), **names)
    read = io.BytesIO(payload)
    lengths = np.load(read, allow_pickle=False)
    sealed = tuple(read.read(int(one)) for one in lengths)
    return SealedShares(sealed=sealed, witness=None, **names)
