"""One participant that trains with others elsewhere: its own records, its own ledger, its turns."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.accounting.noisy_training import Training
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.net.retries import with_retries
from pate_tf.release.noise import NoiseSource
from pate_tf.selective_sgd.models import FlatView
from pate_tf.selective_sgd.private_training import training_with
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.run_state import LedgerFacts
from pate_tf.selective_sgd.server import OK, Parameters, Server
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import RoundStatistics
from pate_tf.selective_sgd.upload import FloatArray

if TYPE_CHECKING:  # gRPC comes with an extra
    from pate_tf.selective_sgd.network import ParameterConnection

UPLOAD = "upload"
Answer = TypeVar("Answer")


class ServerProxy(Server):
    """Takes the place of the server in a participant's process; see `JoinedParticipant.take_turn`.

    Attributes:
        pushed: the upload that is to go to the server.
    """

    pushed: bytes = b""
    _received: Parameters | None = None

    def receive(self, parameters: Parameters) -> None:
        """Takes the parameters that came from the server."""
        self._received, self.version = parameters, parameters.version
        self.values = self.values.copy()
        self.values[parameters.indices] = parameters.values

    def pull(self, participant: int) -> Parameters:
        """Returns the parameters that came from the server."""
        del participant
        if self._received is None:
            raise ValueError("participant: expected parameters before its turn, got none")
        return self._received

    def push(self, content: bytes) -> str:
        """Holds an upload for the server."""
        self.pushed = content
        return OK


class JoinedParticipant:
    """SENSITIVE: a participant's records, local model, optimizer and noise.

    What it does in a turn is what it does where all train in one process: the code is the same,
    with one participant in it.

    Args:
        roster: terms of the run.
        name: of the participant, on the roster.
        model: a Keras model from raw inputs to logits.
        share: its records.
        initial: float32 `[num_parameters]`, where all begin.
        begin: charges its ledger, see `ChargedTraining`; None without privacy.
        noise: draws records and noise.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
    """

    def __init__(
        self,
        roster: Roster,
        name: str,
        model: keras.Model,
        share: PrivateExamples,
        *,
        initial: FloatArray,
        begin: Callable[[Training], LedgerFacts] | None = None,
        noise: NoiseSource,
    ) -> None:
        view = FlatView(model)
        if initial.shape != (view.num_parameters,):
            raise ValueError(
                f"model: expected {len(initial)} parameters, as the server has, got "
                f"{view.num_parameters}"
            )
        view.assign(initial)
        settings = single_participant_settings(roster)
        self._training = training_with(
            roster.privacy,
            settings,
            model,
            [share],
            begin=begin,
            noise=noise,
            holders=roster.holders,
        )
        self._training.first_number = roster.number(name)
        self._server = ServerProxy(settings, initial, run=roster.run_id)
        self._training.server = self._server
        self._rounds = roster.settings.rounds

    @property
    def round(self) -> int:
        """The round that comes next, from 0."""
        return self._training.round

    def take_turn(self, received: Parameters) -> RoundStatistics:
        """Trains on what came from the server; the upload is in the state.

        Raises:
            ValueError: if, without noise, the loss is not finite.
        """
        self._server.receive(received)
        return self._training.run_round()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns all that the participant goes on from, the last upload with it."""
        upload = np.frombuffer(self._server.pushed, np.uint8)
        return {**self._training.state(), UPLOAD: upload}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from what `state` returned.

        Raises:
            ValueError: if it is not the state of such a participant.
        """
        self._training.restore(arrays)
        self._server.pushed = arrays[UPLOAD].tobytes()

    def take_part(
        self,
        connection: "ParameterConnection",
        *,
        save: Callable[[Mapping[str, npt.NDArray[Any]]], None],
        sleep: Callable[[float], None] = time.sleep,
        on_event: Callable[[str], None] = lambda event: None,
        on_round: Callable[[RoundStatistics], object] = lambda statistics: None,
    ) -> Parameters:
        """Takes all turns that are left, and returns the final parameters of all.

        What a turn came to is saved before anything of it leaves. Killed at any point, the
        participant sends the very same bytes again, and the server applies them once; noise is
        never drawn anew for what may have left.

        Args:
            connection: to the server.
            save: makes a state durable, and notes its round in the ledger (`RunState.save`).
            sleep: waits for so many seconds.
            on_event: called with what happens, in words without anything sensitive.
            on_round: called with what each turn was like. SENSITIVE.

        Raises:
            PermissionError: if the server does not know the participant.
            ValueError: if the server refuses an upload, or training fails.
        """
        until = functools.partial(until_answered, sleep=sleep, on_event=on_event)

        def push() -> bool | None:
            return connection.push(self._server.pushed) or None

        if self._server.pushed:
            until(push)
        while self.round < self._rounds:
            statistics = self.take_turn(until(functools.partial(connection.pull, self.round)))
            save(self.state())
            on_round(statistics)
            until(push)
            num_bytes = len(self._server.pushed)
            on_event(f"round {self.round} of {self._rounds}: {num_bytes:,} bytes uploaded")
        on_event("all rounds are done; waiting for the others")
        return until(functools.partial(connection.pull, self._rounds))


def single_participant_settings(roster: Roster) -> Settings:
    """Returns the settings of a participant that trains in a process of its own."""
    is_synchronous = roster.settings.protocol == "synchronous"
    return dataclasses.replace(
        roster.settings,
        num_participants=1,
        # It downloads at the beginning of its turn; when that is, the server knows.
        protocol="synchronous" if is_synchronous else "round_robin",
    )


def until_answered(
    ask: Callable[[], Answer | None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    on_event: Callable[[str], None] = lambda event: None,
) -> Answer:
    """Returns the answer, asking again while it is None; after waits if no connection is made."""
    answers: list[Answer] = []

    def step() -> bool:
        answer = ask()
        answers.extend([] if answer is None else [answer])
        return True

    with_retries(step, until=lambda: bool(answers), sleep=sleep, on_event=on_event)
    return answers[0]
