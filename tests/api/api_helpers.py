"""Small data and models for the tests of the public API."""

import keras
import numpy as np

import pate_tf
from pate_tf.core.dataset import Dataset


def net(dataset: Dataset) -> keras.Model:
    """Not compiled: trained in the traced loop."""
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(dataset.num_classes),
        ]
    )


def compiled(dataset: Dataset) -> keras.Model:
    """Compiled, with dropout, whose draws must be the teacher's own."""
    model = keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(dataset.num_classes, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def digits(num_private: int = 120, **settings: object) -> pate_tf.Data:
    """Few digits, as a user's arrays."""
    from sklearn.datasets import load_digits

    archive = load_digits()
    images, labels = archive.images[:400], archive.target[:400]
    fields = {"y_public": labels[300:], "num_classes": 10, "value_range": (0, 16), **settings}
    return pate_tf.Data.from_arrays(
        images[:num_private], labels[:num_private], images[300:], **fields
    )


def weights(folder: object, teacher: int) -> list[np.ndarray]:
    """What a teacher learnt, as it is kept."""
    from pate_tf.core import artifacts
    from pate_tf.teachers.store import Finished

    run = artifacts.RunDirectory(folder)
    return Finished(run.sensitive / "teachers").each()[teacher]
