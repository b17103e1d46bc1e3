"""The part of a coordinator that silos call: hands out batches, takes replies, stores both.

The transport calls it from threads of its own. It survives being killed: every round is on disk
before a silo is asked, and every reply before it is acknowledged. Nothing in the journal is secret:
answers are randomized or sealed before they come here.
"""

import contextlib
import dataclasses
import pathlib
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy.typing as npt

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.core import artifacts
from pate_tf.core.reporting import LINE_SECONDS
from pate_tf.core.validation import IntArray
from pate_tf.ledger.journal import LedgerError, fault_point
from pate_tf.net.messages import decode, encode
from pate_tf.silos.messages import (
    Answer,
    Mechanism,
    QueryBatch,
    RandomisedVotes,
    Reply,
    SealedShares,
    reply_digest,
)

MOST_NAMED: Final = 200  # letters of silos that are waited for


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Queries that were put to silos together. Public.

    Attributes:
        run_id: name of the run.
        number: 1 for the first round.
        queries: `[num_queries, ...]`.
        mechanisms: of each silo that is asked, by its name.
        num_classes: number of classes.
        deadline: in seconds since 1970.
    """

    run_id: str
    number: int
    queries: npt.NDArray[Any] = dataclasses.field(repr=False)
    mechanisms: Mapping[str, Mechanism]
    num_classes: int
    deadline: float

    @property
    def batch_id(self) -> str:
        """Name of the round's batches."""
        return f"round-{self.number}"

    def batch(self, silo: str, commitment: bytes | None = None) -> QueryBatch:
        """Returns the round's queries as a silo gets them."""
        return QueryBatch(
            queries=self.queries,
            run_id=self.run_id,
            batch_id=self.batch_id,
            num_classes=self.num_classes,
            mechanism=self.mechanisms[silo],
            deadline=self.deadline,
            commitment=commitment,
        )

    def takes(self, reply: Reply) -> bool:
        """Whether a reply can be its silo's."""
        mechanism = self.mechanisms.get(reply.silo)
        if isinstance(reply, RandomisedVotes):
            is_whole = len(reply.labels) == len(self.queries)
            is_whole = is_whole and int(reply.labels.max()) < self.num_classes
            return is_whole and isinstance(mechanism, RandomisedResponse)
        if isinstance(reply, SealedShares):
            return len(reply.sealed) == getattr(mechanism, "num_parties", None)
        return mechanism is not None


# What is stored, by folder: rounds, what came of them (None if nothing opened), and replies, each
# with the number of its round.
KINDS: Final[Mapping[str, Any]] = {
    "rounds": Round,
    "results": IntArray | None,
    "replies": tuple[int, Reply],
}


class CoordinatorJournal(contextlib.ExitStack):
    """What silos see of a coordinator, kept in files. Safe to call from several threads.

    Args:
        run_id: name of the run; fixed at first use of the folder.
        names: of the silos, which alone may call.
        folder: of the journal, which is taken up; None for one in memory.
        clock: seconds since 1970.
        on_event: called with who is waited for.

    Attributes:
        results: what came of each closed round by its number, `[num_queries, ...]`; None if nothing
            did.
        changed: notified of every change, and its lock held meanwhile.

    Raises LedgerError if the journal is damaged, of another run, in use, or can't be used.
    """

    def __init__(
        self,
        run_id: str,
        names: Sequence[str],
        folder: pathlib.Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__()
        self._on_event = on_event
        self.run_id, self.names, self._folder, self._clock = run_id, tuple(names), folder, clock
        self.changed = threading.Condition(threading.RLock())
        self._seen: set[str] = set()
        self._rounds: dict[int, Round] = {}
        self.results: dict[int, IntArray | None] = {}
        self._replied: dict[int, dict[str, tuple[int, bytes]]] = {}  # file and digest, by silo
        self._commitments: dict[str, bytes] = {}
        self._in_memory: dict[tuple[str, int], bytes] = {}
        if folder is None:
            return
        with self._reporting(), contextlib.ExitStack() as stack:
            stack.enter_context(artifacts.only_writer(folder))
            if (folder / "coordinator.sqlite3").exists():
                raise ValueError("expected one of this version, got an earlier one's")
            artifacts.remove_abandoned(folder)
            for kind in KINDS:
                (folder / kind).mkdir(exist_ok=True)
                for number in sorted(int(path.stem) for path in (folder / kind).iterdir()):
                    self._take_up(kind, number, self._read(kind, number))
            for earlier in self._rounds.values():
                if earlier.run_id != run_id:
                    raise ValueError(f"expected the run {run_id}, got that of {earlier.run_id}")
            self.callback(stack.pop_all().close)

    def _take_up(self, kind: str, number: int, stored: Any) -> None:
        """Takes up what is durable."""
        if kind == "rounds":
            self._rounds[number], self._replied[number] = stored, {}
        elif kind == "results":
            self.results[number] = stored
        else:
            of_round, reply = stored
            self._replied[of_round][reply.silo] = (number, reply_digest(reply))
            if reply.commitment is not None:
                self._commitments[reply.silo] = reply.commitment
        self.changed.notify_all()

    def poll(self, silo: str) -> QueryBatch | None:
        """Returns the next batch that waits for a silo's reply; None if none does.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self.changed:
            if silo not in self._seen:
                self._seen.add(silo)
                self.changed.notify_all()
            for number, waiting in self._rounds.items():
                is_open = number not in self.results and self._clock() < waiting.deadline
                if is_open and silo in waiting.mechanisms and silo not in self._replied[number]:
                    return waiting.batch(silo, self._commitments.get(silo))
        return None

    def submit(self, silo: str, reply: Reply) -> Answer:
        """Takes a silo's reply; see `Answer`.

        Raises PermissionError if the silo is not on the roster.
        """
        self._check(silo)
        with self.changed:
            round_ = {each.batch_id: each for each in self._rounds.values()}.get(reply.batch_id)
            if reply.silo != silo or reply.run_id != self.run_id or round_ is None:
                return Answer.UNKNOWN
            if not round_.takes(reply):
                return Answer.UNKNOWN
            earlier = self._replied[round_.number].get(silo)
            if earlier is not None:
                return Answer.SAME if earlier[1] == reply_digest(reply) else Answer.CONFLICT
            if round_.number in self.results or not self._clock() < round_.deadline:
                return Answer.LATE
            fault_point("reply_arrived")
            number = 1 + sum(map(len, self._replied.values()))
            self._keep("replies", number, (round_.number, reply), "reply_stored")
            return Answer.OK

    def rounds(self) -> list[Round]:
        """Returns all rounds in their order."""
        with self.changed:
            return list(self._rounds.values())

    def replies(self, number: int) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        with self._reporting():
            places = self._replied[number].items()
            return {silo: self._read("replies", place)[1] for silo, (place, _) in places}

    def open_round(self, new: Round) -> None:
        """Puts queries to silos; durable before a silo is asked. Numbers ascend."""
        self._keep("rounds", new.number, new, "round_opened")

    def close_round(self, number: int, values: IntArray | None) -> None:
        """Stores what came of a round, `[num_queries, ...]` or nothing; later replies are late."""
        self._keep("results", number, values, "round_closed")

    def gather(self, seconds: float) -> set[str]:
        """Returns who has called by now, once every silo has or so many seconds have passed."""
        self._wait(set(self.names), self._seen, self._clock() + seconds, "silos called")
        with self.changed:
            return set(self._seen)

    def wait(self, round_: Round) -> None:
        """Returns when all silos of an open round have replied, or its deadline has passed."""
        replied = self._replied[round_.number].keys()
        self._wait(round_.mechanisms.keys(), replied, round_.deadline, "silos replied")

    def _wait(self, names: Set[str], arrived: Set[str], deadline: float, what: str) -> None:
        """Waits for silos, and says which, at the start and every half minute."""
        while (missing := names - arrived) and (seconds := deadline - self._clock()) > 0.0:
            some = textwrap.shorten(", ".join(sorted(missing)), MOST_NAMED, placeholder=" ...")
            self._on_event(f"waiting for {some}: {len(names & arrived)} of {len(names)} {what}")
            with self.changed:
                self.changed.wait_for(lambda: names <= arrived, min(LINE_SECONDS, seconds))

    def _check(self, silo: str) -> None:
        if silo not in self.names:
            raise PermissionError("silo: expected one on the roster, got another")

    def _keep(self, kind: str, number: int, stored: Any, point: str) -> None:
        """Makes a value durable, then takes it up."""
        content = encode(stored)
        with self._reporting():
            if self._folder is None:
                self._in_memory[kind, number] = content
            else:
                path = self._folder / kind / f"{number}.bin"
                if path.exists():
                    raise ValueError(f"expected no {path.name} of {kind}, got one")
                with artifacts.atomic_file(path) as file:
                    file.write(content)
            fault_point(point)
            self._take_up(kind, number, stored)

    def _read(self, kind: str, number: int) -> Any:
        if self._folder is None:
            return decode(KINDS[kind], self._in_memory[kind, number])
        return decode(KINDS[kind], (self._folder / kind / f"{number}.bin").read_bytes())

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        with self.changed:
            try:
                yield
            except (OSError, ValueError, KeyError) as error:
                reason = " ".join(str(error).split())
                raise LedgerError(f"{self._folder}: journal can't be used: {reason}") from error
