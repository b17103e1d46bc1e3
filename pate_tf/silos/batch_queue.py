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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge
from pate_tf.ledger.journal import LedgerError, fault_point
from pate_tf.silos import silos_pb2
from pate_tf.silos.messages import (
    SHARED,
    Answer,
    QueryBatch,
    Refusal,
    Reply,
    SealedShares,
    charge_of,
    reply_digest,
)
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
LOOK_SECONDS: Final = 0.5
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
        return QueryBatch(
            queries=queries,
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


class BatchQueue:
    """What silos see of a coordinator, kept in SQLite. Safe to call from several threads.

    Args:
        run_id: name of the run; fixed at first use of the folder.
        names: of the silos, which alone may call.
        folder: of the journal, which is taken up; None for one in memory.
        clock: seconds since 1970.

    Raises JournalError if the journal is damaged, of another run, or can't be used.
    """

    def __init__(
        self,
        run_id: str,
        names: Sequence[str],
        folder: pathlib.Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id, self.names, self._clock = run_id, tuple(names), clock
        self._changed = threading.Condition(threading.RLock())
        self._seen: set[str] = set()
        self._rounds: dict[int, Round] = {}
        self._results: dict[int, npt.NDArray[Any] | None] = {}
        self._replied: dict[int, dict[str, bytes]] = {}
        self._witnesses: dict[str, bytes] = {}
        with self._reporting():
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            path = ":memory:" if folder is None else str(folder / DATABASE)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "trusted_schema = OFF"):
                self._connection.execute(f"PRAGMA {pragma}")
            ((version,),) = self._connection.execute("PRAGMA user_version")
            if version not in (0, VERSION):
                raise JournalError(f"{path}: expected version {VERSION}, got {version}")
            if version == 0:
                self._connection.executescript(
                    f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;"
                )
            self._connection.execute("INSERT OR IGNORE INTO run VALUES (1, ?)", (run_id,))
            ((stored,),) = self._connection.execute("SELECT run_id FROM run")
            if stored != run_id:
                self.close()
                raise JournalError(
                    f"{path}: expected the run {run_id}, got the journal of {stored}"
                )
            for number, fields, queries, asked, result in self._connection.execute(
                "SELECT round, fields, queries, asked, result FROM rounds ORDER BY round"
            ):
                self._rounds[number] = Round(
                    number=number,
                    queries=_to_array(queries),
                    asked=_to_array(asked),
                    **json.loads(fields),
                )
                self._results[number] = None if result is None else _to_array(result)
                self._replied[number] = {}
            for number, silo, digest, witness in self._connection.execute(
                "SELECT round, silo, digest, witness FROM replies ORDER BY rowid"
            ):
                self._replied[number][silo] = digest
                if witness is not None:
                    self._witnesses[silo] = witness

    def close(self) -> None:
        """Closes the journal."""
        self._connection.close()

    def poll(self, silo: str) -> QueryBatch | None:
        """Returns the next batch that waits for a silo's reply; None if none does.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if silo not in self._seen:
                self._seen.add(silo)
                self._changed.notify_all()
            for round_ in self._rounds.values():
                asked = round_.asked[self.names.index(silo)]
                is_open = self.is_open(round_.number) and self._clock() < round_.deadline
                if is_open and asked.any() and silo not in self._replied[round_.number]:
                    witness = self._witnesses.get(silo)
                    return round_.batch(self.run_id, silo, round_.queries[asked], witness)
        return None

    def submit(self, silo: str, reply: Reply) -> Answer:
        """Takes a silo's reply; see `Answer`.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if reply.silo != silo or reply.run_id != self.run_id:
                return Answer.UNKNOWN
            named = [each for each in self._rounds.values() if each.batch_id == reply.batch_id]
            if not named or not _fits(reply, named[0], self.names.index(silo)):
                return Answer.UNKNOWN
            number = named[0].number
            earlier, digest = self._replied[number].get(silo), reply_digest(reply)
            if earlier is not None:
                return Answer.SAME if earlier == digest else Answer.CONFLICT
            if not self.is_open(number) or not self._clock() < named[0].deadline:
                return Answer.LATE
            fault_point("reply_arrived")
            message = reply_to_wire(reply).SerializeToString()
            self._write(
                "INSERT INTO replies VALUES (?, ?, ?, ?, ?)",
                *(number, silo, digest, message, reply.witness),
            )
            fault_point("reply_stored")
            self._replied[number][silo] = digest
            if reply.witness is not None:
                self._witnesses[silo] = reply.witness
            self._changed.notify_all()
            return Answer.OK

    def rounds(self) -> list[Round]:
        """Returns all rounds in their order."""
        with self._changed:
            return list(self._rounds.values())

    def is_open(self, number: int) -> bool:
        """Whether replies to a round may still come."""
        return self._results[number] is None

    def result(self, number: int) -> npt.NDArray[Any] | None:
        """Returns what came of a round, `[num_queries, ...]`; None while it is open."""
        return self._results[number]

    def replies(self, number: int) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        with self._reporting():
            return {
                silo: reply_of_wire(silos_pb2.Reply.FromString(message))
                for silo, message in self._connection.execute(
                    "SELECT silo, message FROM replies WHERE round = ?", (number,)
                )
            }

    def open_round(self, new: Round) -> None:
        """Puts queries to silos; durable before a silo is asked. Numbers ascend."""
        fields = {
            "mechanisms": {name: dict(value) for name, value in new.mechanisms.items()},
            "num_classes": new.num_classes,
            "deadline": new.deadline,
        }
        with self._changed:
            self._write(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, NULL)",
                *(new.number, json.dumps(fields), _to_bytes(new.queries), _to_bytes(new.asked)),
            )
            fault_point("round_opened")
            self._rounds[new.number] = new
            self._results[new.number], self._replied[new.number] = None, {}

    def close_round(self, number: int, result: npt.NDArray[Any]) -> None:
        """Stores what came of a round, `[num_queries, ...]`; later replies are late."""
        with self._changed:
            statement = "UPDATE rounds SET result = ? WHERE round = ? AND result IS NULL"
            self._write(statement, _to_bytes(result), number)
            fault_point("round_closed")
            self._results[number] = result

    def gather(self, seconds: float, on_progress: Progress) -> set[str]:
        """Returns who has called by now, once every silo has or so many seconds have passed.

        `on_progress` is called now and then with who called, and who is waited for.
        """
        until = time.monotonic() + seconds
        self._wait(
            lambda: self._seen, set(self.names), lambda: until - time.monotonic(), on_progress
        )
        return set(self._seen)

    def wait(self, round_: Round, on_progress: Progress) -> None:
        """Returns when all silos asked in an open round have replied, or its deadline has passed.

        `on_progress` is called now and then with who replied, and who is waited for.
        """
        asked = {name for name, row in zip(self.names, round_.asked, strict=True) if row.any()}
        replied = self._replied[round_.number]
        self._wait(
            lambda: set(replied), asked, lambda: round_.deadline - self._clock(), on_progress
        )

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
                present, left = set(there()), seconds_left()
                on_progress(present, expected - present)
                if present >= expected or left <= 0.0:
                    return
                self._changed.wait(min(left, LOOK_SECONDS))

    def _check(self, silo: str) -> None:
        if silo not in self.names:
            raise PermissionError("silo: expected one on the roster, got another")

    def _write(self, statement: str, *values: Any) -> None:
        with self._reporting():
            self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        with self._changed:
            try:
                yield
            except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
                reason = " ".join(str(error).split())
                raise JournalError(f"journal: it can't be used: {reason}") from error


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


def _fits(reply: Reply, round_: Round, place: int) -> bool:
    """Whether a reply can be one of the silo at a place of the roster to its part of a round."""
    num_asked = int(round_.asked[place].sum())
    if isinstance(reply, Refusal):
        return num_asked > 0
    mechanism = round_.mechanisms[reply.silo]
    if isinstance(reply, SealedShares):
        return num_asked > 0 and len(reply.sealed) == mechanism.get("num_parties")
    is_whole = len(reply.labels) == num_asked and mechanism["name"] not in SHARED
    return is_whole and bool(reply.labels.max() < round_.num_classes)


def _to_bytes(array: npt.NDArray[Any]) -> bytes:
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()


def _to_array(content: bytes) -> npt.NDArray[Any]:
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
