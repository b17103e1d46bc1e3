"""Changes of an input that leave its label as it is, drawn statelessly from a seed.

Stateless, so that a teacher's training depends on its own seed and step alone, never on other
teachers.
"""

import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset

# Fixed for all data sets of a kind, never tuned on private accuracy.
MAX_ROTATION = 0.2  # radians
MAX_SCALING = 0.1
MAX_SHEAR = 0.15
MAX_SHIFT = 1 / 14  # of the side: 2 pixels of 28


def augment(inputs: tf.Tensor, dataset: Dataset, seed: tf.Tensor) -> tf.Tensor:
    """Returns randomly changed inputs.

    Args:
        inputs: float32 `[batch, *input_shape]`.
        dataset: says which changes keep a label.
        seed: int32 `[2]`; the same seed gives the same changes.
    """
    if dataset.augmentation == "none":
        return inputs
    if dataset.augmentation == "flip":
        flip_seed, seed = tf.unstack(tf.random.split(seed, 2))
        draws = tf.random.stateless_uniform([tf.shape(inputs)[0], 1, 1, 1], flip_seed)
        inputs = tf.where(draws < 0.5, tf.reverse(inputs, axis=[2]), inputs)
    fill = float(np.min(dataset.value_range[0]))  # what moves in from outside
    turns = (MAX_ROTATION, MAX_SCALING, MAX_SHEAR) if dataset.augmentation == "affine" else (0,) * 3
    return _affine(inputs, seed, fill, *map(float, turns))


def _affine(
    images: tf.Tensor,
    seed: tf.Tensor,
    fill: float,
    rotation: float,
    scaling: float,
    shear: float,
) -> tf.Tensor:
    height, width = images.shape[1], images.shape[2]
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 5], seed, -1.0, 1.0)
    angle, scale, slant, shift_x, shift_y = tf.unstack(draws, axis=1)
    angle, scale, slant = angle * rotation, 1.0 + scale * scaling, slant * shear
    shift_x, shift_y = shift_x * MAX_SHIFT * width, shift_y * MAX_SHIFT * height
    cos, sin = tf.cos(angle) * scale, tf.sin(angle) * scale
    # Rows of the map from output to input coordinates, about the centre of the image.
    centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
    xx, xy, yx, yy = cos, slant - sin, sin, cos
    x0 = centre_x - xx * centre_x - xy * centre_y + shift_x
    y0 = centre_y - yx * centre_x - yy * centre_y + shift_y
    zero = tf.zeros_like(cos)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([xx, xy, x0, yx, yy, y0, zero, zero], axis=1),
        output_shape=[height, width],
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill_value=fill,
    )
