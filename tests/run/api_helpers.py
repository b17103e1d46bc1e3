"""Small data and models for the tests of the public API."""

import pathlib

import keras
import numpy as np
from architectures_for_tests import flattened
from data_sets_for_tests import image_dataset

import pate_tf
from pate_tf.core.dataset import Dataset


def net(dataset: Dataset) -> keras.Model:
    """Returns a model that is not compiled: it is trained in the traced loop."""
    return flattened(dataset, keras.layers.Dense(16, activation="relu"), scale=16.0)


def compiled(dataset: Dataset) -> keras.Model:
    """Returns a compiled model with dropout, whose draws must be the teacher's own."""
    hidden = keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)
    model = flattened(dataset, *hidden, scale=16.0, activation="softmax")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def digits(num_private: int = 120, **settings: object) -> pate_tf.Data:
    """Returns a few digits, as a user's arrays."""
    from sklearn.datasets import load_digits

    archive = load_digits()
    images, labels = archive.images[:400], archive.target[:400]
    fields = {"y_public": labels[300:], "num_classes": 10, "value_range": (0, 16), **settings}
    return pate_tf.Data.from_arrays(
        images[:num_private], labels[:num_private], images[300:], **fields
    )


def weights(folder: pathlib.Path) -> list[list[np.ndarray]]:
    """Returns the learned weights of each teacher, as stored."""
    from pate_tf.core import artifacts

    arrays = {}
    for path in (folder / "sensitive" / "teachers").glob("finished-*.npz"):
        arrays |= artifacts.read_arrays(path)
    numbers = sorted({int(name.partition("/")[0]) for name in arrays if "/" in name})
    return [
        [
            array
            for name, array in arrays.items()
            if name.startswith(f"{number}/") and not name.endswith("curves")
        ]
        for number in numbers
    ]


# Images of floats. A record may contain any value.

IMAGES = image_dataset(8, pool_size=60, input_type="float32")
HUGE = 3e38  # float32 holds it, but no sum of two


def pictures(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns three classes that differ in the bright part of the image, under noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, number)
    images = random.uniform(0, 120, (number, 8, 8, 1)).astype(np.float32)
    for index, label in enumerate(labels):
        images[index, 2:6, 2 * label : 2 * label + 3] += 120
    return images, labels


@keras.saving.register_keras_serializable()
class Standardised(keras.layers.Layer):
    """Standardizes each image by its own mean and deviation. A blank image has no finite values."""

    def call(self, inputs):
        flat = keras.ops.reshape(inputs, (-1, 64))
        mean, variance = keras.ops.moments(flat, axes=[1], keepdims=True)
        return (flat - mean) / keras.ops.sqrt(variance)
