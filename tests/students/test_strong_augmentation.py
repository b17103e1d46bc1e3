"""Colours change, where there are any, and stay colours of the same image."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from scipy.spatial.transform import Rotation

from pate_tf.data.tfds_source import MNIST, SVHN
from pate_tf.students import batches
from pate_tf.students.batches import augment_strongly

NUM_IMAGES = 2_000
PIXELS = np.random.default_rng(0).uniform(0.35, 0.65, size=(NUM_IMAGES, 2, 2, 3))


def changed(seed):
    images = tf.constant(PIXELS, tf.float32)
    return batches._with_other_colours(images, tf.constant([seed, 1], tf.int64)).numpy()


def by_the_textbook(image, brightness, contrast, saturation, hue, grey):
    """One image, as Chen et al. describe it, with the turn about grey as a rotation in space."""
    bright = np.clip(image * (1 + 0.4 * brightness), 0, 1)
    mean = bright.mean()
    found = np.clip(mean + (bright - mean) * (1 + 0.4 * contrast), 0, 1)
    colours = found - found.mean(axis=-1, keepdims=True)
    colours = colours * (0.0 if grey < 2 * 0.2 - 1 else 1 + 0.4 * saturation)
    turn = Rotation.from_rotvec(2 * np.pi * 0.1 * hue * np.ones(3) / np.sqrt(3))
    turned = turn.apply(colours.reshape(-1, 3)).reshape(colours.shape)
    return np.clip(found.mean(axis=-1, keepdims=True) + turned, 0, 1)


def test_they_are_what_the_textbook_says():
    draws = tf.random.stateless_uniform([NUM_IMAGES, 1, 1, 5], tf.constant([5, 1], tf.int64), -1, 1)
    found = changed(5)
    for image, numbers, result in zip(PIXELS[:200], draws.numpy(), found, strict=False):
        assert np.allclose(by_the_textbook(image, *numbers.ravel()), result, atol=1e-5)


def test_one_image_in_five_becomes_grey():
    is_grey = np.ptp(changed(2), axis=-1).max(axis=(1, 2)) < 1e-6
    # A wrong share is let through, and the right one refused, once in a million times.
    assert scipy.stats.binomtest(int(is_grey.sum()), NUM_IMAGES, 0.2).pvalue > 1e-6
    assert scipy.stats.binomtest(int(is_grey.sum()), NUM_IMAGES, 0.3).pvalue < 1e-6


def test_the_same_seed_gives_the_same_colours_and_another_one_others():
    assert (changed(3) == changed(3)).all()
    assert not np.allclose(changed(3), changed(4))


@pytest.mark.parametrize("dataset", [MNIST, SVHN])
@pytest.mark.parametrize("value_range", [(0.0, 255.0), (-1.0, 1.0)])
def test_values_stay_in_their_range_and_only_colours_are_changed(monkeypatch, dataset, value_range):
    dataset = dataclasses.replace(dataset, value_range=value_range, input_type="float32")
    random, (low, high) = np.random.default_rng(1), value_range
    images = tf.constant(random.uniform(low, high, (20, *dataset.input_shape)), tf.float32)
    seed = tf.constant([1, 2], tf.int64)
    strong = augment_strongly(images, dataset, seed).numpy()
    assert low - 1e-3 <= strong.min() < strong.max() <= high + 1e-3
    monkeypatch.setattr(batches, "_with_other_colours", lambda images, seed: images)
    without = augment_strongly(images, dataset, seed).numpy()
    assert np.allclose(strong, without, atol=1e-3) == (dataset.name == "mnist")
