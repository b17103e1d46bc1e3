"""PATE-G, an improved GAN on the labels and on all images of the pool.

Salimans et al. 2016 (arXiv 1606.03498), sections 3.1 and 5: the classifier's k logits also say how
real an image is, by log Z / (1 + Z) with Z the sum of their exponentials; the generator matches the
mean features of its last hidden layer.

Beyond the paper: images are changed in ways that keep their label, where the data set allows it.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data import augmentation
from pate_tf.students import training
from pate_tf.students.batches import Batch, derived_seeds, pixel_range, step_seeds
from pate_tf.students.kinds import FitOptions, StudentConfig, StudentKind
from pate_tf.students.training import AveragedStudent, replica_share


class BiasCorrectedAdam(keras.optimizers.Adam):
    """Adam that divides by sqrt(v_hat + epsilon^2), v_hat being corrected for its bias.

    Keras divides by sqrt(v) + epsilon before the correction, which is epsilon / sqrt(1 - beta_2^t)
    after it: 32 times epsilon in the first step. Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1,
    correct first; the improved GAN adds epsilon^2 = 1e-8 under the square root.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one variable."""
        ops = keras.ops
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        index = self._get_variable_index(variable)
        moment, velocity = self._momentums[index], self._velocities[index]
        self.assign_add(moment, (gradient - moment) * (1.0 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1.0 - self.beta_2))
        corrected_moment = moment / (1.0 - ops.power(self.beta_1, step))
        corrected_velocity = velocity / (1.0 - ops.power(self.beta_2, step))
        root = ops.sqrt(corrected_velocity + self.epsilon**2)
        self.assign_sub(variable, rate * corrected_moment / root)


TABLE_SIZE = 2**20  # 4 MiB; a batch of 300 takes a quarter of it in the widest layer


@keras.saving.register_keras_serializable("pate_tf")
class TableNoise(keras.layers.Layer):
    """Adds Gaussian noise in training, like `keras.layers.GaussianNoise`, from a table.

    Drawing fresh normal values takes a third of a training step of the improved GAN's dense
    networks. Here a batch takes consecutive values of a fixed table of 2^20 draws, from a place
    that is drawn each time. This has nothing to do with privacy noise.
    """

    def __init__(self, stddev: float, *, seed: int, **kwargs: Any) -> None:
        """Draws the table; the seed fixes it, and the places."""
        super().__init__(**kwargs)
        self.stddev = stddev
        self.seed = seed
        self._places = keras.random.SeedGenerator(seed)
        self._table = np.random.default_rng(seed).normal(0.0, stddev, TABLE_SIZE)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the inputs, in training with noise."""
        if not training:
            return inputs
        table = tf.constant(self._table, inputs.dtype)
        needed = tf.size(inputs)
        # Batches larger than the table repeat its values.
        table = tf.cond(
            needed < TABLE_SIZE, lambda: table, lambda: tf.tile(table, [needed // TABLE_SIZE + 1])
        )
        place = keras.random.uniform([], seed=self._places)
        start = tf.cast(place * tf.cast(tf.size(table) - needed, tf.float32), tf.int32)
        noise = tf.slice(table, [tf.minimum(start, tf.size(table) - needed)], [needed])
        return inputs + tf.reshape(noise, tf.shape(inputs))


SMALLEST_DEVIATION = 1e-6


@keras.saving.register_keras_serializable("pate_tf")
class WeightNormalizedDense(keras.layers.Layer):
    """A dense layer whose kernel is a direction times a scale.

    Salimans and Kingma, "Weight Normalization", 2016 (arXiv 1602.07868): the parameters (section 2)
    and the initialisation from data (section 3). From `[batch, ..., channels]` to `[batch, ...,
    units]`.
    """

    kernel_size: tuple[int, ...] = ()

    def __init__(
        self,
        units: int,
        *,
        seed: int,
        activation: str | None = None,
        train_scale: bool = False,
        stddev: float = 0.1,
        **kwargs: Any,
    ) -> None:
        """Takes the number of outputs a position, and the seed of the initial directions.

        The scales are trained, or stay as the data set them. The larger the standard deviation of
        the initial directions, the slower they turn.
        """
        super().__init__(**kwargs)
        self.units = units
        self.seed = seed
        self.activation = keras.activations.get(activation)
        self.train_scale = train_scale
        self.stddev = stddev

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates direction, scale and bias."""
        self.direction = self.add_weight(
            name="direction",
            shape=(*self.kernel_size, input_shape[-1], self.units),
            initializer=keras.initializers.RandomNormal(stddev=self.stddev, seed=self.seed),
        )
        self.scale = self.add_weight(
            name="scale", shape=(self.units,), initializer="ones", trainable=self.train_scale
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the activations."""
        return self.activation(self._linear(inputs) + self.bias)

    def initialize_from(self, inputs: tf.Tensor) -> None:
        """Sets scale and bias so that each unit has mean 0 and deviation 1 before activation."""
        outputs = self._linear(inputs)
        mean, variance = tf.nn.moments(outputs, list(range(len(outputs.shape) - 1)))
        deviation = tf.sqrt(variance)
        # A unit that the data leaves constant keeps its scale.
        factor = tf.where(deviation > SMALLEST_DEVIATION, 1.0 / deviation, 1.0)
        self.bias.assign(-mean * factor)
        self.scale.assign(self.scale * factor)

    def _linear(self, inputs: tf.Tensor) -> tf.Tensor:
        axes = list(range(len(self.direction.shape) - 1))
        norm = tf.sqrt(tf.reduce_sum(tf.square(self.direction), axis=axes))
        return self._apply(inputs, self.direction * (self.scale / norm))

    def _apply(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inputs, kernel)


@keras.saving.register_keras_serializable("pate_tf")
class WeightNormalizedConvolution(WeightNormalizedDense):
    """A 3x3 convolution of `[batch, height, width, channels]` with such a kernel."""

    kernel_size = (3, 3)

    def __init__(
        self, units: int, *, stride: int = 1, padding: str = "SAME", **kwargs: Any
    ) -> None:
        """Takes pixels from one position to the next, and "SAME" or "VALID" for the padding."""
        super().__init__(units, **kwargs)
        self.stride = stride
        self.padding = padding

    def _apply(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(inputs, kernel, strides=self.stride, padding=self.padding)


def initialize_from_data(model: keras.Sequential, inputs: tf.Tensor) -> None:
    """Sets a model's weight-normalised layers, first to last, from some hundred raw inputs."""
    outputs = inputs
    for layer in model.layers:
        if isinstance(layer, WeightNormalizedDense):
            layer.initialize_from(outputs)
        outputs = layer(outputs, training=True)


# Dense networks for gray images, the convolutional pair for colour images of 32x32. The generator
# ends in raw pixel values, and the classifier begins with them.

layers = keras.layers
NAME = "improved_gan"  # what a `StudentConfig` calls these networks
LATENT_SIZE = 100
# The hidden layers of the dense networks.
CLASSIFIER_UNITS = (1000, 500, 250, 250, 250)
GENERATOR_UNITS = (500, 500)
GENERATOR_DEVIATION = 0.04  # of the last layer: shorter directions turn faster
FEATURES = "features"  # the name of the last hidden layer, whose mean the generator matches


def check_images(dataset: Dataset) -> None:
    """Raises ValueError unless a data set holds gray images, or colour images of 32x32."""
    gray = dataset.kind == "image" and dataset.input_shape[-1] == 1
    if not gray and dataset.input_shape != (32, 32, 3):
        raise ValueError(
            f"student gan: expected gray images or [32, 32, 3], got {dataset.kind} "
            f"{list(dataset.input_shape)} of {dataset.name}"
        )
    pixel_range(dataset)


def build_classifier(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the discriminator: raw images to logits `[batch, num_classes]`."""
    low, high = pixel_range(dataset)
    seeds = iter(derived_seeds(seed, 32))
    body = _convolutions(seeds) if dataset.input_shape[-1] == 3 else _dense(seeds)
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            layers.Rescaling(1.0 / (high - low), offset=-low / (high - low)),
            *body,
            WeightNormalizedDense(dataset.num_classes, train_scale=True, seed=next(seeds)),
        ],
        name="classifier",
    )


def _dense(seeds: Iterator[int]) -> list[keras.layers.Layer]:
    body = [layers.Flatten(), TableNoise(0.3, seed=next(seeds))]
    for number, units in enumerate(CLASSIFIER_UNITS, start=1):
        name = FEATURES if number == len(CLASSIFIER_UNITS) else f"hidden_{number}"
        body += [
            WeightNormalizedDense(units, activation="relu", seed=next(seeds), name=name),
            TableNoise(0.5, seed=next(seeds)),
        ]
    return body


def _convolutions(seeds: Iterator[int]) -> list[keras.layers.Layer]:
    def layer(kind: Any, units: int, **options: Any) -> keras.layers.Layer:
        return kind(units, activation="leaky_relu", seed=next(seeds), **options)

    convolution = functools.partial(layer, WeightNormalizedConvolution)
    dense = functools.partial(layer, WeightNormalizedDense)  # over channels: a 1x1 convolution

    return [
        layers.Dropout(0.2, seed=next(seeds)),
        convolution(64),
        convolution(64),
        convolution(64, stride=2),
        layers.Dropout(0.5, seed=next(seeds)),
        convolution(128),
        convolution(128),
        convolution(128, stride=2),
        layers.Dropout(0.5, seed=next(seeds)),
        convolution(128, padding="VALID"),
        dense(128),
        dense(128),
        layers.GlobalAveragePooling2D(name=FEATURES),
    ]


def build_generator(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the generator: latent values `[batch, LATENT_SIZE]` to raw images."""
    low, high = pixel_range(dataset)
    seeds = iter(derived_seeds(seed, 8))
    last: dict[str, Any] = {
        "activation": "sigmoid",
        "train_scale": True,
        "stddev": GENERATOR_DEVIATION,
    }
    if dataset.input_shape[-1] == 3:
        body = _deconvolutions(seeds)
        body.append(WeightNormalizedConvolution(3, seed=next(seeds), **last))
    else:
        height, width, _ = dataset.input_shape
        body = []
        for units in GENERATOR_UNITS:
            dense = layers.Dense(units, kernel_initializer=_initializer(seeds))
            body += _normalized(dense, "softplus")
        body.append(WeightNormalizedDense(height * width, seed=next(seeds), **last))
    return keras.Sequential(
        [
            keras.Input((LATENT_SIZE,)),
            *body,
            layers.Reshape(dataset.input_shape),
            layers.Rescaling(high - low, offset=low),
        ],
        name="generator",
    )


def _deconvolutions(seeds: Iterator[int]) -> list[keras.layers.Layer]:
    def doubling(units: int) -> keras.layers.Layer:
        return layers.Conv2DTranspose(
            units, 5, strides=2, padding="same", kernel_initializer=_initializer(seeds)
        )

    return [
        *_normalized(layers.Dense(4 * 4 * 512, kernel_initializer=_initializer(seeds)), "relu"),
        layers.Reshape((4, 4, 512)),
        *_normalized(doubling(256), "relu"),
        *_normalized(doubling(128), "relu"),
        layers.UpSampling2D(),
    ]


def _normalized(layer: keras.layers.Layer, activation: str) -> list[keras.layers.Layer]:
    return [layer, layers.BatchNormalization(scale=False), layers.Activation(activation)]


def _initializer(seeds: Iterator[int]) -> keras.initializers.Initializer:
    return keras.initializers.GlorotUniform(seed=next(seeds))


EPOCHS_BETWEEN = 5
SIDE = 10


class SampleImages(keras.callbacks.Callback):
    """Writes a grid of images every few epochs, always from the same latent values."""

    def __init__(self, logs: pathlib.Path, *, seed: int) -> None:
        """Takes the folder of the student's logs; the seed fixes the latent values."""
        super().__init__()
        self._logs = logs
        self._latent = tf.random.stateless_uniform([SIDE * SIDE, LATENT_SIZE], [seed, 0])

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Generates and writes one grid."""
        del logs
        if (epoch + 1) % EPOCHS_BETWEEN and epoch + 1 < self.params["epochs"]:
            return
        writer = tf.summary.create_file_writer(str(self._logs))
        with writer.as_default():
            tf.summary.image("generated", self.grid(), step=epoch)
        writer.close()

    def grid(self) -> tf.Tensor:
        """Returns one picture `[1, SIDE * height, SIDE * width, channels]` from 0 to 1."""
        low, high = pixel_range(self.model.dataset)
        # The batch's own statistics, as in training.
        images = self.model.generator(self._latent, training=True)
        height, width, channels = images.shape[1:]
        rows = tf.reshape(images, [SIDE, SIDE, height, width, channels])
        picture = tf.transpose(rows, [0, 2, 1, 3, 4])
        picture = tf.reshape(picture, [1, SIDE * height, SIDE * width, channels])
        return (picture - low) / (high - low)


BETA_1, EPSILON = 0.5, 1e-4
INITIAL_IMAGES = 500  # that the weight-normalised layers are set from


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
        adam = functools.partial(BiasCorrectedAdam, beta_1=BETA_1, epsilon=EPSILON)
        super().compile(optimizer=adam(learning_rate))
        self.generator_optimizer = adam(learning_rate)
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
    dataset = pool.dataset
    check_images(dataset)
    classifier_seed, generator_seed, order_seed, labels_seed, images_seed = derived_seeds(
        config.seed, 5
    )
    student = GanStudent(
        build_classifier(dataset, seed=classifier_seed),
        build_generator(dataset, seed=generator_seed),
        dataset,
    )
    student.compile(config.learning_rate)
    size = config.batch_size
    first = np.asarray(pool.inputs[:INITIAL_IMAGES], np.float32)
    initialize_from_data(student.classifier, tf.constant(first))

    def change(step: tf.Tensor, images: tf.Tensor, labels: tf.Tensor, others: tf.Tensor) -> Batch:
        labelled_seed, unlabelled_seed, *latent_seeds = step_seeds(config.seed, step, 4)
        latent, next_latent = (
            tf.random.stateless_uniform([size, LATENT_SIZE], seed) for seed in latent_seeds
        )
        return {
            "labelled": augmentation.augment(images, dataset, labelled_seed),
            "labels": labels,
            "unlabelled": augmentation.augment(others, dataset, unlabelled_seed),
            "latent": latent,
            "next_latent": next_latent,
        }

    if options.folder:
        samples = SampleImages(training.logs_of(options.folder), seed=images_seed)
        options = dataclasses.replace(options, callbacks=[samples, *options.callbacks])
    return student.train_on_pool(
        change,
        config,
        released,
        pool,
        options,
        seeds=(order_seed, labels_seed),
        num_unlabelled=size,
        optimizers=[student.optimizer, student.generator_optimizer],
        has_model=False,
    )


def check(config: StudentConfig, dataset: Dataset) -> None:
    """Raises ValueError unless there are networks for such images and no other model is named."""
    check_images(dataset)
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
