"""The coordinator's gRPC services, for silos and for the parties of secure aggregation."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from pate_tf.net.credentials import Limits, TlsFiles, caller_name
from pate_tf.net.server import Server, wait_for
from pate_tf.silos import silos_pb2, silos_pb2_grpc
from pate_tf.silos.batch_queue import BatchQueue
from pate_tf.silos.messages import Answer
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.opening import Ask, OpenedHistogram, PartySums
from pate_tf.silos.secure.protocol import PartyMessage, PartyTask, ProtocolError
from pate_tf.silos.wire import batch_to_wire, party_message_of_wire, reply_of_wire, task_to_wire

PACKAGE: Final = "pate_tf.silos.v1"  # of the services


class SiloService(silos_pb2_grpc.SilosServicer):
    """Hands batches out and takes replies. The caller is the one that its certificate names.

    Args:
        queue: of the coordinator.
        limits: of a message, and how long a poll waits.
    """

    def __init__(self, queue: BatchQueue, limits: Limits | None = None) -> None:
        self._queue, self._limits = queue, limits or Limits()

    def Poll(  # noqa: N802
        self, request: silos_pb2.PollRequest, context: grpc.ServicerContext
    ) -> silos_pb2.PollReply:
        """Returns the next batch for the caller, or none after a while."""
        silo = caller_name(context)
        seconds = min(max(0.0, request.wait_seconds), self._limits.longest_wait)
        batch = wait_for(lambda: self._queue.poll(silo), context, seconds)
        if batch is None:
            return silos_pb2.PollReply()
        reply = silos_pb2.PollReply(batch=batch_to_wire(batch))
        if reply.ByteSize() > self._limits.message_bytes:
            raise ValueError(
                f"batch: expected at most {self._limits.message_bytes} bytes, got "
                f"{reply.ByteSize()}; the coordinator must ask fewer queries at once"
            )
        return reply

    def Submit(  # noqa: N802
        self, request: silos_pb2.Reply, context: grpc.ServicerContext
    ) -> silos_pb2.SubmitReply:
        """Takes the caller's reply."""
        reply, silo = reply_of_wire(request), caller_name(context)
        if reply.silo != silo:
            raise PermissionError("silo: expected the name of the certificate, got another")
        return silos_pb2.SubmitReply(answer=self._queue.submit(silo, reply).name)


class PartyService(silos_pb2_grpc.PartiesServicer):
    """Parties that dial in and fetch tasks, and the sums that they make for a coordinator.

    A party that was killed fetches the same task again, and gives the answer that it gave before.
    Safe to use from several threads.

    Args:
        parties: in the order of their numbers, as silos know them.
        silos: that may add feature sums, as parties and silos know them; none for votes.
        limits: how long a poll waits.
        seconds: how long to wait for a party's message on one step.
        on_opened: called with every histogram and the silos that were left out.

    Attributes:
        names: of the parties.
        sums: what a `Coordinator` takes as `secure`.
    """

    def __init__(
        self,
        parties: Sequence[PartyIdentity],
        *,
        silos: Sequence[PartyIdentity] = (),
        limits: Limits | None = None,
        seconds: float = 120.0,
        on_opened: Callable[[OpenedHistogram], None] = lambda opened: None,
    ) -> None:
        self.names = tuple(each.name for each in parties)
        clients = [self.client_of(name) for name in self.names]
        self.sums = PartySums(parties, clients, silos=silos, on_opened=on_opened)
        self._limits, self._seconds = limits or Limits(), seconds
        self._changed = threading.Condition()
        self._tasks: dict[str, PartyTask] = {}
        self._results: dict[str, PartyMessage | str] = {}
        self._asking = {name: threading.Lock() for name in self.names}

    def client_of(self, name: str) -> Ask:
        """Returns how a party is asked, for `open_histogram`."""

        def ask(task: PartyTask) -> PartyMessage:
            with self._asking[name], self._changed:
                self._results.pop(name, None)
                self._tasks[name] = task
                try:
                    if not self._changed.wait_for(lambda: name in self._results, self._seconds):
                        raise TimeoutError(
                            f"{name} did not answer within {self._seconds:g} seconds"
                        )
                    result = self._results.pop(name)
                finally:
                    del self._tasks[name]
            if isinstance(result, str):
                raise ProtocolError(f"{name} refuses: {result}")
            return result

        return ask

    def Poll(  # noqa: N802
        self, request: silos_pb2.PollRequest, context: grpc.ServicerContext
    ) -> silos_pb2.TaskReply:
        """Returns the caller's task, or none after a while."""
        name = caller_name(context)
        seconds = min(max(0.0, request.wait_seconds), self._limits.longest_wait)
        task = wait_for(lambda: self._tasks.get(name), context, seconds)
        return silos_pb2.TaskReply(task=None if task is None else task_to_wire(task))

    def Submit(  # noqa: N802
        self, request: silos_pb2.TaskResult, context: grpc.ServicerContext
    ) -> silos_pb2.SubmitReply:
        """Takes the caller's message on its task."""
        name = caller_name(context)
        result: PartyMessage | str = request.refusal[:1000]
        if request.WhichOneof("kind") is None:
            raise ValueError("result: expected a message or a refusal, got neither")
        if request.HasField("message"):
            result = party_message_of_wire(request.message)
        with self._changed:
            task = self._tasks.get(name)
            if task is None or task.digest != request.task_digest:
                return silos_pb2.SubmitReply(answer=Answer.LATE.name)
            taken = self._results.setdefault(name, result)
            self._changed.notify_all()
        answer = Answer.OK if taken == result else Answer.CONFLICT
        return silos_pb2.SubmitReply(answer=answer.name)


def serve_coordinator(
    address: str,
    queue: BatchQueue,
    *,
    files: TlsFiles,
    silos: Sequence[str],
    parties: PartyService | None = None,
    limits: Limits | None = None,
) -> Server:
    """Returns a running server of a coordinator.

    Args:
        address: `host:port`; port 0 for any free one.
        queue: what silos see of the coordinator.
        files: certificate and key of the coordinator, and the authority.
        silos: names of those on the roster; they and the parties alone get in.
        parties: of secure aggregation; None without it.
        limits: of every caller.

    Raises:
        ValueError: if a name is a silo's and a party's, or the address can't be listened on.
        OSError: if a file can't be read.
    """
    of_silos, of_parties = f"{PACKAGE}.Silos", f"{PACKAGE}.Parties"
    add_silos = silos_pb2_grpc.add_SilosServicer_to_server
    services = {of_silos: functools.partial(add_silos, SiloService(queue, limits))}
    rosters: dict[str, Sequence[str]] = {of_silos: silos}
    if parties is not None:
        if set(parties.names) & set(silos):
            raise ValueError("parties: expected other names than those of silos, got one twice")
        add_parties = silos_pb2_grpc.add_PartiesServicer_to_server
        services[of_parties] = functools.partial(add_parties, parties)
        rosters[of_parties] = parties.names
    return Server(address, files=files, services=services, rosters=rosters, limits=limits)
