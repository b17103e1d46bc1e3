"""Features of tables and texts: scaled inputs, bins, products of pairs, and projections."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data.preprocessing import num_of_words
from pate_tf.models.encoder import Encoder, Part, constants

MAX_HASHED = 512  # maximum number of features of a text if there is no pool
MAX_DEVIATIONS = 3.0  # values are clipped to this number of standard deviations from the mean


def ranges_of(dataset: Dataset) -> list[npt.NDArray[np.float64]]:
    """Returns two arrays: the declared minimum and maximum of each number in a flattened input."""
    return [
        np.broadcast_to(np.asarray(side, np.float64), dataset.input_shape).ravel()
        for side in dataset.value_range
    ]


class RawPart(Part):
    """Features with L2 norm 1: scaled numbers and a constant.

    Numbers of a table are scaled by their mean and standard deviation in the pool, because a
    declared range is not suitable for a number that is nearly always 0. Pixels are scaled by their
    declared range. If the pool is empty, all numbers are scaled from their declared range to the
    range 0 to 1.
    """

    def __init__(self, pool: Pool) -> None:
        """Computes scales from the pool or from the declared ranges."""
        super().__init__()
        dataset = pool.dataset
        self.num_numbers = int(np.prod(dataset.input_shape))
        rows = pool.inputs.reshape(len(pool), self.num_numbers)
        low, high = ranges_of(dataset)
        middle = low
        unit = high - low
        if dataset.kind == "tabular" and pool:
            middle = rows.mean(axis=0, dtype=np.float64)
            deviation = rows.std(axis=0)
            unit = 2.0 * np.where(deviation > 0.0, deviation, unit)
        self.learnt = constants(middle, unit)
        self._middle, self._unit = self.learnt
        self.widths = (self.num_numbers + 1,)
        # Without a pool, texts have fewer features, which are only for single words: each product
        # of two features gets noise, and most pairs of words are rare. At epsilon 0.3, 1 and 3,
        # single words gave an accuracy that was 2 to 9 points higher than with pairs of words. This
        # was measured on the sentences of `standard_library` and `packages` of
        # benchmarks/own_data.py, and on the first 160 characters of 6,040 e-mails (SpamAssassin's
        # public corpus).
        self._folded = 0
        self._num_words = num_of_words(self.num_numbers)
        if dataset.kind == "text" and not pool:
            sizes = range(1, MAX_HASHED + 1)
            self._folded = max(size for size in sizes if self._num_words % size == 0)
            self.widths = (self._folded,)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        scaled = self.scaled(inputs)
        if self._folded:
            words = scaled[:, : self._num_words]
            counts = tf.reduce_sum(tf.reshape(words, [tf.shape(words)[0], self._folded, -1]), 2)
            return [tf.math.l2_normalize(counts, axis=1)]
        joined = tf.concat([scaled, tf.ones_like(scaled[:, :1])], axis=1)
        return [tf.math.l2_normalize(joined, axis=1)]

    def numbers(self, inputs: tf.Tensor) -> tf.Tensor:
        """Flattens inputs to float32 `[batch, num_numbers]`."""
        return tf.reshape(inputs, [-1, self.num_numbers])

    def scaled(self, inputs: tf.Tensor) -> tf.Tensor:
        """Scales flattened inputs; returns float32 `[batch, num_numbers]`."""
        most = MAX_DEVIATIONS / 2.0
        return tf.clip_by_value((self.numbers(inputs) - self._middle) / self._unit, -most, most)


def with_norm_one(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divides each row `[num_rows, num_features]` by its L2 norm."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(norm, np.finfo(rows.dtype).tiny)


# Maximum number of bins per column. It was chosen on a fifth of Adult's training file at epsilon
# 0.05 to 3: 5 bins are worse at every epsilon except 0.1, and 20 bins are worse at every epsilon
# (docs/how-to/small_teachers.md).
BINS = 10
# L2 norm of an input's bins, before bins and other features together are scaled to norm 1. It was
# chosen on the same part of Adult as `BINS`, and on three tables of benchmarks/own_data.py.
WEIGHT_OF_BINS = 0.5
MAX_BINS = 1_000  # maximum total of all numbers; if there are many numbers, each gets fewer bins
# Without a pool, a number's range is split into bins of equal widths. The lowest bin is split
# again, because many numbers are nearly always close to their lowest value. If there is much noise,
# few bins are better. The values below were chosen on Adult's training file and on tables of R's
# packages Ecdat and ggplot2 (`catalogue.MIN_RECORDS_OVER_NOISE`).
BINS_OF_RANGE = 25
SPLITS = (1 / 32, 1 / 4)
COARSE_BINS = 4


class BinsPart(Part):
    """Features with L2 norm 1: the features of `RawPart`, and a one-hot bin for each number.

    A linear function of these features is a generalized additive model (Hastie and Tibshirani
    1986): a sum of one function per column. The squared norm of all bins is only a quarter of the
    squared norm of the other features, so little accuracy is lost if a linear function of the
    columns is sufficient. All bins of a number contain about equally many inputs of the pool. A
    frequent value fills at most one bin, so a column that is nearly always 0 also has bins for its
    other values. A number with only two values has no bins. Without a pool, the declared ranges
    determine the bins (`edges_of_ranges`).
    """

    def __init__(self, pool: Pool, *, are_coarse: bool = False) -> None:
        """Computes bins from the pool or from declared ranges; `are_coarse` makes fewer bins."""
        super().__init__()
        self._raw = RawPart(pool)
        self._unbinned = None
        if pool:
            inner = edges_of_pool(pool, self._raw, COARSE_BINS if are_coarse else BINS)
        else:
            inner = edges_of_ranges(pool.dataset, are_coarse=are_coarse)
        columns = [column for column, edges in inner.items() for _ in range(len(edges) + 1)]
        if not pool:
            self._unbinned = np.setdiff1d(np.arange(self._raw.widths[0] - 1), columns)
            groups = one_hot_groups(pool.dataset, [*self._unbinned, *columns])
            if groups is not None:  # groups of ordered bins are negative
                is_number = np.isin(groups, groups[len(self._unbinned) :])
                self.groups = np.where(is_number, -1 - groups, groups)
        low = [start for edges in inner.values() for start in (-np.inf, *edges)]
        high = [end for edges in inner.values() for end in (*edges, np.inf)]
        self.take([*(scale.numpy() for scale in self._raw.learnt), columns, low, high])
        if pool:
            self.groups = np.zeros(self.widths[0], np.int64)
            self.groups[: self._raw.num_numbers] = numbers_of(pool.dataset)

    def take(self, values: Sequence[npt.ArrayLike]) -> None:
        """Replaces all values by stored values, whose number of bins may differ."""
        *scales, columns, low, high = values
        self._raw.take(scales)
        if not (np.ndim(columns) == 1 and np.shape(columns) == np.shape(low) == np.shape(high)):
            raise ValueError("bins: columns, lower and upper edges must have the same length")
        if np.size(low) > MAX_BINS:
            raise ValueError(f"bins: at most {MAX_BINS:,} are allowed, got {np.size(low):,}")
        if not np.isin(columns, np.arange(self._raw.num_numbers)).all():
            raise ValueError(f"bins: columns must be below {self._raw.num_numbers}")
        self._columns = tf.Variable(columns, trainable=False, dtype=tf.int32)
        self._low, self._high = constants(low, high)
        self.learnt = [*self._raw.learnt, self._columns, self._low, self._high]
        others = self._raw.widths[0] if self._unbinned is None else len(self._unbinned)
        self.widths = (others + int(self._columns.shape[0]),)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`; nonnegative if there is no pool."""
        numbers = tf.gather(self._raw.numbers(inputs), self._columns, axis=1)
        is_in_bin = tf.cast((numbers >= self._low) & (numbers < self._high), tf.float32)
        if self._unbinned is not None:
            others = tf.gather(self._raw.scaled(inputs), self._unbinned, axis=1)
            return [tf.math.l2_normalize(tf.concat([others, is_in_bin], axis=1), axis=1)]
        bins = WEIGHT_OF_BINS * tf.math.l2_normalize(is_in_bin, axis=1)
        return [tf.math.l2_normalize(tf.concat([*self._raw(inputs), bins], axis=1), axis=1)]


NUM_COSINES = 2
# Features say whether a number is below these fractions of its range, because many numbers are
# nearly always close to their lowest value.
LOW_FRACTIONS = tuple(split / BINS_OF_RANGE for split in (*SPLITS, 1.0))


class CosinesPart(Part):
    """Features with L2 norm 1: cosines of each number, one-hot categories, and a constant.

    A number u, scaled from its declared range to the range 0 to 1, has the features cos(pi k u) / k
    for k from 1 to `NUM_COSINES`, and for each of `LOW_FRACTIONS` whether it is lower. So a linear
    function of these features is a generalized additive model (Hastie and Tibshirani 1986): a sum
    of one function per column, which is smooth except near the lowest value. The squared L2 norm of
    its weights is proportional to the integral of the squared derivatives of these functions. A
    short vector of weights is therefore a smooth function, as for smoothing splines (Wahba 1990,
    https://doi.org/10.1137/1.9781611970128). Few features are sufficient, so there is little noise.
    """

    def __init__(self, dataset: Dataset, *, are_coarse: bool = False) -> None:
        """Computes scales from the declared ranges.

        Coarse features do not say whether a number is low.
        """
        super().__init__()
        self._lows = () if are_coarse else LOW_FRACTIONS
        is_number = numbers_of(dataset)
        low, high = ranges_of(dataset)
        self.learnt = constants(low, high - low)
        self._low, self._unit = self.learnt
        self._numbers = np.flatnonzero(is_number)
        self._others = np.flatnonzero(~is_number)
        of_numbers = (NUM_COSINES + len(self._lows)) * len(self._numbers)
        self.widths = (of_numbers + len(self._others) + 1,)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        numbers = tf.reshape(inputs, [-1, len(self._numbers) + len(self._others)])
        scaled = tf.clip_by_value((numbers - self._low) / self._unit, 0.0, 1.0)
        of_range = tf.gather(scaled, self._numbers, axis=1)
        features = [tf.cos(math.pi * k * of_range) / k for k in range(1, NUM_COSINES + 1)]
        features += [tf.cast(of_range < fraction, tf.float32) for fraction in self._lows]
        features += [tf.gather(scaled, self._others, axis=1), tf.ones_like(scaled[:, :1])]
        return [tf.math.l2_normalize(tf.concat(features, axis=1), axis=1)]


def edges_of_pool(pool: Pool, raw: RawPart, number: int) -> dict[int, npt.NDArray[Any]]:
    """Returns the edges of the bins of each number: quantiles of a pool's inputs.

    The argument `number` is the maximum number of bins for each of these numbers.
    """
    rows = raw.numbers(tf.constant(pool.inputs, tf.float32)).numpy()
    counted = [np.unique(column, return_counts=True) for column in rows.T]
    usable = [column for column, (values, _) in enumerate(counted) if len(values) > 2]
    number = min(number, MAX_BINS // max(len(usable), 1))
    edges = dict[int, npt.NDArray[Any]]()
    for column in usable if number > 1 else ():
        values, counts = counted[column]
        weights = np.minimum(counts, counts.sum() / number)
        places = (weights.cumsum() - weights / 2.0) / weights.sum()
        quantiles = np.interp(np.arange(1, number) / number, places, values)
        above = np.unique(np.searchsorted(values, quantiles))
        above = above[above > 0]
        middle = (values[above - 1].astype(np.float64) + values[above]) / 2.0
        middle = middle.astype(np.float32)  # may be rounded to a neighboring value
        edges[column] = np.where(middle > values[above - 1], middle, values[above])
    return edges


def numbers_of(dataset: Dataset) -> npt.NDArray[np.bool_]:
    """Returns which features of a flattened input are numbers, and not categories or words.

    Without a schema, all features are numbers.
    """
    if dataset.schema is None:
        return np.ones(np.prod(dataset.input_shape, dtype=int), bool)
    columns = dataset.schema.columns
    numeric = [bool(column.is_number or column.date) for column in columns]
    return np.repeat(numeric, [column.width for column in columns])


def edges_of_ranges(dataset: Dataset, *, are_coarse: bool) -> dict[int, npt.NDArray[Any]]:
    """Returns the edges of the bins of each number, computed from declared ranges.

    A value outside its range is counted in the first or last bin.
    """
    low, high = ranges_of(dataset)
    is_number = numbers_of(dataset)
    splits = () if are_coarse else SPLITS
    most = COARSE_BINS if are_coarse else BINS_OF_RANGE
    number = min(most, MAX_BINS // max(int(is_number.sum()), 1) - len(splits))
    places = np.arange(1, max(number, 1)) / max(number, 1)
    inner = np.concatenate([np.array(splits) / number, places]) if number > 1 else places
    return {
        int(column): np.unique((low[column] + inner * (high[column] - low[column])).astype("f4"))
        for column in np.flatnonzero(is_number)
        if len(inner)
    }


def one_hot_groups(dataset: Dataset, features: Sequence[int]) -> IntArray | None:
    """Returns the index of each feature's column if all columns are one-hot, else None.

    Args:
        dataset: data set that describes the columns.
        features: for each feature, the position of its number in `RawPart.scaled`. For a number
            with bins, the position is repeated for each bin.
    """
    columns = np.arange(np.prod(dataset.input_shape))
    if dataset.schema is not None:
        widths = [column.width for column in dataset.schema.columns]
        columns = np.repeat(np.arange(len(widths)), widths)
        if any(column.text for column in dataset.schema.columns):
            return None
    groups: IntArray = columns[np.asarray(features, np.int64)]
    _, sizes = np.unique(groups, return_counts=True)
    return None if (sizes < 2).any() else groups


MAX_OF_PAIRS = 64  # maximum for numbers and categories of an input together; gives 2,145 products


class PairsPart(Part):
    """Features with L2 norm 1: products of any two features of `RawPart`.

    This includes products with the constant of `RawPart`. The inner product of two inputs is the
    square of their inner product in `RawPart`: a polynomial kernel of degree 2.
    """

    def __init__(self, pool: Pool) -> None:
        """Computes scales from a pool with at least one input.

        Raises:
            ValueError: if an input has more than `MAX_OF_PAIRS` numbers and categories.
        """
        super().__init__()
        self._raw = RawPart(pool)
        (width,) = self._raw.widths
        if width - 1 > MAX_OF_PAIRS:
            raise ValueError(
                f"representation: pairs needs inputs of at most {MAX_OF_PAIRS} numbers and "
                f"categories, got {width - 1:,}. Choose bins or raw."
            )
        rows, columns = np.triu_indices(width)
        self.learnt = self._raw.learnt
        self._places = tf.constant(rows * width + columns)
        # In the polynomial kernel, a product of two different numbers occurs twice, once in each
        # order. Each product is stored once, so it has the weight sqrt(2).
        self._weights = tf.constant(np.where(rows == columns, 1.0, np.sqrt(2.0)), tf.float32)
        self.widths = (len(rows),)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        (raw,) = self._raw(inputs)
        products = tf.reshape(raw[:, :, None] * raw[:, None, :], [-1, raw.shape[1] ** 2])
        return [tf.gather(products, self._places, axis=1) * self._weights]


# Maximum number of directions of texts and of whitened features. On the pool of `packages` in
# benchmarks/own_data.py, 100 and 200 directions of texts are equally good; 50 and 400 are worse.
MAX_DIRECTIONS = 128
# If public labels are used for training, more directions are better, because these labels have no
# noise: by 1 to 3 points on the training records of `packages` and `standard_library`, at epsilon
# 0.3 and 1. Without public labels, they are worse by up to 8 points. Fewer labels than directions
# can't determine a model.
FINE_DIRECTIONS = 512
# Weight of pairs of words, relative to single words. Compared with 1, logistic regressions of the
# public labels are better on the other records of three sets of sentences, by 0.6 to 2.8 points.
# Without pairs, they are better than with weight 1 on two of the three sets.
WEIGHT_OF_PAIRS = 0.5
MAX_TEXTS = 4_096  # maximum number of texts from which directions are computed
MIN_VARIANCE_OF_TEXTS = 1e-9  # directions with less of the largest variance are rounding errors


class LsaPart(Part):
    """Features with L2 norm 1: latent semantic analysis of texts (Deerwester et al. 1990).

    Texts are hashed n-grams. For each n-gram with weight w, log(1 + w) is multiplied by the
    n-gram's inverse document frequency in the pool. Pairs of words get half the weight. The result
    is projected onto the pool's first `MAX_DIRECTIONS` principal directions, or `FINE_DIRECTIONS`.
    """

    def __init__(self, pool: Pool, *, is_fine: bool = False) -> None:
        """Computes document frequencies and directions from a pool with at least one text."""
        super().__init__()
        rows = pool.inputs.reshape(len(pool), -1)
        rarity = np.log((len(rows) + 1) / (np.count_nonzero(rows, axis=0) + 1))
        rarity[num_of_words(rows.shape[1]) :] *= WEIGHT_OF_PAIRS
        (self._rarity,) = constants(rarity)
        spread = rows[:: math.ceil(len(rows) / MAX_TEXTS)]  # the pool may be sorted
        some = self._weighed(tf.constant(spread)).numpy().astype(np.float64)
        mean = some.mean(axis=0)
        some -= mean
        # Products of texts have the eigenvalues of the covariance of n-grams, and are fewer. They
        # are in ascending order, so the last directions have the largest variance.
        variances, turned = np.linalg.eigh(some @ some.T)
        number = int(np.count_nonzero(variances > MIN_VARIANCE_OF_TEXTS * variances[-1]))
        number = min(max(number, 1), FINE_DIRECTIONS if is_fine else MAX_DIRECTIONS)
        turn = with_norm_one(turned[:, -number:].T @ some).T
        self._mean, self._turn = constants(mean, turn)
        self.learnt = [self._rarity, self._mean, self._turn]
        self.widths = (turn.shape[1],)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        turned = tf.matmul(self._weighed(inputs) - self._mean, self._turn)
        return [tf.math.l2_normalize(turned, axis=1)]

    def _weighed(self, inputs: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(tf.cast(inputs, tf.float32), [-1, self._rarity.shape[0]])
        return tf.math.l2_normalize(tf.math.log1p(tf.abs(flat)) * self._rarity, axis=1)


# Partly whitened features, for linear models that are trained in few noisy steps.
#
# Features vary far more in some directions than in others. Gradient descent learns the directions
# with little variance last, and noise allows only few steps. Full whitening would give all
# directions the same variance, which goes too far, because the noise is the same in each direction.
# Partial whitening is a compromise.


POWER = 0.5  # features are divided by this power of their standard deviation; 1 would whiten fully
MIN_VARIANCE = 1e-4  # lower limit of a variance, as a fraction of the largest variance


def whitened(encoder: Encoder, pool: Pool) -> Encoder:
    """Returns an encoder with partly whitened features; the pool must have at least two inputs."""
    description = {
        "whitened": encoder.description,
        "power": POWER,
        "directions": MAX_DIRECTIONS,
        "pool": artifacts.digest_array(pool.inputs),
    }
    return Encoder(encoder.dataset, [WhitenedPart(encoder, pool)], description)


class WhitenedPart(Part):
    """Features with L2 norm 1: weighted projections onto the pool's first principal directions."""

    def __init__(self, encoder: Encoder, pool: Pool) -> None:
        """Computes the mean and the principal directions of a pool's features."""
        super().__init__()
        self._encoder = encoder
        features = encoder.features(pool.inputs).astype(np.float64)
        mean = features.mean(axis=0)
        # The eigenvalues are in ascending order, so the last directions have the largest variance.
        variances, directions = np.linalg.eigh(np.cov(features - mean, rowvar=False))
        variances = variances[-MAX_DIRECTIONS:]
        least = max(MIN_VARIANCE * float(variances[-1]), float(np.finfo(np.float32).tiny))
        weights = np.maximum(variances, least) ** (-POWER / 2.0)
        self._mean, self._turn = constants(mean, directions[:, -MAX_DIRECTIONS:] * weights)
        self.learnt = [*encoder.learnt, self._mean, self._turn]
        self.widths = (len(variances),)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Maps inputs to features, float32 `[batch, width]`."""
        turned = tf.matmul(self._encoder(inputs) - self._mean, self._turn)
        return [tf.math.l2_normalize(turned, axis=1)]
