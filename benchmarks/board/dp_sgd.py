"""DP-SGD (Abadi et al. 2016) for small networks.

It uses the known improvements: tanh (Papernot et al. 2021, arXiv 2007.14191), large Poisson batches
or full batches, almost normalized gradients (a small clipping length), momentum, the mean of the
weights of the later steps, and a start from weights that were trained on public labels. Several
augmented copies of a record are not used, because each copy costs as much time as the first.

This is a baseline for comparison, not a tool: its noise is floating-point and has a seed. The
gradient of an example for the kernel of a dense layer or a convolution is the product of the
layer's input and the derivative of the loss by the layer's output. One backward pass therefore
gives the norms of all examples, and one more product gives the sum of clipped gradients.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.noisy_training import noise_for
from pate_tf.core.checks import IntArray

layers = keras.layers
CHUNK = 2_048  # examples with gradients in memory at the same time


def check_layers(model: keras.Sequential) -> None:
    """Checks that gradients of all parameters can be taken example by example.

    Raises:
        ValueError: if a layer with parameters is neither Dense nor Conv2D, or has an activation.
    """
    for layer in model.layers:
        if not layer.weights:
            continue
        if not isinstance(layer, layers.Dense | layers.Conv2D) or not layer.use_bias:
            raise ValueError(f"model: expected Dense and Conv2D with bias, got {layer.name}")
        if layer.activation is not keras.activations.linear:
            raise ValueError(f"model: expected activations as layers, got one in {layer.name}")


def _rows(layer: keras.layers.Layer, entering: tf.Tensor) -> tf.Tensor:
    """Returns the factor of a layer's kernel, `[batch, num_places, kernel_size]`."""
    if isinstance(layer, layers.Dense):
        return entering[:, tf.newaxis]
    height, width = layer.kernel_size
    patches = tf.image.extract_patches(
        entering,
        sizes=[1, height, width, 1],
        strides=[1, *layer.strides, 1],
        rates=[1, 1, 1, 1],
        padding=layer.padding.upper(),
    )
    return tf.reshape(patches, [tf.shape(entering)[0], -1, patches.shape[-1]])


def clipped_sum(
    model: keras.Sequential, inputs: tf.Tensor, labels: tf.Tensor, clip: float
) -> list[tf.Tensor]:
    """Returns the sum over examples of gradients of the cross-entropy clipped to a length.

    Args:
        model: from inputs to logits, as `check_layers` requires.
        inputs: float32 `[batch, *input_shape]`.
        labels: `[batch]`.
        clip: the maximum length of the gradient of one example over all parameters.

    Returns:
        One tensor for each of `model.trainable_variables`, in their order.
    """
    seen, taps = [], []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        passing = inputs
        for layer in model.layers:
            entering, passing = passing, layer(passing)
            if layer.weights:
                tap = tf.zeros_like(passing)
                tape.watch(tap)
                passing = passing + tap
                seen.append((layer, entering))
                taps.append(tap)
        loss = tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=passing)
        )
    batch = tf.shape(inputs)[0]
    squares, factors = tf.zeros([batch]), []
    for (layer, entering), derivative in zip(seen, tape.gradient(loss, taps), strict=True):
        rows = _rows(layer, entering)
        leaving = tf.reshape(derivative, [batch, -1, derivative.shape[-1]])
        if isinstance(layer, layers.Dense):
            kernel = tf.reduce_sum(rows**2, [1, 2]) * tf.reduce_sum(leaving**2, [1, 2])
        else:
            kernel = tf.reduce_sum(tf.matmul(rows, leaving, transpose_a=True) ** 2, [1, 2])
        squares += kernel + tf.reduce_sum(tf.reduce_sum(leaving, 1) ** 2, 1)
        factors.append((layer, rows, leaving))
    scale = clip / tf.maximum(tf.sqrt(squares), clip)
    sums = []
    for layer, rows, leaving in factors:
        scaled = tf.reshape(leaving * scale[:, tf.newaxis, tf.newaxis], [-1, leaving.shape[-1]])
        flat = tf.reshape(rows, [-1, rows.shape[-1]])
        sums.append(tf.reshape(tf.matmul(flat, scaled, transpose_a=True), layer.kernel.shape))
        sums.append(tf.reduce_sum(scaled, 0))
    return sums


MOMENTUM, CLIP = 0.9, 0.1


@functools.lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Returns the smallest noise, in clipping lengths, against replacement of one record.

    Steps on all records equal one step with less noise.
    """
    rounds = 1 if sampling_rate == 1.0 else steps
    training = noise_for(epsilon, delta=delta, sampling_rate=sampling_rate, rounds=rounds)
    return training.noise_multiplier * np.sqrt(steps / rounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network, and its function for sums of clipped gradients. It is trained many times.

    Attributes:
        model: from inputs to logits.
        sums_of: function from inputs and labels to one sum for each trainable variable.
    """

    model: keras.Sequential
    sums_of: Callable[[npt.NDArray, IntArray], Sequence[tf.Tensor]]

    def initial_weights(self, seed: int) -> list[npt.NDArray]:
        """Returns initial weights: Glorot uniform for kernels, otherwise zeros."""
        shapes = [tuple(variable.shape) for variable in self.model.trainable_variables]
        return [
            np.asarray(keras.initializers.GlorotUniform(seed + place)(shape))
            if len(shape) > 1
            else np.zeros(shape, np.float32)
            for place, shape in enumerate(shapes)
        ]

    def logits(self, weights: Sequence[npt.NDArray], inputs: npt.NDArray) -> npt.NDArray:
        """Returns the logits of inputs, `[num_inputs, num_classes]`."""
        for variable, value in zip(self.model.trainable_variables, weights, strict=True):
            variable.assign(value)
        parts = np.array_split(inputs, max(1, -(-len(inputs) // CHUNK)))
        return np.concatenate([self.model(part).numpy() for part in parts])


def network(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """Returns a network with tanh: two convolutions for images, otherwise one hidden layer."""
    if len(input_shape) == 1:
        hidden = [layers.Dense(64), layers.Activation("tanh")]
    else:
        hidden = [
            layers.Conv2D(16, 8, strides=2, padding="same"),
            layers.Activation("tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2),
            layers.Activation("tanh"),
            layers.MaxPooling2D(2, strides=1),
            *(layers.Flatten(), layers.Dense(32), layers.Activation("tanh")),
        ]
    model = keras.Sequential([keras.Input(input_shape), *hidden, layers.Dense(num_classes)])
    check_layers(model)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *input_shape], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def sums_of(inputs: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        return clipped_sum(model, inputs, labels, CLIP)

    return Network(model=model, sums_of=sums_of)


def fit(
    network: Network,
    inputs: npt.NDArray,
    labels: IntArray,
    *,
    start: Sequence[npt.NDArray],
    batch: float,
    steps: int,
    rate: float,
    sigma: float,
    seed: int,
) -> list[npt.NDArray]:
    """Trains by DP-SGD, and returns the mean weights of the later half of the steps.

    Args:
        network: the network.
        inputs: float32 `[num_records, *input_shape]`.
        labels: `[num_records]`.
        start: initial weights.
        batch: expected number of records in a step; at least their number for all of them.
        steps: number of steps.
        rate: rate of steps along mean gradients, in clipping lengths.
        sigma: standard deviation of the noise on the sum of a batch, in clipping lengths.
        seed: seed of batches and noise.
    """
    random = np.random.default_rng(seed)
    weights = [value.copy() for value in start]
    velocities = [np.zeros_like(value) for value in weights]
    means = [np.zeros_like(value) for value in weights]
    for step in range(steps):
        for variable, value in zip(network.model.trainable_variables, weights, strict=True):
            variable.assign(value)
        drawn = np.arange(len(labels))
        if batch < len(labels):
            drawn = np.flatnonzero(random.random(len(labels)) < batch / len(labels))
        sums = [np.zeros_like(value) for value in weights]
        for first in range(0, len(drawn), CHUNK):
            part = drawn[first : first + CHUNK]
            for total, more in zip(sums, network.sums_of(inputs[part], labels[part]), strict=True):
                total += more.numpy()
        for place, total in enumerate(sums):
            noise = random.standard_normal(total.shape, np.float32) * np.float32(sigma * CLIP)
            gradient = (total + noise) / np.float32(CLIP * min(batch, len(labels)))
            velocities[place] = MOMENTUM * velocities[place] + gradient
            # Nesterov's step, then a linear decay to a tenth of the rate.
            change = MOMENTUM * velocities[place] + gradient
            weights[place] -= np.float32(rate * (1.0 - 0.9 * step / steps)) * change
            if step >= steps // 2:
                means[place] += weights[place] / (steps - steps // 2)
    return means
