import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.core.public import PoolLabels
from pate_tf.postprocessing import label_propagation as propagation


def groups(num_groups: int, size: int, seed: int = 0, spread: float = 0.3):
    """Returns points around corners that are far apart, and the group of each."""
    random = np.random.default_rng(seed)
    membership = np.repeat(np.arange(num_groups), size)
    points = 10.0 * np.eye(num_groups)[membership]
    return points + random.normal(0.0, spread, points.shape), membership


def labels(indices, values, num_classes=3) -> PoolLabels:
    return PoolLabels(query_indices=indices, labels=values, num_classes=num_classes)


def slow_influence(graph, sources):
    """Returns the sum of all walks, the limit of the passes, by solving a linear system."""
    dense = graph.toarray().astype(np.float64)
    system = np.eye(len(dense)) - propagation.FROM_NEIGHBOURS * dense
    return (1.0 - propagation.FROM_NEIGHBOURS) * np.linalg.inv(system)[:, sources]


def test_influence_tends_to_its_closed_form(monkeypatch):
    monkeypatch.setattr(propagation, "PASSES", 400)
    points, _ = groups(3, 20)
    graph = propagation.neighbour_graph([points])
    sources = np.array([0, 25, 59])
    expected = slow_influence(graph, sources)
    np.testing.assert_allclose(propagation.influence(graph, sources), expected, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.integers(2, 40))
def test_the_graph_is_symmetric_and_passes_on_no_more_than_arrives(seed, num_inputs):
    points = np.random.default_rng(seed).normal(size=(num_inputs, 3))
    points[: num_inputs // 2] = points[0]  # copies are at distance 0
    graph = propagation.neighbour_graph([points]).toarray()
    np.testing.assert_allclose(graph, graph.T, rtol=1e-5)
    assert np.isfinite(graph).all()
    assert np.linalg.eigvalsh(graph.astype(np.float64)).max() <= 1.0 + 1e-5


def test_a_label_that_its_neighbours_contradict_is_left_out():
    points, membership = groups(3, 30)
    queries = np.arange(0, 90, 5)
    noisy = membership[queries].copy()
    noisy[[2, 9, 16]] = [1, 2, 0]
    propagated = propagation.propagate_labels(
        propagation.neighbour_graph([points]), labels(queries, noisy)
    )
    assert len(propagated.labels) == 90
    np.testing.assert_array_equal(propagated.labels, membership[propagated.query_indices])


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_the_smallest_pools_have_a_graph(num_inputs):
    graph = propagation.neighbour_graph([np.ones((num_inputs, 2))])
    propagated = propagation.propagate_labels(graph, labels([0], [2]))
    assert set(propagated.labels.tolist()) == {2}


def test_counts_propagate_where_labels_have_lost_what_they_could_tell():
    """With noise far above the votes, labels are mostly wrong, but a mean over neighbors is
    accurate.
    """
    points, membership = groups(3, 60)
    graph = propagation.neighbour_graph([points])
    random = np.random.default_rng(4)
    counts = 100 * np.eye(3)[membership] + random.normal(0.0, 200.0, (180, 3))
    noisy = labels(np.arange(180), counts.argmax(axis=1))
    assert (noisy.labels == membership).mean() < 0.6
    propagated = propagation.propagate_counts(
        graph, noisy, np.round(counts * 2**20).astype(np.int64)
    )
    assert len(propagated.labels) > 100
    assert (propagated.labels == membership[propagated.query_indices]).mean() > 0.95
    assert (propagated.weights.argmax(axis=1) == propagated.labels).all()
    np.testing.assert_allclose(propagated.weights.sum(axis=1), 1.0, rtol=1e-5)
    by_labels = propagation.propagate_labels(graph, noisy)
    right = sum(by_labels.labels == membership[by_labels.query_indices])
    assert right < sum(propagated.labels == membership[propagated.query_indices])
