"""The part of a coordinator that silos talk to: hands out batches, takes replies, keeps both.

Whatever carries messages calls it from its own threads. It survives being killed: the journal
holds every round before anybody is asked, and every reply before it is acknowledged.
"""

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from pate_tf.ledger.chain import fault_point
from pate_tf.silos.journal import Journal, Round
from pate_tf.silos.messages import (
    SECURE_HISTOGRAM,
    Answer,
    QueryBatch,
    RandomisedVotes,
    Refusal,
    Reply,
    SealedShares,
    reply_digest,
)
from pate_tf.silos.roster import Roster

LOOK_SECONDS = 0.5


class Core:
    """What silos see of a coordinator; a `CoordinatorCore`.

    Attributes:
      roster: who may call.
      journal: what was asked and answered.
    """

    def __init__(
        self, roster: Roster, journal: Journal, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Takes up what the journal holds.

        Args:
          roster: who may call.
          journal: of the roster's run.
          clock: seconds since 1970.
        """
        self.roster, self.journal, self._clock = roster, journal, clock
        self._changed = threading.Condition(threading.RLock())
        self._rounds = {one.number: one for one in journal.rounds()}
        self._batches: dict[tuple[int, str], QueryBatch] = {}
        self._replied = {number: journal.repliers(number) for number in self._rounds}
        self._open = {number for number in self._rounds if journal.result(number) is None}
        self._witnesses = journal.witnesses()
        self._seen: set[str] = set()

    def poll(self, silo: str) -> QueryBatch | None:
        """Returns the next batch that waits for a silo's reply; None if none does.

        Raises:
          PermissionError: if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if silo not in self._seen:
                self._seen.add(silo)
                self._changed.notify_all()
            for number in sorted(self._open):
                one = self._rounds[number]
                if silo in self._replied[number] or not self._clock() < one.deadline:
                    continue
                batch = self._batch(one, silo)
                if batch is not None:
                    return batch
        return None

    def submit(self, silo: str, reply: Reply) -> Answer:
        """Takes a silo's reply; see `Answer`.

        Raises:
          PermissionError: if the silo is not on the roster.
        """
        self._check(silo)
        with self._changed:
            if reply.silo != silo or reply.run_id != self.roster.run_id:
                return Answer.UNKNOWN
            one = next(
                (one for one in self._rounds.values() if one.batch_id == reply.batch_id), None
            )
            if one is None or (batch := self._batch(one, silo)) is None:
                return Answer.UNKNOWN
            if not _fits(reply, batch):
                return Answer.UNKNOWN
            earlier = self.journal.digest_of_reply(one.number, silo)
            if earlier is not None:
                return Answer.SAME if earlier == reply_digest(reply) else Answer.CONFLICT
            if one.number not in self._open or not self._clock() < one.deadline:
                return Answer.LATE
            fault_point("reply_arrived")
            self.journal.keep_reply(one.number, reply)
            fault_point("reply_kept")
            self._replied[one.number].add(silo)
            if not isinstance(reply, Refusal) and reply.witness is not None:
                self._witnesses[silo] = reply.witness
            for number in self._rounds:  # built with an older witness
                self._batches.pop((number, silo), None)
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
        """Puts queries to silos; durable before anybody is asked."""
        with self._changed:
            self.journal.add_round(one)
            fault_point("round_opened")
            self._rounds[one.number] = one
            self._replied[one.number] = set()
            self._open.add(one.number)

    def gather(self, seconds: float, on_progress: Callable[[set[str], set[str]], None]) -> set[str]:
        """Returns who has called by now, once everybody has or so many seconds have passed.

        Args:
          seconds: how long to wait at most.
          on_progress: told now and then who called, and who is waited for.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while True:
                missing = set(self.roster.names) - self._seen
                on_progress(set(self._seen), missing)
                left = until - time.monotonic()
                if not missing or left <= 0.0:
                    return set(self._seen)
                self._changed.wait(min(left, LOOK_SECONDS))

    def wait(self, one: Round, on_progress: Callable[[set[str], set[str]], None]) -> None:
        """Returns when everybody who was asked has replied, or the deadline has passed.

        Args:
          one: an open round.
          on_progress: told now and then who replied, and who is waited for.
        """
        members = zip(self.roster.names, one.asked, strict=True)
        asked = {name for name, row in members if row.any()}
        with self._changed:
            while True:
                replied = set(self._replied[one.number])
                on_progress(replied, asked - replied)
                left = one.deadline - self._clock()
                if replied >= asked or left <= 0.0:
                    return
                self._changed.wait(min(left, LOOK_SECONDS))

    def replies(self, one: Round) -> dict[str, Reply]:
        """Returns the replies to a round by silo."""
        return self.journal.replies(one, self.roster.run_id)

    def close_round(self, one: Round, result: np.ndarray) -> None:
        """Keeps what came of a round; later replies are late."""
        with self._changed:
            self.journal.close_round(one.number, result)
            fault_point("round_closed")
            self._open.discard(one.number)
            for silo in self.roster.names:
                self._batches.pop((one.number, silo), None)

    def _check(self, silo: str) -> None:
        if silo not in self.roster.names:
            raise PermissionError("silo: expected one on the roster, got another")

    def _batch(self, one: Round, silo: str) -> QueryBatch | None:
        found = self._batches.get((one.number, silo))
        if found is None:
            row = one.asked[self.roster.names.index(silo)]
            if not row.any():
                return None
            found = QueryBatch.of(
                one.queries[row],
                run_id=self.roster.run_id,
                batch_id=one.batch_id,
                num_classes=one.num_classes,
                mechanism=one.mechanisms[silo],
                deadline=one.deadline,
                witness=self._witnesses.get(silo),
            )
            if one.number in self._open:
                self._batches[one.number, silo] = found
        return found


def _fits(reply: Reply, batch: QueryBatch) -> bool:
    """Whether a reply can be one to a batch."""
    mechanism: Mapping[str, object] = batch.mechanism
    is_secure = mechanism["name"] == SECURE_HISTOGRAM
    if isinstance(reply, Refusal):
        return True
    if isinstance(reply, SealedShares):
        return is_secure and len(reply.sealed) == mechanism["num_parties"]
    if not isinstance(reply, RandomisedVotes):
        return False
    is_whole = len(reply.labels) == len(batch)
    return not is_secure and is_whole and bool(reply.labels.max() < batch.num_classes)
