"""A gRPC server with mutual TLS, rosters, limits and the standard health service."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pate_tf.net.credentials import CallLimiter, Limits, TlsFiles, TooManyCallsError, caller_name

HEALTH = "grpc.health.v1.Health"

_log = logging.getLogger(__name__)


class Gate(grpc.ServerInterceptor):
    """Lets those call a service who are on its roster, and no more often than is allowed.

    An error is reported in one line of ours, never by an exception's own words, unless they are a
    `ValueError` about what the caller sent.

    Args:
        rosters: names of the callers of each service, by its full name. The health service is open
            to all with a certificate; services that aren't named are closed.
        limits: of every caller.
    """

    def __init__(self, rosters: Mapping[str, Collection[str]], limits: Limits) -> None:
        self._rosters = {service: frozenset(names) for service, names in rosters.items()}
        self._limiter = CallLimiter(limits)

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Returns the handler of a call behind the gate."""
        handler = continuation(details)
        _, service, _ = details.method.split("/", 2)
        if handler is None or service == HEALTH:
            return handler
        if handler.unary_unary is None:
            return None  # nothing streams here
        names = self._rosters.get(service, frozenset())
        inside = handler.unary_unary

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                name = caller_name(context)
                if name not in names:
                    raise PermissionError(f"expected a caller on the roster of {service}")
                with self._limiter.call(name):
                    return inside(request, context)
            except PermissionError as error:
                _log.warning("a call to %s was denied: %s", details.method, error)
                context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except TooManyCallsError as error:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Exception as error:
                if context.code() is not None:
                    raise  # a service's own abort
                _log.error("a call to %s failed", details.method, exc_info=error)
                context.abort(grpc.StatusCode.INTERNAL, "the server failed; its log says why")

        return grpc.unary_unary_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )


Found = TypeVar("Found")

_LOOK_SECONDS = 0.1
# A poll holds a thread while it waits; so many calls of a name may run, and some for health.
_SPARE_THREADS = 16


def wait_for(
    look: Callable[[], Found | None], context: grpc.ServicerContext, seconds: float
) -> Found | None:
    """Returns what `look` finds, as soon as it finds something; None after so many seconds.

    Gives up when the caller has gone.
    """
    end = time.monotonic() + seconds
    while True:
        found = look()
        left = end - time.monotonic()
        if found is not None or not left > 0.0 or not context.is_active():
            return found
        time.sleep(min(_LOOK_SECONDS, left))


class Server(contextlib.AbstractContextManager["Server"]):
    """Serves until it is stopped.

    Args:
        address: `host:port`; port 0 for any free one.
        files: certificate and key of this end, and the authority of all callers.
        services: what adds each service to a server, by the service's full name.
        rosters: who may call each service, by the service's full name.
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
        services: Mapping[str, Callable[[Any], None]],
        rosters: Mapping[str, Collection[str]],
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        num_names = len({name for names in rosters.values() for name in names})
        self._pool = ThreadPoolExecutor(2 * num_names + _SPARE_THREADS)
        self._server = grpc.server(
            self._pool,
            interceptors=(Gate(rosters, limits),),
            options=[
                ("grpc.max_receive_message_length", limits.message_bytes),
                ("grpc.max_send_message_length", -1),  # the receiver's limit counts
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        for add in services.values():
            add(self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for service in ("", *services):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
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

    def stop(self, grace: float = 1.0) -> None:
        """Stops: no new calls, running ones have so many seconds."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __exit__(self, *exception: object) -> None:
        self.stop()
