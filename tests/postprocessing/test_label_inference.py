"""The nearest neighbors of queries."""

import numpy as np
import pytest
from query_helpers import POOL

from pate_tf.postprocessing import label_inference


@pytest.fixture
def features(monkeypatch):
    """Returns features of the pool's 300 inputs in two views that a test knows."""
    random = np.random.default_rng(0)
    views = [random.normal(size=(len(POOL), width)).astype(np.float32) for width in (3, 2)]
    views[0][40:44], views[1][40:44] = views[0][7], views[1][7]  # copies
    monkeypatch.setattr(label_inference, "pool_features_by_name", lambda *asked: [views])
    return np.concatenate(views, axis=1)


def test_they_are_the_nearest_in_all_views_together(features):
    queries = np.array([3, 250, 0])
    neighbors = label_inference.nearest(POOL, queries, 5, 0)
    for query, near in zip(queries, neighbors, strict=True):
        distances = np.linalg.norm(features - features[query], axis=1)
        np.testing.assert_array_equal(near, np.argsort(distances, kind="stable")[1:6])


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_a_query_is_not_its_own_neighbour_though_others_are_its_copies(features, number):
    copies = [7, 40, 41, 42, 43]
    neighbors = label_inference.nearest(POOL, np.array(copies), number, 0)
    assert neighbors.shape == (5, number) and neighbors.dtype == np.int64
    for query, near in zip(copies, neighbors, strict=True):
        assert query not in near and len(set(near.tolist())) == number
        assert set(near[:4]) <= set(copies)
