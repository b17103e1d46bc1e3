"""TensorFlow graphs that count votes and select the class with the largest noisy count."""

import functools

import tensorflow as tf

from pate_tf.accounting.mechanisms import LATTICE
from pate_tf.core.checks import whole


class VoteAggregation(tf.Module):
    """A TensorFlow module that counts votes and selects the class with the largest noisy count.

    The number of teachers and queries is arbitrary. Each function is traced only once, uses only
    int64, and can be exported with `tf.saved_model.save`.

    Attributes:
        num_classes: number of classes.
    """

    def __init__(self, num_classes: int) -> None:
        whole(1, LATTICE - 1, num_classes=num_classes)
        super().__init__(name="vote_aggregation")
        self.num_classes = num_classes

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int64, "labels")])
    def counts(self, labels: tf.Tensor) -> tf.Tensor:
        """Counts the votes of each query.

        Args:
            labels: the teachers' labels, int64 `[num_teachers, batch]`.

        Returns:
            Counts, int64 `[batch, num_classes]`; every row sums to num_teachers.

        Raises:
            tf.errors.InvalidArgumentError: if a label is not from 0 to num_classes - 1. The message
                contains no label.
        """
        in_range = tf.reduce_all((labels >= 0) & (labels < self.num_classes))
        check = tf.debugging.Assert(in_range, [f"labels must be from 0 to {self.num_classes - 1}"])
        with tf.control_dependencies([check]):
            batch = tf.shape(labels, tf.int64)[1]
            cells = tf.range(batch)[tf.newaxis, :] * self.num_classes + labels
        flat = tf.math.unsorted_segment_sum(tf.ones_like(cells), cells, batch * self.num_classes)
        return tf.reshape(flat, [batch, self.num_classes])

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None], tf.int64, "counts"),
            tf.TensorSpec([None, None], tf.int64, "noise"),
        ],
    )
    def noisy_winners(self, counts: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Adds noise to vote counts and returns the class with the largest noisy count.

        Args:
            counts: vote counts below 2**40, int64 `[batch, num_classes]`.
            noise: noise in units of 1/LATTICE votes, int64 `[batch, num_classes]`, drawn by
                `AdditiveNoisyMax.additive_noise`.

        Returns:
            Labels, int64 `[batch]`. If several classes have the largest noisy count, the class with
            the lowest index is returned.
        """
        sums = counts * LATTICE + noise
        # If several sums equal the maximum, `tf.argmax` does not guarantee which index it returns,
        # so the lowest index is computed here.
        is_largest = sums == tf.reduce_max(sums, axis=1, keepdims=True)
        classes = tf.range(self.num_classes, dtype=tf.int64)
        return tf.reduce_min(tf.where(is_largest, classes, tf.int64.max), axis=1)


aggregation_of = functools.cache(VoteAggregation)  # traces each graph only once
