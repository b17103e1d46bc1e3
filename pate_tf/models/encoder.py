"""Encoders, which map raw inputs to features and depend only on public values.

A pool is a set of public inputs. `pate_tf.representations` trains encoders on a pool. This module
applies encoders and does not import the code for training.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.checks import FloatArray, IntArray, SingleArray
from pate_tf.core.dataset import CLASS, Dataset, check_inputs
from pate_tf.core.public import Pool
from pate_tf.core.source import Digests, record_digests
from pate_tf.data.preprocessing import input_spec, load_graph

BATCH = 512  # inputs per batch; larger batches exceed the CPU cache and are slower per input
PLACES = 256  # records per batch


class Part(tf.Module):
    """A network or a function that maps a raw input to one or more feature vectors, called views.

    Attributes:
        widths: number of features of each view.
        learnt: the learned values, as Keras or TensorFlow variables in a fixed order.
        variances: variances of the features in the pool, one array `[width]` for each view; None if
            they are unknown.
        groups: without a pool, the one-hot group index of each feature; with a pool, 1 for each
            scaled number and 0 for other features. None if there are no such groups.
        weight: weight of each view of this part, if an encoder has several parts.
        least_variance: lower limit of a feature's variance, as a fraction of the mean variance of
            its view (docs/how-to/small_teachers.md).
        places: number of records per batch, see `record_features`; this number is small if a
            forward pass is expensive.
        is_frozen: whether the part is a user's model, which was not trained on the pool.
    """

    widths: tuple[int, ...]
    learnt: Sequence[Any]
    variances: Sequence[Any] | None = None
    groups: IntArray | None = None
    weight: float = 1.0
    least_variance: float = 0.3
    places: int = PLACES
    is_frozen: bool = False

    def take(self, values: Sequence[npt.ArrayLike]) -> None:
        """Replaces the `learnt` values by the values of another part with the same structure.

        Raises:
            ValueError: if the number or the shapes of the arrays differ from `learnt`.
        """
        for variable, value in zip(self.learnt, values, strict=True):
            variable.assign(value)

    def train(self, pool: Pool) -> None:
        """Trains the part on the inputs of a public pool; by default, does nothing."""

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps raw inputs `[batch, *input_shape]` to the views, each float32 `[batch, width]`."""
        raise NotImplementedError


def constants(*arrays: npt.ArrayLike) -> list[tf.Variable]:
    """Converts arrays to float32 variables that training does not change."""
    return [tf.Variable(array, trainable=False, dtype=tf.float32) for array in arrays]


class Directions(tf.Module):
    """A view with L2 norm 1: projections on the first principal components of a pool.

    Attributes:
        mean: mean of the pool's features. It is subtracted from features.
        directions: principal directions, `[num_features, width]`, ordered by decreasing variance.
        variances: fraction of the pool's variance in each direction, `[width]`.
    """

    def __init__(self, num_features: int, most: int) -> None:
        """Initializes all values with zeros, which `find` replaces; `most` is the maximum width."""
        super().__init__()
        self.width = min(num_features, most)
        (self.mean,) = constants(np.zeros(num_features))
        (self.directions,) = constants(np.zeros((num_features, self.width)))
        (self.variances,) = constants(np.zeros(self.width))
        self.learnt = [self.mean, self.directions, self.variances]

    def find(self, mean: npt.NDArray[Any], covariance: npt.NDArray[Any]) -> None:
        """Computes the directions from the mean and covariance of a pool's features."""
        last = len(covariance) - 1
        chosen = [last - self.width + 1, last]
        # In ascending order.
        variances, vectors = scipy.linalg.eigh(covariance, subset_by_index=chosen)
        self._take(mean, vectors, variances, np.trace(covariance))

    def find_in(self, features: SingleArray) -> None:
        """Computes the directions from a pool's features, which are centered in place.

        If there are fewer inputs than features, the directions are computed from the matrix of
        inner products of the inputs, which has the same nonzero eigenvalues. In this case,
        directions with zero variance are left out.
        """
        number, num_features = features.shape
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        features -= mean
        if number > num_features:
            self.find(mean, (features.T @ features) / number)
            return
        products = features @ features.T / number
        chosen = [number - min(self.width, number), number - 1]
        variances, of_inputs = scipy.linalg.eigh(products, subset_by_index=chosen)
        # A variance below the rounding error of the inner products is treated as zero.
        has_variance = variances > number * np.finfo(np.float32).eps * variances[-1]
        variances = variances[has_variance]
        vectors = (features.T @ of_inputs[:, has_variance]) / np.sqrt(number * variances)
        missing = (self.width - len(variances), 0)
        vectors = np.pad(vectors, [(0, 0), missing])
        self._take(mean, vectors, np.pad(variances, missing), np.trace(products))

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
        """Maps features `[batch, num_features]` to this view, float32 `[batch, width]`."""
        return tf.math.l2_normalize(tf.matmul(features - self.mean, self.directions), axis=1)


class Encoder(tf.Module):
    """Public: maps raw inputs to features, which are concatenated vectors (views).

    Each view of an input has an L2 norm of about 1, so all views have the same weight. The features
    of an input depend only on this input, not on the rest of its batch. Features are always finite:
    if a part returns NaN or infinity for an input, the features of this input are 0.

    Attributes:
        dataset: data set of the inputs.
        description: JSON text that identifies the encoder.
        parts: `Part` objects, in the order of their views.
        widths: number of features of each view.
        num_features: total number of features of all views.
        num_views: number of views.
        learnt: all learned values, as Keras or TensorFlow variables.
        groups: `groups` of the part if there is only one part; otherwise None.
        places: number of records per batch: the smallest `places` of the parts.
        is_frozen: whether a part is a user's model.
    """

    def __init__(
        self, dataset: Dataset, parts: Sequence[Part], description: Mapping[str, Any]
    ) -> None:
        """Creates an encoder from at least one part.

        `description` contains JSON values that identify the encoder.
        """
        super().__init__()
        self.dataset = dataset
        # Stored as text, because TensorFlow would track a dictionary.
        self.description = json.dumps(description, sort_keys=True)
        self.widths = tuple(width for part in parts for width in part.widths)
        self.num_features = sum(self.widths)
        self.num_views = len(self.widths)
        self.groups = parts[0].groups if len(parts) == 1 else None
        self.parts = list(parts)
        self.places = min(part.places for part in parts)
        self.is_frozen = any(part.is_frozen for part in parts)
        self.remember(np.zeros(0), np.zeros(0, np.float32))
        self.learnt = [
            variable if isinstance(variable, tf.Variable) else variable.value  # a variable of Keras
            for part in parts
            for variable in part.learnt
        ]
        self._graph = tf.function(
            self.__call__,
            input_signature=[tf.TensorSpec([None, *dataset.input_shape], tf.float32)],
            autograph=False,
        )

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps float32 raw inputs to their features, float32 `[batch, num_features]`."""
        features = tf.concat([view for part in self.parts for view in part(inputs)], axis=1)
        is_finite = tf.reduce_all(tf.math.is_finite(features), axis=1, keepdims=True)
        return tf.where(is_finite, features, tf.zeros_like(features))

    @property
    def feature_dataset(self) -> Dataset:
        """The data set that describes the features as inputs: numbers from -1 to 1."""
        return dataclasses.replace(
            self.dataset,
            kind="tabular",
            input_shape=(self.num_features,),
            value_range=(-1.0, 1.0),
            augmentation="none",
            input_type="float32",
        )

    @functools.cached_property
    def scale(self) -> FloatArray | None:
        """Factors that scale all features to about equal variance, `[num_features]`, or None.

        None if the variances are unknown. Features with very little variance in the pool get a
        limited factor. The expected squared norm of a scaled view is its weight divided by the
        total weight.
        """
        factors = list[FloatArray]()
        weights = list[float]()
        for part in self.parts:
            for variances in part.variances or ():
                fractions = np.asarray(variances, np.float64)
                if not fractions.any():  # all inputs of the pool are equal
                    fractions = np.ones_like(fractions)
                squares = 1.0 / (fractions + part.least_variance * fractions.mean())
                factors.append(np.sqrt(squares * (part.weight / float(fractions @ squares))))
                weights.append(part.weight)
        if len(factors) != self.num_views:
            return None
        return np.concatenate(factors) / math.sqrt(sum(weights))

    @functools.cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the encoder's description and weights, and of the target.

        The digest includes the target because it identifies feature sums, which depend on the
        target.
        """
        weights = artifacts.digest_arrays(variable.numpy() for variable in self.learnt)
        dataset = self.dataset
        target = f"{dataset.target} {dataset.target_range} {dataset.max_labels} "
        text = self.description + target * (dataset.target != CLASS) + weights
        return hashlib.sha256(text.encode()).hexdigest()

    def batch_features(self, batch: npt.NDArray[Any]) -> SingleArray:
        """Returns the features of one batch in a single call.

        If all batches have the same size, the features of a row depend only on its input and its
        position in the batch, not on other rows.
        """
        return np.asarray(self._graph(tf.constant(batch, tf.float32)))

    def features(self, inputs: npt.NDArray[Any]) -> SingleArray:
        """Maps raw inputs `[num_inputs, *input_shape]` to features `[num_inputs, num_features]`.

        Raises:
            ValueError: if the inputs have the wrong shape or are not finite.
        """
        if inputs is self._pool_inputs:
            return self._pool_features
        check_inputs(inputs, self.dataset)
        features = np.empty((len(inputs), self.num_features), np.float32)
        for start in range(0, len(inputs), BATCH):
            features[start : start + BATCH] = self.batch_features(inputs[start : start + BATCH])
        if not (inputs.flags.writeable or self.is_frozen):  # usually a pool
            features.flags.writeable = False
            self.remember(inputs, features)
        return features

    def remember(self, inputs: npt.NDArray[Any], features: SingleArray) -> None:
        """Caches the features of a read-only array for later calls of `features`."""
        self._pool_inputs = inputs
        self._pool_features = features

    def views(self, features: SingleArray) -> tuple[SingleArray, ...]:
        """Splits features `[num_inputs, num_features]` into their views, without a copy."""
        return tuple(np.split(features, np.cumsum(self.widths)[:-1], axis=1))


# The contribution of a record to the sum of its class is a vector of scaled features with a fixed
# L2 norm. Features are scaled to equal variance in the public pool, and each vector is normalized
# to the same L2 norm. A constant is appended, so that the sum also contains the number of records.
# A vector depends only on its input and on public values. If the features have norm 0 or are not
# finite, the vector is zero.


# Fraction of a vector's squared norm that belongs to the constant. With this value, the noisy
# number of records of each class has a relative error of about 0.1 %, if there are enough records
# for useful features. The constant increases the relative noise of the features by about 2.5 %.
CONSTANT_FRACTION = 0.05
CONSTANT = float(np.sqrt(CONSTANT_FRACTION))


def record_vectors(features: SingleArray, scale: FloatArray | None) -> FloatArray:
    """Converts features to vectors of L2 norm at most 1, `[num_inputs, num_features + 1]`.

    Args:
        features: features of the inputs, `[num_inputs, num_features]`.
        scale: factors that scale features to equal variance in the pool, `[num_features]`, see
            `Encoder.scale`; None to leave the features unscaled.
    """
    scaled = features.astype(np.float64)
    if scale is not None:
        scaled *= scale
    norms = np.linalg.norm(scaled, axis=1)
    is_usable = np.isfinite(norms) & (norms > 0.0)
    vectors = np.zeros((len(scaled), scaled.shape[1] + 1))
    vectors[is_usable, :-1] = scaled[is_usable] / norms[is_usable, None]
    vectors[:, :-1] *= np.sqrt(1.0 - CONSTANT_FRACTION)
    vectors[is_usable, -1] = CONSTANT
    return vectors


MIN_YIELDED = 4_096  # minimum number of records that are yielded together
BLOCK = 2**26  # bytes of raw inputs per block
MAX_ROWS = 2**16  # records per block


def record_features(
    encoder: Any,
    inputs: npt.NDArray[Any],
    rows: IntArray | None = None,
    *,
    digests: Digests | None = None,
) -> Iterator[tuple[IntArray, SingleArray]]:
    """Yields the positions of records and their features, in arbitrary order.

    Each record is yielded once. The features of a record depend only on this record and on the
    encoder. Other records, their number and their order have no influence, not even through
    rounding, because a digest of the input determines the position of a record in a batch of fixed
    size. Features of identical inputs are computed once.

    Args:
        encoder: an encoder: an object with the method `batch_features`, and optionally the
            attribute `places`.
        inputs: raw inputs `[num_records, *input_shape]`, finite.
        rows: positions of the records whose features are computed; None for all records.
        digests: `record_digests` of all inputs, if they are known.

    Yields:
        Positions in `inputs`, int64 `[num_some]`, and features float32 `[num_some, num_features]`.

    Raises:
        ValueError: after the last record, if the weights of a frozen model have changed.
    """
    is_frozen = getattr(encoder, "is_frozen", False)
    # The weights of a frozen model must not change while records are encoded, because their digest
    # is published and must not depend on records.
    digest = encoder.digest if is_frozen else None
    waiting: list[tuple[IntArray, SingleArray]] = []
    number = len(inputs) if rows is None else len(rows)
    done = 0
    for batch in _batches_of_features(encoder, inputs, rows, digests):
        waiting.append(batch)
        num_waiting = sum(len(positions) for positions, _ in waiting)
        if num_waiting >= MIN_YIELDED or done + num_waiting == number:
            positions, features = zip(*waiting, strict=True)
            yield np.concatenate(positions), np.concatenate(features)
            done += num_waiting
            waiting = []
    if is_frozen:
        del encoder.digest  # clears the cached value
        if encoder.digest != digest:
            raise ValueError("representation: calling the model must not change its weights")


def _batches_of_features(
    encoder: Any, inputs: npt.NDArray[Any], rows: IntArray | None, digests: Digests | None
) -> Iterator[tuple[IntArray, SingleArray]]:
    """Yields the same as `record_features`, one batch at a time."""
    rows = np.arange(len(inputs)) if rows is None else rows
    num_places = getattr(encoder, "places", PLACES)
    size = BLOCK // max(1, int(np.prod(inputs.shape[1:])) * inputs.dtype.itemsize)
    # With larger blocks, batches have fewer empty places. Blocks of inputs must be copied to
    # compute their digests, so blocks are only large if the digests are given.
    size = MAX_ROWS if digests is not None else min(max(size, num_places), MAX_ROWS)
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        halves = (record_digests(inputs[block]) if digests is None else digests[block]).view(">u8")
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        is_first = np.ones(len(order), bool)
        is_first[1:] = (halves[order[1:]] != halves[order[:-1]]).any(axis=1)
        distinct = order[is_first]
        number = np.cumsum(is_first) - 1  # index of the distinct input of each record in `order`
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
            # An input may occur more often than a batch has places, so its records are yielded in
            # groups.
            for first in range(0, len(equal), PLACES):
                part = equal[first : first + PLACES]
                yield block[order[part]], features[places[number[part]]]


# The following functions store an encoder as a SavedModel that takes raw inputs, and load it.


def learnt_digest(learnt: Iterable[tf.Variable]) -> str:
    """Returns the SHA-256 of learned values, as hexadecimal digits."""
    return hashlib.sha256(artifacts.digest_arrays(learnt).encode()).hexdigest()


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    The signature `features` takes raw inputs. The name of its argument is the input name of the
    data set.
    """
    module = tf.Module()
    module.encoder = encoder
    module.learnt = encoder.learnt

    @tf.function(autograph=False, input_signature=[input_spec(encoder.dataset)])
    def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        values = encoder(tf.cast(inputs, tf.float32))
        return {"features": tf.ensure_shape(values, [None, encoder.num_features])}

    module.features = features
    tf.saved_model.save(module, str(folder), signatures={"features": features})


class SavedEncoder:
    """Public: an encoder that was stored by `save_encoder`.

    Attributes:
        dataset: data set of the inputs.
        digest: SHA-256 of the learned values.
        num_features: number of features of an input.
        loaded: the loaded SavedModel.
        scale: factors that scale features to equal variance, see `Encoder.scale`; None if unknown.
        is_frozen: whether the encoder is a user's model, which was not trained on the pool.
        groups: groups of features, see `Encoder.groups`.
    """

    scale: FloatArray | None = None
    is_frozen = False
    groups: IntArray | None = None

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads an encoder; raises ValueError if `folder` contains no valid encoder."""
        self.dataset = dataset
        try:
            self.loaded = load_graph(str(folder))
            self.digest = learnt_digest(self.loaded.learnt)
            shape = self.loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
            self.remember(np.zeros(0), np.zeros(0, np.float32))
        except Exception as error:  # TensorFlow raises several types of exceptions
            raise ValueError(f"{folder} does not contain a representation") from error

    def remember(self, inputs: npt.NDArray[Any], features: SingleArray) -> None:
        """Caches the features of a pool's inputs; see `Encoder.remember`."""
        self._pool_inputs = inputs
        self._pool_features = features

    def features(self, inputs: npt.NDArray[Any]) -> SingleArray:
        """Returns the features of raw inputs, `[num_inputs, num_features]`, computed in batches."""
        if inputs is self._pool_inputs:
            return self._pool_features
        starts = range(0, max(1, len(inputs)), BATCH)
        return np.concatenate(
            [self.batch_features(inputs[start : start + BATCH]) for start in starts]
        )

    def batch_features(self, batch: npt.NDArray[Any]) -> SingleArray:
        """Returns the features of one batch of raw inputs in a single call."""
        named = {self.dataset.input_name: tf.constant(batch, self.dataset.input_type)}
        return np.asarray(self.loaded.signatures["features"](**named)["features"])
