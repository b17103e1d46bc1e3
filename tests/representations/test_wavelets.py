"""Fixed wavelets: against sums over pixels, and their known properties."""

import cmath
import math

import numpy as np
import pytest

from pate_tf.core.public import Pool
from pate_tf.data import datasets as data
from pate_tf.representations import catalogue
from pate_tf.representations.images import ANGLES, transform

SIDE = 8
PADDED = SIDE + 8


def wavelet_at(down, right, *, scale, angle):
    """Returns a Morlet wavelet before its mean is subtracted, and its window."""
    width, slant = 0.8 * 2**scale, 4 / ANGLES
    along = down * math.cos(angle) + right * math.sin(angle)
    across = right * math.cos(angle) - down * math.sin(angle)
    window = math.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    return window * cmath.exp(1j * 0.75 * math.pi / 2**scale * along), window


def wavelet(scale, angle):
    places = [(down, right) for down in range(-8, 8) for right in range(-8, 8)]
    actual = {place: wavelet_at(*place, scale=scale, angle=angle) for place in places}
    mean = sum(wave for wave, _ in actual.values()) / sum(window for _, window in actual.values())
    size = (4 / ANGLES) / (2 * math.pi * (0.8 * 2**scale) ** 2)
    return {place: size * (wave - mean * window) for place, (wave, window) in actual.items()}


def filtered(image, scale, angle):
    """Returns moduli of a circular convolution, pixel by pixel."""
    actual, own = np.zeros((PADDED, PADDED)), wavelet(scale, angle)
    for row in range(PADDED):
        for column in range(PADDED):
            actual[row, column] = abs(
                sum(
                    value * image[(row - down) % PADDED, (column - right) % PADDED]
                    for (down, right), value in own.items()
                )
            )
    return actual


def local_means(image):
    actual = np.zeros((2, 2))
    for row in range(2):
        for column in range(2):
            weights = {
                (down, right): math.exp(
                    -((down - 4 * (row + 1)) ** 2 + (right - 4 * (column + 1)) ** 2) / (2 * 1.6**2)
                )
                for down in range(PADDED)
                for right in range(PADDED)
            }
            total = sum(weights.values())
            actual[row, column] = sum(weights[place] * image[place] for place in weights) / total
    return actual


def test_features_are_those_of_sums_over_pixels():
    image = np.random.default_rng(0).random((SIDE, SIDE)).astype(np.float32)
    response = transform(image[np.newaxis, :, :, np.newaxis]).numpy().reshape(81, 2, 2)
    padded = np.pad(image, 4, mode="reflect")
    first, second, larger = 3, 6, math.pi / ANGLES
    once = filtered(padded, 0, first * larger)
    expected = {
        0: local_means(padded),
        1 + first: local_means(once),
        1 + ANGLES + second: local_means(filtered(padded, 1, second * larger)),
        1 + 2 * ANGLES + first * ANGLES + second: local_means(filtered(once, 1, second * larger)),
    }
    # The library's windows are even; these have one more row on one side.
    for place, values in expected.items():
        np.testing.assert_allclose(response[place], values, rtol=5e-3)


def test_no_difference_of_images_is_larger_in_their_features():
    one, other = np.random.default_rng(0).random((2, 20, 32, 32, 3)).astype(np.float32)
    around = [(0, 0), (4, 4), (4, 4), (0, 0)]
    before = np.pad(one - other, around, mode="reflect").reshape(20, -1)
    after = (transform(one) - transform(other)).numpy().reshape(20, -1)
    assert (np.linalg.norm(after, axis=1) <= np.linalg.norm(before, axis=1)).all()


def test_too_small_images_are_refused():
    with pytest.raises(
        ValueError, match="wavelets needs images with at least 5 pixels per side, got 8 x 4"
    ):
        transform(np.zeros((1, 8, 4, 1)))


def test_features_of_a_pool_depend_on_each_image_alone():
    split = data.load_public("digits").split(400)
    encoder = catalogue.encoder_of(split.pool, "wavelets")
    features = encoder.features(split.pool.inputs)
    assert features.shape == (len(split.pool), sum(encoder.widths))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(features[5:6], encoder.features(split.pool.inputs[5:6]), atol=1e-5)
    cut = Pool(split.pool.dataset, split.pool.inputs[:100])
    assert catalogue.encoder_of(cut, "wavelets").description != encoder.description
