"""The dialing end of a connection: mutual TLS, and what its errors mean."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from pate_tf.net.credentials import CALL_SECONDS, COORDINATOR, OVER, Limits, TlsFiles
from pate_tf.net.messages import decode, encode

IDLE_SECONDS: Final = 0.5
UNREACHED: Final = "the other end can't be reached"
FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 30.0


def backoff_seconds(num_failures: int) -> float:
    """Returns how long to wait after so many failures in a row, from 1.

    Between a half and the whole of a wait that doubles: many clients don't come at once.
    """
    whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(num_failures - 1, 30))
    return whole * (0.5 + secrets.randbelow(2**20) / 2**21)


def with_retries(
    step: Callable[[], bool | None],
    *,
    until: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    on_event: Callable[[str], None] = lambda event: None,
) -> None:
    """Repeats a step until it is stopped; waits longer after every failure.

    Args:
        step: returns True if something was done, False if it failed, None if there was nothing to
            do; raises ConnectionError while the other end can't be reached.
        until: asked before every step whether to stop; raises as `step`.
        sleep: waits for so many seconds.
        on_event: called with what happened, in words without anything sensitive.
    """
    num_failures, is_cut_off = 0, False
    while True:
        try:
            if until():
                return
            done = step()
            if is_cut_off:
                on_event("connected again")
            is_cut_off = False
        except ConnectionError as error:
            on_event(f"{str(error) or UNREACHED}; trying again")
            done, is_cut_off = False, True
        num_failures = num_failures + 1 if done is False else 0
        if done is False:
            sleep(backoff_seconds(num_failures))
        elif done is None:
            sleep(IDLE_SECONDS)


_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


class Connection(contextlib.AbstractContextManager[Any]):
    """A line to a server, which this end dials: no other process can dial it.

    gRPC dials again with growing waits; a call that failed is for the caller to repeat.

    Args:
        address: `host:port`.
        service: full name of the service, as of `net.service.Service`.
        files: certificate and key of this end, and the authority.
        limits: of a message.

    Raises OSError if a file can't be read.
    """

    def __init__(
        self, address: str, *, service: str, files: TlsFiles, limits: Limits | None = None
    ) -> None:
        self._service = service
        self._channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(
                files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
            ),
            options=[
                ("grpc.ssl_target_name_override", COORDINATOR),
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
                raise PermissionError(f"the {COORDINATOR} denied the call: {details}") from None
            if code in _WRONG:
                raise ValueError(f"the {COORDINATOR} refused the call: {details}") from None
            raise ConnectionError(
                f"the {COORDINATOR} could not be reached or ended ({code.name.lower()}): {details}"
            ) from None
        try:
            return decode(kind, reply)
        except ValueError as error:
            raise ConnectionError(f"the {COORDINATOR} replied by no {method}: {error}") from None

    def is_over(self) -> bool:
        """Returns whether the server says that the run is over; raises as `call`."""
        return bool(self.call(OVER, None, bool))

    def __exit__(self, *exception: object) -> None:
        self._channel.close()
