"""Plans feature sums: a mechanism, a representation and a forecast."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from math import hypot, inf
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, Target
from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.dataset import CLASS, NUMBER, UNKNOWN, Dataset, is_labeled, unlabeled
from pate_tf.core.public import Pool, area_components, area_under_curve, cluster_numbers, score_of
from pate_tf.core.reporting import Reporting, steps_on_clock
from pate_tf.data.named_function import Named, name_of
from pate_tf.models.encoder import Encoder, record_vectors
from pate_tf.planning.comparison import TEMPLATES, forecast_of_sums, planned_sums
from pate_tf.planning.forecast import UNEVEN_SHARE, Forecast, ForecastError
from pate_tf.planning.release_settings import FEATURE_SUMS, Known, ReleasePlan, ReleaseSettings
from pate_tf.postprocessing.label_inference import labels_from_sums, sums_of_pool
from pate_tf.postprocessing.public_start import FOLDS, public_start
from pate_tf.postprocessing.regression import (
    Averages,
    NoisySums,
    class_probabilities,
    neighbourhood_averages,
    regress_sums,
    weights_of_rounds,
)
from pate_tf.postprocessing.targets import predicted
from pate_tf.queries.strategies import QueryConfig
from pate_tf.release.exact_sums import residual_sums, vector_steps
from pate_tf.release.feature_sums import Summands, pool_centres
from pate_tf.release.noise import SeededNoise, check_drawable
from pate_tf.representations.catalogue import (
    check_representation,
    default_of_sums,
    encoder_of,
    is_known,
    pool_features_by_name,
)
from pate_tf.representations.raw import FINE_DIRECTIONS, MAX_OF_PAIRS

OF_VOTES = ("num_queries", "strategy")  # settings that only method pate has

MAX_LABELED = 3_000  # maximum number of public samples in the trial of a representation
MIN_LABELED: Final = 20  # then n p (1 - p) reaches 5, and a binomial is close to normal
DRAWS: Final = 3  # number of noise draws per fold
WITHOUT_SUMS: Final = 1e9  # standard deviation of noise so large that sums are negligible


class SumsOption:
    """Feature sums planned for a given epsilon, and the expected accuracy of their labels.

    The constructor chooses the mechanism. `tried` and `plan` are slow, so they are computed only
    when needed.

    Attributes:
        planned: the mechanism with its expected labels. If labels would be noise for this number of
            records, `planned` contains the reason.
    """

    def __init__(self, known: Known, settings: ReleaseSettings, reporting: Reporting) -> None:
        self._known = known
        self._settings = settings
        self._reporting = reporting
        pool = known.pool
        has_pool = len(pool) > 0
        target = Target(
            epsilon=settings.budget.epsilon or 0.0,
            delta=settings.budget.delta or 0.0,
            num_queries=1,
            unit=known.unit,
        )
        self._name: Named | None = settings.queries.representation
        self._seed = settings.queries.seed
        self._stored = None
        if known.sums is not None:
            self._stored = known.sums if known.sums.digest else None
            self._name, self._seed = known.sums.settle(pool.dataset)
        has_vectors = known.unit == "record" and pool.dataset.target == CLASS
        if known.sums is not None and known.sums.has_stored_vectors is not None:
            has_vectors = known.sums.has_stored_vectors
        if self._stored is None and self._name is not None:
            check_representation(self._name, pool.dataset, has_pool=has_pool)
        # Whether the representation is part of this library. If not, it is the user's function.
        self._is_ours = self._name is None or is_known(self._name)
        self._trains_on_labels = settings.trains_on_labels(pool, FEATURE_SUMS)
        # Public labels can be added only to sums of a single round.
        has_rounds = has_vectors and not self._trains_on_labels
        resolutions = list[int]()
        if self._stored is not None:
            resolutions = list(self._stored.cluster_counts)
        elif has_pool and known.has_augmentation and self._is_ours:
            resolutions = cluster_numbers(len(pool), known.num_classes)
        self.planned = planned_sums(target, known, resolutions, has_rounds=has_rounds)
        self._mechanism = cast(ReleasesFeatureSums, self.planned.mechanism)
        # Whether a trial (cross-validation) on labeled public samples is possible.
        self._can_try = known.num_records is not None and pool.num_labeled >= MIN_LABELED

    def _by_formula(self, num_features: int) -> Forecast | None:
        """Returns a forecast from results on other data sets.

        The result is None if owners are protected. Results for numbers and several labels do not
        exist.
        """
        known = self._known
        if known.num_records is None or known.pool.dataset.target != CLASS:
            return None
        forecast = forecast_of_sums(self.planned, known, num_features)
        noise = self._mechanism.standard_deviation
        has_moments = not known.pool and self._mechanism.num_rounds == 1
        # If the norm of the noise exceeds the maximum norm of a sum, labels are noise.
        if has_moments and known.num_records / known.num_classes < noise * num_features**0.5:
            forecast = forecast._replace(is_noise=True)
        return forecast

    @functools.cached_property
    def tried(self) -> tuple[Named, Forecast | None]:
        """The best representation, and the forecast of its labels.

        For tables, the representations bins, raw features and, if there are few features, pairs are
        compared by cross-validation on labeled samples of the pool (`trial`). Each third of the
        samples is predicted from noisy sums of the other two thirds. A trial costs no privacy:
        labels and, without owners, the number of private records are public. For texts, images,
        stored sums and a chosen representation, there is only one representation. There is no
        forecast if owners are protected.
        """
        pool = self._known.pool
        reporting = self._reporting
        number = self._known.num_records
        sums = self._mechanism
        name: Named = self._name or default_of_sums(
            pool.dataset,
            has_pool=len(pool) > 0,
            num_labels=pool.num_labeled if self._trains_on_labels else 0,
            in_rounds=sums.num_rounds > 1,
            records_over_noise=(number or inf) / sums.standard_deviation * sums.num_rounds**0.5,
        )
        names: tuple[Any, ...] = (name,)
        if self._can_try and self._name is None and pool.dataset.kind == "tabular":
            names = ("bins", "raw")
        encoders: dict[Any, Any] = {}
        # If owners are protected, there is no forecast, so no encoder is needed here.
        if self._stored is not None and not (self._is_ours and self._can_try):
            # The user's function may have changed after the sums were stored, so use the stored
            # encoder.
            encoders[name] = self._stored.encoder
        elif self._known.num_records is not None:
            with reporting.clock("training the representation"):
                encoders = {each: encoder_of(pool, each, self._seed) for each in names}
        if not self._can_try:
            return name, self._by_formula(encoders[name].num_features if encoders else 1)
        # Regressions of other targets on products of many features would take minutes.
        most = MAX_OF_PAIRS if pool.dataset.target == CLASS else MAX_OF_PAIRS // 4
        if "raw" in names[1:] and encoders["raw"].num_features - 1 <= most:
            encoders["pairs"] = encoder_of(pool, "pairs", self._seed)
        skip = " (to skip this: --representation=bins)" * (len(encoders) > 1)
        tried = f"trying {', '.join(map(name_of, encoders))}, nothing is charged yet{skip}"
        with reporting.clock(tried):
            advance = steps_on_clock(len(encoders) + (len(encoders) > 1))
            if len(encoders) > 1:
                trials = dict[Any, Forecast]()
                for each, encoder in encoders.items():
                    trials[each] = self._trial(each, encoder, 1)
                    advance(1)
                name = max(encoders, key=lambda each: trials[each].accuracy)
                self._note(trials)
            return name, self._trial(name, encoders[name], DRAWS)

    def _note(self, trials: Mapping[Any, Forecast]) -> None:
        """Reports the results of trials."""
        form = ".1%" if self._known.pool.dataset.target == CLASS else ".2f"
        shown = ", ".join(f"{each} {of.accuracy:{form}}" for each, of in trials.items())
        self._reporting.note(f"Trial on labeled public samples: {shown}.")

    def _trial(self, name: Named, encoder: Encoder, num_draws: int) -> Forecast:
        """Returns the result of `trial` for the planned mechanism."""
        known = self._known
        dataset = known.pool.dataset
        is_linear = dataset.augmentation == "none" or encoder.is_frozen or dataset.target != CLASS
        number = known.num_records or 1
        # With about as many directions as texts, each direction describes one text of the pool, and
        # other texts are predicted better than the pool's. So the trial uses few directions. On two
        # sets of package descriptions, the gain was .22 too low with 518 labels, .005 with 1,642.
        if name == "fine_lsa" and known.pool.num_labeled < 2 * FINE_DIRECTIONS:
            encoder = encoder_of(known.pool, "lsa", self._seed)
        if self._trains_on_labels and is_linear:
            return trial_with_public_labels(
                known.pool, encoder, self._mechanism, number, measures_gain=num_draws > 1
            )
        has_views = known.has_augmentation and not encoder.is_frozen
        views = pool_features_by_name(known.pool, name, self._seed) if has_views else ()
        clusters = self._mechanism.num_clusters
        centres = pool_centres(encoder, known.pool)[clusters] if clusters else None
        forecast = trial(known.pool, encoder, self._mechanism, number, views, num_draws, centres)
        if dataset.kind == "image" and dataset.target == CLASS and not self._trains_on_labels:
            of_labels = accuracy_without_noise(known.pool, encoder)
            if of_labels is not None:
                spans = (forecast.high - forecast.low, of_labels.high - of_labels.low)
                forecast = forecast._replace(
                    public_accuracy=of_labels.accuracy,
                    gain=forecast.accuracy - of_labels.accuracy,
                    gain_error=hypot(*spans) / 4.0,  # a range has two errors on each side
                    is_precise=False,  # the student may be better than these linear models
                )
        return forecast

    def plan(self) -> ReleasePlan:
        """Returns the plan of the release.

        Raises:
            ForecastError: if labels would be noise and the setting `accept_forecast` is False.
            ValueError: if settings for votes are given, or if the noise can't be drawn.
        """
        settings = self._settings
        pool = self._known.pool
        given = {field: getattr(settings.queries, field) for field in OF_VOTES}
        for field, value in {"mechanism": settings.mechanism, **given}.items():
            if value is not None:
                raise ValueError(
                    f"{field} must not be given with method feature_sums, which labels the "
                    "whole pool without teachers. Remove it, or use method pate."
                )
        refusal = self.planned.refusal
        if not settings.budget.accept_forecast:
            if refusal and not self._can_try:
                raise ForecastError(refusal)
            # Fail early if labels would be noise, before the slow training of image features.
            by_formula = self._by_formula(num_features=1)
            is_slow = len(pool) > 0 and pool.dataset.kind == "image"
            if is_slow and by_formula is not None and by_formula.is_noise and not refusal:
                by_formula.check(pool.majority_share)
        check_drawable(self._mechanism)
        name, forecast = self.tried
        # A function that was passed as an object can't be loaded later.
        has_name = self._is_ours or (isinstance(name, str) and ":" in name)
        words = TEMPLATES.get_template("sums.md").render(
            epsilon=settings.budget.epsilon,
            planned=self.planned,
            known=self._known,
            target=pool.dataset.target,
            forecast=forecast,
        )
        reason, description = words.splitlines()
        return ReleasePlan(
            mechanism=self._mechanism,
            queries=QueryConfig(
                strategy="first",
                num_queries=len(pool),
                representation=name if self._stored is None or has_name else None,
                seed=settings.queries.seed,
            ),
            representation=name,
            forecast=forecast,
            reason=reason,
            description=description,
        )


# Trials on labeled public samples, to forecast label accuracy before privacy budget is spent.


@functools.lru_cache(maxsize=2)
def accuracy_without_noise(pool: Pool, encoder: Encoder | None = None) -> Forecast | None:
    """Returns the cross-validated accuracy of a linear model on a pool's labels.

    The result is None for images without an encoder, because their features are slow to compute,
    and for fewer than `MIN_LABELED` labels.
    """
    if pool.num_labeled < MIN_LABELED or (pool.dataset.kind == "image" and encoder is None):
        return None
    name = default_of_sums(pool.dataset, num_labels=pool.num_labeled)
    encoder = encoder or encoder_of(pool, name, 0)
    unused = GaussianFeatureSums(sigma=1.0)
    return trial_with_public_labels(pool, encoder, unused, 1, measures_gain=False)


def _features(encoder: Encoder, pool: Pool, rows: IntArray) -> RealArray:
    """Returns features of some inputs of a pool, `[num_rows, num_features]`."""
    if encoder.is_frozen or pool.dataset.kind == "image":  # these features are needed anyway
        return encoder.features(pool.inputs)[rows]
    return encoder.features(pool.inputs[rows])


def trial(
    pool: Pool,
    encoder: Encoder,
    mechanism: ReleasesFeatureSums,
    num_records: int,
    views: Sequence[Sequence[RealArray]] = (),
    num_draws: int = DRAWS,
    centres: FloatArray | None = None,
) -> Forecast:
    """Forecasts label accuracy by cross-validation: each fold is labeled from all other folds.

    The ratio of noise to sums is the same as in the release. The noise comes from a seed, because
    the labeled samples are public and nothing is released.

    Args:
        pool: public pool; the first `MAX_LABELED` samples with a true label are used.
        encoder: encoder of the samples.
        mechanism: mechanism that will release the sums of the private records.
        num_records: public number of private records.
        views: features from `pool_features_by_name`, if labels are computed from neighbors.
        num_draws: number of noise draws per fold.
        centres: cluster centres, if the mechanism counts records in clusters.

    Returns:
        The forecast for labels of the whole pool.
    """
    true_labels = np.asarray(pool.true_labels)
    rows = np.flatnonzero(is_labeled(true_labels))[:MAX_LABELED]
    labels = true_labels[rows]
    # The number of draws is also the seed. The final trial and the trials that choose the encoder
    # use different numbers of draws, so their noise differs.
    noise = SeededNoise(num_draws)
    num_labels = len(pool)
    features = _features(encoder, pool, rows)
    averages = list[Averages]()
    if views and mechanism.num_rounds == 1:
        of_samples = [[view[rows] for view in each] for each in views]
        averages = list(neighbourhood_averages(of_samples))
    # Without augmentation, labels of images also come from a linear model.
    pool = Pool(dataclasses.replace(pool.dataset, augmentation="none"), pool.inputs[rows])
    vectors = record_vectors(features, encoder.scale)
    steps = vector_steps(vectors)
    moments = vectors.T @ vectors / len(vectors)
    dataset = pool.dataset
    deviation = mechanism.standard_deviation
    num_outputs = 1 if dataset.target == NUMBER else dataset.num_classes
    logits = np.empty((num_draws, len(labels), num_outputs))
    released = list[NoisySums]()
    folds = np.arange(len(labels)) % FOLDS
    cells = list(itertools.product(range(num_draws), range(FOLDS)))
    clusters = {} if centres is None else {len(centres): centres}
    summands = Summands(dataset, np.ones(features.shape[1]), clusters)
    first = 0 if centres is None else vectors.shape[1]  # in the array, counts come after sums
    of_others = [
        summands.of_records(vectors[folds != fold], labels[folds != fold])[first:]
        for fold in range(FOLDS)
    ]
    for draw, fold in cells:
        is_other = folds != fold
        exact = of_others[fold]
        values = np.empty((0, *exact.shape), np.int64)
        while len(values) < mechanism.num_rounds:
            if len(values):
                number = mechanism.num_rounds
                weights = weights_of_rounds(values, moments, num_records, deviation, number)
                exact = residual_sums(steps[is_other], labels[is_other], weights)
            # Scale the sums of the samples to the number of private records.
            drawn = mechanism.draw_sums(exact * num_records // is_other.sum(), noise)
            values = np.concatenate([values, drawn[None]])
        if averages:
            released.append(sums_of_pool(vectors, values[0] / LATTICE, deviation, centres))
            continue
        _, model = labels_from_sums(
            pool,
            vectors,
            values,
            deviation,
            moments=moments,
            num_records=num_records,
            groups=encoder.groups,
            is_frozen=encoder.is_frozen,
        )
        logits[draw, folds == fold] = vectors[folds == fold] @ np.asarray(model)
    if averages:
        for (draw, fold), regression in zip(cells, regress_sums(averages, *released), strict=True):
            logits[draw, folds == fold] = class_probabilities(regression)[folds == fold]
    return forecast_of_trial(logits, labels, folds, dataset, num_labels)


def trial_with_public_labels(
    pool: Pool,
    encoder: Encoder,
    mechanism: ReleasesFeatureSums,
    num_records: int,
    *,
    measures_gain: bool = True,
) -> Forecast:
    """Forecasts the accuracy of a model that uses public labels and noisy sums together.

    Cross-validation measures the accuracy with public labels only. To measure the gain, the labeled
    samples are divided into thirds. One third is used like private records. Models are trained on
    the second third, with and without noisy sums of the first third, and compared on the last
    third. See `trial` for the results.

    Args:
        pool: public pool; the first `MAX_LABELED` samples with a true label are used.
        encoder: encoder of the samples.
        mechanism: mechanism that will release the sums of the private records.
        num_records: public number of private records.
        measures_gain: whether to measure the gain. For targets, it is always measured.
    """
    true_labels = np.asarray(pool.true_labels)
    rows = np.flatnonzero(is_labeled(true_labels))[:MAX_LABELED]
    labels = true_labels[rows]
    samples = Pool(dataclasses.replace(pool.dataset, augmentation="none"), pool.inputs[rows])
    vectors = record_vectors(_features(encoder, pool, rows), encoder.scale)
    dataset = pool.dataset
    is_class = dataset.target == CLASS
    folds = np.arange(len(labels)) % FOLDS
    noise = SeededNoise(0)
    summands = Summands(dataset, np.ones(vectors.shape[1] - 1), {})
    num_outputs = 1 if dataset.target == NUMBER else dataset.num_classes
    logits = np.empty((3, len(labels), num_outputs))
    if is_class:
        logits[0] = public_start(vectors, labels, num_outputs)[1]
        if not measures_gain:
            return forecast_of_trial(logits[:1], labels, folds, dataset, len(pool))
    for fold in range(FOLDS):
        is_test = folds == fold
        private = np.flatnonzero(folds == (fold + 1) % FOLDS)[:num_records]
        fraction = len(private) / num_records
        exact = summands.of_records(vectors[private], labels[private])
        drawn = mechanism.draw_sums((exact / fraction).astype(np.int64), noise)
        drawn = np.rint(drawn * fraction).astype(np.int64)
        deviation = mechanism.standard_deviation * fraction
        third = folds == (fold + 2) % FOLDS
        if is_class:
            start, _ = public_start(vectors, np.where(third, labels, UNKNOWN), num_outputs)
            sums = NoisySums.of_features(vectors, drawn / LATTICE, deviation)
            logits[1, is_test] = vectors[is_test] @ start.weights
            logits[2, is_test] = vectors[is_test] @ start.improved(sums, len(private))
            continue
        nothing = np.zeros_like(drawn), WITHOUT_SUMS
        cases = ((~is_test, *nothing), (third, *nothing), (third, drawn, deviation))
        for place, (is_public, values, of_case) in enumerate(cases):
            public = unlabeled(len(labels), dataset)
            public[is_public] = labels[is_public]
            _, model = labels_from_sums(
                samples,
                vectors,
                values[None],
                of_case,
                num_records=len(private),
                is_frozen=encoder.is_frozen,
                public_labels=public,
            )
            logits[place, is_test] = vectors[is_test] @ np.asarray(model)
    forecast = forecast_of_trial(logits[:1], labels, folds, dataset, len(pool))
    of_auc = (pool.majority_share or 0.0) > UNEVEN_SHARE
    truth = np.eye(num_outputs)[labels] if of_auc else labels
    gains = np.empty(len(labels))
    for fold in range(FOLDS):
        rows = folds == fold
        without, with_private = (
            contributions(outputs[rows], truth[rows], dataset) for outputs in logits[1:]
        )
        gains[rows] = with_private - without
    error = float(gains.std()) / len(gains) ** 0.5
    return forecast.with_private(float(gains.mean()), error, len(labels), of_auc=of_auc)


def contributions(outputs: FloatArray, truth: npt.NDArray[Any], dataset: Dataset) -> FloatArray:
    """Returns the contribution of each sample to accuracy, R^2 or AUC, `[num_samples]`.

    The mean of the contributions is the accuracy, R^2 or mean area under the curve. Their standard
    deviation, divided by the square root of the number of samples, is the standard error of this
    mean.

    Args:
        outputs: outputs of the model, `[num_samples, num_outputs]`.
        truth: true labels of the samples. One-hot classes are measured by the AUC.
        dataset: data set with the type of the target.
    """
    if dataset.target == CLASS and truth.ndim == 1:
        return np.asarray(outputs.argmax(axis=1) == truth, np.float64)
    if dataset.target == NUMBER:
        variance = max(float(truth.var()), np.finfo(float).tiny)
        return np.asarray(1.0 - np.square(predicted(outputs, dataset) - truth) / variance)
    components = [
        area_components(column, holds == 1)
        for column, holds in zip(outputs.T, truth.T, strict=True)
        if 0 < holds.sum() < len(holds)
    ]
    return np.asarray(np.mean(components or [np.zeros(len(truth))], axis=0))


def forecast_of_trial(
    outputs: FloatArray, truth: npt.NDArray[Any], folds: IntArray, dataset: Dataset, num_labels: int
) -> Forecast:
    """Computes a forecast from model outputs for held-out samples.

    Args:
        outputs: outputs for each noise draw, `[num_draws, num_samples, num_outputs]`.
        truth: true labels of the samples.
        folds: fold of each sample.
        dataset: data set of the samples.
        num_labels: expected number of labels.
    """
    # Each model is scored separately, because outputs of different models can't be compared.
    cells = [
        (draw[folds == fold], truth[folds == fold]) for draw in outputs for fold in range(FOLDS)
    ]
    if dataset.target != CLASS:
        found = [score_of(predicted(output, dataset), true, dataset) for output, true in cells]
        scores = [score for score in found if score is not None]
        return Forecast.of_scores(scores, num_labels, dataset.target)
    forecast = Forecast.measured(outputs.argmax(axis=2), truth, num_labels, folds)
    areas = [area_under_curve(output, true) for output, true in cells]
    measured = [area for area in areas if area is not None]
    return forecast._replace(auc=float(np.mean(measured))) if measured else forecast
