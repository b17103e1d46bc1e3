"""The networks of the paper, by the names that this room takes.

What they are is read from public code of the same lineage; the paper's text gives no sizes. Images
smaller than 32 x 32 get a border of their lowest value. Inputs are scaled from their public range
to [-1, 1].
"""

from typing import Any

import keras
import numpy as np

from pate_tf.data.named_function import Named
from pate_tf.values.dataset import Dataset

layers = keras.layers
SIDE = 32


def network(name: Named | None, dataset: Dataset) -> Named:
    """Returns the model that a name stands for here.

    Args:
      name: "cnn" or "mlp" for the paper's, or "linear"; whatever else `models.catalogue.build`
        takes; None for "cnn" where inputs are images, else "mlp".
      dataset: the data it is for.
    """
    chosen = name or ("cnn" if dataset.kind == "image" else "mlp")
    named = {"cnn": cnn, "mlp": mlp, "linear": linear}
    return named.get(chosen, chosen) if isinstance(chosen, str) else chosen


def mlp(dataset: Dataset) -> keras.Model:
    """Hidden layers of 128 and 64 units: 140,106 parameters for gray images."""
    return keras.Sequential(
        [
            *_scaled(dataset),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(dataset.num_classes),
        ]
    )


def linear(dataset: Dataset) -> keras.Model:
    """One layer: few parameters, which noise harms least. It begins at zero."""
    return keras.Sequential(
        [
            *_scaled(dataset)[:2],
            layers.Flatten(),
            layers.Dense(dataset.num_classes, kernel_initializer="zeros"),
        ]
    )


def cnn(dataset: Dataset) -> keras.Model:
    """Two convolutions: 105,506 parameters for gray images, 313,546 for images in colour.

    Raises:
      ValueError: if the data are no images.
    """
    if dataset.kind != "image":
        raise ValueError(f"model cnn: expected images, got {dataset.kind} {dataset.name}")
    if dataset.input_shape[-1] == 1:
        first, second, units, pool = 32, 64, 200, 3
    else:
        first, second, units, pool = 64, 64, 128, 2
    return keras.Sequential(
        [
            *_scaled(dataset),
            layers.Conv2D(first, 5, activation="tanh"),
            layers.MaxPooling2D(pool),
            layers.Conv2D(second, 5, activation="tanh"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(units, activation="tanh"),
            layers.Dense(dataset.num_classes),
        ]
    )


def _scaled(dataset: Dataset) -> list[Any]:
    low, high = (np.asarray(values, np.float64) for values in dataset.value_range)
    scale = 2.0 / (high - low)
    scaled: list[Any] = [
        keras.Input(dataset.input_shape),
        layers.Rescaling(scale.tolist(), offset=(-1.0 - low * scale).tolist()),
    ]
    if dataset.kind != "image":
        return scaled
    missing = [max(0, SIDE - side) for side in dataset.input_shape[:2]]
    border = tuple((one // 2, one - one // 2) for one in missing)
    # A border of -1: zeros around what is one above, moved back.
    return [
        *scaled,
        layers.Rescaling(1.0, offset=1.0),
        layers.ZeroPadding2D(border),
        layers.Rescaling(1.0, offset=-1.0),
    ]
