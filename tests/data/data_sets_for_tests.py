"""Custom data sets, named `data_sets_for_tests:<function>`."""

import pathlib
from typing import Any

import numpy as np

from pate_tf.core.dataset import Dataset


def table_dataset(
    num_features: int, low: float, high: float, num_classes: int = 3, **fields: Any
) -> Dataset:
    """Returns a small table; fields are the fields of `Dataset`."""
    fields = {"name": "table", "pool_size": 10, "input_shape": (num_features,), **fields}
    return Dataset(kind="tabular", value_range=(low, high), num_classes=num_classes, **fields)


def image_dataset(side: int, channels: int = 1, num_classes: int = 3, **fields: Any) -> Dataset:
    """Returns small images; fields are the fields of `Dataset`."""
    fields = {"name": "images", "pool_size": 10, "value_range": (0.0, 255.0), **fields}
    shape = (side, side, channels)
    return Dataset(kind="image", input_shape=shape, num_classes=num_classes, **fields)


WAVES = table_dataset(6, -1.0, 1.0, 4, name="waves", input_shape=(2, 3), pool_size=30)


def waves(side: str, data_dir: pathlib.Path | None):
    num = {"private": 200, "public": 60}[side]
    random = np.random.default_rng(num)
    inputs = random.uniform(-1, 1, (num, 2, 3))  # float64
    return WAVES, inputs, (2 * (inputs[:, 0, 0] > 0) + (inputs[:, 1, 1] > 0)).astype(int)


def unlabelled(side: str, data_dir: pathlib.Path | None):
    """No public sample has a label or a label column."""
    dataset, inputs, labels = waves(side, data_dir)
    return (dataset, inputs, labels) if side == "private" else (dataset, inputs)


def partly_labelled(side: str, data_dir: pathlib.Path | None):
    """Only the held-out samples have labels, the pool has no labels."""
    dataset, inputs, labels = waves(side, data_dir)
    if side == "public":
        labels[: dataset.pool_size] = -1
    return dataset, inputs, labels


def private_unlabelled(side: str, data_dir: pathlib.Path | None):
    return waves(side, data_dir)[:2]


def not_finite(side: str, data_dir: pathlib.Path | None):
    dataset, inputs, labels = waves(side, data_dir)
    if side == "private":
        inputs[3, 1, 1] = np.nan
    return dataset, inputs, labels


def wrong_shape(side: str, data_dir: pathlib.Path | None):
    return WAVES, np.zeros((5, 4)), np.zeros(5)


def strings(side: str, data_dir: pathlib.Path | None):
    return WAVES, np.array([["a"]]), np.zeros(1)


def no_dataset(side: str, data_dir: pathlib.Path | None):
    return np.zeros((5, 2)), np.zeros(5)


NOT_A_FUNCTION = 3
