"""Labels of a public pool from noisy sums of private records: post-processing, free."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.special

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.accounting.planning import LARGE_BATCH, LEAST_ACCURACY, Forecast
from pate_tf.core.public import UNKNOWN, Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.models.encoder import Encoder, nearest_centres, record_vectors
from pate_tf.queries.labels import Labels
from pate_tf.release.moments import weights_of_moments
from pate_tf.release.noise import SeededNoise
from pate_tf.release.noisy_sums import (
    ReleasedSums,
    residual_sums,
    sums_by_class,
    vector_steps,
    weights_of_rounds,
)
from pate_tf.representations.catalogue import default_of_sums, encoder_of, pool_features_by_name
from pate_tf.representations.regression import (
    LEAST_VARIANCE,
    Averages,
    NoisySums,
    Regression,
    class_probabilities,
    labels_of,
    neighbourhood_averages,
    regress_sums,
    standardisation,
)
from pate_tf.students.kinds.linear_head import LinearHead
from pate_tf.teachers.ensemble import SavedEncoder, save_encoder

LOG_FACTORS = (-3.0, 7.0)  # of logits, over what a regression expects
SHRINKAGES = (LEAST_VARIANCE, 10.0 * LEAST_VARIANCE, 1e6)  # of a frozen encoder's directions
MOST_LABELED = 3_000  # public samples, in the trial of a representation
FEWEST_LABELED: Final = 20  # from which on n p (1 - p) reaches 5, and a binomial law is near normal
FOLDS, DRAWS = 3, 3  # of these; of the noise, for each fold
WITHOUT_NOISE: Final = 10**6  # records whose sums outweigh the noise


def released_with(inferred: PoolLabels, pool: Pool, sums: ReleasedSums, **facts: Any) -> Labels:
    """Returns labels that follow from sums with what these cost.

    Args:
        inferred: of every input of the pool.
        pool: that they are of.
        sums: that were charged.
        **facts: further fields of `Labels`.
    """
    released = ReleasedLabels(
        query_indices=inferred.query_indices,
        labels=inferred.labels,
        num_classes=inferred.num_classes,
        num_queries=len(pool),
        cost=sums.cost,
        ledger_rows=sums.ledger_rows,
        secure_noise=sums.secure_noise,
        noisy_sums=sums.values,
    )
    return Labels(
        pool=pool,
        queries=released.query_indices,
        released=released,
        training_labels=inferred,
        strategy="first",  # all of the pool, in its order
        **facts,
    )


def labels_from_sums(
    pool: Pool,
    vectors: npt.NDArray[np.floating],
    values: IntArray,
    noise: float,
    *,
    centres: npt.NDArray[np.float64] | None = None,
    moments: npt.NDArray[np.float64] | None = None,
    num_records: int | None = None,
    groups: IntArray | None = None,
    representation: Named | None = None,
    seed: int = 0,
    is_frozen: bool = False,
) -> tuple[PoolLabels, npt.NDArray[np.float64] | None]:
    """Infers labels of a pool from noisy sums of what records add.

    By linear regression on second moments, where these were released; by the linear model of
    several rounds; else by regression: of images on averages of features
    over neighborhoods, as neighbors most often are of one class, of tables and of a frozen encoder
    on features themselves.

    Args:
        pool: public inputs.
        vectors: what each input would add, `[num_inputs, num_features + 1]`.
        values: noisy sums in steps of 1 / LATTICE, `[num_rounds, num_rows, num_classes]`, or as of
            `weights_of_moments`.
        noise: standard deviation of each round, in what a record adds at most.
        centres: of the clusters that records were counted in; None for sums of vectors.
        moments: of the pool's vectors, `[width, width]`, for a linear model; several rounds need
            them.
        num_records: private records, with moments of a pool; of others as far as it is public.
        groups: of one-hot features, as of `weights_of_moments`.
        representation: of images, by its name, whose features are compared; None for the default.
        seed: of these features.
        is_frozen: whether a person brought the encoder: its classes are taken for linear.

    Returns:
        A label of every input, with confidence in each class; and weights of a linear model from
        vectors to logits, `[width, num_classes]`: None of clusters, and of sums of images without
        moments.
    """
    weights, total = None, values[0] / LATTICE
    if values.shape[2] > pool.dataset.num_classes:
        weights = weights_of_moments(
            values[0], pool.dataset.num_classes, noise, num_records=num_records, groups=groups
        )
        return labels_of(scipy.special.softmax(vectors @ weights, axis=1)), weights
    is_linear = pool.dataset.augmentation == "none" or is_frozen
    if moments is not None and (len(values) > 1 or not is_linear):
        weights = weights_of_rounds(values, moments, num_records or 0, noise)
        if len(values) > 1:
            confidence = scipy.special.softmax(vectors @ weights, axis=1)
            return labels_of(confidence), weights
    if centres is not None:
        clusters = nearest_centres(vectors[:, :-1], centres)
        sums = NoisySums(
            vectors=np.eye(len(total), dtype=np.float32)[clusters],
            values=total,
            noise=noise,
            num_of_class=np.maximum(total.sum(axis=0), 0.0),
        )
    else:
        sums = NoisySums.of_features(vectors, total, noise)
    if is_linear:
        confidence, weights = linear_model(sums, SHRINKAGES if is_frozen else (LEAST_VARIANCE,))
        return labels_of(confidence), weights
    views = pool_features_by_name(pool, representation, seed)
    (regression,) = regress_sums(neighbourhood_averages(views), sums)
    return labels_of(class_probabilities(regression)), weights


def linear_head_of(encoder: Encoder, weights: npt.NDArray[np.float64]) -> LinearHead:
    """Returns a student: an encoder, and weights `[width, num_classes]` from vectors to logits."""
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(pathlib.Path(folder), encoder)
        loaded = SavedEncoder(pathlib.Path(folder), encoder.dataset).loaded
    scale = np.ones(encoder.num_features) if encoder.scale is None else encoder.scale
    return LinearHead(loaded, encoder.dataset, scale, weights)


def linear_model(
    sums: NoisySums, least_variances: Sequence[float] = (LEAST_VARIANCE,)
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns how probable classes are of inputs of a table, and weights that say it of any input.

    Neighbors in a table need not be of one class: no averages.

    Args:
        sums: of features, with a constant last.
        least_variances: as of `standardisation`; the one with most evidence is taken, so that the
            more noise, the more is expected of the directions in which features vary most.

    Returns:
        Probabilities `[num_inputs, num_classes]`, and weights `[width, num_classes]` from vectors
        to logits: those of the regression, by a factor at which they are most like these.
    """
    features, constant = sums.vectors[:, :-1], float(sums.vectors[:, -1].max()) or 1.0
    fits = list[tuple[Regression, Any, Any]]()
    for least_variance in least_variances:
        mean, factors = standardisation(features, least_variance)
        rows = ((features - mean) * factors).astype(np.float32)
        (fit,) = regress_sums([(rows, rows)], sums)
        fits.append((fit, mean, factors))
    regression, mean, factors = max(fits, key=lambda fit: fit[0].evidence)
    weights = factors[:, None] * np.asarray(regression.weights)
    weights = np.vstack([weights, (sums.shares - mean @ weights) / constant])
    # Without an upper bound: of two means above 1 the larger one has the label.
    probabilities = np.maximum(regression.means, np.finfo(np.float32).eps)
    probabilities /= probabilities.sum(axis=1, keepdims=True)

    def cross_entropy(logarithm: float) -> float:
        logits = np.exp(logarithm) * regression.means
        by_input = (probabilities * scipy.special.log_softmax(logits, axis=1)).sum(axis=1)
        return -float(by_input.mean())

    factor = scipy.optimize.minimize_scalar(cross_entropy, bounds=LOG_FACTORS, method="bounded").x
    return probabilities, np.exp(factor) * weights


def may_agree(pool: Pool) -> bool:
    """Whether teachers may agree on all of a batch of a pool's inputs, as far as its labels say.

    They do as often as not where each is right on all of `LARGE_BATCH` with that probability.
    """
    measured = accuracy_without_noise(pool)
    return measured is None or measured.high**LARGE_BATCH >= LEAST_ACCURACY


@functools.lru_cache(maxsize=2)
def accuracy_without_noise(pool: Pool) -> Forecast | None:
    """Returns the accuracy of a linear model of a pool's labels, on others of them.

    None of images, whose features take long, and of fewer than `FEWEST_LABELED` labels.
    """
    if pool.num_labeled < FEWEST_LABELED or pool.dataset.kind == "image":
        return None
    encoder = encoder_of(pool, default_of_sums(pool.dataset), 0)
    return trial(pool, encoder, GaussianFeatureSums(sigma=1.0), WITHOUT_NOISE, num_draws=1)[0]


def trial(
    pool: Pool,
    encoder: Encoder,
    mechanism: ReleasesFeatureSums,
    num_records: int,
    views: Sequence[Sequence[npt.NDArray[np.floating]]] = (),
    num_draws: int = DRAWS,
) -> tuple[Forecast, float]:
    """Returns what to expect of labels, each fold's from sums of the others.

    The noise is as large beside the sums of the samples as it will be beside those of the private
    records. It comes from a seed, as labeled samples are public: this is no release.

    Args:
        pool: public; of its samples with a true label the first `MOST_LABELED` take part.
        encoder: of their features.
        mechanism: that will release sums of the private records' vectors.
        num_records: private records; public.
        views: of the pool, as of `pool_features_by_name`, where labels follow from neighborhoods.
        num_draws: of the noise, for each fold.

    Returns:
        The forecast of labels of all of the pool, and the factor of a linear model's logits with
        which the true labels are likeliest (temperature scaling, https://arxiv.org/abs/1706.04599);
        1 of neighborhoods.
    """
    true_labels = np.asarray(pool.true_labels)
    rows = np.flatnonzero(true_labels != UNKNOWN)[:MOST_LABELED]
    # After a choice by other numbers of draws, noise that chose nothing.
    labels, noise, num_labels = true_labels[rows], SeededNoise(num_draws), len(pool)
    if encoder.is_frozen or pool.dataset.kind == "image":  # all of the pool's are needed anyway
        features = encoder.features(pool.inputs)[rows]
    else:
        features = encoder.features(pool.inputs[rows])
    averages = list[Averages]()
    if views and mechanism.num_rounds == 1:
        of_samples = [[view[rows] for view in each] for each in views]
        averages = list(neighbourhood_averages(of_samples))
    # Of images, too, a linear model.
    pool = Pool(dataclasses.replace(pool.dataset, augmentation="none"), pool.inputs[rows])
    vectors = record_vectors(features, encoder.scale)
    steps, moments = vector_steps(vectors), vectors.T @ vectors / len(vectors)
    num_classes, deviation = pool.dataset.num_classes, mechanism.standard_deviation
    logits, released = np.empty((num_draws, len(labels), num_classes)), list[NoisySums]()
    folds = np.arange(len(labels)) % FOLDS
    cells = list(itertools.product(range(num_draws), range(FOLDS)))
    for draw, fold in cells:
        is_other = folds != fold
        exact = sums_by_class(vectors[is_other], labels[is_other], num_classes=num_classes)
        values = np.empty((0, *exact.shape), np.int64)
        while len(values) < mechanism.num_rounds:
            if len(values):
                weights = weights_of_rounds(values, moments, num_records, deviation)
                exact = residual_sums(steps[is_other], labels[is_other], weights)
            # Each sample stands for as many private records.
            drawn = mechanism.draw_sums(exact * num_records // is_other.sum(), noise)
            values = np.concatenate([values, drawn[None]])
        if averages:
            released.append(NoisySums.of_features(vectors, values[0] / LATTICE, deviation))
            continue
        _, of_others = labels_from_sums(
            pool,
            vectors,
            values,
            deviation,
            moments=moments,
            num_records=num_records,
            is_frozen=encoder.is_frozen,
        )
        logits[draw, ~is_other] = vectors[~is_other] @ np.asarray(of_others)
    if averages:
        for (draw, fold), regression in zip(cells, regress_sums(averages, *released), strict=True):
            logits[draw, folds == fold] = class_probabilities(regression)[folds == fold]
    forecast = Forecast.measured(logits.argmax(axis=2), labels, num_labels, folds)
    if averages:
        return forecast, 1.0
    is_true = slice(None), np.arange(len(labels)), labels

    def cross_entropy(logarithm: float) -> float:
        scaled = scipy.special.log_softmax(np.exp(logarithm) * logits, axis=2)
        return -float(scaled[is_true].mean())

    best = scipy.optimize.minimize_scalar(cross_entropy, bounds=LOG_FACTORS, method="bounded").x
    return forecast, float(np.exp(best))
