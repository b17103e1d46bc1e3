"""The plain student: cross-entropy on the noisy labels; the rest of the pool is not used.

`fit_to_targets` is how every Keras model here learns from labelled inputs alone.
"""

import pathlib
from collections.abc import Sequence

import keras
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data import augmentation
from pate_tf.models import catalogue, fingerprint
from pate_tf.students import training
from pate_tf.students.batches import ShuffledItems, step_seeds
from pate_tf.students.config import StudentConfig


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


# The student of a probability vector (Papernot et al. 2017, appendix B.1; Hinton et al. 2015).
#
# NOT PRIVATE. What the ledger charges for covers one label a query, not the teachers' averaged
# probabilities; no mechanism here releases those. This student is for comparison and is never
# exported.


class SoftCrossEntropy(keras.losses.Loss):
    """Cross-entropy of softmax(logits / temperature) with given probabilities."""

    def __init__(self, temperature: float) -> None:
        """Takes the temperature that the probabilities were stated at."""
        super().__init__()
        self.temperature = temperature

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the losses `[batch]` of logits `y_pred`, `[batch, num_classes]` as `y_true`."""
        return tf.nn.softmax_cross_entropy_with_logits(y_true, y_pred / self.temperature)


def train_distilled(
    config: StudentConfig,
    pool: Pool,
    *,
    query_indices: IntArray,
    probabilities: npt.NDArray,
    temperature: float,
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on probabilities of classes.

    Args:
      config: how it is trained.
      pool: public inputs `[num_inputs, *input_shape]`.
      query_indices: int64 `[num_queries]`, positions in the pool.
      probabilities: `[num_queries, num_classes]`.
      temperature: that they were stated at.
      show_progress: whether `fit` draws its progress bar.

    Returns:
      A model from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if the probabilities have another shape.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    if probabilities.shape != (len(query_indices), pool.dataset.num_classes):
        raise ValueError(
            f"probabilities: expected [{len(query_indices)}, {pool.dataset.num_classes}], got "
            f"{list(probabilities.shape)}"
        )
    model = catalogue.build(config.model, pool.dataset, seed=config.seed)
    fit_to_targets(
        model,
        config,
        pool.dataset,
        inputs=pool.inputs[query_indices],
        targets=probabilities,
        loss=SoftCrossEntropy(temperature),
        show_progress=show_progress,
    )
    return model
