"""PATE-G, an improved GAN on the labels and on all images of the pool.

Salimans et al. 2016 (arXiv 1606.03498), sections 3.1 and 5: the classifier's k logits also say how
real an image is, by log Z / (1 + Z) with Z the sum of their exponentials; the generator matches the
mean features of its last hidden layer. The networks are the dense ones that the paper has for
gray images, with layer normalization in the place of weight normalization.

Beyond the paper: images are changed in ways that keep their label, where the data set allows it.
"""

from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data import preprocessing
from pate_tf.students.batches import Batch, derived_seeds, pixel_range, step_seeds
from pate_tf.students.kinds import FitOptions, StudentConfig, StudentKind
from pate_tf.students.training import AveragedStudent, replica_share

NAME: Final = "improved_gan"  # what a `StudentConfig` calls these networks
LATENT_SIZE = 100
CLASSIFIER_UNITS = (1000, 500, 250, 250, 250)
GENERATOR_UNITS = (500, 500)
FEATURES = "features"  # the name of the last hidden layer, whose mean the generator matches
EPSILON = 1e-4  # of Adam, as the improved GAN has it


def build_classifier(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the discriminator: raw images to logits `[batch, num_classes]`."""
    layers, initializers = keras.layers, keras.initializers
    low, high = pixel_range(dataset)
    seeds = iter(derived_seeds(seed, 2 * len(CLASSIFIER_UNITS) + 2))
    body = [layers.Flatten(), layers.GaussianNoise(0.3, seed=next(seeds))]
    for number, units in enumerate(CLASSIFIER_UNITS, start=1):
        name = FEATURES if number == len(CLASSIFIER_UNITS) else f"hidden_{number}"
        initializer = initializers.HeNormal(seed=next(seeds))
        body += [
            layers.Dense(units, kernel_initializer=initializer),
            layers.LayerNormalization(),
            layers.Activation("relu", name=name),
            layers.GaussianNoise(0.5, seed=next(seeds)),
        ]
    initializer = initializers.GlorotUniform(seed=next(seeds))
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            layers.Rescaling(1.0 / (high - low), offset=-low / (high - low)),
            *body,
            layers.Dense(dataset.num_classes, kernel_initializer=initializer),
        ],
        name="classifier",
    )


def build_generator(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the generator: latent values `[batch, LATENT_SIZE]` to raw images."""
    layers = keras.layers
    low, high = pixel_range(dataset)
    num_values = int(np.prod(dataset.input_shape))
    *initializers, last = (
        keras.initializers.GlorotUniform(seed=each)
        for each in derived_seeds(seed, len(GENERATOR_UNITS) + 1)
    )
    body: list[keras.layers.Layer] = []
    for units, initializer in zip(GENERATOR_UNITS, initializers, strict=True):
        body += [
            layers.Dense(units, kernel_initializer=initializer),
            layers.BatchNormalization(scale=False),
            layers.Activation("softplus"),
        ]
    return keras.Sequential(
        [
            keras.Input((LATENT_SIZE,)),
            *body,
            layers.Dense(num_values, activation="sigmoid", kernel_initializer=last),
            layers.Reshape(dataset.input_shape),
            layers.Rescaling(high - low, offset=low),
        ],
        name="generator",
    )


class GanStudent(AveragedStudent):
    """A classifier and a generator that train each other.

    A batch is a dictionary: `labelled` and `unlabelled` float32 `[batch, *input_shape]` raw,
    `labels` int64 `[batch]` or weights float32 `[batch, num_classes]`, `latent` and `next_latent`
    float32 `[batch, LATENT_SIZE]`.
    """

    losses_shown = ("loss", "labelled_loss", "unlabelled_loss", "generator_loss")

    def __init__(
        self, classifier: keras.Model, generator: keras.Model, dataset: Dataset, **kwargs: Any
    ) -> None:
        """Takes over a classifier of raw images with a layer `FEATURES`, and a generator."""
        super().__init__(classifier, dataset, **kwargs)
        self.generator = generator
        self.features = keras.Model(classifier.inputs, classifier.get_layer(FEATURES).output)

    def compile(self, learning_rate: float) -> None:
        """Gives each network its Adam."""
        optimizers = [
            keras.optimizers.Adam(learning_rate, beta_1=0.5, epsilon=EPSILON) for _ in range(2)
        ]
        super().compile(optimizer=optimizers[0])
        self.generator_optimizer = optimizers[1]
        self.optimizer.build(self.classifier.trainable_weights)
        self.generator_optimizer.build(self.generator.trainable_weights)

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
        return self.step_end(loss, labelled_loss, unlabelled_loss, generator_loss)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy `[batch]` of logits `[batch, num_classes]` with labels or weights."""
    if labels.dtype.is_floating:
        return tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def realness_loss(real_logits: tf.Tensor, generated_logits: tf.Tensor) -> tf.Tensor:
    """How badly logits `[batch, num_classes]` tell real from generated images, a scalar in nats."""
    real = tf.reduce_logsumexp(real_logits, axis=1)
    generated = tf.reduce_logsumexp(generated_logits, axis=1)
    return 0.5 * (tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(generated)))


def fit(
    config: StudentConfig, released: PoolLabels, pool: Pool, options: FitOptions
) -> keras.Model:
    """Trains PATE-G on labels and the whole pool, with networks of its own; raises as `train`."""
    dataset, size = pool.dataset, config.batch_size
    classifier_seed, generator_seed = derived_seeds(config.seed, 2)
    student = GanStudent(
        build_classifier(dataset, seed=classifier_seed),
        build_generator(dataset, seed=generator_seed),
        dataset,
    )
    student.compile(config.learning_rate)

    def change(step: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, others: tf.Tensor) -> Batch:
        labelled_seed, unlabelled_seed, *latent_seeds = step_seeds(config.seed, step, 4)
        latent, next_latent = (
            tf.random.stateless_uniform([size, LATENT_SIZE], seed) for seed in latent_seeds
        )
        return {
            "labelled": preprocessing.augment(images, dataset, labelled_seed),
            "labels": labels,
            "unlabelled": preprocessing.augment(others, dataset, unlabelled_seed),
            "latent": latent,
            "next_latent": next_latent,
        }

    return student.train_on_pool(
        change,
        config,
        released,
        pool,
        options,
        num_unlabelled=size,
        optimizers=[student.optimizer, student.generator_optimizer],
    )


def check(config: StudentConfig, dataset: Dataset) -> None:
    """Raises ValueError unless the data are images and no other model is named."""
    if dataset.kind != "image":
        raise ValueError(f"student gan: expected images, got {dataset.kind} data")
    pixel_range(dataset)
    if config.model != NAME:
        raise ValueError(f"model: expected none for student gan, got {config.model!r}")


KIND = StudentKind(
    name="gan",
    fit=fit,
    check=check,
    default_model=lambda dataset: NAME,
    max_steps=10_000,
    batch_size=100,
    learning_rate=0.003,
)
