"""The methods that we compare with are correct: gradients, accounting, sensitivity."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from data_sets_for_tests import image_dataset, table_dataset

from benchmarks.harness import DELTA
from benchmarks.instead import dp_sgd, methods, private_knn
from benchmarks.instead.dp_sgd import clipped_sum
from benchmarks.paper.laboratory import costs
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core.dataset import Dataset


def images(side: int) -> Dataset:
    return image_dataset(side, value_range=(0.0, 1.0))


def loop(model, inputs, labels, clip):
    """Returns gradients of one example after another."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    total = [np.zeros(variable.shape) for variable in model.trainable_variables]
    lengths = []
    for one, label in zip(inputs, labels, strict=True):
        with tf.GradientTape() as tape:
            value = loss(label[np.newaxis], model(one[np.newaxis]))
        actual = [part.numpy() for part in tape.gradient(value, model.trainable_variables)]
        length = np.sqrt(sum((part**2).sum() for part in actual))
        lengths.append(length)
        for place, part in enumerate(actual):
            total[place] += part * min(1.0, clip / length)
    return total, np.array(lengths)


@pytest.mark.parametrize("side", [8, 28])
def test_clipped_sums_are_those_of_a_loop(side):
    generator = np.random.default_rng(0)
    inputs = generator.random((7, side, side, 1)).astype(np.float32)
    labels = np.arange(7, dtype=np.int64) % 3
    model = dp_sgd.network(images(side), seed=1, inputs=inputs)
    _, lengths = loop(model, inputs, labels, 1.0)
    clip = float(np.median(lengths))  # some are clipped, some are not
    expected, _ = loop(model, inputs, labels, clip)
    clipped = clipped_sum(model, tf.constant(inputs), tf.constant(labels), clip)
    for one, other in zip(clipped, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=2e-4, atol=2e-5)
    for number in range(7):
        alone = clipped_sum(model, inputs[number : number + 1], labels[number : number + 1], clip)
        length = np.sqrt(sum((part.numpy() ** 2).sum() for part in alone))
        assert length <= clip * 1.0001


def test_training_learns_and_its_noise_has_the_deviation_that_is_charged():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 300)
    inputs = (np.eye(3)[labels] + 0.1 * generator.random((300, 3))).astype(np.float32)
    table = table_dataset(3, 0.0, 2.0)

    def trained(steps, sigma):
        training = dp_sgd.Training(batch=100, steps=steps, learning_rate=0.5, momentum=0.0)
        model = dp_sgd.network(table, seed=0, inputs=inputs)
        before = [variable.numpy() for variable in model.trainable_variables]
        dp_sgd.fit(model, inputs, labels, training=training, sigma=sigma)
        return model, before

    model, _ = trained(100, 0.1)
    assert (model(inputs).numpy().argmax(axis=1) == labels).mean() > 0.95
    model, before = trained(1, 1e5)  # one step of only noise, on 451 numbers
    moved = [
        (variable.numpy() - old).ravel()
        for variable, old in zip(model.trainable_variables, before, strict=True)
    ]
    assert np.concatenate(moved).std() == pytest.approx(0.5 * 1e5 / 100, rel=0.2)


def test_noise_keeps_to_epsilon_against_replacement():
    training = dp_sgd.Training(batch=500, steps=20, learning_rate=1.0)
    sigma = dp_sgd.noise_multiplier(1.0, training, 5_000)

    def charged(noise):
        return smallest_epsilon(
            {NoisyTraining(sampling_rate=0.1, noise_multiplier=noise, rounds=20): 1}, DELTA
        )[0]

    assert charged(sigma) <= 1.0 < charged(0.98 * sigma)


def test_the_papers_accounting_is_the_golden_value():
    # H2 of tests/accounting/golden.json.
    counts = np.tile([200, 6, 6, 6, 6, 6, 5, 5, 5, 5], (100, 1))
    mechanism = LaplaceNoisyMax(gamma=0.05)
    epsilons = costs(counts, mechanism, delta=1e-5)
    assert epsilons["paper"] == pytest.approx(1.47991480486117489)
    assert epsilons["exact"] < epsilons["sanitised"] and epsilons["exact"] < epsilons["worst_case"]


def test_neighbours_without_drawing_cost_what_two_gaussians_cost():
    # All records are drawn: one vote replaces another, at distance sqrt(2).
    actual = private_knn.alphas(1.0, 40.0)
    moments = private_knn.MOMENTS
    np.testing.assert_allclose(actual, moments * (moments + 1.0) / 40.0**2, rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 9])
def test_a_heads_noise_pays_for_all_of_its_steps(steps):
    # Features of length 0 have no gradient, so only noise moves the weights.
    head = methods.trained_head(
        np.zeros((50, 4_000), np.float32),
        np.zeros(50, np.int64),
        num_classes=5,
        public=np.zeros((1, 4_000), np.float32),
        epsilon=0.7,
        rate=2.0,
        steps=steps,
    )
    velocity, weights, mean = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for step in range(steps):  # the effect of each step's noise on the result
        velocity = 0.9 * velocity + np.eye(steps)[step]
        weights = weights - 2.0 * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    each = head.std() * 50 / np.linalg.norm(mean)  # in clipping lengths
    one = each / np.sqrt(steps)  # a single mechanism equal to all of them together
    charged = smallest_epsilon(
        {NoisyTraining(sampling_rate=1.0, noise_multiplier=one, rounds=1): 1}, DELTA
    )[0]
    # 20,000 numbers: five standard deviations are 2.5 %.
    assert charged == pytest.approx(0.7, rel=0.03)
