"""Client connection and server for gRPC calls with mutual TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import pathlib
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import grpc

from pate_tf.net.credentials import CALL_SECONDS, COORDINATOR, OVER, Limits, TlsFiles
from pate_tf.net.health import CONTACT_AGE, Health, note_contact
from pate_tf.net.wire_values import decode, encode

_log = logging.getLogger(__name__)
IDLE_SECONDS: Final = 0.5
UNREACHED: Final = "the other end can't be reached"
FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 30.0
HANDSHAKE_SECONDS: Final = 5.0


def with_retries(
    step: Callable[[], bool | None],
    *,
    until: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    give_up_after: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Repeats a step until `until` returns True, with exponential backoff after failures.

    Args:
        step: function that returns True if it succeeded, False if it failed, and None if there was
            nothing to do. It raises ConnectionError while the server can't be reached.
        until: function that returns whether to stop; called before every step. It may also raise
            ConnectionError.
        sleep: function that waits for a number of seconds.
        give_up_after: number of seconds without a connection after which this function gives up.
        clock: function that returns a monotonic time in seconds.

    Raises:
        ConnectionError: when `give_up_after` seconds have passed without a connection.
    """
    reached = clock()
    num_failures = 0
    is_cut_off = False
    while True:
        try:
            if until():
                return
            done = step()
            reached = clock()
            if is_cut_off:
                _log.info("connected again")
            is_cut_off = False
        except ConnectionError as error:
            away = clock() - reached
            if away >= give_up_after:
                raise ConnectionError(
                    f"gave up after {away:.0f} s without a connection (limit {give_up_after:g}): "
                    f"{str(error) or UNREACHED}. If the run is not over, start this command again."
                ) from None
            _log.warning("%s; trying again", str(error) or UNREACHED)
            done = False
            is_cut_off = True
        num_failures = num_failures + 1 if done is False else 0
        if done is False:
            # Waits are random, so that many clients do not all call a restarted server at once.
            whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(num_failures - 1, 30))
            sleep(whole * (0.5 + secrets.randbelow(2**20) / 2**21))
        elif done is None:
            sleep(IDLE_SECONDS)


_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


class Connection(contextlib.AbstractContextManager[Any]):
    """A client's connection to a server. Only the client opens connections.

    gRPC reconnects after increasing delays. The caller must repeat failed calls.

    Args:
        address: `host:port` of the server.
        service: full name of the service that is called; see `Service`.
        files: certificate and key of the client, and the certificate of the trusted authority.
        limits: limit on the size of a message.

    Attributes:
        contact: file whose modification time records the last successful call; None for no file.
        num_refused: number of the server's tasks that this client refused; subclasses count them.

    Raises ValueError or OSError, as `TlsFiles.read` does. Certificate and key files may be replaced
    later: each call uses the current files.
    """

    contact: pathlib.Path | None = None
    num_refused = 0

    def __init__(
        self, address: str, *, service: str, files: TlsFiles, limits: Limits | None = None
    ) -> None:
        self._last_call = -math.inf
        self._trouble = f"the {COORDINATOR} was not reached yet"
        self._address = address
        self._service = service
        self._files = files
        self._limits = limits or Limits()
        self._contents = files.read()
        self._channel = self._dial()

    def _dial(self) -> grpc.Channel:
        return grpc.secure_channel(
            self._address,
            grpc.ssl_channel_credentials(*self._contents),
            options=[
                ("grpc.ssl_target_name_override", COORDINATOR),
                ("grpc.max_receive_message_length", self._limits.message_bytes),
                ("grpc.max_send_message_length", -1),  # only the receiver limits the size
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 10_000),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.enable_retries", 0),
                # With this option, a new channel does not reuse an earlier channel's connection.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def _why(self, details: str) -> str:
        """Returns the likely reason for a failed connection from `details`, gRPC's error text."""
        if "handshake failed" in details:
            reason = details.rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
            return f"its certificate is not valid ({reason}) for {self._files.authority}"
        if "Socket closed" in details or "reset by peer" in details:
            return f"it refuses {self._files.certificate}; check authority and clock at both ends"
        return f"no server answers at {self._address}"

    def call(self, method: str, request: object, kind: Any, *, wait_seconds: float = 0.0) -> Any:
        """Calls a method of the server and returns the reply.

        Args:
            method: name of the method.
            request: the message to send.
            kind: expected type of the reply; see `wire_values.decode`.
            wait_seconds: number of seconds that the server may wait before it replies. The call
                fails `CALL_SECONDS` after this time.

        Raises:
            PermissionError: if this client is not on the server's roster.
            ValueError: if the server refuses the request as invalid.
            ConnectionError: if the server can't be reached, is too busy, took too long, failed, or
                sent an invalid reply. The caller may try again.
        """
        why = ""
        try:
            contents = self._files.read()
        except (ValueError, OSError) as error:  # another process may be replacing the files
            why = str(error)
        else:
            if contents != self._contents:
                self._contents = contents
                self._channel.close()
                self._channel = self._dial()
        send = self._channel.unary_unary(f"/{self._service}/{method}")
        try:
            reply = send(encode(request), timeout=wait_seconds + CALL_SECONDS)
        except grpc.RpcError as error:
            code = error.code()
            details = error.details()
            if code in _DENIED:
                raise PermissionError(f"the {COORDINATOR} denied access: {details}") from None
            if code in _WRONG:
                raise ValueError(f"the {COORDINATOR} refused the call: {details}") from None
            if not why:
                why = self._why(details) if "failed to connect" in details else details
            self._trouble = (
                f"the {COORDINATOR} could not be reached or stopped ({code.name.lower()}): {why}"
            )
            raise ConnectionError(self._trouble) from None
        self._trouble = ""
        self._last_call = time.monotonic()
        note_contact(self.contact)
        try:
            return decode(kind, reply)
        except ValueError as error:
            raise ConnectionError(
                f"the {COORDINATOR} sent an invalid reply to {method}: {error}"
            ) from None

    def health(self, numbers: Mapping[str, float]) -> Health:
        """Returns the health of this client.

        Args:
            numbers: further metrics, by name.

        Returns:
            The reason why the last call failed, or an empty string if it succeeded; and `numbers`
            together with the metrics of this connection.
        """
        age = time.monotonic() - self._last_call
        own = {"pate_refusals_total": self.num_refused, CONTACT_AGE.format(COORDINATOR): age}
        return self._trouble, {**numbers, **own}

    def __exit__(self, *exception: object) -> None:
        self._channel.close()


_LOOK_SECONDS = 0.5
# Number of server threads in addition to two per caller. A call that waits for a task occupies a
# thread.
_SPARE_THREADS = 16

Reply = TypeVar("Reply")


@dataclasses.dataclass(frozen=True)
class Caller:
    """The client of a call, identified by its certificate.

    Attributes:
        name: common name of the certificate.
        wait_seconds: number of seconds for which the caller is willing to wait for a reply.
        is_active: function that returns whether the caller is still waiting.
    """

    name: str
    wait_seconds: float
    is_active: Callable[[], bool] = lambda: True

    def wait_for(
        self, look: Callable[[], Reply | None], changed: threading.Condition
    ) -> Reply | None:
        """Waits until `look` returns a value, and returns this value.

        Returns None after `wait_seconds` or when the caller has disconnected. `look` is called at
        every notification of `changed`, and at regular intervals, with the lock of `changed` held.
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
    """A group of methods that a server offers to certain callers.

    Attributes:
        name: full name, including the version of the protocol.
        callers: names of the callers that may use the service, from the roster.
        methods: maps each method name to the type of the request (see `wire_values.decode`) and to
            a function that takes the request and the caller and returns the reply. If the function
            raises a ValueError, the caller receives its message.
    """

    name: str
    callers: Collection[str]
    methods: Mapping[str, tuple[Any, Callable[[Any, Caller], object]]]


class TlsServer(contextlib.ExitStack):
    """A gRPC server with mutual TLS, which runs until it is stopped.

    The server checks that a caller is on the roster before it decodes the message.

    Args:
        address: `host:port` to listen on; with port 0, the system chooses a free port.
        files: certificate and key of the server, and the certificate of the callers' authority.
        services: the services to offer.
        limits: limits on message sizes and on the concurrent calls of one caller.

    Attributes:
        contact: file whose modification time records the last call; None for no file.
        port: the port on which the server listens.

    Raises:
        ValueError: if the server can't listen on the address, or for the reasons of
            `TlsFiles.read`.
        OSError: for the reasons of `TlsFiles.read`.

    Certificate and key files may be replaced later: each new connection uses the current files.
    """

    contact: pathlib.Path | None = None

    def __init__(
        self,
        address: str,
        *,
        files: TlsFiles,
        services: Sequence[Service],
        limits: Limits | None = None,
    ) -> None:
        super().__init__()
        self._num_refused = 0
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
        self._ended = threading.Condition()
        self._is_over = False
        self._untold: set[str] = set()  # callers that were told that the run is not over
        self._last_calls = dict.fromkeys(sorted(callers), -math.inf)
        for offered in services:
            methods: Mapping[str, Any] = {**offered.methods, OVER: (None, self._over)}
            service = dataclasses.replace(offered, methods=methods)
            handlers = {name: self._handler(service, name) for name in service.methods}
            handler = grpc.method_handlers_generic_handler(service.name, handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._files = files
        self._contents = files.read()
        self._dialed: list[float] = []  # start times of the connections since the last call
        credentials = grpc.dynamic_ssl_server_credentials(
            grpc.ssl_server_certificate_configuration([self._contents[1:]], self._contents[0]),
            self._renewed_credentials,
            require_client_authentication=True,
        )
        try:
            self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._pool.shutdown()
            raise ValueError(f"the server can't listen on {address}; choose another port")
        self._server.start()
        self.callback(self.stop)

    def _renewed_credentials(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the contents of the certificate files if they were replaced, otherwise None.

        gRPC calls this method at the start of each connection. gRPC does not report failed
        handshakes, so a connection without a call is treated as a failed handshake.
        """
        now = time.monotonic()
        with self._ended:
            self._dialed.append(now)
            has_failed = now - self._dialed[0] > HANDSHAKE_SECONDS
            del self._dialed[:has_failed]
        if has_failed:
            _log.warning(
                "a TLS handshake with %s failed; see the caller's log", self._files.certificate
            )
        try:
            contents = self._files.read()
        except (ValueError, OSError) as error:
            _log.warning("%s", error)
            return None
        if contents == self._contents:
            return None
        self._contents = contents
        return grpc.ssl_server_certificate_configuration([contents[1:]], contents[0])

    def _handler(self, service: Service, method: str) -> grpc.RpcMethodHandler:
        """Returns the gRPC handler of a method, which decodes requests and encodes replies.

        If a method raises a `ValueError`, the caller receives its message, which is about the
        caller's own request. For any other error, the caller receives a fixed line.
        """
        kind, answer = service.methods[method]

        def guarded(content: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                self._dialed.clear()
                names = context.auth_context().get("x509_common_name", [])
                if len(names) != 1:
                    raise PermissionError("the certificate must have exactly one common name")
                name = bytes(names[0]).decode("utf-8", "replace")
                if name not in service.callers:
                    raise PermissionError(f"the caller is not on the roster of {service.name}")
                left = context.time_remaining() or 0.0
                seconds = min(left - CALL_SECONDS, self._limits.longest_wait)
                caller = Caller(name, seconds, lambda: context.is_active() and not self._is_over)
                if not self._calls[name].acquire(blocking=False):
                    raise ConnectionAbortedError("too many concurrent calls; try again later")
                try:
                    self._last_calls[name] = time.monotonic()
                    note_contact(self.contact)
                    encoded = encode(answer(decode(kind, content), caller))
                finally:
                    self._calls[name].release()
                if len(encoded) > self._limits.message_bytes:
                    raise ValueError(
                        f"the reply has {len(encoded)} bytes, more than the limit of "
                        f"{self._limits.message_bytes}; request less in one call"
                    )
                return encoded
            except PermissionError as error:
                self._num_refused += 1
                _log.warning("a call to %s was denied: %s", method, error)
                return context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            except ValueError as error:
                self._num_refused += 1
                return context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except ConnectionAbortedError as error:
                return context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            except Exception:
                _log.error("a call to %s failed: %s", method, traceback.format_exc())
                reason = "the server failed; see its log"
                return context.abort(grpc.StatusCode.INTERNAL, reason)

        return grpc.unary_unary_rpc_method_handler(guarded)

    def _over(self, request: None, caller: Caller) -> bool:
        """Returns whether the run is over, and remembers the callers that received False."""
        with self._ended:
            if self._is_over:
                self._untold.discard(caller.name)
                self._ended.notify_all()
            else:
                self._untold.add(caller.name)
            return self._is_over

    def health(self, numbers: Mapping[str, float]) -> Health:
        """Returns the health of this server.

        Args:
            numbers: further metrics, by name.

        Returns:
            The reason why callers can't connect, or an empty string if they can; and `numbers`
            together with the metrics of this server.
        """
        trouble = ""
        try:
            self._files.read()
        except (ValueError, OSError) as error:
            trouble = str(error)
        now = time.monotonic()
        ages = {CONTACT_AGE.format(name): now - last for name, last in self._last_calls.items()}
        return trouble, {**numbers, "pate_calls_refused_total": self._num_refused, **ages}

    def end(self, seconds: float = 10.0) -> tuple[str, ...]:
        """Ends the run, and waits until the callers know about it.

        The method waits for all callers that asked earlier whether the run was over. Other callers
        also learn that it is over if they ask before the server stops. To wait longer, call the
        method again.

        Args:
            seconds: maximum time to wait.

        Returns:
            The names of the callers that do not know about the end yet.
        """
        with self._ended:
            self._is_over = True
            self._ended.wait_for(lambda: not self._untold, seconds)
            return tuple(sorted(self._untold))

    def stop(self, grace: float = 1.0) -> None:
        """Stops the server. Running calls have `grace` seconds to finish."""
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
