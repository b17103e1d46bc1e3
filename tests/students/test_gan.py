import keras
import numpy as np
import pytest
import tensorflow as tf

from pate_tf.data.catalogue import DIGITS
from pate_tf.data.tfds_source import MNIST, SVHN
from pate_tf.students.kinds import gan
from pate_tf.students.kinds.gan import WeightNormalizedDense, initialize_from_data


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


def test_networks_are_the_papers():
    classifier = gan.build_classifier(MNIST, seed=0)
    units = [layer.units for layer in classifier.layers if hasattr(layer, "units")]
    assert units == [1000, 500, 250, 250, 250, 10]
    noise = [
        layer.stddev for layer in classifier.layers if isinstance(layer, keras.layers.GaussianNoise)
    ]
    assert noise == [0.3] + 5 * [0.5]
    generator = gan.build_generator(MNIST, seed=0)
    units = [layer.units for layer in generator.layers if hasattr(layer, "units")]
    assert units == [500, 500, 784]
    # Of the classifier only the last scale is trained, and the generator's.
    assert sum("scale" in weight.path for weight in classifier.trainable_weights) == 1
    assert sum("scale" in weight.path for weight in generator.trainable_weights) == 1


@pytest.mark.parametrize("dataset", [DIGITS, SVHN], ids=lambda dataset: dataset.name)
def test_networks_fit_their_images(dataset):
    generator = gan.build_generator(dataset, seed=0)
    latent = tf.random.stateless_uniform([3, gan.LATENT_SIZE], [0, 0])
    images = generator(latent, training=True)
    low, high = dataset.value_range
    assert images.shape == (3, *dataset.input_shape)
    assert low <= float(tf.reduce_min(images)) < float(tf.reduce_max(images)) <= high
    logits = gan.build_classifier(dataset, seed=0)(images)
    assert logits.shape == (3, dataset.num_classes)


def test_a_dense_layer_is_scale_times_unit_direction():
    layer = WeightNormalizedDense(3, seed=1, train_scale=True)
    inputs = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    layer(inputs)
    layer.scale.assign([0.5, 2.0, -1.0])
    layer.bias.assign([1.0, 2.0, 3.0])
    direction = layer.direction.numpy()
    kernel = layer.scale.numpy() * direction / np.linalg.norm(direction, axis=0)
    expected = inputs @ kernel + np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)
    # Longer directions change nothing.
    layer.direction.assign(10.0 * layer.direction)
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-5)


def test_data_standardize_every_layer_but_of_constant_inputs():
    layers = [WeightNormalizedDense(5, seed=1), WeightNormalizedDense(6, seed=2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    inputs = tf.constant(np.random.default_rng(0).normal(7, 3, (200, 4)), tf.float32)
    initialize_from_data(model, inputs)
    for outputs in (layers[0](inputs).numpy(), model(inputs).numpy()):
        np.testing.assert_allclose(outputs.mean(axis=0), 0.0, atol=1e-3)
        np.testing.assert_allclose(outputs.std(axis=0), 1.0, atol=1e-3)
    scale = layers[0].scale.numpy()
    initialize_from_data(model, tf.ones([2, 4]))
    np.testing.assert_array_equal(layers[0].scale, scale)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
