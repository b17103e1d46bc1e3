"""Layers whose kernel is a direction times a scale, set so that outputs start standardised.

Salimans and Kingma, "Weight Normalization", 2016 (arXiv 1602.07868): the parameters (section 2)
and the initialisation from data (section 3).
"""

from typing import Any

import keras
import tensorflow as tf

SMALLEST_DEVIATION = 1e-6


class _WeightNormalized(keras.layers.Layer):
    """Kernel, bias and activation; a subclass says how a kernel is shaped and applied."""

    def __init__(
        self,
        units: int,
        *,
        seed: int,
        activation: str | None = None,
        train_scale: bool = False,
        stddev: float = 0.1,
        **kwargs: Any,
    ) -> None:
        """Takes the layer's sizes.

        Args:
          units: number of outputs a position.
          seed: fixes the initial directions.
          activation: Keras' name of it; None for a linear layer.
          train_scale: whether the scales are trained, or stay as the data set them.
          stddev: of the initial directions; the longer they are, the slower they turn.
          **kwargs: of `keras.layers.Layer`.
        """
        super().__init__(**kwargs)
        self.units = units
        self.seed = seed
        self.activation = keras.activations.get(activation)
        self.train_scale = train_scale
        self.stddev = stddev

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates direction, scale and bias."""
        self.direction = self.add_weight(
            name="direction",
            shape=self._kernel_shape(input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=self.stddev, seed=self.seed),
        )
        self.scale = self.add_weight(
            name="scale", shape=(self.units,), initializer="ones", trainable=self.train_scale
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the activations."""
        return self.activation(self._linear(inputs) + self.bias)

    def initialize_from(self, inputs: tf.Tensor) -> None:
        """Sets scale and bias so that each unit has mean 0 and deviation 1 before activation."""
        outputs = self._linear(inputs)
        axes = list(range(len(outputs.shape) - 1))
        mean, variance = tf.nn.moments(outputs, axes)
        deviation = tf.sqrt(variance)
        # A unit that the data leaves constant keeps its scale.
        factor = tf.where(deviation > SMALLEST_DEVIATION, 1.0 / deviation, 1.0)
        self.bias.assign(-mean * factor)
        self.scale.assign(self.scale * factor)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "units": self.units,
            "seed": self.seed,
            "activation": keras.activations.serialize(self.activation),
            "train_scale": self.train_scale,
            "stddev": self.stddev,
        }

    def _linear(self, inputs: tf.Tensor) -> tf.Tensor:
        axes = list(range(len(self.direction.shape) - 1))
        norm = tf.sqrt(tf.reduce_sum(tf.square(self.direction), axis=axes))
        return self._apply(inputs, self.direction * (self.scale / norm))

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        raise NotImplementedError

    def _apply(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError


@keras.saving.register_keras_serializable("pate_tf")
class WeightNormalizedDense(_WeightNormalized):
    """From `[batch, channels]` (or more dimensions between) to `[batch, units]`."""

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return channels, self.units

    def _apply(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, kernel)


@keras.saving.register_keras_serializable("pate_tf")
class WeightNormalizedConvolution(_WeightNormalized):
    """3x3 convolution from `[batch, height, width, channels]` to `units` channels."""

    def __init__(
        self, units: int, *, stride: int = 1, padding: str = "SAME", **kwargs: Any
    ) -> None:
        """Takes the layer's sizes.

        Args:
          units: number of channels it returns.
          stride: pixels from one position to the next.
          padding: "SAME" or "VALID".
          **kwargs: as every weight-normalised layer takes them.
        """
        super().__init__(units, **kwargs)
        self.stride = stride
        self.padding = padding

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "stride": self.stride, "padding": self.padding}

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return 3, 3, channels, self.units

    def _apply(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(inputs, kernel, strides=self.stride, padding=self.padding)


def initialize_from_data(model: keras.Sequential, inputs: tf.Tensor) -> None:
    """Sets the weight-normalised layers of a model, first to last, from one batch.

    Args:
      model: layers one after another.
      inputs: raw inputs `[batch, *input_shape]`; some hundred are enough.
    """
    outputs = inputs
    for layer in model.layers:
        if isinstance(layer, _WeightNormalized):
            layer.initialize_from(outputs)
        outputs = layer(outputs, training=True)
