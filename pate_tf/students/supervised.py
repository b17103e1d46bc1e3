"""The plain student: cross-entropy on the noisy labels; the rest of the pool is not used."""

import pathlib
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.models import catalogue
from pate_tf.records import Pool, ReleasedLabels
from pate_tf.students import training
from pate_tf.students.batches import ShuffledItems, step_seeds
from pate_tf.students.config import StudentConfig


def train_supervised(
    config: StudentConfig,
    released: ReleasedLabels,
    pool: Pool,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on the released labels with `fit`.

    Args:
      config: how it is trained.
      released: noisy labels of some of the pool.
      pool: public inputs `[num_inputs, *input_shape]`.
      folder: logs and the state of an unfinished run lie below it; None for neither.
      callbacks: for `fit`.
      show_progress: whether `fit` draws its progress bar.

    Returns:
      A model from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if no query was answered, or the labels do not belong to this pool.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    released.check_pool(pool)
    model = catalogue.build(config.model, pool.dataset, seed=config.seed)
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_weights)
    labelled = ShuffledItems(
        pool.inputs[released.query_indices],
        np.asarray(released.labels),
        batch_size=config.batch_size,
        seed=config.seed,
    )

    def batch_at(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs, labels = labelled.at(step)
        (seed,) = step_seeds(config.seed, step, 1)
        return augmentation.augment(tf.cast(inputs, tf.float32), pool.dataset, seed), labels

    training.fit_student(
        model,
        batch_at,
        state=[*model.variables, *model.optimizer.variables],
        config=config,
        digest=training.run_digest(config, released, pool),
        folder=folder,
        callbacks=callbacks,
        show_progress=show_progress,
    )
    return model
