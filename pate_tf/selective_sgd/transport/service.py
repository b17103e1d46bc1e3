"""A parameter server as its participants see it, over gRPC."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import grpc

from pate_tf.selective_sgd.declared import Declarations
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.transport import parameters_pb2 as wire
from pate_tf.selective_sgd.transport import parameters_pb2_grpc
from pate_tf.selective_sgd.transport.conversions import declared_of_wire, parameters_to_wire
from pate_tf.selective_sgd.turn_server import EARLY, TurnServer
from pate_tf.selective_sgd.upload import HEADER, RefusedUploadError
from pate_tf.transport import arrays
from pate_tf.transport.credentials import TlsFiles, caller_name
from pate_tf.transport.limits import Limits
from pate_tf.transport.server import Server

SERVICE: Final = "pate_tf.selective_sgd.v1.ParameterServer"
_ANSWERS: Final = {"ok": wire.OK, "same": wire.SAME, EARLY: wire.EARLY}
_LOOK_SECONDS: Final = 1.0
_PLACE_OF_PARTICIPANT: Final = 3

Found = TypeVar("Found")


class ParameterService(parameters_pb2_grpc.ParameterServerServicer):
    """Hands parameters out in turn and takes uploads. The caller is who its certificate names.

    Safe to use from several threads.

    Args:
      server: applies uploads.
      roster: terms of the run.
      declarations: where what participants paid is kept; None without privacy.
      limits: how long a call waits for its turn.
    """

    def __init__(
        self,
        server: TurnServer,
        roster: Roster,
        *,
        declarations: Declarations | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._server, self._roster = server, roster
        self._declarations = declarations
        self._limits = limits or Limits()
        self._changed = threading.Condition()
        self._fetched: set[str] = set()
        self._is_closed = False

    def add_to(self, server: Any) -> None:
        """Adds the service to a gRPC server."""
        parameters_pb2_grpc.add_ParameterServerServicer_to_server(self, server)

    def close(self) -> None:
        """Takes nothing any more, and closes the journal."""
        with self._changed:
            self._is_closed = True
            self._server.close()
            self._changed.notify_all()

    def wait_until_over(self, seconds: float) -> bool:
        """Waits at most so many seconds; returns whether everybody uploaded in every round."""
        with self._changed:
            return self._changed.wait_for(lambda: self._server.is_over, seconds)

    def wait_until_fetched(self, seconds: float) -> frozenset[str]:
        """Waits until everybody has what came of all; returns who has it."""
        names = set(self._roster.names)
        with self._changed:
            self._changed.wait_for(lambda: self._fetched >= names, seconds)
            return frozenset(self._fetched)

    def Join(self, request: wire.JoinRequest, context: grpc.ServicerContext) -> wire.JoinReply:  # noqa: N802
        """Returns the parameters where all begin."""
        number = self._caller(context)
        self._check_run(request.run)
        if self._declarations is not None and request.HasField("paid"):
            declared = declared_of_wire(request.paid)
            if declared.delta != self._roster.privacy.delta:
                raise ValueError(f"paid: expected delta {self._roster.privacy.delta}, got another")
            with self._changed:
                self._declarations.keep(number, declared)
        return wire.JoinReply(values=arrays.pack(self._server.initial))

    def Pull(self, request: wire.PullRequest, context: grpc.ServicerContext) -> wire.PullReply:  # noqa: N802
        """Returns the parameters of the caller's turn, or none after a while."""
        number = self._caller(context)
        self._check_run(request.run)
        server = self._server
        with self._waiting(context, request.wait_seconds) as until:
            found = until(lambda: server.parameters_for(number, request.round))
            if found is None:
                return wire.PullReply()
            if request.round == self._roster.settings.rounds:
                self._fetched.add(caller_name(context))
                self._changed.notify_all()
        return wire.PullReply(parameters=parameters_to_wire(found, server.num_parameters))

    def Push(self, request: wire.PushRequest, context: grpc.ServicerContext) -> wire.PushReply:  # noqa: N802
        """Applies the caller's upload, once; durable before it answers."""
        number = self._caller(context)
        content = request.upload
        if len(content) >= HEADER.size:
            claimed = HEADER.unpack_from(content)[_PLACE_OF_PARTICIPANT]
            if claimed != number and claimed < len(self._roster.names):
                raise PermissionError("upload: expected one of the certificate's participant")
        with self._waiting(context, request.wait_seconds) as until:
            if self._declarations is not None and self._declarations.of(number) is None:
                raise RefusedUploadError("upload: expected one that was paid for, got another")

            def push() -> str | None:
                answer = self._server.push_in_turn(content)
                return None if answer == EARLY else answer

            answer = until(push) or EARLY
            self._changed.notify_all()
        return wire.PushReply(answer=_ANSWERS[answer])

    def _caller(self, context: grpc.ServicerContext) -> int:
        return self._roster.number(caller_name(context))

    def _check_run(self, run: bytes) -> None:
        if run != self._roster.run_id:
            raise ValueError(
                "run: expected that of this server's roster, got another; the roster must be the "
                "same file everywhere"
            )

    @contextlib.contextmanager
    def _waiting(
        self, context: grpc.ServicerContext, asked: float
    ) -> Iterator[Callable[[Callable[[], Found | None]], Found | None]]:
        """Looks for something under the lock until it is there, a while at most."""
        seconds = min(asked, self._limits.longest_wait) if asked > 0.0 else 0.0
        end = time.monotonic() + seconds

        def until(look: Callable[[], Found | None]) -> Found | None:
            while True:
                if self._is_closed:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the server ends")
                found = look()
                left = end - time.monotonic()
                if found is not None or not left > 0.0 or not context.is_active():
                    return found
                self._changed.wait(min(_LOOK_SECONDS, left))

        with self._changed:
            yield until


def message_limits(num_parameters: int) -> Limits:
    """Returns limits that an upload or all parameters of a model fit into, and little more."""
    return Limits(message_bytes=2**16 + 12 * num_parameters)


def serve_parameters(
    address: str,
    service: ParameterService,
    *,
    files: TlsFiles,
    roster: Roster,
    limits: Limits,
) -> Server:
    """Returns a running parameter server.

    Args:
      address: `host:port`; port 0 for any free one.
      service: what participants call.
      files: certificate and key of the server, and the authority.
      roster: whose names alone get in.
      limits: of every caller.

    Raises:
      ValueError: if the address can't be listened on.
      OSError: if a file can't be read.
    """
    return Server(
        address,
        files=files,
        services={SERVICE: service.add_to},
        rosters={SERVICE: roster.names},
        limits=limits,
    )
