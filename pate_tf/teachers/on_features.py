"""Teachers on features of a public representation: each is solved for, none is trained in steps.

Thousands of them take seconds. What a teacher computes depends on its own share, on the encoder,
which is public, and on the number of teachers: each record has a place in a batch of fixed size
that follows from its teacher and its rank in the share alone, so that not even rounding depends on
other teachers' records. Where owners are protected it follows from the owner's name and the
record's rank among the owner's records, so that a record's features depend on no other owner.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.divergences import LATTICE
from pate_tf.core.partition import Partition, owner_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.models import closed_form
from pate_tf.models.encoder import BATCH, Encoder, record_vectors
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.training import TeacherState

# Sums of private records by class, kept beside teachers: all that a linear model needs of records.
#
# What a record adds is its vector (`pate_tf.models.encoder`) in the column of its class, of
# length at most 1. What an owner's records add together has length at most 1 too: if it is
# longer, it
# is shortened. All is cut off towards zero to whole numbers, in steps of 1 / LATTICE. So sums do
# not
# depend on the order of records, and a length of at most 1 stays one. That it is at most 1 is
# checked
# in whole numbers, whatever the vectors are: what is longer, or not finite, is left out.


BELOW = 1.0 - 2.0**-40  # more than is lost by rounding, so that no length is above 1

FloatArray = npt.NDArray[np.float64]


@np.errstate(all="ignore")  # a warning would tell of a record
def class_sums(
    vectors: FloatArray,
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Returns sums of vectors by class, int64 `[num_features + 1, num_classes]`. SENSITIVE.

    Args:
      vectors: of `record_vectors`, `[num_records, num_features + 1]`. One of a length above 1, or
        that is not finite, counts as zero; so do all of an owner who has one that is not finite.
      labels: `[num_records]`.
      num_classes: number of classes.
      owners: whose each record is, `[num_records]`; all records of an owner must be here. None
        where each stands for itself.

    Returns:
      In steps of 1 / LATTICE. Each record adds a vector of length at most 1, or each owner does.
    """
    classes, found = labels, vectors
    unit: IntArray = np.arange(len(labels))
    if owners is not None:
        _, owner = np.unique(owners, return_inverse=True)
        pairs, place = np.unique(owner * num_classes + labels, return_inverse=True)
        together = np.zeros((len(pairs), vectors.shape[1]))
        np.add.at(together, place, vectors)
        unit, classes = pairs // num_classes, pairs % num_classes
        lengths = np.sqrt(np.bincount(unit, np.square(together).sum(axis=1)))
        found = together / np.maximum(lengths, 1.0)[unit, None]
    steps = np.trunc(found * (LATTICE * BELOW))
    # Whole numbers of at most 2^20, whose squares int64 adds up exactly. NaN compares as false.
    is_short: npt.NDArray[np.bool_] = np.abs(steps).max(axis=1) <= LATTICE
    squares = np.square(np.where(is_short[:, None], steps, 0.0).astype(np.int64)).sum(axis=1)
    total = np.zeros(unit.max(initial=-1) + 1, np.int64)
    np.add.at(total, unit, np.where(is_short, squares, LATTICE**2 + 1))
    steps[total[unit] > LATTICE**2] = 0.0
    # Sums of fewer than 2^33 records are whole numbers that float64 holds, in whatever order.
    return (steps.T @ np.eye(num_classes)[classes]).astype(np.int64)


SLOTS = 64  # teachers that share a batch
CHUNK = 64  # teachers that vote together
PART = 128  # rows that go into a variable together
PLACES = -1  # key of the hash of owners to places, which no partition's seed is


def is_on_features(model: Named) -> bool:
    """Whether `--model` names teachers that are solved for on features."""
    return isinstance(model, str) and model in closed_form.NAMES


def train(
    config: TeacherConfig,
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    encoder: Encoder,
) -> Iterator[tuple[int, TeacherState]]:
    """Yields each teacher with its arrays, in ascending order.

    Args:
      config: of it `model` and the number of teachers.
      examples: the private records of all teachers.
      partition: who gets which record.
      teachers: the teachers to solve for.
      encoder: what features are.
    """
    shares, owners = partition.all_records(), examples.owners
    by_owner = owners if partition.unit == "owner" else None
    # Where owners are protected and nobody says here who they are, nothing can be added up.
    is_known = partition.unit == "record" or by_owner is not None
    for teacher, features, labels in features_of_shares(examples, partition, teachers, encoder):
        arrays = closed_form.fit(
            str(config.model),
            features,
            labels,
            num_classes=config.dataset.num_classes,
            num_views=encoder.num_views,
            scale=encoder.scale,
        )
        sums = None
        if is_known:
            sums = class_sums(
                record_vectors(features, encoder.scale),
                labels,
                num_classes=config.dataset.num_classes,
                owners=None if by_owner is None else by_owner[shares[teacher]],
            )
        yield teacher, TeacherState(arrays, [], [], [], np.zeros(0, np.float32), sums)


def features_of_shares(
    examples: PrivateExamples, partition: Partition, teachers: Sequence[int], encoder: Encoder
) -> Iterator[tuple[int, npt.NDArray[np.float32], IntArray]]:
    """Yields each teacher with features `[num_records, num_features]` and labels of its share.

    SENSITIVE. Few shares are in memory at a time.

    Args:
      examples: the private records of all teachers.
      partition: who gets which record.
      teachers: whose features are wanted; they come in ascending order.
      encoder: what features are.
    """
    shares = partition.all_records()
    slots = min(SLOTS, partition.num_teachers)
    size = BATCH // slots  # records of one teacher in a batch
    places, rounds = _places(partition, examples.owners, size)
    wanted = set(teachers)
    for first in range(0, partition.num_teachers, slots):
        group = [one for one in range(first, first + slots) if one in wanted]
        found = {
            one: np.empty((len(shares[one]), encoder.num_features), np.float32) for one in group
        }
        last = max((int(rounds[shares[one]].max(initial=-1)) for one in group), default=-1)
        for number in range(last + 1):
            batch = np.zeros((slots, size, *examples.dataset.input_shape), np.float32)
            parts = {one: np.flatnonzero(rounds[shares[one]] == number) for one in group}
            for one, ranks in parts.items():
                records = shares[one][ranks]
                batch[one - first, places[records]] = examples.inputs[records]
            features = encoder.batch_features(batch.reshape(-1, *batch.shape[2:]))
            by_slot = features.reshape(slots, size, -1)
            for one, ranks in parts.items():
                found[one][ranks] = by_slot[one - first, places[shares[one][ranks]]]
        for one in group:
            yield one, found[one], examples.labels[shares[one]]


def _places(
    partition: Partition, owners: npt.NDArray[Any] | None, size: int
) -> tuple[IntArray, IntArray]:
    """Returns each record's place among `size`, and in which batch; both `[num_records]`.

    A place follows from the record's rank in its share, where owners are protected from its rank
    among the owner's and from the owner's name. The batch is the first whose place is free.
    """
    if partition.unit == "owner" and owners is not None:
        begin = owner_partition(owners, num_teachers=size, seed=PLACES).assignment
        places = (begin + _ranks(partition.numbered(owners))) % size
    else:
        places = _ranks(partition.assignment) % size
    return places, _ranks(partition.assignment * size + places)


def _ranks(groups: IntArray) -> IntArray:
    """Returns how many records of its group, a number, stand before each; `[num_records]`."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    ranks = np.empty_like(groups)
    ranks[order] = np.arange(len(groups)) - (np.cumsum(sizes) - sizes)[groups[order]]
    return ranks


class FeatureEnsembleModule(tf.Module):
    """The graph, the encoder and the stacked arrays of all teachers that are saved.

    Signatures are those of `keras_module.EnsembleModule`, without `probabilities`: least squares
    state none. And `features` (inputs to float32 `[batch, num_features]`).
    """

    def __init__(
        self, config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]], encoder: Encoder
    ) -> None:
        """Takes what `closed_form.stack` returned."""
        super().__init__()
        self.stacked = [_variable(array) for array in stacked]
        self.encoder = encoder
        self.public_weights = encoder.learnt
        dataset, num_teachers = config.dataset, config.num_teachers
        is_linear = closed_form.is_linear(str(config.model))
        labels_of = self._linear_labels if is_linear else self._nearest_labels
        signature = tf.TensorSpec(
            [None, *dataset.input_shape], dataset.input_type, name=dataset.input_name
        )
        starts = tf.range(0, num_teachers, CHUNK)
        features_of = tf.autograph.experimental.do_not_convert(encoder)

        @tf.function(input_signature=[signature])
        def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            features = features_of(tf.cast(inputs, tf.float32))
            parts = tf.TensorArray(tf.int64, tf.size(starts), infer_shape=False)
            for place in tf.range(tf.size(starts)):
                first = starts[place]
                last = tf.minimum(first + CHUNK, num_teachers)
                parts = parts.write(place, labels_of(first, last, features))
            return {"votes": tf.ensure_shape(parts.concat(), [num_teachers, None])}

        @tf.function(input_signature=[signature])
        def counts(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            features = features_of(tf.cast(inputs, tf.float32))
            total = tf.zeros([tf.shape(inputs)[0], dataset.num_classes], tf.int64)
            for first in starts:
                last = tf.minimum(first + CHUNK, num_teachers)
                labels = labels_of(first, last, features)
                total += tf.reduce_sum(tf.one_hot(labels, dataset.num_classes, dtype=tf.int64), 0)
            return {"counts": total}

        @tf.function(input_signature=[signature])
        def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            found = features_of(tf.cast(inputs, tf.float32))
            return {"features": tf.ensure_shape(found, [None, encoder.num_features])}

        self.votes, self.counts, self.features = votes, counts, features

    @tf.autograph.experimental.do_not_convert
    def _linear_labels(self, first: tf.Tensor, last: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """Labels int64 `[num_chunk, batch]` of teachers from `first` to `last - 1`."""
        weights, offsets = (
            tf.cast(tf.gather(one, tf.range(first, last)), tf.float32) for one in self.stacked
        )
        scores = tf.einsum("bf,tfc->tbc", features, weights) + offsets[:, tf.newaxis]
        return tf.argmax(scores, axis=2)

    def _nearest_labels(self, first: tf.Tensor, last: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        records, labels, starts = self.stacked
        found = tf.TensorArray(tf.int64, last - first)
        for teacher in tf.range(first, last):
            rows = tf.range(tf.gather(starts, teacher), tf.gather(starts, teacher + 1))
            own = tf.cast(tf.gather(records, rows), tf.float32)
            # Of |x - r|^2 the part that differs between records, as something to maximise. A record
            # that is never nearest stands in for an empty share, and is of the first class.
            scores = 2.0 * tf.matmul(features, own, transpose_b=True)
            scores -= tf.reduce_sum(tf.square(own), axis=1)
            none = tf.fill([tf.shape(features)[0], 1], scores.dtype.min)
            nearest = tf.argmax(tf.concat([scores, none], axis=1), axis=1)
            known = tf.concat([tf.gather(labels, rows), tf.zeros([1], labels.dtype)], axis=0)
            found = found.write(teacher - first, tf.cast(tf.gather(known, nearest), tf.int64))
        return found.stack()


def _variable(array: npt.NDArray[Any]) -> tf.Variable:
    """Returns a variable with an array's values, given in parts: all at once are copied twice."""
    if not np.issubdtype(array.dtype, np.floating):  # small, and not all devices update their parts
        return tf.Variable(array, trainable=False)
    variable = tf.Variable(tf.zeros(array.shape, array.dtype), trainable=False)
    for start in range(0, len(array), PART):
        part = array[start : start + PART]
        variable.scatter_nd_update(np.arange(start, start + len(part))[:, None], part)
    return variable
