"""Patch features of images: filters are centres of k-means, found in seconds, without labels.

Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning":
small patches are drawn from the pool's images, normalised, whitened, and clustered by k-means. Each
centre is a filter. Features are each filter's mean response in each cell of a coarse grid.

Contrastive features (`contrastive.py`) are invariant to shifts and rotations; these are not, and
separate images by details that those ignore.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import sklearn.cluster
import tensorflow as tf

from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.models import encoder
from pate_tf.representations.raw import with_norm_one

SIDE = 6  # of a patch, in pixels; half of an image that is smaller than two of them
MOST_PLACES = 36  # along a side at which filters are tried; of larger images some are left out
PATCHES = 60_000  # that filters are found from
PASSES = 15  # of k-means over them
# All pixels' range counts as 1. What varies less than that is flat, and says nothing.
LEAST_DEVIATION, LEAST_CONTRAST = 0.02, 0.01
LEAST_VARIANCE = 0.01  # of the largest one that patches are whitened by

FloatRows = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many filters are tried where.

    Attributes:
        filters: how many.
        grid: cells along each side of an image.
        stride: pixels between places at which filters are tried, in an image of at most
            `MOST_PLACES` a side.
        threshold: that a filter's answer, of about one standard deviation, must exceed.
        weight: as of `encoder.Part`, as is the next.
        least_variance: with which a feature counts.
    """

    filters: int
    grid: int
    stride: int
    threshold: float
    weight: float = 4.0  # as much as four contrastive views together
    least_variance: float = encoder.Part.least_variance


# On Fashion-MNIST's pool twice as many filters told no more.
GREY = Layout(filters=64, grid=4, stride=1, threshold=0.25)
# Chosen on coloured digits and letters, beside wavelets (docs/notes/small_teachers.md).
COLOUR = Layout(filters=1_024, grid=2, stride=2, threshold=0.5, weight=1.0, least_variance=1.0)


class PatchPart(encoder.ImagePart):
    """Features are how strongly each filter answers in each cell of the grid."""

    def __init__(self, pool: Pool, seed: int) -> None:
        """Takes the shape of a pool's images; all weights are zero before `train`.

        `seed` is of the patches that are drawn, and of the first centres.
        """
        height, width, channels = pool.dataset.input_shape
        layout = COLOUR if pool.dataset.has_colours else GREY
        super().__init__(pool.dataset, layout.filters * layout.grid**2)
        self._layout, self._seed = layout, seed
        shorter = min(height, width)
        self._side = min(SIDE, max(2, shorter // 2), shorter)
        self.weight, self.least_variance = layout.weight, layout.least_variance
        self._stride = layout.stride * -(-max(height, width) // MOST_PLACES)
        shapes = (self._side, self._side, channels, layout.filters), (layout.filters,)
        self._filters, self._offsets = encoder.constants(*map(np.zeros, shapes))
        self.fitted = [self._filters, self._offsets]

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the root of each filter's mean answer in each cell, `[batch, grid, grid, n]`."""
        before = (self._side - 1) // 2
        around = [before, self._side - 1 - before]
        images = tf.pad(images, [[0, 0], around, around, [0, 0]])
        # A patch without brightness and contrast would be a copy for each place: what a filter
        # answers to it follows from what it answers to the patch as it is.
        mean, square = (
            tf.nn.avg_pool2d(
                tf.reduce_mean(values, axis=3, keepdims=True), self._side, self._stride, "VALID"
            )
            for values in (images, tf.square(images))
        )
        contrast = tf.sqrt(tf.maximum(square - tf.square(mean), 0.0) + LEAST_CONTRAST)
        answers = tf.nn.conv2d(images, self._filters, self._stride, "VALID")
        answers -= mean * tf.reduce_sum(self._filters, axis=[0, 1, 2])
        answers = tf.nn.relu(answers / contrast - self._offsets - self._layout.threshold)
        sides, grid = answers.shape[1:3], self._layout.grid
        cells = [-(-side // grid) for side in sides]
        missing = [cell * grid - side for cell, side in zip(cells, sides, strict=True)]
        answers = tf.pad(
            answers, [[0, 0], *([each // 2, each - each // 2] for each in missing), [0, 0]]
        )
        return tf.sqrt(tf.nn.avg_pool2d(answers, cells, cells, "VALID"))

    def train(self, pool: Pool) -> None:
        """Finds filters and directions from a pool's images."""
        for variable, values in zip(self.fitted, self._found_filters(pool), strict=True):
            variable.assign(values)
        self.find_directions(self.sample_features(pool))

    def _found_filters(self, pool: Pool) -> tuple[FloatRows, FloatRows]:
        """Returns filters `[side, side, channels, filters]` and what they answer to the mean."""
        random = np.random.default_rng(self._seed)
        patches = self._drawn_patches(pool, random)
        patches -= patches.mean(axis=1, keepdims=True)
        deviations = patches.std(axis=1, keepdims=True)
        patches = patches[deviations[:, 0] > LEAST_DEVIATION]
        if not len(patches):  # images of one colour each have no pieces
            return np.zeros(self._filters.shape), np.zeros(self._offsets.shape)
        patches /= np.sqrt(np.square(patches).mean(axis=1, keepdims=True) + LEAST_CONTRAST)
        mean = patches.mean(axis=0)
        centred = patches - mean
        variances, vectors = np.linalg.eigh(centred.T @ centred / len(patches))
        least = max(LEAST_VARIANCE * float(variances[-1]), np.finfo(np.float64).tiny)
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

    def _drawn_patches(self, pool: Pool, random: np.random.Generator) -> FloatRows:
        """Returns patches of random images at random places, `[PATCHES, pixels of a patch]`."""
        low, high = self._low, self._high
        side, (height, width, _) = self._side, pool.dataset.input_shape
        images: IntArray = random.integers(len(pool), size=PATCHES)
        rows = random.integers(height - side + 1, size=PATCHES)[:, None, None]
        columns = random.integers(width - side + 1, size=PATCHES)[:, None, None]
        rows = rows + np.arange(side)[:, None]
        columns = columns + np.arange(side)
        drawn = pool.inputs[images[:, None, None], rows, columns].astype(np.float64)
        scaled = (drawn - low[rows, columns]) / (high - low)[rows, columns]
        return scaled.reshape(PATCHES, -1)
