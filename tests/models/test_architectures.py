import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from architectures_for_tests import flattened
from data_sets_for_tests import image_dataset

from pate_tf.data.datasets import DIGITS
from pate_tf.models import architectures
from pate_tf.models.architectures import check_draws

DATASETS = {
    "digits": DIGITS,
    "28x28x1": image_dataset(28, 1, 7),
    "32x32x3": image_dataset(32, 3, 10),
}


def assert_same_weights(one, other) -> None:
    for first, second in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("name", architectures.BUILDERS)
def test_every_architecture_fits_every_kind_of_image(name, dataset):
    model = architectures.build(name, dataset, seed=1)
    low, high = dataset.value_range
    inputs = np.stack([np.full(dataset.input_shape, value) for value in (low, high, high / 3)])
    logits = np.asarray(model(inputs.astype(np.float32), training=False))
    assert logits.shape == (3, dataset.num_classes)
    assert np.isfinite(logits).all()
    # The model returns logits, not probabilities. Raw values are scaled, so the first logits are
    # small.
    assert not np.allclose(logits.sum(axis=1), 1.0)
    assert np.abs(logits).max() < 20.0


@pytest.mark.parametrize("name", ["cnn", "paper_svhn"])
def test_the_seed_alone_decides_the_weights(name):
    model = architectures.build(name, DIGITS, seed=3)
    random.seed(99)
    architectures.build("mlp", DIGITS, seed=4)
    assert_same_weights(architectures.build(name, DIGITS, seed=3), model)
    other = architectures.build(name, DIGITS, seed=4)
    for first, second in zip(model.trainable_variables, other.trainable_variables, strict=True):
        if np.asarray(first).any():  # biases begin at zero
            assert not np.array_equal(first, second)


WRONG = "nosuch not_a_function one_class_too_many of_another_size of_a_fixed_batch failing nothing"


@pytest.mark.parametrize(
    "name",
    [":", "no", "no.module:f", *(f"architectures_for_tests:{name}" for name in WRONG.split())],
)
def test_a_wrong_model_is_one_clear_line(name):
    with pytest.raises(ValueError) as caught:
        architectures.build(name, DIGITS)
    assert str(caught.value) and "\n" not in str(caught.value)


# A model draws only from its own generators. Otherwise it is refused in one line before training.


class Noise(keras.layers.Layer):
    """Adds noise, always or only in training."""

    def __init__(self, draw, *, always: bool) -> None:
        super().__init__()
        self._draw, self._always = draw, always

    def call(self, inputs, training=False):
        if training or self._always:
            return inputs + self._draw(keras.ops.shape(inputs))
        return inputs


class OwnNoise(keras.layers.Layer):
    """Adds noise from its own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(0)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.generator)


def model(*layers: keras.layers.Layer) -> keras.Model:
    return flattened(DIGITS, *layers)


def of_keras(shape):
    return keras.random.normal(shape)


def of_tensorflow(shape):
    return tf.random.normal(shape)


def in_a_loop(shape):
    return tf.while_loop(
        lambda step, _: step < 2, lambda step, _: (step + 1, tf.random.uniform(shape)),
        (0, tf.zeros(shape)),
    )[1]  # fmt: skip


@pytest.mark.parametrize("draw", [of_keras, of_tensorflow, in_a_loop])
@pytest.mark.parametrize("training", [True, False])
def test_shared_generators_are_refused(draw, training):
    noisy = model(Noise(draw, always=True))
    with pytest.raises(ValueError, match=r"^model: it shares .*keras.random.SeedGe") as caught:
        check_draws(noisy, training=training)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
def test_own_generators_and_buffers_are_fine(training):
    check_draws(
        model(
            OwnNoise(),
            keras.layers.Dropout(0.5),
            keras.layers.GaussianNoise(0.1),
            keras.layers.BatchNormalization(),
        ),
        training=training,
    )


class Stranger(keras.layers.Layer):
    """Reads a variable that Keras does not track."""

    def __init__(self) -> None:
        super().__init__()
        self._held = {"scale": [tf.Variable(2.0, name="of_no_layer")]}

    def call(self, inputs):
        return inputs * self._held["scale"][0]


def test_an_unknown_variable_is_refused():
    with pytest.raises(ValueError, match="model: it shares variables"):
        check_draws(model(Stranger()), training=False)
