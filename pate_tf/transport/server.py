"""A gRPC server with mutual TLS, rosters, limits and the standard health service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pate_tf.transport.credentials import TlsFiles
from pate_tf.transport.gate import Gate
from pate_tf.transport.limits import Limits

# A poll holds a thread while it waits; so many calls of a name may run, and some for health.
_SPARE_THREADS = 16


class Server:
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
        try:
            self.port = self._server.add_secure_port(address, files.server_credentials())
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

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
