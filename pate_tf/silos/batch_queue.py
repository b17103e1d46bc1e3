"""The part of a coordinator that silos call: hands out batches, takes replies, stores both.

The transport calls it from threads of its own. It survives being killed: the journal holds every
round before a silo is asked, and every reply before it is acknowledged. Nothing in the journal is
secret: answers are randomised or sealed before they come here.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge
from pate_tf.core.artifacts import transaction
from pate_tf.ledger.chain import LedgerError, fault_point
from pate_tf.silos import silos_pb2
from pate_tf.silos.messages import (
    SHARED,
    Answer,
    QueryBatch,
    RandomisedVotes,
    Refusal,
    Reply,
    SealedShares,
    charge_of,
    reply_digest,
)
from pate_tf.silos.roster import Roster
from pate_tf.silos.wire import reply_of_wire, reply_to_wire

DATABASE: Final = "coordinator.sqlite3"
VERSION: Final = 3
SCHEMA: Final = """
CREATE TABLE run (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), run_id TEXT NOT NULL) STRICT;
CREATE TABLE rounds (
  round INTEGER PRIMARY KEY, fields TEXT NOT NULL, queries BLOB NOT NULL, asked BLOB NOT NULL,
  result BLOB) STRICT;
CREATE TABLE replies (
  round INTEGER NOT NULL, silo TEXT NOT NULL, digest BLOB NOT NULL, message BLOB NOT NULL,
  witness BLOB, PRIMARY KEY (round, silo)) STRICT;
"""
LOOK_SECONDS = 0.5
Progress = Callable[[set[str], set[str]], None]


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

    @property
    def is_secure(self) -> bool:
        """Whether votes or feature sums are added up under secret sharing."""
        return any(each["name"] in SHARED for each in self.mechanisms.values())

    def batch(
        self, run_id: str, silo: str, queries: npt.NDArray[Any], witness: bytes | None = None
    ) -> QueryBatch:
        """Returns a batch of some of the round's queries as a silo gets it."""
        return QueryBatch.of(
            queries,
            run_id=run_id,
            batch_id=self.batch_id,
            num_classes=self.num_classes,
            mechanism=self.mechanisms[silo],
            deadline=self.deadline,
            witness=witness,
        )

    def charge_of(self, silo: str) -> Charge:
        """Returns what a silo is charged for each query."""
        return charge_of(self.mechanisms[silo], self.num_classes)


class CoordinatorJournal:
    """The record of one run in SQLite; may be used from several threads.

    Args:
        folder: where it lies; None for one in memory.
        run_id: name of the run; fixed at first use.

    Raises JournalError if the file is damaged, of another run, or can't be used.
    """

    def __init__(self, folder: pathlib.Path | None, run_id: str) -> None:
        self._lock = threading.RLock()
        with self._reporting():
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            path = ":memory:" if folder is None else str(folder / DATABASE)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF"):
                self._connection.execute(f"PRAGMA {pragma}")
            ((version,),) = self._rows("PRAGMA user_version")
            if version not in (0, VERSION):
                raise JournalError(f"{path}: expected version {VERSION}, got {version}")
            if version == 0:
                self._connection.executescript(
                    f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;"
                )
            self._rows("INSERT OR IGNORE INTO run VALUES (1, ?)", run_id)
            ((found,),) = self._rows("SELECT run_id FROM run")
        self.run_id = run_id
        if found != run_id:
            self.close()
            raise JournalError(f"{path}: expected the run {run_id}, got the journal of {found}")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def add_round(self, new: Round) -> None:
        """Stores a round durably; no silo may be asked before this returns."""
        fields = {
            "mechanisms": {name: dict(value) for name, value in new.mechanisms.items()},
            "num_classes": new.num_classes,
            "deadline": new.deadline,
        }
        row = (new.number, json.dumps(fields), _to_bytes(new.queries), _to_bytes(new.asked))
        self._write("INSERT INTO rounds VALUES (?, ?, ?, ?, NULL)", *row)

    def rounds(self) -> list[Round]:
        """Returns all rounds in their order."""
        with self._reporting():
            return [
                Round(number=n, queries=_to_array(q), asked=_to_array(asked), **json.loads(fields))
                for n, fields, q, asked in self._rows(
                    "SELECT round, fields, queries, asked FROM rounds ORDER BY round"
                )
            ]

    def store_reply(self, number: int, reply: Reply) -> None:
        """Stores a reply to a round durably; the silo may not have one already."""
        message = reply_to_wire(reply)
        witness = message.witness if message.HasField("witness") else None
        row = (number, reply.silo, reply_digest(reply), message.SerializeToString(), witness)
        self._write("INSERT INTO replies VALUES (?, ?, ?, ?, ?)", *row)

    def replies(self, number: int) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        with self._reporting():
            return {
                silo: reply_of_wire(silos_pb2.Reply.FromString(message))
                for silo, message in self._rows(
                    "SELECT silo, message FROM replies WHERE round = ?", number
                )
            }

    def reply_digests(self, number: int) -> dict[str, bytes]:
        """Returns `reply_digest` of each reply to a round by silo."""
        return dict(self._rows("SELECT silo, digest FROM replies WHERE round = ?", number))

    def witnesses(self) -> dict[str, bytes]:
        """Returns the witness that each silo sent last, by its name."""
        return dict(
            self._rows("SELECT silo, witness FROM replies WHERE witness IS NOT NULL ORDER BY rowid")
        )

    def close_round(self, number: int, result: npt.NDArray[Any]) -> None:
        """Stores what came of a round, `[num_queries, ...]`; no reply is taken afterwards."""
        statement = "UPDATE rounds SET result = ? WHERE round = ? AND result IS NULL"
        self._write(statement, _to_bytes(result), number)

    def result(self, number: int) -> npt.NDArray[Any] | None:
        """Returns what came of a round; None while it is open."""
        with self._reporting():
            ((content,),) = self._rows("SELECT result FROM rounds WHERE round = ?", number)
            return None if content is None else _to_array(content)

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._reporting():
            return self._connection.execute(statement, values).fetchall()

    def _write(self, statement: str, *values: Any) -> None:
        with self._reporting(), transaction(self._connection):
            self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split())
                raise JournalError(f"journal: it can't be used: {reason}") from error


class BatchQueue:
    """What silos see of a coordinator. Safe to call from several threads.

    Args:
        roster: who may call.
        journal: of the roster's run; what it holds is taken up.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        roster: Roster,
        journal: CoordinatorJournal,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.roster, self.journal, self._clock = roster, journal, clock
        self._changed = threading.Condition(threading.RLock())
        self._rounds = {one.number: one for one in journal.rounds()}
        self._batches: dict[tuple[int, str], QueryBatch] = {}
        self._replied = {number: journal.reply_digests(number) for number in self._rounds}
        self._open = {number for number in self._rounds if journal.result(number) is None}
        self._witnesses = journal.witnesses()
        self._seen: set[str] = set()

    def poll(self, silo: str) -> QueryBatch | None:
        """Returns the next batch that waits for a silo's reply; None if none does.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if silo not in self._seen:
                self._seen.add(silo)
                self._changed.notify_all()
            for number in sorted(self._open):
                each = self._rounds[number]
                if silo not in self._replied[number] and self._clock() < each.deadline:
                    batch = self._batch(each, silo)
                    if batch is not None:
                        return batch
        return None

    def submit(self, silo: str, reply: Reply) -> Answer:
        """Takes a silo's reply; see `Answer`.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if reply.silo != silo or reply.run_id != self.roster.run_id:
                return Answer.UNKNOWN
            named = [each for each in self._rounds.values() if each.batch_id == reply.batch_id]
            batch = self._batch(named[0], silo) if named else None
            if batch is None or not _fits(reply, batch):
                return Answer.UNKNOWN
            number = named[0].number
            earlier, digest = self._replied[number].get(silo), reply_digest(reply)
            if earlier is not None:
                return Answer.SAME if earlier == digest else Answer.CONFLICT
            if number not in self._open or not self._clock() < named[0].deadline:
                return Answer.LATE
            fault_point("reply_arrived")
            self.journal.store_reply(number, reply)
            fault_point("reply_stored")
            self._replied[number][silo] = digest
            if not isinstance(reply, Refusal) and reply.witness is not None:
                self._witnesses[silo] = reply.witness
            for each in self._rounds:  # built with an older witness
                self._batches.pop((each, silo), None)
            self._changed.notify_all()
            return Answer.OK

    def rounds(self) -> list[Round]:
        """Returns all rounds in their order."""
        with self._changed:
            return [self._rounds[number] for number in sorted(self._rounds)]

    def is_open(self, number: int) -> bool:
        """Whether replies to a round may still come."""
        return number in self._open

    def open_round(self, one: Round) -> None:
        """Puts queries to silos; durable before a silo is asked."""
        with self._changed:
            self.journal.add_round(one)
            fault_point("round_opened")
            self._rounds[one.number] = one
            self._replied[one.number] = {}
            self._open.add(one.number)

    def gather(self, seconds: float, on_progress: Progress) -> set[str]:
        """Returns who has called by now, once every silo has or so many seconds have passed.

        `on_progress` is called now and then with who called, and who is waited for.
        """
        until = time.monotonic() + seconds
        names = set(self.roster.names)
        self._wait(lambda: self._seen, names, lambda: until - time.monotonic(), on_progress)
        return set(self._seen)

    def wait(self, one: Round, on_progress: Progress) -> None:
        """Returns when all silos asked in an open round have replied, or its deadline has passed.

        `on_progress` is called now and then with who replied, and who is waited for.
        """
        members = zip(self.roster.names, one.asked, strict=True)
        asked = {name for name, row in members if row.any()}
        replied = self._replied[one.number]
        self._wait(lambda: set(replied), asked, lambda: one.deadline - self._clock(), on_progress)

    def replies(self, one: Round) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        return self.journal.replies(one.number)

    def close_round(self, one: Round, result: npt.NDArray[Any]) -> None:
        """Stores what came of a round; later replies are late."""
        with self._changed:
            self.journal.close_round(one.number, result)
            fault_point("round_closed")
            self._open.discard(one.number)
            for silo in self.roster.names:
                self._batches.pop((one.number, silo), None)

    def _wait(
        self,
        there: Callable[[], set[str]],
        expected: set[str],
        seconds_left: Callable[[], float],
        on_progress: Progress,
    ) -> None:
        """Waits until all that are expected are there or no time is left."""
        with self._changed:
            while True:
                found, left = set(there()), seconds_left()
                on_progress(found, expected - found)
                if found >= expected or left <= 0.0:
                    return
                self._changed.wait(min(left, LOOK_SECONDS))

    def _check(self, silo: str) -> None:
        if silo not in self.roster.names:
            raise PermissionError("silo: expected one on the roster, got another")

    def _batch(self, one: Round, silo: str) -> QueryBatch | None:
        """Returns a silo's part of a round; None if it is asked nothing."""
        found = self._batches.get((one.number, silo))
        if found is None:
            row = one.asked[self.roster.names.index(silo)]
            if not row.any():
                return None
            witness = self._witnesses.get(silo)
            found = one.batch(self.roster.run_id, silo, one.queries[row], witness)
            if one.number in self._open:
                self._batches[one.number, silo] = found
        return found


class LocalConnection:
    """A silo's connection to a queue in the same process; a `Connection`."""

    def __init__(self, queue: BatchQueue, silo: str) -> None:
        self._queue, self._silo = queue, silo

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does."""
        return self._queue.poll(self._silo)

    def submit(self, reply: Reply) -> Answer:
        """Hands over a reply."""
        return self._queue.submit(self._silo, reply)


def _fits(reply: Reply, batch: QueryBatch) -> bool:
    """Whether a reply can be one to a batch."""
    is_secure = batch.mechanism["name"] in SHARED
    if isinstance(reply, Refusal):
        return True
    if isinstance(reply, SealedShares):
        return is_secure and len(reply.sealed) == batch.mechanism["num_parties"]
    if not isinstance(reply, RandomisedVotes):
        return False
    is_whole = len(reply.labels) == len(batch)
    return not is_secure and is_whole and bool(reply.labels.max() < batch.num_classes)


def _to_bytes(array: npt.NDArray[Any]) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()


def _to_array(content: bytes) -> npt.NDArray[Any]:
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
