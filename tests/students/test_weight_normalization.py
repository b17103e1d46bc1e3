import keras
import numpy as np
import pytest
import tensorflow as tf

from pate_tf.students.gan import (
    WeightNormalizedConvolution,
    WeightNormalizedDense,
    initialize_from_data,
)


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


def test_layers_are_rebuilt_from_their_configuration():
    layers = (
        WeightNormalizedDense(5, seed=3, activation="relu", train_scale=True, stddev=0.5),
        WeightNormalizedConvolution(5, seed=3, stride=2, padding="VALID", activation="softplus"),
    )
    for layer in layers:
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        assert again.get_config() == layer.get_config()
