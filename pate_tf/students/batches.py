"""Batches that depend on the seed and the step alone, and strong changes of images.

No state is carried from batch to batch, so that a stopped run goes on where it was: which samples
are drawn, how they are augmented and what noise is drawn follow from a seed of the step's own.
"""

import math
from collections.abc import Callable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.data import preprocessing

Batch = dict[str, tf.Tensor]
StepBatch = Callable[[tf.Tensor], Batch | tuple[tf.Tensor, tf.Tensor]]
FloatArray = npt.NDArray[np.float64]

BATCH = 500  # inputs; larger batches fall out of the cache and take longer an input


class ShuffledItems:
    """Arrays whose rows are drawn without replacement, in a new order in every pass.

    Args:
        *arrays: `[num_items, ...]` each.
        batch_size: rows a step.
        seed: fixes the orders.
    """

    def __init__(self, *arrays: npt.NDArray, batch_size: int, seed: int) -> None:
        self._tensors = [tf.constant(array) for array in arrays]
        self._num_items = len(arrays[0])
        self._batch_size = batch_size
        self._seed = seed

    def at(self, step: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of a step (int64 scalar, from 0), `[batch_size, ...]` of each array."""
        positions = step * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
        passes = positions // self._num_items
        seeds = tf.fill([self._batch_size], tf.constant(self._seed, tf.int64))
        rows = tf.raw_ops.RandomIndexShuffle(
            index=positions % self._num_items,
            seed=tf.stack([seeds, passes, tf.zeros_like(passes)], axis=1),
            max_index=tf.constant(self._num_items - 1, tf.int64),
        )
        return [tf.gather(tensor, rows) for tensor in self._tensors]


def step_seeds(seed: int, step: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Returns independent seeds int64 `[2]` for the draws of one step."""
    return tf.unstack(tf.random.split(tf.stack([tf.constant(seed, tf.int64), step]), number))


def derived_seeds(seed: int, number: int) -> list[int]:
    """Returns seeds for the parts of one student, such as the layers of a network."""
    drawn = np.random.SeedSequence(seed).generate_state(number)
    return [int(value) for value in drawn % 2**31]


def outputs(model: Callable[..., tf.Tensor], inputs: npt.NDArray[np.generic]) -> FloatArray:
    """Returns a model's outputs `[num_inputs, ...]` for raw inputs, at least one."""
    parts = [
        keras.ops.convert_to_numpy(
            model(tf.constant(inputs[start : start + BATCH], tf.float32), training=False)
        )
        for start in range(0, len(inputs), BATCH)
    ]
    return np.concatenate(parts).astype(np.float64)


# Strong changes of an image: what a student must see through to agree with its own labels.


def pixel_range(dataset: Dataset) -> tuple[float, float]:
    """Returns the lowest and highest value of a pixel; ValueError if pixels have several."""
    low, high = dataset.value_range
    if isinstance(low, tuple) or isinstance(high, tuple):
        raise ValueError(f"value_range of {dataset.name}: expected one for all pixels, got several")
    return low, high


MAX_CUTOUT = 1 / 2  # of the side
MAX_CONTRAST = 0.5
# Of colors, as Chen et al. 2020 ("SimCLR", appendix B.9) have them for small images; not tuned.
COLOUR_JITTER = 0.4  # of brightness, contrast and saturation
MAX_HUE = 0.1  # of the circle
GREY_SHARE = 0.2


def augment_strongly(images: tf.Tensor, dataset: Dataset, seed: tf.Tensor) -> tf.Tensor:
    """Returns images after two rounds of the usual changes, a change of contrast, and a cutout.

    Colors change too where there are three channels. Otherwise copies of an image are
    distinguished from others by their colors alone, and nothing else of them is learned.

    Args:
        images: float32 `[batch, height, width, channels]`, raw.
        dataset: says which changes keep a label.
        seed: int64 `[2]`; the same seed gives the same changes.
    """
    first, second, contrast_seed, cutout_seed = tf.unstack(tf.random.split(seed, 4))
    changed = preprocessing.augment(preprocessing.augment(images, dataset, first), dataset, second)
    low, high = pixel_range(dataset)
    if dataset.has_colours:
        unit = (changed - low) / (high - low)
        colour_seed = tf.random.fold_in(seed, 4)
        changed = low + (high - low) * _with_other_colours(unit, colour_seed)
    contrast = tf.random.stateless_uniform(
        [tf.shape(images)[0], 1, 1, 1], contrast_seed, 1.0 - MAX_CONTRAST, 1.0
    )
    changed = low + (changed - low) * contrast
    # A square of random side and place is filled in each image (DeVries and Taylor 2017).
    height, width = changed.shape[1], changed.shape[2]
    draws = tf.random.stateless_uniform([tf.shape(changed)[0], 3], cutout_seed)
    reach = draws[:, :1] * MAX_CUTOUT / 2
    inside_rows = tf.abs((tf.range(height, dtype=tf.float32) + 0.5) / height - draws[:, 1:2])
    inside_columns = tf.abs((tf.range(width, dtype=tf.float32) + 0.5) / width - draws[:, 2:])
    cut = (inside_rows < reach)[:, :, None] & (inside_columns < reach)[:, None, :]
    return tf.where(cut[..., None], low, changed)


def _with_other_colours(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Changes brightness, contrast, saturation and hue; takes the color from one in five.

    Args:
        images: `[batch, height, width, 3]`, from 0 to 1.
        seed: as of `augment_strongly`.
    """
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 5], seed, -1.0, 1.0)
    brightness, contrast, saturation, hue, grey = tf.split(draws, 5, axis=-1)
    bright = tf.clip_by_value(images * (1.0 + COLOUR_JITTER * brightness), 0.0, 1.0)
    mean = tf.reduce_mean(bright, axis=[1, 2, 3], keepdims=True)
    changed = tf.clip_by_value(mean + (bright - mean) * (1.0 + COLOUR_JITTER * contrast), 0.0, 1.0)
    greys = tf.reduce_mean(changed, axis=-1, keepdims=True)
    is_grey = grey < 2.0 * GREY_SHARE - 1.0
    colours = (changed - greys) * tf.where(is_grey, 0.0, 1.0 + COLOUR_JITTER * saturation)
    # Turned about the axis of grays, (1, 1, 1): the cross product with it is a difference.
    angle = 2.0 * math.pi * MAX_HUE * hue
    across = (tf.roll(colours, 1, axis=-1) - tf.roll(colours, -1, axis=-1)) / math.sqrt(3.0)
    return tf.clip_by_value(greys + tf.cos(angle) * colours + tf.sin(angle) * across, 0.0, 1.0)
