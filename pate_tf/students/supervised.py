"""The plain student: cross-entropy on the noisy labels; the rest of the pool is not used.

`fit_to_targets` is how every Keras model here learns from labelled inputs alone.
"""

import pathlib
from collections.abc import Sequence

import keras
import numpy.typing as npt
import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.models import catalogue, fingerprint
from pate_tf.students import training
from pate_tf.students.batches import ShuffledItems, step_seeds
from pate_tf.students.config import StudentConfig
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool, PoolLabels


def fit_to_targets(
    model: keras.Model,
    config: StudentConfig,
    dataset: Dataset,
    *,
    inputs: npt.NDArray,
    targets: npt.NDArray,
    loss: keras.losses.Loss | None = None,
    digest: str = "",
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> None:
    """Trains a model with `fit`, by Adam along a cosine, on inputs changed as the data set allows.

    Args:
      model: from raw inputs `[batch, *input_shape]`.
      config: its steps, batch size, learning rate and seed.
      dataset: says which changes of an input leave its target as it is.
      inputs: `[num_examples, *input_shape]`.
      targets: `[num_examples, ...]`, as the loss takes them.
      loss: None for the model's own `compute_loss`.
      digest: identifies the run in `folder`.
      folder: logs and the state of an unfinished run lie below it; None for neither.
      callbacks: for `fit`.
      show_progress: whether `fit` draws its progress bar.

    Raises:
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss=loss,
        metrics=["accuracy"] if loss else None,
    )
    model.optimizer.build(model.trainable_weights)
    labelled = ShuffledItems(inputs, targets, batch_size=config.batch_size, seed=config.seed)

    def batch_at(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn, drawn_targets = labelled.at(step)
        (seed,) = step_seeds(config.seed, step, 1)
        changed = augmentation.augment(tf.cast(drawn, tf.float32), dataset, seed)
        return changed, drawn_targets

    training.fit_student(
        model,
        batch_at,
        state=[*model.variables, *model.optimizer.variables],
        config=config,
        digest=digest,
        folder=folder,
        callbacks=callbacks,
        show_progress=show_progress,
    )


def train_supervised(
    config: StudentConfig,
    released: PoolLabels,
    pool: Pool,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on released labels, as a `Trainer` does (`students/catalogue.py`).

    On their weights, where they have some.

    Returns:
      A model from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if there is no label, or the labels do not belong to this pool.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    released.check_pool(pool)
    model = catalogue.build(config.model, pool.dataset, seed=config.seed)
    fit_to_targets(
        model,
        config,
        pool.dataset,
        inputs=pool.inputs[released.query_indices],
        targets=released.targets,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if released.weights is None
        else keras.losses.CategoricalCrossentropy(from_logits=True),
        digest=training.run_digest(
            config,
            released,
            pool,
            model=fingerprint.architecture_of(config.model, pool.dataset),
        ),
        folder=folder,
        callbacks=callbacks,
        show_progress=show_progress,
    )
    return model
