"""Trains teachers on the devices of this host, one traced graph for all of them.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run. On CPUs, teacher after teacher beats several at once: vectorised convolutions fall back
to loops and take more than twice as long a step, and XLA's gradients of convolutions take seconds
instead of milliseconds (`python benchmarks/teachers.py --only=variants` measures both). Several
devices each train teachers of their own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data import augmentation
from pate_tf.models import catalogue
from pate_tf.teachers.settings import TeacherConfig

# The training loop of one teacher as a pure function of tensors.
#
# Weights, optimizer slots and records go in and come out as tensors, and every random draw is a
# function of (seed, teacher, step). So a teacher's result can't depend on which teachers were
# trained
# before it or beside it, and a training can stop and go on at any step. The same function runs on
# one device, on every replica of a strategy, and on workers of a cluster.


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


Arrays = list[npt.NDArray[Any]]


@dataclasses.dataclass(repr=False)
class TeacherState:
    """Sensitive: one teacher between two calls of the training loop.

    Attributes:
      weights: trainable weights, in the order of the Keras model.
      buffers: non-trainable weights (moving averages, dropout seeds).
      first_moments: Adam's averages of gradients, shaped as the weights.
      second_moments: Adam's averages of squared gradients, shaped as the weights.
      losses: float32 `[step]`, the loss of each step done so far.
      class_sums: of teachers on features what `teachers.class_sums.class_sums` returns of their
        records; None of others.
    """

    weights: Arrays
    buffers: Arrays
    first_moments: Arrays
    second_moments: Arrays
    losses: npt.NDArray[np.float32]
    class_sums: IntArray | None = None

    @property
    def step(self) -> int:
        """Number of steps done."""
        return len(self.losses)

    def after(self, slots: Sequence[Any], losses: npt.NDArray[np.float32]) -> "TeacherState":
        """Returns the state that further steps lead to, also where a loss is not finite.

        Whether it is follows from the teacher's records, so that stopping would tell of them. The
        teacher's votes are defined all the same (`keras_module`).
        """
        weights, buffers, first_moments, second_moments = (
            [np.asarray(array) for array in slot] for slot in slots
        )
        losses = np.concatenate([self.losses, losses])
        return TeacherState(weights, buffers, first_moments, second_moments, losses)


class TeacherData:
    """Sensitive: who trains on what; turns teachers and states into the loop's arguments."""

    def __init__(
        self, config: TeacherConfig, examples: PrivateExamples, partition: Partition
    ) -> None:
        """Checks the parts against each other.

        Raises:
          ValueError: if they do not fit together.
        """
        if partition.num_teachers != config.num_teachers:
            raise ValueError(
                f"partition: expected {config.num_teachers} teachers, got {partition.num_teachers}"
            )
        if partition.unit != config.unit:
            raise ValueError(f"partition: expected unit {config.unit!r}, got {partition.unit!r}")
        if partition.num_records != len(examples):
            raise ValueError(
                f"partition: expected {len(examples)} records, got {partition.num_records}"
            )
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
            losses=np.zeros(0, np.float32),
        )

    def num_steps(self, teacher: int) -> int:
        """Returns how many steps the whole training of a teacher has."""
        return self.config.num_steps(len(self._records[teacher]))

    def arguments(self, teacher: int, state: TeacherState) -> tuple[Any, ...]:
        """Returns the first six arguments of `TrainingLoop.run`, as tensors."""
        records = self._records[teacher]
        # Padded to one shape, so that shares of different size do not retrace. The loop reads no
        # padding, and without records it does no step.
        padded = np.resize(records, self._capacity)
        slots = (state.weights, state.buffers, state.first_moments, state.second_moments)
        return (
            tuple([tf.constant(array) for array in slot] for slot in slots),
            tf.constant(self._examples.inputs[padded]),
            tf.constant(self._examples.labels[padded]),
            tf.constant(len(records)),
            tf.constant(self.num_steps(teacher)),
            tf.constant((self._seeds(teacher)[1:] >> 1).astype(np.int32)),
        )

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
        # A replica without a teacher of its own repeats the last one; the repeat is dropped.
        arguments = [
            self._arguments(teacher, state, num_steps)
            for teacher, state in zip(teachers, states, strict=True)
        ]
        arguments += [arguments[-1]] * (self.group_size - len(arguments))
        distributed = self._strategy.experimental_distribute_values_from_function(
            lambda context: arguments[context.replica_id_in_sync_group]
        )
        results = self._run(distributed)
        advanced = []
        for replica, state in enumerate(states):
            *slots, losses = tf.nest.map_structure(
                lambda value, replica=replica: self._on(value, replica), results
            )
            advanced.append(state.after(slots, losses))
        return advanced

    def _arguments(self, teacher: int, state: TeacherState, num_steps: int) -> tuple[Any, ...]:
        last = min(state.step + num_steps, self.data.num_steps(teacher))
        steps = (tf.constant(state.step), tf.constant(last))
        return (*self.data.arguments(teacher, state), *steps)

    def _on(self, value: Any, replica: int) -> npt.NDArray[Any]:
        return self._strategy.experimental_local_results(value)[replica].numpy()


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
        slots, *records = self.data.arguments(teacher, state)
        last = min(state.step + num_steps, self.data.num_steps(teacher))
        losses = []
        for step in range(state.step, last):
            slots, loss = self._step(slots, *records, tf.constant(step))
            losses.append(self._first(loss).numpy())
        slots = tf.nest.map_structure(lambda value: self._first(value).numpy(), slots)
        return [state.after(slots, np.array(losses, np.float32))]

    def _first(self, value: Any) -> tf.Tensor:
        return self._strategy.experimental_local_results(value)[0]


Trainer = EnsembleParallelTrainer | DataParallelTrainer
