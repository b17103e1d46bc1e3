"""The student gan (PATE-G): an improved GAN that is trained on labels and all images of the pool.

The method is from Salimans et al. 2016 (arXiv 1606.03498), sections 3.1 and 5. Let Z be the sum of
the exponentials of the classifier's logits. Then Z / (1 + Z) is the predicted probability that an
image is real. The generator matches the mean features of the classifier's last hidden layer. The
networks have the paper's architectures: dense for gray images, convolutional for color images. The
height and width of color images must be multiples of 8.

Unlike in the paper, images are augmented if the data set allows it.
"""

from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data import preprocessing
from pate_tf.students.student_kinds import FitOptions, StudentConfig, StudentKind
from pate_tf.students.student_training import (
    AveragedStudent,
    Batch,
    derived_seeds,
    loss_of_replica,
    pixel_range,
    step_seeds,
)

NAME: Final = "improved_gan"  # name of these networks in a `StudentConfig`
LATENT_SIZE = 100
CLASSIFIER_UNITS = (1000, 500, 250, 250, 250)  # dense network
GENERATOR_UNITS = (500, 500)
FEATURES = "features"  # name of the last hidden layer, whose mean output the generator matches
INITIAL_IMAGES = 500  # number of images of the pool from which scales and biases are initialized
EPSILON = 1e-4  # Adam's epsilon, as in the paper's code


@keras.saving.register_keras_serializable("pate_tf")
class WeightNormalized(keras.layers.Layer):
    """A dense layer over channels, or a 3x3 convolution, with a normalized kernel.

    The kernel is a direction times a scale (Salimans and Kingma 2016, "Weight Normalization", arXiv
    1602.07868, section 2). The scale and the bias are initialized from data (section 3). The scale
    is trained only if `train_scale` is true.
    """

    def __init__(
        self,
        units: int,
        *,
        seed: int,
        activation: str | None = None,
        stride: int = 0,
        padding: str = "SAME",
        deviation: float = 0.1,
        train_scale: bool = False,
        **kwargs: Any,
    ) -> None:
        """Initializes a dense layer, or a convolution if `stride` is positive.

        With a smaller initial `deviation`, the direction of the kernel changes faster in training.
        """
        super().__init__(**kwargs)
        self.units = units
        self.stride = stride
        self.padding = padding
        self.activation = keras.activations.get(activation)
        self.initializer = keras.initializers.RandomNormal(stddev=deviation, seed=seed)
        self.train_scale = train_scale

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates the weights: direction and scale of the kernel, and bias."""
        shape = (*((3, 3) if self.stride else ()), input_shape[-1], self.units)
        self.direction = self.add_weight(shape=shape, initializer=self.initializer)
        self.scale = self.add_weight(
            shape=(self.units,), initializer="ones", trainable=self.train_scale
        )
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros")

    def linear(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the layer's values before bias and activation, `[batch, ..., units]`."""
        axes = list(range(len(self.direction.shape) - 1))
        norm = tf.sqrt(tf.reduce_sum(tf.square(self.direction), axis=axes))
        kernel = self.direction * (self.scale / norm)
        if self.stride:
            return tf.nn.conv2d(inputs, kernel, strides=self.stride, padding=self.padding)
        return tf.matmul(inputs, kernel)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns activations `[batch, ..., units]`."""
        return self.activation(self.linear(inputs) + self.bias)


def initialize_from_data(model: keras.Sequential, inputs: tf.Tensor) -> None:
    """Sets scales and biases so that each unit has mean 0 and deviation 1 before its activation.

    Args:
        model: the network.
        inputs: raw inputs from which mean and standard deviation are computed.
    """
    outputs = inputs
    for layer in model.layers:
        if isinstance(layer, WeightNormalized):
            linear = layer.linear(outputs)
            mean, variance = tf.nn.moments(linear, list(range(len(linear.shape) - 1)))
            # A unit that is constant on the inputs has no variance to normalize, so it keeps its
            # scale.
            factor = tf.where(variance > 1e-12, tf.math.rsqrt(variance), 1.0)
            layer.bias.assign(-mean * factor)
            layer.scale.assign(layer.scale * factor)
        outputs = layer(outputs, training=True)


def build_classifier(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the discriminator, which maps raw images to logits `[batch, num_classes]`."""
    layers = keras.layers
    low, high = pixel_range(dataset)
    seeds = iter(derived_seeds(seed, 32))
    body: list[keras.layers.Layer]
    if dataset.input_shape[-1] == 3:
        body = [layers.Dropout(0.2, seed=next(seeds))]
        for units in (64, 128):
            for stride in (1, 1, 2):
                convolution: dict[str, Any] = {"stride": stride, "activation": "leaky_relu"}
                body.append(WeightNormalized(units, seed=next(seeds), **convolution))
            body.append(layers.Dropout(0.5, seed=next(seeds)))
        of_last: list[dict[str, Any]] = [{"stride": 1, "padding": "VALID"}, {}, {}]
        for options in of_last:
            options = {"activation": "leaky_relu", **options}
            body.append(WeightNormalized(128, seed=next(seeds), **options))
        body.append(layers.GlobalAveragePooling2D(name=FEATURES))
    else:
        body = [layers.Flatten(), layers.GaussianNoise(0.3, seed=next(seeds))]
        for number, units in enumerate(CLASSIFIER_UNITS, start=1):
            name = FEATURES if number == len(CLASSIFIER_UNITS) else f"hidden_{number}"
            body += [
                WeightNormalized(units, activation="relu", seed=next(seeds), name=name),
                layers.GaussianNoise(0.5, seed=next(seeds)),
            ]
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            layers.Rescaling(1.0 / (high - low), offset=-low / (high - low)),
            *body,
            WeightNormalized(dataset.num_classes, train_scale=True, seed=next(seeds)),
        ],
        name="classifier",
    )


def build_generator(dataset: Dataset, *, seed: int) -> keras.Sequential:
    """Returns the generator, which maps latent values `[batch, LATENT_SIZE]` to raw images."""
    layers = keras.layers
    low, high = pixel_range(dataset)
    seeds = iter(derived_seeds(seed, 8))
    body: list[keras.layers.Layer] = []

    def add(kind: Any, activation: str, *arguments: Any, **options: Any) -> None:
        initializer = keras.initializers.GlorotUniform(seed=next(seeds))
        body.append(kind(*arguments, kernel_initializer=initializer, **options))
        body.append(layers.BatchNormalization(scale=False))
        body.append(layers.Activation(activation))

    last: dict[str, Any] = {"activation": "sigmoid", "train_scale": True, "deviation": 0.04}
    if dataset.input_shape[-1] == 3:
        height, width, _ = dataset.input_shape
        add(layers.Dense, "relu", height // 8 * (width // 8) * 512)
        body.append(layers.Reshape((height // 8, width // 8, 512)))
        for units in (256, 128):
            add(layers.Conv2DTranspose, "relu", units, 5, strides=2, padding="same")
        body.append(layers.UpSampling2D())
        body.append(WeightNormalized(3, stride=1, seed=next(seeds), **last))
    else:
        for units in GENERATOR_UNITS:
            add(layers.Dense, "softplus", units)
        size = int(np.prod(dataset.input_shape))
        body.append(WeightNormalized(size, seed=next(seeds), **last))
    return keras.Sequential(
        [
            keras.Input((LATENT_SIZE,)),
            *body,
            layers.Reshape(dataset.input_shape),
            layers.Rescaling(high - low, offset=low),
        ],
        name="generator",
    )


class GanStudent(AveragedStudent):
    """A classifier and a generator that train each other.

    A batch is a dictionary: raw inputs `labelled` and `unlabelled`, float32 `[batch,
    *input_shape]`; `labels`, int64 `[batch]`, or weights float32 `[batch, num_classes]`; and
    `latent` and `next_latent`, float32 `[batch, LATENT_SIZE]`.
    """

    losses_shown = ("loss", "labelled_loss", "unlabelled_loss", "generator_loss")

    def __init__(
        self, classifier: keras.Model, generator: keras.Model, dataset: Dataset, **kwargs: Any
    ) -> None:
        """Stores a generator, and a classifier of raw images that has a layer named `FEATURES`."""
        super().__init__(classifier, dataset, **kwargs)
        self.generator = generator
        self.features = keras.Model(classifier.inputs, classifier.get_layer(FEATURES).output)

    def compile(self, learning_rate: float) -> None:
        """Creates an Adam optimizer for each network."""
        optimizers = [
            keras.optimizers.Adam(learning_rate, beta_1=0.5, epsilon=EPSILON) for _ in range(2)
        ]
        super().compile(optimizer=optimizers[0])
        self.generator_optimizer = optimizers[1]
        self.optimizer.build(self.classifier.trainable_weights)
        self.generator_optimizer.build(self.generator.trainable_weights)

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        """Trains the classifier for one step, then the generator for one step."""
        labelled = data["labelled"]
        unlabelled = data["unlabelled"]
        generated = self.generator(data["latent"], training=True)
        with tf.GradientTape() as tape:
            logits = self.classifier(tf.concat([labelled, unlabelled, generated], 0), training=True)
            parts = [tf.shape(part)[0] for part in (labelled, unlabelled, generated)]
            labelled_logits, real_logits, generated_logits = tf.split(logits, parts)
            labelled_loss = tf.reduce_mean(cross_entropy(data["labels"], labelled_logits))
            unlabelled_loss = realness_loss(real_logits, generated_logits)
            loss = labelled_loss + unlabelled_loss
            replica_loss = loss_of_replica(loss)
        weights = self.classifier.trainable_weights
        gradients = tape.gradient(replica_loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))

        real_features = tf.reduce_mean(self.features(unlabelled, training=True), axis=0)
        weights = self.generator.trainable_weights
        with tf.GradientTape() as tape:
            generated = self.generator(data["next_latent"], training=True)
            features = tf.reduce_mean(self.features(generated, training=True), axis=0)
            generator_loss = tf.reduce_mean(tf.square(real_features - features))
            replica_loss = loss_of_replica(generator_loss)
        gradients = tape.gradient(replica_loss, weights)
        self.generator_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        losses = (loss, labelled_loss, unlabelled_loss, generator_loss)
        return self.step_end(data["labels"], labelled_logits, *losses)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy `[batch]` between labels and logits `[batch, num_classes]`."""
    if labels.dtype.is_floating:
        return tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def realness_loss(real_logits: tf.Tensor, generated_logits: tf.Tensor) -> tf.Tensor:
    """Returns the loss for distinguishing real from generated images, a scalar in nats."""
    real = tf.reduce_logsumexp(real_logits, axis=1)
    generated = tf.reduce_logsumexp(generated_logits, axis=1)
    return 0.5 * (tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(generated)))


def fit(
    config: StudentConfig, released: PoolLabels, pool: Pool, options: FitOptions
) -> keras.Model:
    """Trains PATE-G on labels and the whole pool; see `StudentKind.train`."""
    dataset = pool.dataset
    size = config.batch_size
    classifier_seed, generator_seed = derived_seeds(config.seed, 2)
    student = GanStudent(
        build_classifier(dataset, seed=classifier_seed),
        build_generator(dataset, seed=generator_seed),
        dataset,
    )
    student.compile(config.learning_rate)
    first = np.asarray(pool.inputs[:INITIAL_IMAGES], np.float32)
    initialize_from_data(student.classifier, tf.constant(first))

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
        optimizers=[student.generator_optimizer],
        stops_early=False,
    )


def check(config: StudentConfig, dataset: Dataset) -> None:
    """Raises ValueError if the data are not images, or if the user selected a model."""
    if dataset.kind != "image":
        raise ValueError(f"student gan needs images; {dataset.name} is {dataset.kind} data")
    height, width, channels = dataset.input_shape
    if channels == 3 and (height % 8 or width % 8 or min(height, width) < 24):
        raise ValueError(
            f"student gan needs color images with sides of 24, 32, 40, ..., got {height} x {width}"
        )
    pixel_range(dataset)
    if config.model != NAME:
        raise ValueError(f"model: remove {config.model!r}; the student gan has its own networks")


KIND = StudentKind(
    name="gan",
    fit=fit,
    check=check,
    default_model=lambda dataset: NAME,
    max_steps=10_000,
    batch_size=100,
    learning_rate=0.003,
)
