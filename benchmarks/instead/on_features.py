"""Small models on the representation of the public pool: a linear head, and noisy statistics.

The representation costs nothing, so that the noise has few numbers to spoil. Features have length
at most 1. What is released is a linear function of them, without an offset.
"""

import numpy as np
import numpy.typing as npt

from benchmarks.instead.dp_sgd import generator_of
from benchmarks.instead.problem import DELTA, Problem
from pate_tf.accounting.training_calibration import noise_for
from pate_tf.noise import NoiseSource
from pate_tf.values.arrays import IntArray
from pate_tf.values.public import PoolLabels

Array = npt.NDArray[np.floating]
PENALTY = 1.0
HEAD_RATE, HEAD_STEPS, HEAD_CLIP = 1.0, 60, 0.5


def means_head(
    features: Array,
    labels: IntArray,
    *,
    num_classes: int,
    public: Array,
    epsilon: float,
    noise: NoiseSource,
    penalty: float = PENALTY,
    noise_share: float = 1.0,
) -> Array:
    """Returns a ridge classifier `[num_features, num_classes]` of noisy class sums.

    Private are the sums of features by class alone, with Gaussian noise: one record replaced moves
    them by 2 at most. Which directions features vary in is taken from the public pool.

    Args:
      features: private, `[num_records, num_features]`, of length at most 1.
      labels: `[num_records]`.
      num_classes: how many.
      public: features of the pool.
      epsilon: at `DELTA`, against replacement of a record.
      noise: where it comes from.
      penalty: of the ridge, in what the noise would need if all directions were alike.
      noise_share: of the noise that is needed; below 1 for tuning on fewer public records alone.
    """
    sigma = noise_for(epsilon, delta=DELTA, sampling_rate=1.0, rounds=1).noise_multiplier
    sigma *= noise_share
    one_hot = np.eye(num_classes)[labels]
    sums = features.T.astype(np.float64) @ one_hot
    sums += generator_of(noise).normal(0.0, sigma, sums.shape)
    wide = public.astype(np.float64)
    squares = (wide.T @ wide) * (len(features) / len(public))
    # Ridge's penalty is the noise' variance over that of what is looked for.
    needed = sigma * np.sqrt(len(squares) / num_classes) + 1e-3 * np.trace(squares) / len(squares)
    squares[np.diag_indices_from(squares)] += penalty * needed
    return np.linalg.solve(squares, sums)


def trained_head(
    features: Array,
    labels: IntArray,
    *,
    num_classes: int,
    public: Array,
    epsilon: float,
    noise: NoiseSource,
    rate: float = HEAD_RATE,
    noise_share: float = 1.0,
    steps: int = HEAD_STEPS,
) -> Array:
    """Returns a softmax classifier trained by full-batch DP-SGD; arguments as `means_head`."""
    del public
    # So many Gaussian mechanisms on all records are one with less noise.
    once = noise_for(epsilon, delta=DELTA, sampling_rate=1.0, rounds=1).noise_multiplier
    sigma = noise_share * once * np.sqrt(steps)
    random = generator_of(noise)
    weights = np.zeros((features.shape[1], num_classes), np.float32)
    velocity, mean = np.zeros_like(weights), np.zeros_like(weights)
    one_hot = np.eye(num_classes, dtype=np.float32)[labels]
    lengths = np.linalg.norm(features, axis=1)
    for step in range(steps):
        scores = features @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = scores / scores.sum(axis=1, keepdims=True) - one_hot
        own = lengths * np.linalg.norm(errors, axis=1)  # of a record's gradient
        errors *= (HEAD_CLIP / np.maximum(own, HEAD_CLIP))[:, np.newaxis]
        noisy = features.T @ errors + random.normal(0.0, sigma * HEAD_CLIP, weights.shape)
        velocity = 0.9 * velocity + (noisy / (HEAD_CLIP * len(features))).astype(np.float32)
        weights = weights - rate * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    return mean


def run_head(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """DP-SGD of a linear head."""
    del repetition
    head = _head(trained_head, problem, epsilon, noise, steps=5 if problem.quick else HEAD_STEPS)
    return {"accuracy": problem.accuracy((problem.test_features @ head).argmax(axis=1))}


def run_means(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """Noisy class sums."""
    del repetition
    head = _head(means_head, problem, epsilon, noise)
    return {"accuracy": problem.accuracy((problem.test_features @ head).argmax(axis=1))}


def run_means_student(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """Noisy class sums, which name all of the pool's inputs, and a student of these."""
    named = (problem.pool_features @ _head(means_head, problem, epsilon, noise)).argmax(axis=1)
    labels = PoolLabels(
        query_indices=np.arange(len(named)),
        labels=named,
        num_classes=problem.dataset.num_classes,
    )
    found = {"accuracy": problem.student_accuracy(labels, repetition)}
    if problem.public.pool_labels is not None:
        right = named == problem.public.pool_labels
        found |= {"labels": len(named), "labels_right": float(right.mean())}
    return found


def _head(solve, problem: Problem, epsilon: float, noise: NoiseSource, **settings) -> Array:
    return solve(
        problem.private_features,
        problem.private.labels,
        num_classes=problem.dataset.num_classes,
        public=problem.pool_features,
        epsilon=epsilon,
        noise=noise,
        **settings,
    )
