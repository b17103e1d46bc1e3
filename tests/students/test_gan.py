import keras
import numpy as np
import pytest
import tensorflow as tf

from pate_tf.data.datasets import DIGITS, MNIST, SVHN
from pate_tf.students.student_kinds import gan


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
