"""The contribution of a record has an L2 norm of at most 1, for all features."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pate_tf.models.encoder import CONSTANT, Directions, record_vectors

FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 8)), elements=FINITE))
def test_no_vector_is_longer_than_one(features):
    vectors = record_vectors(features, np.linspace(0.1, 3.0, features.shape[1]))
    assert vectors.shape == (len(features), features.shape[1] + 1)
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) <= 1.0 + 1e-12).all()
    is_zero = (features == 0.0).all(axis=1)
    assert (vectors[:, -1] == np.where(is_zero, 0.0, CONSTANT)).all()


def test_direction_counts_and_length_does_not():
    features = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], np.float32)
    rows = record_vectors(features, None)
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)
    np.testing.assert_allclose(rows[0, :2] / np.linalg.norm(rows[0, :2]), [0.6, 0.8], rtol=1e-6)
    assert np.linalg.norm(rows[0]) == pytest.approx(1.0)
    assert (rows[2] == 0.0).all()
    scaled = record_vectors(features, np.array([4.0, 3.0]))
    assert scaled[0, 0] == pytest.approx(scaled[0, 1])


def test_a_vector_depends_on_its_own_input_alone():
    features = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    scale = np.linspace(0.5, 2.0, 7)
    alone = np.concatenate([record_vectors(one[None], scale) for one in features])
    assert (record_vectors(features, scale) == alone).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_give_the_zero_vector(bad):
    features = np.array([[3.0, 4.0], [bad, 1.0], [bad, bad]], np.float32)
    vectors = record_vectors(features, None)
    assert (vectors[1:] == 0.0).all()
    assert (vectors[0] == record_vectors(features[:1], None)[0]).all()


@pytest.mark.parametrize(("number", "width"), [(40, 30), (40, 80), (200, 30), (1, 30)])
def test_directions_of_few_inputs_are_those_of_their_covariance(number, width):
    random = np.random.default_rng(number)
    features = (random.normal(size=(number, 100)) * np.linspace(1, 3, 100)).astype(np.float32)
    twin, directions = Directions(100, width), Directions(100, width)
    centered = features - features.mean(axis=0)
    twin.find(features.mean(axis=0), centered.T @ centered / number)
    directions.find_in(features.copy())
    rank = min(width, number - 1)
    np.testing.assert_allclose(directions.variances, twin.variances, atol=1e-6)
    cosines = (directions.directions * twin.directions).numpy()[:, :rank].sum(axis=0)
    np.testing.assert_allclose(np.abs(cosines), 1.0, atol=1e-4)
    assert not directions.directions.numpy()[:, rank:].any()
