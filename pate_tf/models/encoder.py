"""Encoders: from raw inputs to features that depend on public values alone.

`pate_tf.representations` makes them; this module is all that their users need.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset, check_inputs
from pate_tf.core.public import Pool
from pate_tf.core.source import Digests, record_digests
from pate_tf.core.validation import IntArray

BATCH = 512  # inputs; larger batches fall out of the cache and take longer an input
MOST_DIRECTIONS = 512  # of a view of images
SAMPLE = 10_000  # of the pool's images, by which the directions are found
PLACES = 256  # of records in a batch
TOGETHER = 16  # images whose features, at all places, are in memory at a time

Advance = Callable[[int], object]


class Part(tf.Module):
    """One network, or one rule: from raw inputs to one or several views of them.

    Attributes:
        widths: number of features of each view.
        weight: of each view, where features of several parts are weighed against each other.
        least_variance: that a feature counts with, as a share of its view's mean one
            (docs/how-to/small_teachers.md).
        places: of records in a batch, see `record_features`; few where a forward pass is dear.
        is_frozen: whether a person brought it, trained on other data.
    """

    widths: tuple[int, ...]
    weight: float = 1.0
    least_variance: float = 0.3
    places: int = PLACES
    is_frozen: bool = False

    @property
    def variances(self) -> list[Any] | None:
        """How much features vary in the pool, `[width]` of each view; None if unknown."""
        return None

    @property
    def groups(self) -> IntArray | None:
        """The group of each one-hot feature, of each of which one is not 0; None for others."""
        return None

    @property
    def learnt(self) -> list[Any]:
        """Keras' or TensorFlow's variables that hold what was learned, in an order of their own."""
        raise NotImplementedError

    def take(self, values: Sequence[npt.ArrayLike]) -> None:
        """Takes what another part of the kind has `learnt`, before an encoder is made of it.

        Raises:
            ValueError: if there are more or fewer arrays, or one has another shape.
        """
        for variable, value in zip(self.learnt, values, strict=True):
            variable.assign(value)

    def train(self, pool: Pool) -> None:
        """Learns from the inputs of a public pool what `__init__` left open; by default nothing."""

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns views float32 `[batch, width]` of raw inputs, float32 `[batch, *input_shape]`."""
        raise NotImplementedError


def constants(*arrays: npt.ArrayLike) -> list[tf.Variable]:
    """Returns float32 variables of arrays, which are learned and not trained by gradients."""
    return [tf.Variable(array, trainable=False, dtype=tf.float32) for array in arrays]


class Directions(tf.Module):
    """A view of L2 norm 1: features along the directions in which a pool's inputs differ most.

    Attributes:
        mean: of the pool's features, which says nothing of one input and is taken away.
        directions: `[num_features, width]`, the foremost first.
        variances: of the pool in each, as shares of those in all directions together.
    """

    def __init__(self, num_features: int, most: int) -> None:
        """All are zeros before `find`; `most` is the largest width."""
        super().__init__()
        self.width = min(num_features, most)
        shapes = [num_features], [num_features, self.width], [self.width]
        self.mean, self.directions, self.variances = constants(*map(np.zeros, shapes))

    def find(self, mean: npt.NDArray[Any], covariance: npt.NDArray[Any]) -> None:
        """Takes the directions from the mean and covariance of a pool's features."""
        number = len(covariance)
        variances, vectors = scipy.linalg.eigh(  # ascending
            covariance, subset_by_index=[number - self.width, number - 1]
        )
        self._take(mean, vectors, variances, np.trace(covariance))

    def find_in(self, features: npt.NDArray[np.float32]) -> None:
        """Takes the directions from a pool's features, which are centered in place.

        Of fewer inputs than features, by the inputs' inner products, whose eigenvalues are the
        same. What the pool has no variance in is left out then.
        """
        number, num_features = features.shape
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        features -= mean
        if number > num_features:
            self.find(mean, (features.T @ features) / number)
            return
        products = features @ features.T / number
        width = min(self.width, number)
        variances, of_inputs = scipy.linalg.eigh(
            products, subset_by_index=[number - width, number - 1]
        )
        # At most the error of the products' own rounding: no variance.
        has_variance = variances > number * np.finfo(np.float32).eps * variances[-1]
        variances, of_inputs = variances[has_variance], of_inputs[:, has_variance]
        vectors = (features.T @ of_inputs) / np.sqrt(number * variances)
        missing = (self.width - len(variances), 0)
        vectors, variances = np.pad(vectors, [(0, 0), missing]), np.pad(variances, missing)
        self._take(mean, vectors, variances, np.trace(products))

    def _take(
        self,
        mean: npt.NDArray[Any],
        vectors: npt.NDArray[Any],
        variances: npt.NDArray[Any],
        total: float,
    ) -> None:
        along = np.maximum(variances[::-1], 0.0) / max(float(total), np.finfo(np.float32).tiny)
        self.mean.assign(mean.astype(np.float32))
        self.directions.assign(vectors[:, ::-1].astype(np.float32))
        self.variances.assign(along.astype(np.float32))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Returns float32 `[batch, width]` of features `[batch, num_features]`."""
        return tf.math.l2_normalize(tf.matmul(features - self.mean, self.directions), axis=1)


class ImagePart(Part):
    """One view of images, of L2 norm 1: along the directions in which a pool's images differ most.

    Attributes:
        view: the directions, at most `MOST_DIRECTIONS`.
        fitted: variables that training finds besides the directions, first in `learnt`.
    """

    def __init__(self, dataset: Dataset, num_features: int) -> None:
        """Takes the range of a data set's images; the directions are zero before training."""
        super().__init__()
        self._low, self._high = (
            np.broadcast_to(np.asarray(values, np.float32), dataset.input_shape).copy()
            for values in dataset.value_range
        )
        self.view = Directions(num_features, MOST_DIRECTIONS)
        self.fitted: list[tf.Variable] = []
        self.widths = (self.view.width,)

    @property
    def variances(self) -> list[Any]:
        """As of `Directions`."""
        return [self.view.variances]

    @property
    def learnt(self) -> list[Any]:
        """What is fitted, the mean, directions and variances."""
        return [*self.fitted, self.view.mean, self.view.directions, self.view.variances]

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        return [self.view(self.features(inputs))]

    def few_features(self, images: tf.Tensor) -> tf.Tensor:
        """Returns features `[TOGETHER, ...]` of images whose range is 0 to 1."""
        raise NotImplementedError

    def features(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns features float32 `[batch, num_features]`, computed for `TOGETHER` at a time.

        The batch is filled up with zeros, so that `few_features` sees one shape alone.
        """
        number = tf.shape(inputs)[0]
        filled = tf.pad(inputs, [[0, -number % TOGETHER], [0, 0], [0, 0], [0, 0]])
        images = (filled - self._low) / (self._high - self._low)
        features = tf.map_fn(
            self.few_features,
            tf.reshape(images, [-1, TOGETHER, *inputs.shape[1:]]),
            parallel_iterations=1,
        )
        return tf.reshape(features, [-1, self.view.mean.shape[0]])[:number]

    def sample_features(self, pool: Pool) -> npt.NDArray[np.float32]:
        """Returns features of at most `SAMPLE` images of a pool, by which directions are found."""
        signature = [tf.TensorSpec([None, *pool.dataset.input_shape], tf.float32)]
        compiled = tf.function(self.features, signature, autograph=False)
        inputs = pool.inputs[:SAMPLE]
        batches = (inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH))
        return np.concatenate(
            [compiled(tf.constant(batch, tf.float32)).numpy() for batch in batches]
        )


class Encoder(tf.Module):
    """Public: features of raw inputs, in views that lie side by side.

    Each view of an input has an L2 norm of about 1, so that all weigh the same. What an input's
    features are depends on that input alone, and not on others of its batch. They are finite: an
    input for which a part gives NaN or infinity has the features 0.

    Attributes:
        dataset: the data whose inputs it takes.
        description: what it is, JSON; another text is another encoder's.
        parts: what it was joined from, in the order of their views.
        widths: number of features of each view.
        num_features: of all views together.
        num_views: how many there are.
        learnt: variables with all that was learned.
        places: as of its parts, the fewest.
        is_frozen: whether one of its parts is.
    """

    def __init__(
        self, dataset: Dataset, parts: Sequence[Part], description: Mapping[str, Any]
    ) -> None:
        """Joins at least one part; `description`, JSON values, says what the encoder is."""
        super().__init__()
        self.dataset = dataset
        self.description = json.dumps(description, sort_keys=True)  # a dictionary would be tracked
        self.widths = tuple(width for part in parts for width in part.widths)
        self.num_features, self.num_views = sum(self.widths), len(self.widths)
        self.parts = list(parts)
        self.places = min(part.places for part in parts)
        self.is_frozen = any(part.is_frozen for part in parts)
        self.remember(np.zeros(0), np.zeros(0, np.float32))
        self.learnt = [
            variable if isinstance(variable, tf.Variable) else variable.value  # of Keras
            for part in parts
            for variable in part.learnt
        ]
        self._graph = tf.function(
            self.__call__,
            input_signature=[tf.TensorSpec([None, *dataset.input_shape], tf.float32)],
            autograph=False,
        )

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns features float32 `[batch, num_features]` of raw inputs, float32."""
        features = tf.concat([view for part in self.parts for view in part(inputs)], axis=1)
        is_finite = tf.reduce_all(tf.math.is_finite(features), axis=1, keepdims=True)
        return tf.where(is_finite, features, tf.zeros_like(features))

    @property
    def feature_dataset(self) -> Dataset:
        """What is publicly known of features as inputs: numbers, each from -1 to 1."""
        return dataclasses.replace(
            self.dataset,
            kind="tabular",
            input_shape=(self.num_features,),
            value_range=(-1.0, 1.0),
            augmentation="none",
            input_type="float32",
            num_categories=(),
        )

    @functools.cached_property
    def scale(self) -> npt.NDArray[np.float64] | None:
        """Factors by which features vary about equally, `[num_features]`; None if unknown.

        The directions in which a pool's inputs hardly differ are not lifted all the way. Each
        view's part of an input's squared norm is its weight then, of all together 1 in the mean.
        """
        factors, weights = [], []
        for part in self.parts:
            for variances in part.variances or ():
                shares = np.asarray(variances, np.float64)
                if not shares.any():  # all inputs are equal
                    shares = np.ones_like(shares)
                squares = 1.0 / (shares + part.least_variance * shares.mean())
                factors.append(np.sqrt(squares * (part.weight / float(shares @ squares))))
                weights.append(part.weight)
        if len(factors) != self.num_views:
            return None
        return np.concatenate(factors) / math.sqrt(sum(weights))

    @property
    def groups(self) -> IntArray | None:
        """As of its only part; None of several, whose features are no one-hot ones together."""
        return self.parts[0].groups if len(self.parts) == 1 else None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of description and weights, as hexadecimal digits."""
        weights = artifacts.digest_arrays(variable.numpy() for variable in self.learnt)
        return hashlib.sha256((self.description + weights).encode()).hexdigest()

    def batch_features(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features of one batch in a single call, as `features` does.

        Of two batches of the same size, rows that agree in input and place have the same features,
        for any other rows.
        """
        return np.asarray(self._graph(tf.constant(batch, tf.float32)))

    def features(
        self, inputs: npt.NDArray[Any], advance: Advance | None = None
    ) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs `[num_inputs, *input_shape]`.

        `advance` is called with the number of inputs done since its last call.

        Raises:
            ValueError: if the inputs have another shape, or are not finite.
        """
        if inputs is self._pool_inputs:
            return self._pool_features
        check_inputs(inputs, self.dataset)
        features = np.empty((len(inputs), self.num_features), np.float32)
        for start in range(0, len(inputs), BATCH):
            part = inputs[start : start + BATCH]
            features[start : start + BATCH] = self.batch_features(part)
            if advance is not None:
                advance(len(part))
        return features

    def remember(self, inputs: npt.NDArray[Any], features: npt.NDArray[np.float32]) -> None:
        """Keeps the features of a pool's inputs, which `features` returns of the same array."""
        self._pool_inputs, self._pool_features = inputs, features

    def views(self, features: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        """Returns the views of features `[num_inputs, num_features]`, without a copy."""
        return tuple(np.split(features, np.cumsum(self.widths)[:-1], axis=1))


# Features of private records.

LEAST_TOGETHER = 4_096  # records whose features are handed on together
BLOCK = 2**26  # bytes of raw inputs that are looked at together
MOST_ROWS = 2**16


def record_features(
    encoder: Any,
    inputs: npt.NDArray[Any],
    rows: IntArray | None = None,
    *,
    digests: Digests | None = None,
) -> Iterator[tuple[IntArray, npt.NDArray[np.float32]]]:
    """Yields some records' positions with their features, each record once, in any order.

    A record's features depend on that record and on the encoder alone, not even by rounding on
    other records, their number or their order: its place in a batch of fixed size follows from a
    digest of its input. Equal inputs share a place, and their features are computed once.

    Args:
        encoder: of the features, with `batch_features`, and maybe `places`.
        inputs: raw, `[num_records, *input_shape]`, finite.
        rows: which records; None for all.
        digests: `record_digests` of all inputs, where they are known.

    Yields:
        Positions in `inputs`, int64 `[num_some]`, and features float32 `[num_some, num_features]`.
    """
    waiting: list[tuple[IntArray, npt.NDArray[np.float32]]] = []
    number = len(inputs) if rows is None else len(rows)
    done = 0
    for batch in _batches_of_features(encoder, inputs, rows, digests):
        waiting.append(batch)
        together = sum(len(positions) for positions, _ in waiting)
        if together >= LEAST_TOGETHER or done + together == number:
            positions, features = zip(*waiting, strict=True)
            yield np.concatenate(positions), np.concatenate(features)
            done, waiting = done + together, []


def _batches_of_features(
    encoder: Any, inputs: npt.NDArray[Any], rows: IntArray | None, digests: Digests | None
) -> Iterator[tuple[IntArray, npt.NDArray[np.float32]]]:
    """Yields what `record_features` yields, records of one batch at a time."""
    rows = np.arange(len(inputs)) if rows is None else rows
    num_places = getattr(encoder, "places", PLACES)
    size = BLOCK // max(1, int(np.prod(inputs.shape[1:])) * inputs.dtype.itemsize)
    # The more records, the fewer places of a batch stay empty; with digests no input is copied yet.
    size = MOST_ROWS if digests is not None else min(max(size, num_places), MOST_ROWS)
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        halves = (record_digests(inputs[block]) if digests is None else digests[block]).view(">u8")
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        is_first = np.ones(len(order), bool)
        is_first[1:] = (halves[order[1:]] != halves[order[:-1]]).any(axis=1)
        distinct = order[is_first]
        number = np.cumsum(is_first) - 1  # of the distinct input of each record in `order`
        ends = np.append(np.flatnonzero(is_first), len(order))
        places = (halves[distinct, 1] % num_places).astype(np.int64)
        by_place = np.argsort(places, kind="stable")
        sizes = np.bincount(places, minlength=num_places)
        ranks = np.empty_like(places)
        ranks[by_place] = np.arange(len(places)) - (np.cumsum(sizes) - sizes)[places[by_place]]
        by_rank = np.argsort(ranks, kind="stable")
        for some in np.split(by_rank, np.cumsum(np.bincount(ranks))[:-1]):
            batch = np.zeros((num_places, *inputs.shape[1:]), np.float32)
            batch[places[some]] = inputs[block[distinct[some]]]
            features = encoder.batch_features(batch)
            copies = ends[some + 1] - ends[some]
            if (copies == 1).all():
                yield block[distinct[some]], features[places[some]]
                continue
            equal = np.concatenate([np.arange(ends[index], ends[index + 1]) for index in some])
            for first in range(0, len(equal), PLACES):  # of an input there may be many
                part = equal[first : first + PLACES]
                yield block[order[part]], features[places[number[part]]]


# What a record adds to the sum of its class: its features, scaled and brought to one L2 norm.
#
# Features are scaled to equal variance in the public pool and get a common L2 norm; a constant is
# appended, whose sum counts the records. A vector depends on its own input and on public values
# alone. Features of norm 0, or that are not finite, give the zero vector.


# Of a vector's squared norm, the part of the constant. It counts the records of each class, to a
# thousandth of them where features are of any use. The noise on features counts for a fortieth
# more.
CONSTANT_SHARE = 0.05
CONSTANT = float(np.sqrt(CONSTANT_SHARE))

FloatArray = npt.NDArray[np.float64]


def record_vectors(
    features: npt.NDArray[np.float32], scale: npt.NDArray[np.float64] | None
) -> FloatArray:
    """Returns a vector of L2 norm at most 1 for each input, `[num_inputs, num_features + 1]`.

    Args:
        features: `[num_inputs, num_features]`.
        scale: factors by which features vary equally in the pool, `[num_features]`, as
            `Encoder.scale`; None where unknown.
    """
    scaled = features.astype(np.float64)
    if scale is not None:
        scaled *= scale
    norms = np.linalg.norm(scaled, axis=1)
    is_usable = np.isfinite(norms) & (norms > 0.0)
    vectors = np.zeros((len(scaled), scaled.shape[1] + 1))
    vectors[is_usable, :-1] = scaled[is_usable] / norms[is_usable, None]
    vectors[:, :-1] *= np.sqrt(1.0 - CONSTANT_SHARE)
    vectors[is_usable, -1] = CONSTANT
    return vectors


# Clusters of the pool. A record counts in the cluster whose center is nearest.

# Vectors and centers are rounded to whole steps, whose products float64 adds up exactly. So a
# record's cluster does not depend, by rounding, on the records that are computed together with it.
CENTRE_STEP = 2.0**-15


def nearest_centres(
    vectors: npt.NDArray[np.floating], centres: FloatArray
) -> npt.NDArray[np.int64]:
    """Returns which center is nearest to each vector, `[num_inputs]`; of equals the first.

    Args:
        vectors: of norm at most 1, `[num_inputs, width]`.
        centres: in whole steps, `[num_clusters, width]`.
    """
    steps = centres / CENTRE_STEP
    products = np.rint(np.asarray(vectors, np.float64) / CENTRE_STEP) @ steps.T
    nearest: npt.NDArray[np.int64] = (np.square(steps).sum(axis=1) - 2.0 * products).argmin(axis=1)
    return nearest
