"""How every Keras student is trained: by `fit`, resumed after a stop, stopped at a NaN."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data import preprocessing
from pate_tf.data.named_function import name_of
from pate_tf.models import catalogue
from pate_tf.models.definition import model_definition
from pate_tf.students.batches import (
    Batch,
    ShuffledItems,
    StepBatch,
    derived_seeds,
    outputs,
    step_seeds,
)
from pate_tf.students.kinds import FitOptions, StudentConfig

WARM_UP = 10


class AveragedStudent(keras.Model):
    """A classifier in training, with the exponential average of its trained weights.

    A subclass trains `classifier` in its `train_step` and returns `step_end` of its losses.
    Evaluation and what is exported use the average.

    Attributes:
        averaged_steps: how many steps the average reaches back at the most; until then, about a
            tenth of those so far.
        losses_shown: names of the losses that `train_step` returns.
    """

    averaged_steps = 1_000
    losses_shown: tuple[str, ...] = ("loss", "labelled_loss", "unlabelled_loss")

    def __init__(self, classifier: keras.Model, dataset: Dataset, **kwargs: Any) -> None:
        """Takes over a classifier from raw inputs to logits; `kwargs` are of `keras.Model`."""
        super().__init__(**kwargs)
        self.dataset = dataset
        self.classifier = classifier
        self.trackers = [keras.metrics.Mean(name) for name in self.losses_shown]
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
        """Returns the logits `[batch, num_classes]` of the weights in training, not averaged."""
        return tf.cast(self.classifier(inputs, training=training), tf.float32)

    def step_end(self, *losses: tf.Tensor) -> dict[str, tf.Tensor]:
        """Moves the average toward the updated weights; returns the means of `losses_shown`."""
        age = self.average_age + 0.0
        share = tf.minimum(age / (age + WARM_UP), 1.0 - 1.0 / self.averaged_steps)
        for average, weight in zip(self.averages, self.classifier.trainable_weights, strict=True):
            average.assign(share * average + (1.0 - share) * weight)
        self.average_age.assign(age + 1.0)
        for tracker, value in zip(self.trackers, losses, strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def averaged_logits(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]` of the averaged weights."""
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
        optimizers: Sequence[Any],
        stop_set: npt.NDArray[Any] | None = None,
    ) -> keras.Model:
        """Trains on labels of some of the pool and on all of it; returns the averaged classifier.

        Args:
            change: makes what `train_step` takes, from a step, labeled inputs float32, their labels
                or weights, and `num_unlabelled` others.
            config: how it is trained.
            released: labels of some of the pool.
            pool: public inputs.
            options: what is stored and shown.
            num_unlabelled: unlabeled inputs in a batch.
            optimizers: whose state belongs to the run.
            stop_set: as of `fit_student`.
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

        states = [state for optimizer in optimizers for state in optimizer.variables]
        fit_student(
            self,
            batch_at,
            state=[*self.variables, *states],
            config=config,
            digest=run_digest(config, released, pool),
            options=options,
            stop_set=stop_set,
        )
        averaged = keras.models.clone_model(self.classifier)
        averaged.set_weights(self.classifier.get_weights())
        for weight, average in zip(averaged.trainable_weights, self.averages, strict=True):
            weight.assign(average)
        return averaged


def replica_share(loss: tf.Tensor) -> tf.Tensor:
    """A replica's share of a loss: optimizers add up the gradients of all replicas."""
    return loss / tf.distribute.get_strategy().num_replicas_in_sync


STEPS_AN_EPOCH = 50  # twice as many with a full stop set; of a small one inputs come more often
UNFINISHED = "unfinished_student"
# Stabilizing predictions (Bloodgood and Vijay-Shanker 2009, arXiv 1409.5165), with the paper's
# figures: training ends once successive models agree on unlabeled inputs, the stop set, by a mean
# Cohen's kappa of 0.99 over three pairs. The stop set is public: the rule sees no private record,
# and no true label.
STABLE_KAPPA, PAIRS, STOP_SET_SIZE = 0.99, 3, 2_000


def are_stable(predictions: IntArray) -> bool:
    """Whether the predictions of successive models, `[PAIRS + 1, num_inputs]`, agree."""
    kappas = list[float]()
    for earlier, later in itertools.pairwise(predictions):
        agreement = float((earlier == later).mean())
        by_chance = sum(
            (earlier == label).mean() * (later == label).mean() for label in np.unique(later)
        )
        kappas.append(1.0 if agreement == 1.0 else (agreement - by_chance) / (1.0 - by_chance))
    return float(np.mean(kappas)) >= STABLE_KAPPA


def averaged_or_own(student: keras.Model) -> Callable[..., tf.Tensor]:
    """Returns what a student answers with: the logits of its averaged weights, if it has any."""
    return student.averaged_logits if isinstance(student, AveragedStudent) else student


class TrainingDivergedError(ValueError):
    """A loss or a weight became NaN or infinite."""


class Backup(keras.callbacks.Callback):
    """Stores the state after each epoch in one file, whole or not at all, as long as it is finite.

    Raises:
        TrainingDivergedError: at the end of an epoch with a loss or weight that is not.
    """

    def __init__(self, path: pathlib.Path | None, state: Sequence[Any]) -> None:
        """Takes the `.npz` file, None to store nothing, and all Keras variables of one run."""
        super().__init__()
        self._path = path
        self._state = list(state)

    def restore(self) -> int:
        """Loads what a stopped run left; returns how many epochs it had done."""
        if self._path is None or not self._path.exists():
            return 0
        arrays = artifacts.read_arrays(self._path)
        for index, variable in enumerate(self._state):
            variable.assign(arrays[str(index)])
        return int(arrays["epochs"])

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Checks the epoch's losses and all weights, and replaces the state that was stored."""
        values = {name: np.asarray(value) for name, value in (logs or {}).items()}
        values |= {weight.path: keras.ops.convert_to_numpy(weight) for weight in self.model.weights}
        bad = [name for name, value in values.items() if not np.isfinite(value).all()]
        if bad:
            where = f"; the last good weights are in {self._path}" if self._path else ""
            raise TrainingDivergedError(
                f"student: expected finite numbers, got NaN or infinity in {bad[0]} in epoch "
                f"{epoch + 1}{where}; try a smaller learning rate"
            )
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            str(index): keras.ops.convert_to_numpy(variable)
            for index, variable in enumerate(self._state)
        }
        artifacts.write_arrays(self._path, {**arrays, "epochs": np.array(epoch + 1)})


def logs_of(folder: pathlib.Path) -> pathlib.Path:
    """Where TensorBoard finds the logs of the version that a student in a folder is next."""
    return folder / "logs" / "student" / str(artifacts.next_version(folder / "student"))


def network_of(config: StudentConfig, dataset: Dataset) -> keras.Model:
    """Returns the network that training begins with: of its own, or a copy of the given one."""
    if config.initial is None:
        network = catalogue.build(config.model, dataset, seed=config.seed)
        # A compiled model, too: it is compiled anew.
        return catalogue.with_logits(network) if catalogue.ends_in_softmax(network) else network
    catalogue.check_model(config.initial, dataset, "initial")
    network = keras.models.clone_model(config.initial)
    network.set_weights(config.initial.get_weights())
    return network


def run_digest(config: StudentConfig, released: PoolLabels, pool: Pool) -> str:
    """Identifies a run by all that its result depends on, as 16 hexadecimal digits."""
    definition = None
    with contextlib.suppress(ValueError):  # of networks that are a kind's own
        definition = model_definition(config.initial or config.model, pool.dataset)
    arrays = [released.query_indices, released.labels, pool.inputs]
    arrays += [] if released.weights is None else [released.weights]
    arrays += [] if config.initial is None else config.initial.get_weights()
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
    *,
    state: Sequence[Any],
    config: StudentConfig,
    digest: str,
    options: FitOptions,
    stop_set: npt.NDArray[Any] | None = None,
) -> None:
    """Trains a compiled student until its predictions are stable, in epochs of 50 or 100 steps.

    It takes about `config.max_steps` steps at most.

    Args:
        student: compiled, its optimizers built.
        batch_at: from a step, int64 scalar, to what the student's `train_step` takes.
        state: all variables that the rest of the run depends on.
        config: how it is trained.
        digest: `run_digest`; a stopped run of the same digest goes on from its last epoch.
        options: below its folder go logs, and the state of the last epoch until the run is
            complete.
        stop_set: public inputs, of which the first `STOP_SET_SIZE` predictions are compared; None
            to do all steps.

    Raises:
        TrainingDivergedError: if a loss or weight became NaN or infinite; the state after the last
            good epoch stays in the folder.
    """
    inputs = None if stop_set is None else stop_set[:STOP_SET_SIZE]
    number = 1 if inputs is None else len(inputs)
    # Of the last epochs, a row each; part of the state. Before training no two agree.
    predictions = tf.Variable(np.repeat(-np.arange(1, PAIRS + 2)[:, None], number, axis=1))

    def stop_if_stable(epoch: int, logs: Mapping[str, float] | None = None) -> None:
        del epoch, logs
        bar.update(steps_an_epoch)
        if inputs is not None:
            latest = outputs(averaged_or_own(student), inputs).argmax(axis=1)
            predictions.assign(np.vstack([predictions.numpy()[1:], latest]))
            student.stop_training = are_stable(predictions.numpy())

    is_full = number == STOP_SET_SIZE
    num_epochs = max(1, round(config.max_steps / ((1 + is_full) * STEPS_AN_EPOCH)))
    steps_an_epoch = -(-config.max_steps // num_epochs)
    path = options.folder and options.folder / UNFINISHED / f"{digest}.npz"
    backup = Backup(path, [*state, predictions])
    stopping = keras.callbacks.LambdaCallback(on_epoch_end=stop_if_stable)
    callbacks = [stopping, backup, *options.callbacks]
    if options.folder:
        callbacks.append(keras.callbacks.TensorBoard(str(logs_of(options.folder))))
    first_epoch = backup.restore()
    if are_stable(predictions.numpy()):  # it was stopped after its last epoch
        num_epochs = first_epoch
    total, done = num_epochs * steps_an_epoch, first_epoch * steps_an_epoch
    steps = {"total": total, "initial": done, "unit": "step"}
    with options.progress_bar(desc="training the student, at most", **steps) as bar:
        student.fit(
            tf.data.Dataset.range(done, total)
            .map(tf.autograph.experimental.do_not_convert(batch_at), num_parallel_calls=1)
            .prefetch(tf.data.AUTOTUNE),
            initial_epoch=first_epoch,
            epochs=num_epochs,
            steps_per_epoch=steps_an_epoch,
            callbacks=callbacks,
            shuffle=False,  # the batches are shuffled already, by the seed
            verbose=0,
        )
    if path is not None:  # the run is complete
        path.unlink(missing_ok=True)
        if not any(path.parent.iterdir()):
            path.parent.rmdir()


def fit_to_targets(
    model: keras.Model,
    config: StudentConfig,
    dataset: Dataset,
    *,
    inputs: npt.NDArray,
    targets: npt.NDArray,
    loss: keras.losses.Loss | None = None,
    digest: str = "",
    options: FitOptions | None = None,
    stop_set: npt.NDArray[Any] | None = None,
) -> None:
    """Trains a model with `fit`, by Adam along a cosine, on inputs changed as the data set allows.

    Args:
        model: from raw inputs `[batch, *input_shape]`.
        config: its steps, batch size, learning rate and seed.
        dataset: says which changes of an input leave its target as it is.
        inputs: `[num_examples, *input_shape]`.
        targets: `[num_examples, ...]`, as the loss takes them.
        loss: None for the model's own `compute_loss`.
        digest: identifies the run in the folder of `options`.
        options: what is stored and shown.
        stop_set: as of `fit_student`.

    Raises:
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule), loss=loss, metrics=["accuracy"] if loss else None
    )
    model.optimizer.build(model.trainable_weights)
    labelled = ShuffledItems(inputs, targets, batch_size=config.batch_size, seed=config.seed)

    def batch_at(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn, drawn_targets = labelled.at(step)
        (seed,) = step_seeds(config.seed, step, 1)
        changed = preprocessing.augment(tf.cast(drawn, tf.float32), dataset, seed)
        return changed, drawn_targets

    fit_student(
        model,
        batch_at,
        state=[*model.variables, *model.optimizer.variables],
        config=config,
        digest=digest,
        options=options or FitOptions(),
        stop_set=stop_set,
    )
