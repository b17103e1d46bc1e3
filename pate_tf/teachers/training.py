"""Trains teachers on the devices of this host, one traced graph for all of them.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run. On CPUs, teacher after teacher beats several at once: vectorised convolutions fall back
to loops and take more than twice as long a step, and XLA's gradients of convolutions take seconds
instead of milliseconds (`python benchmarks/teachers.py --only=variants` measures both). Several
devices each train teachers of their own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import augmentation
from pate_tf.models import catalogue
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import TeacherState

# The training loop of one teacher is a pure function of tensors.
#
# Weights, optimizer slots and records go in and come out as tensors, and every random draw is a
# function of (seed, teacher, step). So a teacher's result can't depend on which other teachers are
# trained, and a training can stop and go on at any step. The same function runs on one device, on
# every replica of a strategy, and on workers of a cluster.

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

    def run(self, slots: Any, share: Share, first: tf.Tensor, last: tf.Tensor) -> Any:
        """Does the steps from `first` up to, not including, `last` in one graph.

        Returns:
            The four lists of slots after the last step, and the losses float32 `[last - first]`.
        """
        order, augment_seed = self._order(share)

        def body(step: tf.Tensor, slots: Any, losses: tf.TensorArray) -> Any:
            slots, loss = self._step(slots, share, order, augment_seed, step)
            return step + 1, slots, losses.write(step - first, loss)

        _, slots, losses = tf.while_loop(
            lambda step, *_: step < last,
            body,
            (first, slots, tf.TensorArray(tf.float32, last - first, element_shape=[])),
        )
        return (*slots, losses.stack())

    def one_replica_step(self, slots: Any, share: Share, step: tf.Tensor) -> Any:
        """Does one step over all replicas of a strategy, each with its part of the batch.

        Returns:
            The slots after the step, equal on all replicas, and the loss of the whole batch.
        """
        order, augment_seed = self._order(share)
        context = tf.distribute.get_replica_context()
        return self._step(slots, share, order, augment_seed, step, context)

    def _step(
        self,
        slots: Any,
        share: Share,
        order: tf.Tensor,
        augment_seed: tf.Tensor,
        step: tf.Tensor,
        context: tf.distribute.ReplicaContext | None = None,
    ) -> Any:
        config = self.config
        weights, buffers, first_moments, second_moments = slots
        batch = order[step * config.batch_size : (step + 1) * config.batch_size]
        batch_inputs = augmentation.augment(
            tf.cast(tf.gather(share.inputs, batch), tf.float32),
            config.dataset,
            tf.random.fold_in(augment_seed, step),
        )
        batch_labels = tf.gather(share.labels, batch)
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
        rate = self._learning_rate(step, share.num_steps)
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

    def _order(self, share: Share) -> tuple[tf.Tensor, tf.Tensor]:
        """Records of all steps, one shuffle of them all after another, and a seed left over."""
        shuffle_seed, augment_seed = tf.unstack(tf.random.split(share.seed, 2))
        needed = share.num_steps * self.config.batch_size
        num_records = tf.maximum(share.num_records, 1)  # without records there is no step to do
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


class TeacherData:
    """SENSITIVE: who trains on what; turns teachers and states into the loop's arguments."""

    def __init__(
        self, config: TeacherConfig, examples: PrivateExamples, partition: Partition
    ) -> None:
        """Takes parts that fit each other, as `kinds.Work` checks them."""
        self.config = config
        self._examples = examples
        self._records = partition.all_records()
        self._capacity = max(len(records) for records in self._records)

    def initial_state(self, teacher: int) -> TeacherState:
        """Draws a teacher's own initial weights from the architecture's distribution."""
        seed = int(self._seeds(teacher)[0])
        model = catalogue.build(self.config.model, self.config.dataset, seed=seed)
        weights = [variable.numpy() for variable in model.trainable_variables]
        return TeacherState(
            weights=weights,
            buffers=[variable.numpy() for variable in model.non_trainable_variables],
            first_moments=[np.zeros_like(weight) for weight in weights],
            second_moments=[np.zeros_like(weight) for weight in weights],
        )

    def num_steps(self, teacher: int) -> int:
        """Returns how many steps the whole training of a teacher has."""
        return self.config.num_steps(len(self._records[teacher]))

    def arguments(self, teacher: int, state: TeacherState) -> tuple[Any, Share]:
        """Returns the first two arguments of `TrainingLoop.run`, as tensors."""
        records = self._records[teacher]
        # Padded to one shape, so that shares of different size do not retrace. The loop reads no
        # padding, and without records it does no step.
        padded = np.resize(records, self._capacity)
        slots = (state.weights, state.buffers, state.first_moments, state.second_moments)
        return tuple([tf.constant(array) for array in slot] for slot in slots), Share(
            tf.constant(self._examples.inputs[padded]),
            tf.constant(self._examples.labels[padded]),
            tf.constant(len(records)),
            tf.constant(self.num_steps(teacher)),
            tf.constant((self._seeds(teacher)[1:] >> 1).astype(np.int32)),
        )

    def steps(self, teacher: int, state: TeacherState, most: int) -> tuple[int, int]:
        """Returns the next steps of a teacher: the first, and the one to stop before."""
        return state.step, min(state.step + most, self.num_steps(teacher))

    def _seeds(self, teacher: int) -> npt.NDArray[Any]:
        return np.random.SeedSequence([self.config.seed, teacher]).generate_state(3)


class EnsembleParallelTrainer:
    """Every replica of a strategy trains teachers of its own; no gradient crosses replicas."""

    def __init__(self, data: TeacherData, strategy: tf.distribute.Strategy) -> None:
        self.data = data
        self.group_size: int = strategy.num_replicas_in_sync
        self._strategy = strategy
        loop = TrainingLoop(data.config)
        self._run = tf.function(
            lambda arguments: strategy.run(loop.run, args=arguments),
            autograph=False,
            reduce_retracing=True,
        )

    def advance(
        self, teachers: Sequence[int], states: Sequence[TeacherState], num_steps: int
    ) -> list[TeacherState]:
        """Trains a group of teachers for some steps.

        Args:
            teachers: at most `group_size` teachers, one a replica.
            states: their states; each goes on from its own step.
            num_steps: how many steps each does; fewer where its training ends before.
        """
        arguments = [
            (
                *self.data.arguments(teacher, state),
                *map(tf.constant, self.data.steps(teacher, state, num_steps)),
            )
            for teacher, state in zip(teachers, states, strict=True)
        ]
        # A replica without a teacher of its own repeats the last one; the repeat is dropped.
        arguments += [arguments[-1]] * (self.group_size - len(arguments))
        results = self._run(
            self._strategy.experimental_distribute_values_from_function(
                lambda context: arguments[context.replica_id_in_sync_group]
            )
        )
        advanced = []
        for replica, state in enumerate(states):
            *slots, losses = _on_replica(self._strategy, results, replica)
            advanced.append(state.after(slots, losses))
        return advanced


class DataParallelTrainer:
    """One teacher at a time over all replicas, for models too large for one device.

    The result differs from `EnsembleParallelTrainer`'s by the rounding of sums over replicas.
    """

    group_size = 1

    def __init__(self, data: TeacherData, strategy: tf.distribute.Strategy) -> None:
        self.data = data
        self._strategy = strategy
        loop = TrainingLoop(data.config)
        # A step a call: a strategy can't add up over replicas inside of a loop in a graph.
        self._step = tf.function(
            lambda *arguments: strategy.run(loop.one_replica_step, args=arguments),
            autograph=False,
        )

    def advance(
        self, teachers: Sequence[int], states: Sequence[TeacherState], num_steps: int
    ) -> list[TeacherState]:
        """As `EnsembleParallelTrainer.advance`, for one teacher."""
        (teacher,), (state,) = teachers, states
        slots, share = self.data.arguments(teacher, state)
        losses = []
        for step in range(*self.data.steps(teacher, state, num_steps)):
            slots, loss = self._step(slots, share, tf.constant(step))
            losses.append(_on_replica(self._strategy, loss))
        slots = _on_replica(self._strategy, slots)
        return [state.after(slots, np.array(losses, np.float32))]


def _on_replica(strategy: tf.distribute.Strategy, values: Any, replica: int = 0) -> Any:
    """Returns the arrays that a replica has of values."""
    return tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[replica].numpy(), values
    )
