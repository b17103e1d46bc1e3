"""Labels of a pool from noisy sums."""

import dataclasses

import numpy as np
import pytest
import scipy.special
from query_helpers import POOL

from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing import label_inference
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
    """The classes overlap, so that a fourth of the labels is wrong."""
    random = np.random.default_rng(1)
    classes = np.arange(NUM_RECORDS) % 10
    features = random.normal(2.2 * np.eye(10)[classes], 1.0)
    vectors = record_vectors(features / np.linalg.norm(features, axis=1).max(), None)
    values = np.rint(vectors.T @ np.eye(10)[classes] * LATTICE).astype(np.int64)[None]
    pool = Pool(TABLE.dataset, np.zeros((NUM_RECORDS, *TABLE.inputs.shape[1:]), np.float32))
    labels, weights = labels_from_sums(pool, vectors, values, 1e-3)
    share = (labels.labels == classes).mean()
    assert 0.6 < share < 0.8 and labels.weights.max(axis=1).mean() == pytest.approx(share, abs=0.05)
    likely = scipy.special.softmax(vectors @ weights, axis=1)
    np.testing.assert_allclose(labels.weights, likely, atol=1e-6)
