"""The graph of all Keras teachers: weights stacked `[num_teachers, ...]`, one loop over them.

A teacher whose training diverged votes too. A logit that is NaN counts as the least of all, so that
where all are, the vote is for the first class.
"""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from pate_tf.models import catalogue
from pate_tf.teachers.config import TeacherConfig

LARGEST = 1e30  # absolute value of a logit; softmax at any temperature that is of use holds it


class EnsembleModule(tf.Module):
    """The graph and the stacked weights that are saved."""

    def __init__(self, config: TeacherConfig, stacked: Sequence[npt.NDArray[Any]]) -> None:
        """Takes weights and buffers of all teachers, each `[num_teachers, ...]`."""
        super().__init__()
        model = catalogue.build(config.model, config.dataset)
        num_weights = len(model.trainable_variables)
        self.stacked = [tf.Variable(array, trainable=False) for array in stacked]

        @tf.autograph.experimental.do_not_convert
        def logits_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
            arrays = [tf.gather(variable, teacher) for variable in self.stacked]
            logits, _ = model.stateless_call(
                arrays[:num_weights], arrays[num_weights:], inputs, training=False
            )
            logits = tf.cast(logits, tf.float32)
            logits = tf.where(tf.math.is_nan(logits), -LARGEST, logits)
            return tf.clip_by_value(logits, -LARGEST, LARGEST)

        @tf.autograph.experimental.do_not_convert
        def labels_of(teacher: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
            return tf.argmax(logits_of(teacher, inputs), axis=1)

        signature = tf.TensorSpec(
            [None, *config.dataset.input_shape],
            config.dataset.input_type,
            name=config.dataset.input_name,
        )

        @tf.function(input_signature=[signature])
        def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            inputs = tf.cast(inputs, tf.float32)
            labels = tf.TensorArray(tf.int64, config.num_teachers)
            for teacher in tf.range(config.num_teachers):
                labels = labels.write(teacher, labels_of(teacher, inputs))
            return {"votes": tf.ensure_shape(labels.stack(), [config.num_teachers, None])}

        @tf.function(input_signature=[signature])
        def counts(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            inputs = tf.cast(inputs, tf.float32)
            num_classes = config.dataset.num_classes
            total = tf.zeros([tf.shape(inputs)[0], num_classes], tf.int64)
            for teacher in tf.range(config.num_teachers):
                total += tf.one_hot(labels_of(teacher, inputs), num_classes, dtype=tf.int64)
            return {"counts": total}

        @tf.function(input_signature=[signature, tf.TensorSpec([], tf.float32, name="temperature")])
        def probabilities(inputs: tf.Tensor, temperature: tf.Tensor) -> dict[str, tf.Tensor]:
            inputs = tf.cast(inputs, tf.float32)
            total = tf.zeros([tf.shape(inputs)[0], config.dataset.num_classes])
            for teacher in tf.range(config.num_teachers):
                total += tf.nn.softmax(logits_of(teacher, inputs) / temperature)
            return {"probabilities": total / config.num_teachers}

        @tf.function(autograph=False, input_signature=[signature])
        def label(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"label": labels_of(tf.constant(0), tf.cast(inputs, tf.float32))}

        self.votes, self.counts, self.label = votes, counts, label
        self.probabilities = probabilities
