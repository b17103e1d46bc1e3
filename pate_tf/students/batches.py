"""Batches that depend on the seed and the step alone, so that a stopped run goes on where it was.

No state is carried from batch to batch: which samples are drawn, how they are augmented and what
noise is drawn follow from a seed of the step's own.
"""

from collections.abc import Callable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

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


def dataset_of(batch_at: StepBatch, *, first_step: int, end_step: int) -> tf.data.Dataset:
    """Returns the batches of the steps from `first_step` to `end_step - 1`."""
    return (
        tf.data.Dataset.range(first_step, end_step)
        .map(tf.autograph.experimental.do_not_convert(batch_at), num_parallel_calls=1)
        .prefetch(tf.data.AUTOTUNE)
    )


def outputs(model: Callable[..., tf.Tensor], inputs: npt.NDArray[np.generic]) -> FloatArray:
    """Returns a model's outputs `[num_inputs, ...]` for raw inputs, at least one."""
    parts = [
        keras.ops.convert_to_numpy(
            model(tf.constant(inputs[start : start + BATCH], tf.float32), training=False)
        )
        for start in range(0, len(inputs), BATCH)
    ]
    return np.concatenate(parts).astype(np.float64)
