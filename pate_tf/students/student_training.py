"""Trains Keras students with Keras' `fit`; resumes interrupted training, and fails at NaN."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts, tensorboard
from pate_tf.core.checks import FloatArray, IntArray
from pate_tf.core.dataset import CLASS, Dataset, is_labeled
from pate_tf.core.public import Pool, PoolLabels, PublicExamples, PublicSplit
from pate_tf.core.reporting import steps_on_clock
from pate_tf.data import preprocessing
from pate_tf.data.named_function import name_of
from pate_tf.models import architectures
from pate_tf.models.architectures import model_definition
from pate_tf.students.student_kinds import FitOptions, StudentConfig

Batch = dict[str, tf.Tensor]
StepBatch = Callable[[tf.Tensor], Batch | tuple[tf.Tensor, tf.Tensor]]

LOGGED = 10  # a loss is written for TensorBoard once in this number of steps
BATCH = 500  # inputs per batch; larger batches exceed the cache and are slower per input


class ShuffledItems:
    """Draws rows of arrays without replacement, in a new random order in each pass.

    Args:
        *arrays: arrays `[num_items, ...]`; the same rows are drawn from each array.
        batch_size: number of rows per step.
        seed: seed of the random orders.
    """

    def __init__(self, *arrays: npt.NDArray, batch_size: int, seed: int) -> None:
        self._tensors = [tf.constant(array) for array in arrays]
        self._num_items = len(arrays[0])
        self._batch_size = batch_size
        self._seed = seed

    def at(self, step: tf.Tensor) -> list[tf.Tensor]:
        """Returns the rows of each array for a step, `[batch_size, ...]`; steps start at 0."""
        positions = step * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
        passes = positions // self._num_items
        seeds = tf.fill([self._batch_size], tf.constant(self._seed, tf.int64))
        rows = tf.raw_ops.RandomIndexShuffle(
            index=positions % self._num_items,
            seed=tf.stack([seeds, passes, tf.zeros_like(passes)], axis=1),
            max_index=tf.constant(self._num_items - 1, tf.int64),
        )
        return [tf.gather(tensor, rows) for tensor in self._tensors]


def step_seeds(seed: int, step: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Returns `number` independent seeds, each int64 `[2]`, for the random draws of a step."""
    return tf.unstack(tf.random.split(tf.stack([tf.constant(seed, tf.int64), step]), number))


def derived_seeds(seed: int, number: int) -> list[int]:
    """Returns `number` seeds for the parts of one student, such as the layers of a network."""
    drawn = np.random.SeedSequence(seed).generate_state(number)
    return [int(value) for value in drawn % 2**31]


def outputs(model: Callable[..., tf.Tensor], inputs: npt.NDArray[np.generic]) -> FloatArray:
    """Computes a model's outputs `[num_inputs, ...]` for raw inputs, in batches.

    Args:
        model: function from raw inputs `[batch, *input_shape]` to outputs.
        inputs: at least one raw input.
    """
    parts = [
        keras.ops.convert_to_numpy(
            model(tf.constant(inputs[start : start + BATCH], tf.float32), training=False)
        )
        for start in range(0, len(inputs), BATCH)
    ]
    return np.concatenate(parts).astype(np.float64)


# The functions below augment images strongly. A student must predict the same label for an image
# and its augmented copy.


def pixel_range(dataset: Dataset) -> tuple[float, float]:
    """Returns the range of all pixel values; raises ValueError if pixels have different ranges."""
    low, high = dataset.value_range
    if isinstance(low, tuple) or isinstance(high, tuple):
        raise ValueError(f"value_range of {dataset.name}: all pixels must have the same range")
    return low, high


MAX_CUTOUT = 1 / 2  # maximum side of the filled square, as a fraction of the image's side
MAX_CONTRAST = 0.5
# The color changes follow Chen et al. 2020 ("SimCLR", appendix B.9) for small images, without
# tuning.
COLOUR_JITTER = 0.4  # maximum change of brightness, contrast and saturation
MAX_HUE = 0.1  # maximum rotation of the hue, as a fraction of the color circle
GRAY_FRACTION = 0.2  # fraction of images that become gray


def augment_strongly(images: tf.Tensor, dataset: Dataset, seed: tf.Tensor) -> tf.Tensor:
    """Augments images twice, changes their contrast, and blackens a random square (cutout).

    If images have three channels, their colors are changed, too. Otherwise, a network could
    recognize the copies of an image by their colors, and would learn nothing else.

    Args:
        images: raw images, float32 `[batch, height, width, channels]`.
        dataset: data set of the images. Its `augmentation` lists changes of an image that keep the
            label.
        seed: seed of the random changes, int64 `[2]`. The same seed gives the same changes.
    """
    first, second, contrast_seed, cutout_seed = tf.unstack(tf.random.split(seed, 4))
    changed = preprocessing.augment(preprocessing.augment(images, dataset, first), dataset, second)
    low, high = pixel_range(dataset)
    if dataset.has_colors:
        unit = (changed - low) / (high - low)
        colour_seed = tf.random.fold_in(seed, 4)
        changed = low + (high - low) * _with_other_colours(unit, colour_seed)
    contrast = tf.random.stateless_uniform(
        [tf.shape(images)[0], 1, 1, 1], contrast_seed, 1.0 - MAX_CONTRAST, 1.0
    )
    changed = low + (changed - low) * contrast
    # Cutout: fills a square of random size and position in each image (DeVries and Taylor 2017).
    height, width = changed.shape[1:3]
    draws = tf.random.stateless_uniform([tf.shape(changed)[0], 3], cutout_seed)
    reach = draws[:, :1] * MAX_CUTOUT / 2
    inside_rows = tf.abs((tf.range(height, dtype=tf.float32) + 0.5) / height - draws[:, 1:2])
    inside_columns = tf.abs((tf.range(width, dtype=tf.float32) + 0.5) / width - draws[:, 2:])
    cut = (inside_rows < reach)[:, :, None] & (inside_columns < reach)[:, None, :]
    return tf.where(cut[..., None], low, changed)


def _with_other_colours(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Changes brightness, contrast, saturation and hue; makes one in five images gray.

    Args:
        images: images with values from 0 to 1, `[batch, height, width, 3]`.
        seed: see `augment_strongly`.
    """
    draws = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 5], seed, -1.0, 1.0)
    brightness, contrast, saturation, hue, grey = tf.split(draws, 5, axis=-1)
    bright = tf.clip_by_value(images * (1.0 + COLOUR_JITTER * brightness), 0.0, 1.0)
    mean = tf.reduce_mean(bright, axis=[1, 2, 3], keepdims=True)
    changed = tf.clip_by_value(mean + (bright - mean) * (1.0 + COLOUR_JITTER * contrast), 0.0, 1.0)
    greys = tf.reduce_mean(changed, axis=-1, keepdims=True)
    is_grey = grey < 2.0 * GRAY_FRACTION - 1.0
    colours = (changed - greys) * tf.where(is_grey, 0.0, 1.0 + COLOUR_JITTER * saturation)
    # Colors are rotated around the gray axis (1, 1, 1). The cross product of a color with this axis
    # is the difference of two shifted colors.
    angle = 2.0 * math.pi * MAX_HUE * hue
    across = (tf.roll(colours, 1, axis=-1) - tf.roll(colours, -1, axis=-1)) / math.sqrt(3.0)
    return tf.clip_by_value(greys + tf.cos(angle) * colours + tf.sin(angle) * across, 0.0, 1.0)


WARM_UP = 10


class AveragedStudent(keras.Model):
    """A classifier that is being trained, with an exponential moving average of its weights.

    A subclass trains `classifier` in its `train_step`, which returns the result of
    `step_end`. Evaluation and export use the averaged weights.

    Attributes:
        averaged_steps: approximate number of recent steps in the average. Early in training, the
            average covers fewer steps, about a tenth of all steps so far.
        losses_shown: names of the losses that `train_step` returns, after the accuracy.
    """

    averaged_steps = 1_000
    losses_shown: tuple[str, ...] = ("loss", "labelled_loss", "unlabelled_loss")

    def __init__(self, classifier: keras.Model, dataset: Dataset, **kwargs: Any) -> None:
        """Stores a classifier that maps raw inputs to logits; passes `kwargs` to `keras.Model`."""
        super().__init__(**kwargs)
        self.dataset = dataset
        self.classifier = classifier
        self.trackers = [keras.metrics.Mean(name) for name in ("accuracy", *self.losses_shown)]
        zeros = {"initializer": "zeros", "trainable": False}
        self.average_age = self.add_weight(
            name="average_age", aggregation="only_first_replica", **zeros
        )
        self.averages = [
            self.add_weight(
                shape=weight.shape, name=f"average_{index}", aggregation="mean", **zeros
            )
            for index, weight in enumerate(classifier.trainable_weights)
        ]
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]`, computed with the current weights."""
        return tf.cast(self.classifier(inputs, training=training), tf.float32)

    def step_end(
        self, labels: tf.Tensor, logits: tf.Tensor, *losses: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Updates the averaged weights after a step.

        Args:
            labels: labels of the step's inputs, int64 `[batch]`, or weights of the classes, float32
                `[batch, num_classes]`.
            logits: logits of these inputs, float32 `[batch, num_classes]`.
            *losses: losses of the step, see `losses_shown`.

        Returns:
            The mean accuracy and losses of the epoch so far, by their names.
        """
        classes = tf.argmax(labels, axis=1) if labels.dtype.is_floating else labels
        accuracies = keras.metrics.sparse_categorical_accuracy(classes, logits)
        age = self.average_age + 0.0
        decay = tf.minimum(age / (age + WARM_UP), 1.0 - 1.0 / self.averaged_steps)
        for average, weight in zip(self.averages, self.classifier.trainable_weights, strict=True):
            average.assign(decay * average + (1.0 - decay) * weight)
        self.average_age.assign(age + 1.0)
        for tracker, value in zip(self.trackers, (accuracies, *losses), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def averaged_logits(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]`, computed with the averaged weights."""
        logits, _ = self.classifier.stateless_call(
            self.averages, self.classifier.non_trainable_variables, inputs, training=training
        )
        return tf.cast(logits, tf.float32)

    def train_on_pool(
        self,
        change: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Batch],
        config: StudentConfig,
        released: PoolLabels,
        pool: Pool,
        options: FitOptions,
        *,
        num_unlabelled: int,
        **of_fit: Any,
    ) -> keras.Model:
        """Trains on labels and on the whole pool; returns a classifier with averaged weights.

        Args:
            change: function that augments inputs and returns a batch for `train_step`. It has four
                arguments: the number of the step, labeled inputs, their labels or weights, and
                `num_unlabelled` unlabeled inputs. All inputs are float32.
            config: settings of the student, such as model and number of steps.
            released: labels of some inputs of the pool.
            pool: public inputs.
            options: options for storing and showing the progress of training.
            num_unlabelled: number of unlabeled inputs in a batch.
            **of_fit: further arguments of `fit_student`.
        """
        *_, order_seed, labels_seed = derived_seeds(config.seed, 4)
        unlabelled = ShuffledItems(pool.inputs, batch_size=num_unlabelled, seed=order_seed)
        labelled = ShuffledItems(
            pool.inputs[released.query_indices],
            released.targets,
            batch_size=config.batch_size,
            seed=labels_seed,
        )

        def batch_at(step: tf.Tensor) -> Batch:
            inputs, labels = labelled.at(step)
            (others,) = unlabelled.at(step)
            return change(step, tf.cast(inputs, tf.float32), labels, tf.cast(others, tf.float32))

        fit_student(self, batch_at, config, released, pool, options, **of_fit)
        averaged = keras.models.clone_model(self.classifier)
        averaged.set_weights(self.classifier.get_weights())
        for weight, average in zip(averaged.trainable_weights, self.averages, strict=True):
            weight.assign(average)
        return averaged


def loss_of_replica(loss: tf.Tensor) -> tf.Tensor:
    """Divides a loss by the number of devices, because optimizers add up the devices' gradients."""
    return loss / tf.distribute.get_strategy().num_replicas_in_sync


# Number of steps per epoch. An epoch has twice this number if the pool has `STOP_SET_SIZE` inputs.
# This number of steps was chosen with labels of public pools, never with held-out samples
# (docs/how-to/choose_student.md).
STEPS_PER_EPOCH = 50
UNFINISHED = "unfinished_student"
# The stopping rule is "stabilizing predictions" (Bloodgood and Vijay-Shanker 2009, arXiv
# 1409.5165), with the paper's values. The stop set is a set of unlabeled public inputs. Training
# ends when the predictions of successive models on the stop set agree with a mean Cohen's kappa of
# 0.99 over three pairs of models. The rule uses neither private records nor true labels.
STABLE_KAPPA = 0.99
PAIRS = 3
STOP_SET_SIZE = 2_000


def are_stable(predictions: IntArray) -> bool:
    """Whether the predictions of successive models agree.

    Args:
        predictions: predicted classes of the last `PAIRS + 1` models, `[num_models, num_inputs]`.
    """
    kappas = list[float]()
    for earlier, later in itertools.pairwise(predictions):
        agreement = float((earlier == later).mean())
        by_chance = sum(
            (earlier == label).mean() * (later == label).mean() for label in np.unique(later)
        )
        kappas.append(1.0 if agreement == 1.0 else (agreement - by_chance) / (1.0 - by_chance))
    return float(np.mean(kappas)) >= STABLE_KAPPA


def averaged_or_own(student: keras.Model) -> Callable[..., tf.Tensor]:
    """Returns the function that computes logits, with averaged weights if the student has them."""
    return student.averaged_logits if isinstance(student, AveragedStudent) else student


class TrainingDivergedError(ValueError):
    """Raised if a loss or a weight becomes NaN or infinite during training."""


class Backup(keras.callbacks.Callback):
    """Stores the state of training after each epoch in one file, completely or not at all.

    Raises:
        TrainingDivergedError: at the end of an epoch, if a loss or weight is not finite.
    """

    def __init__(self, path: pathlib.Path | None, state: Sequence[Any]) -> None:
        """Stores the path of the file and the Keras variables to save.

        Args:
            path: path of the `.npz` file; None to store nothing.
            state: all Keras variables that change during training.
        """
        super().__init__()
        self._path = path
        self._state = state

    def restore(self) -> int:
        """Loads the state of an interrupted run; returns the number of completed epochs."""
        if self._path is None or not self._path.exists():
            return 0
        arrays = artifacts.read_arrays(self._path)
        for index, variable in enumerate(self._state):
            variable.assign(arrays[str(index)])
        return int(arrays["epochs"])

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Checks the losses of the epoch and all weights, and replaces the stored state."""
        values = {name: np.asarray(value) for name, value in (logs or {}).items()}
        values |= {weight.path: keras.ops.convert_to_numpy(weight) for weight in self.model.weights}
        bad = [name for name, value in values.items() if not np.isfinite(value).all()]
        if bad:
            where = f"; the last good weights are in {self._path}" if self._path else ""
            raise TrainingDivergedError(
                f"student: training diverged; {bad[0]} is NaN or infinite in epoch {epoch + 1}"
                f"{where}. Try a smaller learning rate."
            )
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            str(index): keras.ops.convert_to_numpy(variable)
            for index, variable in enumerate(self._state)
        }
        # The file contains no private data but is written as private, because writing a file to be
        # published after each epoch would also authenticate it each time. The file is deleted
        # before anything is published.
        arrays["epochs"] = np.array(epoch + 1)
        artifacts.write_arrays(self._path, arrays, private=True)


def shown_on_clock(num_steps: int) -> keras.callbacks.Callback:
    """Returns a callback that shows the number of steps and the remaining time."""
    advance = steps_on_clock(num_steps)
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: advance(1))


def logs_of(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the TensorBoard logs for the next version of a student."""
    return folder / "logs" / "student" / str(artifacts.next_version(folder / "student"))


def network_of(config: StudentConfig, dataset: Dataset) -> keras.Model:
    """Builds the untrained Keras model that a configuration names."""
    network = architectures.build(config.model, dataset, seed=config.seed)
    if architectures.ends_in_softmax(network):  # compiled by the user; it is compiled again later
        network = architectures.with_logits(network)
    return network


def run_digest(config: StudentConfig, released: PoolLabels, pool: Pool) -> str:
    """Returns a digest, 16 hexadecimal digits, of everything that determines a run's result."""
    definition = None
    with contextlib.suppress(ValueError):  # some kinds have their own networks
        definition = model_definition(config.model, pool.dataset)
    arrays = [released.query_indices, released.labels, pool.inputs]
    arrays += [] if released.weights is None else [released.weights]
    parts = [
        repr(dataclasses.replace(config, model=name_of(config.model))),
        definition,
        artifacts.digest_arrays(arrays),
        pool.dataset.to_dict(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def fit_student(
    student: keras.Model,
    batch_at: StepBatch,
    config: StudentConfig,
    released: PoolLabels,
    pool: Pool,
    options: FitOptions,
    *,
    optimizers: Sequence[Any] = (),
    stops_early: bool = True,
) -> None:
    """Trains a compiled student in epochs of 50 or 100 steps until its predictions are stable.

    Training takes at most about `config.max_steps` steps.

    Args:
        student: a compiled student whose optimizers are built.
        batch_at: function that takes a step, an int64 scalar, and returns a batch for the student's
            `train_step`.
        config: settings of the student, such as model and number of steps.
        released: labels of some inputs of the pool.
        pool: public inputs. If a run with the same `run_digest` was interrupted, training resumes
            after its last epoch.
        options: options for storing and showing the progress. The folder that they name contains
            the logs and, until the run is complete, the state of the last epoch.
        optimizers: further optimizers, whose variables are also stored.
        stops_early: whether to stop when the predictions for the pool's first `STOP_SET_SIZE`
            inputs are stable. If False, training takes all steps.

    Raises:
        TrainingDivergedError: if a loss or weight became NaN or infinite. The state after the last
            good epoch stays in the folder.
    """
    inputs = pool.inputs[: STOP_SET_SIZE if stops_early else 1]
    number = len(inputs)
    # This variable has one row of predictions for each of the last epochs, and is part of the
    # stored state. All initial rows differ, so training can't stop before all rows were replaced.
    predictions = tf.Variable(np.repeat(-np.arange(1, PAIRS + 2)[:, None], number, axis=1))

    def stop_if_stable(*_: Any) -> None:
        bar.update(steps_an_epoch)
        if stops_early:
            latest = outputs(averaged_or_own(student), inputs).argmax(axis=1)
            predictions.assign(np.vstack([predictions.numpy()[1:], latest]))
            student.stop_training = are_stable(predictions.numpy())

    is_full = number == STOP_SET_SIZE
    num_epochs = max(1, round(config.max_steps / ((1 + is_full) * STEPS_PER_EPOCH)))
    steps_an_epoch = -(-config.max_steps // num_epochs)
    name = f"{run_digest(config, released, pool)}.npz"
    path = options.folder and options.folder / UNFINISHED / name
    state = [each for optimizer in (student.optimizer, *optimizers) for each in optimizer.variables]
    backup = Backup(path, [*student.variables, *state, predictions])
    stopping = keras.callbacks.LambdaCallback(on_epoch_end=stop_if_stable)
    callbacks = [stopping, backup, *options.callbacks]
    if options.folder:
        callbacks.append(keras.callbacks.TensorBoard(logs_of(options.folder), update_freq=LOGGED))
    first_epoch = backup.restore()
    if are_stable(predictions.numpy()):  # the interrupted run had already finished
        num_epochs = first_epoch
    total = num_epochs * steps_an_epoch
    done = first_epoch * steps_an_epoch
    steps = {"total": total, "initial": done, "unit": "step", "postfix": "at most"}
    with options.progress_bar(desc="training the student (may stop early)", **steps) as bar:
        student.fit(
            tf.data.Dataset.range(done, total)
            .map(tf.autograph.experimental.do_not_convert(batch_at), num_parallel_calls=1)
            .prefetch(tf.data.AUTOTUNE),
            initial_epoch=first_epoch,
            epochs=num_epochs,
            steps_per_epoch=steps_an_epoch,
            callbacks=callbacks,
            shuffle=False,  # batches are already shuffled by the seed
            verbose=0,
        )
    if path is not None:  # training is complete, so the stored state is no longer needed
        with contextlib.suppress(OSError):  # the folder may contain the state of other settings
            path.unlink()
            path.parent.rmdir()


# The rest of this module measures the accuracy of labels and students on public samples.


def accuracy_in_pool(labels: PoolLabels, public: PublicSplit) -> float | None:
    """Returns the accuracy of noisy labels of the pool; None if no true class is known."""
    if public.pool.true_labels is None or public.dataset.target != CLASS:
        return None
    truth = public.pool.true_labels[labels.query_indices]
    is_known = is_labeled(truth)
    return float((labels.labels == truth)[is_known].mean()) if is_known.any() else None


NUM_SAMPLES = 1_000


class HeldOutAccuracy(keras.callbacks.Callback):
    """Keras callback that writes the accuracy on held-out samples for TensorBoard.

    The true labels of these samples are public. They are used only for TensorBoard and do not
    influence the student.
    """

    def __init__(self, samples: PublicExamples, logs: pathlib.Path) -> None:
        """Opens the log folder; uses at most 1,000 of the labeled held-out samples."""
        super().__init__()
        self._inputs = samples.inputs[:NUM_SAMPLES]
        self._labels = np.asarray(samples.labels)[:NUM_SAMPLES]
        self._writer = tf.summary.create_file_writer(str(logs / "held_out"))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Writes the accuracy after this epoch."""
        del logs
        predictions = outputs(averaged_or_own(self.model), self._inputs).argmax(axis=1)
        with self._writer.as_default(step=epoch):
            # Uses Keras' name for the training accuracy, so that both accuracies are in one chart.
            tensorboard.scalar("epoch_accuracy", (predictions == self._labels).mean())
        self._writer.flush()


def constant_model(labels: PoolLabels, dataset: Dataset) -> keras.Model:
    """Returns a model that predicts the same class probabilities for every raw input.

    The probabilities are the fractions of the classes among the labels (or their weights) plus one
    additional label of each class. The model returns logits `[batch, num_classes]`.
    """
    is_soft = labels.weights is not None
    targets = labels.targets if is_soft else np.eye(dataset.num_classes)[labels.labels]
    totals = targets.sum(axis=0, dtype=np.float64) + 1.0
    inputs = keras.Input(dataset.input_shape)
    last = keras.layers.Dense(dataset.num_classes, kernel_initializer="zeros")
    model = keras.Model(inputs, last(keras.layers.Flatten()(inputs)))
    last.bias.assign(np.log(totals / totals.sum()))
    return model
