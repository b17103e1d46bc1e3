"""Trains teachers on the devices of this host, one traced graph for all of them.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run. On CPUs, teacher after teacher beats several at once: vectorized convolutions fall back
to loops and take more than twice as long a step, and XLA's gradients of convolutions take seconds
instead of milliseconds (`python benchmarks/teachers.py --only=variants` measures both). Several
devices each train teachers of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.data import preprocessing
from pate_tf.models import catalogue
from pate_tf.teachers.kinds import TrainedTeacher
from pate_tf.teachers.settings import TeacherConfig

# The training loop of one teacher is a pure function of tensors.
#
# Weights, optimizer slots and records go in and come out as tensors, and every random draw is a
# function of (seed, teacher, step). So a teacher's result can't depend on which other teachers are
# trained. The same function runs on one device, on every replica of a strategy, and on workers of a
# cluster.

FIRST_MOMENT_DECAY, SECOND_MOMENT_DECAY, ADAM_EPSILON = 0.9, 0.999, 1e-7


class Share(NamedTuple):
    """SENSITIVE: what one teacher is trained on, as tensors.

    Attributes:
        inputs: raw records `[capacity, *input_shape]`; those from `num_records` on are padding.
        labels: int64 `[capacity]`.
        num_records: how many records the teacher has; with none it has no step to do.
        num_steps: of its whole training, on which order and learning rate depend.
        seed: int32 `[2]`, the teacher's own.
    """

    inputs: tf.Tensor
    labels: tf.Tensor
    num_records: tf.Tensor
    num_steps: tf.Tensor
    seed: tf.Tensor


class TrainingLoop:
    """Steps of Adam on augmented batches of one teacher's records.

    The loss is the mean cross-entropy and the model's own losses: regularizers of weights and of
    activities, and what layers add, as in Keras' `fit`.

    `slots` are what a teacher has between two steps: lists of weights, of buffers (moving averages,
    dropout seeds), of first and of second moments.
    """

    def __init__(self, config: TeacherConfig) -> None:
        """Builds the model whose graph is traced; its own weights are never used."""
        self.config = config
        self._model = catalogue.build(config.model, config.dataset)

    def run(self, weights: Any, buffers: Any, share: Share) -> Any:
        """Does all steps in one graph.

        Returns:
            The lists of weights and buffers after the last step, and the losses float32
            `[num_steps]`.
        """
        moments = [tf.zeros_like(weight) for weight in weights]
        # Records of all steps: one shuffle of them all after another.
        shuffle_seed, augment_seed = tf.unstack(tf.random.split(share.seed, 2))
        needed = share.num_steps * self.config.batch_size
        num_records = tf.maximum(share.num_records, 1)  # without records there is no step to do
        passes = (needed + num_records - 1) // num_records
        draws = tf.random.stateless_uniform([passes, num_records], shuffle_seed)
        order = tf.reshape(tf.argsort(draws, axis=1), [-1])[:needed]

        def body(step: tf.Tensor, slots: Any, losses: tf.TensorArray) -> Any:
            slots, loss = self._step(slots, share, order, augment_seed, step)
            return step + 1, slots, losses.write(step, loss)

        _, slots, losses = tf.while_loop(
            lambda step, *_: step < share.num_steps,
            body,
            (
                tf.constant(0),
                (weights, buffers, moments, moments),
                tf.TensorArray(tf.float32, share.num_steps, element_shape=[]),
            ),
        )
        return slots[0], slots[1], losses.stack()

    def _step(
        self, slots: Any, share: Share, order: tf.Tensor, augment_seed: tf.Tensor, step: tf.Tensor
    ) -> Any:
        config = self.config
        weights, buffers, first_moments, second_moments = slots
        batch = order[step * config.batch_size : (step + 1) * config.batch_size]
        batch_inputs = preprocessing.augment(
            tf.cast(tf.gather(share.inputs, batch), tf.float32),
            config.dataset,
            tf.random.fold_in(augment_seed, step),
        )
        batch_labels = tf.gather(share.labels, batch)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, buffers, model_losses = self._model.stateless_call(
                weights, buffers, batch_inputs, training=True, return_losses=True
            )
            losses = keras.losses.sparse_categorical_crossentropy(
                batch_labels, tf.cast(logits, tf.float32), from_logits=True
            )
            if config.class_weights is not None:
                losses *= tf.gather(tf.constant(config.class_weights, tf.float32), batch_labels)
            loss = tf.reduce_sum(losses) / config.batch_size
            loss += sum(tf.cast(added, loss.dtype) for added in model_losses)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Those of embeddings are sparse.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # By hand, because Keras optimizers keep state in variables, which replicas would share.
        # Constant for half of the steps, then linearly down to a fiftieth; bias-corrected.
        done = tf.cast(step + 1, tf.float32)
        progress = done / tf.cast(share.num_steps, tf.float32)
        schedule = tf.minimum(1.0, 2.0 * (1.0 - progress) + 0.02)
        correction = tf.sqrt(1.0 - SECOND_MOMENT_DECAY**done) / (1.0 - FIRST_MOMENT_DECAY**done)
        rate = config.learning_rate * schedule * correction
        first_moments = [
            FIRST_MOMENT_DECAY * moment + (1 - FIRST_MOMENT_DECAY) * gradient
            for moment, gradient in zip(first_moments, gradients, strict=True)
        ]
        second_moments = [
            SECOND_MOMENT_DECAY * moment + (1 - SECOND_MOMENT_DECAY) * gradient**2
            for moment, gradient in zip(second_moments, gradients, strict=True)
        ]
        weights = [
            weight - rate * mean / (tf.sqrt(square) + ADAM_EPSILON)
            for weight, mean, square in zip(weights, first_moments, second_moments, strict=True)
        ]
        return (weights, list(buffers), first_moments, second_moments), loss


class TeacherData:
    """SENSITIVE: who trains on what; turns a teacher into the loop's arguments."""

    def __init__(
        self, config: TeacherConfig, examples: PrivateExamples, partition: Partition
    ) -> None:
        """Takes parts that fit each other."""
        self.config = config
        self._examples = examples
        self._records = partition.all_records()
        self._capacity = max(len(records) for records in self._records)

    def arguments(self, teacher: int) -> tuple[Any, Any, Share]:
        """Returns the arguments of `TrainingLoop.run`: its own initial weights, and its share."""
        config, records = self.config, self._records[teacher]
        seeds = np.random.SeedSequence([config.seed, teacher]).generate_state(3)
        model = catalogue.build(config.model, config.dataset, seed=int(seeds[0]))
        # Padded to one shape, so that shares of different size do not retrace. The loop reads no
        # padding, and without records it does no step.
        padded = np.resize(records, self._capacity)
        share = Share(
            tf.constant(self._examples.inputs[padded]),
            tf.constant(self._examples.labels[padded]),
            tf.constant(len(records)),
            tf.constant(config.num_steps(len(records))),
            tf.constant((seeds[1:] >> 1).astype(np.int32)),
        )
        weights, buffers = (
            [tf.constant(variable.numpy()) for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        )
        return weights, buffers, share


def trained_teacher(weights: Any, buffers: Any, losses: Any) -> TrainedTeacher:
    """Returns what `TrainingLoop.run` returned, in arrays, also where a loss is not finite.

    Whether it is follows from the records, so that stopping would reveal some of them. The
    teacher's votes are defined all the same (`ensemble.networks_module`).
    """
    arrays = [np.asarray(values) for values in (*weights, *buffers)]
    return TrainedTeacher(arrays, np.asarray(losses))


def train_on_devices(
    data: TeacherData, teachers: Sequence[int], strategy: tf.distribute.Strategy
) -> Iterator[tuple[int, TrainedTeacher]]:
    """Yields trained teachers. Every replica trains its own; no gradient crosses replicas."""
    loop, group_size = TrainingLoop(data.config), strategy.num_replicas_in_sync
    run = tf.function(
        lambda arguments: strategy.run(loop.run, args=arguments),
        autograph=False,
        reduce_retracing=True,
    )
    for start in range(0, len(teachers), group_size):
        group = teachers[start : start + group_size]
        arguments = [data.arguments(teacher) for teacher in group]
        # A replica without a teacher of its own repeats the last one; the repeat is dropped.
        arguments += [arguments[-1]] * (group_size - len(arguments))
        results = run(
            strategy.experimental_distribute_values_from_function(
                lambda context, arguments=arguments: arguments[context.replica_id_in_sync_group]
            )
        )
        for replica, teacher in enumerate(group):
            of_replica = tf.nest.map_structure(
                lambda value, replica=replica: strategy.experimental_local_results(value)[
                    replica
                ].numpy(),
                results,
            )
            yield teacher, trained_teacher(*of_replica)
