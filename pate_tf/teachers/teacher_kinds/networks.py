"""Teachers that use TensorFlow: networks, compiled Keras models, and ridge regression on features.

The graph that trains a network is traced only once per run. If each teacher had its own process,
starting, tracing and saving would take most of the time. On a CPU, teachers are trained one after
another, because training several teachers at once is slower: vectorized convolutions fall back to
loops and take more than twice as long per step, and XLA's gradients of convolutions take seconds
instead of milliseconds (`python benchmarks/teachers.py --only=variants` measures both). With
several devices, each device trains different teachers.
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
    TRAINING_SETTINGS,
    TeacherKind,
    TrainedTeacher,
    TrainedTeachers,
    TrainingJob,
)
from pate_tf.teachers.teacher_settings import TeacherConfig

# The training loop of one teacher is a pure function of tensors.
#
# Weights, optimizer slots and records are passed and returned as tensors. Every random draw is a
# function of the seed, the teacher's number and the step. Therefore a teacher can't depend on the
# other teachers. The same function runs on one device and on every replica of a TensorFlow
# distribution strategy.

FIRST_MOMENT_DECAY = 0.9
SECOND_MOMENT_DECAY = 0.999
ADAM_EPSILON = 1e-7
CHUNK = 64  # number of teachers of the kind `closed_form` that vote at the same time
# For each type of target: a loss function of logits, and a function that converts logits into
# predictions. The loss is minimal if the predictions equal the mean of the training targets.
OUTPUTS = {
    CLASS: (keras.losses.sparse_categorical_crossentropy, tf.identity),
    NUMBER: (keras.losses.categorical_crossentropy, tf.nn.softmax),
    SEVERAL_LABELS: (keras.losses.binary_crossentropy, tf.sigmoid),
}
# Accuracies of predictions. A number has none.
ACCURACIES = {
    CLASS: keras.metrics.sparse_categorical_accuracy,
    SEVERAL_LABELS: keras.metrics.binary_accuracy,
}


class Shard(NamedTuple):
    """SENSITIVE: the training data of one teacher, as tensors.

    Attributes:
        inputs: raw records `[capacity, *input_shape]`; rows from `size` on are padding.
        labels: training targets of these records, see `TrainingJob.targets`, `[capacity, ...]`.
        size: number of the teacher's records. If it is 0, there is no training step.
        num_steps: number of training steps, which also determines the order of records and the
            learning rates.
        draws: seed of the teacher's random draws, int32 `[2]`.
    """

    inputs: tf.Tensor
    labels: tf.Tensor
    size: tf.Tensor
    num_steps: tf.Tensor
    draws: tf.Tensor


class TrainingLoop:
    """Trains one teacher with Adam on augmented batches of the teacher's records.

    The loss is the mean cross-entropy with `TrainingJob.targets`, plus the model's own losses as in
    Keras' `fit`: regularizers of weights and activities, and losses that layers add. The arguments
    named `slots` are the state of a teacher between two steps: the lists of its weights, its
    buffers (moving averages, dropout seeds), and Adam's first and second moments.
    """

    def __init__(self, config: TeacherConfig) -> None:
        """Builds a model to trace the training graph; the model's initial weights are not used."""
        self.config = config
        self._model = architectures.build(config.model, config.dataset)

    def run(self, weights: Any, buffers: Any, shard: Shard) -> Any:
        """Runs all training steps in one graph.

        Returns:
            The lists of weights and buffers after the last step, and each step's loss and accuracy,
            float32 `[num_steps, 2]`. The accuracy is NaN if the target is a number.
        """
        moments = [tf.zeros_like(weight) for weight in weights]
        # The order of the records in all steps. In each pass, all records are shuffled again.
        shuffle_seed, augment_seed = tf.unstack(tf.random.split(shard.draws, 2))
        needed = shard.num_steps * self.config.batch_size
        num_records = tf.maximum(shard.size, 1)  # without records there is no step
        passes = (needed + num_records - 1) // num_records
        draws = tf.random.stateless_uniform([passes, num_records], shuffle_seed)
        order = tf.reshape(tf.argsort(draws, axis=1), [-1])[:needed]

        def body(step: tf.Tensor, slots: Any, curves: tf.TensorArray) -> Any:
            slots, measures = self._step(slots, shard, order, augment_seed, step)
            return step + 1, slots, curves.write(step, measures)

        _, slots, curves = tf.while_loop(
            lambda step, *_: step < shard.num_steps,
            body,
            (
                tf.constant(0),
                (weights, buffers, moments, moments),
                tf.TensorArray(tf.float32, shard.num_steps, element_shape=[2]),
            ),
        )
        return slots[0], slots[1], curves.stack()

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
            loss_of, predictions_of = OUTPUTS[config.dataset.target]
            losses = loss_of(batch_labels, tf.cast(logits, tf.float32), from_logits=True)
            if config.class_weights is not None:
                losses *= tf.gather(tf.constant(config.class_weights, tf.float32), batch_labels)
            loss = tf.reduce_sum(losses) / config.batch_size
            loss += sum(tf.cast(added, loss.dtype) for added in model_losses)
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Gradients of embeddings are sparse, so they are converted to dense tensors.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        # Adam is implemented here, because Keras optimizers keep their state in variables, which a
        # distribution strategy would mirror across replicas. The learning rate is constant for half
        # of the steps, then falls linearly to a fiftieth. Moments are bias-corrected.
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
        accuracy_of = ACCURACIES.get(config.dataset.target, lambda *_: np.nan)
        accuracy = tf.reduce_mean(accuracy_of(batch_labels, predictions_of(logits)))
        slots = (weights, list(buffers), first_moments, second_moments)
        return slots, tf.stack([loss, accuracy])


def arguments(job: TrainingJob, teacher: int) -> tuple[Any, Any, Shard]:
    """Returns the arguments of `TrainingLoop.run`: a teacher's initial state and its shard."""
    config = job.config
    records = job.records[teacher]
    seeds = np.random.SeedSequence([config.seed, teacher]).generate_state(3)
    model = architectures.build(config.model, config.dataset, seed=int(seeds[0]))
    # Shards are padded to the same shape, so that shards of different sizes need no new tracing.
    # The loop never reads the padding, and runs no step if there are no records.
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
    """Trains and yields teachers; each device trains different teachers independently.

    A loss that is not finite does not stop the training: the loss depends on private records, and
    an error would reveal something about them. A teacher with such a loss still votes, see
    `Networks.save`.
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
        # If there are more devices than teachers left, the last teacher is trained several times,
        # and the copies are dropped.
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
            weights, buffers, curves = of_replica
            arrays = [np.asarray(values) for values in (*weights, *buffers)]
            yield teacher, TrainedTeacher(arrays, np.asarray(curves).T)


def _stacked(teachers: Sequence[TrainedTeacher]) -> tf.Module:
    """Returns a module with the arrays of all teachers in `stacked`, each `[num_teachers, ...]`."""
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
    """Writes all teachers as one SavedModel, which loops over the stacked weights.

    The signature `votes` takes inputs `[batch, *input_shape]` and returns labels, int64
    `[num_teachers, batch]`, or float32 predictions (see `Votes.labels`).

    Args:
        folder: folder to write.
        config: training configuration of the teachers.
        module: result of `_stacked`, to which this function adds the function `votes`.
        prepared: function that maps float32 raw inputs to the inputs of all teachers.
        scores_of: function that computes the scores of consecutive teachers. It takes the number of
            the first teacher, the number after the last teacher, and prepared inputs. It returns
            scores of classes, or predictions of `TrainingJob.targets`, float32
            `[num_chunk, batch, num_classes]`.
        together: number of teachers per call of `scores_of`.
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
    """Teachers that are the library's networks, or the user's Keras models without `compile`."""

    name = "networks"
    settings: ClassVar[tuple[str, ...]] = TRAINING_SETTINGS

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        return isinstance(built, keras.Model) and not built.compiled

    def check(self, job: TrainingJob) -> None:
        """See `TeacherKind.check`."""
        model = architectures.build(job.config.model, job.config.dataset)
        architectures.check_draws(model, training=not model.compiled)
        name = name_of(job.config.model)
        if not model.trainable_variables:
            raise ValueError(f"model {name} has no trainable weights; set trainable = True")
        inputs = np.ones((1, *job.config.dataset.input_shape), np.float32)
        if np.isnan(model(inputs, training=False)).any():
            raise ValueError(f"model {name}: the untrained model returns NaN if all inputs are 1")

    def definition(self, job: TrainingJob) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        architecture = model_definition(job.config.model, job.learns_on)
        return {**super().definition(job), "architecture": architecture}

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`. Uses all GPUs of this machine, or the CPU if it has no GPU."""
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

        A teacher whose training diverged still votes. A logit that is NaN is treated as the lowest
        value. If all logits are NaN, the teacher votes for the first class.
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
    """Teachers that are the user's compiled Keras models, trained by Keras' `fit`.

    Teachers are trained one after another. Each teacher has a new model and a new optimizer, and
    its own seed determines the order of records and all random numbers. Therefore a teacher depends
    only on its own shard, public settings and the seed. The user's code could still share state
    between teachers, for example by a variable outside of the function that makes the model. Only
    the user can prevent this.
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
                "model must be a function that creates all objects anew at each call. It returned "
                "the same object twice, so teachers would learn from each other's records."
            )
        labels = targets_of(model, np.zeros(2, np.int64), dataset.num_classes)
        try:
            model.test_on_batch(np.zeros((2, *dataset.input_shape), np.float32), labels)
        except Exception as error:  # Keras and TensorFlow raise different exceptions
            raise ValueError(
                f"model {name_of(config.model)}: its loss or a metric can't compare labels of "
                f"shape {list(labels.shape)} with outputs [2, {dataset.num_classes}]. Compile it "
                f"with SparseCategoricalCrossentropy or CategoricalCrossentropy."
            ) from error

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`.

        The compiled model has its own learning rate. Steps are rounded up to whole passes over a
        teacher's records. There is one loss for each pass, and an accuracy if the model is compiled
        with one.
        """
        config = job.config
        for teacher, inputs, labels in job.shards(teachers):
            build_seed, fit_seed = np.random.SeedSequence([config.seed, teacher]).generate_state(2)
            model = architectures.build(config.model, config.dataset, seed=int(build_seed))
            curves = np.zeros((2, 0), np.float32)
            if len(labels):
                targets = targets_of(model, labels, config.dataset.num_classes)
                steps_per_pass = -(-len(labels) // config.batch_size)
                with architectures.seeded(int(fit_seed >> 1)):
                    measured = model.fit(
                        tf.data.Dataset.from_tensor_slices((inputs.astype(np.float32), targets))
                        .shuffle(len(labels), reshuffle_each_iteration=True)
                        .batch(config.batch_size),
                        epochs=-(-config.num_steps(len(labels)) // steps_per_pass),
                        shuffle=False,  # the records are already shuffled
                        verbose=1 if job.verbose else 0,
                    ).history
                losses = measured.get("loss", [])
                unknown = [np.nan] * len(losses)
                accuracies = next((measured[name] for name in measured if "acc" in name), unknown)
                curves = np.array([losses, accuracies[: len(losses)]], np.float32)
            variables = (*model.trainable_variables, *model.non_trainable_variables)
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            yield teacher, TrainedTeacher(arrays, curves)


def _parts(model: Any) -> list[Any]:
    """Returns the parts of a model that may have state, so two models must not share them."""
    parts = [model, model.optimizer, *model.layers, *model.variables, *model.metrics]
    return [*parts, model.loss] if isinstance(model.loss, keras.losses.Loss) else parts


def targets_of(model: Any, labels: npt.NDArray[np.int64], num_classes: int) -> npt.NDArray[Any]:
    """Returns labels in the form that a compiled model's loss takes: labels or one-hot rows."""
    loss = model.loss
    name = getattr(loss, "__name__", type(loss).__name__)
    if str(loss if isinstance(loss, str) else name).lower().startswith("categorical"):
        return np.asarray(keras.utils.to_categorical(labels, num_classes))
    return labels


COMPILED = Compiled()


class ClosedForm(TeacherKind):
    """Teachers that are ridge regressions on features, see `pate_tf.models.ridge`."""

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
        """See `TeacherKind.save`. The encoder is saved together with the teachers."""
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
