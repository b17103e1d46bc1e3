"""The client's end of a connection, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles

CALL_SECONDS: Final = 60.0

_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


def open_channel(
    address: str, *, files: TlsFiles, server: str = COORDINATOR, limits: Limits | None = None
) -> grpc.Channel:
    """Returns a channel with mutual TLS; gRPC dials, and dials again with growing waits.

    Args:
        address: `host:port`.
        files: of this end.
        server: the name that the server's certificate must have.
        limits: of a message.

    Raises OSError if a file can't be read.
    """
    return grpc.secure_channel(
        address,
        grpc.ssl_channel_credentials(
            files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
        ),
        options=[
            ("grpc.ssl_target_name_override", server),
            ("grpc.max_receive_message_length", (limits or Limits()).message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.min_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 10_000),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.enable_retries", 0),  # the caller knows what may be repeated
        ],
    )


def call(
    method: Callable[..., Any],
    request: Any,
    *,
    seconds: float = CALL_SECONDS,
    server: str = COORDINATOR,
) -> Any:
    """Calls a server.

    Args:
        method: of a stub.
        request: its message.
        seconds: how long it may take.
        server: what errors call it.

    Raises:
        PermissionError: if it doesn't know this end.
        ValueError: if it says that the request makes no sense.
        ConnectionError: if it can't be reached, is too busy, took too long or failed; worth another
            try.
    """
    try:
        return method(request, timeout=seconds)
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
    if code in _DENIED:
        raise PermissionError(f"the {server} denied the call: {details}")
    if code in _WRONG:
        raise ValueError(f"the {server} refused the call: {details}")
    raise ConnectionError(f"the {server} could not be reached ({code.name.lower()}): {details}")
