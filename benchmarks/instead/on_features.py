"""Small models on features that cost nothing: a linear head, and noisy statistics.

Features are the representation of the public pool, or of images fixed wavelets. The noise has few
numbers to spoil. Features have length at most 1. What is released is a linear function of them,
without an offset.
"""

import numpy as np
import numpy.typing as npt

from benchmarks.instead.dp_sgd import generator_of
from benchmarks.instead.problem import DELTA, Features, Problem
from pate_tf.accounting.noisy_training import noise_for
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray

Array = npt.NDArray[np.floating]
PENALTY = 1.0
HEAD_STEPS, HEAD_CLIP = 60, 0.5
# By the largest epsilon that they are for. Of images, they were chosen on Fashion-MNIST's pool by
# the labels of its last thousand inputs, of tables on Adult's: see `tune`.
HEAD_RATES = {
    "image": ((0.05, 1.0), (0.1, 4.0), (0.25, 16.0), (1.0, 48.0), (float("inf"), 128.0)),
    "table": ((float("inf"), 1.0),),
}


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
        penalty: of the ridge, in what the noise would need if all directions were equal.
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
    rate: float,
    noise_share: float = 1.0,
    steps: int = HEAD_STEPS,
) -> Array:
    """Returns a softmax classifier trained by full-batch DP-SGD; arguments as `means_head`.

    The rate is that of steps along means of gradients in clipping lengths.
    """
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


def head_of(problem: Problem, epsilon: float, noise: NoiseSource, features: Features) -> Array:
    """Returns a linear classifier of features by DP-SGD."""
    kind = "image" if problem.dataset.kind == "image" else "table"
    rate = next(rate for most, rate in HEAD_RATES[kind] if epsilon <= most)
    steps = 5 if problem.quick else HEAD_STEPS
    return _solved(trained_head, problem, epsilon, noise, features, rate=rate, steps=steps)


def run_head(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """DP-SGD of a linear head on what the pool taught."""
    del repetition
    return _tested(problem, problem.learnt, head_of(problem, epsilon, noise, problem.learnt))


def run_scattering(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """DP-SGD of a linear head on fixed wavelets."""
    del repetition
    return _tested(problem, problem.scattered, head_of(problem, epsilon, noise, problem.scattered))


def run_means(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """Noisy class sums."""
    del repetition
    head = _solved(means_head, problem, epsilon, noise, problem.learnt)
    return _tested(problem, problem.learnt, head)


def run_head_student(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """DP-SGD of a linear head, which names all of the pool's inputs, and a student of these."""
    return _student(problem, head_of(problem, epsilon, noise, problem.learnt), repetition)


def run_means_student(
    problem: Problem, epsilon: float, noise: NoiseSource, repetition: int
) -> dict[str, object]:
    """Noisy class sums, which name all of the pool's inputs, and a student of these."""
    head = _solved(means_head, problem, epsilon, noise, problem.learnt)
    return _student(problem, head, repetition)


def _student(problem: Problem, head: Array, repetition: int) -> dict[str, object]:
    named = (problem.pool_features @ head).argmax(axis=1)
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


def _tested(problem: Problem, features: Features, head: Array) -> dict[str, object]:
    return {"accuracy": problem.accuracy((features.test @ head).argmax(axis=1))}


def _solved(
    solve, problem: Problem, epsilon: float, noise: NoiseSource, features: Features, **settings
) -> Array:
    return solve(
        features.private,
        problem.private.labels,
        num_classes=problem.dataset.num_classes,
        public=features.pool,
        epsilon=epsilon,
        noise=noise,
        **settings,
    )
