"""Shared training over gRPC: messages, the server's service, a participant's connection."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, validation
from pate_tf.net.client import Connection
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles
from pate_tf.net.service import Caller, Service, TlsServer
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.run_state import LedgerFacts
from pate_tf.selective_sgd.server import EARLY, Parameters, Server
from pate_tf.selective_sgd.upload import HEADER, FloatArray, RefusedUploadError

SERVICE: Final = "pate_tf.selective_sgd.v2.ParameterServer"
_PLACE_OF_PARTICIPANT: Final = 3
_DIGEST = re.compile("[0-9a-f]{64}")

Answer = TypeVar("Answer")


@dataclasses.dataclass(frozen=True)
class JoinRequest:
    """What a participant's ledger says; with privacy no upload is applied before."""

    run: bytes
    ledger: LedgerFacts | None = None


@dataclasses.dataclass(frozen=True)
class PullRequest:
    """Asks for the parameters of the caller's turn."""

    run: bytes
    round: int


@dataclasses.dataclass(frozen=True)
class PulledParameters:
    """Parameters on their way; all of them without indices."""

    version: int
    values: FloatArray
    indices: npt.NDArray[np.uint32] | None = None

    def parameters(self, num_parameters: int) -> Parameters:
        """Returns the parameters; raises ValueError unless they are of such a model."""
        indices = np.arange(num_parameters)
        if self.indices is not None:
            indices = self.indices.astype(np.int64)
        if self.values.ndim != 1 or indices.shape != self.values.shape:
            raise ValueError("values: expected one for each parameter, got another number")
        if indices[-1] >= num_parameters or (np.diff(indices) <= 0).any():
            raise ValueError(f"indices: expected ascending ones below {num_parameters}, got others")
        return Parameters(version=self.version, indices=indices, values=self.values)


def check_facts(facts: LedgerFacts, delta: float) -> None:
    """Checks what a participant says of its ledger; only its auditors can check more.

    Raises ValueError if a value is out of its range, or it holds at another delta than that.
    """
    if facts.delta != delta:
        raise ValueError(f"delta: expected {delta} of the ledger, got another")
    sequence, digest = facts.ledger_head
    validation.positive(epsilon=facts.epsilon)
    validation.whole(1, ledger_sequence=sequence)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("ledger_digest: expected the head of a ledger, got something else")
    if (facts.epsilon_source is None) != (facts.delta_source is None):
        raise ValueError("delta_source: expected epsilon and delta, got one of them")
    if facts.epsilon_source is not None:
        validation.positive(epsilon_source=facts.epsilon_source)
        validation.between(0, 1, ends="[)", delta_source=facts.delta_source)
    numbers = {"num_records": facts.num_records, "num_ledgers": facts.num_ledgers}
    validation.whole(1, **{name: value for name, value in numbers.items() if value is not None})


class ParameterService:
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
        methods: dict[str, Any] = {
            "Join": (JoinRequest, self.join),
            "Pull": (PullRequest, self.pull),
            "Push": (bytes, self.push),
        }
        service = Service(name=SERVICE, callers=self._roster.names, methods=methods)
        return TlsServer(address, files=files, services=[service], limits=self._limits)

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

    def join(self, request: JoinRequest, caller: Caller) -> FloatArray:
        """Returns the parameters where all begin."""
        self._number(caller, request.run)
        if self._ledgers is not None and request.ledger is not None:
            check_facts(request.ledger, self._roster.privacy.delta)
            with self._changed:
                if self.facts.get(caller.name) != request.ledger:
                    facts = {**self.facts, caller.name: request.ledger}
                    fields = {name: dataclasses.asdict(each) for name, each in facts.items()}
                    artifacts.write_json(self._ledgers, fields, private=True)
                    self.facts = facts
        return self._server.initial

    def pull(self, request: PullRequest, caller: Caller) -> PulledParameters | None:
        """Returns the parameters of the caller's turn, or None after a while."""
        number = self._number(caller, request.run)

        def look() -> Parameters | None:
            parameters = self._server.pull_in_turn(number, request.round)
            if parameters is not None and request.round == self._roster.settings.rounds:
                self._fetched.add(caller.name)
                self._changed.notify_all()
            return parameters

        parameters = self._until(look, caller)
        if parameters is None:
            return None
        is_part = len(parameters.indices) < self._server.num_parameters
        return PulledParameters(
            version=parameters.version,
            values=parameters.values.astype(np.float32),
            indices=parameters.indices.astype(np.uint32) if is_part else None,
        )

    def push(self, upload: bytes, caller: Caller) -> bool:
        """Applies an upload, once and durably; returns whether it is, else others come first."""
        number = self._number(caller)
        if len(upload) >= HEADER.size:
            claimed = HEADER.unpack_from(upload)[_PLACE_OF_PARTICIPANT]
            if claimed != number and claimed < len(self._roster.names):
                raise PermissionError("upload: expected one of the certificate's participant")
        if self._ledgers is not None and caller.name not in self.facts:
            raise RefusedUploadError("upload: expected one that was charged, got another")

        def look() -> str | None:
            answer = self._server.push(upload)
            self._changed.notify_all()
            return None if answer == EARLY else answer

        return self._until(look, caller) is not None

    def _number(self, caller: Caller, run: bytes | None = None) -> int:
        """Returns the number of the caller, which has the roster of a run that it names."""
        if run not in (None, self._roster.run_id):
            raise ValueError(
                "run: expected that of this server's roster, got another; the roster must be the "
                "same file everywhere"
            )
        return self._roster.number(caller.name)

    def _until(self, look: Callable[[], Answer | None], caller: Caller) -> Answer | None:
        def look_unless_closed() -> Answer | None:
            if self._is_closed:
                raise ConnectionAbortedError("the server ends")
            return look()

        return caller.wait_for(look_unless_closed, self._changed)


def message_limits(num_parameters: int) -> Limits:
    """Returns limits that an upload or all parameters of a model fit into, and little more."""
    return Limits(message_bytes=2**16 + 12 * num_parameters)


class ParameterConnection(Connection):
    """Connects a participant to a parameter server.

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
        super().__init__(address, service=SERVICE, files=files, server=server, limits=limits)
        self._run, self._num_parameters, self._wait_seconds = run, num_parameters, wait_seconds

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
        values: FloatArray = self.call("Join", JoinRequest(self._run, facts), FloatArray)
        if values.shape != (self._num_parameters,):
            raise ValueError(
                f"model: expected {self._num_parameters} parameters, the server has another "
                f"number: its model is another one"
            )
        return np.array(values)

    def pull(self, round_number: int) -> Parameters | None:
        """Returns the parameters of this participant's turn; None if it has not come yet.

        Args:
            round_number: from 0; the number of rounds for the final parameters.

        Raises:
            ConnectionError: if the server can't be reached, or sends something else.
            PermissionError: if it does not know this participant.
            ValueError: if it refuses.
        """
        request = PullRequest(self._run, round_number)
        pulled = self.call(
            "Pull", request, PulledParameters | None, wait_seconds=self._wait_seconds
        )
        if pulled is None:
            return None
        try:
            return pulled.parameters(self._num_parameters)
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
        return bool(self.call("Push", content, bool, wait_seconds=self._wait_seconds))
