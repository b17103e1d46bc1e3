"""One participant that trains with others elsewhere: its own records, its own ledger, its turns."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.accounting.noisy_training import Training
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.net.retries import Backoff
from pate_tf.selective_sgd.models import FlatView, FloatArray
from pate_tf.selective_sgd.privacy import Payment
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.server import OK, Parameters, Server
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining

UPLOAD = "upload"
Found = TypeVar("Found")


class Line(Protocol):
    """What a participant needs of its parameter server."""

    def pull(self, round_number: int) -> Parameters | None:
        """Returns the parameters of its turn; None if it has not come yet.

        Raises:
          ConnectionError: if the server can't be reached; worth another try.
          PermissionError: if it does not know the participant.
          ValueError: if it refuses.
        """

    def push(self, content: bytes) -> bool:
        """Hands over an upload; returns whether it is applied. Errors as `pull`."""


class StandIn(Server):
    """Stands where the server would in one process: hands out what came, keeps what is to go."""

    pushed: bytes | None = None
    _given: Parameters | None = None

    def give(self, parameters: Parameters) -> None:
        """Takes what the server elsewhere gave."""
        self._given = parameters
        self.values[parameters.indices] = parameters.values
        self.version = parameters.version

    def pull(self, participant: int) -> Parameters:
        """Returns what was given."""
        del participant
        if self._given is None:
            raise ValueError("participant: expected parameters before its turn, got none")
        return self._given

    def push(self, content: bytes) -> str:
        """Keeps an upload."""
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
      pay: charges its ledger, see `PaidTraining`; None without privacy.
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
        pay: Callable[[Training], Payment] | None = None,
        noise: NoiseSource,
    ) -> None:
        if (pay is None) != (roster.privacy.kind == "none"):
            raise ValueError("pay: expected one with privacy, and none without")
        view = FlatView(model)
        if initial.shape != (view.num_parameters,):
            raise ValueError(
                f"model: expected {len(initial)} parameters, as the server has, got "
                f"{view.num_parameters}"
            )
        view.assign(initial, view.buffers())
        settings = alone(roster)
        self._training = (
            SharedTraining(settings, model, [share])
            if pay is None
            else noisy_training(
                settings,
                model,
                [share],
                privacy=roster.privacy,
                noise=noise,
                pay=pay,
                holders=roster.holders,
            )
        )
        self._training.first_number = roster.number(name)
        self._server = StandIn(settings, initial, run=roster.run_id)
        self._training.server = self._server
        self._rounds = roster.settings.rounds
        self._pending: bytes | None = None
        self._last: RoundStatistics | None = None

    @property
    def round(self) -> int:
        """The round that comes next, from 0."""
        return self._training.round

    def take_turn(self, given: Parameters) -> bytes:
        """Trains on what the server gave and returns the upload; the next round comes next.

        Raises:
          ValueError: if, without noise, the loss is not finite.
        """
        self._server.give(given)
        self._last = self._training.run_round()
        self._pending, self._server.pushed = self._server.pushed, None
        if self._pending is None:
            raise ValueError("participant: expected an upload in every round, got none")
        return self._pending

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns all that the participant goes on from, the last upload with it."""
        upload = np.frombuffer(self._pending or b"", np.uint8)
        return {**self._training.state(), UPLOAD: upload}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from what `state` returned.

        Raises:
          ValueError: if it is not the state of such a participant.
        """
        self._training.restore(arrays)
        self._pending = arrays[UPLOAD].tobytes() or None

    def take_part(
        self,
        line: Line,
        *,
        save: Callable[[Mapping[str, npt.NDArray[Any]]], None],
        sleep: Callable[[float], None] = time.sleep,
        on_event: Callable[[str], None] = lambda event: None,
        on_round: Callable[[RoundStatistics], object] = lambda statistics: None,
    ) -> Parameters:
        """Takes all turns that are left, and returns what came of all.

        What a turn came to is saved before anything of it leaves. Killed at any point, the
        participant sends the very same bytes again, and the server applies them once; noise is
        never drawn anew for what may have left.

        Args:
          line: to the server.
          save: makes a state durable, and notes its round in the ledger (`ChargedRun.note`).
          sleep: waits for so many seconds.
          on_event: told what happens, in words without anything sensitive.
          on_round: told what each turn was like. SENSITIVE.

        Raises:
          PermissionError: if the server does not know the participant.
          ValueError: if the server refuses an upload, or training fails.
        """

        def until(ask: Callable[[], Found | None]) -> Found:
            return patiently(ask, sleep=sleep, on_event=on_event)

        if self._pending is not None:
            until(functools.partial(_pushed, line, self._pending))
        while self.round < self._rounds:
            given = until(functools.partial(line.pull, self.round))
            upload = self.take_turn(given)
            save(self.state())
            if self._last is not None:
                on_round(self._last)
            until(functools.partial(_pushed, line, upload))
            on_event(f"round {self.round} of {self._rounds}: {len(upload):,} bytes uploaded")
        on_event("all rounds are done; waiting for the others")
        return until(functools.partial(line.pull, self._rounds))


def _pushed(line: Line, content: bytes) -> bool | None:
    return line.push(content) or None


def alone(roster: Roster) -> Settings:
    """Returns the settings of a participant that trains in a process of its own."""
    is_synchronous = roster.settings.protocol == "synchronous"
    return dataclasses.replace(
        roster.settings,
        num_participants=1,
        # It downloads at the beginning of its turn; when that is, the server knows.
        protocol="synchronous" if is_synchronous else "round_robin",
    )


def patiently(
    ask: Callable[[], Found | None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    on_event: Callable[[str], None] = lambda event: None,
) -> Found:
    """Asks until there is an answer; where nobody answers, after longer and longer waits."""
    backoff = Backoff()
    while True:
        try:
            found = ask()
        except ConnectionError as error:
            on_event(f"{error}; trying again")
            sleep(backoff.failed())
            continue
        backoff.succeeded()
        if found is not None:
            return found
