import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from labels_for_tests import released_labels
from scipy import stats

from pate_tf.core.public import Pool
from pate_tf.data.catalogue import DIGITS
from pate_tf.data.tfds_source import MNIST, SVHN
from pate_tf.students.kinds import StudentConfig, gan, kind_of
from pate_tf.students.kinds.gan import (
    NAME,
    SIDE,
    BiasCorrectedAdam,
    SampleImages,
    TableNoise,
    WeightNormalizedConvolution,
    WeightNormalizedDense,
    initialize_from_data,
)


def student(dataset=DIGITS) -> gan.GanStudent:
    built = gan.GanStudent(
        gan.build_classifier(dataset, seed=1),
        gan.build_generator(dataset, seed=2),
        dataset,
    )
    built.compile(0.003)
    return built


def test_adam_follows_the_reference():
    # Algorithm 1 of Kingma and Ba, epsilon under the root, in float64.
    rate, beta_1, beta_2, epsilon = 0.003, 0.5, 0.999, 1e-4
    start = np.array([1.0, -2.0, 3.0])
    variable = keras.Variable(start, dtype="float32")
    optimizer = BiasCorrectedAdam(rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
    expected, moment, velocity = start, 0.0, 0.0
    random = np.random.default_rng(0)
    for step in range(1, 30):
        # As small as epsilon, so that its place shows.
        gradient = random.normal(0.0, 1e-4, 3)
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        moment = beta_1 * moment + (1 - beta_1) * gradient
        velocity = beta_2 * velocity + (1 - beta_2) * gradient**2
        corrected = moment / (1 - beta_1**step), velocity / (1 - beta_2**step)
        expected = expected - rate * corrected[0] / np.sqrt(corrected[1] + epsilon**2)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-6)


def test_the_realness_loss_is_that_of_one_more_class_with_logit_zero():
    random = np.random.default_rng(0)
    real, generated = random.normal(0, 3, (2, 6, 4))

    def generated_probability(logits):
        # Softmax over the k logits and a zero for "generated".
        exponentials = np.exp(np.column_stack([logits, np.zeros(len(logits))]))
        return exponentials[:, -1] / exponentials.sum(axis=1)

    expected = -0.5 * np.log(1 - generated_probability(real)).mean()
    expected -= 0.5 * np.log(generated_probability(generated)).mean()
    assert float(gan.realness_loss(real, generated)) == pytest.approx(expected)


def test_networks_for_gray_images_are_the_papers():
    classifier = gan.build_classifier(MNIST, seed=0)
    units = [layer.units for layer in classifier.layers if hasattr(layer, "units")]
    assert units == [1000, 500, 250, 250, 250, 10]
    noise = [layer.stddev for layer in classifier.layers if hasattr(layer, "stddev")]
    assert [value for value in noise if value in (0.3, 0.5)] == [0.3] + 5 * [0.5]
    generator = gan.build_generator(MNIST, seed=0)
    units = [layer.units for layer in generator.layers if hasattr(layer, "units")]
    assert units == [500, 500, 784]
    # Of the classifier only the last scale is trained, and the generator's.
    assert sum("scale" in weight.path for weight in classifier.trainable_weights) == 1
    assert sum("scale" in weight.path for weight in generator.trainable_weights) == 1


@pytest.mark.parametrize("dataset", [DIGITS, MNIST, SVHN], ids=lambda dataset: dataset.name)
def test_networks_fit_their_images(dataset):
    generator = gan.build_generator(dataset, seed=0)
    latent = tf.random.stateless_uniform([3, gan.LATENT_SIZE], [0, 0])
    images = generator(latent, training=True)
    low, high = dataset.value_range
    assert images.shape == (3, *dataset.input_shape)
    assert low <= float(tf.reduce_min(images)) < float(tf.reduce_max(images)) <= high
    logits = gan.build_classifier(dataset, seed=0)(images)
    assert logits.shape == (3, dataset.num_classes)


@pytest.mark.parametrize("shape", [(28, 28, 3), (64, 64, 3), (8, 8, 2)], ids=str)
def test_images_without_networks_are_refused(shape):
    dataset = dataclasses.replace(SVHN, input_shape=shape)
    with pytest.raises(ValueError, match="student gan: expected gray images or"):
        gan.check_images(dataset)


def test_colour_images_train():
    # Two steps on noise: that the pair runs is what is asked here.
    inputs = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    labels = released_labels([0, 1, 2], [0, 1, 2])
    config = StudentConfig(
        student="gan",
        model=NAME,
        max_steps=2,
        batch_size=4,
        learning_rate=0.003,
        seed=0,
    )
    model = kind_of("gan").train(config, labels, Pool(SVHN, inputs))
    assert np.isfinite(model(tf.constant(inputs, tf.float32))).all()


def test_sample_images_form_one_grid_in_the_logs(tmp_path):
    callback = SampleImages(tmp_path, seed=3)
    callback.set_model(student())
    callback.set_params({"epochs": 7})
    picture = callback.grid()
    assert picture.shape == (1, SIDE * 8, SIDE * 8, 1)
    assert 0.0 <= float(tf.reduce_min(picture)) <= float(tf.reduce_max(picture)) <= 1.0
    # The image in row 2, column 3 is the 23rd.
    images = callback.model.generator(callback._latent, training=True)
    tile = picture[0, 16:24, 24:32] * 16.0
    np.testing.assert_allclose(tile, images[23], rtol=1e-4, atol=1e-4)
    for epoch in range(7):
        callback.on_epoch_end(epoch)
    steps = [
        event.step
        for path in sorted(tmp_path.rglob("events*"))
        for record in tf.data.TFRecordDataset(str(path))
        if (event := tf.compat.v1.Event.FromString(record.numpy())).summary.value
    ]
    assert sorted(steps) == [4, 6]


def kernel(layer) -> np.ndarray:
    """Scale times direction over its norm, by the paper's formula, one unit at a time."""
    direction, scale = layer.direction.numpy(), layer.scale.numpy()
    units = [
        scale[unit] * direction[..., unit] / np.linalg.norm(direction[..., unit].ravel())
        for unit in range(direction.shape[-1])
    ]
    return np.stack(units, axis=-1)


def test_a_dense_layer_is_scale_times_unit_direction():
    layer = WeightNormalizedDense(3, seed=1, train_scale=True)
    inputs = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    layer(inputs)
    layer.scale.assign([0.5, 2.0, -1.0])
    layer.bias.assign([1.0, 2.0, 3.0])
    expected = inputs @ kernel(layer) + np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)
    # Longer directions change nothing.
    layer.direction.assign(10.0 * layer.direction)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("stride", "padding"), [(1, "SAME"), (2, "SAME"), (1, "VALID")])
def test_a_convolution_is_scale_times_unit_direction(stride, padding):
    layer = WeightNormalizedConvolution(4, stride=stride, padding=padding, seed=1)
    inputs = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
    outputs = layer(inputs)
    layer.scale.assign([0.5, 2.0, -1.0, 1.0])
    expected = tf.nn.conv2d(inputs, kernel(layer), strides=stride, padding=padding)
    assert outputs.shape == expected.shape
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-4, atol=1e-5)


def test_scales_are_trained_only_where_asked_for():
    for train_scale, number in ((True, 3), (False, 2)):
        layer = WeightNormalizedDense(3, seed=1, train_scale=train_scale)
        layer(np.zeros((1, 2), np.float32))
        assert len(layer.trainable_weights) == number
        assert len(layer.weights) == 3


def test_data_standardise_every_layer():
    dense, convolution = (
        WeightNormalizedDense(5, seed=1),
        WeightNormalizedConvolution(6, seed=2, activation="relu"),
    )
    model = keras.Sequential([keras.Input((8, 8, 2)), convolution, keras.layers.Flatten(), dense])
    inputs = tf.constant(np.random.default_rng(0).normal(7, 3, (200, 8, 8, 2)), tf.float32)
    initialize_from_data(model, inputs)
    convolution.activation = keras.activations.linear
    first = convolution(inputs).numpy()
    np.testing.assert_allclose(first.mean(axis=(0, 1, 2)), 0.0, atol=1e-3)
    np.testing.assert_allclose(first.std(axis=(0, 1, 2)), 1.0, atol=1e-3)
    convolution.activation = keras.activations.relu
    second = model(inputs).numpy()
    np.testing.assert_allclose(second.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(second.std(axis=0), 1.0, atol=1e-3)


def test_constant_inputs_leave_finite_weights():
    layer = WeightNormalizedDense(5, seed=1)
    model = keras.Sequential([keras.Input((4,)), layer])
    initialize_from_data(model, tf.ones([1, 4]))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    np.testing.assert_array_equal(layer.scale, np.ones(5))


@pytest.mark.parametrize("stddev", [0.3, 0.5])
def test_table_noise_is_gaussian_and_in_training_alone(stddev):
    noise = TableNoise(stddev, seed=0)(tf.zeros([200, 500]), training=True).numpy().ravel()
    np.testing.assert_array_equal(TableNoise(stddev, seed=0)(noise, training=False), noise)
    # Seeded: the same answer on every run.
    assert stats.kstest(noise, "norm", args=(0.0, stddev)).pvalue > 1e-3


def test_every_call_and_every_seed_draws_another():
    layer, inputs = TableNoise(0.5, seed=0), tf.zeros([4, 5])
    draws = [layer(inputs, training=True), layer(inputs, training=True)]
    draws.append(TableNoise(0.5, seed=1)(inputs, training=True))
    draws = [draw.numpy() for draw in draws]
    assert all(
        not np.array_equal(one, other) for place, one in enumerate(draws) for other in draws[:place]
    )


def test_batches_larger_than_the_table_are_served(monkeypatch):
    monkeypatch.setattr(gan, "TABLE_SIZE", 64)
    layer = TableNoise(1.0, seed=0)
    for shape in ([8, 8], [9, 8], [50, 3, 2, 1]):
        noise = layer(tf.zeros(shape), training=True).numpy()
        assert noise.shape == tuple(shape)
        assert noise.std() > 0.5


@pytest.mark.parametrize(
    "layer",
    [
        WeightNormalizedDense(5, seed=3, activation="relu", train_scale=True, stddev=0.5),
        WeightNormalizedConvolution(5, seed=3, stride=2, padding="VALID", activation="softplus"),
        TableNoise(0.3, seed=7),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_are_rebuilt_from_their_configuration(layer):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
