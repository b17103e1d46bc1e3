"""The parameter server: adds what participants upload, each upload once, each in its turn.

It holds no private records and is trusted with none: it can read all that reaches it without noise.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.selective_sgd.run_state import DurableRun
from pate_tf.selective_sgd.training_settings import TrainingSettings

FloatArray = npt.NDArray[np.float32]
NO_ROUND = -1
DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a participant downloads.

    Attributes:
        version: how many uploads the server had applied.
        values: float32 `[num_parameters]`.
    """

    version: int
    values: FloatArray = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Upload:
    """SENSITIVE unless it was noised: changes of some parameters by one participant.

    Attributes:
        participant: who sends it, from 0.
        round: of the participant, from 0. Participant and round are the key: applied once.
        version: of the parameters that the participant trained on.
        indices: int64 `[num_changes]`, ascending, of the parameters that change.
        values: float32 `[num_changes]`, what is added to them.
    """

    participant: int
    round: int
    version: int
    indices: IntArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)

    def digest(self) -> str:
        """SHA-256 of all that it says, as hexadecimal digits."""
        return artifacts.digest_arrays(vars(self).values())


def upload_bytes(num_changes: int, num_parameters: int) -> int:
    """Returns how long an upload is: values, and indices unless all change."""
    return (4 if num_changes == num_parameters else 8) * num_changes


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ServerState:
    """All that a server resumes from.

    Attributes:
        values: float32 `[num_parameters]`.
        round_values: the same when the round began.
        average: sum of the parameters after each round of the second half, `[num_parameters]`.
        version: how many uploads were applied.
        rounds: of each participant's last upload, int64 `[num_participants]`; -1 for none.
        digests: of these uploads, uint8 `[num_participants, 32]`.
    """

    values: FloatArray
    round_values: FloatArray
    average: npt.NDArray[np.float64]
    version: npt.NDArray[np.int64]
    rounds: IntArray
    digests: npt.NDArray[np.uint8]


class ParameterServer:
    """The parameters of one run: `values[indices] += factor * upload`.

    Guarantees. An upload is applied once, even if it is sent again: participant and round are its
    key. With a folder it is durable before `push` answers, and a server that was killed at any
    point resumes. What is refused changes nothing.

    Every participant uploads once a round, so the number of uploads applied says whose turn it is.
    "round_robin": only the participant whose turn it is gets parameters and uploads. "synchronous":
    all get the parameters of the round's beginning, and their uploads are averaged in their order.
    "asynchronous": each gets parameters and uploads when it likes; an upload that is s uploads
    stale is multiplied by 1 / (1 + s).

    Not safe to use from several threads at once.

    Args:
        settings: of the run.
        initial: float32 `[num_parameters]`.
        run: where the state is stored. Default: it is not.

    Attributes:
        state: replaced as a whole, never written to.
        num_parameters: of the model.

    Raises:
        ValueError: if the stored state is of another model.
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
            ValueError: if they are of another model.
        """
        expected = vars(self.state)
        if any(arrays[name].shape != array.shape for name, array in expected.items()):
            raise ValueError("server: expected the state of this model, got that of another")
        self.state = ServerState(**{name: arrays[name] for name in expected})

    @property
    def version(self) -> int:
        """How many uploads were applied."""
        return int(self.state.version)

    @property
    def round(self) -> int:
        """Rounds that are over, for all but asynchronous training."""
        return self.version // self.settings.num_participants

    def pull(self, participant: int, round_number: int) -> Parameters | None:
        """Returns what a participant trains on in a round; None if its turn has not come.

        Args:
            participant: from 0.
            round_number: from 0; the number of rounds for the final parameters.

        Raises:
            ValueError: if there is no such round, or its upload was applied.
        """
        settings = self.settings
        last = int(self.state.rounds[participant])
        if not 0 <= round_number <= settings.rounds:
            raise ValueError(f"round: expected one from 0 to {settings.rounds}, got {round_number}")
        if round_number == settings.rounds:
            final = Parameters(version=self.version, values=self.released())
            is_over = self.version == settings.num_participants * settings.rounds
            return final if is_over else None
        if round_number <= last:
            raise ValueError(
                f"round: round {round_number} of participant {participant} was applied already; "
                f"resume in the folder that it was trained in"
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
            Whether it is applied; otherwise others come first in a synchronous round.

        Raises:
            ValueError: if it is too large, out of turn, not finite, out of range, or
                another upload for a round that was applied. Nothing has changed.
            OSError: if it can't be made durable; then sending it again decides.
        """
        state = self.state
        participant = upload.participant
        digest = bytes.fromhex(upload.digest())
        if upload.round == state.rounds[participant]:
            if state.digests[participant].tobytes() == digest:
                return True
            raise ValueError(
                f"upload: round {upload.round} of participant {participant} was applied with other "
                f"content"
            )
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

        With noise the mean over the second half of the rounds, which costs nothing: it is of what
        was released already.
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
                f"upload: expected round {due} of participant {upload.participant}, below "
                f"{settings.rounds}, got round {upload.round}"
            )
        if settings.protocol == "asynchronous":
            if upload.version > self.version:
                raise ValueError(
                    f"upload: expected a version up to {self.version}, got {upload.version}"
                )
            return
        expected = self.pull(upload.participant, upload.round)
        if expected is None or upload.version != expected.version:
            raise ValueError(
                f"upload: expected that of version {self.version} by the participant whose turn it "
                f"is, got another"
            )

    def _changed(self, upload: Upload) -> FloatArray:
        """Returns the new values of the parameters that an upload changes, if they are in range."""
        settings = self.settings
        indices = upload.indices
        most = settings.num_uploaded(self.num_parameters)
        if indices.ndim != 1 or len(indices) > most or indices.shape != upload.values.shape:
            raise ValueError(f"upload: expected at most {most} changes, got another number")
        if indices.size and (
            indices[0] < 0 or indices[-1] >= self.num_parameters or (np.diff(indices) <= 0).any()
        ):
            raise ValueError(
                f"upload: expected ascending indices below {self.num_parameters}, got others"
            )
        if not np.isfinite(upload.values).all():
            raise ValueError("upload: expected finite changes, got NaN or infinity")
        gamma = settings.gamma
        if gamma is not None and (np.abs(upload.values) > np.float32(gamma)).any():
            raise ValueError(f"upload: expected changes up to {gamma:g}, got larger ones")
        factor = 1.0 / (1.0 + self.version - upload.version)
        if settings.protocol == "synchronous":
            factor = 1.0 / settings.num_participants
        with np.errstate(over="ignore"):
            changed = self.state.values[indices] + np.float32(factor) * upload.values
        if not np.isfinite(changed).all():
            raise ValueError("upload: expected changes that parameters can take, got more")
        return np.asarray(changed)
