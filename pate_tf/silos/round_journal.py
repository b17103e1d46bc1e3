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
from typing import Final

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.core.reporting import LINE_SECONDS
from pate_tf.ledger.ledger_file import LedgerError, fault_point
from pate_tf.net.wire_values import decode, encode
from pate_tf.silos.messages import (
    Answer,
    Mechanism,
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    reply_digest,
)

MOST_NAMED: Final = 200  # letters of silos that are waited for


@dataclasses.dataclass(kw_only=True, eq=False)
class Round:
    """Queries that were put to silos together, and what came of them. Public.

    Attributes:
        number: 1 for the first round.
        batch: what the first silo is asked; every silo gets the same with its own mechanism.
        mechanisms: of each silo that is asked, by its name.
        replies: those that came so far, by silo.
        is_open: whether the round has no result yet.
        is_collected: whether aggregators may have its replies already; then it takes no others.
        result: what came of a round that is closed, `[num_queries, ...]`; None if nothing did.
    """

    number: int
    batch: QueryBatch
    mechanisms: Mapping[str, Mechanism]
    replies: dict[str, Reply] = dataclasses.field(default_factory=dict, init=False, repr=False)
    is_open: bool = dataclasses.field(default=True, init=False)
    is_collected: bool = dataclasses.field(default=False, init=False)
    result: IntArray | None = dataclasses.field(default=None, init=False, repr=False)

    @property
    def is_waiting(self) -> bool:
        """Whether further replies count, up to the deadline."""
        return self.is_open and not self.is_collected

    def takes(self, reply: Reply) -> bool:
        """Whether a reply can be its silo's."""
        mechanism = self.mechanisms.get(reply.silo)
        if isinstance(reply, RandomisedVotes):
            is_whole = len(reply.labels) == len(self.batch.queries)
            is_whole = is_whole and int(reply.labels.max()) < self.batch.num_classes
            return is_whole and isinstance(mechanism, RandomisedResponse)
        if isinstance(reply, SealedShares):
            return len(reply.sealed) == getattr(mechanism, "num_parties", None)
        return mechanism is not None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RoundResult:
    """What came of a round, `[num_queries, ...]`; None if nothing did."""

    number: int
    values: IntArray | None = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundCollected:
    """The replies of a round are complete. Aggregators that opened shares take no others."""

    number: int


Entry = Round | RoundCollected | RoundResult | Reply
# Names of `fault_point` between making an entry durable and taking it up; else "reply_stored".
POINTS: Final = {
    Round: "round_opened",
    RoundCollected: "round_collected",
    RoundResult: "round_closed",
}


class CoordinatorJournal(contextlib.ExitStack):
    """What silos see of a coordinator, kept in files. Safe to call from several threads.

    Args:
        run_id: name of the run, fixed at first use of the folder; None to read what is there now,
            next to a process that writes it.
        names: of the silos, which alone may call.
        folder: of the journal, which is taken up; None for one in memory.
        clock: seconds since 1970.
        on_event: called with who is waited for.

    Attributes:
        names: of the silos.
        rounds: all rounds in their order.
        changed: notified of every change, and its lock held meanwhile.
        clock: seconds since 1970.

    Raises LedgerError if the journal is damaged, of another run, in use, or can't be used.
    """

    def __init__(
        self,
        run_id: str | None,
        names: Sequence[str],
        folder: pathlib.Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__()
        self.names = tuple(names)
        self.rounds: list[Round] = []
        self.changed = threading.Condition(threading.RLock())
        self._folder = folder
        self.clock = clock
        self._on_event = on_event
        self._seen: set[str] = set()
        self._commitments: dict[str, bytes] = {}
        self._num_entries = 0
        if folder is None:
            return
        with self._reporting(), contextlib.ExitStack() as stack:
            if run_id is not None:
                stack.enter_context(artifacts.only_writer(folder))
                artifacts.remove_abandoned(folder)
            for number in range(1, 1 + len(list(folder.glob("*.bin")))):
                self._take_up(decode(Entry, (folder / f"{number}.bin").read_bytes()))
            for earlier in self.rounds:
                if run_id not in (None, earlier.batch.run_id):
                    raise ValueError(
                        f"expected the run {run_id}, got that of {earlier.batch.run_id}"
                    )
            self.callback(stack.pop_all().close)

    def poll(self, silo: str) -> QueryBatch | None:
        """Returns the next batch that waits for a silo's reply; None if none does."""
        with self.changed:
            if silo not in self._seen:
                self._seen.add(silo)
                self.changed.notify_all()
            for waiting in self.rounds:
                is_asked = silo in waiting.mechanisms and silo not in waiting.replies
                if waiting.is_waiting and is_asked and self.clock() < waiting.batch.deadline:
                    return dataclasses.replace(
                        waiting.batch,
                        mechanism=waiting.mechanisms[silo],
                        commitment=self._commitments.get(silo),
                    )
        return None

    def submit(self, reply: Reply) -> Answer:
        """Takes the reply of a silo, which the caller has to know; see `Answer`."""
        with self.changed:
            round_ = {each.batch.batch_id: each for each in self.rounds}.get(reply.batch_id)
            if round_ is None or reply.run_id != round_.batch.run_id or not round_.takes(reply):
                return Answer.UNKNOWN
            earlier = round_.replies.get(reply.silo)
            if earlier is not None:
                is_same = reply_digest(earlier) == reply_digest(reply)
                return Answer.SAME if is_same else Answer.CONFLICT
            if not (round_.is_waiting and self.clock() < round_.batch.deadline):
                return Answer.LATE
            fault_point("reply_arrived")
            self.keep(reply)
            return Answer.OK

    def reopen(self, round_: Round, seconds: float) -> None:
        """Gives silos so many seconds from now to reply to a round that a restart interrupted.

        A silo knows the batch by its `question`, which leaves the deadline out, so a silo that was
        charged for the batch sends its stored answer. A silo that was too late is asked again.
        """
        with self.changed:
            for silo, reply in [*round_.replies.items()]:
                if isinstance(reply, Refusal) and reply.reason is Reason.TOO_LATE:
                    del round_.replies[silo]
            batch = round_.batch
            round_.batch = dataclasses.replace(batch, deadline=self.clock() + seconds)
            self.changed.notify_all()
        self._on_event(f"{batch.batch_id} is open again for {seconds:g} seconds")

    def gather(self, seconds: float) -> set[str]:
        """Returns who has called by now, once every silo has or so many seconds have passed."""
        self.wait(set(self.names), self._seen, self.clock() + seconds, "silos called")
        with self.changed:
            return set(self._seen)

    def wait(self, names: Set[str], arrived: Set[str], deadline: float, what: str) -> None:
        """Waits for silos, and says for which ones, at the start and every half minute.

        Args:
            names: of those that are waited for.
            arrived: those that are there, a set that grows.
            deadline: when the wait ends at the latest.
            what: they do, for the message.
        """
        while (missing := names - arrived) and (seconds := deadline - self.clock()) > 0.0:
            some = textwrap.shorten(", ".join(sorted(missing)), MOST_NAMED, placeholder=" ...")
            self._on_event(f"waiting for {some}: {len(names & arrived)} of {len(names)} {what}")
            with self.changed:
                self.changed.wait_for(lambda: names <= arrived, min(LINE_SECONDS, seconds))

    def numbers(self) -> dict[str, float]:
        """Returns how many rounds have a result, how many are open, and how many refusals came."""
        with self.changed:
            num_open = sum(each.is_open for each in self.rounds)
            replies = [reply for each in self.rounds for reply in each.replies.values()]
        return {
            "pate_rounds_total": len(self.rounds) - num_open,
            "pate_rounds_open": num_open,
            "pate_refusals_total": sum(isinstance(reply, Refusal) for reply in replies),
        }

    def keep(self, entry: Entry) -> None:
        """Makes an entry durable, then takes it up.

        Args:
            entry: a round, before a silo is asked; a reply; that replies are complete, after which
                others are late; or what came of a round.
        """
        with self._reporting():
            if self._folder is not None:
                path = self._folder / f"{self._num_entries + 1}.bin"
                with artifacts.atomic_file(path) as file:
                    file.write(encode(entry))
            fault_point(POINTS.get(type(entry), "reply_stored"))
            self._take_up(entry)

    def _take_up(self, entry: Entry) -> None:
        """Takes up what is durable."""
        self._num_entries += 1
        if isinstance(entry, Round):
            self.rounds.append(entry)
        elif isinstance(entry, RoundResult):
            (closed,) = (each for each in self.rounds if each.number == entry.number)
            closed.result = entry.values
            closed.is_open = False
        elif isinstance(entry, RoundCollected):
            (collected,) = (each for each in self.rounds if each.number == entry.number)
            collected.is_collected = True
        else:
            (asked,) = (each for each in self.rounds if each.batch.batch_id == entry.batch_id)
            asked.replies[entry.silo] = entry
            if entry.commitment is not None:
                self._commitments[entry.silo] = entry.commitment
        self.changed.notify_all()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        with self.changed:
            try:
                yield
            except (OSError, ValueError, KeyError) as error:
                reason = " ".join(str(error).split())
                raise LedgerError(f"{self._folder}: journal can't be used: {reason}") from error
