"""The dull part of training every Keras student: `fit`, resuming, and stopping at a NaN."""

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import name_of
from pate_tf.students import batches
from pate_tf.students.config import StudentConfig

# What the semi-supervised students share: a classifier, and the average of its weights.


WARM_UP = 10


class AveragedStudent(keras.Model):
    """A classifier in training beside the exponential average of its trained weights.

    A subclass trains `classifier` in its `train_step` and calls `update_average` at the end of it.
    Evaluation and what is exported use the average.

    Attributes:
      averaged_steps: how many steps the average reaches back at the most; until then, about a
        tenth of those so far.
    """

    averaged_steps = 1_000

    def __init__(self, classifier: keras.Model, dataset: Dataset, **kwargs: Any) -> None:
        """Takes over a classifier.

        Args:
          classifier: from raw inputs `[batch, *input_shape]` to logits `[batch, num_classes]`.
          dataset: what the classifier is for.
          **kwargs: of `keras.Model`.
        """
        super().__init__(**kwargs)
        self.dataset = dataset
        self.classifier = classifier
        self.average_age = self.add_weight(
            name="average_age",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )
        self.averages = [
            self.add_weight(
                shape=weight.shape,
                initializer="zeros",
                trainable=False,
                aggregation="mean",
                name=f"average_{index}",
            )
            for index, weight in enumerate(classifier.trainable_weights)
        ]
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]` of the weights in training, not averaged."""
        return self.classifier(inputs, training=training)

    def update_average(self) -> None:
        """Moves the average towards the weights; called once a step, after their update."""
        age = self.average_age + 0.0
        kept = tf.minimum(age / (age + WARM_UP), 1.0 - 1.0 / self.averaged_steps)
        for average, weight in zip(self.averages, self.classifier.trainable_weights, strict=True):
            average.assign(kept * average + (1.0 - kept) * weight)
        self.average_age.assign(age + 1.0)

    def averaged_logits(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits `[batch, num_classes]` of the averaged weights."""
        logits, _ = self.classifier.stateless_call(
            self.averages, self.classifier.non_trainable_variables, inputs, training=training
        )
        return logits

    def averaged_classifier(self) -> keras.Model:
        """Returns a classifier of its own with the averaged weights."""
        averaged = keras.models.clone_model(self.classifier)
        averaged.set_weights(self.classifier.get_weights())
        for weight, average in zip(averaged.trainable_weights, self.averages, strict=True):
            weight.assign(average)
        return averaged

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` rebuilds the student from, as JSON values."""
        return {
            **super().get_config(),
            "classifier": keras.saving.serialize_keras_object(self.classifier),
            "dataset": self.dataset.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AveragedStudent":
        """Rebuilds a student, with fresh weights."""
        models = {
            name: keras.saving.deserialize_keras_object(value)
            for name, value in config.items()
            if isinstance(value, dict) and "class_name" in value
        }
        return cls(**{**config, **models, "dataset": Dataset.from_dict(config["dataset"])})


def replica_share(loss: tf.Tensor) -> tf.Tensor:
    """A replica's share of a loss: optimizers add up the gradients of all replicas."""
    return loss / tf.distribute.get_strategy().num_replicas_in_sync


STEPS_AN_EPOCH = 100
UNFINISHED = "unfinished_student"


class TrainingDivergedError(ValueError):
    """A loss or a weight became NaN or infinite."""


class StopAtNan(keras.callbacks.Callback):
    """Stops a run whose loss or weights are no longer finite, before they are kept anywhere.

    Raises:
      TrainingDivergedError: at the end of such an epoch.
    """

    def __init__(self, kept_in: pathlib.Path | None) -> None:
        """Names the file of the last good weights, for the message."""
        super().__init__()
        self._kept_in = kept_in

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Checks the epoch's numbers and all weights."""
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        bad = [name for name, value in numbers.items() if not math.isfinite(value)]
        if not bad:
            bad = [
                weight.path
                for weight in self.model.weights
                if not np.isfinite(keras.ops.convert_to_numpy(weight)).all()
            ]
        if bad:
            kept = f"; the last good weights are in {self._kept_in}" if self._kept_in else ""
            raise TrainingDivergedError(
                f"student: expected finite numbers, got NaN or infinity in {bad[0]} in epoch "
                f"{epoch + 1}{kept}; try a smaller learning rate"
            )


class Backup(keras.callbacks.Callback):
    """Keeps the state of the last epoch in one file, whole or not at all."""

    def __init__(self, path: pathlib.Path, state: Sequence[Any]) -> None:
        """Takes what belongs to one run: one configuration, one set of labels.

        Args:
          path: the `.npz` file.
          state: Keras variables: weights, averages, of optimizers and of generators of noise.
        """
        super().__init__()
        self._path = path
        self._state = list(state)

    def restore(self) -> int:
        """Loads what a stopped run left; returns how many epochs it had done.

        Raises:
          ValueError: if the file is broken.
        """
        if not self._path.exists():
            return 0
        arrays = artifacts.read_arrays(self._path)
        for index, variable in enumerate(self._state):
            variable.assign(arrays[str(index)])
        return int(arrays["epochs"])

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Puts the state of this epoch into the place of the last one's."""
        del logs
        self._path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {
            str(index): keras.ops.convert_to_numpy(variable)
            for index, variable in enumerate(self._state)
        }
        artifacts.write_arrays(self._path, {**arrays, "epochs": np.array(epoch + 1)})

    def remove(self) -> None:
        """Deletes what was kept: the run is complete."""
        self._path.unlink(missing_ok=True)
        if not any(self._path.parent.iterdir()):
            self._path.parent.rmdir()


def logs_of(folder: pathlib.Path) -> pathlib.Path:
    """Where TensorBoard finds a student's logs, below the folder of what it releases."""
    return folder / "logs" / "student"


def run_digest(
    config: StudentConfig, released: PoolLabels, pool: Pool, *, model: Mapping[str, Any]
) -> str:
    """Identifies a run by all that its result depends on, as 16 hexadecimal digits.

    Args:
      config: how the student is trained.
      released: the labels that it learns from.
      pool: public inputs `[num_inputs, *input_shape]`.
      model: what its networks compute, as `models/fingerprint.py` describes it.
    """
    parts: list[Any] = [
        repr(dataclasses.replace(config, model=name_of(config.model))),
        model,
        artifacts.digest_array(released.query_indices),
        artifacts.digest_array(released.labels),
        artifacts.digest_array(pool.inputs),
        pool.dataset.to_dict(),
    ]
    if released.weights is not None:
        parts.append(artifacts.digest_array(released.weights))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def fit_student(
    student: keras.Model,
    batch_at: batches.StepBatch,
    *,
    state: Sequence[Any],
    config: StudentConfig,
    digest: str,
    folder: pathlib.Path | None,
    callbacks: Sequence[keras.callbacks.Callback],
    show_progress: bool,
) -> None:
    """Trains a compiled student for about `config.max_steps` steps, in epochs of about 100.

    Args:
      student: compiled, its optimizers built.
      batch_at: from a step, int64 scalar, to what the student's `train_step` takes.
      state: all variables that the rest of the run depends on.
      config: how it is trained.
      digest: `run_digest`; a stopped run of the same digest goes on from its last epoch.
      folder: TensorBoard's logs go below it, and the state of the last epoch until the run is
        complete; None for neither.
      callbacks: for `fit`.
      show_progress: whether `fit` draws its progress bar.

    Raises:
      TrainingDivergedError: if a loss or weight became NaN or infinite; the state after the last
        good epoch stays in `folder`.
    """
    num_epochs = max(1, round(config.max_steps / STEPS_AN_EPOCH))
    steps_an_epoch = -(-config.max_steps // num_epochs)
    backup, own = None, []
    if folder:
        backup = Backup(folder / UNFINISHED / f"{digest}.npz", state)
        own = [backup, keras.callbacks.TensorBoard(str(logs_of(folder)))]
    kept_in = folder / UNFINISHED / f"{digest}.npz" if folder else None
    first_epoch = backup.restore() if backup else 0
    student.fit(
        batches.dataset_of(
            batch_at,
            first_step=first_epoch * steps_an_epoch,
            end_step=num_epochs * steps_an_epoch,
        ),
        initial_epoch=first_epoch,
        epochs=num_epochs,
        steps_per_epoch=steps_an_epoch,
        callbacks=[StopAtNan(kept_in), *own, *callbacks],
        shuffle=False,  # the batches are shuffled already, by the seed
        verbose=1 if show_progress else 0,
    )
    if backup:
        backup.remove()
