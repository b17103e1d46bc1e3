"""The compared methods, by name.

A method takes a problem, an epsilon at `DELTA` under replace-one, and a seed. It returns a score
for each test record and class. Settings of the other methods are chosen together in `chosen`, by
cross-validation on the training records. This choice is not charged, which favors them.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from benchmarks.board.problems import DELTA, WAVELETS, Array, Features, Problem
from benchmarks.harness import separate_registry
from pate_tf.core.checks import IntArray
from pate_tf.core.public import PoolLabels, area_under_curve
from pate_tf.students.student_kinds import StudentSettings, complete, kind_of
from pate_tf.students.student_training import outputs

FOLDS, MAX_RECORDS = 3, 6_000  # of the choice of settings
FINALISTS = 12  # settings that are compared on all folds
FEW, SMALL, DRAWS = 1_100, 3_500, 4  # records: all folds at once; several draws of the noise
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
        leaves: number of leaves of a tree of DP-EBM.
        bins: maximum number of bins of a column of DP-EBM.
        bin_part: part of epsilon that DP-EBM spends on bins.
        is_nominal: whether the categories of DP-EBM have no order.
        has_ranks: whether DP-EBM sees places among the pool's quantiles instead of numbers.
    """

    features: str = ""
    rate: float = 0.0
    steps: int = 0
    starts_public: bool = False
    regularization: float = 30.0
    leaves: int = 3
    bins: int = 32
    bin_part: float = 0.1
    is_nominal: bool = False
    has_ranks: bool = False


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

Evaluate = Callable[[Sequence[Setting], IntArray, IntArray, int], Iterable[Scores]]


def grid(limit: int | None = None, **values: Sequence[Any]) -> list[Setting]:
    """Returns all combinations of values of fields, or the first one and `limit` random ones."""
    found = [
        Setting(**dict(zip(values, each, strict=True)))
        for each in itertools.product(*values.values())
    ]
    if limit is None or limit >= len(found):
        return found
    places = np.random.default_rng(0).choice(np.arange(1, len(found)), limit, replace=False)
    return [found[place] for place in (0, *sorted(places))]


def chosen(
    problem: Problem,
    settings: Sequence[Setting],
    evaluate: Evaluate,
    labels: IntArray,
    first_records: int = MAX_RECORDS,
) -> Setting:
    """Returns the setting with the highest accuracy on left-out folds.

    All settings are compared on one fold, or on all of them if there are few records. The best of
    them are compared on all folds, with several draws of the noise for a small data set.

    Args:
        problem: the data.
        settings: the settings.
        evaluate: function from settings, rows to train on, left-out rows and a seed to scores.
        labels: classes of the training records.
        first_records: maximum number of rows to train on in the first comparison.
    """
    order = np.random.default_rng(0).permutation(len(labels))[:MAX_RECORDS]
    parts = np.array_split(order, FOLDS)

    def quality(some: Sequence[Setting], folds: int, records: int, draws: int) -> npt.NDArray:
        found = np.zeros(len(some))
        for place, draw in itertools.product(range(folds), range(draws)):
            rows = np.concatenate([part for other, part in enumerate(parts) if other != place])
            scores = evaluate(some, rows[:records], parts[place], draw * FOLDS + place)
            truth = labels[parts[place]]
            found += [(np.nan_to_num(each).argmax(axis=1) == truth).mean() for each in scores]
        return found

    if problem.is_quick or len(settings) == 1:
        return settings[0]
    with problem.not_counted():
        first = quality(settings, FOLDS if len(labels) <= FEW else 1, first_records, 1)
        best = [settings[place] for place in np.argsort(-first, kind="stable")[:FINALISTS]]
        draws = DRAWS if len(labels) < SMALL else 1
        return best[quality(best, FOLDS, MAX_RECORDS, draws).argmax()]


# Linear heads.

RIDGES = (30.0, 1.0, 1_000.0)


@functools.lru_cache(maxsize=16)
def public_head(problem: Problem, features: str) -> Array:
    """Returns a logistic regression `[num_features, num_classes]` of the pool's labels."""
    labels = problem.data.pool.true_labels
    wide = problem.features(features).pool

    def scores(
        settings: Sequence[Setting], rows: IntArray, left_out: IntArray, seed: int
    ) -> Iterator[Scores]:
        del seed
        for each in settings:
            head = _logistic(wide[rows], labels[rows], problem.num_classes, each.regularization)
            yield softmax(wide[left_out] @ head, axis=1)

    values = (30.0,) if problem.kind == "image" else RIDGES
    setting = chosen(problem, grid(regularization=values), scores, labels)
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


def trained_heads(
    features: Array,
    labels: IntArray,
    *,
    start: Array,
    rates: Sequence[float],
    steps: int,
    sigma: float,
    seed: int,
) -> Array:
    """Returns a softmax classifier for each rate, trained by full-batch DP-SGD.

    The heads are trained together, because this takes less time. They have the same noise.

    Args:
        features: `[num_records, num_features]`.
        labels: `[num_records]`.
        start: initial weights.
        rates: rates of steps along mean gradients, in clipping lengths.
        steps: number of steps.
        sigma: standard deviation of the noise on each sum, in clipping lengths.
        seed: seed of the noise.

    Returns:
        `[num_rates, num_features, num_classes]`.
    """
    random = np.random.default_rng(seed)
    num_features, num_classes = start.shape
    many = (num_features, len(rates), num_classes)
    weights = np.repeat(start[:, np.newaxis].astype(np.float32), len(rates), axis=1)
    velocity, mean = np.zeros_like(weights), np.zeros_like(weights)
    scaled_rates = np.asarray(rates, np.float32)[:, np.newaxis]
    one_hot = np.eye(num_classes, dtype=np.float32)[labels][:, np.newaxis]
    lengths = np.linalg.norm(features, axis=1)[:, np.newaxis]
    for step in range(steps):
        errors = (features @ weights.reshape(num_features, -1)).reshape(-1, *many[1:])
        errors -= errors.max(axis=2, keepdims=True)
        np.exp(errors, out=errors)
        errors /= errors.sum(axis=2, keepdims=True)
        errors -= one_hot
        norms = lengths * np.sqrt(np.einsum("nrc,nrc->nr", errors, errors))  # of gradients
        errors *= (HEAD_CLIP / np.maximum(norms, HEAD_CLIP))[..., np.newaxis]
        noise = random.standard_normal(start.shape, np.float32) * np.float32(sigma * HEAD_CLIP)
        gradient = (features.T @ errors.reshape(len(errors), -1)).reshape(many)
        gradient += noise[:, np.newaxis]
        velocity = 0.9 * velocity + gradient / np.float32(HEAD_CLIP * len(features))
        weights = weights - scaled_rates * velocity
        if step >= steps // 2:
            mean += weights / (steps - steps // 2)
    return mean.transpose(1, 0, 2)


def _heads_of(
    problem: Problem,
    setting: Setting,
    rates: Sequence[float],
    epsilon: float,
    rows: IntArray | slice,
    seed: int,
    records: int = 2,
) -> Array:
    """Trains a head for each rate on some rows, with noise in proportion to their number.

    `records` is 2 for replacement. Removal, 1, moves a clipped sum half as far.
    """
    features = problem.features(setting.features).private
    labels = problem.data.private.labels[rows]
    start = np.zeros((features.shape[1], problem.num_classes), np.float32)
    if setting.starts_public:
        start = public_head(problem, setting.features)
    sigma = dp_sgd.noise_multiplier(epsilon, DELTA, 1.0, setting.steps) * records / 2
    return trained_heads(
        features[rows],
        labels,
        start=start,
        rates=rates,
        steps=setting.steps,
        sigma=sigma * len(labels) / len(features),
        seed=seed,
    )


@functools.lru_cache(maxsize=8)
def _head_setting(problem: Problem, epsilon: float, representations: tuple[str, ...]) -> Setting:
    def scores(
        settings: Sequence[Setting], rows: IntArray, left_out: IntArray, seed: int
    ) -> Iterator[Scores]:
        for same, group in itertools.groupby(
            settings, lambda setting: dataclasses.replace(setting, rate=0.0)
        ):
            rates = [setting.rate for setting in group]
            queries = problem.features(same.features).private[left_out]
            for head in _heads_of(problem, same, rates, epsilon, rows, seed):
                yield softmax(queries @ head, axis=1)

    settings = grid(
        features=representations,
        starts_public=(False, True) if problem.has_pool else (False,),
        steps=(5,) if problem.is_quick else (10, 60, 300),
        rate=(0.004, 0.016, 0.06, 0.25, 1.0, 4.0, 16.0, 64.0),
    )
    return chosen(problem, settings, scores, problem.data.private.labels, 3_000)


def head(
    problem: Problem,
    epsilon: float,
    seed: int,
    representations: tuple[str, ...] = (),
    records: int = 2,
) -> Result:
    """Trains a linear head by DP-SGD on features, with the best settings under replacement."""
    representations = representations or problem.representations
    setting = _head_setting(problem, epsilon, representations)
    rates, everything = [setting.rate], slice(None)
    weights = _heads_of(problem, setting, rates, epsilon, everything, 1_000 + seed, records)[0]
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
    def scores(
        settings: Sequence[Setting], rows: IntArray, left_out: IntArray, seed: int
    ) -> Iterator[Scores]:
        for setting in settings:
            weights = _weights_of(problem, setting, epsilon, rows, seed)
            private, _, _ = _network_inputs(problem, setting.features)
            net = _network(private.shape[1:], problem.num_classes)
            yield softmax(net.logits(weights, private[left_out]), axis=1)

    features = {"table": ("bins",), "text": problem.representations, "image": ()}[problem.kind]
    settings = grid(
        features=("", *features),
        starts_public=(False, True) if problem.has_pool else (False,),
        steps=(5,) if problem.is_quick else (20, 120),
        rate=(0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    )
    return chosen(problem, settings, scores, problem.data.private.labels, 1_500)


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


def epsilon_of_ebm(epsilon: float, bin_part: float, records: int = 2, part: float = 1.0) -> float:
    """Returns the epsilon to pass to the package, so that it keeps to `epsilon` at `DELTA`.

    The package's epsilon is for removal, and it adds those of bins and of boosting, each of which
    has half of delta. Both are Gaussian mechanisms, so their exact composition is Gaussian, too,
    and costs less. Replacing a record removes one and adds one. This changes two counts of each
    histogram by 1, so mu of the bins grows by sqrt(2). It changes the sum of a leaf by up to twice
    the range of one record, so mu of boosting doubles.

    Args:
        epsilon: epsilon to keep to.
        bin_part: part of epsilon for bins.
        records: 1 for removal, 2 for replacement.
        part: part of the records that is trained on. The noise is in proportion to it.
    """
    mu = _gaussian_mu(epsilon, DELTA)

    def excess(passed: float) -> float:
        bins, boosting = (
            _gaussian_mu(share * passed, DELTA / 2) for share in (bin_part, 1.0 - bin_part)
        )
        return part * math.hypot(math.sqrt(records) * bins, records * boosting) - mu

    return brentq(excess, 0.02 * epsilon, 100.0 * epsilon)


@functools.lru_cache(maxsize=8)
def _ebm_setting(problem: Problem, epsilon: float) -> Setting:
    def scores(
        settings: Sequence[Setting], rows: IntArray, left_out: IntArray, seed: int
    ) -> Iterator[Scores]:
        for setting in settings:
            yield _ebm_scores(problem, setting, epsilon, 2, rows, left_out, seed)

    has_categories = any(high - low > 1 for _, low, high in _spans(problem))
    both = (False, True)
    settings = grid(
        95,  # and the first, which is the package's default
        rate=(0.01, 0.03, 0.1, 0.3),
        steps=(5,) if problem.is_quick else (300, 100, 30, 10),
        leaves=(3, 2, 6),
        bins=(32, 128, 16, 8, 4),
        bin_part=(0.1, 0.03, 0.3, 0.6),
        is_nominal=(True, False) if has_categories else (False,),
        starts_public=both if problem.has_pool else (False,),
        has_ranks=both if problem.has_pool else (False,),
    )
    return chosen(problem, settings, scores, problem.data.private.labels)


def ebm(problem: Problem, epsilon: float, seed: int, records: int = 2) -> Result:
    """Trains the package's classifier with the settings that are best under replacement."""
    setting = _ebm_setting(problem, epsilon)
    rows = np.arange(len(problem.data.private))
    test = len(rows) + np.arange(len(problem.data.held_out))
    return Result(
        scores=_ebm_scores(problem, setting, epsilon, records, rows, test, 1_000 + seed),
        setting=setting,
    )


def _ebm_scores(
    problem: Problem,
    setting: Setting,
    epsilon: float,
    records: int,
    rows: IntArray,
    queries: IntArray,
    seed: int,
) -> Scores:
    """Trains on some rows of `_columns`, with noise in proportion, and scores other rows."""
    from interpret.privacy import DPExplainableBoostingClassifier

    private = problem.data.private
    columns, kinds, bounds = _columns(problem, setting.has_ranks)
    start = _public_log_odds(problem) if setting.starts_public else np.zeros(len(columns))
    passed = epsilon_of_ebm(epsilon, setting.bin_part, records, len(rows) / len(private))
    model = DPExplainableBoostingClassifier(
        feature_types=[
            "nominal" if setting.is_nominal and kind != "continuous" else kind for kind in kinds
        ],
        privacy_bounds=bounds,
        epsilon=passed,
        delta=DELTA,
        bin_budget_frac=setting.bin_part,
        learning_rate=setting.rate,
        max_rounds=setting.steps,
        max_leaves=setting.leaves,
        max_bins=setting.bins,
        random_state=seed,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its noise has a seed
        model.fit(columns[rows], private.labels[rows], init_score=start[rows])
        return model.predict_proba(columns[queries], init_score=start[queries])


@functools.lru_cache(maxsize=2)
def _public_log_odds(problem: Problem) -> Scores:
    """Returns log odds of private records, then of test records, by the model of the pool."""
    scores, _ = _without_privacy(problem, 0, uses_private=False)
    odds = np.clip(scores, 1e-3, None)
    return np.log(odds[:, 1] / odds[:, 0])


def _spans(problem: Problem) -> list[tuple[tuple[float, float], int, int]]:
    """Returns the range of each column, and its first and last features."""
    dataset = problem.data.dataset
    lows, highs = (np.asarray(side, np.float64) for side in dataset.value_range)
    spans, start = [], 0
    for column in dataset.schema.columns:
        spans.append(((lows[start], highs[start]), start, start + column.width))
        start += column.width
    return spans


@functools.lru_cache(maxsize=2)
def _columns(
    problem: Problem, has_ranks: bool
) -> tuple[npt.NDArray, list[Any], dict[int, tuple[float, float]]]:
    """Returns columns of a table, their types for the package, and ranges of numbers.

    Private records are first, then test records. Categories are texts of their numbers.
    """
    data = problem.data
    inputs = np.concatenate([data.private.inputs, data.held_out.inputs])
    columns: list[npt.NDArray] = []
    kinds: list[Any] = []
    bounds = {}
    for place, (span, low, high) in enumerate(_spans(problem)):
        if high - low > 1:
            columns.append(inputs[:, low:high].argmax(axis=1).astype(str).astype(object))
            kinds.append([str(number) for number in range(high - low)])
            continue
        numbers = inputs[:, low].astype(np.float64)
        if has_ranks:
            parts = np.linspace(0.0, 1.0, 31)[1:-1]
            quantiles = np.unique(np.quantile(data.pool.inputs[:, low], parts))
            numbers = np.searchsorted(quantiles, numbers, side="right").astype(np.float64)
            span = (0.0, float(len(quantiles)))
        columns.append(numbers.astype(object))
        kinds.append("continuous")
        bounds[place] = span
    return np.stack(columns, axis=1), kinds, bounds


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


def _without_privacy(problem: Problem, seed: int, uses_private: bool) -> tuple[Scores, Setting]:
    """Trains gradient boosting, or a logistic regression where it is better, without noise.

    Returns:
        Scores of private records, then of test records, and the chosen setting.
    """
    data = problem.data
    plain = Features(private=data.private.inputs, pool=data.pool.inputs, test=data.held_out.inputs)
    labels = data.pool.true_labels
    if uses_private:
        labels = np.concatenate([data.private.labels, *([] if labels is None else [labels])])

    def scores_of(setting: Setting, rows: IntArray | slice, left_out: IntArray | None) -> Scores:
        sides = problem.features(setting.features) if setting.features else plain
        known = np.concatenate([sides.private, sides.pool]) if uses_private else sides.pool
        unseen = np.concatenate([sides.private, sides.test])
        queries = unseen if left_out is None else known[left_out]
        if setting.features:
            ridge = setting.regularization
            head = _logistic(known[rows], labels[rows], problem.num_classes, ridge)
            return softmax(queries @ head, axis=1)
        model = HistGradientBoostingClassifier(
            learning_rate=setting.rate, max_leaf_nodes=setting.leaves, random_state=seed
        )
        model.fit(known[rows], labels[rows])
        scores = np.zeros((len(queries), problem.num_classes))
        scores[:, model.classes_] = model.predict_proba(queries)
        return scores

    def scores(
        settings: Sequence[Setting], rows: IntArray, left_out: IntArray, seed: int
    ) -> Iterator[Scores]:
        del seed
        for setting in settings:
            yield scores_of(setting, rows, left_out)

    names = problem.representations
    settings = grid(features=names if problem.kind == "text" else names[:1])
    if problem.kind == "table":
        settings += grid(rate=(0.1,), leaves=(31,))
        if not uses_private:
            settings += grid(rate=(0.05,), leaves=(8,))
            settings += grid(features=problem.representations, regularization=RIDGES)
    setting = chosen(problem, settings, scores, labels, 3_000)
    return scores_of(setting, slice(None), None), setting


def _result_without_privacy(
    problem: Problem, epsilon: float, seed: int, uses_private: bool
) -> Result:
    del epsilon
    scores, setting = _without_privacy(problem, seed, uses_private)
    return Result(scores=scores[len(problem.data.private) :], setting=setting)


def majority(problem: Problem, epsilon: float, seed: int) -> Result:
    """Always predicts the most frequent class of the private records."""
    del epsilon, seed
    counts = np.bincount(problem.data.private.labels, minlength=problem.num_classes)
    return Result(scores=np.tile(counts / counts.sum(), (len(problem.data.held_out), 1)))


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
    "head_removal": Method(
        title="DP-SGD, linear head, epsilon under removal",
        short="head under removal",
        run=functools.partial(head, records=1),
    ),
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
        run=functools.partial(_result_without_privacy, uses_private=False),
        has_epsilon=False,
        skipped=_needs_pool,
    ),
    "majority": Method(
        title="most frequent class", short="majority", run=majority, has_epsilon=False
    ),
    "no_privacy": Method(
        title="no privacy",
        short="no privacy",
        run=functools.partial(_result_without_privacy, uses_private=True),
        has_epsilon=False,
    ),
}
NOT_RANKED = ("head_removal", "ebm_removal", "no_privacy")  # their guarantee is weaker
