"""A participant's line to its parameter server, over gRPC."""

from __future__ import annotations

from typing import Any

import numpy as np

from pate_tf.selective_sgd.declared import Declared
from pate_tf.selective_sgd.server import Parameters
from pate_tf.selective_sgd.transport import parameters_pb2 as wire
from pate_tf.selective_sgd.transport import parameters_pb2_grpc
from pate_tf.selective_sgd.transport.conversions import declared_to_wire, parameters_of_wire
from pate_tf.selective_sgd.transport.service import message_limits
from pate_tf.selective_sgd.upload import FloatArray
from pate_tf.transport import arrays
from pate_tf.transport.channel import CALL_SECONDS, call, open_channel
from pate_tf.transport.credentials import COORDINATOR, TlsFiles


class ParameterConnection:
    """Connects a participant to a parameter server. It dials; nobody can dial it.

    Args:
      address: `host:port` of the server.
      files: certificate and key of the participant, and the authority.
      run: 16 bytes that name the run.
      num_parameters: of the model.
      server: the name in the server's certificate.
      wait_seconds: how long a call waits at the server for its turn.

    Raises:
      OSError: if a file can't be read.
    """

    def __init__(
        self,
        address: str,
        *,
        files: TlsFiles,
        run: bytes,
        num_parameters: int,
        server: str = COORDINATOR,
        wait_seconds: float = 20.0,
    ) -> None:
        limits = message_limits(num_parameters)
        self._channel = open_channel(address, files=files, server=server, limits=limits)
        self._stub = parameters_pb2_grpc.ParameterServerStub(self._channel)
        self._run, self._num_parameters = run, num_parameters
        self._wait_seconds = wait_seconds

    def join(self, declared: Declared | None = None) -> FloatArray:
        """Returns the parameters where all begin, float32 `[num_parameters]`.

        Args:
          declared: what this participant paid; with privacy the server takes no upload before.

        Raises:
          ConnectionError: if the server can't be reached, or sends something else.
          PermissionError: if it does not know this participant.
          ValueError: if it has other terms.
        """
        paid = None if declared is None else declared_to_wire(declared)
        reply = self._call(self._stub.Join, wire.JoinRequest(run=self._run, paid=paid))
        try:
            found = arrays.unpack(reply.values, "values", dtypes=("<f4",))
        except ValueError as error:
            raise ConnectionError(f"the server sent no parameters: {error}") from None
        if found.shape != (self._num_parameters,):
            raise ValueError(
                f"model: expected {self._num_parameters} parameters, the server has another "
                f"number: its model is another one"
            )
        return np.array(found, np.float32)

    def pull(self, round_number: int) -> Parameters | None:
        """Returns the parameters of this participant's turn; None if it has not come yet.

        Args:
          round_number: from 0; the number of rounds for what came of all.

        Raises:
          ConnectionError: if the server can't be reached, or sends something else.
          PermissionError: if it does not know this participant.
          ValueError: if it refuses.
        """
        reply = self._call(
            self._stub.Pull,
            wire.PullRequest(run=self._run, round=round_number, wait_seconds=self._wait_seconds),
        )
        if not reply.HasField("parameters"):
            return None
        try:
            return parameters_of_wire(reply.parameters, self._num_parameters)
        except ValueError as error:
            raise ConnectionError(f"the server sent no parameters: {error}") from None

    def push(self, content: bytes) -> bool:
        """Hands over an upload; may be repeated.

        Returns:
          Whether it is applied, now or before; otherwise others come first.

        Raises:
          ConnectionError: if the server can't be reached.
          PermissionError: if it does not know this participant, or the upload names another.
          ValueError: if it refuses the upload.
        """
        request = wire.PushRequest(upload=content, wait_seconds=self._wait_seconds)
        return self._call(self._stub.Push, request).answer in (wire.OK, wire.SAME)

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()

    def __enter__(self) -> ParameterConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any) -> Any:
        seconds = self._wait_seconds + CALL_SECONDS
        return call(method, request, seconds=seconds, server="server")
