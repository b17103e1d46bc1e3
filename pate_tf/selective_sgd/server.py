"""The parameter server, which adds each participant's upload once, when it is its turn.

The server has no private records. It can read all uploads, so uploads without noise reveal private
information to the server.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.selective_sgd.run_state import DurableRun
from pate_tf.selective_sgd.training_settings import TrainingSettings

FloatArray = npt.NDArray[np.float32]
NO_ROUND = -1
DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of the shared model, as a participant downloads them.

    Attributes:
        version: number of uploads that the server had applied when it sent the parameters.
        values: the parameters, float32 `[num_parameters]`.
    """

    version: int
    values: FloatArray = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Upload:
    """A participant's changes of some parameters. SENSITIVE if no noise was added.

    Attributes:
        participant: number of the participant, from 0.
        round: number of the participant's round, from 0. The participant and the round identify an
            upload.
        version: version of the parameters on which the participant trained.
        indices: indices of the changed parameters, ascending, int64 `[num_changes]`.
        values: the changes of these parameters, float32 `[num_changes]`.
    """

    participant: int
    round: int
    version: int
    indices: IntArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)

    def digest(self) -> str:
        """Returns the SHA-256 digest of the whole upload, as hexadecimal digits."""
        return artifacts.digest_arrays(vars(self).values())


def upload_bytes(num_changes: int, num_parameters: int) -> int:
    """Returns the size of an upload in bytes. Indices are included unless all parameters change."""
    return (4 if num_changes == num_parameters else 8) * num_changes


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ServerState:
    """The complete state of a server.

    Attributes:
        values: the parameters, float32 `[num_parameters]`.
        round_values: the parameters at the start of the round, float32 `[num_parameters]`.
        average: sum of the parameters at the end of each finished round in the second half of
            training, `[num_parameters]`.
        version: number of applied uploads.
        rounds: round of each participant's last upload, int64 `[num_participants]`; -1 before the
            first upload.
        digests: digest of each participant's last upload, uint8 `[num_participants, 32]`.
    """

    values: FloatArray
    round_values: FloatArray
    average: npt.NDArray[np.float64]
    version: npt.NDArray[np.int64]
    rounds: IntArray
    digests: npt.NDArray[np.uint8]


class ParameterServer:
    """Stores the parameters of a run, and applies uploads: `values[indices] += factor * upload`.

    Guarantees. An upload is identified by its participant and its round. Each upload is applied
    once, even if it is sent again. With `run`, the upload is durable before `push` returns, and the
    server can resume after it was killed at any point. An upload that is refused changes nothing.

    Each participant uploads once per round, so the number of applied uploads determines whose turn
    it is. The protocol determines the order. With "round_robin", only the participant whose turn it
    is can download and upload. With "synchronous", all participants download the parameters as
    they were at the start of the round. Uploads are applied in the order of the participants,
    each divided by the number of participants. With "asynchronous", participants can download and
    upload at any time; if s other uploads were applied since the download, an upload is multiplied
    by 1 / (1 + s).

    This class is not thread-safe.

    Args:
        settings: settings of the run.
        initial: initial parameters, float32 `[num_parameters]`.
        run: object that stores the state in a folder. Default: the state is not stored.

    Attributes:
        state: the current state. An upload replaces the whole object, which is never modified.
        num_parameters: number of parameters of the model.

    Raises:
        ValueError: if the stored state belongs to another model.
    """

    def __init__(
        self, settings: TrainingSettings, initial: FloatArray, *, run: DurableRun | None = None
    ) -> None:
        self.settings = settings
        self.num_parameters = len(initial)
        self._run = run
        number = settings.num_participants
        self.state = ServerState(
            values=initial,
            round_values=initial,
            average=np.zeros(len(initial), np.float64),
            version=np.array(0),
            rounds=np.full(number, NO_ROUND, np.int64),
            digests=np.zeros((number, DIGEST_BYTES), np.uint8),
        )
        if run is not None and "values" in run.saved:
            self.restore(run.saved)

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Resumes from the arrays of a `ServerState`.

        Raises:
            ValueError: if the arrays belong to another model.
        """
        expected = vars(self.state)
        if any(arrays[name].shape != array.shape for name, array in expected.items()):
            raise ValueError("the stored state is for another model; choose a new folder")
        self.state = ServerState(**{name: arrays[name] for name in expected})

    @property
    def version(self) -> int:
        """Number of applied uploads."""
        return int(self.state.version)

    @property
    def round(self) -> int:
        """Number of finished rounds. It has no meaning for asynchronous training."""
        return self.version // self.settings.num_participants

    def pull(self, participant: int, round_number: int) -> Parameters | None:
        """Returns the parameters for a participant in a round; None if its turn has not come yet.

        Args:
            participant: number of the participant, from 0.
            round_number: number of the round, from 0; `settings.rounds` for the final parameters.

        Raises:
            ValueError: if the round does not exist, or the participant's upload in this round was
                already applied.
        """
        settings = self.settings
        last = int(self.state.rounds[participant])
        checks.whole(0, settings.rounds, round=round_number)
        if round_number == settings.rounds:
            final = Parameters(version=self.version, values=self.released())
            is_over = self.version == settings.num_participants * settings.rounds
            return final if is_over else None
        if round_number <= last:
            raise ValueError(
                f"round {round_number} of participant {participant} was already applied. Resume in "
                "its folder."
            )
        current = Parameters(version=self.version, values=self.state.values)
        if settings.protocol == "asynchronous":
            return current if round_number == last + 1 else None
        if round_number != self.round:
            return None
        place = self.version % settings.num_participants
        if settings.protocol == "synchronous":
            return Parameters(version=self.version - place, values=self.state.round_values)
        return current if participant == place else None

    def push(self, upload: Upload) -> bool:
        """Applies an upload, unless it was applied before.

        Returns:
            True if the upload was applied, now or earlier; False if other participants must upload
            first in a synchronous round.

        Raises:
            ValueError: if the upload is too large, out of turn, not finite or out of range, or if a
                different upload was applied for this round. In this case, the parameters do not
                change.
            OSError: if the upload can't be stored durably. The caller should send it again.
        """
        state = self.state
        participant = upload.participant
        digest = bytes.fromhex(upload.digest())
        if upload.round == state.rounds[participant]:
            if state.digests[participant].tobytes() == digest:
                return True
            raise ValueError(f"another upload was applied in round {upload.round} of {participant}")
        self._check_turn(upload)
        changed = self._changed(upload)
        place = self.version % self.settings.num_participants
        if self.settings.protocol == "synchronous" and participant != place:
            return False
        values = state.values.copy()
        values[upload.indices] = changed
        rounds = state.rounds.copy()
        rounds[participant] = upload.round
        digests = state.digests.copy()
        digests[participant] = np.frombuffer(digest, np.uint8)
        is_round_over = place == self.settings.num_participants - 1
        is_averaged = is_round_over and self.round >= self.settings.rounds // 2
        new = ServerState(
            values=values,
            round_values=values if is_round_over else state.round_values,
            average=state.average + values if is_averaged else state.average,
            version=state.version + 1,
            rounds=rounds,
            digests=digests,
        )
        if self._run is not None:
            self._run.save(vars(new))
        self.state = new
        return True

    def released(self) -> FloatArray:
        """Returns the parameters of the global model.

        With noise, the result is the mean over the second half of the rounds. Computing the mean
        costs no privacy, because the parameters of each round are already released.
        """
        num_averaged = self.round - self.settings.rounds // 2
        if not self.settings.is_noisy or num_averaged < 1:
            return self.state.values
        return (self.state.average / num_averaged).astype(np.float32)

    def _check_turn(self, upload: Upload) -> None:
        settings = self.settings
        due = int(self.state.rounds[upload.participant]) + 1
        if upload.round != due or due == settings.rounds:
            raise ValueError(
                f"the next round of participant {upload.participant} is {due} of "
                f"{settings.rounds}, got an upload for round {upload.round}"
            )
        if settings.protocol == "asynchronous":
            if upload.version > self.version:
                raise ValueError(
                    f"the upload has version {upload.version}, but the server has {self.version}"
                )
            return
        expected = self.pull(upload.participant, upload.round)
        if expected is None or upload.version != expected.version:
            raise ValueError(
                f"it is not the turn of participant {upload.participant} with version "
                f"{upload.version}. The current version is {self.version}."
            )

    def _changed(self, upload: Upload) -> FloatArray:
        """Checks the values of an upload, and returns the new values of the changed parameters."""
        settings = self.settings
        indices = upload.indices
        most = settings.num_uploaded(self.num_parameters)
        if indices.ndim != 1 or len(indices) > most or indices.shape != upload.values.shape:
            raise ValueError(f"an upload must have at most {most} indices, and a value for each")
        if indices.size and (
            indices[0] < 0 or indices[-1] >= self.num_parameters or (np.diff(indices) <= 0).any()
        ):
            raise ValueError(f"indices must be ascending and below {self.num_parameters}")
        if not np.isfinite(upload.values).all():
            raise ValueError("the upload has NaN or infinite changes")
        gamma = settings.gamma
        if gamma is not None and (np.abs(upload.values) > np.float32(gamma)).any():
            raise ValueError(f"the upload has changes with absolute values above gamma {gamma:g}")
        factor = 1.0 / (1.0 + self.version - upload.version)
        if settings.protocol == "synchronous":
            factor = 1.0 / settings.num_participants
        with np.errstate(over="ignore"):
            changed = self.state.values[indices] + np.float32(factor) * upload.values
        if not np.isfinite(changed).all():
            raise ValueError("the upload would make parameters infinite")
        return np.asarray(changed)
