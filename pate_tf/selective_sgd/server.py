"""The parameter server: adds what participants upload, each upload once, each in its turn.

It holds no private records and is trusted with none: it can read all that reaches it without noise.
It works on bytes, so that a transport can be put in front of `pull_in_turn` and `push`.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd.run_state import RunState
from pate_tf.selective_sgd.settings import Privacy, Settings
from pate_tf.selective_sgd.upload import (
    FloatArray,
    RefusedUploadError,
    Upload,
    decode,
    most_updated,
)

OK, SAME, EARLY = "ok", "same", "early"
NO_ROUND = -1
DIGEST_BYTES = 32
# The second or third number of a seed says what it is for; see training.py.
_TIES, _ORDER = 1, 2
_STATE = (
    *("values", "counts", "version", "rounds", "digests"),
    *("average", "round_values", "round_counts"),
)


def order_of_turns(settings: Settings, round_number: int) -> IntArray:
    """Returns the participants in the order of their turns in a round, `[num_participants]`.

    A function of public values, which all ends know.
    """
    turns = np.arange(settings.num_participants)
    if settings.protocol in ("random", "asynchronous"):
        turns = np.random.default_rng([settings.seed, round_number, _ORDER]).permutation(turns)
    return turns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a participant downloads.

    Attributes:
        version: how many uploads the server had applied.
        indices: int64 `[num_downloaded]`, ascending.
        values: float32 `[num_downloaded]`.
    """

    version: int
    indices: IntArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)


class Server:
    """The parameters of one run: `values[indices] += upload`, never an average.

    Guarantees. An upload is applied once, even if it is sent again: participant and round are its
    key. With a folder it is durable before `push` answers, and a server that was killed at any
    point goes on from there. What is refused changes nothing.

    Every participant uploads once a round, so the number of uploads applied says whose turn it is.
    "round_robin" and "random": only the participant whose turn it is gets parameters and uploads.
    "synchronous": all get the parameters of the round's beginning, and their uploads are applied in
    their order. "asynchronous": each gets parameters and uploads when it likes; what is stale is
    damped, never refused.

    Not safe to use from several threads at once.

    Args:
        settings: of the run.
        initial: float32 `[num_parameters]`.
        run: 16 bytes that name the run.
        privacy: Gaussian noise is averaged over the second half of the rounds.
        folder: where the state lies, below `sensitive/`. Default: it is not stored.

    Raises:
        ValueError: if the folder holds another run, or a damaged state.
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
        self.settings, self.run = settings, run
        self.initial = np.array(initial, np.float32)
        self._is_averaged = privacy is not None and privacy.is_gaussian
        # Arrays are replaced, never written to.
        self.values = self.round_values = self.initial
        self.counts = self.round_counts = np.zeros(len(initial), np.float64)
        self.average = np.zeros(len(initial), np.float64)
        self.version = 0
        self.rounds = np.full(settings.num_participants, NO_ROUND, np.int64)
        self.digests = np.zeros((settings.num_participants, DIGEST_BYTES), np.uint8)
        self._store = None if folder is None else RunState(folder, {"run": run.hex()})
        if self._store is not None and self._store.saved:
            self.restore(self._store.saved)

    @property
    def num_parameters(self) -> int:
        """How many parameters the model has."""
        return len(self.values)

    @property
    def round(self) -> int:
        """Rounds that are over, for all but asynchronous training."""
        return self.version // self.settings.num_participants

    @property
    def is_over(self) -> bool:
        """Whether every participant uploaded in every round."""
        return self.version == self.settings.num_participants * self.settings.rounds

    @property
    def turn(self) -> int | None:
        """The participant whose upload is applied next; None if it may be any one's, or is over.

        Also in synchronous training, where several may send theirs meanwhile.
        """
        if self.is_over or self.settings.protocol == "asynchronous":
            return None
        place = self.version % self.settings.num_participants
        return int(order_of_turns(self.settings, self.round)[place])

    def pull(self, participant: int) -> Parameters:
        """Returns the share of the parameters that were updated most; ties at random."""
        return self._share(participant, self.version, self.values, self.counts)

    def pull_in_turn(self, participant: int, round_number: int) -> Parameters | None:
        """Returns what a participant trains on in a round; None if its turn has not come.

        Args:
            participant: from 0.
            round_number: from 0; the number of rounds for the final parameters.

        Raises:
            ValueError: if there is no such participant or round, or its upload was applied.
        """
        settings = self.settings
        if not 0 <= participant < settings.num_participants:
            raise ValueError(
                f"participant: expected one from 0 to {settings.num_participants - 1}, got "
                f"{participant}"
            )
        if not 0 <= round_number <= settings.rounds:
            raise ValueError(f"round: expected one from 0 to {settings.rounds}, got {round_number}")
        if round_number == settings.rounds:
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
        if settings.protocol == "asynchronous":
            return self.pull(participant) if round_number == last + 1 else None
        if round_number != self.round:
            return None
        if settings.protocol == "synchronous":
            version = self.round * settings.num_participants
            return self._share(participant, version, self.round_values, self.round_counts)
        return self.pull(participant) if participant == self.turn else None

    def push(self, content: bytes) -> str:
        """Applies an upload, unless it was applied before.

        Args:
            content: an encoded `Upload`.

        Returns:
            "ok" if it was applied now, "same" if it had been before, "early" if others come first
            in a synchronous round.

        Raises:
            RefusedUploadError: if it is malformed, of another run, too large, out of turn, not
                finite, out of range, or another upload for a round that was applied. Nothing has
                changed.
            OSError: if it can't be made durable; then sending it again decides.
        """
        upload = self._decoded(content)
        participant, digest = upload.participant, hashlib.sha256(content).digest()
        if upload.round == self.rounds[participant]:
            if self.digests[participant].tobytes() == digest:
                return SAME
            raise RefusedUploadError(
                f"upload: round {upload.round} of participant {participant} was applied with other "
                f"content"
            )
        self._check_turn(upload)
        changed = self._changed(upload)
        if self.turn not in (None, participant):
            return EARLY
        before = self.state()
        self._apply(upload, changed, digest)
        if self._store is not None:
            try:
                self._store.save(self.state())
            except OSError:
                self.restore(before)
                raise
        return OK

    def staleness(self, version: int) -> int:
        """Returns how many uploads were applied since a version."""
        return self.version - version

    def factor(self, staleness: int) -> float:
        """Returns what an upload that is so stale is multiplied by."""
        is_synchronous = self.settings.protocol == "synchronous"
        damped = 1.0 if is_synchronous else (1.0 + staleness) ** -self.settings.damping
        return self.settings.rate_of_server * damped

    def released(self) -> FloatArray:
        """Returns the parameters of the global model.

        With Gaussian noise the mean over the second half of the rounds, which costs nothing: it is
        of what was released already.
        """
        num_averaged = self.round - self._first_averaged
        if not self._is_averaged or num_averaged < 1:
            return self.values
        return (self.average / num_averaged).astype(np.float32)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns all that the server goes on from, as arrays."""
        return {name: np.asarray(getattr(self, name)) for name in _STATE}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from what `state` returned.

        Raises:
            ValueError: if it is the state of a server of other sizes.
            KeyError: if it is none.
        """
        if any(state[name].shape != array.shape for name, array in self.state().items()):
            raise ValueError(
                f"server: expected the state of {self.num_parameters} parameters and "
                f"{len(self.rounds)} participants, got another"
            )
        for name in _STATE:
            setattr(self, name, state[name])
        self.version = int(state["version"])

    @property
    def _first_averaged(self) -> int:
        return self.settings.rounds // 2

    def _share(
        self,
        participant: int,
        version: int,
        values: FloatArray,
        counts: npt.NDArray[np.float64],
    ) -> Parameters:
        # A function of what was applied: asking twice answers the same.
        generator = np.random.default_rng([self.settings.seed, _TIES, participant, version])
        indices = most_updated(counts, self.settings.num_downloaded(self.num_parameters), generator)
        return Parameters(version=version, indices=indices, values=values[indices])

    def _decoded(self, content: bytes) -> Upload:
        most = self.settings.num_uploaded(self.num_parameters)
        upload = decode(content, num_parameters=self.num_parameters, most=most)
        if upload.run != self.run:
            raise RefusedUploadError("upload: expected one of this run, got one of another")
        if upload.participant >= self.settings.num_participants:
            raise RefusedUploadError(
                f"upload: expected a participant from 0 to {self.settings.num_participants - 1}, "
                f"got {upload.participant}"
            )
        return upload

    def _check_turn(self, upload: Upload) -> None:
        protocol, rounds = self.settings.protocol, self.settings.rounds
        due = int(self.rounds[upload.participant]) + 1
        if upload.round != due or due == rounds:
            raise RefusedUploadError(
                f"upload: expected round {due} of participant {upload.participant}, below {rounds},"
                f" got round {upload.round}"
            )
        if protocol == "asynchronous":
            if upload.version > self.version:
                raise RefusedUploadError(
                    f"upload: expected a version up to {self.version}, got {upload.version}"
                )
            return
        if upload.round != self.round:
            raise RefusedUploadError(
                f"upload: expected one of round {self.round}, got round {upload.round}"
            )
        version = self.version
        if protocol == "synchronous":
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

    def _changed(self, upload: Upload) -> FloatArray:
        """Returns the new values of the parameters that an upload changes, if they are in range."""
        indices, gamma = upload.indices, self.settings.gamma
        if indices.size and (indices[-1] >= self.num_parameters or (np.diff(indices) <= 0).any()):
            raise RefusedUploadError(
                f"upload: expected ascending indices below {self.num_parameters}, got others"
            )
        if not np.isfinite(upload.values).all():
            raise RefusedUploadError("upload: expected finite changes, got NaN or infinity")
        if gamma is not None and (np.abs(upload.values) > np.float32(gamma)).any():
            raise RefusedUploadError(f"upload: expected changes up to {gamma:g}, got larger ones")
        factor = np.float32(self.factor(self.staleness(upload.version)))
        with np.errstate(over="ignore"):
            changed = np.asarray(self.values[indices] + factor * upload.values)
        if not np.isfinite(changed).all():
            raise RefusedUploadError("upload: expected changes that parameters can take, got more")
        return changed

    def _apply(self, upload: Upload, changed: FloatArray, digest: bytes) -> None:
        self.values, self.counts = self.values.copy(), self.counts.copy()
        self.rounds, self.digests = self.rounds.copy(), self.digests.copy()
        self.values[upload.indices] = changed
        self.counts[upload.indices] += 1.0
        self.version += 1
        self.rounds[upload.participant] = upload.round
        self.digests[upload.participant] = np.frombuffer(digest, np.uint8)
        if self.version % (self.settings.stat_period or self.settings.num_participants) == 0:
            self.counts *= self.settings.stat_decay
        if self.version % self.settings.num_participants == 0:
            self.round_values, self.round_counts = self.values, self.counts
            if self._is_averaged and self.round > self._first_averaged:
                self.average = self.average + self.values
