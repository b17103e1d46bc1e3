"""The compared methods, by name.

A method takes the problem, an epsilon at the problem's delta for replace-one records, the number of
the repetition and a folder. It returns `accuracy`, which is None without a label, and further
measurements.
"""

import dataclasses
import functools
import pathlib
import shutil
import warnings
from collections.abc import Callable, Mapping

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

import pate_tf
from benchmarks.harness import DELTA, separate_registry
from benchmarks.instead import dp_sgd, private_knn
from benchmarks.instead.problem import LEARNED, WAVELETS, Array, Problem
from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, Mechanism
from pate_tf.accounting.noisy_training import noise_for
from pate_tf.core.checks import IntArray
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.students.student_kinds import StudentSettings, complete, kind_of
from pate_tf.students.student_training import outputs

Result = dict[str, object]
Run = Callable[[Problem, float, int, pathlib.Path], Result]
# Baselines for tables and texts, without privacy. They take `random_state`.
NON_PRIVATE_CLASSIFIER = HistGradientBoostingClassifier
HEAD_STEPS, HEAD_CLIP = 60, 0.5
# Rates by largest epsilon, chosen on pools of Fashion-MNIST and Adult.
HEAD_RATES = {
    True: ((0.05, 1.0), (0.1, 4.0), (0.25, 16.0), (1.0, 48.0), (float("inf"), 128.0)),
    False: ((float("inf"), 1.0),),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One way to learn from the private records.

    Attributes:
        title: title in a table.
        run: see the module.
        features: features that it needs, or None.
        teachers: model of its teachers; None for the default network, "" without teachers.
        is_private: whether it keeps to an epsilon.
        by_default: whether it runs if no methods are named.
    """

    title: str
    run: Run
    features: str | None = LEARNED
    teachers: str | None = ""
    is_private: bool = True
    by_default: bool = True


def no_privacy(problem: Problem, epsilon: float, repetition: int, folder: pathlib.Path) -> Result:
    """Learns from the private records: a network for images, otherwise a classifier."""
    del epsilon, folder
    private, test = problem.data.private, problem.data.held_out
    seed = problem.seed + repetition
    if not problem.is_image:
        model = NON_PRIVATE_CLASSIFIER(random_state=seed)
        model.fit(private.inputs.reshape(len(private), -1), private.labels)
        return {"accuracy": problem.accuracy(model.predict(test.inputs.reshape(len(test), -1)))}
    settings = StudentSettings(
        student="supervised",
        model="wide_cnn",
        max_steps=20 if problem.is_quick else 4_000,
        batch_size=128,
        seed=seed,
    )
    dataset = problem.data.dataset
    labels = PoolLabels(
        query_indices=np.arange(len(private)),
        labels=private.labels,
        num_classes=dataset.num_classes,
    )
    config = complete(settings, dataset)
    # Use a new data set object: features of the pool are stored by its identity.
    pool = Pool(dataclasses.replace(dataset), private.inputs)
    network = kind_of(config.student).train(config, labels, pool)
    return {"accuracy": problem.accuracy(outputs(network, test.inputs).argmax(axis=1))}


def means_head(
    features: Array,
    labels: IntArray,
    *,
    num_classes: int,
    public: Array,
    epsilon: float,
    delta: float = DELTA,
) -> Array:
    """Returns a ridge classifier `[num_features, num_classes]` of noisy class sums.

    Only the sums of features by class are private. They get Gaussian noise: replacing one record
    moves them by at most 2. The directions in which features vary come from the public pool.

    Args:
        features: private, `[num_records, num_features]`, of length at most 1.
        labels: `[num_records]`.
        num_classes: number of classes.
        public: features of the pool.
        epsilon: for replace-one records.
        delta: delta of the guarantee.
    """
    sigma = noise_for(epsilon, delta=delta, sampling_rate=1.0, rounds=1).noise_multiplier
    sums = features.T.astype(np.float64) @ np.eye(num_classes)[labels]
    sums += np.random.default_rng().normal(0.0, sigma, sums.shape)
    wide = public.astype(np.float64)
    squares = (wide.T @ wide) * (len(features) / len(public))
    # The ridge penalty is the noise variance divided by the signal variance.
    squares[np.diag_indices_from(squares)] += sigma * np.sqrt(
        len(squares) / num_classes
    ) + 1e-3 * np.trace(squares) / len(squares)
    return np.linalg.solve(squares, sums)


def trained_head(
    features: Array,
    labels: IntArray,
    *,
    num_classes: int,
    public: Array,
    epsilon: float,
    rate: float,
    steps: int = HEAD_STEPS,
    delta: float = DELTA,
) -> Array:
    """Returns a softmax classifier trained by full-batch DP-SGD; arguments as `means_head`.

    The rate applies to steps along mean gradients, in clipping lengths.
    """
    del public
    # This many Gaussian mechanisms on all records equal one with less noise.
    once = noise_for(epsilon, delta=delta, sampling_rate=1.0, rounds=1).noise_multiplier
    sigma, random = once * np.sqrt(steps), np.random.default_rng()
    weights = np.zeros((features.shape[1], num_classes), np.float32)
    velocity, mean = np.zeros_like(weights), np.zeros_like(weights)
    one_hot = np.eye(num_classes, dtype=np.float32)[labels]
    lengths = np.linalg.norm(features, axis=1)
    for step in range(steps):
        scores = features @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = scores / scores.sum(axis=1, keepdims=True) - one_hot
        norms = lengths * np.linalg.norm(errors, axis=1)  # of the gradient of each record
        errors *= (HEAD_CLIP / np.maximum(norms, HEAD_CLIP))[:, np.newaxis]
        noisy = features.T @ errors + random.normal(0.0, sigma * HEAD_CLIP, weights.shape)
        velocity = 0.9 * velocity + (noisy / (HEAD_CLIP * len(features))).astype(np.float32)
        weights = weights - rate * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    return mean


def linear(
    problem: Problem,
    epsilon: float,
    repetition: int,
    folder: pathlib.Path,
    *,
    kind: str = LEARNED,
    is_trained: bool = False,
    with_student: bool = False,
) -> Result:
    """Tests a linear classifier of features by noisy sums or DP-SGD, or a student of its labels."""
    del folder
    features, solve = problem.features(kind), means_head
    if is_trained:
        rate = next(rate for most, rate in HEAD_RATES[problem.is_image] if epsilon <= most)
        steps = 5 if problem.is_quick else HEAD_STEPS
        solve = functools.partial(trained_head, rate=rate, steps=steps)
    num_classes = problem.data.dataset.num_classes
    head = solve(
        features.private,
        problem.data.private.labels,
        num_classes=num_classes,
        public=features.pool,
        epsilon=epsilon,
        delta=problem.delta,
    )
    if not with_student:
        return {"accuracy": problem.accuracy((features.test @ head).argmax(axis=1))}
    labels = (features.pool @ head).argmax(axis=1)
    indices = np.arange(len(labels))
    return problem.student(
        PoolLabels(query_indices=indices, labels=labels, num_classes=num_classes), repetition
    )


def train_teachers(problem: Problem, model: str | None, folder: pathlib.Path) -> Result:
    """Trains 250 teachers on images; on features 2,000, or fewer if they had under 30 records."""
    private = problem.data.private
    with separate_registry():
        teachers = pate_tf.Teachers(
            model,
            num_teachers=min(2_000 if model and problem.is_image else 250, len(private) // 30),
            steps=5 if problem.is_quick and model is None else None,
            seed=problem.seed,
            directory=folder,
        ).fit(private, None if model is None else problem.data.pool)
    return {"teachers": len(teachers)}


def library(
    problem: Problem,
    epsilon: float,
    repetition: int,
    folder: pathlib.Path,
    *,
    mechanism: type[Mechanism] | None = None,
    by_votes: bool = False,
) -> Result:
    """Tests this library with its defaults: labels from feature sums, or from trained teachers.

    Args:
        problem: the data.
        epsilon: the privacy budget of the labels.
        repetition: number of the repetition.
        folder: folder of the teachers.
        mechanism: the only mechanism to calibrate; None for the best.
        by_votes: whether teachers vote.
    """
    data, seed = problem.data, problem.seed + repetition
    with separate_registry() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels may all be withheld
        if by_votes:
            # A copy has its own ledger.
            source = pate_tf.Teachers.load(shutil.copytree(folder, place / "run"))
        else:
            source = pate_tf.FeatureSums(directory=place / "run", seed=problem.seed)
            source.fit(data.private, data.pool)
        with pate_tf.Labeller(source, mechanism, epsilon=epsilon, delta=problem.delta) as labeller:
            labels = labeller.label(data.pool, seed=seed)
        result: Result = {
            "epsilon": labels.cost.epsilon,
            "labels": len(labels),
            "mechanism": labels.cost.charge.name,
        }
        if not len(labels):
            return {**result, "accuracy": None}
        if data.public.pool.true_labels is not None:
            truth = data.public.pool.true_labels[labels.query_indices]
            result["labels_right"] = float((labels.labels == truth).mean())
        student = pate_tf.Student(steps=20 if problem.is_quick else None, seed=seed)
        student.fit(data.pool, labels)
    return {**result, "accuracy": student.evaluate(data.held_out)}


def _by_votes(title: str, mechanism: type[Mechanism]) -> Method:
    run = functools.partial(library, mechanism=mechanism, by_votes=True)
    return Method(title=f"pate_tf, {title}", run=run, teachers="ridge")


METHODS: Mapping[str, Method] = {
    "no_privacy": Method(title="no privacy", run=no_privacy, features=None, is_private=False),
    "noisy_means": Method(title="noisy class sums on public features", run=linear),
    "linear_head": Method(
        title="DP-SGD, linear head on public features",
        run=functools.partial(linear, is_trained=True),
    ),
    "library": Method(title="pate_tf, as recommended for the epsilon", run=library),
    "dp_sgd": Method(title="DP-SGD, a network from scratch", run=dp_sgd.run, features=None),
    "scattering_head": Method(
        title="DP-SGD, linear head on fixed wavelets",
        run=functools.partial(linear, kind=WAVELETS, is_trained=True),
        features=WAVELETS,
    ),
    "private_knn": Method(title="Private-kNN, and our student", run=private_knn.run),
    "noisy_means_student": Method(
        title="noisy class sums, and our student", run=functools.partial(linear, with_student=True)
    ),
    "linear_head_student": Method(
        title="DP-SGD, linear head on public features, and our student",
        run=functools.partial(linear, is_trained=True, with_student=True),
    ),
    "library_histogram": _by_votes("Gaussian histogram", GaussianHistogram),
    "library_noisy_max": _by_votes("Gaussian noisy max", GaussianNoisyMax),
    "library_networks": Method(
        title="pate_tf, 250 networks",
        run=functools.partial(library, by_votes=True),
        features=None,
        teachers=None,
        by_default=False,
    ),
}
