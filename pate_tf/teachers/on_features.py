"""Features of private records, and the graph of teachers solved for on them.

What a record's features are depends on its own teacher's share, on the encoder, which is public,
and on the number of teachers: each record has a place in a batch of fixed size that follows from
its teacher and its rank in the share alone, so that not even rounding depends on other teachers'
records. Where owners are protected it follows from the owner's name and the record's rank among the
owner's records, so that a record's features depend on no other owner.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.partition import Partition, owner_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.models import closed_form
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.teachers.ensemble import signature_of
from pate_tf.teachers.settings import TeacherConfig

SLOTS = 64  # teachers that share a batch
CHUNK = 64  # teachers that vote together
PART = 128  # rows that go into a variable together
PLACES = -1  # key of the hash of owners to places, which no partition's seed is


def features_of_shares(
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    encoder: Encoder,
    *,
    num_slots: int = SLOTS,
) -> Iterator[tuple[int, npt.NDArray[np.float32], IntArray]]:
    """Yields each teacher with features `[num_records, num_features]` and labels of its share.

    SENSITIVE. Few shares are in memory at a time.

    Args:
        examples: the private records of all teachers.
        partition: who gets which record.
        teachers: whose features are wanted; they come in ascending order.
        encoder: what features are.
        num_slots: how many shares have places in one batch; as many are in memory together.
    """
    shares = partition.all_records()
    slots = min(num_slots, partition.num_teachers)
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


def features_module(
    config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]], encoder: Encoder
) -> tf.Module:
    """Returns the graph, the encoder and the arrays of all teachers solved for, to be saved.

    Args:
        config: what the teachers were trained with.
        stacked: what `closed_form.stack` returned.
        encoder: what features are.
    """
    module = tf.Module()
    module.stacked = [_variable(array) for array in stacked]
    module.encoder, module.public_weights = encoder, encoder.learnt
    dataset, num_teachers = config.dataset, config.num_teachers
    is_linear = closed_form.is_linear(str(config.model))
    labels_of = functools.partial(_linear_labels if is_linear else _nearest_labels, module.stacked)
    signature = signature_of(dataset)
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

    module.votes, module.counts = votes, counts
    return module


@tf.autograph.experimental.do_not_convert
def _linear_labels(
    stacked: Sequence[tf.Variable], first: tf.Tensor, last: tf.Tensor, features: tf.Tensor
) -> tf.Tensor:
    """Labels int64 `[num_chunk, batch]` of teachers from `first` to `last - 1`."""
    weights, offsets = (
        tf.cast(tf.gather(one, tf.range(first, last)), tf.float32) for one in stacked
    )
    scores = tf.einsum("bf,tfc->tbc", features, weights) + offsets[:, tf.newaxis]
    return tf.argmax(scores, axis=2)


def _nearest_labels(
    stacked: Sequence[tf.Variable], first: tf.Tensor, last: tf.Tensor, features: tf.Tensor
) -> tf.Tensor:
    records, labels, starts = stacked
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
