"""All participants and the server in one process: rounds of distributed selective SGD.

All participants share one traced graph; what is theirs goes in and comes out as tensors. On CPUs
one participant after another beats several at once for convolutions (see `teachers/training.py`).
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.noisy_training import Training
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd import upload
from pate_tf.selective_sgd.models import Buffers, FlatView
from pate_tf.selective_sgd.run_state import ROUND, LedgerFacts
from pate_tf.selective_sgd.server import Server, order_of_turns
from pate_tf.selective_sgd.settings import Privacy, Settings
from pate_tf.selective_sgd.upload import FloatArray, Upload, encode

LEARNING_RATE = "learning_rate"
# What draws: the third number of a seed says which.
_SHUFFLE, _CHOICE = 3, 4  # 1, 2: server.py
RUN_BYTES = 16
TRAFFIC = ("upload_bytes", "fraction_uploaded", "staleness")


class NotFiniteError(ValueError):
    """Training of one participant came to numbers that are not finite. SENSITIVE that it did."""


@dataclasses.dataclass(repr=False)
class LocalState:
    """SENSITIVE: what stays with a participant.

    Attributes:
        parameters: float32 `[num_parameters]`, its local model.
        buffers: what the model holds besides them.
        slots: the state of its optimizer, over the flat view.
        version: of the server's parameters that it downloaded last.
    """

    parameters: FloatArray
    buffers: Buffers
    slots: list[npt.NDArray[Any]]
    version: int = 0


class LocalTraining:
    """Trains one participant's copy of a model between download and upload, by its own optimizer.

    The optimizer moves the *change* since the download, which begins at zero: so one step of plain
    SGD uploads -learning_rate * gradient to the last bit, not a difference of two roundings.

    Args:
        view: of the model.
        settings: of the run.

    Raises:
        ValueError: if Keras knows no such optimizer, or it moves parameters by their own value.
    """

    def __init__(self, view: FlatView, settings: Settings) -> None:
        self._view = view
        self._settings = settings
        self._optimizer = _optimizer(settings)
        # Of the participant that is training; nothing stays here between two calls.
        self._change = keras.Variable(np.zeros(view.num_parameters, np.float32))
        self._optimizer.build([self._change])
        self._slots = self._optimizer.variables
        self._rate_place = [one.name for one in self._slots].index(LEARNING_RATE)
        self._first_slots = [variable.numpy() for variable in self._slots]
        self._first_parameters = view.initial()
        self._epochs = tf.function(self._run, autograph=False, reduce_retracing=True)

    def initial_state(self) -> LocalState:
        """Returns what a participant begins with: the model as it is now."""
        return LocalState(
            parameters=self._first_parameters.copy(),
            buffers=list(self._view.initial_buffers),
            slots=[slot.copy() for slot in self._first_slots],
        )

    def run(
        self,
        state: LocalState,
        inputs: npt.NDArray[Any],
        labels: IntArray,
        *,
        learning_rate: float,
        generator: np.random.Generator,
    ) -> tuple[FloatArray, float]:
        """Trains for the local epochs; the state is brought up to date, if nothing is raised.

        Args:
            state: of the participant.
            inputs: its raw records `[num_records, *input_shape]`.
            labels: int64 `[num_records]`.
            learning_rate: of this round.
            generator: draws the order of the records.

        Returns:
            The change of the parameters, float32 `[num_parameters]`, and the mean loss.

        Raises:
            NotFiniteError: if the loss, or anything that would be stored, is not finite.
        """
        order = np.concatenate(
            [generator.permutation(len(labels)) for _ in range(self._settings.local_epochs)]
        )
        slots = list(state.slots)
        slots[self._rate_place] = np.asarray(learning_rate, np.float32)
        change, new_buffers, new_slots, loss = self._epochs(
            tf.constant(state.parameters),
            [tf.constant(one) for one in state.buffers],
            [tf.constant(one) for one in slots],
            tf.constant(inputs),
            tf.constant(labels),
            tf.constant(order),
        )
        with np.errstate(over="ignore"):
            parameters = state.parameters + change.numpy()
        new_buffers = [one.numpy() for one in new_buffers]
        new_slots = [one.numpy() for one in new_slots]
        results = (loss.numpy(), parameters, *new_buffers, *new_slots)
        if not all(np.isfinite(one).all() for one in results):
            raise NotFiniteError(
                "participants: expected a finite loss, got NaN or infinity; try a lower "
                "learning_rate, or more damping"
            )
        state.parameters, state.buffers, state.slots = parameters, new_buffers, new_slots
        return change.numpy(), float(loss)

    def _run(
        self,
        parameters: tf.Tensor,
        buffers: list[tf.Tensor],
        slots: list[tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
    ) -> Any:
        size = self._settings.batch_size
        num_steps = (tf.size(order) + size - 1) // size
        self._change.assign(tf.zeros_like(parameters))
        for variable, slot in zip(self._slots, slots, strict=True):
            variable.assign(slot)

        def body(step: tf.Tensor, buffers: Any, total: tf.Tensor) -> Any:
            batch = order[step * size : (step + 1) * size]
            pieces = self._view.pieces(parameters + self._change.value)
            records = tf.cast(tf.gather(inputs, batch), tf.float32)
            loss, gradients, buffers = self._view.loss_and_gradients(
                pieces, buffers, records, tf.gather(labels, batch)
            )
            self._optimizer.apply([self._view.joined(gradients)], [self._change])
            return step + 1, list(buffers), total + loss

        _, buffers, total = tf.while_loop(
            lambda step, *_: step < num_steps, body, (tf.constant(0), buffers, tf.constant(0.0))
        )
        change = tf.identity(self._change.value)
        slots = [tf.identity(variable.value) for variable in self._slots]
        return change, buffers, slots, total / tf.cast(num_steps, tf.float32)


def _optimizer(settings: Settings) -> keras.optimizers.Optimizer:
    config = {LEARNING_RATE: settings.learning_rate}
    try:
        optimizer = keras.optimizers.get({"class_name": settings.optimizer, "config": config})
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"optimizer: expected a name that Keras knows, such as sgd or adam, got "
            f"{settings.optimizer!r}"
        ) from error
    if optimizer.weight_decay:
        raise ValueError(
            f"optimizer: expected one without weight decay, got {settings.optimizer!r}; a "
            f"regularizer of the model's layers does the same"
        )
    return optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundStatistics:
    """SENSITIVE: what a round was like.

    Attributes:
        round: from 0.
        loss: mean of the local losses.
        upload_bytes: mean of an upload, as encoded.
        fraction_uploaded: mean share of the parameters in an upload.
        staleness: mean of the uploads.
    """

    round: int
    loss: float = dataclasses.field(repr=False)
    upload_bytes: float
    fraction_uploaded: float
    staleness: float


class SharedTraining:
    """SENSITIVE: participants, each with its own records, and a server.

    Without noise nothing here is private: uploads tell about the records they come from, also
    where few are selected.

    Args:
        settings: of the run.
        model: a Keras model from raw inputs to logits; its parameters are where all begin.
        shares: each participant's records.
        privacy: what protects uploads; see `private_training.training_with`.

    Attributes:
        first_number: number of the first participant here; not 0 where others train elsewhere.
        charge: all rounds of the run; None without privacy.
        facts: what the ledger says, once it is charged; None without privacy.

    Raises:
        ValueError: if settings, model and shares do not fit each other.
    """

    first_number = 0
    charge: Training | None = None
    facts: LedgerFacts | None = None

    def __init__(
        self,
        settings: Settings,
        model: keras.Model,
        shares: Sequence[PrivateExamples],
        privacy: Privacy | None = None,
    ) -> None:
        if len(shares) != settings.num_participants:
            raise ValueError(
                f"shares: expected one for each of {settings.num_participants} participants, got "
                f"{len(shares)}"
            )
        if any(len(share) == 0 for share in shares):
            raise ValueError("shares: expected records of every participant, got one without any")
        self.settings = settings
        self.view = FlatView(model)
        self._shares = shares
        self._local = LocalTraining(self.view, settings)
        self.participants = [self._local.initial_state() for _ in shares]
        run = hashlib.sha256(json.dumps(dataclasses.asdict(settings), sort_keys=True).encode())
        self.server = Server(
            settings, self.view.initial(), run=run.digest()[:RUN_BYTES], privacy=privacy
        )
        self.round = 0
        self._traffic = np.zeros(len(TRAFFIC), np.float64)

    def run_round(self) -> RoundStatistics:
        """Lets every participant take its turn.

        Raises:
            ValueError: if an upload was refused or, without noise, a loss is not finite.
        """
        turns = self._take_turns()
        statistics = RoundStatistics(
            round=self.round,
            **{name: float(np.mean([one[name] for one in turns])) for name in ("loss", *TRAFFIC)},
        )
        self._traffic = self._traffic + [getattr(statistics, name) for name in TRAFFIC]
        self.round += 1
        return statistics

    @property
    def traffic(self) -> dict[str, float]:
        """Means over all rounds so far of what `RoundStatistics` has of the uploads."""
        return dict(zip(TRAFFIC, (self._traffic / max(1, self.round)).tolist(), strict=True))

    def released_parameters(self) -> FloatArray:
        """Returns the parameters of the global model; see `Server.released`."""
        return self.server.released()

    def global_model(self) -> keras.Model:
        """Returns the model with the parameters of all, and buffers as it was built."""
        return self.view.assign(self.released_parameters())

    def local_model(self, participant: int) -> keras.Model:
        """SENSITIVE: returns the model as a participant has it. The same object is used again."""
        state = self.participants[participant]
        return self.view.assign(state.parameters, state.buffers)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """SENSITIVE: returns all that the run goes on from, as arrays."""
        arrays = {f"server/{name}": one for name, one in self.server.state().items()}
        arrays |= {ROUND: np.array(self.round), "traffic": self._traffic}
        for number, state in enumerate(self.participants):
            values = (np.array(state.version), state.parameters, *state.buffers, *state.slots)
            arrays |= {f"{number}/{place}": one for place, one in enumerate(values)}
        return arrays

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from what `state` returned.

        Raises:
            ValueError: if it is not the state of such a run.
        """
        try:
            self.server.restore({name: arrays[f"server/{name}"] for name in self.server.state()})
            for number, state in enumerate(self.participants):
                num_buffers = len(state.buffers)
                count = 2 + num_buffers + len(state.slots)
                version, parameters, *rest = (arrays[f"{number}/{one}"] for one in range(count))
                self.participants[number] = LocalState(
                    parameters=parameters,
                    buffers=rest[:num_buffers],
                    slots=rest[num_buffers:],
                    version=int(version),
                )
            self._traffic = arrays["traffic"]
            self.round = int(arrays[ROUND])
        except KeyError as error:
            raise ValueError(f"state: expected that of such a run, it lacks {error}") from error

    def _take_turns(self) -> list[dict[str, float]]:
        turns = order_of_turns(self.settings, self.round).tolist()
        if self.settings.protocol == "synchronous":
            for participant in turns:
                self._download(participant)
        return [self._turn(participant) for participant in turns]

    def _turn(self, participant: int) -> dict[str, float]:
        if self.settings.protocol in ("round_robin", "random"):
            self._download(participant)
        change, loss = self._train(participant)
        statistics = self._upload(participant, *self._selected(participant, change))
        if self.settings.protocol == "asynchronous":
            self._download(participant)
        return {**statistics, "loss": loss}

    def _train(self, participant: int) -> tuple[FloatArray, float]:
        share = self._shares[participant]
        return self._local.run(
            self.participants[participant],
            share.inputs,
            share.labels,
            learning_rate=self.settings.learning_rate_at(self.round),
            generator=self._generator(_SHUFFLE, participant),
        )

    def _selected(self, participant: int, change: FloatArray) -> tuple[IntArray, FloatArray]:
        settings = self.settings
        number = settings.num_uploaded(self.view.num_parameters)
        if settings.selection == "largest":
            indices = upload.largest(change, number)
        else:
            generator = self._generator(_CHOICE, participant)
            indices = upload.random_above(change, number, settings.tau, generator)
        values, gamma = change[indices], settings.gamma
        if gamma is not None:
            values = np.clip(values, np.float32(-gamma), np.float32(gamma))
        return indices, values

    def _upload(self, participant: int, indices: IntArray, values: FloatArray) -> dict[str, float]:
        version = self.participants[participant].version
        content = encode(
            Upload(
                run=self.server.run,
                participant=self.first_number + participant,
                round=self.round,
                version=version,
                num_parameters=self.view.num_parameters,
                indices=indices,
                values=values,
            )
        )
        staleness = self.server.staleness(version)
        self.server.push(content)
        return {
            "upload_bytes": len(content),
            "fraction_uploaded": len(indices) / self.view.num_parameters,
            "staleness": staleness,
        }

    def _download(self, participant: int) -> None:
        state, given = self.participants[participant], self.server.pull(participant)
        state.parameters = state.parameters.copy()
        state.parameters[given.indices] = given.values
        state.version = given.version

    def _generator(self, what: int, *participant: int) -> np.random.Generator:
        number = (self.first_number + one for one in participant)
        return np.random.default_rng([self.settings.seed, self.round, what, *number])
