"""What dials a coordinator over gRPC: a silo's connection and a party's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from pate_tf.net.channel import CALL_SECONDS, call, open_channel
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles
from pate_tf.net.retries import with_retries
from pate_tf.silos import silos_pb2, silos_pb2_grpc
from pate_tf.silos.messages import Answer, QueryBatch, Reply
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.wire import (
    answer_of_wire,
    batch_of_wire,
    party_message_to_wire,
    reply_to_wire,
    task_of_wire,
)

# Shares of all silos come in one message.
PARTY_LIMITS: Final = Limits(message_bytes=2**30)


class _Client(contextlib.AbstractContextManager[Any]):
    """A line to the coordinator, which dials: no other process can dial it.

    Args:
        address: `host:port` of the coordinator.
        files: certificate and key of this end, and the authority.
        coordinator: the name in the coordinator's certificate.
        limits: of a message.
        wait_seconds: how long a poll waits at the coordinator.

    Raises OSError if a file can't be read.
    """

    _stub_of: Callable[[Any], Any]

    def __init__(
        self,
        address: str,
        *,
        files: TlsFiles,
        coordinator: str = COORDINATOR,
        limits: Limits | None = None,
        wait_seconds: float = 20.0,
    ) -> None:
        self._channel = open_channel(address, files=files, server=coordinator, limits=limits)
        self._stub, self._wait_seconds = type(self)._stub_of(self._channel), wait_seconds

    def _poll(self) -> Any:
        request = silos_pb2.PollRequest(wait_seconds=self._wait_seconds)
        return call(self._stub.Poll, request, seconds=self._wait_seconds + CALL_SECONDS)

    def _submit(self, message: Any) -> Answer:
        return answer_of_wire(call(self._stub.Submit, message))

    def __exit__(self, *exception: object) -> None:
        self._channel.close()


class SiloConnection(_Client):
    """A silo's connection to its coordinator: a `pate_tf.silos.messages.Connection`."""

    _stub_of = silos_pb2_grpc.SilosStub

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does.

        Raises:
            ConnectionError: if the coordinator can't be reached, or sends what is no batch.
            PermissionError: if it doesn't know this silo.
        """
        reply = self._poll()
        if not reply.HasField("batch"):
            return None
        try:
            return batch_of_wire(reply.batch)
        except ValueError as error:
            raise ConnectionError(f"the coordinator sent what is no batch: {error}") from None

    def submit(self, reply: Reply) -> Answer:
        """Hands over a reply; may be repeated.

        Raises:
            ConnectionError: if the coordinator can't be reached.
            PermissionError: if it doesn't know this silo, or the reply names another.
        """
        return self._submit(reply_to_wire(reply))


class PartyConnection(_Client):
    """A party's connection to a coordinator: fetches tasks, answers them, and tries again.

    Args:
        party: `secure.party.Party`, with its keys and journal.
        known: all parties and silos by name, from the person who set the run up, never from the
            coordinator.
        address: `host:port` of the coordinator.
        **line: as of `SiloConnection`.

    Raises OSError if a file can't be read.
    """

    _stub_of = silos_pb2_grpc.PartiesStub

    def __init__(
        self, party: Any, known: Mapping[str, PartyIdentity], address: str, **line: Any
    ) -> None:
        super().__init__(address, limits=PARTY_LIMITS, **line)
        self._party, self._known = party, dict(known)

    def step(self) -> tuple[str, Answer] | None:
        """Polls once and answers what there was.

        Returns:
            The step or the refusal, and what the coordinator answered; None if there was no task.

        Raises:
            ConnectionError: if the coordinator can't be reached.
            PermissionError: if it doesn't know this party.
        """
        reply = self._poll()
        if not reply.HasField("task"):
            return None
        try:
            task = task_of_wire(reply.task, self._known)
        except ValueError as error:
            raise ConnectionError(f"the coordinator sent what is no task: {error}") from None
        event = task.step.value
        result = silos_pb2.TaskResult(task_digest=task.digest)
        try:
            result.message.CopyFrom(party_message_to_wire(self._party.answer(task)))
        except ValueError as error:
            result.refusal = str(error)
            event = f"{event} was refused: {error}"
        return event, self._submit(result)

    def serve(
        self, *, on_event: Callable[[str], None] = lambda event: None, **waiting: Any
    ) -> None:
        """Answers tasks until it is stopped; for `until` and `sleep` see `with_retries`.

        Raises PermissionError if the coordinator doesn't know this party.
        """

        def step() -> bool | None:
            done = self.step()
            if done is not None:
                on_event(f"{done[0]}: {done[1].value}")
            return None if done is None else done[1] is Answer.OK

        with_retries(step, on_event=on_event, **waiting)
