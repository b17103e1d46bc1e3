"""A coordinator as its silos see it, over gRPC."""

from typing import Any

import grpc

from pate_tf.silos.messages import CoordinatorCore
from pate_tf.silos.transport import silos_pb2 as wire
from pate_tf.silos.transport import silos_pb2_grpc
from pate_tf.silos.transport.conversions import answer_to_wire, batch_to_wire, reply_of_wire
from pate_tf.transport.credentials import caller_name
from pate_tf.transport.limits import Limits
from pate_tf.transport.waiting import wait_for

SERVICE = "pate_tf.silos.v1.Silos"


class SiloService(silos_pb2_grpc.SilosServicer):
    """Hands batches out and takes replies. The caller is who its certificate names.

    Args:
      core: the coordinator.
      limits: of a message, and how long a poll waits.
    """

    def __init__(self, core: CoordinatorCore, limits: Limits | None = None) -> None:
        self._core, self._limits = core, limits or Limits()

    def add_to(self, server: Any) -> None:
        """Adds the service to a gRPC server."""
        silos_pb2_grpc.add_SilosServicer_to_server(self, server)

    def Poll(self, request: wire.PollRequest, context: grpc.ServicerContext) -> wire.PollReply:  # noqa: N802
        """Returns the next batch for the caller, or none after a while."""
        silo = caller_name(context)
        seconds = min(max(0.0, request.wait_seconds), self._limits.longest_wait)
        batch = wait_for(lambda: self._core.poll(silo), context, seconds)
        if batch is None:
            return wire.PollReply()
        reply = wire.PollReply(batch=batch_to_wire(batch))
        if reply.ByteSize() > self._limits.message_bytes:
            raise ValueError(
                f"batch: expected at most {self._limits.message_bytes} bytes, got "
                f"{reply.ByteSize()}; the coordinator must ask fewer queries at once"
            )
        return reply

    def Submit(self, request: wire.Reply, context: grpc.ServicerContext) -> wire.SubmitReply:  # noqa: N802
        """Takes the caller's reply."""
        reply = reply_of_wire(request)
        silo = caller_name(context)
        if reply.silo != silo:
            raise PermissionError("silo: expected the name of the certificate, got another")
        return answer_to_wire(self._core.submit(silo, reply))
