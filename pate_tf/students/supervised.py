"""The plain student: cross-entropy on the noisy labels; the rest of the pool is not used."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.models import catalogue
from pate_tf.records import Pool, ReleasedLabels
from pate_tf.students.config import StudentConfig

STEPS_AN_EPOCH = 100


def train_supervised(
    config: StudentConfig,
    released: ReleasedLabels,
    pool: Pool,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> keras.Model:
    """Trains a Keras model on the released labels with `fit`.

    Args:
      config: how it is trained.
      released: noisy labels of some of the pool.
      pool: public inputs `[num_inputs, *input_shape]`.
      callbacks: for `fit`.
      show_progress: whether `fit` draws its progress bar.

    Returns:
      A model from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if no query was answered, or the labels do not belong to this pool.
    """
    released.check_pool(pool)
    model = catalogue.build(config.model, pool.dataset, seed=config.seed)
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, config.max_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    num_epochs = max(1, round(config.max_steps / STEPS_AN_EPOCH))
    model.fit(
        _batches(config, released, pool),
        epochs=num_epochs,
        steps_per_epoch=-(-config.max_steps // num_epochs),
        callbacks=list(callbacks),
        shuffle=False,  # the pipeline shuffles, by the seed
        verbose=1 if show_progress else 0,
    )
    return model


def _batches(config: StudentConfig, released: ReleasedLabels, pool: Pool) -> tf.data.Dataset:
    inputs = pool.inputs[released.query_indices]
    labels = np.asarray(released.labels)

    def augmented(step: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple:
        images, targets = batch
        seed = tf.stack([tf.constant(config.seed, tf.int64), step])
        return augmentation.augment(tf.cast(images, tf.float32), pool.dataset, seed), targets

    return (
        tf.data.Dataset.from_tensor_slices((inputs, labels))
        .shuffle(len(labels), seed=config.seed)
        .repeat()
        .batch(config.batch_size)
        .enumerate()
        .map(augmented)
        .prefetch(tf.data.AUTOTUNE)
    )
