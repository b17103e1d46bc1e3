"""Labels of a pool from noisy sums."""

import dataclasses
import types

import numpy as np
import pytest
import scipy.special
from query_helpers import POOL

from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing import label_inference, regression
from pate_tf.postprocessing.label_inference import labels_from_sums
from pate_tf.postprocessing.label_propagation import CENTRE_STEP

NUM_INPUTS, NUM_RECORDS, NOISE = len(POOL), 20_000, 5.0
TABLE = Pool(dataclasses.replace(POOL.dataset, augmentation="none"), POOL.inputs)
GROUP = np.arange(NUM_INPUTS) % 10


def drawn(number):
    """Returns ten groups of inputs that are far apart."""
    features = 8.0 * np.eye(10)[np.arange(number) % 10]
    noise = np.random.default_rng(number).normal(size=features.shape)
    return (features + 0.3 * noise).astype(np.float32)


def problem(classes):
    """Returns vectors of the pool, and noisy sums of records of these classes, `[1, width, 10]`."""
    sums = record_vectors(drawn(NUM_RECORDS), None).T @ np.eye(10)[classes]
    sums += np.random.default_rng(0).normal(0.0, NOISE, sums.shape)
    vectors = record_vectors(drawn(NUM_INPUTS), None).astype(np.float32)
    return vectors, np.rint(sums * LATTICE).astype(np.int64)[None]


def test_of_images_neighborhoods_are_named(monkeypatch):
    views = ((drawn(NUM_INPUTS),),)
    monkeypatch.setattr(label_inference, "pool_features_by_name", lambda *_: views)
    labels, weights = labels_from_sums(POOL, *problem(np.arange(NUM_RECORDS) % 10), NOISE)
    assert (labels.labels == GROUP).mean() > 0.95 and labels.weights.max(axis=1).mean() > 0.9
    assert weights is None
    # Noise makes the probabilities from cluster counts too low for training, so only labels are
    # used.
    vectors = record_vectors(drawn(NUM_INPUTS), None)
    centres = np.rint(vectors[:10, :-1] / CENTRE_STEP) * CENTRE_STEP
    counts = (NUM_RECORDS // 10 * LATTICE * np.eye(10, dtype=np.int64))[None]
    labels, _ = labels_from_sums(POOL, vectors, counts, NOISE, centres=centres)
    assert (labels.labels == GROUP).mean() > 0.95 and labels.weights is None


def test_of_a_table_labels_say_how_probable_classes_are():
    """In a group of ten records, seven are of one class, and three of the next."""
    group = np.arange(NUM_RECORDS) % 10
    is_next = np.random.default_rng(1).random(NUM_RECORDS) >= 0.7
    vectors, values = problem((group + is_next) % 10)
    labels, weights = labels_from_sums(TABLE, vectors, values, NOISE)
    assert (labels.labels == GROUP).all()
    shares = labels.weights[np.arange(NUM_INPUTS), GROUP]
    assert (shares > 0.5).all() and shares.mean() == pytest.approx(0.7, abs=0.1)
    # The same answers as a linear model with approximately these probabilities.
    logits = vectors @ weights
    assert (logits.argmax(axis=1) == GROUP).all()
    likely = scipy.special.softmax(logits, axis=1)[np.arange(NUM_INPUTS), GROUP]
    assert likely.mean() == pytest.approx(0.7, abs=0.15)


def test_of_two_means_above_one_the_larger_has_the_label(monkeypatch):
    """This happens if the pool is farther from the center than the records."""
    means = np.tile([1.2, 1.5, *[0.0] * 8], (NUM_INPUTS, 1))
    fit = types.SimpleNamespace(means=means, evidence=0.0)
    monkeypatch.setattr(regression, "regress_sums", lambda *_: [fit])
    vectors, values = problem(np.arange(NUM_RECORDS) % 10)
    fit.weights = np.zeros((vectors.shape[1] - 1, 10))
    labels, _ = labels_from_sums(TABLE, vectors, values, NOISE)
    assert set(labels.labels.tolist()) == {1}
