"""Models of shared training: their parameters as one vector, and shards of a data set."""

from collections.abc import Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named
from pate_tf.models import catalogue

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
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
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


def partition_records(
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
