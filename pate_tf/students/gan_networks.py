"""Generator and classifier of the improved GAN (Salimans et al. 2016, arXiv 1606.03498).

Dense networks for gray images, the convolutional pair for colour images of 32x32. Both speak raw
pixel values: the generator ends in them and the classifier begins with them.
"""

from collections.abc import Iterator

import keras

from pate_tf.students.batches import derived_seeds
from pate_tf.students.pixels import pixel_range
from pate_tf.students.table_noise import TableNoise
from pate_tf.students.weight_normalization import (
    WeightNormalizedConvolution,
    WeightNormalizedDense,
)
from pate_tf.values.dataset import Dataset

layers = keras.layers

NAME = "improved_gan"  # what a `StudentConfig` calls these networks
LATENT_SIZE = 100
# The hidden layers of the dense networks.
CLASSIFIER_UNITS = (1000, 500, 250, 250, 250)
GENERATOR_UNITS = (500, 500)
GENERATOR_DEVIATION = 0.04  # of the last layer: shorter directions turn faster
FEATURES = "features"  # the name of the last hidden layer, whose mean the generator matches


def check_images(dataset: Dataset) -> None:
    """Checks that there are networks for a data set.

    Raises:
      ValueError: if it holds neither gray images nor colour images of 32x32.
    """
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
    def convolution(units: int, stride: int = 1, padding: str = "SAME") -> keras.layers.Layer:
        return WeightNormalizedConvolution(
            units, stride=stride, padding=padding, activation="leaky_relu", seed=next(seeds)
        )

    def dense(units: int) -> keras.layers.Layer:
        # A dense layer over channels is a 1x1 convolution.
        return WeightNormalizedDense(units, activation="leaky_relu", seed=next(seeds))

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
    if dataset.input_shape[-1] == 3:
        body = _deconvolutions(seeds)
    else:
        height, width, _ = dataset.input_shape
        body = [
            *(
                layer
                for units in GENERATOR_UNITS
                for layer in _normalized(
                    layers.Dense(units, kernel_initializer=_initializer(seeds)), "softplus"
                )
            ),
            WeightNormalizedDense(
                height * width,
                activation="sigmoid",
                train_scale=True,
                stddev=GENERATOR_DEVIATION,
                seed=next(seeds),
            ),
        ]
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
        WeightNormalizedConvolution(
            3,
            activation="sigmoid",
            train_scale=True,
            stddev=GENERATOR_DEVIATION,
            seed=next(seeds),
        ),
    ]


def _normalized(layer: keras.layers.Layer, activation: str) -> list[keras.layers.Layer]:
    return [layer, layers.BatchNormalization(scale=False), layers.Activation(activation)]


def _initializer(seeds: Iterator[int]) -> keras.initializers.Initializer:
    return keras.initializers.GlorotUniform(seed=next(seeds))
