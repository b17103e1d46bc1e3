"""Generated images in TensorBoard."""

import pathlib
from collections.abc import Mapping

import keras
import tensorflow as tf

from pate_tf.students.gan_networks import LATENT_SIZE
from pate_tf.students.pixels import pixel_range

EPOCHS_BETWEEN = 5
SIDE = 10


class SampleImages(keras.callbacks.Callback):
    """Writes a grid of images every few epochs, always from the same latent values."""

    def __init__(self, logs: pathlib.Path, *, seed: int) -> None:
        """Takes where TensorBoard looks.

        Args:
          logs: the folder of the student's logs.
          seed: fixes the latent values.
        """
        super().__init__()
        self._logs = logs
        self._latent = tf.random.stateless_uniform([SIDE * SIDE, LATENT_SIZE], [seed, 0])

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Generates and writes one grid."""
        del logs
        if (epoch + 1) % EPOCHS_BETWEEN and epoch + 1 < self.params["epochs"]:
            return
        writer = tf.summary.create_file_writer(str(self._logs))
        with writer.as_default():
            tf.summary.image("generated", self.grid(), step=epoch)
        writer.close()

    def grid(self) -> tf.Tensor:
        """Returns one picture `[1, SIDE * height, SIDE * width, channels]` from 0 to 1."""
        low, high = pixel_range(self.model.dataset)
        # The batch's own statistics, as in training.
        images = self.model.generator(self._latent, training=True)
        height, width, channels = images.shape[1:]
        rows = tf.reshape(images, [SIDE, SIDE, height, width, channels])
        picture = tf.transpose(rows, [0, 2, 1, 3, 4])
        picture = tf.reshape(picture, [1, SIDE * height, SIDE * width, channels])
        return (picture - low) / (high - low)
