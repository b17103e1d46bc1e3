"""A parameter server that knows whose turn it is, for participants that come when they like."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.server import OK, SAME, Parameters, Server
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import FloatArray, RefusedUploadError, Upload

# Whose turn it is: a function of public values, so that everybody knows it without being told.


_ORDER = 2  # of the numbers that say what a seed is for; see training.py


def order_of_turns(settings: Settings, round_number: int) -> IntArray:
    """Returns the participants in the order of their turns in a round, `[num_participants]`."""
    turns = np.arange(settings.num_participants)
    if settings.protocol in ("random", "asynchronous"):
        turns = np.random.default_rng([settings.seed, round_number, _ORDER]).permutation(turns)
    return turns


EARLY = "early"


class TurnServer(Server):
    """Applies uploads in the order that the same run in one process has.

    Every participant uploads once a round, so the number of uploads applied says whose turn it is:
    after a kill nothing else has to be known. "round_robin" and "random": a participant gets
    parameters when it is its turn, and nobody else may upload then. "synchronous": all get the
    parameters of the round's beginning, and their uploads are applied in their order.
    "asynchronous": each gets parameters and uploads when it likes.

    Not safe to use from several threads at once.

    Args:
      settings: of the run.
      initial: float32 `[num_parameters]`.
      run: 16 bytes that name the run.
      privacy: Gaussian noise is averaged over the second half of the rounds.
      folder: where the journal lies, below `sensitive/`. Default: nothing is kept.

    Raises:
      ValueError: if the folder holds the journal of another run, or a damaged one.
    """

    def __init__(
        self,
        settings: Settings,
        initial: FloatArray,
        *,
        run: bytes,
        privacy: Privacy | None = None,
        folder: pathlib.Path | None = None,
    ) -> None:
        self.initial = np.array(initial, np.float32)
        self._averages = (privacy or Privacy()).is_gaussian
        self._average = np.zeros(len(initial), np.float64)
        self._begin = (self.initial, np.zeros(len(initial), np.float64))
        # What is stale is damped, never refused: every upload comes, however slow its participant.
        super().__init__(
            settings,
            initial,
            run=run,
            folder=folder,
            most_stale=settings.num_participants * settings.rounds,
        )

    @property
    def round(self) -> int:
        """Rounds that are over, for all but asynchronous training."""
        return self.version // self.settings.num_participants

    @property
    def is_over(self) -> bool:
        """Whether everybody uploaded in every round."""
        return self.version == self.settings.num_participants * self.settings.rounds

    @property
    def turn(self) -> int | None:
        """The participant whose upload is applied next; None if it may be anybody's, or nobody's.

        Also in synchronous training, where several may send theirs meanwhile.
        """
        if self.is_over or self.settings.protocol == "asynchronous":
            return None
        place = self.version % self.settings.num_participants
        return int(order_of_turns(self.settings, self.round)[place])

    def parameters_for(self, participant: int, round_number: int) -> Parameters | None:
        """Returns what a participant trains on in a round; None if its turn has not come.

        Args:
          participant: from 0.
          round_number: from 0; the number of rounds for what came of all.

        Raises:
          ValueError: if there is no such participant or round, or its upload was applied.
        """
        if not 0 <= participant < self.settings.num_participants:
            return self.pull(participant)
        if not 0 <= round_number <= self.settings.rounds:
            raise ValueError(
                f"round: expected one from 0 to {self.settings.rounds}, got {round_number}"
            )
        if round_number == self.settings.rounds:
            if not self.is_over:
                return None
            indices = np.arange(self.num_parameters)
            return Parameters(version=self.version, indices=indices, values=self.released())
        last = int(self.rounds[participant])
        if round_number <= last:
            raise ValueError(
                f"round: round {round_number} of participant {participant} was applied already; go "
                f"on in the folder that it was trained in"
            )
        protocol = self.settings.protocol
        if protocol == "asynchronous":
            return self.pull(participant) if round_number == last + 1 else None
        if round_number != self.round:
            return None
        if protocol == "synchronous":
            version = self.round * self.settings.num_participants
            return self._share(participant, version, *self._begin)
        return self.pull(participant) if participant == self.turn else None

    def push_in_turn(self, content: bytes) -> str:
        """Applies an upload in its turn; arguments and errors as `push`.

        Returns:
          "ok", "same", or "early" if others come first in a synchronous round.
        """
        upload = self._decoded(content)
        following = int(self.rounds[upload.participant]) + 1
        if upload.round < following:
            return self.push(content)  # the same, or refused
        if upload.round > following:
            raise RefusedUploadError(
                f"upload: expected round {following} of participant {upload.participant}, got "
                f"round {upload.round}"
            )
        self._check_turn(upload)
        self._check(upload)
        if self.turn not in (None, upload.participant):
            return EARLY
        answer = self.push(content)
        if self.version % self.settings.num_participants == 0:
            self.compact()
        return answer

    def released(self) -> FloatArray:
        """Returns the parameters of the global model, as the same run in one process does."""
        num_averaged = self.settings.rounds - self._first_averaged
        if not self._averages or not self.is_over or num_averaged < 1:
            return self.values.copy()
        return (self._average / num_averaged).astype(np.float32)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """See `Server.state`; to be taken between two rounds."""
        return {**super().state(), "average": self._average}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See `Server.restore`."""
        super().restore(state)
        self._average = np.array(state["average"], np.float64)
        self._begin = (self.values.copy(), self.counts.copy())

    @property
    def _first_averaged(self) -> int:
        return self.settings.rounds // 2

    def _check_turn(self, upload: Upload) -> None:
        if self.settings.protocol == "asynchronous":
            return
        if upload.round != self.round or self.turn is None:
            raise RefusedUploadError(
                f"upload: expected one of round {self.round}, got round {upload.round}"
            )
        version = self.version
        if self.settings.protocol == "synchronous":
            version = self.round * self.settings.num_participants
        elif upload.participant != self.turn:
            raise RefusedUploadError(
                f"upload: expected one of participant {self.turn}, whose turn it is, got one of "
                f"{upload.participant}"
            )
        if upload.version != version:
            raise RefusedUploadError(
                f"upload: expected one from version {version}, got {upload.version}"
            )

    def _apply(self, upload: Upload, content: bytes) -> None:
        super()._apply(upload, content)
        if self.version % self.settings.num_participants == 0:
            self._begin = (self.values.copy(), self.counts.copy())
            if self._averages and self.round > self._first_averaged:
                self._average += self.values


__all__ = ["EARLY", "OK", "SAME", "TurnServer"]
