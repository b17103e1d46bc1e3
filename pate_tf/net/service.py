"""A gRPC server with mutual TLS, rosters, limits and the standard health service."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pate_tf.net.credentials import CALL_SECONDS, OVER, STATUS, Limits, TlsFiles, caller_name
from pate_tf.net.messages import decode, encode

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
# A poll holds a thread while it waits; so many calls of a name may run, and some for health.
_SPARE_THREADS = 16

Reply = TypeVar("Reply")


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who calls, by its certificate.

    Attributes:
        name: common name of the certificate.
        wait_seconds: how long it waits for a reply that takes time.
        is_active: whether it still waits.
    """

    name: str
    wait_seconds: float
    is_active: Callable[[], bool] = lambda: True

    def wait_for(
        self, look: Callable[[], Reply | None], changed: threading.Condition
    ) -> Reply | None:
        """Returns what `look` returns, as soon as that is not None; None after `wait_seconds`.

        Gives up when the caller has gone. `look` is called under the lock of `changed`, whenever
        that is notified and now and then besides.
        """
        end = time.monotonic() + self.wait_seconds
        with changed:
            while True:
                reply = look()
                left = end - time.monotonic()
                if reply is not None or not left > 0.0 or not self.is_active():
                    return reply
                changed.wait(min(_LOOK_SECONDS, left))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Service:
    """What a server offers.

    Attributes:
        name: full name, with the protocol's version.
        callers: names of those who may call.
        methods: by name the type of the request, see `net.messages.decode`, and what returns the
            reply to a request of a caller. A ValueError is about what the caller sent; it is told.
    """

    name: str
    callers: Collection[str]
    methods: Mapping[str, tuple[Any, Callable[[Any, Caller], object]]]


class TlsServer(contextlib.ExitStack):
    """Serves until it is stopped.

    Nothing of a message is read before its sender is on the roster.

    Args:
        address: `host:port`; port 0 for any free one.
        files: certificate and key of this end, and the authority of all callers.
        services: that it offers; that of health is open to all with a certificate.
        limits: of every caller.

    Attributes:
        port: that it listens on.

    Raises:
        ValueError: if the address can't be listened on.
        OSError: if a file can't be read.
    """

    def __init__(
        self,
        address: str,
        *,
        files: TlsFiles,
        services: Sequence[Service],
        limits: Limits | None = None,
    ) -> None:
        super().__init__()
        self._limits = limits or Limits()
        callers = {name for service in services for name in service.callers}
        self._calls = {
            name: threading.BoundedSemaphore(self._limits.calls_at_once) for name in callers
        }
        self._pool = ThreadPoolExecutor(2 * len(callers) + _SPARE_THREADS)
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.max_receive_message_length", self._limits.message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self._ended, self._callers, self._told = threading.Condition(), set[str](), set[str]()
        self._is_over, self._last_calls = False, dict.fromkeys(sorted(callers), math.inf)
        for offered in services:
            methods: Mapping[str, Any] = {
                **offered.methods,
                OVER: (None, self._over),
                STATUS: (None, self._status),
            }
            service = dataclasses.replace(offered, methods=methods)
            handlers = {name: self._handler(service, name) for name in service.methods}
            handler = grpc.method_handlers_generic_handler(service.name, handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for name in ("", *(service.name for service in services)):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        credentials = grpc.ssl_server_credentials(
            [(files.key.read_bytes(), files.certificate.read_bytes())],
            root_certificates=files.authority.read_bytes(),
            require_client_auth=True,
        )
        try:
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._pool.shutdown()
            raise ValueError(f"address: expected one to listen on, got {address}")
        self._server.start()
        self.callback(self.stop)

    def _handler(self, service: Service, method: str) -> grpc.RpcMethodHandler:
        """Returns what answers calls of a method in bytes.

        An error is reported in one line of ours, never by an exception's own words, unless they are
        a `ValueError` about what the caller sent.
        """
        kind, answer = service.methods[method]

        def guarded(content: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                name = caller_name(context)
                if name not in service.callers:
                    raise PermissionError(f"expected a caller on the roster of {service.name}")
                left = context.time_remaining() or 0.0
                seconds = min(left - CALL_SECONDS, self._limits.longest_wait)
                caller = Caller(name, seconds, lambda: context.is_active() and not self._is_over)
                if not self._calls[name].acquire(blocking=False):
                    raise ConnectionAbortedError("expected fewer calls at once; try again later")
                try:
                    if method != STATUS:
                        self._last_calls[name] = time.monotonic()
                    encoded = encode(answer(decode(kind, content), caller))
                finally:
                    self._calls[name].release()
                if len(encoded) > self._limits.message_bytes:
                    raise ValueError(
                        f"reply: expected at most {self._limits.message_bytes} bytes, got "
                        f"{len(encoded)}; less must be asked at once"
                    )
                return encoded
            except PermissionError as error:
                _log.warning("a call to %s was denied: %s", method, error)
                code, reason = grpc.StatusCode.PERMISSION_DENIED, str(error)
            except ValueError as error:
                code, reason = grpc.StatusCode.INVALID_ARGUMENT, str(error)
            except ConnectionAbortedError as error:
                code, reason = grpc.StatusCode.UNAVAILABLE, str(error)
            except Exception as error:
                _log.error("a call to %s failed", method, exc_info=error)
                code, reason = grpc.StatusCode.INTERNAL, "the server failed; its log says why"
            return context.abort(code, reason)

        return grpc.unary_unary_rpc_method_handler(guarded)

    def _over(self, request: None, caller: Caller) -> bool:
        """Returns whether the run is over."""
        del request
        with self._ended:
            self._callers.add(caller.name)
            if self._is_over:
                self._told.add(caller.name)
                self._ended.notify_all()
            return self._is_over

    def _status(self, request: None, caller: Caller) -> tuple[bool, dict[str, float]]:
        """Returns whether the run is over, and seconds since the last call of each, -1 for none."""
        del request, caller
        now = time.monotonic()
        seconds = {name: max(now - last, -1.0) for name, last in self._last_calls.items()}
        return self._is_over, seconds

    def end(self, seconds: float = 10.0) -> None:
        """Says that the run is over; waits until all heard it who asked before, or so long."""
        with self._ended:
            self._is_over = True
            self._ended.wait_for(lambda: self._callers <= self._told, seconds)

    def stop(self, grace: float = 1.0) -> None:
        """Stops: no new calls, running ones have so many seconds."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
