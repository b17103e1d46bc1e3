"""Shared training over a network: messages, the server's service, and the client's connection."""

import dataclasses
import functools
import logging
import math
import pathlib
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks
from pate_tf.net.calls import Caller, Connection, Service, TlsServer, with_retries
from pate_tf.net.credentials import Limits, TlsFiles
from pate_tf.selective_sgd.run_state import ROUND, DurableRun, LedgerFacts
from pate_tf.selective_sgd.server import FloatArray, Parameters, ParameterServer, Upload
from pate_tf.selective_sgd.training_settings import Terms

SERVICE: Final = "pate_tf.selective_sgd.v2.ParameterServer"
_log = logging.getLogger(__name__)
WAIT_SECONDS: Final = 20.0  # maximum time that the server holds a call until its turn

# The first entry of each request is the identifier of the run. The second entry of a join request
# contains the facts of a participant's ledger, or None in runs without privacy.
JoinRequest = tuple[bytes, LedgerFacts | None]
# The second entry of a pull request is the number of the requested round. For the final parameters,
# it is the total number of rounds.
PullRequest = tuple[bytes, int]
# The other entries of a push request describe an upload: its round, its version, the ascending
# indices of the changed parameters (None for all parameters), and the changes.
PushRequest = tuple[bytes, int, int, npt.NDArray[np.uint32] | None, FloatArray]


class ParameterService:
    """Sends parameters to participants and accepts their uploads when it is their turn.

    Callers are identified by their certificates. This class is thread-safe.

    Args:
        server: the parameter server, which applies uploads.
        terms: terms of the run.
        ledgers: path of a file in `sensitive/` that stores the facts that participants report about
            their ledgers. In runs with privacy, a participant's uploads are applied only after the
            participant has reported these facts.

    Attributes:
        facts: maps each participant's name to the facts that it reported about its ledger. They do
            not include later charges.
        called: names of the participants that have called this process.
        fetched: names of the participants that have fetched the final parameters.
    """

    def __init__(self, server: ParameterServer, terms: Terms, *, ledgers: pathlib.Path) -> None:
        self._server = server
        self._terms = terms
        self._ledgers = ledgers
        self._changed = threading.Condition()
        self.called: set[str] = set()
        self.fetched: set[str] = set()
        stored = artifacts.read_json(ledgers) if ledgers.exists() else {}
        self.facts = {name: LedgerFacts(**fields) for name, fields in stored.items()}

    def listen(self, address: str, files: TlsFiles) -> TlsServer:
        """Starts and returns a server that accepts calls from participants on the roster.

        Args:
            address: `host:port`; with port 0, the system chooses a free port.
            files: files with the certificate and key of the server, and the authority's
                certificate.

        Raises:
            ValueError: if the server can't listen on the address.
            OSError: if a file can't be read.
        """
        service = Service(
            name=SERVICE,
            callers=self._terms.names,
            methods={
                "Join": (JoinRequest, self.join),
                "Pull": (PullRequest, self.pull),
                "Push": (PushRequest, self.push),
            },
        )
        limits = message_limits(self._server.num_parameters)
        return TlsServer(address, files=files, services=[service], limits=limits)

    def missing(self) -> set[str]:
        """Returns the names of participants for which the server waits; empty after training.

        The server waits for all participants that have rounds left and have not called this process
        yet. If all of them have called, the server waits for the participant whose turn is next;
        with the protocol "asynchronous", it waits for all participants that have rounds left.
        """
        state = self._server.state
        settings = self._terms.settings
        last = settings.rounds - 1
        named = zip(self._terms.names, state.rounds, strict=True)
        left = {name for name, done in named if done < last}
        absent = left - self.called
        if absent or not left or settings.protocol == "asynchronous":
            return absent or left
        return {self._terms.names[int(state.version) % settings.num_participants]}

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> None:
        """Waits until a condition is true, at most `seconds`; checks it after every call."""
        with self._changed:
            self._changed.wait_for(until, seconds)

    def join(self, request: JoinRequest, caller: Caller) -> int:
        """Durably stores the facts of the caller's ledger; returns the number of parameters.

        The server can't verify these facts. Only an auditor with access to the ledger can verify
        them.
        """
        run, facts = request
        self._number(caller, run)
        delta = self._terms.settings.delta
        if facts is not None:
            if facts.delta != delta:
                raise ValueError(f"the ledger must have delta {delta}, as in the roster")
            with self._changed:
                all_facts = {**self.facts, caller.name: facts}
                fields = {name: dataclasses.asdict(each) for name, each in all_facts.items()}
                artifacts.write_json(self._ledgers, fields, private=True)
                self.facts = all_facts
        return self._server.num_parameters

    def pull(self, request: PullRequest, caller: Caller) -> Parameters | None:
        """Returns the parameters when it is the caller's turn, or None after a timeout."""
        run, round_number = request
        number = self._number(caller, run)
        look = functools.partial(self._server.pull, number, round_number)
        parameters = caller.wait_for(look, self._changed)
        if parameters is not None and round_number == self._terms.settings.rounds:
            with self._changed:
                self.fetched.add(caller.name)
                self._changed.notify_all()
        return parameters

    def push(self, request: PushRequest, caller: Caller) -> bool | None:
        """Applies the caller's upload once, durably.

        Returns True as soon as the upload is applied, or None if the caller's turn did not come
        before a timeout.
        """
        run, round_number, version, part, values = request
        number = self._number(caller, run)
        if self._terms.settings.is_noisy and caller.name not in self.facts:
            raise ValueError("the ledger of this participant was not charged for its uploads")
        indices = np.arange(self._server.num_parameters) if part is None else part
        upload = Upload(
            participant=number,
            round=round_number,
            version=version,
            indices=indices.astype(np.int64),
            values=values,
        )

        def look() -> bool | None:
            is_applied = self._server.push(upload)
            self._changed.notify_all()
            return is_applied or None

        is_applied = caller.wait_for(look, self._changed)
        gamma = self._terms.settings.gamma
        if is_applied and gamma is not None and (np.abs(values) == np.float32(gamma)).any():
            _log.warning("an upload of %s was clipped to gamma %g", caller.name, gamma)
        return is_applied

    def _number(self, caller: Caller, run: bytes) -> int:
        """Checks that the caller has the same roster; returns the caller's participant number."""
        if run != self._terms.run_id:
            raise ValueError("the caller has a different roster: copy one file to all participants")
        number = self._terms.number(caller.name)
        with self._changed:
            self.called.add(caller.name)
            self._changed.notify_all()
        return number


def message_limits(num_parameters: int) -> Limits:
    """Returns message limits that are just large enough for uploads and for all parameters."""
    return Limits(message_bytes=2**16 + 12 * num_parameters)


class RemoteServer(Connection):
    """A participant's connection to its parameter server.

    Participants open connections, but never accept connections. A call is repeated until the server
    can be reached and it is the participant's turn. An upload is stored before it is sent, so a
    participant that was killed at any point sends exactly the same numbers again, and the server
    applies them only once. Noise is never drawn again for an upload that may have been sent.

    Args:
        address: `host:port` of the server.
        terms: terms of the run.
        files: files with the certificate and key of the participant, and the authority's
            certificate.
        num_parameters: number of parameters of the model.
        run: object that stores the last upload in a folder.
        wait_seconds: maximum time in seconds for which the server holds a call while it waits for
            the participant's turn.
        give_up_after: number of seconds without a connection after which a call raises
            ConnectionError.

    Raises:
        OSError: if a file can't be read.
    """

    def __init__(
        self,
        address: str,
        terms: Terms,
        files: TlsFiles,
        num_parameters: int,
        run: DurableRun,
        *,
        wait_seconds: float = WAIT_SECONDS,
        give_up_after: float = math.inf,
    ) -> None:
        limits = message_limits(num_parameters)
        super().__init__(address, service=SERVICE, files=files, limits=limits)
        self._terms = terms
        self._num_parameters = num_parameters
        self._run = run
        self._wait_seconds = wait_seconds
        self._give_up_after = give_up_after

    def join(self, facts: LedgerFacts | None = None) -> None:
        """Checks that the server has the same terms, and reports the facts of the ledger.

        Args:
            facts: facts of this participant's ledger. In runs with privacy, the server accepts no
                upload before it has received these facts.

        Raises:
            PermissionError: if this participant is not on the server's roster.
            ValueError: if the server has different terms.
        """
        request = (self._terms.run_id, facts)
        if self._until_answered("Join", request, int) != self._num_parameters:
            raise ValueError(f"the server's model does not have {self._num_parameters} parameters")

    def pull(self, participant: int, round_number: int) -> Parameters:
        """Waits for this participant's turn, and returns the parameters.

        Raises:
            PermissionError: if this participant is not on the server's roster.
            ValueError: if the server refuses the request.
        """
        del participant  # The server identifies the participant by its certificate.
        request = (self._terms.run_id, round_number)
        parameters: Parameters = self._until_answered("Pull", request, Parameters | None)
        checks.shape([self._num_parameters], parameters=parameters.values)
        return parameters

    def push(self, upload: Upload) -> bool:
        """Stores an upload, and sends it repeatedly until the server applies it.

        Raises:
            LedgerError: if a copy of this run was resumed elsewhere. In this case, nothing is sent.
            PermissionError: if this participant is not on the server's roster.
            ValueError: if the server refuses the upload.
        """
        stored = {name: np.asarray(value) for name, value in vars(upload).items()}
        self._run.save({**stored, ROUND: np.array(upload.round + 1)})
        self._push(upload)
        return True

    def push_again(self) -> None:
        """Sends the last stored upload again, if there is any. Raises the same errors as `push`."""
        saved = dict(self._run.saved)
        if ROUND in saved:
            numbers = {name: int(saved[name]) for name in ("participant", "round", "version")}
            self._push(Upload(**numbers, indices=saved["indices"], values=saved["values"]))

    def _push(self, upload: Upload) -> None:
        is_part = len(upload.indices) < self._num_parameters
        indices = upload.indices.astype(np.uint32) if is_part else None
        run_id = self._terms.run_id
        request = run_id, upload.round, upload.version, indices, upload.values
        self._until_answered("Push", request, bool | None)
        _log.info("round %d of %d uploaded", upload.round + 1, self._terms.settings.rounds)

    def _until_answered(self, method: str, request: object, kind: Any) -> Any:
        """Repeats a call until the reply is not None; pauses while there is no connection."""
        reply: Any = None

        def step() -> bool:
            nonlocal reply
            reply = self.call(method, request, kind, wait_seconds=self._wait_seconds)
            return True

        with_retries(step, until=lambda: reply is not None, give_up_after=self._give_up_after)
        return reply
