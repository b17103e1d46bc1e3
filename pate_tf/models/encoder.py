"""Encoders: from raw inputs to features that depend on public values alone.

`pate_tf.representations` makes them; this module is all that their users need.
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
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, Dataset, check_inputs
from pate_tf.core.public import Pool
from pate_tf.core.source import Digests, record_digests
from pate_tf.data.preprocessing import input_spec, load_graph

BATCH = 512  # inputs; larger batches fall out of the cache and take longer an input
PLACES = 256  # of records in a batch


class Part(tf.Module):
    """One network, or one rule: from raw inputs to one or several views of them.

    Attributes:
        widths: number of features of each view.
        learnt: Keras' or TensorFlow's variables that hold what was learned, in an order of their
            own.
        variances: how much features vary in the pool, `[width]` of each view; None if unknown.
        groups: the group of each one-hot feature, of each of which one is not 0; None for others.
        weight: of each view, where features of several parts are weighed against each other.
        least_variance: that a feature counts with, as a share of its view's mean one
            (docs/how-to/small_teachers.md).
        places: of records in a batch, see `record_features`; few where a forward pass is dear.
        is_frozen: whether a person brought it, trained on other data.
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
        (self.mean,) = constants(np.zeros(num_features))
        (self.directions,) = constants(np.zeros((num_features, self.width)))
        (self.variances,) = constants(np.zeros(self.width))
        self.learnt = [self.mean, self.directions, self.variances]

    def find(self, mean: npt.NDArray[Any], covariance: npt.NDArray[Any]) -> None:
        """Takes the directions from the mean and covariance of a pool's features."""
        last = len(covariance) - 1
        chosen = [last - self.width + 1, last]
        variances, vectors = scipy.linalg.eigh(covariance, subset_by_index=chosen)  # ascending
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
        chosen = [number - min(self.width, number), number - 1]
        variances, of_inputs = scipy.linalg.eigh(products, subset_by_index=chosen)
        # At most the error of the products' own rounding: no variance.
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
        """Returns float32 `[batch, width]` of features `[batch, num_features]`."""
        return tf.math.l2_normalize(tf.matmul(features - self.mean, self.directions), axis=1)


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
        groups: as of its only part; None of several, whose features are no one-hot ones together.
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
        self.num_features = sum(self.widths)
        self.num_views = len(self.widths)
        self.groups = parts[0].groups if len(parts) == 1 else None
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
        )

    @functools.cached_property
    def scale(self) -> npt.NDArray[np.float64] | None:
        """Factors by which features vary about equally, `[num_features]`; None if unknown.

        The directions in which a pool's inputs hardly differ are not lifted all the way. Each
        view's part of an input's squared norm is its weight then, of all together 1 in the mean.
        """
        factors = list[npt.NDArray[np.float64]]()
        weights = list[float]()
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

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of description, target and weights, as hexadecimal digits.

        Sums of records are compared by it, which differ where targets do.
        """
        weights = artifacts.digest_arrays(variable.numpy() for variable in self.learnt)
        dataset = self.dataset
        target = f"{dataset.target} {dataset.target_range} {dataset.max_labels} "
        text = self.description + target * (dataset.target != CLASS) + weights
        return hashlib.sha256(text.encode()).hexdigest()

    def batch_features(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features of one batch in a single call, as `features` does.

        Of two batches of the same size, rows that agree in input and place have the same features,
        for any other rows.
        """
        return np.asarray(self._graph(tf.constant(batch, tf.float32)))

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs `[num_inputs, *input_shape]`.

        Raises:
            ValueError: if the inputs have another shape, or are not finite.
        """
        if inputs is self._pool_inputs:
            return self._pool_features
        check_inputs(inputs, self.dataset)
        features = np.empty((len(inputs), self.num_features), np.float32)
        for start in range(0, len(inputs), BATCH):
            features[start : start + BATCH] = self.batch_features(inputs[start : start + BATCH])
        if not (inputs.flags.writeable or self.is_frozen):  # of a pool, most often
            features.flags.writeable = False
            self.remember(inputs, features)
        return features

    def remember(self, inputs: npt.NDArray[Any], features: npt.NDArray[np.float32]) -> None:
        """Keeps the features of a read-only array, which `features` returns of the same one."""
        self._pool_inputs = inputs
        self._pool_features = features

    def views(self, features: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        """Returns the views of features `[num_inputs, num_features]`, without a copy."""
        return tuple(np.split(features, np.cumsum(self.widths)[:-1], axis=1))


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


def record_vectors(
    features: npt.NDArray[np.float32], scale: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.float64]:
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

    Raises:
        ValueError: after the last, if weights of a frozen model are no longer what they were.
    """
    is_frozen = getattr(encoder, "is_frozen", False)
    # The published digest must not depend on records.
    digest = encoder.digest if is_frozen else None
    waiting: list[tuple[IntArray, npt.NDArray[np.float32]]] = []
    number = len(inputs) if rows is None else len(rows)
    done = 0
    for batch in _batches_of_features(encoder, inputs, rows, digests):
        waiting.append(batch)
        together = sum(len(positions) for positions, _ in waiting)
        if together >= LEAST_TOGETHER or done + together == number:
            positions, features = zip(*waiting, strict=True)
            yield np.concatenate(positions), np.concatenate(features)
            done += together
            waiting = []
    if is_frozen:
        del encoder.digest  # of the cache
        if encoder.digest != digest:
            raise ValueError(
                "representation: the model's weights changed while private records went through "
                "it; take a model that keeps nothing"
            )


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


# An encoder on disk: a SavedModel that takes raw inputs.


def learnt_digest(learnt: Iterable[tf.Variable]) -> str:
    """Returns SHA-256 of what an encoder learned, as hexadecimal digits."""
    return hashlib.sha256(artifacts.digest_arrays(learnt).encode()).hexdigest()


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    Its signature `features` takes raw inputs, named as the data set names them.
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
    """Public: an encoder that `save_encoder` wrote.

    Attributes:
        dataset: the data whose inputs it takes.
        digest: SHA-256 of what it learned.
        num_features: how many features an input has.
        loaded: the SavedModel itself.
        scale: as of `Encoder`; None if unknown.
        is_frozen: whether a person brought it, trained on other data.
    """

    scale: npt.NDArray[np.float64] | None = None
    is_frozen = False

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads it; ValueError if there is none at `folder`, or it is broken."""
        self.dataset = dataset
        try:
            self.loaded = load_graph(str(folder))
            self.digest = learnt_digest(self.loaded.learnt)
            shape = self.loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
            self.remember(np.zeros(0), np.zeros(0, np.float32))
        except Exception as error:  # TensorFlow raises its own kinds
            raise ValueError(f"expected a representation in {folder}, got none") from error

    def remember(self, inputs: npt.NDArray[Any], features: npt.NDArray[np.float32]) -> None:
        """Keeps the features of a pool's inputs, as `Encoder.remember`."""
        self._pool_inputs = inputs
        self._pool_features = features

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs, worked out in parts."""
        if inputs is self._pool_inputs:
            return self._pool_features
        starts = range(0, max(1, len(inputs)), BATCH)
        return np.concatenate(
            [self.batch_features(inputs[start : start + BATCH]) for start in starts]
        )

    def batch_features(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features of one batch of raw inputs in a single call, as an `Encoder` does."""
        named = {self.dataset.input_name: tf.constant(batch, self.dataset.input_type)}
        return np.asarray(self.loaded.signatures["features"](**named)["features"])
