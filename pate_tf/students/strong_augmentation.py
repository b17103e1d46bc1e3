"""Strong changes of an image: what a student must see through to agree with its own labels."""

import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.students.pixels import pixel_range
from pate_tf.values.dataset import Dataset

MAX_CUTOUT = 1 / 2  # of the side
MAX_CONTRAST = 0.5


def augment_strongly(images: tf.Tensor, dataset: Dataset, seed: tf.Tensor) -> tf.Tensor:
    """Returns images after two rounds of the usual changes, a change of contrast, and a cutout.

    Args:
      images: float32 `[batch, height, width, channels]`, raw.
      dataset: says which changes keep a label.
      seed: int64 `[2]`; the same seed gives the same changes.
    """
    first, second, contrast_seed, cutout_seed = tf.unstack(tf.random.split(seed, 4))
    changed = augmentation.augment(augmentation.augment(images, dataset, first), dataset, second)
    low, _ = pixel_range(dataset)
    contrast = tf.random.stateless_uniform(
        [tf.shape(images)[0], 1, 1, 1], contrast_seed, 1.0 - MAX_CONTRAST, 1.0
    )
    return _cut_out(low + (changed - low) * contrast, low, cutout_seed)


def _cut_out(images: tf.Tensor, fill: float, seed: tf.Tensor) -> tf.Tensor:
    """Fills a square of random side and place in each image (DeVries and Taylor 2017)."""
    height, width = images.shape[1], images.shape[2]
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 3], seed)
    reach = draws[:, :1] * MAX_CUTOUT / 2
    inside_rows = tf.abs((tf.range(height, dtype=tf.float32) + 0.5) / height - draws[:, 1:2])
    inside_columns = tf.abs((tf.range(width, dtype=tf.float32) + 0.5) / width - draws[:, 2:])
    cut = (inside_rows < reach)[:, :, None] & (inside_columns < reach)[:, None, :]
    return tf.where(cut[..., None], fill, images)
