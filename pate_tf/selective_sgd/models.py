"""Models of shared training: their parameters as one vector, the paper's networks, shares of data.

What the networks are is read from public code of the same lineage; the paper's text gives no sizes.
Images smaller than 32 x 32 get a border of their lowest value. Inputs are scaled from their public
range to [-1, 1].
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import random_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import FloatArray

layers = keras.layers
Buffers = list[npt.NDArray[Any]]
SIDE = 32


class FlatView:
    """The trainable parameters of a model as a vector float32 `[num_parameters]`.

    What is not trained (the statistics of batch normalization, the state of dropout) is not in it:
    it stays with each participant.

    Args:
        model: from raw inputs to logits.

    Attributes:
        initial_buffers: what the model held besides its parameters at first.

    Raises:
        ValueError: if the model has nothing to train, or parameters of another type than float32.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        variables = model.trainable_variables
        types = sorted({str(variable.dtype) for variable in variables})
        if types != ["float32"]:
            raise ValueError(
                f"model: expected parameters of type float32 to train, got {types or 'none'}"
            )
        self._shapes = [tuple(variable.shape) for variable in variables]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.initial_buffers: Buffers = [one.numpy() for one in model.non_trainable_variables]

    @property
    def num_parameters(self) -> int:
        """How many parameters are trained."""
        return sum(self._sizes)

    def initial(self) -> FloatArray:
        """Returns the parameters that the model holds now."""
        values = [variable.numpy().ravel() for variable in self.model.trainable_variables]
        return np.concatenate(values)

    def pieces(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """Returns a vector as the model's tensors, in its order."""
        parts = tf.split(flat, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def joined(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the model's tensors as a vector; gradients of embeddings are made dense."""
        return tf.concat([tf.reshape(tf.convert_to_tensor(one), [-1]) for one in pieces], 0)

    def loss_and_gradients(
        self,
        pieces: Sequence[tf.Tensor],
        buffers: Sequence[tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
    ) -> tuple[tf.Tensor, Any, Any]:
        """Returns the mean loss in training, its gradients by the pieces, and new buffers.

        Args:
            pieces: parameters, in the model's order.
            buffers: what the model holds besides them.
            inputs: float32 `[batch, *input_shape]`.
            labels: int64 `[batch]`.
        """
        with tf.GradientTape() as tape:
            tape.watch(pieces)
            logits, new_buffers, own_losses = self.model.stateless_call(
                pieces, buffers, inputs, training=True, return_losses=True
            )
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_mean(losses)
            for own_loss in own_losses:
                loss += tf.cast(own_loss, loss.dtype)
        unconnected = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(loss, pieces, unconnected_gradients=unconnected)
        return loss, gradients, new_buffers

    def assign(self, flat: FloatArray, buffers: Buffers | None = None) -> keras.Model:
        """Puts parameters, and buffers or else the initial ones, into the model; returns it."""
        pieces = self.pieces(tf.constant(flat))
        for variable, piece in zip(self.model.trainable_variables, pieces, strict=True):
            variable.assign(piece)
        values = self.initial_buffers if buffers is None else buffers
        for variable, value in zip(self.model.non_trainable_variables, values, strict=True):
            variable.assign(value)
        return self.model


def network(name: Named | None, dataset: Dataset) -> Named:
    """Returns the model that a name stands for here.

    Args:
        name: "cnn" or "mlp" for the paper's, "linear", or another that `models.catalogue.build`
            takes; None for "cnn" where inputs are images, else "mlp".
        dataset: the data it is for.
    """
    chosen = name or ("cnn" if dataset.kind == "image" else "mlp")
    named = {"cnn": cnn, "mlp": mlp, "linear": linear}
    return named.get(chosen, chosen) if isinstance(chosen, str) else chosen


def mlp(dataset: Dataset) -> keras.Model:
    """Hidden layers of 128 and 64 units: 140,106 parameters for gray images."""
    return keras.Sequential(
        [
            *_scaled(dataset),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(dataset.num_classes),
        ]
    )


def linear(dataset: Dataset) -> keras.Model:
    """One layer: few parameters, which noise harms least. It begins at zero."""
    return keras.Sequential(
        [
            *_scaled(dataset)[:2],
            layers.Flatten(),
            layers.Dense(dataset.num_classes, kernel_initializer="zeros"),
        ]
    )


def cnn(dataset: Dataset) -> keras.Model:
    """Two convolutions: 105,506 parameters for gray images, 313,546 for images in colour.

    Raises:
        ValueError: if the data are no images.
    """
    if dataset.kind != "image":
        raise ValueError(f"model cnn: expected images, got {dataset.kind} {dataset.name}")
    if dataset.input_shape[-1] == 1:
        first, second, units, pool = 32, 64, 200, 3
    else:
        first, second, units, pool = 64, 64, 128, 2
    return keras.Sequential(
        [
            *_scaled(dataset),
            layers.Conv2D(first, 5, activation="tanh"),
            layers.MaxPooling2D(pool),
            layers.Conv2D(second, 5, activation="tanh"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(units, activation="tanh"),
            layers.Dense(dataset.num_classes),
        ]
    )


def _scaled(dataset: Dataset) -> list[Any]:
    low, high = (np.asarray(values, np.float64) for values in dataset.value_range)
    scale = 2.0 / (high - low)
    scaled: list[Any] = [
        keras.Input(dataset.input_shape),
        layers.Rescaling(scale.tolist(), offset=(-1.0 - low * scale).tolist()),
    ]
    if dataset.kind != "image":
        return scaled
    missing = [max(0, SIDE - side) for side in dataset.input_shape[:2]]
    border = tuple((one // 2, one - one // 2) for one in missing)
    # A border of -1: zeros around what is one above, moved back.
    return [
        *scaled,
        layers.Rescaling(1.0, offset=1.0),
        layers.ZeroPadding2D(border),
        layers.Rescaling(1.0, offset=-1.0),
    ]


def dealt_shares(
    num_records: int, num_participants: int, records_each: int | None, *, seed: int
) -> list[IntArray]:
    """Returns the records of each participant, int64 indices, ascending.

    All records evenly, or shares of one size: disjoint as long as there are enough records, then
    overlapping, as in the paper (150 participants of 600 of MNIST's 60,000). A record's places
    depend on its position and public numbers alone.

    Raises:
        ValueError: if there are too few records.
    """
    if records_each is None:
        return random_partition(
            num_records=num_records, num_teachers=num_participants, seed=seed
        ).all_records()
    if not 1 <= records_each <= num_records:
        raise ValueError(
            f"records_each: expected between 1 and {num_records} records, got {records_each}"
        )
    generator = np.random.default_rng(seed)
    dealt: list[IntArray] = []
    while len(dealt) < num_participants:
        order = generator.permutation(num_records)
        whole = num_records // records_each
        dealt += [np.sort(one) for one in order[: whole * records_each].reshape(whole, -1)]
    return dealt[:num_participants]


def dealt(
    private: PrivateExamples, settings: Settings, records_each: int | None
) -> tuple[list[PrivateExamples], int]:
    """Returns the shares of a data set's records, and how many hold one record at most."""
    number = settings.num_participants
    rows = dealt_shares(len(private), number, records_each, seed=settings.seed)
    shares = [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in rows
    ]
    return shares, most_holders(rows)


def most_holders(shares: Sequence[IntArray]) -> int:
    """Returns how many participants hold one record at most, from public numbers alone."""
    return int(np.bincount(np.concatenate(shares)).max())
