"""Sums of clipped gradients of single records, in whole lattice steps: the sensitive numbers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd.models import FlatView, FloatArray
from pate_tf.selective_sgd.privacy import LATTICE

NUMBERS_AT_ONCE = 2**25  # of gradients of single records
MOST_RECORDS = 1024
# Below one by more than the rounding of lengths in float64.
JUST_BELOW = 1.0 - 1e-9
NO_PARTICIPANT = -1  # whose sums are dropped
# Which branch a record takes would decide which records are computed together.
PARTS_BATCHES = "DynamicPartition"

# Places in a batch, inputs, labels and participants of records.
Batch = tuple[IntArray, npt.NDArray[Any], IntArray, IntArray]


class RecordGradients:
    """Sums over records of gradients clipped to a length, for all participants in one graph.

    Guarantee. A participant's sum is the sum of a vector of each of its records that were drawn, to
    the last bit. The vector holds whole numbers, has length at most `LATTICE`, and depends on that
    record, its place among all records and public values alone, not on which others are drawn:

    - A record is always computed at the same place of a batch of the same size; both follow from
      its place among all records and from how many there are, which is public. Other places hold
      other records, or a fixed input. The last bits of a row of a matrix product depend on the
      size of the batch and the row's place in it, and at a threshold of the model they decide on
      the whole gradient; they do not depend on what other rows hold.
    - Gradients are scaled in float64 and cut off towards zero, which makes no vector longer, and
      whole numbers are added exactly.
    - The vector is zero if the gradient is not finite, or if an operation of the model fails.

    Args:
      view: of the model, which must treat records apart: no statistics over a batch, no dropout,
        no branches that depend on a record.
      shares: each participant's records.

    Raises:
      ValueError: if the model does not treat records apart, or takes no records of the data set.
    """

    def __init__(self, view: FlatView, shares: Sequence[PrivateExamples]) -> None:
        if view.model.non_trainable_variables:
            raise ValueError(
                "model: expected one that treats records apart, without batch normalization and "
                "dropout, as noise is added for single records; got one that holds more than its "
                "parameters"
            )
        self._view, self._shares = view, shares
        self._starts = np.cumsum([0, *map(len, shares)])
        most = int(np.clip(NUMBERS_AT_ONCE // view.num_parameters, 2, MOST_RECORDS))
        self._num_places = min(most - 1, int(self._starts[-1]))
        # Place 0 never holds a record: an operation that fails for the fixed input does so in
        # every batch.
        size = self._num_places + 1
        dataset = shares[0].dataset
        fixed = np.broadcast_to(np.asarray(dataset.value_range[0]), dataset.input_shape)
        self._fixed = np.stack([fixed.astype(np.float32)] * size)
        self._graph = tf.function(
            self._run,
            autograph=False,
            input_signature=[
                tf.TensorSpec([view.num_parameters], tf.float32),
                tf.TensorSpec(self._fixed.shape, tf.float32),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([size], tf.int64),
                tf.TensorSpec([None], tf.int64),
                tf.TensorSpec([], tf.float64),
            ],
        )
        self._check(view.initial())

    def sums(
        self, parameters: FloatArray, drawn: Sequence[IntArray], *, indices: IntArray, clip: float
    ) -> IntArray:
        """SENSITIVE: returns the sums, int64 `[num_participants, num_indices]`, in clip / LATTICE.

        Args:
          parameters: float32 `[num_parameters]`.
          drawn: of each participant, which of its records, each once, int64 `[num_drawn]`.
          indices: of the parameters that are uploaded, the same for all.
          clip: the length that a record's gradient on these parameters is clipped to.
        """
        inputs = np.concatenate(
            [share.inputs[one] for share, one in zip(self._shares, drawn, strict=True)]
        )
        labels = np.concatenate(
            [share.labels[one] for share, one in zip(self._shares, drawn, strict=True)]
        )
        owners = np.repeat(np.arange(len(drawn)), [len(one) for one in drawn])
        places = 1 + (self._starts[owners] + np.concatenate(drawn)) % self._num_places
        # Records of the same place are computed one after another, each in a batch of its own.
        order = np.argsort(places, kind="stable")
        in_order = places[order]
        batches = np.arange(len(order)) - np.searchsorted(in_order, in_order)
        total = np.zeros((len(drawn), len(indices)), np.int64)
        for batch in range(int(batches.max(initial=-1)) + 1):
            some = order[batches == batch]
            records = (places[some], inputs[some], labels[some], owners[some])
            total += self._sums_of_batch(parameters, records, indices, clip)
        return total

    def _sums_of_batch(
        self, parameters: FloatArray, records: Batch, indices: IntArray, clip: float
    ) -> IntArray:
        try:
            return self._computed(parameters, records, indices, clip)
        except tf.errors.InvalidArgumentError:
            # An operation fails for one of the records, which must not stop the others.
            total = np.zeros((len(self._shares), len(indices)), np.int64)
            number = len(records[0])
            for one in range(number if number > 1 else 0):
                places, inputs, labels, owners = (each[one : one + 1] for each in records)
                alone = (places, inputs, labels, owners)
                total += self._sums_of_batch(parameters, alone, indices, clip)
            return total

    def _computed(
        self, parameters: FloatArray, records: Batch, indices: IntArray, clip: float
    ) -> IntArray:
        inputs, labels = self._fixed.copy(), np.zeros(len(self._fixed), np.int64)
        owners = np.full(len(self._fixed), NO_PARTICIPANT, np.int64)
        places = records[0]
        inputs[places], labels[places], owners[places] = records[1:]
        found = self._graph(
            tf.constant(parameters),
            tf.constant(inputs),
            tf.constant(labels),
            tf.constant(owners),
            tf.constant(indices),
            tf.constant(clip, tf.float64),
        )
        return np.asarray(found.numpy())

    def _check(self, parameters: FloatArray) -> None:
        """Traces the graph and runs it without any record.

        Raises:
          ValueError: if records would be computed together, or it fails.
        """
        graph = self._graph.get_concrete_function().graph.as_graph_def()
        functions = [function.node_def for function in graph.library.function]
        if any(node.op == PARTS_BATCHES for nodes in (graph.node, *functions) for node in nodes):
            raise ValueError(
                "model: expected one that treats records apart, without branches that depend on "
                "them, as noise is added for single records; got one with such branches"
            )
        nothing = np.zeros(0, np.int64)
        try:
            records = (nothing, self._fixed[:0], nothing, nothing)
            self._computed(parameters, records, np.zeros(1, np.int64), 1.0)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "model: expected one that takes inputs of the data set, got one that fails for "
                f"the lowest value of its range: {str(error).splitlines()[0]}"
            ) from error

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        owners: tf.Tensor,
        indices: tf.Tensor,
        clip: tf.Tensor,
    ) -> tf.Tensor:
        pieces = self._view.pieces(parameters)

        def gradient(record: Any) -> tf.Tensor:
            one, label = record
            with tf.GradientTape() as tape:
                tape.watch(pieces)
                logits, _, own_losses = self._view.model.stateless_call(
                    pieces, [], one[tf.newaxis], training=True, return_losses=True
                )
                loss = keras.losses.sparse_categorical_crossentropy(
                    label[tf.newaxis], logits, from_logits=True
                )[0]
                for own_loss in own_losses:
                    loss += tf.cast(own_loss, loss.dtype)
            found = tape.gradient(loss, pieces, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return tf.gather(self._view.joined(found), indices)

        gradients = tf.vectorized_map(gradient, (inputs, labels))
        wide = tf.cast(gradients, tf.float64)
        lengths = tf.sqrt(tf.reduce_sum(wide**2, axis=1, keepdims=True))
        steps = LATTICE * JUST_BELOW / tf.maximum(lengths, clip)
        # Cut off towards zero. A gradient that is not finite would poison the sum.
        whole = tf.where(tf.math.is_finite(lengths), wide * steps, 0.0)
        return tf.math.unsorted_segment_sum(tf.cast(whole, tf.int64), owners, len(self._shares))
