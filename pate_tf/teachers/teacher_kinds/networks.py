"""Kinds whose teachers TensorFlow asks: networks, compiled Keras models, ridge on features.

A process a teacher loses most of its time to starting, tracing and saving; here the graph of
networks is traced once a run. On CPUs, teacher after teacher beats several at once: vectorized
convolutions fall back to loops and take more than twice as long a step, and XLA's gradients of
convolutions take seconds instead of milliseconds (`python benchmarks/teachers.py --only=variants`
measures both). Several devices each train teachers of their own.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import CLASS, NUMBER, SEVERAL_LABELS
from pate_tf.data import preprocessing
from pate_tf.data.named_function import name_of
from pate_tf.models import architectures, ridge
from pate_tf.models.architectures import model_definition
from pate_tf.teachers.teacher_kinds import (
    OF_STEPS,
    TeacherKind,
    TrainedTeacher,
    TrainedTeachers,
    TrainingJob,
)
from pate_tf.teachers.teacher_settings import TeacherConfig

# The training loop of one teacher is a pure function of tensors.
#
# Weights, optimizer slots and records go in and come out as tensors, and every random draw is a
# function of (seed, teacher, step). So a teacher's result can't depend on which other teachers are
# trained. The same function runs on one device and on every replica of a strategy.

FIRST_MOMENT_DECAY = 0.9
SECOND_MOMENT_DECAY = 0.999
ADAM_EPSILON = 1e-7
CHUNK = 64  # teachers on features that vote together
# A loss of logits, which is least for the mean of targets; and from logits to predictions.
OUTPUTS = {
    CLASS: (keras.losses.sparse_categorical_crossentropy, tf.identity),
    NUMBER: (keras.losses.categorical_crossentropy, tf.nn.softmax),
    SEVERAL_LABELS: (keras.losses.binary_crossentropy, tf.sigmoid),
}


class Shard(NamedTuple):
    """SENSITIVE: what one teacher is trained on, as tensors.

    Attributes:
        inputs: raw records `[capacity, *input_shape]`; those from `size` on are padding.
        labels: `TrainingJob.targets`, `[capacity, ...]`.
        size: how many records the teacher has; with none it has no step to do.
        num_steps: of its whole training, on which order and learning rate depend.
        draws: int32 `[2]`, what the teacher's own random draws follow from.
    """

    inputs: tf.Tensor
    labels: tf.Tensor
    size: tf.Tensor
    num_steps: tf.Tensor
    draws: tf.Tensor


class TrainingLoop:
    """Steps of Adam on augmented batches of one teacher's records.

    The loss is the mean cross-entropy with `TrainingJob.targets` and the model's own losses:
    regularizers of weights and of activities, and what layers add, as in Keras' `fit`.

    `slots` are what a teacher has between two steps: lists of weights, of buffers (moving averages,
    dropout seeds), of first and of second moments.
    """

    def __init__(self, config: TeacherConfig) -> None:
        """Builds the model whose graph is traced; its own weights are never used."""
        self.config = config
        self._model = architectures.build(config.model, config.dataset)

    def run(self, weights: Any, buffers: Any, shard: Shard) -> Any:
        """Does all steps in one graph.

        Returns:
            The lists of weights and buffers after the last step, and the losses float32
            `[num_steps]`.
        """
        moments = [tf.zeros_like(weight) for weight in weights]
        # Records of all steps: one shuffle of them all after another.
        shuffle_seed, augment_seed = tf.unstack(tf.random.split(shard.draws, 2))
        needed = shard.num_steps * self.config.batch_size
        num_records = tf.maximum(shard.size, 1)  # without records there is no step to do
        passes = (needed + num_records - 1) // num_records
        draws = tf.random.stateless_uniform([passes, num_records], shuffle_seed)
        order = tf.reshape(tf.argsort(draws, axis=1), [-1])[:needed]

        def body(step: tf.Tensor, slots: Any, losses: tf.TensorArray) -> Any:
            slots, loss = self._step(slots, shard, order, augment_seed, step)
            return step + 1, slots, losses.write(step, loss)

        _, slots, losses = tf.while_loop(
            lambda step, *_: step < shard.num_steps,
            body,
            (
                tf.constant(0),
                (weights, buffers, moments, moments),
                tf.TensorArray(tf.float32, shard.num_steps, element_shape=[]),
            ),
        )
        return slots[0], slots[1], losses.stack()

    def _step(
        self, slots: Any, shard: Shard, order: tf.Tensor, augment_seed: tf.Tensor, step: tf.Tensor
    ) -> Any:
        config = self.config
        weights, buffers, first_moments, second_moments = slots
        batch = order[step * config.batch_size : (step + 1) * config.batch_size]
        batch_inputs = preprocessing.augment(
            tf.cast(tf.gather(shard.inputs, batch), tf.float32),
            config.dataset,
            tf.random.fold_in(augment_seed, step),
        )
        batch_labels = tf.gather(shard.labels, batch)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, buffers, model_losses = self._model.stateless_call(
                weights, buffers, batch_inputs, training=True, return_losses=True
            )
            loss_of, _ = OUTPUTS[config.dataset.target]
            losses = loss_of(batch_labels, tf.cast(logits, tf.float32), from_logits=True)
            if config.class_weights is not None:
                losses *= tf.gather(tf.constant(config.class_weights, tf.float32), batch_labels)
            loss = tf.reduce_sum(losses) / config.batch_size
            loss += sum(tf.cast(added, loss.dtype) for added in model_losses)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Those of embeddings are sparse.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # By hand, because Keras optimizers keep state in variables, which replicas would shard.
        # Constant for half of the steps, then linearly down to a fiftieth; bias-corrected.
        done = tf.cast(step + 1, tf.float32)
        progress = done / tf.cast(shard.num_steps, tf.float32)
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


def arguments(job: TrainingJob, teacher: int) -> tuple[Any, Any, Shard]:
    """Returns the arguments of `TrainingLoop.run`: a teacher's initial weights, and its shard."""
    config = job.config
    records = job.records[teacher]
    seeds = np.random.SeedSequence([config.seed, teacher]).generate_state(3)
    model = architectures.build(config.model, config.dataset, seed=int(seeds[0]))
    # Padded to one shape, so that shards of different size do not retrace. The loop reads no
    # padding, and without records it does no step.
    padded = np.resize(records, max(map(len, job.records)))
    shard = Shard(
        tf.constant(job.examples.inputs[padded]),
        tf.constant(job.targets[padded]),
        tf.constant(len(records)),
        tf.constant(config.num_steps(len(records))),
        tf.constant((seeds[1:] >> 1).astype(np.int32)),
    )
    weights, buffers = (
        [tf.constant(variable.numpy()) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    return weights, buffers, shard


def train_on_devices(
    job: TrainingJob, teachers: Sequence[int], strategy: tf.distribute.Strategy
) -> TrainedTeachers:
    """Yields trained teachers. Every replica trains its own; no gradient crosses replicas.

    Also where a loss is not finite: whether it is follows from the records, so that stopping would
    reveal some of them. The teacher's votes are defined all the same (`Networks.save`).
    """
    loop = TrainingLoop(job.config)
    group_size = strategy.num_replicas_in_sync
    run = tf.function(
        lambda arguments: strategy.run(loop.run, args=arguments),
        autograph=False,
        reduce_retracing=True,
    )
    for start in range(0, len(teachers), group_size):
        group = teachers[start : start + group_size]
        of_group = [arguments(job, teacher) for teacher in group]
        # A replica without a teacher of its own repeats the last one; the repeat is dropped.
        of_group += [of_group[-1]] * (group_size - len(of_group))
        results = run(
            strategy.experimental_distribute_values_from_function(
                lambda context, of_group=of_group: of_group[context.replica_id_in_sync_group]
            )
        )
        for replica, teacher in enumerate(group):
            of_replica = tf.nest.map_structure(
                lambda value, replica=replica: strategy.experimental_local_results(value)[
                    replica
                ].numpy(),
                results,
            )
            weights, buffers, losses = of_replica
            arrays = [np.asarray(values) for values in (*weights, *buffers)]
            yield teacher, TrainedTeacher(arrays, np.asarray(losses))


def _stacked(teachers: Sequence[TrainedTeacher]) -> tf.Module:
    """Returns a module whose `stacked` has what teachers learned, each `[num_teachers, ...]`."""
    module = tf.Module()
    of_each = zip(*(teacher.arrays for teacher in teachers), strict=True)
    module.stacked = [tf.Variable(np.stack(arrays), trainable=False) for arrays in of_each]
    return module


def _save_voting(
    folder: pathlib.Path,
    config: TeacherConfig,
    module: tf.Module,
    prepared: Callable[[tf.Tensor], tf.Tensor],
    scores_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    *,
    together: int,
) -> None:
    """Writes all teachers as one SavedModel: weights `[num_teachers, ...]`, one loop over them.

    Its signature `votes` takes inputs `[batch, *input_shape]` and returns labels int64
    `[num_teachers, batch]`, or predictions float32 as of `Votes.labels`.

    Args:
        folder: to write into.
        config: what the teachers were trained with.
        module: what they learned, by `_stacked`; it gets the graph, `votes`.
        prepared: from raw inputs, float32, to what all teachers take.
        scores_of: from a teacher, the one to stop before and prepared inputs to scores of classes,
            or what is predicted of `TrainingJob.targets`, float32 `[num_chunk, batch,
            num_classes]`.
        together: how many teachers `scores_of` is asked about at a time.
    """
    dataset = config.dataset
    num_teachers = config.num_teachers
    starts = tf.range(0, num_teachers, together)

    @tf.autograph.experimental.do_not_convert
    def answers(scores: tf.Tensor) -> tf.Tensor:
        if dataset.target == CLASS:
            return tf.argmax(scores, axis=2)
        if dataset.target_range is None:
            return scores
        low, high = dataset.target_range
        return low + (high - low) * scores[:, :, 1]

    @tf.function(input_signature=[preprocessing.input_spec(dataset)])
    def votes(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        taken = prepared(tf.cast(inputs, tf.float32))
        kind = tf.int64 if dataset.target == CLASS else tf.float32
        parts = tf.TensorArray(kind, tf.size(starts), infer_shape=False)
        for place in tf.range(tf.size(starts)):
            last = tf.minimum(starts[place] + together, num_teachers)
            parts = parts.write(place, answers(scores_of(starts[place], last, taken)))
        shape = [num_teachers, None, *dataset.label_shape]
        return {"votes": tf.ensure_shape(parts.concat(), shape)}

    module.votes = votes
    tf.saved_model.save(module, str(folder), signatures={"votes": votes})


class Networks(TeacherKind):
    """Networks of the catalogue, and Keras models of the user's that are not compiled."""

    name = "networks"
    settings: ClassVar[tuple[str, ...]] = OF_STEPS

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        return isinstance(built, keras.Model) and not built.compiled

    def check(self, job: TrainingJob) -> None:
        """See `TeacherKind.check`."""
        model = architectures.build(job.config.model, job.config.dataset)
        architectures.check_draws(model, training=not model.compiled)
        name = name_of(job.config.model)
        if not model.trainable_variables:
            raise ValueError(
                f"model {name}: no weight is trainable, so no teacher would learn anything; set "
                f"trainable = True for the last layers"
            )
        inputs = np.ones((1, *job.config.dataset.input_shape), np.float32)
        if np.isnan(model(inputs, training=False)).any():
            raise ValueError(f"model {name}: its logits are NaN for an input of ones, untrained")

    def definition(self, job: TrainingJob) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        architecture = model_definition(job.config.model, job.learns_on)
        return {**super().definition(job), "architecture": architecture}

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`. All GPUs of this host train, a replica each; else its CPU."""
        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        strategy: tf.distribute.Strategy
        if len(names) > 1:
            strategy = tf.distribute.MirroredStrategy(names)
        else:
            strategy = tf.distribute.OneDeviceStrategy(names[0] if names else "/CPU:0")
        return train_on_devices(job, teachers, strategy)

    def save(
        self, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
    ) -> None:
        """See `TeacherKind.save`.

        A teacher whose training diverged votes too. A logit that is NaN counts as the least of all,
        so that where all are, the vote is for the first class.
        """
        model = architectures.build(job.config.model, job.config.dataset)
        num_weights = len(model.trainable_variables)
        module = _stacked(teachers)

        @tf.autograph.experimental.do_not_convert
        def scores_of(teacher: tf.Tensor, _: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
            arrays = [tf.gather(variable, teacher) for variable in module.stacked]
            logits, _ = model.stateless_call(
                arrays[:num_weights], arrays[num_weights:], inputs, training=False
            )
            logits = tf.cast(logits, tf.float32)
            logits = tf.where(tf.math.is_nan(logits), logits.dtype.min, logits)
            return OUTPUTS[job.config.dataset.target][1](logits)[tf.newaxis]

        _save_voting(folder, job.config, module, tf.identity, scores_of, together=1)


NETWORKS = Networks()


class Compiled(Networks):
    """Compiled Keras models of the user's: trained by Keras' own `fit`, saved as networks are.

    One teacher after another, each from a new model and a new optimizer, in an order of records and
    with random numbers that its own seed fixes: what a teacher computes depends on its own shard,
    public settings and the seed alone. A user's code could still join teachers, and only the user
    can prevent it: by a variable outside of the function that makes the model.
    """

    name = "compiled"
    settings: ClassVar[tuple[str, ...]] = ("max_steps", "batch_size")

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        return isinstance(built, keras.Model) and bool(built.compiled)

    def check(self, job: TrainingJob) -> None:
        """See `TeacherKind.check`."""
        job.config.dataset.require_classes("a compiled model")
        super().check(job)
        config = job.config
        dataset = config.dataset
        model, other = (architectures.build(config.model, dataset) for _ in range(2))
        if {id(part) for part in _parts(model)} & {id(part) for part in _parts(other)}:
            raise ValueError(
                "model: expected a function that makes everything anew at each call, got one that "
                "gives the same object twice: teachers would learn from each other's records"
            )
        labels = targets_of(model, np.zeros(2, np.int64), dataset.num_classes)
        try:
            model.test_on_batch(np.zeros((2, *dataset.input_shape), np.float32), labels)
        except Exception as error:  # Keras and TensorFlow each raise their own kinds
            raise ValueError(
                f"model {name_of(config.model)}: its loss or a metric can't compare labels "
                f"{list(labels.shape)} with outputs [2, {dataset.num_classes}]; compile it with "
                f"SparseCategoricalCrossentropy or CategoricalCrossentropy"
            ) from error

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`.

        The learning rate is the compiled model's own, and steps are rounded up to whole passes over
        a teacher's records.
        """
        config = job.config
        for teacher, inputs, labels in job.shards(teachers):
            build_seed, fit_seed = np.random.SeedSequence([config.seed, teacher]).generate_state(2)
            model = architectures.build(config.model, config.dataset, seed=int(build_seed))
            losses = np.zeros(0, np.float32)
            if len(labels):
                targets = targets_of(model, labels, config.dataset.num_classes)
                steps_a_pass = -(-len(labels) // config.batch_size)
                with architectures.seeded(int(fit_seed >> 1)):
                    history = model.fit(
                        tf.data.Dataset.from_tensor_slices((inputs.astype(np.float32), targets))
                        .shuffle(len(labels), reshuffle_each_iteration=True)
                        .batch(config.batch_size),
                        epochs=-(-config.num_steps(len(labels)) // steps_a_pass),
                        shuffle=False,  # the records are shuffled already
                        verbose=1 if job.verbose else 0,
                    )
                losses = np.array(history.history.get("loss", []), np.float32)
            variables = (*model.trainable_variables, *model.non_trainable_variables)
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            yield teacher, TrainedTeacher(arrays, losses)


def _parts(model: Any) -> list[Any]:
    """Returns what another teacher's model may have nothing of; a loss may have a state too."""
    parts = [model, model.optimizer, *model.layers, *model.variables, *model.metrics]
    return [*parts, model.loss] if isinstance(model.loss, keras.losses.Loss) else parts


def targets_of(model: Any, labels: npt.NDArray[np.int64], num_classes: int) -> npt.NDArray[Any]:
    """Returns what a compiled model's loss compares with outputs: labels, or one-hot ones."""
    loss = model.loss
    name = getattr(loss, "__name__", type(loss).__name__)
    if str(loss if isinstance(loss, str) else name).lower().startswith("categorical"):
        return np.asarray(keras.utils.to_categorical(labels, num_classes))
    return labels


COMPILED = Compiled()


class ClosedForm(TeacherKind):
    """Ridge regression on public features (`pate_tf.models.ridge`): thousands take seconds."""

    name = "closed_form"
    features = "required"

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`."""
        encoder: Any = job.encoder
        for teacher, features, labels in job.shards(teachers):
            arrays = ridge.fit(
                features,
                labels if job.targets.ndim == 1 else job.targets[job.records[teacher]],
                num_classes=job.config.dataset.num_classes,
                num_views=encoder.num_views,
                scale=encoder.scale,
            )
            yield teacher, TrainedTeacher(arrays)

    def save(
        self, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
    ) -> None:
        """See `TeacherKind.save`; the encoder goes with the teachers."""
        encoder = cast(Any, job.encoder)
        module = _stacked(teachers)
        module.encoder = encoder
        module.public_weights = encoder.learnt

        @tf.autograph.experimental.do_not_convert
        def scores_of(first: tf.Tensor, last: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
            weights, offsets = (
                tf.cast(tf.gather(array, tf.range(first, last)), tf.float32)
                for array in module.stacked
            )
            return tf.einsum("bf,tfc->tbc", features, weights) + offsets[:, tf.newaxis]

        features_of = tf.autograph.experimental.do_not_convert(encoder)
        _save_voting(folder, job.config, module, features_of, scores_of, together=CHUNK)


CLOSED_FORM = ClosedForm()
