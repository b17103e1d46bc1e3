"""What a silo needs of its coordinator, over gRPC: a `pate_tf.silos.messages.Connection`."""

from __future__ import annotations

from pate_tf.net.channel import CALL_SECONDS, call, open_channel
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos import silos_pb2_grpc
from pate_tf.silos.messages import Answer, QueryBatch, Reply
from pate_tf.silos.wire import answer_of_wire, batch_of_wire, reply_to_wire


class SiloConnection:
    """A silo's line to its coordinator. The silo dials; nobody can dial it.

    Args:
      address: `host:port` of the coordinator.
      files: certificate and key of the silo, and the authority.
      coordinator: the name in the coordinator's certificate.
      limits: of a message.
      wait_seconds: how long a poll waits at the coordinator for a batch.

    Raises:
      OSError: if a file can't be read.
    """

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
        self._stub = silos_pb2_grpc.SilosStub(self._channel)
        self._wait_seconds = wait_seconds

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does.

        Raises:
          ConnectionError: if the coordinator can't be reached, or sends what is no batch.
          PermissionError: if it doesn't know this silo.
        """
        request = wire.PollRequest(wait_seconds=self._wait_seconds)
        reply = call(self._stub.Poll, request, seconds=self._wait_seconds + CALL_SECONDS)
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
        return answer_of_wire(call(self._stub.Submit, reply_to_wire(reply)))

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()

    def __enter__(self) -> SiloConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
