"""Unsupervised features of images: patches, wavelets and oriented gradients.

Patches (Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in Unsupervised Feature
Learning"): small patches are drawn from the images of the pool, normalized, whitened, and clustered
by k-means. Each center is a filter. The features are the mean responses of each filter in each cell
of a grid. Unlike contrastive features (`contrastive.py`), patch features are not invariant to
shifts and rotations, and they distinguish images by details that contrastive features ignore.

Wavelets: the scattering transform of Oyallon and Mallat (2015) with two scales and eight angles. A
wavelet transform followed by a modulus is applied up to two times. The features are local means of
the image (order 0), of the results of one transform (order 1), and of the results of two transforms
(order 2). On small images, DP-SGD is most accurate if it trains a linear classifier on these
features (Tramèr and Boneh, ICLR 2021, arXiv 2011.11660). They are implemented here because the
usual library, kymatio 0.3.0, can't be imported with SciPy 1.17.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
import sklearn.cluster
import tensorflow as tf

from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.models import encoder
from pate_tf.representations.raw import with_norm_one

SIDE = 6  # side of a patch in pixels; at most half of the image
MAX_PLACES = 36  # positions of a filter along a side; larger images use a larger stride
# Maximum numbers of patches from which the filters are computed, in total and per image.
PATCHES = 60_000
PATCHES_AN_IMAGE = 100
PASSES = 15  # passes of k-means over the patches
# Patches whose pixels, scaled to the range 0 to 1, have a smaller standard deviation are ignored.
MIN_DEVIATION = 0.02
MIN_CONTRAST = 0.01
MIN_VARIANCE = 0.01  # added to variances for whitening, as a fraction of the largest variance
MAX_DIRECTIONS = 512  # maximum number of principal directions that are kept
SAMPLE = 10_000  # maximum number of images of the pool for computing the directions
IMAGE_CHUNK = 16  # number of images that are processed together, to limit memory


class ImagePart(encoder.Part):
    """Base class of image features, which are projected on a pool's principal directions.

    Attributes:
        view: projection of the features onto at most `MAX_DIRECTIONS` directions, scaled to norm 1.
    """

    places = 64  # small, so that few records fill a batch

    def __init__(self, dataset: Dataset, num_features: int, fitted: Sequence[tf.Variable]) -> None:
        """Initializes all directions with zeros; `train` computes them.

        Args:
            dataset: data set with the shape and range of the images.
            num_features: number of features before their projection onto the directions.
            fitted: variables that `train` sets in addition to the directions; `learnt` lists them
                before the directions.
        """
        super().__init__()
        self._low, self._high = (
            np.broadcast_to(np.asarray(values, np.float32), dataset.input_shape).copy()
            for values in dataset.value_range
        )
        self.view = encoder.Directions(num_features, MAX_DIRECTIONS)
        self.widths = (self.view.width,)
        self.variances = [self.view.variances]
        self.learnt = [*fitted, *self.view.learnt]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        return [self.view(self.features(inputs))]

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns features of exactly `IMAGE_CHUNK` images with values from 0 to 1."""
        raise NotImplementedError

    def features(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns features, float32 `[batch, num_features]`, computed by `few_features` in chunks.

        The batch is padded with zeros, so that all chunks have the same shape.
        """
        number = tf.shape(inputs)[0]
        filled = tf.pad(inputs, [[0, -number % IMAGE_CHUNK], [0, 0], [0, 0], [0, 0]])
        images = (filled - self._low) / (self._high - self._low)
        features = tf.map_fn(
            self.few_features,
            tf.reshape(images, [-1, IMAGE_CHUNK, *inputs.shape[1:]]),
            parallel_iterations=1,
        )
        return tf.reshape(features, [-1, self.view.mean.shape[0]])[:number]

    def sample_features(self, pool: Pool) -> npt.NDArray[np.float32]:
        """Returns features of at most `SAMPLE` images of a pool, for computing the directions."""
        signature = [tf.TensorSpec([None, *pool.dataset.input_shape], tf.float32)]
        compiled = tf.function(self.features, signature, autograph=False)
        inputs = pool.inputs[:SAMPLE]
        starts = range(0, len(inputs), encoder.BATCH)
        batches = (tf.constant(inputs[at : at + encoder.BATCH], tf.float32) for at in starts)
        return np.concatenate([compiled(batch).numpy() for batch in batches])


@dataclasses.dataclass(frozen=True)
class Layout:
    """Settings of patch features: the number and the positions of filters.

    Attributes:
        filters: number of filters.
        grid: number of cells along each side of an image.
        stride: number of pixels between neighboring positions of a filter, for images whose sides
            have at most `MAX_PLACES` pixels.
        threshold: threshold that is subtracted from a filter's response; responses have a standard
            deviation of about 1.
        weight: weight of the view, see `encoder.Part`.
        least_variance: lower limit of a feature's variance, see `encoder.Part`.
    """

    filters: int
    grid: int
    stride: int
    threshold: float
    weight: float = 4.0  # the total weight of the four contrastive views
    least_variance: float = encoder.Part.least_variance


GREY = Layout(filters=64, grid=4, stride=1, threshold=0.25)
# Layout of patches that are used together with wavelets on color images
# (docs/how-to/small_teachers.md).
COLOUR = Layout(filters=1_024, grid=2, stride=2, threshold=0.5, weight=1.0, least_variance=1.0)


class PatchPart(ImagePart):
    """Patch features: the mean response of each filter in each cell of a grid."""

    def __init__(self, pool: Pool, seed: int) -> None:
        """Initializes all weights with zeros; `train` computes them.

        Args:
            pool: pool with the shape and range of the images.
            seed: seed of the choice of patches and of the initial cluster centers.
        """
        height, width, channels = pool.dataset.input_shape
        layout = COLOUR if pool.dataset.has_colors else GREY
        shorter = min(height, width)
        side = min(SIDE, max(2, shorter // 2), shorter)
        shapes = [(side, side, channels, layout.filters), (layout.filters,)]
        fitted = encoder.constants(*map(np.zeros, shapes))
        super().__init__(pool.dataset, layout.filters * layout.grid**2, fitted)
        self._layout = layout
        self._seed = seed
        self._side = side
        self._filters, self._offsets = fitted
        self.weight = layout.weight
        self.least_variance = layout.least_variance
        self._stride = layout.stride * -(-max(height, width) // MAX_PLACES)

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the square root of the mean response of each filter in each cell."""
        before = (self._side - 1) // 2
        around = [before, self._side - 1 - before]
        images = tf.pad(images, [[0, 0], around, around, [0, 0]])
        # Normalizing all patches would need a copy of the patch at each position. To avoid this,
        # the response to a normalized patch is computed from the response to the original patch.
        mean, square = (
            tf.nn.avg_pool2d(
                tf.reduce_mean(values, axis=3, keepdims=True), self._side, self._stride, "VALID"
            )
            for values in (images, tf.square(images))
        )
        contrast = tf.sqrt(tf.maximum(square - tf.square(mean), 0.0) + MIN_CONTRAST)
        answers = tf.nn.conv2d(images, self._filters, self._stride, "VALID")
        answers -= mean * tf.reduce_sum(self._filters, axis=[0, 1, 2])
        answers = tf.nn.relu(answers / contrast - self._offsets - self._layout.threshold)
        grid = self._layout.grid
        sides = answers.shape[1:3]
        cells = [-(-side // grid) for side in sides]
        missing = [-side % grid for side in sides]
        zeros = ([each // 2, each - each // 2] for each in missing)
        answers = tf.pad(answers, [[0, 0], *zeros, [0, 0]])
        return tf.sqrt(tf.nn.avg_pool2d(answers, cells, cells, "VALID"))

    def train(self, pool: Pool) -> None:
        """Computes filters and directions from the images of a pool."""
        filters, offsets = self._found_filters(pool)
        self._filters.assign(filters)
        self._offsets.assign(offsets)
        self.view.find_in(self.sample_features(pool))

    def _found_filters(self, pool: Pool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns filters `[side, side, channels, n]`, and responses to the mean, `[n]`."""
        random = np.random.default_rng(self._seed)
        side = self._side
        height, width, _ = pool.dataset.input_shape
        # Draws patches at random positions of random images, `[number, pixels of a patch]`.
        number = min(PATCHES, PATCHES_AN_IMAGE * len(pool))
        images: IntArray = random.integers(len(pool), size=number)
        rows = random.integers(height - side + 1, size=number)[:, None, None]
        columns = random.integers(width - side + 1, size=number)[:, None, None]
        rows = rows + np.arange(side)[:, None]
        columns = columns + np.arange(side)
        drawn = pool.inputs[images[:, None, None], rows, columns].astype(np.float64)
        low = self._low[rows, columns]
        scaled = (drawn - low) / (self._high[rows, columns] - low)
        patches = scaled.reshape(number, -1)
        patches -= patches.mean(axis=1, keepdims=True)
        deviations = patches.std(axis=1, keepdims=True)
        patches = patches[deviations[:, 0] > MIN_DEVIATION]
        if not len(patches):  # every image is of a single color
            return np.zeros(self._filters.shape), np.zeros(self._offsets.shape)
        patches /= np.sqrt(np.square(patches).mean(axis=1, keepdims=True) + MIN_CONTRAST)
        mean = patches.mean(axis=0)
        centred = patches - mean
        variances, vectors = np.linalg.eigh(centred.T @ centred / len(patches))
        least = max(MIN_VARIANCE * float(variances[-1]), np.finfo(np.float64).tiny)
        whitening = (vectors / np.sqrt(np.maximum(variances, 0.0) + least)) @ vectors.T
        whitened = with_norm_one(centred @ whitening)
        clusters = sklearn.cluster.MiniBatchKMeans(
            min(self._layout.filters, len(whitened)),
            n_init=1,
            batch_size=4_096,
            max_iter=PASSES,
            random_state=int(random.integers(2**31)),
        ).fit(whitened.astype(np.float32))
        directions = whitening @ with_norm_one(clusters.cluster_centers_.astype(np.float64)).T
        filters = np.zeros((patches.shape[1], self._layout.filters))
        filters[:, : directions.shape[1]] = directions
        return filters.reshape(self._filters.shape), mean @ filters


SCALES = 2
ANGLES = 8
STRIDE = 2**SCALES  # pixels between local means
MAX_PIXELS = 32  # maximum length of a side; larger images are reduced by averaging blocks of pixels
CELLS = 4  # maximum number of cells along each side of an image
MIN_SCALE = 0.01  # added to deviations, as a fraction of the largest; keeps constant features small


def wavelets(size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Returns Morlet wavelets in the frequency domain, `[scales, angles, height, width]`."""
    down, right = (scipy.fft.fftfreq(length, 1.0 / length) for length in size)
    filters = np.empty((SCALES, ANGLES, *size), np.complex128)
    slant = 4.0 / ANGLES
    for scale in range(SCALES):
        width = 0.8 * 2**scale
        frequency = 0.75 * np.pi / 2**scale
        for number in range(ANGLES):
            angle = number * np.pi / ANGLES
            along = down[:, np.newaxis] * np.cos(angle) + right * np.sin(angle)
            across = right * np.cos(angle) - down[:, np.newaxis] * np.sin(angle)
            window = np.exp(-(along**2 + (slant * across) ** 2) / (2.0 * width**2))
            window *= slant / (2.0 * np.pi * width**2)
            wave = window * np.exp(1j * frequency * along)
            mean = wave.sum() / window.sum()  # subtracted, so that the mean is 0
            filters[scale, number] = wave - window * mean
    # Opposite pixels of a wavelet are complex conjugates, except at the edge of an even side, so
    # only the real part of the transform is used.
    return scipy.fft.fft2(filters).real.astype(np.float32)


def means(length: int, padded: int) -> npt.NDArray[np.float32]:
    """Returns the weights of Gaussian means at every `STRIDE` pixels along one axis.

    The result has the shape `[num_means, padded]`.
    """
    centres = STRIDE * np.arange(1, 1 + length // STRIDE)
    width = 0.8 * 2 ** (SCALES - 1)
    weights = np.exp(-((np.arange(padded) - centres[:, np.newaxis]) ** 2) / (2.0 * width**2))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def transform(images: tf.Tensor) -> tf.Tensor:
    """Computes scattering features, `[batch, 81 * channels, height // 4, width // 4]`.

    The features of an image depend only on this image. Features of order 0 come first, then
    features of order 1 by scale and angle, then features of order 2.

    Args:
        images: float32 `[batch, height, width, channels]`.

    Raises:
        ValueError: if a side of the images has fewer than 5 pixels, or, for large images, fewer
            than 5 averaged blocks.
    """
    height, width, channels = images.shape[1:]
    block = -(-max(height, width) // MAX_PIXELS)
    shape = (height // block, width // block)
    if min(shape) <= STRIDE:
        raise ValueError(
            f"representation=wavelets needs images with at least {block * (STRIDE + 1)} pixels per "
            f"side, got {height} x {width}"
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


class WaveletPart(ImagePart):
    """Scattering features (wavelets), averaged in a grid of at most `CELLS` by `CELLS` cells.

    Each feature is divided by its standard deviation in the pool.
    """

    # This weight was chosen for wavelets together with patches (docs/how-to/small_teachers.md).
    weight = 4.0
    least_variance = 1.0

    def __init__(self, pool: Pool) -> None:
        """Initializes the weights; `train` computes their values.

        Args:
            pool: pool with the shape and range of the images.

        Raises:
            ValueError: if images are too small; see `transform`.
        """
        cells = self._in_cells(tf.zeros([1, *pool.dataset.input_shape]))
        num_features = int(np.prod(cells.shape))
        (scale,) = encoder.constants(np.ones(num_features))
        super().__init__(pool.dataset, num_features, [scale])
        self._scale = scale

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns scattering features, averaged in each cell, `[batch, num_features]`."""
        cells = self._in_cells(images)
        return tf.reshape(cells, [-1, self._scale.shape[0]]) * self._scale

    def _in_cells(self, images: tf.Tensor) -> tf.Tensor:
        features = tf.transpose(transform(images), [0, 2, 3, 1])
        cells = [-(-side // CELLS) for side in features.shape[1:3]]
        return tf.nn.avg_pool2d(features, cells, cells, "SAME")

    def train(self, pool: Pool) -> None:
        """Computes standard deviations and directions from the images of a pool."""
        features = self.sample_features(pool)
        deviations = features.std(axis=0, dtype=np.float64)
        least = max(MIN_SCALE * float(deviations.max()), float(np.finfo(np.float32).tiny))
        scale = (1.0 / (deviations + least)).astype(np.float32)
        self._scale.assign(scale)
        self.view.find_in(features * scale)


# The following functions compute oriented gradients with fixed filters, which need no pool.

GRADIENT_CELLS = 7  # cells along each side of an image
ORIENTATIONS = 8
SHARPNESS = 8.0  # exponent of the cosine of the angle between a gradient and a direction
SPREAD = 0.25  # standard deviation of a normalized image's gradients, as a fraction of its side
MAX_SCALING = 2.0  # maximum factor by which a side is scaled


def _gradients(gray: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the horizontal gradients, vertical gradients and gradient magnitudes of gray images.

    Argument and results have the shape `[batch, height, width, 1]`.
    """
    padded = tf.pad(gray, [[0, 0], [1, 1], [1, 1], [0, 0]], "SYMMETRIC")
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    along = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    return across, along, tf.sqrt(tf.square(across) + tf.square(along))


def _posed(gray: tf.Tensor) -> tf.Tensor:
    """Shifts, shears and scales images so that the gradients of all images have equal moments.

    This is deskewing (LeCun, Bottou, Bengio and Haffner 1998). Each image is transformed by the
    mean position and covariance of its own gradients only. These do not change if dark and bright
    are exchanged.
    """
    _, height, width, _ = gray.shape
    length = _gradients(gray)[2]
    share = length / (tf.reduce_sum(length, axis=[1, 2, 3], keepdims=True) + 1e-6)
    ys = tf.linspace(-0.5, 0.5, height)[None, :, None, None]
    xs = tf.linspace(-0.5, 0.5, width)[None, None, :, None]

    def mean(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(share * values, axis=[1, 2, 3], keepdims=True)

    y = mean(ys)
    x = mean(xs)
    tiny = 1e-4  # avoids division by zero if all gradients have the same direction
    variance = mean(tf.square(ys - y)) + tiny
    covariance = mean((ys - y) * (xs - x))
    shear = tf.clip_by_value(covariance / variance, -1.0, 1.0)
    across = tf.maximum(mean(tf.square(xs - x)) - shear * covariance, tiny)
    scale_y, scale_x = (
        tf.clip_by_value(tf.sqrt(each) / SPREAD, 1.0 / MAX_SCALING, MAX_SCALING)
        for each in (variance, across)
    )
    # The rows of a matrix that maps output coordinates to input coordinates, in pixels.
    high = height - 1.0
    wide = width - 1.0
    slant = shear * scale_y * (wide / high)
    x0 = (x + 0.5 - 0.5 * scale_x) * wide - 0.5 * slant * high
    y0 = (y + 0.5 - 0.5 * scale_y) * high
    zero = tf.zeros_like(x0)
    rows = [scale_x, slant, x0, zero, scale_y, y0, zero, zero]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=gray,
        transforms=tf.concat(rows, axis=1)[:, :, 0, 0],
        output_shape=[height, width],
        interpolation="BILINEAR",
        fill_mode="NEAREST",
        fill_value=0.0,
    )


class GradientPart(encoder.Part):
    """Histograms of oriented gradients: the strength of gradients by direction in each cell.

    The features (Dalal and Triggs 2005) are computed from the mean of all channels, in cells that
    overlap by half. The features are nonnegative and have L2 norm 1. Nothing is trained; only the
    range of the images is needed. If the data set declares that small affine changes keep the
    label, `_posed` normalizes the images first.
    """

    def __init__(self, pool: Pool) -> None:
        """Initializes the part with the shape and range of the images."""
        super().__init__()
        dataset = pool.dataset
        low, high = (np.asarray(side, np.float64) for side in dataset.value_range)
        height, width, _ = dataset.input_shape
        self._is_posed = dataset.augmentation == "affine" and min(height, width) > 1
        spread = np.array(SPREAD * self._is_posed)
        self._low, self._range, self._spread = encoder.constants(low, high - low, spread)
        self._strides = [-(-height // GRADIENT_CELLS), -(-width // GRADIENT_CELLS)]
        rows = -(-height // self._strides[0])
        columns = -(-width // self._strides[1])
        self.widths = (rows * columns * ORIENTATIONS,)
        self.learnt = [self._low, self._range, self._spread]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        gray = tf.reduce_mean((inputs - self._low) / self._range, axis=3, keepdims=True)
        across, along, length = _gradients(_posed(gray) if self._is_posed else gray)
        angles = (2.0 * np.pi / ORIENTATIONS * np.arange(ORIENTATIONS)).astype(np.float32)
        turned = across * np.cos(angles) + along * np.sin(angles)
        share = tf.math.divide_no_nan(tf.nn.relu(turned), length)
        strength = length * share**SHARPNESS
        sides = [stride + stride // 2 for stride in self._strides]
        pooled = tf.nn.avg_pool2d(strength, sides, self._strides, "SAME")
        return [tf.math.l2_normalize(tf.reshape(pooled, [-1, self.widths[0]]), axis=1)]


# The following function prepares images for networks that were pre-trained on photographs.


def colour_images(images: tf.Tensor, dataset: Dataset, size: Sequence[int]) -> tf.Tensor:
    """Returns resized images with three channels and values 0 to 255, float32 `[batch, *size, 3]`.

    Raises:
        ValueError: if inputs are not images with one or three channels.
    """
    if dataset.kind != "image" or dataset.input_shape[2] not in (1, 3):
        raise ValueError(
            f"representation: this encoder needs images with one or three channels, got "
            f"{dataset.kind} data of shape {list(dataset.input_shape)}"
        )
    low, high = (np.asarray(side, np.float32) for side in dataset.value_range)
    scaled = tf.repeat((images - low) * (255.0 / (high - low)), 3 // images.shape[3], axis=3)
    return tf.image.resize(scaled, size, antialias=True)
