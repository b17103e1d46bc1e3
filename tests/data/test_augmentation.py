import numpy as np
import pytest
import tensorflow as tf
from data_sets_for_tests import image_dataset

from pate_tf.core.dataset import Dataset
from pate_tf.data import preprocessing


def dataset(kind: str, side: int = 28, channels: int = 1) -> Dataset:
    return image_dataset(side, channels, augmentation=kind)


def blobs(batch: int, side: int, channels: int, shift: float = 0.0) -> np.ndarray:
    """Returns a blob near the center, far enough from the border to stay inside the image."""
    grid = np.arange(side) - (side - 1) / 2
    bell = np.exp(-((grid[:, None] - shift) ** 2 + (grid - shift) ** 2) / (side / 8) ** 2)
    return np.tile((255 * bell)[None, :, :, None], (batch, 1, 1, channels)).astype(np.float32)


def changed(images: np.ndarray, kind: str, seed=(1, 2)) -> np.ndarray:
    spec = dataset(kind, images.shape[1], images.shape[3])
    return preprocessing.augment(tf.constant(images), spec, tf.constant(seed, tf.int32)).numpy()


def centres(images: np.ndarray) -> np.ndarray:
    mass = images.sum(axis=(1, 2, 3))
    grid = np.arange(images.shape[1])
    rows = (images.sum(axis=(2, 3)) * grid).sum(axis=1) / mass
    columns = (images.sum(axis=(1, 3)) * grid).sum(axis=1) / mass
    return np.stack([rows, columns], axis=1)


@pytest.mark.parametrize("kind", ["affine", "flip"])
@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (32, 3)])
def test_shape_type_and_range_stay(kind, side, channels):
    images = np.random.default_rng(0).uniform(0, 255, (7, side, side, channels))
    images = images.astype(np.float32)
    result = changed(images, kind)
    assert result.shape == images.shape
    assert result.dtype == np.float32
    assert result.min() >= 0.0
    assert result.max() <= images.max() * (1 + 1e-5)


@pytest.mark.parametrize("kind", ["affine", "flip"])
def test_changes_are_a_function_of_the_seed(kind):
    images = blobs(6, 28, 1, shift=3.0)
    first = changed(images, kind)
    tf.random.set_seed(5)
    np.random.default_rng(0).random()
    tf.random.uniform([3])
    np.testing.assert_array_equal(changed(images, kind), first)
    assert not np.array_equal(changed(images, kind, seed=(1, 3)), first)
    assert not np.array_equal(changed(images, kind, seed=(2, 2)), first)
    # Each image of a batch is changed independently.
    assert len({image.tobytes() for image in first}) == len(first)


@pytest.mark.parametrize("kind", ["affine", "flip"])
def test_changes_are_small(kind):
    side = 28
    images = blobs(300, side, 1)
    result = changed(images, kind)
    mass = result.sum(axis=(1, 2, 3)) / images.sum(axis=(1, 2, 3))
    # A scale of 1 +- 0.1 changes an area by at most a quarter.
    assert mass.min() > 0.75
    assert mass.max() < 1.3
    moved = np.abs(centres(result) - centres(images))
    assert moved.max() <= side / 14 * 1.25
    # The images do change: shifts of all sizes occur in both directions.
    directions = (centres(result) - centres(images)).mean(axis=0)
    assert np.abs(directions).max() < 0.4
    assert moved.mean() > side / 14 / 4


def test_flip_mirrors_about_half_of_the_images_left_to_right_and_none_upside_down():
    side = 32
    images = blobs(400, side, 3, shift=-6.0)  # above and left of the middle, beyond any shift
    rows, columns = (centres(changed(images, "flip")) - (side - 1) / 2).T
    # 200 +- 5 standard deviations of 10.
    assert 150 < (columns > 0).sum() < 250
    assert (rows < 0).all()
