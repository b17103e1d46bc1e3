"""The parties of secure aggregation as a coordinator sees them: they dial in and fetch tasks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import grpc

from pate_tf.silos.messages import Answer
from pate_tf.silos.secure.messages import PartyMessage, PartyTask, ProtocolError
from pate_tf.silos.secure.opening import Ask
from pate_tf.silos.transport import silos_pb2 as wire
from pate_tf.silos.transport import silos_pb2_grpc
from pate_tf.silos.transport.conversions import answer_to_wire, party_message_of_wire, task_to_wire
from pate_tf.transport.credentials import caller_name
from pate_tf.transport.limits import Limits
from pate_tf.transport.waiting import wait_for

SERVICE: Final = "pate_tf.silos.v1.Parties"


class PartyService(silos_pb2_grpc.PartiesServicer):
    """Relays tasks to parties and waits for what they say. Safe to use from several threads.

    A party that was killed fetches the same task again, and gives the answer it gave before.

    Args:
      names: of the parties.
      limits: how long a poll waits.
      seconds: how long to wait for a party's word on one step.
    """

    def __init__(
        self, names: Sequence[str], *, limits: Limits | None = None, seconds: float = 120.0
    ) -> None:
        self.names = tuple(names)
        self._limits, self._seconds = limits or Limits(), seconds
        self._changed = threading.Condition()
        self._tasks: dict[str, PartyTask] = {}
        self._results: dict[str, PartyMessage | str] = {}
        self._asking = {name: threading.Lock() for name in self.names}

    def add_to(self, server: Any) -> None:
        """Adds the service to a gRPC server."""
        silos_pb2_grpc.add_PartiesServicer_to_server(self, server)

    def way_to(self, name: str) -> Ask:
        """Returns how a party is asked, for `open_histogram`.

        Raises:
          ValueError: if there is no party of that name.
        """
        if name not in self.names:
            raise ValueError("party: expected one of this run, got another")
        return lambda task: self._ask(name, task)

    def _ask(self, name: str, task: PartyTask) -> PartyMessage:
        with self._asking[name], self._changed:
            self._results.pop(name, None)
            self._tasks[name] = task
            try:
                if not self._changed.wait_for(lambda: name in self._results, self._seconds):
                    raise TimeoutError(f"{name} did not answer within {self._seconds:g} seconds")
                result = self._results.pop(name)
            finally:
                del self._tasks[name]
        if isinstance(result, str):
            raise ProtocolError(f"{name} refuses: {result}")
        return result

    def Poll(self, request: wire.PollRequest, context: grpc.ServicerContext) -> wire.TaskReply:  # noqa: N802
        """Returns the caller's task, or none after a while."""
        name = caller_name(context)
        seconds = min(max(0.0, request.wait_seconds), self._limits.longest_wait)
        task = wait_for(lambda: self._tasks.get(name), context, seconds)
        return wire.TaskReply() if task is None else wire.TaskReply(task=task_to_wire(task))

    def Submit(  # noqa: N802
        self, request: wire.TaskResult, context: grpc.ServicerContext
    ) -> wire.SubmitReply:
        """Takes the caller's word on its task."""
        name = caller_name(context)
        kind = request.WhichOneof("kind")
        if kind is None:
            raise ValueError("result: expected a message or a refusal, got neither")
        result = (
            party_message_of_wire(request.message) if kind == "message" else request.refusal[:1000]
        )
        with self._changed:
            task = self._tasks.get(name)
            if task is None or task.digest != request.task_digest:
                return answer_to_wire(Answer.LATE)
            known = self._results.setdefault(name, result)
            self._changed.notify_all()
        return answer_to_wire(Answer.OK if known == result else Answer.CONFLICT)
