"""Asks a model in memory."""

from collections.abc import Callable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

FloatArray = npt.NDArray[np.float64]

BATCH = 500  # inputs; larger batches fall out of the cache and take longer an input


def outputs(model: Callable[..., tf.Tensor], inputs: npt.NDArray[np.generic]) -> FloatArray:
    """Returns a model's outputs, `[num_inputs, ...]`.

    Args:
      model: called as a Keras model is.
      inputs: raw, `[num_inputs, *input_shape]`, at least one.
    """
    parts = [
        keras.ops.convert_to_numpy(
            model(tf.constant(inputs[start : start + BATCH], tf.float32), training=False)
        )
        for start in range(0, len(inputs), BATCH)
    ]
    return np.concatenate(parts).astype(np.float64)
