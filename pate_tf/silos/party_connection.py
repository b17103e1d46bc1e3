"""A party's line to the coordinator: fetches tasks, answers them, and tries again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from pate_tf.net.channel import CALL_SECONDS, Backoff, call, open_channel
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos import silos_pb2_grpc
from pate_tf.silos.messages import Answer
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.party import Party
from pate_tf.silos.wire import answer_of_wire, party_message_to_wire, task_of_wire

# Shares of all silos come in one message.
PARTY_LIMITS: Final = Limits(message_bytes=2**30)


class PartyConnection:
    """Connects a party to a coordinator.

    Args:
      party: with its keys and journal.
      known: all parties by name, from whoever set the run up, never from the coordinator.
      address: `host:port` of the coordinator.
      files: certificate and key of the party, and the authority.
      coordinator: the name in the coordinator's certificate.
      wait_seconds: how long a poll waits at the coordinator for a task.

    Raises:
      OSError: if a file can't be read.
    """

    def __init__(
        self,
        party: Party,
        known: Mapping[str, PartyIdentity],
        address: str,
        *,
        files: TlsFiles,
        coordinator: str = COORDINATOR,
        wait_seconds: float = 20.0,
    ) -> None:
        self._party, self._known = party, dict(known)
        self._channel = open_channel(address, files=files, server=coordinator, limits=PARTY_LIMITS)
        self._stub = silos_pb2_grpc.PartiesStub(self._channel)
        self._wait_seconds = wait_seconds

    def step(self) -> tuple[str, Answer] | None:
        """Polls once and answers what there was.

        Returns:
          The step or the refusal, and what the coordinator said to it; None if there was no task.

        Raises:
          ConnectionError: if the coordinator can't be reached.
          PermissionError: if it doesn't know this party.
        """
        request = wire.PollRequest(wait_seconds=self._wait_seconds)
        reply = call(self._stub.Poll, request, seconds=self._wait_seconds + CALL_SECONDS)
        if not reply.HasField("task"):
            return None
        try:
            task = task_of_wire(reply.task, self._known)
        except ValueError as error:
            raise ConnectionError(f"the coordinator sent what is no task: {error}") from None
        said = task.step.value
        try:
            message = self._party.answer(task)
            result = wire.TaskResult(
                task_digest=task.digest, message=party_message_to_wire(message)
            )
        except ValueError as error:
            result = wire.TaskResult(task_digest=task.digest, refusal=str(error))
            said = f"{said} was refused: {error}"
        return said, answer_of_wire(call(self._stub.Submit, result))

    def serve(
        self,
        *,
        until: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        """Answers tasks until it is told to stop.

        Args:
          until: asked before every poll whether to stop.
          sleep: waits for so many seconds.
          on_event: told what happens, in words without anything sensitive.

        Raises:
          PermissionError: if the coordinator doesn't know this party.
        """
        backoff = Backoff()
        while not until():
            try:
                done = self.step()
            except ConnectionError as error:
                on_event(f"{error}; trying again")
                sleep(backoff.failed())
                continue
            if done is not None:
                on_event(f"{done[0]}: {done[1].value}")
                if done[1] is not Answer.OK:
                    sleep(backoff.failed())
                    continue
            backoff.succeeded()

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()
