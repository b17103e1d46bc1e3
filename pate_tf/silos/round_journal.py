"""The coordinator's interface for silos: it sends queries, accepts replies and stores both.

A round is a batch of queries that all silos get, together with their replies. The server calls
this interface from several threads. The process can be killed at any time: every round is stored
before it is sent to a silo, and every reply is stored before it is acknowledged. The journal
contains no secrets, because silos randomize or encrypt their answers before they send them.
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
from pate_tf.silos import messages

MAX_NAMES_LENGTH: Final = 200  # characters; longer lists of missing silos are cut


@dataclasses.dataclass(kw_only=True, eq=False)
class Round:
    """A round: queries that were sent to all silos, the silos' replies, and the result.

    All values are public.

    Attributes:
        number: number of the round, from 1.
        batch: the queries as sent to the first silo. Every silo gets the same queries with its own
            mechanism.
        mechanisms: maps the name of each queried silo to its privacy mechanism.
        replies: maps the name of each silo that has replied to its reply.
        is_open: whether the journal does not yet contain the entry that closes the round.
        is_collected: whether replies may have been passed to aggregators; if so, the round accepts
            no further replies.
        result: labels or noisy sums of a closed round, `[num_queries, ...]`; None if the round is
            open or ended without a result.
    """

    number: int
    batch: messages.QueryBatch
    mechanisms: Mapping[str, messages.Mechanism]
    replies: dict[str, messages.Reply] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )
    is_open: bool = dataclasses.field(default=True, init=False)
    is_collected: bool = dataclasses.field(default=False, init=False)
    result: IntArray | None = dataclasses.field(default=None, init=False, repr=False)

    @property
    def is_waiting(self) -> bool:
        """Whether the round accepts more replies until the deadline."""
        return self.is_open and not self.is_collected

    def takes(self, reply: messages.Reply) -> bool:
        """Whether a reply matches the queries and the mechanism that were sent to its silo."""
        mechanism = self.mechanisms.get(reply.silo)
        if isinstance(reply, messages.RandomisedVotes):
            is_whole = len(reply.labels) == len(self.batch.queries)
            is_whole = is_whole and int(reply.labels.max()) < self.batch.num_classes
            return is_whole and isinstance(mechanism, RandomisedResponse)
        if isinstance(reply, messages.SealedShares):
            return len(reply.sealed) == getattr(mechanism, "num_parties", None)
        return mechanism is not None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RoundResult:
    """A journal entry that closes a round; its `values` become `Round.result`."""

    number: int
    values: IntArray | None = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundCollected:
    """A journal entry that ends the collection of replies; later replies are refused."""

    number: int


Entry = Round | RoundCollected | RoundResult | messages.Reply
# For each type of journal entry, the name of the `fault_point` at which tests kill the process
# after the entry was stored. For replies, it is "reply_stored".
POINTS: Final = {
    Round: "round_opened",
    RoundCollected: "round_collected",
    RoundResult: "round_closed",
}


class CoordinatorJournal(contextlib.ExitStack):
    """The coordinator's interface for silos, which stores all queries and replies in files.

    Several threads may call it.

    Args:
        run_id: name of the run, fixed at the first use of the folder; None to only read the
            journal while another process writes it.
        names: names of the silos, which are the only allowed callers.
        folder: folder of the journal, whose stored entries are loaded; None to keep the journal in
            memory.
        clock: function that returns the time in seconds since 1970.
        on_event: function that is called with each message about missing silos.

    Attributes:
        names: names of the silos.
        rounds: all rounds in order.
        changed: condition variable that is notified after every change; its lock guards the
            changes.
        clock: function that returns the time in seconds since 1970.

    Raises LedgerError if the journal is damaged, belongs to another run, or is in use.
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
                    raise ValueError(f"the journal is for run {earlier.batch.run_id}, not {run_id}")
            self.callback(stack.pop_all().close)

    def poll(self, silo: str) -> messages.QueryBatch | None:
        """Returns the next open batch that a silo has not answered; None if it answered all."""
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

    def submit(self, reply: messages.Reply) -> messages.Answer:
        """Accepts or rejects a silo's reply. The caller must have checked the sender's name."""
        with self.changed:
            round_ = {each.batch.batch_id: each for each in self.rounds}.get(reply.batch_id)
            if round_ is None or reply.run_id != round_.batch.run_id or not round_.takes(reply):
                return messages.Answer.UNKNOWN
            earlier = round_.replies.get(reply.silo)
            if earlier is not None:
                is_same = messages.reply_digest(earlier) == messages.reply_digest(reply)
                return messages.Answer.SAME if is_same else messages.Answer.CONFLICT
            if not (round_.is_waiting and self.clock() < round_.batch.deadline):
                return messages.Answer.LATE
            fault_point("reply_arrived")
            self.keep(reply)
            return messages.Answer.OK

    def reopen(self, round_: Round, seconds: float) -> None:
        """Gives silos more time to reply, after a restart of the coordinator interrupted a round.

        Silos identify a batch by its `question`, which does not depend on the deadline. So a silo
        that already charged the batch sends its stored answer again. A silo that refused the batch
        as too late gets the batch again.
        """
        with self.changed:
            for silo, reply in [*round_.replies.items()]:
                if isinstance(reply, messages.Refusal) and reply.reason is messages.Reason.TOO_LATE:
                    del round_.replies[silo]
            batch = round_.batch
            round_.batch = dataclasses.replace(batch, deadline=self.clock() + seconds)
            self.changed.notify_all()
        self._on_event(f"{batch.batch_id}: silos can reply for another {seconds:g} seconds")

    def gather(self, seconds: float) -> set[str]:
        """Waits until all silos have connected, at most `seconds`; returns the connected silos."""
        self.wait(set(self.names), self._seen, self.clock() + seconds, "silos called")
        with self.changed:
            return set(self._seen)

    def wait(self, names: Set[str], arrived: Set[str], deadline: float, what: str) -> None:
        """Waits for silos, and reports missing silos at the start and every half minute.

        Args:
            names: names of the expected silos.
            arrived: names of the silos that have arrived; other threads add names while this method
                waits.
            deadline: latest end of the wait, in seconds since 1970.
            what: end of the message, which describes the arrived silos, such as "silos called".
        """
        while (missing := names - arrived) and (seconds := deadline - self.clock()) > 0.0:
            some = textwrap.shorten(
                ", ".join(sorted(missing)), MAX_NAMES_LENGTH, placeholder=" ..."
            )
            self._on_event(f"waiting for {some}: {len(names & arrived)} of {len(names)} {what}")
            with self.changed:
                self.changed.wait_for(lambda: names <= arrived, min(LINE_SECONDS, seconds))

    def numbers(self) -> dict[str, float]:
        """Returns metrics: the numbers of closed rounds, open rounds and refusals, by name."""
        with self.changed:
            num_open = sum(each.is_open for each in self.rounds)
            replies = [reply for each in self.rounds for reply in each.replies.values()]
        return {
            "pate_rounds_total": len(self.rounds) - num_open,
            "pate_rounds_open": num_open,
            "pate_refusals_total": sum(isinstance(reply, messages.Refusal) for reply in replies),
        }

    def keep(self, entry: Entry) -> None:
        """Stores a journal entry durably, then updates `rounds` with it.

        Args:
            entry: a round that is about to be sent to silos, a reply, a `RoundCollected` or a
                `RoundResult`.
        """
        with self._reporting():
            if self._folder is not None:
                path = self._folder / f"{self._num_entries + 1}.bin"
                with artifacts.atomic_file(path) as file:
                    file.write(encode(entry))
            fault_point(POINTS.get(type(entry), "reply_stored"))
            self._take_up(entry)

    def _take_up(self, entry: Entry) -> None:
        """Updates `rounds` with a stored entry."""
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
                raise LedgerError(f"{self._folder}: this journal is unusable: {reason}") from error
