"""Custom data and models, good and bad, which are copied into the folder of each case."""

import dataclasses

import numpy as np

from pate_tf.core.dataset import Dataset

TABLE = Dataset(
    name="own", kind="tabular", input_shape=(3,), value_range=(0, 1), num_classes=2, pool_size=30
)
TINY = Dataset(
    name="tiny", kind="image", input_shape=(4, 4, 1), value_range=(0, 255), num_classes=2,
    pool_size=30,
)  # fmt: skip


def _arrays(side):
    random = np.random.default_rng(0 if side == "private" else 1)
    inputs = random.random((240 if side == "private" else 60, 3)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0.5).astype(int)


def good(side, data_dir):
    return TABLE, *_arrays(side)


def with_nan(side, data_dir):
    inputs, labels = _arrays(side)
    inputs[0, 0] = np.nan
    return TABLE, inputs, labels


def differing(side, data_dir):
    wide = dataclasses.replace(TABLE, value_range=(0, 2))
    return (TABLE if side == "public" else wide), *_arrays(side)


def bad_labels(side, data_dir):
    inputs, labels = _arrays(side)
    return TABLE, inputs, labels + 7


def no_private_labels(side, data_dir):
    return TABLE, _arrays(side)[0]


def raises(side, data_dir):
    return (TABLE, *_arrays(side)) if side == "public" else {}["no such key"]


def tiny_images(side, data_dir):
    random = np.random.default_rng(0)
    return TINY, random.integers(0, 255, (60, 4, 4, 1)), np.arange(60) % 2


def model_raises(dataset):
    return {}["no such key"]


def model_is_unbuilt(dataset):
    import keras

    return keras.Sequential([keras.layers.Dense(2)])


def model_of_other_classes(dataset):
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(7)])


def model_of_other_inputs(dataset):
    import keras

    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])


not_a_function = 3
