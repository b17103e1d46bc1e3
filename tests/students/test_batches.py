import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from pate_tf.data.datasets import MNIST, SVHN
from pate_tf.students import student_training
from pate_tf.students.student_training import (
    BATCH,
    ShuffledItems,
    augment_strongly,
    derived_seeds,
    outputs,
    step_seeds,
)


def rows_of(items: ShuffledItems, steps) -> np.ndarray:
    return np.concatenate([items.at(tf.constant(step, tf.int64))[0] for step in steps])


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_every_pass_sees_every_item_once(num_items, batch_size, seed):
    items = ShuffledItems(np.arange(num_items), batch_size=batch_size, seed=seed)
    num_steps = -(-2 * num_items // batch_size)
    rows = rows_of(items, range(num_steps))
    for number in range(2):
        one_pass = rows[number * num_items : (number + 1) * num_items]
        assert sorted(one_pass) == list(range(num_items))


def test_seeds_differ():
    seeds = [
        tuple(seed.numpy())
        for step in range(5)
        for seed in step_seeds(7, tf.constant(step, tf.int64), 3)
    ]
    assert len(set(seeds)) == 15
    assert len(set(derived_seeds(7, 30) + derived_seeds(8, 30))) == 60
    assert derived_seeds(7, 3) == derived_seeds(7, 5)[:3]


@pytest.mark.parametrize("num", [1, BATCH, BATCH + 1])
def test_outputs_are_those_of_the_model_of_any_number(num):
    def double(inputs: tf.Tensor, training: bool) -> tf.Tensor:
        assert not training
        assert inputs.dtype == tf.float32
        return 2.0 * inputs

    given = np.arange(2 * num, dtype=np.uint8).reshape(num, 2)
    np.testing.assert_array_equal(outputs(double, given), 2.0 * given)


# Colors change if there are any, and remain colors of the same image.

NUM_IMAGES = 2_000
PIXELS = np.random.default_rng(0).uniform(0.35, 0.65, size=(NUM_IMAGES, 2, 2, 3))


def changed(seed):
    images = tf.constant(PIXELS, tf.float32)
    return student_training._with_other_colours(images, tf.constant([seed, 1], tf.int64)).numpy()


def by_the_textbook(image, brightness, contrast, saturation, hue, grey):
    """Augments one image as Chen et al. describe it, with the turn about gray as a rotation in
    space.
    """
    bright = np.clip(image * (1 + 0.4 * brightness), 0, 1)
    mean = bright.mean()
    actual = np.clip(mean + (bright - mean) * (1 + 0.4 * contrast), 0, 1)
    colours = actual - actual.mean(axis=-1, keepdims=True)
    colours = colours * (0.0 if grey < 2 * 0.2 - 1 else 1 + 0.4 * saturation)
    turn = Rotation.from_rotvec(2 * np.pi * 0.1 * hue * np.ones(3) / np.sqrt(3))
    turned = turn.apply(colours.reshape(-1, 3)).reshape(colours.shape)
    return np.clip(actual.mean(axis=-1, keepdims=True) + turned, 0, 1)


def test_they_are_what_the_textbook_says():
    draws = tf.random.stateless_uniform([NUM_IMAGES, 1, 1, 5], tf.constant([5, 1], tf.int64), -1, 1)
    actual = changed(5)
    for image, numbers, result in zip(PIXELS[:200], draws.numpy(), actual, strict=False):
        assert np.allclose(by_the_textbook(image, *numbers.ravel()), result, atol=1e-5)


@pytest.mark.parametrize("dataset", [MNIST, SVHN])
@pytest.mark.parametrize("value_range", [(0.0, 255.0), (-1.0, 1.0)])
def test_values_stay_in_their_range_and_only_colours_are_changed(monkeypatch, dataset, value_range):
    dataset = dataclasses.replace(dataset, value_range=value_range, input_type="float32")
    random, (low, high) = np.random.default_rng(1), value_range
    images = tf.constant(random.uniform(low, high, (20, *dataset.input_shape)), tf.float32)
    seed = tf.constant([1, 2], tf.int64)
    strong = augment_strongly(images, dataset, seed).numpy()
    assert low - 1e-3 <= strong.min() < strong.max() <= high + 1e-3
    monkeypatch.setattr(student_training, "_with_other_colours", lambda images, seed: images)
    without = augment_strongly(images, dataset, seed).numpy()
    assert np.allclose(strong, without, atol=1e-3) == (dataset.name == "mnist")
