"""Shared training over gRPC: messages, the server's service, a participant's connection."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import numpy as np

from pate_tf.core import artifacts, validation
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
_OPTIONAL = ("num_records", "epsilon_source", "delta_source", "num_ledgers")
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

    def of(kind: str) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name.startswith(kind)}

    if message.delta != delta:
        raise ValueError(f"delta: expected {delta} of the ledger, got another")
    validation.positive(**of("epsilon"))
    validation.between(0, 1, ends="[)", **of("delta"))
    validation.whole(1, ledger_sequence=message.ledger_sequence, **of("num"))
    if len(of("epsilon")) != len(of("delta")):
        raise ValueError("delta_source: expected epsilon and delta, got one of them")
    if not _DIGEST.fullmatch(message.ledger_digest):
        raise ValueError("ledger_digest: expected the head of a ledger, got something else")
    head = (message.ledger_sequence, message.ledger_digest)
    return LedgerFacts(ledger_head=head, **fields)


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
        ledgers: file of what participants say of their ledgers, below `sensitive/`; with privacy no
            upload is applied before. None without privacy.
        limits: of every caller. Default: `message_limits`.

    Attributes:
        facts: what participants say of their ledgers, by name; they may charge more later.
    """

    def __init__(
        self,
        server: Server,
        roster: Roster,
        *,
        ledgers: pathlib.Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._server, self._roster, self._ledgers = server, roster, ledgers
        self._limits = limits or message_limits(server.num_parameters)
        self._changed = threading.Condition()
        self._fetched: set[str] = set()
        self._is_closed = False
        stored = artifacts.read_json(ledgers) if ledgers is not None and ledgers.exists() else {}
        self.facts = {
            name: LedgerFacts(**{**fields, "ledger_head": tuple(fields["ledger_head"])})
            for name, fields in stored.items()
        }

    def listen(self, address: str, files: TlsFiles) -> TlsServer:
        """Returns a running server, which only participants on the roster may call.

        Args:
            address: `host:port`; port 0 for any free one.
            files: certificate and key of the server, and the authority.

        Raises:
            ValueError: if the address can't be listened on.
            OSError: if a file can't be read.
        """
        add = functools.partial(parameters_pb2_grpc.add_ParameterServerServicer_to_server, self)
        names = self._roster.names
        return TlsServer(
            address,
            files=files,
            services={SERVICE: add},
            rosters={SERVICE: names},
            limits=self._limits,
        )

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
        name, _ = self._caller(context, request.run)
        if self._ledgers is not None and request.HasField("ledger"):
            facts = facts_of_wire(request.ledger, self._roster.privacy.delta)
            with self._changed:
                if self.facts.get(name) != facts:
                    found = {**self.facts, name: facts}
                    fields = {name: dataclasses.asdict(one) for name, one in found.items()}
                    artifacts.write_json(self._ledgers, fields, private=True)
                    self.facts = found
        return wire.JoinReply(values=arrays.pack(self._server.initial))

    def Pull(self, request: wire.PullRequest, context: grpc.ServicerContext) -> wire.PullReply:  # noqa: N802
        """Returns the parameters of the caller's turn, or none after a while."""
        name, number = self._caller(context, request.run)

        def pull() -> Parameters | None:
            found = self._server.pull_in_turn(number, request.round)
            if found is not None and request.round == self._roster.settings.rounds:
                self._fetched.add(name)
                self._changed.notify_all()
            return found

        found = self._until(pull, context, request.wait_seconds)
        if found is None:
            return wire.PullReply()
        return wire.PullReply(parameters=parameters_to_wire(found, self._server.num_parameters))

    def Push(self, request: wire.PushRequest, context: grpc.ServicerContext) -> wire.PushReply:  # noqa: N802
        """Applies the caller's upload, once; durable before it answers."""
        name, number = self._caller(context)
        if len(request.upload) >= HEADER.size:
            claimed = HEADER.unpack_from(request.upload)[_PLACE_OF_PARTICIPANT]
            if claimed != number and claimed < len(self._roster.names):
                raise PermissionError("upload: expected one of the certificate's participant")
        if self._ledgers is not None and name not in self.facts:
            raise RefusedUploadError("upload: expected one that was charged, got another")

        def push() -> str | None:
            answer = self._server.push(request.upload)
            self._changed.notify_all()
            return None if answer == EARLY else answer

        answer = self._until(push, context, request.wait_seconds)
        return wire.PushReply(answer=_ANSWERS[answer or EARLY])

    def _caller(self, context: grpc.ServicerContext, run: bytes | None = None) -> tuple[str, int]:
        """Returns name and number of the caller, which has the roster of a run that it names."""
        name = caller_name(context)
        if run not in (None, self._roster.run_id):
            raise ValueError(
                "run: expected that of this server's roster, got another; the roster must be the "
                "same file everywhere"
            )
        return name, self._roster.number(name)

    def _until(
        self, look: Callable[[], Found | None], context: grpc.ServicerContext, asked: float
    ) -> Found | None:
        """Returns what `look` finds under the lock, as soon as there is something; a while long."""
        end = time.monotonic() + min(asked, self._limits.longest_wait)
        with self._changed:
            while True:
                if self._is_closed:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the server ends")
                found = look()
                left = end - time.monotonic()
                if found is not None or not left > 0.0 or not context.is_active():
                    return found
                self._changed.wait(min(_LOOK_SECONDS, left))


def message_limits(num_parameters: int) -> Limits:
    """Returns limits that an upload or all parameters of a model fit into, and little more."""
    return Limits(message_bytes=2**16 + 12 * num_parameters)


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
