"""DP-SGD (Abadi et al. 2016), as strong as it could be made in the time that all methods have.

What is known to help is here: a small network with tanh (Papernot et al. 2021, arXiv 2007.14191),
large Poisson batches, gradients all but normalised (a small clipping length), momentum, the mean of
the weights of the later steps, inputs centred and scaled by the public pool, and noise found for
each epsilon by the distribution of the privacy loss (dp-accounting). Several augmented copies of a
record were left out: each copy costs as much time as the first.

A baseline to compare with, not a tool: its noise is floating-point.
"""

import dataclasses

import dp_accounting
import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.instead.clipped_gradients import check_layers, clipped_sum
from benchmarks.instead.problem import DELTA, Problem
from pate_tf.accounting.noisy_training import noise_for
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.dataset import Dataset
from pate_tf.core.validation import IntArray
from pate_tf.students.batches import outputs

layers = keras.layers
CHUNK = 512  # examples whose gradients are in memory together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained.

    Attributes:
        batch: expected number of records in a step.
        steps: how many.
        learning_rate: of steps along means of gradients in clipping lengths.
        momentum: of these steps.
        clip: the length that gradients are clipped to.
    """

    batch: int
    steps: int
    learning_rate: float
    momentum: float = 0.9
    clip: float = 0.1


# Steps and rate by the largest epsilon that they are for. Rates were chosen on public pools, see
# `tune`: of 0.1 to 6 at epsilon 1 on Fashion-MNIST's, of 0.15 to 1.5 at 0.1 on Adult's.
STEPS = (
    (0.1, 60, 0.6),
    (0.25, 90, 0.6),
    (1.0, 150, 1.5),
    (3.0, 250, 1.5),
    (float("inf"), 350, 1.5),
)
BATCH = 2_048


def training_for(epsilon: float, *, num_records: int, quick: bool = False) -> Training:
    """Returns how to train for an epsilon, by public values alone."""
    steps, rate = next(own for most, *own in STEPS if epsilon <= most)
    batch = min(BATCH, max(1, num_records // 4))
    return Training(batch=batch, steps=5 if quick else steps, learning_rate=rate)


def noise_multiplier(epsilon: float, training: Training, num_records: int) -> float:
    """The least noise, in clipping lengths, against replacement of one record."""
    found = noise_for(
        epsilon,
        delta=DELTA,
        sampling_rate=min(1.0, training.batch / num_records),
        rounds=training.steps,
    )
    return found.noise_multiplier


def removal_epsilon(sigma: float, training: Training, num_records: int) -> float:
    """What the same noise costs by the other custom, against removal or addition of a record."""
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    step = dp_accounting.GaussianDpEvent(sigma)
    if training.batch < num_records:
        step = dp_accounting.PoissonSampledDpEvent(training.batch / num_records, step)
    accountant.compose(step, training.steps)
    return float(accountant.get_epsilon(DELTA))


def network(dataset: Dataset, *, seed: int, inputs: npt.NDArray) -> keras.Sequential:
    """A small network with tanh.

    Args:
        dataset: of images; of all else one hidden layer is enough.
        seed: of the initial weights.
        inputs: public ones, that the network's inputs are centred and scaled by.
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


def generator_of(noise: NoiseSource) -> np.random.Generator:
    """A fast generator, seeded by what all noise comes from."""
    return np.random.Generator(np.random.Philox(noise.words(4).tolist()))


def fit(
    model: keras.Sequential,
    inputs: npt.NDArray,
    labels: IntArray,
    *,
    training: Training,
    sigma: float,
    noise: NoiseSource,
) -> None:
    """Trains a network by DP-SGD, in place; it ends with the mean weights of the later half."""
    random = generator_of(noise)
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
    def sums_of(some: tf.Tensor, their: tf.Tensor) -> list[tf.Tensor]:
        return clipped_sum(model, some, their, training.clip)

    for step in range(training.steps):
        drawn = np.flatnonzero(random.random(len(labels)) < rate)
        sums = [np.zeros(variable.shape, np.float32) for variable in variables]
        for start in range(0, len(drawn), CHUNK):
            part = drawn[start : start + CHUNK]
            for one, more in zip(
                sums, sums_of(inputs[part].astype(np.float32), labels[part]), strict=True
            ):
                one += more.numpy()
        for place, variable in enumerate(variables):
            noisy = sums[place] + random.normal(0.0, sigma * training.clip, variable.shape)
            gradient = (noisy / (training.clip * training.batch)).astype(np.float32)
            velocities[place] = training.momentum * velocities[place] + gradient
            # Nesterov's step, then a line down to a tenth of the rate.
            change = training.momentum * velocities[place] + gradient
            left = 1.0 - 0.9 * step / training.steps
            variable.assign_sub(training.learning_rate * left * change)
            if step >= training.steps // 2:
                means[place] += variable.numpy()
    for variable, total in zip(variables, means, strict=True):
        variable.assign(total / (training.steps - training.steps // 2))


def run(problem: Problem, epsilon: float, noise: NoiseSource, repetition: int) -> dict[str, object]:
    """Trains on the private records, and tests."""
    is_image = problem.dataset.kind == "image"
    private = problem.private.inputs if is_image else problem.private_features
    known = problem.pool.inputs if is_image else problem.pool_features
    test = problem.test[0] if is_image else problem.test_features
    training = training_for(epsilon, num_records=len(private), quick=problem.quick)
    sigma = noise_multiplier(epsilon, training, len(private))
    model = network(problem.dataset, seed=problem.seed + repetition, inputs=known)
    fit(model, private, problem.private.labels, training=training, sigma=sigma, noise=noise)
    return {
        "accuracy": problem.accuracy(outputs(model, test).argmax(axis=1)),
        "sigma": sigma,
        "epsilon_against_removal": removal_epsilon(sigma, training, len(private)),
        **dataclasses.asdict(training),
    }
