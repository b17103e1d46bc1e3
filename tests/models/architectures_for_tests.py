"""Models of a user's own, named `architectures_for_tests:<function>`."""

import keras

from pate_tf.records import Dataset

not_a_function = 3


def with_buffers(dataset: Dataset) -> keras.Model:
    """Batch normalisation and dropout: weights that no gradient changes."""
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(1.0 / dataset.value_range[1]),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(dataset.num_classes),
        ]
    )


def small(dataset: Dataset) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(1.0 / dataset.value_range[1]),
            keras.layers.Flatten(),
            keras.layers.Dense(dataset.num_classes),
        ]
    )


def one_class_too_many(dataset: Dataset) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Flatten(),
            keras.layers.Dense(dataset.num_classes + 1),
        ]
    )


def of_another_size(dataset: Dataset) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(dataset.num_classes)])


def of_a_fixed_batch(dataset: Dataset) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(batch_shape=(4, *dataset.input_shape)),
            keras.layers.Flatten(),
            keras.layers.Dense(dataset.num_classes),
        ]
    )


def failing(dataset: Dataset) -> keras.Model:
    keras.layers.Dropout(0.5)
    raise ValueError(f"no model for {dataset.name}")


def nothing(dataset: Dataset) -> None:
    del dataset
