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

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.models import catalogue
from pate_tf.partition import Partition
from pate_tf.teachers.config import TeacherConfig
from pate_tf.teachers.loop import TrainingLoop
from pate_tf.values.arrays import IntArray
from pate_tf.values.sensitive import PrivateExamples

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
