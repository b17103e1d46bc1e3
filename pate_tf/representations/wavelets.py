"""Scattering features of images: fixed wavelets, of which nothing is learnt.

Linear classifiers of these are what DP-SGD does best with on small images (Tramèr and Boneh, ICLR
2021, arXiv 2011.11660). The transform is Oyallon and Mallat's (2015) with two scales and eight
angles: local means of an image, of its wavelets' lengths, and of these lengths' own wavelets. The
known library for it, kymatio 0.3.0, does not import beside SciPy 1.17.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import tensorflow as tf

from pate_tf.core.public import Pool
from pate_tf.models import encoder

SCALES, ANGLES = 2, 8
STRIDE = 2**SCALES  # pixels between means
MOST_PIXELS = 32  # along a side; of larger images blocks count as one pixel
CELLS = 4  # of the representation, along each side of an image, at most
LEAST_DEVIATION = 0.01  # of the largest one; features that vary less are not raised to the others


def wavelets(size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Returns Morlet wavelets in frequencies, `[scales, angles, height, width]`."""
    filters = [
        [
            _morlet(size, width=0.8 * 2**scale, angle=angle, frequency=0.75 * np.pi / 2**scale)
            for angle in np.arange(ANGLES) * np.pi / ANGLES
        ]
        for scale in range(SCALES)
    ]
    # Opposite pixels of a wavelet are conjugates, but at the edge of an even side.
    return scipy.fft.fft2(np.array(filters)).real.astype(np.float32)


def _morlet(
    size: tuple[int, int], *, width: float, angle: float, frequency: float
) -> npt.NDArray[np.complex128]:
    down, right = (scipy.fft.fftfreq(length, 1.0 / length) for length in size)
    along = down[:, np.newaxis] * np.cos(angle) + right * np.sin(angle)
    across = right * np.cos(angle) - down[:, np.newaxis] * np.sin(angle)
    slant = 4.0 / ANGLES
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2))
    window *= slant / (2.0 * np.pi * width**2)
    wave: npt.NDArray[np.complex128] = window * np.exp(1j * frequency * along)
    return wave - window * (wave.sum() / window.sum())  # blind to the mean


def means(length: int, padded: int) -> npt.NDArray[np.float32]:
    """Returns Gaussian means along one axis, every `STRIDE` pixels: `[num_means, padded]`."""
    centres = STRIDE * np.arange(1, 1 + length // STRIDE)
    width = 0.8 * 2 ** (SCALES - 1)
    weights = np.exp(-((np.arange(padded) - centres[:, np.newaxis]) ** 2) / (2.0 * width**2))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def transform(images: tf.Tensor) -> tf.Tensor:
    """Returns features `[batch, 81 * channels, height // 4, width // 4]` of images.

    Each depends on its own image alone. Of order 0 come first, then of order 1 by scale and angle,
    then of order 2.

    Args:
        images: float32 `[batch, height, width, channels]`.

    Raises:
        ValueError: if a side has less than 5 pixels, or blocks of them.
    """
    height, width, channels = images.shape[1:]
    block = -(-max(height, width) // MOST_PIXELS)
    shape = (height // block, width // block)
    if min(shape) <= STRIDE:
        raise ValueError(
            f"representation: expected images of at least {block * (STRIDE + 1)} pixels a side for "
            f"wavelets, got {height} x {width}"
        )
    padded = tuple(length + 2 * STRIDE for length in shape)
    filters = tf.constant(wavelets(padded), tf.complex64)
    rows, columns = (means(*both) for both in zip(shape, padded, strict=True))

    def lengths(pixels: tf.Tensor, along: tf.Tensor) -> tf.Tensor:
        frequencies = tf.signal.fft2d(tf.cast(pixels, tf.complex64))
        return tf.abs(tf.signal.ifft2d(frequencies * along))

    def local(values: tf.Tensor) -> tf.Tensor:
        averages = tf.matmul(tf.matmul(rows, values), columns, transpose_b=True)
        return tf.reshape(averages, [tf.shape(images)[0], -1, len(rows), len(columns)])

    pixels = tf.transpose(tf.nn.avg_pool2d(images, block, block, "VALID"), [0, 3, 1, 2])
    around = [[STRIDE, STRIDE]] * 2
    pixels = tf.pad(pixels, [[0, 0], [0, 0], *around], mode="REFLECT")
    order_0 = tf.reshape(pixels, [-1, channels, 1, 1, *padded])
    order_1 = lengths(order_0, filters)
    order_2 = [
        lengths(order_1[:, :, scale, :, tf.newaxis], filters[larger])
        for scale in range(SCALES)
        for larger in range(scale + 1, SCALES)
    ]
    return tf.concat([local(order) for order in (order_0, order_1, *order_2)], axis=1)


def scattering(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns features `[num_images, 81 * channels * (height // 4) * (width // 4)]`.

    They are those of `transform`, which says what is raised.

    Args:
        images: `[num_images, height, width, channels]`.
    """
    compiled = tf.function(transform, autograph=False, reduce_retracing=True)
    parts = [
        compiled(tf.constant(images[start : start + encoder.TOGETHER], tf.float32)).numpy()
        for start in range(0, len(images), encoder.TOGETHER)
    ]
    return np.concatenate([part.reshape(len(part), -1) for part in parts])


class WaveletPart(encoder.ImagePart):
    """Features are scattering features, averaged in at most `CELLS` by `CELLS` cells.

    Each is divided by its deviation in the pool.
    """

    # Chosen on coloured digits and letters (docs/notes/small_teachers.md).
    weight = 4.0
    least_variance = 1.0

    def __init__(self, pool: Pool) -> None:
        """Takes shape and range of a pool's images; all weights are trained by `train`.

        Raises:
            ValueError: as `transform`.
        """
        cells = self._in_cells(tf.zeros([1, *pool.dataset.input_shape]))
        super().__init__(pool.dataset, int(np.prod(cells.shape)))
        (self._scale,) = self.fitted = encoder.constants(np.ones(self.view.mean.shape))

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns features `[batch, num_features]`."""
        cells = self._in_cells(images)
        return tf.reshape(cells, [-1, self._scale.shape[0]]) * self._scale

    def _in_cells(self, images: tf.Tensor) -> tf.Tensor:
        features = tf.transpose(transform(images), [0, 2, 3, 1])
        cells = [-(-side // CELLS) for side in features.shape[1:3]]
        return tf.nn.avg_pool2d(features, cells, cells, "SAME")

    def train(self, pool: Pool) -> None:
        """Finds deviations and directions from a pool's images."""
        features = self.sample_features(pool)
        deviations = features.std(axis=0, dtype=np.float64)
        least = max(LEAST_DEVIATION * float(deviations.max()), float(np.finfo(np.float32).tiny))
        scale = (1.0 / (deviations + least)).astype(np.float32)
        self._scale.assign(scale)
        self.find_directions(features * scale)
