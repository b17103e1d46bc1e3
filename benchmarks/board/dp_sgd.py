"""DP-SGD (Abadi et al. 2016), as strong as possible in the time that each method has.

It uses the known improvements: a small network with tanh (Papernot et al. 2021, arXiv 2007.14191),
large Poisson batches, almost normalized gradients (a small clipping length), momentum, the mean of
the weights of the later steps, inputs centered and scaled by the public pool, and noise chosen for
each epsilon from the privacy loss distribution (dp-accounting). Several augmented copies of a
record are not used, because each copy costs as much time as the first.

This is a baseline for comparison, not a tool: its noise is floating-point. The gradient of an
example for the kernel of a dense layer or a convolution is the product of the layer's input and the
derivative of the loss by the layer's output. One backward pass therefore gives the norms of all
examples, and one more product gives the sum of clipped gradients.
"""

import dataclasses
import pathlib

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.harness import DELTA
from benchmarks.instead.problem import Problem
from pate_tf.accounting.noisy_training import noise_for
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.students.student_training import outputs

layers = keras.layers
CHUNK = 512  # examples with gradients in memory at the same time


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Settings for the training of a network.

    Attributes:
        batch: expected number of records per step.
        steps: number of steps.
        learning_rate: rate of steps along mean gradients, in clipping lengths.
        momentum: momentum of the steps.
        clip: maximum length of clipped gradients.
    """

    batch: int
    steps: int
    learning_rate: float
    momentum: float = 0.9
    clip: float = 0.1


# Steps and rate, by largest epsilon. Rates were chosen on public pools.
STEPS = (
    (0.1, 60, 0.6),
    (0.25, 90, 0.6),
    (1.0, 150, 1.5),
    (3.0, 250, 1.5),
    (float("inf"), 350, 1.5),
)
BATCH = 2_048


def training_for(epsilon: float, *, num_records: int, is_quick: bool = False) -> Training:
    """Returns the training settings for an epsilon, from public values only."""
    steps, rate = next(values for most, *values in STEPS if epsilon <= most)
    batch = min(BATCH, max(1, num_records // 4))
    return Training(batch=batch, steps=5 if is_quick else steps, learning_rate=rate)


def noise_multiplier(
    epsilon: float, training: Training, num_records: int, delta: float = DELTA
) -> float:
    """Returns the smallest noise, in clipping lengths, against replacement of one record."""
    training_noise = noise_for(
        epsilon,
        delta=delta,
        sampling_rate=min(1.0, training.batch / num_records),
        rounds=training.steps,
    )
    return training_noise.noise_multiplier


def network(dataset: Dataset, *, seed: int, inputs: npt.NDArray) -> keras.Sequential:
    """Returns a small network with tanh.

    Args:
        dataset: an image data set; for other data one hidden layer is enough.
        seed: seed of the initial weights.
        inputs: public inputs, used to center and scale the network's inputs.
    """
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    mean, unit = flat.mean(axis=0), max(float(flat.std(axis=0).mean()), 1e-6)
    shape = inputs.shape[1:]
    offset = (-mean / unit).reshape(shape)
    parts = [keras.Input(shape), layers.Rescaling(1.0 / unit, offset=offset.tolist())]
    if len(shape) != 3:
        hidden = [layers.Flatten(), layers.Dense(64), layers.Activation("tanh")]
    elif min(shape[:2]) >= 16:
        hidden = [
            layers.Conv2D(16, 8, strides=2, padding="same"),
            layers.Activation("tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2),
            layers.Activation("tanh"),
            layers.MaxPooling2D(2, strides=1),
            *(layers.Flatten(), layers.Dense(32), layers.Activation("tanh")),
        ]
    else:
        hidden = [
            layers.Conv2D(16, 3, padding="same"),
            layers.Activation("tanh"),
            layers.MaxPooling2D(2),
            *(layers.Flatten(), layers.Dense(32), layers.Activation("tanh")),
        ]
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([*parts, *hidden, layers.Dense(dataset.num_classes)])
    check_layers(model)
    return model


def fit(
    model: keras.Sequential,
    inputs: npt.NDArray,
    labels: IntArray,
    *,
    training: Training,
    sigma: float,
) -> None:
    """Trains a network by DP-SGD, in place. It ends with the mean weights of the later half."""
    random = np.random.default_rng()
    variables = model.trainable_variables
    velocities = [np.zeros(variable.shape, np.float32) for variable in variables]
    means = [np.zeros(variable.shape, np.float64) for variable in variables]
    rate = min(1.0, training.batch / len(labels))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *inputs.shape[1:]], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def sums_of(batch: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        return clipped_sum(model, batch, targets, training.clip)

    for step in range(training.steps):
        drawn = np.flatnonzero(random.random(len(labels)) < rate)
        sums = [np.zeros(variable.shape, np.float32) for variable in variables]
        for start in range(0, len(drawn), CHUNK):
            part = drawn[start : start + CHUNK]
            parts = sums_of(inputs[part].astype(np.float32), labels[part])
            for total, more in zip(sums, parts, strict=True):
                total += more.numpy()
        for place, variable in enumerate(variables):
            noisy = sums[place] + random.normal(0.0, sigma * training.clip, variable.shape)
            gradient = (noisy / (training.clip * training.batch)).astype(np.float32)
            velocities[place] = training.momentum * velocities[place] + gradient
            # Nesterov's step, then a linear decay to a tenth of the rate.
            change = training.momentum * velocities[place] + gradient
            left = 1.0 - 0.9 * step / training.steps
            variable.assign_sub(training.learning_rate * left * change)
            if step >= training.steps // 2:
                means[place] += variable.numpy()
    for variable, total in zip(variables, means, strict=True):
        variable.assign(total / (training.steps - training.steps // 2))


def run(
    problem: Problem, epsilon: float, repetition: int, folder: pathlib.Path
) -> dict[str, object]:
    """Trains on the private records (features for tables), and tests."""
    del folder
    data = problem.data
    if problem.is_image:
        private, public, test = data.private.inputs, data.pool.inputs, data.held_out.inputs
    else:
        features = problem.learned
        private, public, test = features.private, features.pool, features.test
        if not problem.has_pool:  # features have length at most 1
            public = np.outer((-1.0, 1.0), np.full(private.shape[1], private.shape[1] ** -0.5))
    training = training_for(epsilon, num_records=len(private), is_quick=problem.is_quick)
    sigma = noise_multiplier(epsilon, training, len(private), problem.delta)
    model = network(data.dataset, seed=problem.seed + repetition, inputs=public)
    fit(model, private, data.private.labels, training=training, sigma=sigma)
    return {
        "accuracy": problem.accuracy(outputs(model, test).argmax(axis=1)),
        "sigma": sigma,
        **dataclasses.asdict(training),
    }
