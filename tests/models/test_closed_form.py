"""Classifiers with a closed form, held against slow twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.models import closed_form


def problem(seed: int, num_records: int, num_features: int = 6, num_classes: int = 4):
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num_records)
    centres = random.normal(size=(num_classes, num_features))
    features = centres[labels] + 0.3 * random.normal(size=(num_records, num_features))
    return (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32), labels


def fitted(name, features, labels, num_classes=4):
    return closed_form.fit(name, features, labels, num_classes=num_classes, num_views=1)


def scores(arrays, features):
    weights, offsets = (array.astype(np.float64) for array in arrays)
    return features @ weights + offsets


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 40))
def test_with_a_known_scale_each_weight_has_a_penalty_of_its_own(seed, num_records):
    features, labels = problem(seed, num_records)
    scale = np.random.default_rng(seed).uniform(0.5, 5.0, 6)
    actual, _ = closed_form.fit(
        closed_form.RIDGE, features, labels, num_classes=4, num_views=1, scale=scale
    )
    penalties = closed_form.SCALED_SHARE / np.square(scale)
    for one in np.unique(labels):
        targets = np.where(labels == one, 1.0, -1.0)
        stacked = np.vstack([features.astype(np.float64), np.diag(np.sqrt(penalties))])
        slow = np.linalg.lstsq(stacked, np.concatenate([targets, np.zeros(6)]), rcond=None)[0]
        np.testing.assert_allclose(actual[:, one], slow, atol=4e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 30))
def test_nearest_mean_answers_the_nearest(seed, num_records):
    features, labels = problem(seed, num_records)
    queries, _ = problem(seed + 1, 20)
    predictions = scores(fitted(closed_form.NEAREST_MEAN, features, labels), queries)
    present = np.unique(labels)
    means = np.stack([features[labels == one].mean(axis=0) for one in present])
    distances = np.linalg.norm(queries[:, None] - means, axis=2) ** 2
    # |x|^2 less what is scored; halves of float16's last place may separate equals.
    lengths = np.square(queries).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(lengths - predictions[:, present], distances, atol=1e-2)


@pytest.mark.parametrize("name", [closed_form.RIDGE, closed_form.NEAREST_MEAN])
def test_a_class_without_records_is_never_answered(name):
    features, labels = problem(3, 12)
    predictions = scores(
        fitted(name, features, np.where(labels == 2, 1, labels)), problem(4, 200)[0]
    )
    assert 2 not in predictions.argmax(axis=1)
    only = scores(fitted(name, features, np.full(12, 3)), problem(4, 200)[0])
    assert set(only.argmax(axis=1).tolist()) == {3}
    none = scores(fitted(name, features[:0], labels[:0]), problem(4, 200)[0])
    assert set(none.argmax(axis=1).tolist()) == {0}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("length", [1e4, 1e15, 1e30])
@pytest.mark.parametrize("name", closed_form.NAMES)
def test_no_finite_features_stop_a_teacher_or_make_it_warn(name, length):
    features, labels = problem(3, 12)
    features[:6] = features[5] * length  # equal, and far beyond the penalty
    for array in fitted(name, features.astype(np.float32), labels):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("name", closed_form.NAMES)
def test_the_order_of_records_changes_no_bit(name):
    features, labels = problem(5, 40)
    for rows in (np.arange(40), np.concatenate([np.arange(3), np.arange(3)])):
        shuffled = np.random.default_rng(2).permutation(rows)
        first, second = (fitted(name, features[some], labels[some]) for some in (rows, shuffled))
        for one, other in zip(first, second, strict=True):
            assert one.tobytes() == other.tobytes()
