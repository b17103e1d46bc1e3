"""The training loop of one teacher as a pure function of tensors.

Weights, optimizer slots and records go in and come out as tensors, and every random draw is a
function of (seed, teacher, step). So a teacher's result can't depend on which teachers were trained
before it or beside it, and a training can stop and go on at any step. The same function runs on
one device, on every replica of a strategy, and on workers of a cluster.
"""

from typing import Any

import keras
import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.models import catalogue
from pate_tf.teachers.config import TeacherConfig

FIRST_MOMENT_DECAY, SECOND_MOMENT_DECAY, ADAM_EPSILON = 0.9, 0.999, 1e-7


class TrainingLoop:
    """Steps of Adam on augmented batches of one teacher's records.

    The loss is the mean cross-entropy and the model's own losses: regularizers of weights and of
    activities, and what layers add, as in Keras' `fit`.

    `slots` are what a teacher has between two steps: lists of weights, of buffers (moving
    averages, dropout seeds), of first and of second moments.
    """

    def __init__(self, config: TeacherConfig) -> None:
        """Builds the model whose graph is traced; its own weights are never used."""
        self.config = config
        self._model = catalogue.build(config.model, config.dataset)

    def run(
        self,
        slots: Any,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        num_records: tf.Tensor,
        num_steps: tf.Tensor,
        seed: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
    ) -> Any:
        """Does the steps from `first` up to, not including, `last` in one graph.

        Args:
          slots: before the first step.
          inputs: raw records `[capacity, *input_shape]`; those from `num_records` on are padding.
          labels: int64 `[capacity]`.
          num_records: how many records the teacher has; with none it must have no step to do.
          num_steps: how many steps its whole training has, on which order and learning rate depend.
          seed: int32 `[2]`, the teacher's own.
          first: first step.
          last: step to stop before.

        Returns:
          The four lists of slots after the last step, and the losses float32 `[last - first]`.
        """
        order, augment_seed = self._order(num_records, num_steps, seed)

        def body(step: tf.Tensor, slots: Any, losses: tf.TensorArray) -> Any:
            slots, loss = self._step(slots, inputs, labels, order, num_steps, augment_seed, step)
            return step + 1, slots, losses.write(step - first, loss)

        _, slots, losses = tf.while_loop(
            lambda step, *_: step < last,
            body,
            (first, slots, tf.TensorArray(tf.float32, last - first, element_shape=[])),
        )
        return (*slots, losses.stack())

    def one_replica_step(
        self,
        slots: Any,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        num_records: tf.Tensor,
        num_steps: tf.Tensor,
        seed: tf.Tensor,
        step: tf.Tensor,
    ) -> Any:
        """Does one step over all replicas of a strategy, each with its part of the batch.

        Returns:
          The slots after the step, equal on all replicas, and the loss of the whole batch.
        """
        order, augment_seed = self._order(num_records, num_steps, seed)
        context = tf.distribute.get_replica_context()
        return self._step(slots, inputs, labels, order, num_steps, augment_seed, step, context)

    def _step(
        self,
        slots: Any,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
        num_steps: tf.Tensor,
        augment_seed: tf.Tensor,
        step: tf.Tensor,
        context: tf.distribute.ReplicaContext | None = None,
    ) -> Any:
        config = self.config
        weights, buffers, first_moments, second_moments = slots
        batch = order[step * config.batch_size : (step + 1) * config.batch_size]
        batch_inputs = augmentation.augment(
            tf.cast(tf.gather(inputs, batch), tf.float32),
            config.dataset,
            tf.random.fold_in(augment_seed, step),
        )
        batch_labels = tf.gather(labels, batch)
        if context is not None:
            # After augmentation, so that the draws do not depend on the number of replicas.
            part = slice(context.replica_id_in_sync_group, None, context.num_replicas_in_sync)
            batch_inputs, batch_labels = batch_inputs[part], batch_labels[part]
        num_replicas = 1 if context is None else context.num_replicas_in_sync
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, buffers, own_losses = self._model.stateless_call(
                weights, buffers, batch_inputs, training=True, return_losses=True
            )
            losses = keras.losses.sparse_categorical_crossentropy(
                batch_labels, logits, from_logits=True
            )
            if config.class_weights is not None:
                losses *= tf.gather(tf.constant(config.class_weights, tf.float32), batch_labels)
            loss = tf.reduce_sum(losses) / config.batch_size
            for own_loss in own_losses:
                # As Keras does: replicas are added up, and together count each of these once.
                loss += tf.cast(own_loss, loss.dtype) / num_replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Those of embeddings are sparse.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if context is not None:
            gradients, loss = context.all_reduce(tf.distribute.ReduceOp.SUM, (gradients, loss))
            buffers = [
                context.all_reduce(tf.distribute.ReduceOp.MEAN, buffer)
                if buffer.dtype.is_floating
                else buffer
                for buffer in buffers
            ]
        # By hand, because Keras optimizers keep state in variables, which replicas would share.
        rate = self._learning_rate(step, num_steps)
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

    def _order(
        self, num_records: tf.Tensor, num_steps: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Records of all steps, one shuffle of them all after another, and a seed left over."""
        shuffle_seed, augment_seed = tf.unstack(tf.random.split(seed, 2))
        needed = num_steps * self.config.batch_size
        num_records = tf.maximum(num_records, 1)  # without records there is no step to do
        passes = (needed + num_records - 1) // num_records
        draws = tf.random.stateless_uniform([passes, num_records], shuffle_seed)
        return tf.reshape(tf.argsort(draws, axis=1), [-1])[:needed], augment_seed

    def _learning_rate(self, step: tf.Tensor, num_steps: tf.Tensor) -> tf.Tensor:
        """Constant for half of the steps, then linearly down to a fiftieth; bias-corrected."""
        done = tf.cast(step + 1, tf.float32)
        progress = done / tf.cast(num_steps, tf.float32)
        schedule = tf.minimum(1.0, 2.0 * (1.0 - progress) + 0.02)
        correction = tf.sqrt(1.0 - SECOND_MOMENT_DECAY**done) / (1.0 - FIRST_MOMENT_DECAY**done)
        return self.config.learning_rate * schedule * correction
