"""PATE-G: a classifier that learns beside a generator of images (improved GAN).

Salimans et al. 2016 (arXiv 1606.03498), sections 3.1 and 5: the classifier's k logits also say
how real an image is, by log Z / (1 + Z) with Z the sum of their exponentials; the generator
matches the mean features of its last hidden layer.

Beyond the paper: images are changed in ways that keep their label, where the data set allows it.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.data import augmentation
from pate_tf.models import fingerprint
from pate_tf.students import gan_networks, training
from pate_tf.students.adam import BiasCorrectedAdam
from pate_tf.students.averaging import AveragedStudent, replica_share
from pate_tf.students.batches import Batch, ShuffledItems, derived_seeds, step_seeds
from pate_tf.students.config import StudentConfig
from pate_tf.students.sample_images import SampleImages
from pate_tf.students.weight_normalization import initialize_from_data
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool, PoolLabels

BETA_1, EPSILON = 0.5, 1e-4
INITIAL_IMAGES = 500  # that the weight-normalised layers are set from


@keras.saving.register_keras_serializable("pate_tf")
class GanStudent(AveragedStudent):
    """A classifier and a generator that train each other.

    A batch is a dictionary: `labelled` and `unlabelled` float32 `[batch, *input_shape]` raw,
    `labels` int64 `[batch]` or weights float32 `[batch, num_classes]`, `latent` and `next_latent`
    float32 `[batch, LATENT_SIZE]`.
    """

    def __init__(
        self, classifier: keras.Model, generator: keras.Model, dataset: Dataset, **kwargs: Any
    ) -> None:
        """Takes over both networks.

        Args:
          classifier: raw images to logits; its last hidden layer is called "features".
          generator: latent values to raw images.
          dataset: what they are for.
          **kwargs: of `keras.Model`.
        """
        super().__init__(classifier, dataset, **kwargs)
        self.generator = generator
        self.features = keras.Model(
            classifier.inputs, classifier.get_layer(gan_networks.FEATURES).output
        )
        self.trackers = [
            keras.metrics.Mean(name)
            for name in ("loss", "labelled_loss", "unlabelled_loss", "generator_loss")
        ]

    def compile(self, learning_rate: float) -> None:
        """Gives each network its Adam.

        Args:
          learning_rate: of both.
        """
        super().compile(optimizer=_adam(learning_rate))
        self.generator_optimizer = _adam(learning_rate)
        self.optimizer.build(self.classifier.trainable_weights)
        self.generator_optimizer.build(self.generator.trainable_weights)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says."""
        self.compile(**config)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of `compile`."""
        return {"learning_rate": float(self.optimizer.learning_rate)}

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        """One step of the classifier, then one of the generator."""
        labelled, unlabelled = data["labelled"], data["unlabelled"]
        generated = self.generator(data["latent"], training=True)
        with tf.GradientTape() as tape:
            logits = self.classifier(tf.concat([labelled, unlabelled, generated], 0), training=True)
            parts = [tf.shape(part)[0] for part in (labelled, unlabelled, generated)]
            labelled_logits, real_logits, generated_logits = tf.split(logits, parts)
            labelled_loss = tf.reduce_mean(cross_entropy(data["labels"], labelled_logits))
            unlabelled_loss = realness_loss(real_logits, generated_logits)
            loss = labelled_loss + unlabelled_loss
            share = replica_share(loss)
        weights = self.classifier.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(share, weights), weights, strict=True))

        real_features = tf.reduce_mean(self.features(unlabelled, training=True), axis=0)
        weights = self.generator.trainable_weights
        with tf.GradientTape() as tape:
            generated = self.generator(data["next_latent"], training=True)
            features = tf.reduce_mean(self.features(generated, training=True), axis=0)
            generator_loss = tf.reduce_mean(tf.square(real_features - features))
            share = replica_share(generator_loss)
        gradients = tape.gradient(share, weights)
        self.generator_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.update_average()
        values = (loss, labelled_loss, unlabelled_loss, generator_loss)
        for tracker, value in zip(self.trackers, values, strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` rebuilds the student from, as JSON values."""
        generator = keras.saving.serialize_keras_object(self.generator)
        return {**super().get_config(), "generator": generator}


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy `[batch]` of logits `[batch, num_classes]`.

    Args:
      labels: int64 `[batch]`, or weights of the classes, float32 `[batch, num_classes]`.
      logits: `[batch, num_classes]`.
    """
    if labels.dtype.is_floating:
        return tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def realness_loss(real_logits: tf.Tensor, generated_logits: tf.Tensor) -> tf.Tensor:
    """How badly logits `[batch, num_classes]` tell real from generated images, a scalar in nats."""
    real = tf.reduce_logsumexp(real_logits, axis=1)
    generated = tf.reduce_logsumexp(generated_logits, axis=1)
    return 0.5 * (tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(generated)))


def _adam(learning_rate: float) -> BiasCorrectedAdam:
    return BiasCorrectedAdam(learning_rate, beta_1=BETA_1, epsilon=EPSILON)


def train_gan(
    config: StudentConfig,
    released: PoolLabels,
    pool: Pool,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> keras.Model:
    """Trains PATE-G on labels and the whole pool, as a `Trainer` does (`students/catalogue.py`).

    The networks are this student's own: the configuration's model is not used.

    Returns:
      The classifier with averaged weights, from raw images to logits `[batch, num_classes]`.

    Raises:
      ValueError: if there is no label, the labels do not belong to this pool, or there are no
        networks for such inputs.
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    dataset = pool.dataset
    released.check_pool(pool)
    gan_networks.check_images(dataset)
    classifier_seed, generator_seed, order_seed, labels_seed, images_seed = derived_seeds(
        config.seed, 5
    )
    student = GanStudent(
        gan_networks.build_classifier(dataset, seed=classifier_seed),
        gan_networks.build_generator(dataset, seed=generator_seed),
        dataset,
    )
    student.compile(config.learning_rate)
    size = config.batch_size
    unlabelled = ShuffledItems(pool.inputs, batch_size=size, seed=order_seed)
    labelled = ShuffledItems(
        pool.inputs[released.query_indices],
        released.targets,
        batch_size=size,
        seed=labels_seed,
    )
    first = np.asarray(pool.inputs[:INITIAL_IMAGES], np.float32)
    initialize_from_data(student.classifier, tf.constant(first))

    def batch_at(step: tf.Tensor) -> Batch:
        images, labels = labelled.at(step)
        (others,) = unlabelled.at(step)
        labelled_seed, unlabelled_seed, *latent_seeds = step_seeds(config.seed, step, 4)
        latent, next_latent = (
            tf.random.stateless_uniform([size, gan_networks.LATENT_SIZE], seed)
            for seed in latent_seeds
        )
        images, others = tf.cast(images, tf.float32), tf.cast(others, tf.float32)
        return {
            "labelled": augmentation.augment(images, dataset, labelled_seed),
            "labels": labels,
            "unlabelled": augmentation.augment(others, dataset, unlabelled_seed),
            "latent": latent,
            "next_latent": next_latent,
        }

    networks = {
        "classifier": fingerprint.settings_of(student.classifier),
        "generator": fingerprint.settings_of(student.generator),
    }
    samples = [SampleImages(training.logs_of(folder), seed=images_seed)] if folder else []
    training.fit_student(
        student,
        batch_at,
        state=[
            *student.variables,
            *student.optimizer.variables,
            *student.generator_optimizer.variables,
        ],
        config=config,
        digest=training.run_digest(config, released, pool, model=networks),
        folder=folder,
        callbacks=[*samples, *callbacks],
        show_progress=show_progress,
    )
    return student.averaged_classifier()
