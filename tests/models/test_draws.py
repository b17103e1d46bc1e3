"""A model draws from its own generators alone, or is refused in one line before it is trained."""

import keras
import pytest
import tensorflow as tf

from pate_tf.data import catalogue as data
from pate_tf.models import catalogue
from pate_tf.models.catalogue import check_draws

DIGITS = data.load_public("digits", data_dir=None).dataset


class Noise(keras.layers.Layer):
    """Adds noise, always or in training alone."""

    def __init__(self, draw, *, always: bool) -> None:
        super().__init__()
        self._draw, self._always = draw, always

    def call(self, inputs, training=False):
        if training or self._always:
            return inputs + self._draw(keras.ops.shape(inputs))
        return inputs


class OwnNoise(keras.layers.Layer):
    """Adds noise of a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(0)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.generator)


class Stranger(keras.layers.Layer):
    """Reads a variable that Keras does not know."""

    def __init__(self) -> None:
        super().__init__()
        self._held = {"scale": [tf.Variable(2.0, name="of_nobody")]}

    def call(self, inputs):
        return inputs * self._held["scale"][0]


def model(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(DIGITS.input_shape),
            keras.layers.Flatten(),
            *layers,
            keras.layers.Dense(DIGITS.num_classes),
        ]
    )


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
    with pytest.raises(ValueError, match=r"^model: expected .*keras.random.SeedGe") as caught:
        check_draws(noisy, training=training)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("draw", [of_keras, of_tensorflow])
def test_what_draws_in_training_alone_can_answer(draw):
    noisy = model(Noise(draw, always=False))
    check_draws(noisy, training=False)
    with pytest.raises(ValueError, match=r"^model: expected .*of its own"):
        check_draws(noisy, training=True)


def test_a_variable_of_nobody_is_refused_by_name():
    with pytest.raises(ValueError, match="got one that reads of_nobody"):
        check_draws(model(Stranger()), training=False)


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


def test_variables_of_several_devices_are_a_models_own():
    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        check_draws(model(OwnNoise(), keras.layers.BatchNormalization()), training=True)
        with pytest.raises(ValueError, match="got one that reads"):
            check_draws(model(Noise(of_keras, always=True)), training=True)


@pytest.mark.parametrize("name", ["cnn", "wide_cnn", "mlp", "deeper"])
def test_the_catalogue_draws_from_its_own_alone(name):
    for training in (True, False):
        check_draws(catalogue.build(name, DIGITS), training=training)
