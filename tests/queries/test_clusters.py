import dataclasses

import numpy as np
import pytest
from labels_for_tests import released_labels
from query_helpers import POOL, PUBLIC, islands

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.mechanisms import GaussianHistogram, LaplaceNoisyMax
from pate_tf.core.public import Pool
from pate_tf.postprocessing import label_inference, label_propagation
from pate_tf.queries.strategies import STRATEGIES, choose_medoids
from pate_tf.representations import catalogue, contrastive

DENSE = STRATEGIES["medoids"].choose


@pytest.fixture(scope="module", autouse=True)
def quick_features():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 30)
        patch.setattr(contrastive, "STUDENT_STEPS", 100)
        forget()
        yield
    forget()


def forget():
    catalogue.encoder_of.cache_clear()
    catalogue.pool_features_by_name.cache_clear()


def pool_views(pool):
    return [view for views in catalogue.pool_features_by_name(pool, None, 1) for view in views]


def test_features_are_directions_of_the_inputs_alone():
    views = pool_views(POOL)
    again = pool_views(Pool(POOL.dataset, POOL.inputs.copy()))
    assert len(views) == 2 * contrastive.NETWORKS
    for first, second in zip(views, again, strict=True):
        assert len(first) == len(POOL)
        np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, rtol=1e-5)
        np.testing.assert_array_equal(first, second)


def test_one_query_a_cluster():
    pool, labels = islands(200)
    chosen = choose_medoids(pool, 10, seed=0)
    assert sorted(labels[chosen]) == list(range(10))


def test_medoids_are_no_outliers():
    pool, _ = islands(200)
    stranger = np.full((1, 16), 127.0, np.float32)
    pool = Pool(pool.dataset, np.concatenate([pool.inputs, pool.inputs[:1] + 100.0, stranger]))
    assert choose_medoids(pool, 10, seed=0).max() < 200


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("choose", [choose_medoids, DENSE])
def test_as_many_distinct_queries_as_wanted_of_copies_too(choose):
    dataset = dataclasses.replace(POOL.dataset, augmentation="none")
    copies = Pool(dataset, np.repeat(POOL.inputs[:2], 5, axis=0))
    for pool, number in ((copies, 1), (copies, 4), (copies, 10), (POOL, 7)):
        chosen = choose(pool, number, seed=1)
        assert len(set(chosen.tolist())) == number
        np.testing.assert_array_equal(chosen, choose(pool, number, seed=1))


def test_labels_propagate_further_over_features_that_labels_taught():
    labels = PUBLIC.labels[: len(POOL)]
    queries = np.concatenate([np.flatnonzero(labels == label)[:2] for label in range(10)])
    answers = released_labels(queries, labels[queries])
    once = label_propagation.propagate_labels(
        label_propagation.neighbour_graph(pool_views(POOL)), answers
    )
    twice = label_inference.infer_from_labels(POOL, answers, 1)
    right_once, right_twice = (
        (actual.labels == labels[actual.query_indices]).sum() for actual in (once, twice)
    )
    assert right_twice > right_once


def test_nothing_is_inferred_where_features_can_not_be_learnt():
    pool, labels = islands(50)
    answers = released_labels(np.arange(5), labels[:5])
    assert label_inference.infer_from_labels(pool, answers, 0) is answers


def test_medoids_of_dense_clusters_leave_outliers_out():
    """Ten centers with a crowd around each, and ten inputs that are unlike any other."""
    pool, _ = islands(400)
    strange = np.random.default_rng(9).integers(0, 256, (10, 16)).astype(np.float32)
    pool = Pool(pool.dataset, np.concatenate([strange, pool.inputs]))
    chosen = DENSE(pool, 10, seed=0)
    assert len(set(chosen.tolist())) == 10 and chosen.min() >= 10
    np.testing.assert_array_equal(chosen, DENSE(pool, 10, seed=0))
    assert (np.diff(chosen) > 0).all()
    assert choose_medoids(pool, 20, seed=0).min() < 10


def histogram(counts, asked, sigma=40.0):
    cost = Cost(charge=GaussianHistogram(sigma=sigma), number=len(asked), epsilon=1.0, delta=1e-5)
    return dataclasses.replace(
        released_labels(asked, counts.argmax(axis=1)),
        noisy_counts=np.round(counts * 2**20).astype(np.int64),
        cost=cost,
    )


def test_noisy_counts_of_a_fifth_give_the_whole_pool_weights():
    labels = PUBLIC.labels[: len(POOL)]
    queries = choose_medoids(POOL, 60, seed=1)
    random = np.random.default_rng(0)
    counts = 100 * np.eye(10)[labels[queries]] + random.normal(0, 40, (60, 10))
    inferred = label_inference.infer_from_labels(POOL, histogram(counts, queries), 1)
    assert inferred.weights.shape == (len(POOL), 10)
    right = inferred.labels == labels[inferred.query_indices]
    assert right.mean() > 0.75
    # Confident labels are correct more often than the rest.
    sure = inferred.weights.max(axis=1) > np.median(inferred.weights.max(axis=1))
    assert right[sure].mean() > right[~sure].mean()


def test_labels_without_counts_propagate_twice(monkeypatch):
    taken = []

    def noted(way, function):
        def call(*arguments):
            taken.append(way)
            return function(*arguments)

        return call

    monkeypatch.setattr(
        label_inference, "regress_counts", noted("together", label_inference.regress_counts)
    )
    monkeypatch.setattr(
        label_inference, "propagate_labels", noted("graph", label_inference.propagate_labels)
    )
    labels, queries = PUBLIC.labels[: len(POOL)], np.arange(60)
    view = np.random.default_rng(0).normal(np.eye(10)[labels], 0.1).astype(np.float32)
    monkeypatch.setattr(label_inference, "pool_features_by_name", lambda *_: [[view]])
    monkeypatch.setattr(label_inference, "student_features", lambda *_: view)
    cost = Cost(charge=LaplaceNoisyMax(gamma=0.1), number=40, epsilon=1.0, delta=1e-5)
    released = dataclasses.replace(released_labels(queries, labels[queries]), cost=cost)
    inferred = label_inference.infer_from_labels(POOL, released, 1)
    assert taken == ["graph", "graph"]
    assert (inferred.labels == labels[inferred.query_indices]).mean() > 0.9
