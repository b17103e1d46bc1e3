"""Calls over gRPC with mutual TLS: the end that dials, and the server that knows its callers."""

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
    """Repeats a step until it is stopped; waits longer after every failure.

    Args:
        step: returns True if something was done, False if it failed, None if there was nothing to
            do; raises ConnectionError while the other end can't be reached.
        until: asked before every step whether to stop; raises as `step`.
        sleep: waits for so many seconds.
        give_up_after: seconds without a connection after which to give up.
        clock: seconds, from any start.

    Raises ConnectionError once it gives up.
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
                    f"gave up after {away:.0f} seconds without a connection, of at most "
                    f"{give_up_after:g}: {str(error) or UNREACHED}. If the run is not over, start "
                    f"the same command again."
                ) from None
            _log.warning("%s; trying again", str(error) or UNREACHED)
            done = False
            is_cut_off = True
        num_failures = num_failures + 1 if done is False else 0
        if done is False:
            # Between a half and the whole of a wait that doubles: many clients don't come at once.
            whole = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(num_failures - 1, 30))
            sleep(whole * (0.5 + secrets.randbelow(2**20) / 2**21))
        elif done is None:
            sleep(IDLE_SECONDS)


_DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_WRONG = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


class Connection(contextlib.AbstractContextManager[Any]):
    """A line to a server, which this end dials: no other process can dial it.

    gRPC dials again with growing waits; a call that failed is for the caller to repeat.

    Args:
        address: `host:port`.
        service: full name of the service, as of `Service`.
        files: certificate and key of this end, and the authority.
        limits: of a message.

    Attributes:
        contact: a file that gets the time of each call that succeeds; None for none.
        num_refused: how many requests of the other end were refused; a subclass counts them.

    Raises ValueError or OSError as `TlsFiles.read`. Files that are replaced later are taken up.
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
                ("grpc.max_send_message_length", -1),  # the receiver's limit counts
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 10_000),
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.enable_retries", 0),
                # Else a channel that is dialed anew could use the connection of the one before.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def _why(self, details: str) -> str:
        """Returns why there is no connection, from the words of gRPC: it has nothing else."""
        if "handshake failed" in details:
            reason = details.rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
            return f"this end refuses its certificate ({reason}); see {self._files.authority}"
        if "Socket closed" in details or "reset by peer" in details:
            return f"it refuses {self._files.certificate}: another authority, or clocks differ"
        return f"nobody answers at {self._address}"

    def call(self, method: str, request: object, kind: Any, *, wait_seconds: float = 0.0) -> Any:
        """Returns the reply of a server.

        Args:
            method: name of the service's method.
            request: its message.
            kind: type of the reply, see `wire_values.decode`.
            wait_seconds: how long the server may wait until it has one; it is told by the deadline.

        Raises:
            PermissionError: if the server doesn't know this end.
            ValueError: if it says that the request makes no sense.
            ConnectionError: if it can't be reached, is too busy, took too long, failed or replied
                with something else; worth another try.
        """
        why = ""
        try:
            contents = self._files.read()
        except (ValueError, OSError) as error:  # of files that are being replaced, perhaps
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
                raise PermissionError(f"the {COORDINATOR} denied the call: {details}") from None
            if code in _WRONG:
                raise ValueError(f"the {COORDINATOR} refused the call: {details}") from None
            if not why:
                why = self._why(details) if "failed to connect" in details else details
            self._trouble = (
                f"the {COORDINATOR} could not be reached or ended ({code.name.lower()}): {why}"
            )
            raise ConnectionError(self._trouble) from None
        self._trouble = ""
        self._last_call = time.monotonic()
        note_contact(self.contact)
        try:
            return decode(kind, reply)
        except ValueError as error:
            raise ConnectionError(f"the {COORDINATOR} replied by no {method}: {error}") from None

    def health(self, numbers: Mapping[str, float]) -> Health:
        """Returns why the last call failed, "" if it succeeded; and numbers, with its own added."""
        age = time.monotonic() - self._last_call
        own = {"pate_refusals_total": self.num_refused, CONTACT_AGE.format(COORDINATOR): age}
        return self._trouble, {**numbers, **own}

    def __exit__(self, *exception: object) -> None:
        self._channel.close()


_LOOK_SECONDS = 0.5
# A poll holds a thread while it waits; so many calls of a name may run, and some besides.
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
        methods: by name the type of the request, see `wire_values.decode`, and what returns the
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
        services: that it offers.
        limits: of every caller.

    Attributes:
        contact: a file that gets the time of each call; None for none.
        port: that it listens on.

    Raises:
        ValueError: if the address can't be listened on, or as `TlsFiles.read`.
        OSError: as `TlsFiles.read`. Files that are replaced later are taken up.
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
        self._untold: set[str] = set()  # callers that heard that the run is not over
        self._last_calls = dict.fromkeys(sorted(callers), -math.inf)
        for offered in services:
            methods: Mapping[str, Any] = {**offered.methods, OVER: (None, self._over)}
            service = dataclasses.replace(offered, methods=methods)
            handlers = {name: self._handler(service, name) for name in service.methods}
            handler = grpc.method_handlers_generic_handler(service.name, handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self._files = files
        self._contents = files.read()
        self._dialed: list[float] = []  # when connections began, since the last call
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
            raise ValueError(f"address: expected one to listen on, got {address}")
        self._server.start()
        self.callback(self.stop)

    def _renewed_credentials(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the files' contents if they were replaced; called when a connection begins.

        gRPC doesn't report a handshake that failed. So a connection without a call counts as one.
        """
        now = time.monotonic()
        with self._ended:
            self._dialed.append(now)
            has_failed = now - self._dialed[0] > HANDSHAKE_SECONDS
            del self._dialed[:has_failed]
        if has_failed:
            _log.warning(
                "a caller refused %s, or was refused; see its log", self._files.certificate
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
        """Returns what answers calls of a method in bytes.

        An error is reported in one line of ours, never by an exception's own words, unless they are
        a `ValueError` about what the caller sent.
        """
        kind, answer = service.methods[method]

        def guarded(content: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                self._dialed.clear()
                names = context.auth_context().get("x509_common_name", [])
                if len(names) != 1:
                    raise PermissionError("expected a certificate with one common name, got others")
                name = bytes(names[0]).decode("utf-8", "replace")
                if name not in service.callers:
                    raise PermissionError(f"expected a caller on the roster of {service.name}")
                left = context.time_remaining() or 0.0
                seconds = min(left - CALL_SECONDS, self._limits.longest_wait)
                caller = Caller(name, seconds, lambda: context.is_active() and not self._is_over)
                if not self._calls[name].acquire(blocking=False):
                    raise ConnectionAbortedError("expected fewer calls at once; try again later")
                try:
                    self._last_calls[name] = time.monotonic()
                    note_contact(self.contact)
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
                reason = "the server failed; its log says why"
                return context.abort(grpc.StatusCode.INTERNAL, reason)

        return grpc.unary_unary_rpc_method_handler(guarded)

    def _over(self, request: None, caller: Caller) -> bool:
        """Returns whether the run is over."""
        del request
        with self._ended:
            if self._is_over:
                self._untold.discard(caller.name)
                self._ended.notify_all()
            else:
                self._untold.add(caller.name)
            return self._is_over

    def health(self, numbers: Mapping[str, float]) -> Health:
        """Returns why no caller can connect, "" if they can; and numbers, with its own added."""
        trouble = ""
        try:
            self._files.read()
        except (ValueError, OSError) as error:
            trouble = str(error)
        now = time.monotonic()
        ages = {CONTACT_AGE.format(name): now - last for name, last in self._last_calls.items()}
        return trouble, {**numbers, "pate_calls_refused_total": self._num_refused, **ages}

    def end(self, seconds: float = 10.0) -> tuple[str, ...]:
        """Says that the run is over; waits until all heard it who asked before, or so long.

        Late callers hear it until the server stops. May be called again to wait longer.

        Returns:
            The names of those that have not heard it.
        """
        with self._ended:
            self._is_over = True
            self._ended.wait_for(lambda: not self._untold, seconds)
            return tuple(sorted(self._untold))

    def stop(self, grace: float = 1.0) -> None:
        """Stops: no new calls, running ones have so many seconds."""
        self._server.stop(grace).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)
