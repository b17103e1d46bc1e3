"""Shared training over gRPC: messages, the server's service, a participant's connection."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import grpc
import numpy as np

from pate_tf.core import artifacts
from pate_tf.net import arrays
from pate_tf.net.channel import CALL_SECONDS, call, open_channel
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles, caller_name
from pate_tf.net.server import Server as TlsServer
from pate_tf.selective_sgd import parameters_pb2 as wire
from pate_tf.selective_sgd import parameters_pb2_grpc
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.run_state import LedgerFacts
from pate_tf.selective_sgd.server import EARLY, OK, SAME, Parameters, Server
from pate_tf.selective_sgd.upload import HEADER, FloatArray, RefusedUploadError

_REQUIRED = ("epsilon", "delta", "secure_noise", "was_reset")
_OPTIONAL = ("num_records", "epsilon_all_ensembles", "delta_all_ensembles", "num_ledgers")
_DIGEST = re.compile("[0-9a-f]{64}")


def parameters_to_wire(parameters: Parameters, num_parameters: int) -> wire.Parameters:
    """Returns parameters as a message; all of them without indices."""
    message = wire.Parameters(
        version=parameters.version, values=arrays.pack(parameters.values.astype(np.float32))
    )
    if len(parameters.indices) < num_parameters:
        message.indices.CopyFrom(arrays.pack(parameters.indices.astype(np.uint32)))
    return message


def parameters_of_wire(message: wire.Parameters, num_parameters: int) -> Parameters:
    """Returns the parameters of a message.

    Raises:
      ValueError: if it has none of such a model.
    """
    values = arrays.unpack(message.values, "values", dtypes=("<f4",))
    indices = np.arange(num_parameters)
    if message.HasField("indices"):
        indices = arrays.unpack(message.indices, "indices", dtypes=("<u4",)).astype(np.int64)
    if values.ndim != 1 or indices.shape != values.shape:
        raise ValueError("values: expected one for each parameter, got another number")
    if indices[-1] >= num_parameters or (np.diff(indices) <= 0).any():
        raise ValueError(f"indices: expected ascending ones below {num_parameters}, got others")
    return Parameters(version=message.version, indices=indices, values=values)


def facts_to_wire(facts: LedgerFacts) -> wire.LedgerFacts:
    """Returns what a participant's ledger says as a message; what is None is left out."""
    fields = dataclasses.asdict(facts)
    sequence, digest = fields.pop("ledger_head")
    return wire.LedgerFacts(ledger_sequence=sequence, ledger_digest=digest, **fields)


def facts_of_wire(message: wire.LedgerFacts, delta: float) -> LedgerFacts:
    """Returns what a participant's ledger says. Only its auditors can check it.

    Raises:
      ValueError: if a value is out of its range, or it holds at another delta than that.
    """
    fields: dict[str, Any] = {name: getattr(message, name) for name in _REQUIRED}
    fields |= {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    head = (message.ledger_sequence, message.ledger_digest)
    facts = LedgerFacts(ledger_head=head, **fields)
    if facts.delta != delta:
        raise ValueError(f"ledger: expected delta {delta}, got another")
    for epsilon in (facts.epsilon, facts.epsilon_all_ensembles):
        if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0.0):
            raise ValueError("ledger: expected a finite epsilon above 0, got another")
    of_all = facts.delta_all_ensembles
    if of_all is not None and not 0.0 < of_all < 1.0:
        raise ValueError("ledger: expected delta between 0 and 1, got another")
    if (facts.epsilon_all_ensembles is None) != (of_all is None):
        raise ValueError("ledger: expected epsilon and delta of all ensembles, got one of them")
    if facts.ledger_head[0] < 1 or not _DIGEST.fullmatch(facts.ledger_head[1]):
        raise ValueError("ledger: expected the head of a ledger, got something else")
    if facts.num_records is not None and facts.num_records < 1:
        raise ValueError("ledger: expected at least one record, got none")
    return facts


class ReceivedFacts:
    """What participants say of their ledgers, in one file; their ledgers may charge more later.

    Args:
      path: of the file, below `sensitive/`.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        stored = artifacts.read_json(path) if path.exists() else {}
        self.by_name = {
            name: LedgerFacts(**{**fields, "ledger_head": tuple(fields["ledger_head"])})
            for name, fields in stored.items()
        }

    def store(self, name: str, facts: LedgerFacts) -> None:
        """Stores what a participant says now, durably.

        Raises:
          OSError: if it can't be written.
        """
        if self.by_name.get(name) != facts:
            found = {**self.by_name, name: facts}
            fields = {name: dataclasses.asdict(one) for name, one in found.items()}
            artifacts.write_json(self._path, fields, private=True)
            self.by_name = found


SERVICE: Final = "pate_tf.selective_sgd.v1.ParameterServer"
_ANSWERS: Final = {OK: wire.OK, SAME: wire.SAME, EARLY: wire.EARLY}
_LOOK_SECONDS: Final = 1.0
_PLACE_OF_PARTICIPANT: Final = 3

Found = TypeVar("Found")


class ParameterService(parameters_pb2_grpc.ParameterServerServicer):
    """Hands parameters out in turn and takes uploads. The caller is who its certificate names.

    Safe to use from several threads.

    Args:
      server: applies uploads.
      roster: terms of the run.
      ledgers: stores what participants' ledgers say; None without privacy.
      limits: how long a call waits for its turn.
    """

    def __init__(
        self,
        server: Server,
        roster: Roster,
        *,
        ledgers: ReceivedFacts | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._server, self._roster = server, roster
        self._ledgers = ledgers
        self._limits = limits or Limits()
        self._changed = threading.Condition()
        self._fetched: set[str] = set()
        self._is_closed = False

    def add_to(self, server: Any) -> None:
        """Adds the service to a gRPC server."""
        parameters_pb2_grpc.add_ParameterServerServicer_to_server(self, server)

    def close(self) -> None:
        """Takes nothing any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_until_over(self, seconds: float) -> bool:
        """Waits at most so many seconds; returns whether all uploaded in every round."""
        with self._changed:
            return self._changed.wait_for(lambda: self._server.is_over, seconds)

    def wait_until_fetched(self, seconds: float) -> frozenset[str]:
        """Waits until all have the final parameters; returns the names of those that do."""
        names = set(self._roster.names)
        with self._changed:
            self._changed.wait_for(lambda: self._fetched >= names, seconds)
            return frozenset(self._fetched)

    def Join(self, request: wire.JoinRequest, context: grpc.ServicerContext) -> wire.JoinReply:  # noqa: N802
        """Returns the parameters where all begin."""
        name = self._caller(context)
        self._check_run(request.run)
        if self._ledgers is not None and request.HasField("ledger"):
            facts = facts_of_wire(request.ledger, self._roster.privacy.delta)
            with self._changed:
                self._ledgers.store(name, facts)
        return wire.JoinReply(values=arrays.pack(self._server.initial))

    def Pull(self, request: wire.PullRequest, context: grpc.ServicerContext) -> wire.PullReply:  # noqa: N802
        """Returns the parameters of the caller's turn, or none after a while."""
        name = self._caller(context)
        number = self._roster.number(name)
        self._check_run(request.run)
        server = self._server
        with self._waiting(context, request.wait_seconds) as until:
            found = until(lambda: server.pull_in_turn(number, request.round))
            if found is None:
                return wire.PullReply()
            if request.round == self._roster.settings.rounds:
                self._fetched.add(name)
                self._changed.notify_all()
        return wire.PullReply(parameters=parameters_to_wire(found, server.num_parameters))

    def Push(self, request: wire.PushRequest, context: grpc.ServicerContext) -> wire.PushReply:  # noqa: N802
        """Applies the caller's upload, once; durable before it answers."""
        name, content = self._caller(context), request.upload
        if len(content) >= HEADER.size:
            claimed = HEADER.unpack_from(content)[_PLACE_OF_PARTICIPANT]
            if claimed != self._roster.number(name) and claimed < len(self._roster.names):
                raise PermissionError("upload: expected one of the certificate's participant")
        with self._waiting(context, request.wait_seconds) as until:
            if self._ledgers is not None and name not in self._ledgers.by_name:
                raise RefusedUploadError("upload: expected one that was charged, got another")

            def push() -> str | None:
                answer = self._server.push(content)
                return None if answer == EARLY else answer

            answer = until(push) or EARLY
            self._changed.notify_all()
        return wire.PushReply(answer=_ANSWERS[answer])

    def _caller(self, context: grpc.ServicerContext) -> str:
        name = caller_name(context)
        self._roster.number(name)  # it is on the roster
        return name

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
) -> TlsServer:
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
    return TlsServer(
        address,
        files=files,
        services={SERVICE: service.add_to},
        rosters={SERVICE: roster.names},
        limits=limits,
    )


class ParameterConnection:
    """Connects a participant to a parameter server. It dials, and can't be dialled.

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

    def join(self, facts: LedgerFacts | None = None) -> FloatArray:
        """Returns the parameters where all begin, float32 `[num_parameters]`.

        Args:
          facts: what this participant's ledger says; with privacy the server takes no upload
            before.

        Raises:
          ConnectionError: if the server can't be reached, or sends something else.
          PermissionError: if it does not know this participant.
          ValueError: if it has other terms.
        """
        ledger = None if facts is None else facts_to_wire(facts)
        reply = self._call(self._stub.Join, wire.JoinRequest(run=self._run, ledger=ledger))
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
          round_number: from 0; the number of rounds for the final parameters.

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
