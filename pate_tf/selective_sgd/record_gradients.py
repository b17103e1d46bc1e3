"""Sums of clipped gradients of single records, in whole lattice steps: the sensitive numbers."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.selective_sgd.flat_view import FlatView, FloatArray
from pate_tf.selective_sgd.privacy import LATTICE
from pate_tf.values.arrays import IntArray

NUMBERS_AT_ONCE = 2**25  # of gradients of single records
MOST_RECORDS = 1024
# Below one by more than the rounding of lengths in float64.
JUST_BELOW = 1.0 - 1e-9


class RecordGradients:
    """Sums over records of gradients clipped to a length, for all participants in one graph.

    Guarantee. Of each participant's sum, one record's part is a vector of whole numbers of length
    at most `LATTICE`, which depends on that record and the public parameters alone: gradients are
    scaled in float64 and cut off towards zero, which makes no vector longer, and whole numbers are
    added exactly. A record whose gradient is not finite adds nothing.

    Args:
      view: of the model, which must treat records apart: no statistics over a batch, no dropout.
      num_participants: how many.

    Raises:
      ValueError: if the model holds anything beside its parameters.
    """

    def __init__(self, view: FlatView, num_participants: int) -> None:
        if view.model.non_trainable_variables:
            raise ValueError(
                "model: expected one that treats records apart, without batch normalization and "
                "dropout, as noise is added for single records; got one that holds more than its "
                "parameters"
            )
        self._view = view
        self._num_participants = num_participants
        self._chunk = int(np.clip(NUMBERS_AT_ONCE // view.num_parameters, 1, MOST_RECORDS))
        self._sums = tf.function(self._run, autograph=False, reduce_retracing=True)

    def sums(
        self,
        parameters: FloatArray,
        inputs: npt.NDArray[Any],
        labels: IntArray,
        owners: IntArray,
        *,
        indices: IntArray,
        clip: float,
    ) -> IntArray:
        """SENSITIVE: returns the sums, int64 `[num_participants, num_indices]`, in clip / LATTICE.

        Args:
          parameters: float32 `[num_parameters]`.
          inputs: raw records `[num_records, *input_shape]`, each of the draw once.
          labels: int64 `[num_records]`.
          owners: the participant of each record, int64 `[num_records]`.
          indices: of the parameters that are uploaded, the same for all.
          clip: the length that a record's gradient on these parameters is clipped to.
        """
        total = np.zeros((self._num_participants, len(indices)), np.int64)
        for start in range(0, len(labels), self._chunk):
            part = slice(start, start + self._chunk)
            total += self._sums(
                tf.constant(parameters),
                tf.constant(inputs[part]),
                tf.constant(labels[part]),
                tf.constant(owners[part]),
                tf.constant(indices),
                tf.constant(clip, tf.float64),
            ).numpy()
        return total

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

        gradients = tf.vectorized_map(gradient, (tf.cast(inputs, tf.float32), labels))
        wide = tf.cast(gradients, tf.float64)
        lengths = tf.sqrt(tf.reduce_sum(wide**2, axis=1, keepdims=True))
        steps = LATTICE * JUST_BELOW / tf.maximum(lengths, clip)
        # Cut off towards zero. A gradient that is not finite would poison the sum.
        whole = tf.where(tf.math.is_finite(lengths), wide * steps, 0.0)
        return tf.math.unsorted_segment_sum(
            tf.cast(whole, tf.int64), owners, self._num_participants
        )
