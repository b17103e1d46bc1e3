"""Models, participants, and rounds in which they download, train on their records, and upload.

All participants of a process share one traced graph. On CPUs one participant after another beats
several at once for convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.models import catalogue
from pate_tf.selective_sgd.server import Parameters, ParameterServer, Upload
from pate_tf.selective_sgd.settings import TrainingSettings

if TYPE_CHECKING:
    from pate_tf.selective_sgd.network import RemoteServer

FloatArray = npt.NDArray[np.float32]


class FlatView:
    """The parameters of a model as a vector float32 `[num_parameters]`.

    Args:
        model: from raw inputs to logits.

    Raises:
        ValueError: if the model has nothing to train, parameters of another type than float32, or
            variables that are not trained, such as statistics of batch normalization.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        if model.non_trainable_variables:
            raise ValueError(
                "model: expected one that treats records apart and holds trained parameters alone, "
                "without batch normalization and dropout, got another"
            )
        types = sorted({str(variable.dtype) for variable in model.trainable_variables})
        if types != ["float32"]:
            raise ValueError(
                f"model: expected parameters of type float32 to train, got {types or 'none'}"
            )
        self._shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.num_parameters = sum(self._sizes)

    def parameters(self) -> FloatArray:
        """Returns the parameters that the model holds now."""
        values = [variable.numpy().ravel() for variable in self.model.trainable_variables]
        return np.concatenate(values)

    def assign(self, parameters: FloatArray) -> keras.Model:
        """Puts parameters into the model; returns it."""
        pieces = self.pieces(tf.constant(parameters))
        for variable, piece in zip(self.model.trainable_variables, pieces, strict=True):
            variable.assign(piece)
        return self.model

    def pieces(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """Returns a vector as the model's tensors, in its order."""
        parts = tf.split(flat, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def loss_and_gradient(
        self, pieces: Sequence[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean loss in training, and its gradient float32 `[num_parameters]`.

        Args:
            pieces: parameters, in the model's order.
            inputs: float32 `[batch, *input_shape]`.
            labels: int64 `[batch]`.
        """
        with tf.GradientTape() as tape:
            tape.watch(pieces)
            logits, _, regularization = self.model.stateless_call(
                pieces, [], inputs, training=True, return_losses=True
            )
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, tf.cast(logits, tf.float32), from_logits=True
            )
            loss = tf.reduce_mean(losses)
            for penalty in regularization:
                loss += tf.cast(penalty, loss.dtype)
        unconnected = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, pieces, unconnected_gradients=unconnected)
        # Gradients of embeddings are made dense.
        flat = [tf.reshape(tf.convert_to_tensor(gradient), [-1]) for gradient in gradients]
        return loss, tf.concat(flat, 0)


def build(name: Named | None, dataset: Dataset, *, seed: int) -> keras.Model:
    """Returns a model from raw inputs to logits.

    Args:
        name: "linear", or another that `models.catalogue.build` takes. Default: "cnn" for images,
            else "mlp".
        dataset: the data it is for.
        seed: of the initial parameters.
    """
    builder = name or catalogue.default_model(dataset)
    return catalogue.build(linear if builder == "linear" else builder, dataset, seed=seed)


def linear(dataset: Dataset) -> keras.Model:
    """One layer: few parameters, which noise harms least. It begins at zero."""
    low, high = (np.asarray(values, np.float64) for values in dataset.value_range)
    scale = 2.0 / (high - low)
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(scale.tolist(), offset=(-1.0 - low * scale).tolist()),
            keras.layers.Flatten(),
            keras.layers.Dense(dataset.num_classes, kernel_initializer="zeros"),
        ]
    )


def private_shards(
    private: PrivateExamples, num_participants: int, *, seed: int
) -> list[PrivateExamples]:
    """SENSITIVE: returns disjoint shards of a data set's records, one for each participant.

    A record's shard depends on its position and public numbers alone.
    """
    order = np.random.default_rng(seed).permutation(len(private))
    return [
        PrivateExamples(private.dataset, private.inputs[rows], private.labels[rows])
        for rows in map(np.sort, np.array_split(order, num_participants))
    ]


SHUFFLE = 3  # the third number of the seed that orders records


class NotFiniteError(ValueError):
    """Training of one participant came to numbers that are not finite. SENSITIVE that it did."""


def largest(changes: FloatArray, number: int) -> IntArray:
    """Returns the indices of the largest changes in absolute value, ascending, `[number]`.

    They depend on private records: without noise on them they protect no one.
    """
    if number >= len(changes):
        return np.arange(len(changes))
    return np.sort(np.argpartition(-np.abs(changes), number - 1)[:number])


class Participants:
    """SENSITIVE: records of participants, and what they upload of them.

    Without noise nothing here is private: uploads tell about the records they come from, also where
    few are selected.

    Args:
        settings: of the run.
        model: a Keras model from raw inputs to logits.
        records: by the participant's number, from 0.

    Raises:
        ValueError: if model and records do not fit.
    """

    def __init__(
        self, settings: TrainingSettings, model: keras.Model, records: Mapping[int, PrivateExamples]
    ) -> None:
        if not all(map(len, records.values())):
            raise ValueError("records: expected some of every participant, got one without any")
        self.settings, self.records, self.view = settings, records, FlatView(model)
        self._local_sgd = tf.function(self._run, autograph=False, reduce_retracing=True)

    def upload(
        self, participant: int, round_number: int, parameters: Parameters
    ) -> tuple[Upload, float]:
        """Trains on what was downloaded; returns the upload, and the mean local loss.

        Raises:
            NotFiniteError: if the loss or the parameters are not finite.
        """
        settings = self.settings
        change, loss = self.change(participant, round_number, parameters.values)
        indices = largest(change, settings.num_uploaded(self.view.num_parameters))
        values, gamma = change[indices], settings.gamma
        if gamma is not None:
            values = np.clip(values, np.float32(-gamma), np.float32(gamma))
        upload = Upload(
            participant=participant,
            round=round_number,
            version=parameters.version,
            indices=indices,
            values=values,
        )
        return upload, loss

    def change(
        self, participant: int, round_number: int, parameters: FloatArray
    ) -> tuple[FloatArray, float]:
        """Returns how a local epoch of SGD changes the parameters, and the mean loss.

        Raises:
            NotFiniteError: if they are not finite.
        """
        share = self.records[participant]
        generator = np.random.default_rng([self.settings.seed, round_number, SHUFFLE, participant])
        change, loss = self._local_sgd(
            tf.constant(parameters),
            tf.constant(share.inputs),
            tf.constant(share.labels),
            tf.constant(generator.permutation(len(share))),
            tf.constant(self.settings.learning_rate_at(round_number), tf.float32),
        )
        changes = np.asarray(change.numpy())
        with np.errstate(over="ignore"):
            if not np.isfinite([loss.numpy(), np.abs(parameters + changes).max()]).all():
                raise NotFiniteError(
                    "participants: expected a finite loss, got NaN or infinity; try a lower "
                    "learning_rate"
                )
        return changes, float(loss)

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Any:
        """Moves the change since the download, not the parameters.

        So one step uploads -learning_rate * gradient to the last bit, not a difference of two
        roundings.
        """
        size = self.settings.batch_size
        num_steps = (tf.size(order) + size - 1) // size

        def body(step: tf.Tensor, change: tf.Tensor, total: tf.Tensor) -> Any:
            batch = order[step * size : (step + 1) * size]
            records = tf.cast(tf.gather(inputs, batch), tf.float32)
            loss, gradient = self.view.loss_and_gradient(
                self.view.pieces(parameters + change), records, tf.gather(labels, batch)
            )
            return step + 1, change - learning_rate * gradient, total + loss

        _, change, total = tf.while_loop(
            lambda step, *_: step < num_steps,
            body,
            (tf.constant(0), tf.zeros_like(parameters), tf.constant(0.0)),
        )
        return change, total / tf.cast(num_steps, tf.float32)


class SharedTraining:
    """SENSITIVE: rounds of participants, which train on what a server has.

    Args:
        participants: those of this process.
        server: of all participants.

    Attributes:
        round: the round that comes next, from 0.
    """

    def __init__(self, participants: Participants, server: ParameterServer | RemoteServer) -> None:
        self.participants, self.server = participants, server
        self.round = 0
        self._downloaded: dict[int, Parameters] = {}

    def run_round(self) -> float:
        """Lets every participant take its turn; returns the mean local loss. SENSITIVE.

        Raises:
            ValueError: if an upload was refused or, without noise, a loss is not finite.
        """
        participants, settings = self.participants, self.participants.settings
        # A participant trains while the others of this process upload.
        is_stale = settings.protocol == "asynchronous" and len(participants.records) > 1
        if is_stale and not self._downloaded:
            self._downloaded = {each: self._pull(each, self.round) for each in participants.records}
        losses = []
        for each in participants.records:
            parameters = self._downloaded.pop(each, None) or self._pull(each, self.round)
            upload, loss = participants.upload(each, self.round, parameters)
            self.server.push(upload)
            losses.append(loss)
            if is_stale and self.round + 1 < settings.rounds:
                self._downloaded[each] = self._pull(each, self.round + 1)
        self.round += 1
        return float(np.mean(losses))

    def _pull(self, participant: int, round_number: int) -> Parameters:
        parameters = self.server.pull(participant, round_number)
        if parameters is None:
            raise ValueError(f"participant {participant}: expected its turn, it has not come")
        return parameters
