"""Custom models, named `architectures_for_tests:<function>`."""

import keras
import numpy as np

from pate_tf.core.dataset import Dataset

not_a_function = 3


def flattened(
    dataset: Dataset, *hidden: keras.layers.Layer, scale: float | None = None, **output: object
) -> keras.Model:
    """Returns layers from the flattened, scaled inputs to one number per class."""
    scaled = [] if scale is None else [keras.layers.Rescaling(1.0 / scale)]
    output = {"units": dataset.num_classes, **output}
    body = [keras.layers.Flatten(), *hidden, keras.layers.Dense(**output)]
    return keras.Sequential([keras.Input(dataset.input_shape), *scaled, *body])


def with_buffers(dataset: Dataset) -> keras.Model:
    """Returns batch normalization and dropout: weights without gradients."""
    dense, norm = keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization()
    return flattened(dataset, dense, norm, keras.layers.Dropout(0.3), scale=dataset.value_range[1])


def small(dataset: Dataset) -> keras.Model:
    return flattened(dataset, scale=dataset.value_range[1])


def one_class_too_many(dataset: Dataset) -> keras.Model:
    return flattened(dataset, units=dataset.num_classes + 1)


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


def with_dense(dataset: Dataset, **settings: object) -> keras.Model:
    dense = keras.layers.Dense(6, activation="relu", **settings)
    return flattened(dataset, dense, scale=np.max(dataset.value_range[1]))


def regularized(dataset: Dataset) -> keras.Model:
    return with_dense(dataset, kernel_regularizer=keras.regularizers.L2(100.0))


def with_activities(dataset: Dataset) -> keras.Model:
    return with_dense(dataset, activity_regularizer=keras.regularizers.L1(0.7))


class MeanSquare(keras.layers.Layer):
    """Adds its own loss."""

    def call(self, inputs):
        self.add_loss(3.0 * keras.ops.mean(inputs**2))
        return inputs


def with_added_loss(dataset: Dataset) -> keras.Model:
    """Returns an added loss and a regularizer, the latter in a nested model."""
    return keras.Sequential([regularized(dataset), MeanSquare()])


def embedding(dataset: Dataset) -> keras.Model:
    """Looks up integers, so its gradients are sparse."""
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Embedding(int(np.max(dataset.value_range[1])) + 1, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(dataset.num_classes),
        ]
    )
