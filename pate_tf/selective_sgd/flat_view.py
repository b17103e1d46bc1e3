"""One flat view of a Keras model: all that is trained as one vector, all else apart."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

FloatArray = npt.NDArray[np.float32]
Buffers = list[npt.NDArray[Any]]


class FlatView:
    """The trainable parameters of a model as a vector float32 `[num_parameters]`.

    What is not trained (the statistics of batch normalization, the state of dropout) is not in it:
    it stays with each participant.

    Args:
      model: from raw inputs to logits.

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

    @property
    def num_parameters(self) -> int:
        """How many parameters are trained."""
        return sum(self._sizes)

    def initial(self) -> FloatArray:
        """Returns the parameters that the model holds now."""
        values = [variable.numpy().ravel() for variable in self.model.trainable_variables]
        return np.concatenate(values)

    def buffers(self) -> Buffers:
        """Returns what the model holds beside them."""
        return [variable.numpy() for variable in self.model.non_trainable_variables]

    def pieces(self, flat: tf.Tensor) -> list[tf.Tensor]:
        """Returns a vector as the model's tensors, in its order."""
        parts = tf.split(flat, self._sizes)
        return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def joined(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the model's tensors as a vector; gradients of embeddings are made dense."""
        return tf.concat([tf.reshape(tf.convert_to_tensor(one), [-1]) for one in pieces], 0)

    def assign(self, flat: FloatArray, buffers: Buffers) -> keras.Model:
        """Puts parameters and the rest into the model, and returns it."""
        pieces = self.pieces(tf.constant(flat))
        for variable, piece in zip(self.model.trainable_variables, pieces, strict=True):
            variable.assign(piece)
        for variable, value in zip(self.model.non_trainable_variables, buffers, strict=True):
            variable.assign(value)
        return self.model
