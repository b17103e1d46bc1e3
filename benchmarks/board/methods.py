"""The compared methods, by name.

A method takes a problem, an epsilon at `DELTA` under replace-one, and a seed. It returns a score
for each test record and class. Settings of the other methods are chosen in `chosen`, by
cross-validation on the training records. This choice is not charged, which favors them.
"""

import dataclasses
import functools
import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, softmax
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

import pate_tf
from benchmarks.board import dp_sgd
from benchmarks.board.problems import DELTA, WAVELETS, Array, Problem
from benchmarks.harness import separate_registry
from pate_tf.core.checks import IntArray
from pate_tf.core.public import PoolLabels, area_under_curve
from pate_tf.students.student_kinds import StudentSettings, complete, kind_of
from pate_tf.students.student_training import outputs

FOLDS, MAX_RECORDS = 3, 9_000  # of the choice of settings
HEAD_CLIP = 0.5
BATCH = 2_048  # of networks on images; otherwise all records
Scores = npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that are chosen for each problem and epsilon.

    Attributes:
        features: name of the representation, or "" for scaled inputs.
        rate: rate of DP-SGD.
        steps: number of steps of DP-SGD.
        starts_public: whether DP-SGD starts from weights that the pool's labels give.
        regularization: inverse strength of the ridge of a logistic regression.
    """

    features: str = ""
    rate: float = 0.0
    steps: int = 0
    starts_public: bool = False
    regularization: float = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Scores of the test records.

    Attributes:
        scores: probabilities `[num_test, num_classes]`; the prediction is the largest one.
        setting: the chosen settings.
    """

    scores: Scores
    setting: Setting | None = None

    def __post_init__(self) -> None:
        # Areas under the curve compare records, so scores must not have an offset of their own.
        if np.abs(self.scores.sum(axis=1) - 1.0).max() > 1e-3:
            raise ValueError("scores must be probabilities, got rows that do not add up to 1")


def measures(scores: Scores, truth: IntArray) -> dict[str, float]:
    """Returns the measures of a scoreboard's row."""
    scores = np.nan_to_num(scores)
    predictions = scores.argmax(axis=1)
    counts = np.bincount(truth, minlength=scores.shape[1])
    rarest = np.where(counts > 0, counts, counts.max() + 1).argmin()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a predicted class has no record
        balanced = balanced_accuracy_score(truth, predictions)
    return {
        "accuracy": float((predictions == truth).mean()),
        "balanced_accuracy": float(balanced),
        "area_under_curve": float(area_under_curve(scores, truth) or 0.5),
        "recall_of_rarest": float((predictions[truth == rarest] == rarest).mean()),
    }


# Choice of settings.

Train = Callable[..., Callable[[npt.NDArray], Scores]]


def chosen(
    problem: Problem,
    first: Setting,
    grid: Sequence[tuple[str, Sequence[Any]]],
    evaluate: Callable[[Setting, IntArray, IntArray], Scores],
    labels: IntArray,
    folds: int = FOLDS,
) -> Setting:
    """Returns the best setting, one field of the grid after another.

    A setting is better if the mean of accuracy and area under the curve on the left-out folds is
    larger.

    Args:
        problem: the data.
        first: the first setting.
        grid: names of fields, with their values.
        evaluate: function from a setting, rows to train on and left-out rows to scores.
        labels: classes of the training records.
        folds: number of folds that are left out, each in turn.
    """
    order = np.random.default_rng(0).permutation(len(labels))[:MAX_RECORDS]
    parts = np.array_split(order, FOLDS)

    @functools.cache
    def quality(setting: Setting) -> float:
        values = []
        for place in range(folds):
            rows = np.concatenate([part for other, part in enumerate(parts) if other != place])
            found = measures(evaluate(setting, rows, parts[place]), labels[parts[place]])
            values.append(found["accuracy"] + found["area_under_curve"])
        return float(np.mean(values))

    best = first
    with problem.not_counted():
        for field, values in () if problem.is_quick else grid:
            changed = [dataclasses.replace(best, **{field: value}) for value in values]
            best = max([best, *changed], key=quality)
    return best


# Linear heads.


@functools.lru_cache(maxsize=16)
def public_head(problem: Problem, features: str) -> Array:
    """Returns a logistic regression `[num_features, num_classes]` of the pool's labels."""
    labels = problem.data.pool.true_labels
    wide = problem.features(features).pool

    def scores(setting: Setting, rows: IntArray, left_out: IntArray) -> Scores:
        head = _logistic(wide[rows], labels[rows], problem.num_classes, setting.regularization)
        return softmax(wide[left_out] @ head, axis=1)

    grid = [("regularization", (1.0, 30.0, 1_000.0))]
    setting = chosen(problem, Setting(), grid if problem.kind != "image" else [], scores, labels)
    return _logistic(wide, labels, problem.num_classes, setting.regularization)


def _logistic(features: Array, labels: IntArray, num_classes: int, regularization: float) -> Array:
    """Returns the weights of a logistic regression, with zeros for classes without records."""
    head = np.zeros((features.shape[1], num_classes), np.float32)
    found = np.unique(labels)
    if len(found) < 2:
        return head
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it did not converge
        model = LogisticRegression(C=regularization, fit_intercept=False, max_iter=200)
        model.fit(features, labels)
    weights = model.coef_.T
    head[:, found] = np.concatenate([-weights, weights], axis=1) / 2 if len(found) == 2 else weights
    return head


def trained_head(
    features: Array,
    labels: IntArray,
    *,
    start: Array,
    rate: float,
    steps: int,
    sigma: float,
    seed: int,
) -> Array:
    """Returns a softmax classifier `[num_features, num_classes]`, trained by full-batch DP-SGD.

    Args:
        features: `[num_records, num_features]`.
        labels: `[num_records]`.
        start: initial weights.
        rate: rate of steps along mean gradients, in clipping lengths.
        steps: number of steps.
        sigma: standard deviation of the noise on each sum, in clipping lengths.
        seed: seed of the noise.
    """
    random = np.random.default_rng(seed)
    weights = start.astype(np.float32)
    velocity, mean = np.zeros_like(weights), np.zeros_like(weights)
    one_hot = np.eye(weights.shape[1], dtype=np.float32)[labels]
    lengths = np.linalg.norm(features, axis=1)
    for step in range(steps):
        scores = features @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = scores / scores.sum(axis=1, keepdims=True) - one_hot
        norms = lengths * np.linalg.norm(errors, axis=1)  # of the gradient of each record
        errors *= (HEAD_CLIP / np.maximum(norms, HEAD_CLIP))[:, np.newaxis]
        noise = random.standard_normal(weights.shape, np.float32) * np.float32(sigma * HEAD_CLIP)
        gradient = (features.T @ errors + noise) / np.float32(HEAD_CLIP * len(features))
        velocity = 0.9 * velocity + gradient
        weights = weights - np.float32(rate) * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    return mean


def _head_of(
    problem: Problem, setting: Setting, epsilon: float, rows: IntArray | slice, seed: int
) -> Array:
    """Trains a head on some rows, with noise in proportion to their number."""
    features = problem.features(setting.features).private
    labels = problem.data.private.labels[rows]
    start = np.zeros((features.shape[1], problem.num_classes), np.float32)
    if setting.starts_public:
        start = public_head(problem, setting.features)
    sigma = dp_sgd.noise_multiplier(epsilon, DELTA, 1.0, setting.steps)
    return trained_head(
        features[rows],
        labels,
        start=start,
        rate=setting.rate,
        steps=setting.steps,
        sigma=sigma * len(labels) / len(features),
        seed=seed,
    )


@functools.lru_cache(maxsize=8)
def _head_setting(problem: Problem, epsilon: float, representations: tuple[str, ...]) -> Setting:
    def scores(setting: Setting, rows: IntArray, left_out: IntArray) -> Scores:
        head = _head_of(problem, setting, epsilon, rows, seed=len(rows))
        return softmax(problem.features(setting.features).private[left_out] @ head, axis=1)

    rates = ("rate", (0.25, 1.0, 4.0, 16.0, 64.0))
    return chosen(
        problem,
        Setting(features=representations[0], rate=4.0, steps=5 if problem.is_quick else 40),
        [
            rates,
            ("features", representations),
            ("steps", (10, 120)),
            ("starts_public", (True,) if problem.has_pool else ()),
            rates,
        ],
        scores,
        problem.data.private.labels,
        2 if problem.kind != "image" else 1,
    )


def head(
    problem: Problem, epsilon: float, seed: int, representations: tuple[str, ...] = ()
) -> Result:
    """Trains a linear head by DP-SGD on features."""
    representations = representations or problem.representations
    setting = _head_setting(problem, epsilon, representations)
    weights = _head_of(problem, setting, epsilon, slice(None), 1_000 + seed)
    logits = problem.features(setting.features).test @ weights
    return Result(scores=softmax(logits, axis=1), setting=setting)


# Small networks.


@functools.lru_cache(maxsize=2)
def _network(input_shape: tuple[int, ...], num_classes: int) -> dp_sgd.Network:
    return dp_sgd.network(input_shape, num_classes)


@functools.lru_cache(maxsize=3)
def _network_inputs(problem: Problem, features: str) -> tuple[Array, Array, Array]:
    """Returns inputs of the private records, the pool and the test records."""
    if features:
        found = problem.features(features)
        scale = np.float32(math.sqrt(found.private.shape[1]))
        return found.private * scale, found.pool * scale, found.test * scale
    data = problem.data
    sides = (data.private.inputs, data.pool.inputs, data.held_out.inputs)
    private, pool, test = (problem.scaled(side) for side in sides)
    return private, pool, test


@functools.lru_cache(maxsize=8)
def _public_weights(problem: Problem, features: str) -> list[Array]:
    """Returns weights of the network after training on the pool's labels, without noise."""
    _, pool, _ = _network_inputs(problem, features)
    net = _network(pool.shape[1:], problem.num_classes)
    return dp_sgd.fit(
        net,
        pool,
        problem.data.pool.true_labels,
        start=net.initial_weights(0),
        batch=min(len(pool), 512),
        steps=5 if problem.is_quick else 200,
        rate=1.0,
        sigma=0.0,
        seed=0,
    )


def _weights_of(
    problem: Problem, setting: Setting, epsilon: float, rows: IntArray | slice, seed: int
) -> list[Array]:
    """Trains a network on some rows, with noise in proportion to their number."""
    private, _, _ = _network_inputs(problem, setting.features)
    labels = problem.data.private.labels[rows]
    net = _network(private.shape[1:], problem.num_classes)
    batch = min(BATCH, len(private) // 4) if problem.kind == "image" else len(private)
    part = len(labels) / len(private)
    start = net.initial_weights(seed)
    if setting.starts_public:
        start = _public_weights(problem, setting.features)
    sigma = dp_sgd.noise_multiplier(epsilon, DELTA, batch / len(private), setting.steps)
    return dp_sgd.fit(
        net,
        private[rows],
        labels,
        start=start,
        batch=batch * part,
        steps=setting.steps,
        rate=setting.rate,
        sigma=sigma * part,
        seed=seed,
    )


@functools.lru_cache(maxsize=8)
def _network_setting(problem: Problem, epsilon: float) -> Setting:
    def scores(setting: Setting, rows: IntArray, left_out: IntArray) -> Scores:
        weights = _weights_of(problem, setting, epsilon, rows, seed=len(rows))
        private, _, _ = _network_inputs(problem, setting.features)
        net = _network(private.shape[1:], problem.num_classes)
        return softmax(net.logits(weights, private[left_out]), axis=1)

    rates = ("rate", (0.1, 0.3, 1.0, 3.0))
    features = {"table": ("bins",), "text": problem.representations, "image": ()}[problem.kind]
    return chosen(
        problem,
        Setting(rate=0.3, steps=5 if problem.is_quick else 40),
        [
            rates,
            ("features", features),
            ("steps", (15, 100)),
            ("starts_public", (True,) if problem.has_pool else ()),
            rates,
        ],
        scores,
        problem.data.private.labels,
        1,
    )


def small_network(problem: Problem, epsilon: float, seed: int) -> Result:
    """Trains a small network by DP-SGD."""
    setting = _network_setting(problem, epsilon)
    weights = _weights_of(problem, setting, epsilon, slice(None), 1_000 + seed)
    _, _, test = _network_inputs(problem, setting.features)
    net = _network(test.shape[1:], problem.num_classes)
    return Result(scores=softmax(net.logits(weights, test), axis=1), setting=setting)


# DP-EBM (Nori et al. 2021, arXiv 2106.09680).


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """Returns the delta of mu-Gaussian differential privacy (Dong et al. 2022)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def _gaussian_mu(epsilon: float, delta: float) -> float:
    return brentq(lambda mu: _gaussian_delta(epsilon, mu) - delta, 1e-7, 100.0, xtol=1e-12)


BIN_PART = 0.1  # of epsilon, for bins: the package's default; each part has half of delta


def epsilon_of_ebm(epsilon: float, records: int) -> float:
    """Returns the epsilon to pass to the package, so that it keeps to `epsilon` at `DELTA`.

    The package's epsilon is for removal, and it adds those of bins and of boosting. Both are
    Gaussian mechanisms, so their exact composition is Gaussian, too, and costs less. Replacing a
    record removes one and adds one, which at most doubles mu.

    Args:
        epsilon: epsilon to keep to.
        records: 1 for removal, 2 for replacement.
    """
    mu = _gaussian_mu(epsilon, DELTA) / records

    def excess(passed: float) -> float:
        parts = (BIN_PART * passed, (1.0 - BIN_PART) * passed)
        return math.hypot(*(_gaussian_mu(part, DELTA / 2) for part in parts)) - mu

    return brentq(excess, 0.02 * epsilon, 20.0 * epsilon)


def ebm(problem: Problem, epsilon: float, seed: int, records: int = 2) -> Result:
    """Trains the package's `DPExplainableBoostingClassifier` on the columns of a table."""
    from interpret.privacy import DPExplainableBoostingClassifier

    data = problem.data
    kinds, bounds = _column_kinds(problem)
    model = DPExplainableBoostingClassifier(
        feature_types=kinds,
        privacy_bounds=bounds,
        epsilon=epsilon_of_ebm(epsilon, records),
        delta=DELTA,
        bin_budget_frac=BIN_PART,
        max_rounds=5 if problem.is_quick else 300,
        random_state=seed,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its noise has a seed
        model.fit(_columns(problem, data.private.inputs), data.private.labels)
        return Result(scores=model.predict_proba(_columns(problem, data.held_out.inputs)))


def _column_kinds(problem: Problem) -> tuple[list[Any], dict[int, tuple[float, float]]]:
    """Returns the package's types of columns: "continuous", or the categories; and ranges."""
    kinds: list[Any] = []
    bounds = {}
    for place, (column, low, high) in enumerate(_spans(problem)):
        if high - low == 1:
            kinds.append("continuous")
            bounds[place] = column
        else:
            kinds.append([str(number) for number in range(high - low)])
    return kinds, bounds


def _spans(problem: Problem) -> list[tuple[tuple[float, float], int, int]]:
    """Returns the range of each column, and its first and last features."""
    dataset = problem.data.dataset
    lows, highs = (np.asarray(side, np.float64) for side in dataset.value_range)
    spans, start = [], 0
    for column in dataset.schema.columns:
        spans.append(((lows[start], highs[start]), start, start + column.width))
        start += column.width
    return spans


def _columns(problem: Problem, inputs: npt.NDArray) -> npt.NDArray:
    """Returns the columns of a table: numbers, and categories as texts of their numbers."""
    columns = [
        inputs[:, low].astype(object)
        if high - low == 1
        else inputs[:, low:high].argmax(axis=1).astype(str).astype(object)
        for _, low, high in _spans(problem)
    ]
    return np.stack(columns, axis=1)


# Methods of this library, and without privacy.


def library(problem: Problem, epsilon: float, seed: int) -> Result:
    """Runs `pate_tf.fit` with its defaults, as `pate run` does."""
    data = problem.data
    with separate_registry() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fitted = pate_tf.fit(
            data,
            epsilon=epsilon,
            delta=DELTA,
            directory=folder / "run",
            seed=seed,
            accept_forecast=True,
        )
        return Result(scores=fitted.predict_proba(data.held_out))


def sums_and_student(problem: Problem, epsilon: float, seed: int) -> Result:
    """Trains a student on labels of the pool, from noisy class sums of features.

    Only the sums of features by class are private. Replacing one record moves them by at most 2.
    The directions in which features vary come from the pool, by ridge regression.
    """
    data = problem.data
    features = problem.features(problem.representations[0])
    num_classes, num_records = problem.num_classes, len(data.private)
    sigma = dp_sgd.noise_multiplier(epsilon, DELTA, 1.0, 1)
    sums = features.private.T.astype(np.float64) @ np.eye(num_classes)[data.private.labels]
    sums += np.random.default_rng(1_000 + seed).normal(0.0, sigma, sums.shape)
    wide = features.pool.astype(np.float64)
    squares = (wide.T @ wide) * (num_records / len(wide))
    # The ridge penalty is the noise variance divided by the signal variance.
    penalty = sigma * math.sqrt(len(squares) / num_classes)
    squares[np.diag_indices_from(squares)] += penalty + 1e-3 * np.trace(squares) / len(squares)
    labels = (wide @ np.linalg.solve(squares, sums)).argmax(axis=1)
    settings = StudentSettings(
        student="consistency" if problem.kind == "image" else "supervised",
        max_steps=20 if problem.is_quick else None,
        seed=seed,
    )
    config = complete(settings, data.dataset, labels_whole_pool=True)
    released = PoolLabels(
        query_indices=np.arange(len(labels)), labels=labels, num_classes=num_classes
    )
    model = kind_of(config.student).train(config, released, data.pool)
    return Result(scores=softmax(outputs(model, data.held_out.inputs), axis=1))


def _without_privacy(problem: Problem, seed: int, uses_private: bool) -> Result:
    """Trains gradient boosting, or a logistic regression where it is better, without noise."""
    data = problem.data
    features = problem.features(problem.representations[0])
    wide, inputs, labels = features.pool, data.pool.inputs, data.pool.true_labels
    if uses_private:
        wide = np.concatenate([features.private, wide])
        inputs = np.concatenate([data.private.inputs, inputs])
        labels = np.concatenate([data.private.labels, *([] if labels is None else [labels])])

    def linear(rows: IntArray | slice, queries: Array) -> Scores:
        head = _logistic(wide[rows], labels[rows], problem.num_classes, 30.0)
        return softmax(queries @ head, axis=1)

    def boosted(rows: IntArray | slice, queries: npt.NDArray) -> Scores:
        model = HistGradientBoostingClassifier(random_state=seed)
        model.fit(inputs[rows], labels[rows])
        scores = np.zeros((len(queries), problem.num_classes))
        scores[:, model.classes_] = model.predict_proba(queries)
        return scores

    def scores(setting: Setting, rows: IntArray, left_out: IntArray) -> Scores:
        if setting.features:
            return linear(rows, wide[left_out])
        return boosted(rows, inputs[left_out])

    name = problem.representations[0]
    first = Setting() if problem.kind == "table" else Setting(features=name)
    setting = first
    if problem.kind == "table":
        setting = chosen(problem, first, [("features", (name,))], scores, labels, 1)
    if setting.features:
        return Result(scores=linear(slice(None), features.test), setting=setting)
    return Result(scores=boosted(slice(None), data.held_out.inputs), setting=setting)


def public_only(problem: Problem, epsilon: float, seed: int) -> Result:
    """Trains on the labels of the pool only."""
    del epsilon
    return _without_privacy(problem, seed, uses_private=False)


def no_privacy(problem: Problem, epsilon: float, seed: int) -> Result:
    """Trains on all records."""
    del epsilon
    return _without_privacy(problem, seed, uses_private=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """An entry of the catalogue.

    Attributes:
        title: title in a table.
        short: short name in a table.
        run: function from a problem, an epsilon and a seed to a result.
        has_epsilon: whether it keeps to an epsilon; otherwise one run without noise holds for all.
        skipped: function from a problem to the reason why it is not run, or "".
    """

    title: str
    short: str
    run: Callable[[Problem, float, int], Result]
    has_epsilon: bool = True
    skipped: Callable[[Problem], str] = lambda problem: ""


def _needs_pool(problem: Problem) -> str:
    return "" if problem.has_pool else "needs a pool"


def _needs_images(problem: Problem) -> str:
    return "" if problem.kind == "image" else "needs images"


def _skips_ebm(problem: Problem) -> str:
    if problem.kind != "table":
        return "needs a table"
    if importlib.util.find_spec("interpret") is None:
        return "needs `pip install interpret-core`"
    return "" if problem.num_classes == 2 else "the package supports two classes only"


OURS = "pate_tf"
METHODS: Mapping[str, Method] = {
    OURS: Method(title="pate_tf", short="pate_tf", run=library),
    "head": Method(title="DP-SGD, linear head", short="head", run=head),
    "network": Method(title="DP-SGD, small network", short="network", run=small_network),
    "wavelets": Method(
        title="DP-SGD, linear head on wavelets",
        short="wavelets",
        run=functools.partial(head, representations=(WAVELETS,)),
        skipped=_needs_images,
    ),
    "ebm": Method(title="DP-EBM", short="EBM", run=ebm, skipped=_skips_ebm),
    "ebm_removal": Method(
        title="DP-EBM, epsilon under removal",
        short="EBM under removal",
        run=functools.partial(ebm, records=1),
        skipped=_skips_ebm,
    ),
    "sums": Method(
        title="noisy sums and our student", short="sums", run=sums_and_student, skipped=_needs_pool
    ),
    "public": Method(
        title="public labels only",
        short="public",
        run=public_only,
        has_epsilon=False,
        skipped=_needs_pool,
    ),
    "no_privacy": Method(title="no privacy", short="no privacy", run=no_privacy, has_epsilon=False),
}
NOT_RANKED = ("ebm_removal", "no_privacy")  # their guarantee is weaker
