"""Classifiers with a closed form, compared with slow reference versions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.models import ridge


def problem(seed: int, num_records: int, num_features: int = 6, num_classes: int = 4):
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num_records)
    centres = random.normal(size=(num_classes, num_features))
    features = centres[labels] + 0.3 * random.normal(size=(num_records, num_features))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32), labels


def fitted(features, labels, num_classes=4):
    return ridge.fit(features, labels, num_classes=num_classes, num_views=1)


def scores(arrays, features):
    weights, offsets = (array.astype(np.float64) for array in arrays)
    return features @ weights + offsets


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 40))
def test_with_a_known_scale_each_weight_has_a_penalty_of_its_own(seed, num_records):
    features, labels = problem(seed, num_records)
    scale = np.random.default_rng(seed).uniform(0.5, 5.0, 6)
    actual, _ = ridge.fit(features, labels, num_classes=4, num_views=1, scale=scale)
    penalties = ridge.SCALED_FRACTION / np.square(scale)
    for one in np.unique(labels):
        targets = np.where(labels == one, 1.0, -1.0)
        stacked = np.vstack([features.astype(np.float64), np.diag(np.sqrt(penalties))])
        slow = np.linalg.lstsq(stacked, np.concatenate([targets, np.zeros(6)]), rcond=None)[0]
        np.testing.assert_allclose(actual[:, one], slow, atol=4e-3)


def test_a_class_without_records_is_never_answered():
    features, labels = problem(3, 12)
    predictions = scores(fitted(features, np.where(labels == 2, 1, labels)), problem(4, 200)[0])
    assert 2 not in predictions.argmax(axis=1)
    only = scores(fitted(features, np.full(12, 3)), problem(4, 200)[0])
    assert set(only.argmax(axis=1).tolist()) == {3}
    none = scores(fitted(features[:0], labels[:0]), problem(4, 200)[0])
    assert set(none.argmax(axis=1).tolist()) == {0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("length", [1e4, 1e15, 1e30])
def test_no_finite_features_stop_a_teacher_or_make_it_warn(length):
    features, labels = problem(3, 12)
    features[:6] = features[5] * length  # equal, and far beyond the penalty
    for array in fitted(features.astype(np.float32), labels):
        assert np.isfinite(array).all()


def test_the_order_of_records_changes_no_bit():
    features, labels = problem(5, 40)
    for rows in (np.arange(40), np.concatenate([np.arange(3), np.arange(3)])):
        shuffled = np.random.default_rng(2).permutation(rows)
        first, second = (fitted(features[some], labels[some]) for some in (rows, shuffled))
        for one, other in zip(first, second, strict=True):
            assert one.tobytes() == other.tobytes()
