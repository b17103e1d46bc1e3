"""The dialing end of a connection: mutual TLS, and what its errors mean."""

from __future__ import annotations

import contextlib
from typing import Any, Self

import grpc

from pate_tf.net.credentials import CALL_SECONDS, COORDINATOR, Limits, TlsFiles
from pate_tf.net.messages import decode, encode

_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


class Connection(contextlib.AbstractContextManager[Any]):
    """A line to a server, which this end dials: no other process can dial it.

    gRPC dials again with growing waits; a call that failed is for the caller to repeat.

    Args:
        address: `host:port`.
        service: full name of the service, as of `net.server.Service`.
        files: certificate and key of this end, and the authority.
        server: the name that the server's certificate must have.
        limits: of a message.

    Raises OSError if a file can't be read.
    """

    def __init__(
        self,
        address: str,
        *,
        service: str,
        files: TlsFiles,
        server: str = COORDINATOR,
        limits: Limits | None = None,
    ) -> None:
        self._service, self._server = service, server
        self._channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(
                files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
            ),
            options=[
                ("grpc.ssl_target_name_override", server),
                ("grpc.max_receive_message_length", (limits or Limits()).message_bytes),
                ("grpc.max_send_message_length", -1),  # the receiver's limit counts
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 10_000),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.enable_retries", 0),
            ],
        )

    def call(self, method: str, request: object, kind: Any, *, wait_seconds: float = 0.0) -> Any:
        """Returns the reply of a server.

        Args:
            method: name of the service's method.
            request: its message.
            kind: type of the reply, see `net.messages.decode`.
            wait_seconds: how long the server may wait until it has one; it is told by the deadline.

        Raises:
            PermissionError: if the server doesn't know this end.
            ValueError: if it says that the request makes no sense.
            ConnectionError: if it can't be reached, is too busy, took too long, failed or replied
                with something else; worth another try.
        """
        send = self._channel.unary_unary(f"/{self._service}/{method}")
        try:
            reply = send(encode(request), timeout=wait_seconds + CALL_SECONDS)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in _DENIED:
                raise PermissionError(f"the {self._server} denied the call: {details}") from None
            if code in _WRONG:
                raise ValueError(f"the {self._server} refused the call: {details}") from None
            raise ConnectionError(
                f"the {self._server} could not be reached ({code.name.lower()}): {details}"
            ) from None
        try:
            return decode(kind, reply)
        except ValueError as error:
            raise ConnectionError(f"the {self._server} replied by no {method}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()
