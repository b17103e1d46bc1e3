"""Local training: participants download parameters, train on their records, and upload changes.

All participants in a process use the same traced graph. For convolutions on CPUs, training
participants one after another is faster than training several at the same time.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.accounting.conversions import check_delta
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named
from pate_tf.models import architectures
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.selective_sgd.run_state import DurableRun, LedgerFacts
from pate_tf.selective_sgd.server import FloatArray, Parameters, ParameterServer, Upload
from pate_tf.selective_sgd.training_settings import LATTICE, TrainingSettings, noise_scale

if TYPE_CHECKING:
    from pate_tf.selective_sgd.network import RemoteServer


class FlatView:
    """Reads and sets the parameters of a model as a vector, float32 `[num_parameters]`.

    Args:
        model: a Keras model that maps raw inputs to logits.

    Raises:
        ValueError: if the model has no trainable parameters, or has non-trainable variables, such
            as statistics of batch normalization.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        if model.non_trainable_variables:
            raise ValueError(
                "the model must process each record separately and have only trainable parameters; "
                "remove layers such as batch normalization and dropout"
            )
        if not model.trainable_variables:
            raise ValueError("the model has no trainable parameters")
        self._shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.num_parameters = sum(self._sizes)

    def parameters(self) -> FloatArray:
        """Returns the current parameters of the model."""
        values = [variable.numpy().ravel() for variable in self.model.trainable_variables]
        return np.concatenate(values)

    def assign(self, parameters: FloatArray) -> keras.Model:
        """Assigns parameters to the model, and returns the model."""
        pieces = self.pieces(tf.constant(parameters))
        for variable, piece in zip(self.model.trainable_variables, pieces, strict=True):
            variable.assign(piece)
        return self.model

    def pieces(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """Splits a vector into tensors, which have the shapes of the model's parameters."""
        parts = tf.split(flat, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def loss_and_gradient(
        self, pieces: Sequence[tf.Tensor], inputs: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the mean training loss, and its gradient as a vector, float32 `[num_parameters]`.

        Args:
            pieces: the parameters as tensors, in the order of the model; see the method `pieces`.
            inputs: raw inputs, float32 `[batch, *input_shape]`.
            labels: classes, int64 `[batch]`.
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
        # The conversion also makes sparse gradients of embeddings dense.
        flat = [tf.reshape(tf.convert_to_tensor(gradient), [-1]) for gradient in gradients]
        return loss, tf.concat(flat, 0)


def build(name: Named | None, dataset: Dataset, *, seed: int) -> keras.Model:
    """Builds a Keras model that maps raw inputs to logits.

    Args:
        name: "linear", or another name that `models.architectures.build` accepts. Default: "cnn"
            for images, else "mlp".
        dataset: data set that defines the input shape and the classes.
        seed: seed of the initial parameters.
    """
    builder = name or architectures.default_model(dataset)
    return architectures.build(linear if builder == "linear" else builder, dataset, seed=seed)


def linear(dataset: Dataset) -> keras.Model:
    """Builds a linear classifier: a single layer, initialized to zero.

    This model has few parameters, so noise harms it less than other models.
    """
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
    """SENSITIVE: partitions the records of a data set into shards, one for each participant.

    A record's shard depends only on the record's position and on public numbers.
    """
    order = np.random.default_rng(seed).permutation(len(private))
    return [
        PrivateExamples(private.dataset, private.inputs[rows], private.labels[rows])
        for rows in map(np.sort, np.array_split(order, num_participants))
    ]


SHUFFLE = 3  # third component of the seed that determines the order of records


def largest(changes: FloatArray, number: int) -> IntArray:
    """Returns the indices of the largest changes by absolute value, ascending, `[number]`.

    These indices depend on private records. Without noise, an upload reveals them.
    """
    if number >= len(changes):
        return np.arange(len(changes))
    return np.sort(np.argpartition(-np.abs(changes), number - 1)[:number])


class Participants:
    """SENSITIVE: trains on the records of participants and computes their uploads.

    This class adds no noise, so uploads reveal information about the records, even if an upload
    contains only a few changes.

    Args:
        settings: settings of the run.
        model: a Keras model from raw inputs to logits.
        records: records of each participant, by its number from 0.

    Raises:
        ValueError: if the model does not fit `FlatView`, or a participant has no records.
    """

    def __init__(
        self, settings: TrainingSettings, model: keras.Model, records: Mapping[int, PrivateExamples]
    ) -> None:
        if not all(map(len, records.values())):
            raise ValueError("a participant has no records. Use fewer participants.")
        self.settings = settings
        self.records = records
        self.view = FlatView(model)
        self._local_sgd = tf.function(self._run, autograph=False, reduce_retracing=True)

    def upload(
        self, participant: int, round_number: int, parameters: Parameters
    ) -> tuple[Upload, float]:
        """Trains a participant on downloaded parameters; returns its upload and the mean loss.

        Raises:
            ValueError: if the loss or the parameters are not finite.
        """
        indices, values, loss = self._selected(participant, round_number, parameters.values)
        upload = Upload(
            participant=participant,
            round=round_number,
            version=parameters.version,
            indices=indices,
            values=values,
        )
        return upload, loss

    def _selected(
        self, participant: int, round_number: int, parameters: FloatArray
    ) -> tuple[IntArray, FloatArray, float]:
        """Returns the indices of an upload, its values, and the participant's mean loss."""
        change, loss = self.change(participant, round_number, parameters)
        indices = largest(change, self.settings.num_uploaded(self.view.num_parameters))
        values = change[indices]
        gamma = self.settings.gamma
        if gamma is not None:
            values = np.clip(values, np.float32(-gamma), np.float32(gamma))
        return indices, values, loss

    def change(
        self, participant: int, round_number: int, parameters: FloatArray
    ) -> tuple[FloatArray, float]:
        """Returns the change of the parameters after one epoch of local SGD, and the mean loss.

        Raises:
            ValueError: if the loss or the parameters are not finite.
        """
        shard = self.records[participant]
        generator = np.random.default_rng([self.settings.seed, round_number, SHUFFLE, participant])
        order = generator.permutation(len(shard))
        rate = np.float32(self.settings.learning_rate_at(round_number))
        change, loss = self._local_sgd(parameters, shard.inputs, shard.labels, order, rate)
        changes = np.asarray(change.numpy())
        with np.errstate(over="ignore"):
            if not np.isfinite([loss.numpy(), np.abs(parameters + changes).max()]).all():
                raise ValueError("training diverged: the loss is not finite; lower `learning_rate`")
        return changes, float(loss)

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Any:
        """Runs local SGD. The loop computes the change of the parameters since the download.

        Accumulating the change avoids the rounding error of subtracting parameters. After a single
        step, the change is exactly -learning_rate * gradient.
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


# The rest of this module computes uploads with noise. They are charged before they are sent, and
# the charge is at least their privacy cost.

MAX_GRADIENT_ENTRIES = 2**25  # maximum total number of entries of a batch's gradients
MAX_RECORDS = 1024  # maximum number of records in a batch
# This factor is below 1 by more than the rounding error of a norm in float64, so no scaled gradient
# has a norm above `LATTICE`.
JUST_BELOW = 1.0 - 1e-9
# TensorFlow uses this operation for branches. Models that contain it are refused, because the batch
# in which it computes a record would depend on the branches that other records take.
BRANCHING_OPERATION = "DynamicPartition"
CHOICE = 5  # third component of the seed that determines the uploaded parameters
TWO_TO_64 = 2.0**64


class RecordGradients:
    """Computes exact sums of the clipped gradients of records.

    Guarantee. A sum consists of one vector for each drawn record, and is exact. Each vector has
    integer entries and a norm of at most `LATTICE`. A vector depends only on its record, on the
    record's position among the participant's records and on public values. It does not depend on
    which other records were drawn, for these reasons:

    - A record is always computed at the same position of a batch of the same size. This position
      and size follow from the record's position among the participant's records and from the number
      of records, which is public. Other positions contain other records or a fixed input. The last
      bits of a row of a matrix product depend on the size of the batch and on the position of the
      row, but not on the values of other rows. At a threshold of the model, these bits could change
      the whole gradient.
    - Gradients are scaled in float64 and rounded toward zero, which never increases a norm.
      Integers are added exactly.
    - The vector of a record is zero if the record's gradient is not finite, or if an operation of
    the model fails for the record.

    Args:
        view: the parameters of the model. The model must process each record separately, without
            branches that depend on a record.
        shards: records of each participant, by its number. All participants use the same batch
            size.

    Raises:
        ValueError: if the model does not process each record separately, or does not accept records
            of the data set.
    """

    def __init__(self, view: FlatView, shards: Mapping[int, PrivateExamples]) -> None:
        for shard in shards.values():
            shard.dataset.require_classes("shared training")
        self._view = view
        self._shards = shards
        most = int(np.clip(MAX_GRADIENT_ENTRIES // view.num_parameters, 2, MAX_RECORDS))
        self._num_places = min(most - 1, max(map(len, shards.values())))
        # Position 0 of every batch contains the fixed input. If an operation fails for the fixed
        # input, it therefore fails in every batch, independently of the drawn records.
        size = self._num_places + 1
        dataset = next(iter(shards.values())).dataset
        fixed = np.broadcast_to(np.asarray(dataset.value_range[0]), dataset.input_shape)
        self._fixed = np.stack([fixed.astype(np.float32)] * size)
        self._graph = tf.function(
            self._run,
            autograph=False,
            input_signature=[
                tf.TensorSpec([view.num_parameters], tf.float32),
                tf.TensorSpec(self._fixed.shape, tf.float32),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([size], tf.bool),
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([], tf.float64),
            ],
        )
        # Traces the graph, rejects branches, and runs the graph once without drawn records.
        graph = self._graph.get_concrete_function().graph.as_graph_def()
        functions = [function.node_def for function in graph.library.function]
        if any(
            node.op == BRANCHING_OPERATION for nodes in (graph.node, *functions) for node in nodes
        ):
            raise ValueError(
                "the model has branches that depend on a record. Privacy of individual records "
                "requires a model that processes each record separately. Remove the branches."
            )
        none = np.zeros(len(self._fixed), np.int64)
        try:
            self._graph(view.parameters(), self._fixed, none, none > 0, none[:1], np.float64(1))
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "the model does not accept inputs of the data set: it fails for the lowest value "
                f"of their range: {str(error).splitlines()[0]}"
            ) from error

    def clipped_sum(
        self,
        participant: int,
        drawn: IntArray,
        parameters: FloatArray,
        *,
        indices: IntArray,
        clip: float,
    ) -> IntArray:
        """SENSITIVE: returns the sum, int64 `[num_indices]`, in units of clip / LATTICE.

        Args:
            participant: number of the participant.
            drawn: positions of the drawn records, without duplicates, int64 `[num_drawn]`.
            parameters: parameters of the model, float32 `[num_parameters]`.
            indices: indices of the uploaded parameters.
            clip: maximum norm of a record's gradient with respect to the uploaded parameters;
                longer gradients are scaled down to this norm.
        """
        shard = self._shards[participant]

        def sum_of(rows: IntArray) -> IntArray:
            """Returns the sum over records that have different positions in the batch."""
            places = 1 + rows % self._num_places
            inputs = self._fixed.copy()
            inputs[places] = shard.inputs[rows]
            labels = np.zeros(len(self._fixed), np.int64)
            labels[places] = shard.labels[rows]
            is_drawn = np.zeros(len(self._fixed), np.bool_)
            is_drawn[places] = True
            try:
                total = self._graph(parameters, inputs, labels, is_drawn, indices, np.float64(clip))
                return np.asarray(total.numpy())
            except tf.errors.InvalidArgumentError:
                # An operation failed for at least one record. The sum must still include all other
                # records, so each record is computed separately.
                total = np.zeros(len(indices), np.int64)
                for row in rows[:, np.newaxis] if len(rows) > 1 else ():
                    total += sum_of(row)
                return total

        # Each batch contains the drawn records among the next `_num_places` records of the shard.
        total = np.zeros(len(indices), np.int64)
        for start in range(0, len(shard), self._num_places):
            is_here = (drawn >= start) & (drawn < start + self._num_places)
            total += sum_of(drawn[is_here])
        return total

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        is_drawn: tf.Tensor,
        indices: tf.Tensor,
        clip: tf.Tensor,
    ) -> tf.Tensor:
        pieces = self._view.pieces(parameters)

        def gradient(record: Any) -> tf.Tensor:
            single, label = record
            _, flat = self._view.loss_and_gradient(pieces, single[tf.newaxis], label[tf.newaxis])
            return tf.gather(flat, indices)

        gradients = tf.cast(tf.vectorized_map(gradient, (inputs, labels)), tf.float64)
        lengths = tf.sqrt(tf.reduce_sum(gradients**2, axis=1, keepdims=True))
        steps = LATTICE * JUST_BELOW / tf.maximum(lengths, clip)
        # The cast rounds toward zero. The sum excludes gradients that are not finite.
        is_counted = is_drawn[:, tf.newaxis] & tf.math.is_finite(lengths)
        whole = tf.cast(tf.where(is_counted, gradients * steps, 0.0), tf.int64)
        return tf.reduce_sum(whole, axis=0)


class NoisyParticipants(Participants):
    """SENSITIVE: participants in this process, which add Gaussian noise to their uploads.

    Guarantee. All uploads of a participant together are differentially private under replacement of
    one record, at the cost that is recorded in the participant's ledger. This protects against
    everyone else, including the server (docs/proofs/selective_sgd.md, Theorems F1 to F3). The
    public seed determines which parameters are uploaded. Which records are drawn remains secret. No
    private record can stop a run or prevent an upload: a record contributes nothing if its gradient
    is not finite, or if an operation of the model fails for this record.

    Args:
        settings: settings of the run.
        model: a Keras model from raw inputs to logits.
        records: records of each participant, by its number from 0.
        run: object that stores the run and its ledger. All rounds are charged to the ledger after
            all other checks have passed, and before any record or noise is drawn.
        noise: source of the noise and of the random choice of records. Default: the operating
            system's entropy.
        declare: function that is called with the facts of the ledger after the charge.

    Raises:
        ValueError: if the settings, the model and the records do not fit together, or if there is
            no `run`. In this case, nothing was charged.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        model: keras.Model,
        records: Mapping[int, PrivateExamples],
        *,
        run: DurableRun | None,
        noise: NoiseSource | None = None,
        declare: Callable[[LedgerFacts], object] = lambda facts: None,
    ) -> None:
        super().__init__(settings, model, records)
        charge = settings.charge()
        if charge is None or run is None:
            raise ValueError("directory is required for privacy='record', to store the ledger")
        check_delta(settings.delta, sum(map(len, records.values())), settings.privacy)
        self._noise = noise or SystemNoise()
        self._scale = noise_scale(charge)
        self._gradients = RecordGradients(self.view, records)
        declare(run.charge(charge, secure_noise=self._noise.is_secure))

    def _selected(
        self, participant: int, round_number: int, parameters: FloatArray
    ) -> tuple[IntArray, FloatArray, float]:
        """Returns the indices of an upload, its noisy values, and NaN, as the loss is private."""
        settings = self.settings
        num_parameters = self.view.num_parameters
        generator = np.random.default_rng([settings.seed, round_number, CHOICE])
        chosen = generator.permutation(num_parameters)[: settings.num_uploaded(num_parameters)]
        indices = np.sort(chosen)
        # Uses the number of all records, which is public. The number of drawn records is secret.
        number = len(self.records[participant])
        drawn = np.arange(number)
        if settings.sampling_rate < 1.0:
            below = np.uint64(min(int(settings.sampling_rate * TWO_TO_64), 2**64 - 1))
            drawn = np.flatnonzero(self._noise.words(number) < below)
        exact = self._gradients.clipped_sum(
            participant, drawn, parameters, indices=indices, clip=settings.clip
        )
        step = settings.clip / LATTICE
        step *= -settings.learning_rate_at(round_number) / (settings.sampling_rate * number)
        noisy = exact + self._noise.gaussian_integers(self._scale, len(indices))
        return indices, (noisy * step).astype(np.float32), math.nan


def participants_of(
    settings: TrainingSettings,
    model: keras.Model,
    records: Mapping[int, PrivateExamples],
    **options: Any,
) -> Participants:
    """Returns `NoisyParticipants` if the settings require noise, else `Participants`."""
    if settings.is_noisy:
        return NoisyParticipants(settings, model, records, **options)
    return Participants(settings, model, records)


@dataclasses.dataclass(repr=False, eq=False)
class SharedTraining:
    """SENSITIVE: runs rounds in which participants exchange parameters with a server.

    Attributes:
        participants: the participants in this process.
        server: the parameter server, in this process or over a network.
        round: number of the next round, from 0.
    """

    participants: Participants
    server: "ParameterServer | RemoteServer"
    round: int = 0
    _downloaded: dict[int, Parameters] = dataclasses.field(default_factory=dict, init=False)

    def run_round(self) -> float:
        """SENSITIVE: every participant trains and uploads once; returns the mean loss.

        Raises:
            ValueError: if an upload was refused, or if there is no noise and a loss is not finite.
        """
        participants = self.participants
        settings = participants.settings
        # Simulates outdated parameters, as if participants train while others upload: all
        # participants download before the first participant uploads.
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
            raise ValueError(f"it is not yet the turn of participant {participant}")
        return parameters
