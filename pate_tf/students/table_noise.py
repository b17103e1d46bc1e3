"""Gaussian noise for training at the price of a copy."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

TABLE_SIZE = 2**20  # 4 MiB; a batch of 300 takes a quarter of it in the widest layer


@keras.saving.register_keras_serializable("pate_tf")
class TableNoise(keras.layers.Layer):
    """Adds Gaussian noise in training, like `keras.layers.GaussianNoise`, from a table.

    Drawing fresh normal values takes a third of a training step of the improved GAN's dense
    networks. Here a batch takes consecutive values of a fixed table of 2^20 draws, from a place
    that is drawn each time. This has nothing to do with privacy noise.
    """

    def __init__(self, stddev: float, *, seed: int, **kwargs: Any) -> None:
        """Takes what the noise is.

        Args:
          stddev: standard deviation.
          seed: fixes the table and the places.
          **kwargs: of `keras.layers.Layer`.
        """
        super().__init__(**kwargs)
        self.stddev = stddev
        self.seed = seed
        self._places = keras.random.SeedGenerator(seed)
        self._table = np.random.default_rng(seed).normal(0.0, stddev, TABLE_SIZE)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the inputs, in training with noise."""
        if not training:
            return inputs
        table = tf.constant(self._table, inputs.dtype)
        needed = tf.size(inputs)
        # Batches larger than the table meet its values again.
        table = tf.cond(
            needed < TABLE_SIZE, lambda: table, lambda: tf.tile(table, [needed // TABLE_SIZE + 1])
        )
        place = keras.random.uniform([], seed=self._places)
        start = tf.cast(place * tf.cast(tf.size(table) - needed, tf.float32), tf.int32)
        noise = tf.slice(table, [tf.minimum(start, tf.size(table) - needed)], [needed])
        return inputs + tf.reshape(noise, tf.shape(inputs))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "stddev": self.stddev, "seed": self.seed}
