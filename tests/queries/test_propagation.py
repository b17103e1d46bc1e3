"""Labels of a pool from noisy sums, by clusters where these fit the sums; nearest neighbours."""

import dataclasses

import numpy as np
import pytest
import scipy.special
from query_helpers import POOL

from pate_tf.core.public import Pool
from pate_tf.models.encoder import record_vectors
from pate_tf.queries import propagation
from pate_tf.queries.strategies import clusters
from pate_tf.representations.regression import (
    NoisySums,
    averaged,
    labels_of,
    neighbourhood_averages,
    regress_sums,
)
from pate_tf.students.training import TrainingDivergedError

NUM_INPUTS, NUM_RECORDS = len(POOL), 20_000
NOISE = 5.0
of = NoisySums.of_features


def drawn(random, number):
    """Ten groups that are far apart, and in each something small."""
    group = np.arange(number) % 10
    side = random.integers(0, 2, number)
    features = 8.0 * np.eye(10, 11)[group] + 0.3 * random.normal(size=(number, 11))
    features[:, 10] = 6.0 * side - 3.0
    return group, side, features.astype(np.float32)


@pytest.fixture
def problem(monkeypatch):
    """Infers labels of a pool whose clusters the network sees, and not what is small."""

    def infer(classes_of):
        random = np.random.default_rng(0)
        records = drawn(random, NUM_RECORDS)
        pool = drawn(random, NUM_INPUTS)
        monkeypatch.setattr(
            propagation, "pool_features_by_name", lambda *_args, **_more: ((pool[2],),)
        )
        seen = pool[2][:, :10]
        monkeypatch.setattr(propagation, "student_features", lambda *_, **_more: (None, seen))
        every_third = np.arange(0, NUM_INPUTS, 3)
        monkeypatch.setattr(clusters, "choose", lambda *_args, **_more: every_third)
        sums = record_vectors(records[2], None).T @ np.eye(10)[classes_of(*records[:2])]
        sums = sums + random.normal(0.0, NOISE, sums.shape)
        vectors = record_vectors(pool[2], None).astype(np.float32)
        found = propagation.infer_from_sums(POOL, of(vectors, sums, NOISE), 0)
        return classes_of(*pool[:2]), found.first, found.training_labels, (vectors, sums)

    return infer


def test_where_clusters_are_classes_they_name_their_inputs(problem):
    truth, once, found, _ = problem(lambda group, _: group)
    assert (once.labels == truth).mean() > 0.95 and once.weights is not None
    assert found.weights is None
    assert (found.labels == truth[found.query_indices]).all()


def test_where_sums_contradict_clusters_they_decide(problem):
    """Two groups of three hold two classes each, told apart by what the network does not see."""
    truth, once, found, (vectors, sums) = problem(
        lambda group, side: np.where(group < 7, (group + side) % 10, group)
    )
    assert found.weights is not None and len(found.labels) == NUM_INPUTS
    assert (found.labels == truth).mean() > 0.7  # a linear function can say no more
    one_group = np.arange(NUM_INPUTS) % 10
    misfits = [of(vectors, sums, NOISE).misfit(labels) for labels in (truth, one_group)]
    assert misfits[0] + propagation.MOST_MISFIT < misfits[1]
    assert once.num_classes == 10


def test_of_a_table_students_learn_how_probable_classes_are_and_certainty_is_of_noise(problem):
    """Seven of ten records of a group are of one class, which is certain; and three of the next."""
    random = np.random.default_rng(1)

    def classes_of(group, _):
        return np.where(random.random(len(group)) < 0.7, group, (group + 1) % 10)

    *_, (vectors, sums) = problem(classes_of)
    table = Pool(dataclasses.replace(POOL.dataset, augmentation="none"), POOL.inputs)
    found = propagation.infer_from_sums(table, of(vectors, sums, NOISE), 0)
    group = np.arange(NUM_INPUTS) % 10
    assert (found.training_labels.labels == group).all() and (found.first.labels == group).all()
    shares = found.training_labels.weights[np.arange(NUM_INPUTS), group]
    assert (shares > 0.5).all() and (shares < 0.85).all()
    assert shares.mean() == pytest.approx(0.7, abs=0.1)
    others = found.training_labels.weights[np.arange(NUM_INPUTS), (group + 1) % 10]
    assert others.mean() == pytest.approx(0.3, abs=0.1)
    assert found.first.confidence > 0.95
    # The same answers as a linear model, of about these probabilities.
    logits = vectors @ found.weights
    assert (logits.argmax(axis=1) == group).all()
    likely = scipy.special.softmax(logits, axis=1)[np.arange(NUM_INPUTS), group]
    assert likely.mean() == pytest.approx(0.7, abs=0.15)


@pytest.mark.parametrize("tells", [False, True])
def test_a_later_group_counts_as_much_as_the_sums_say(monkeypatch, tells):
    """Of a table two numbers tell classes apart, or all of 82."""
    random = np.random.default_rng(5)
    effects = random.normal(size=(82, 2)) * np.where(np.arange(82) < 2, 2.0, 0.5 * tells)[:, None]

    def drawn_table(number):
        features = random.normal(size=(number, 82)).astype(np.float32)
        classes = (features @ effects + random.normal(size=(number, 2))).argmax(axis=1)
        return record_vectors(features, None), classes

    (records, labels), (pool, truth) = map(drawn_table, (4_000, 1_000))
    values = records.T @ np.eye(2)[labels] + random.normal(0.0, 25.0, (83, 2))
    known = of(pool.astype(np.float32), values, 25.0, (2, 80))
    right = {}
    for one in (*propagation.GROUP_WEIGHTS, None):
        tried = propagation.GROUP_WEIGHTS if one is None else (one,)
        monkeypatch.setattr(propagation, "GROUP_WEIGHTS", tried)
        regression, weights = propagation.linear_answers(known)
        assert ((pool @ weights).argmax(axis=1) == regression.means.argmax(axis=1)).all()
        right[one] = (regression.means.argmax(axis=1) == truth).mean()
        monkeypatch.undo()
    assert right[None] > max(right.values()) - 0.04
    assert right[1.0 if tells else 0.0] > right[0.0 if tells else 1.0] + 0.08


def test_a_network_that_diverges_leaves_what_the_first_time_said(problem, monkeypatch):
    def diverged(*_, **_more):
        raise TrainingDivergedError("loss")

    class Diverges:
        def __call__(self, *_, **_more):
            diverged()

    _, once, _, known = problem(lambda group, _: group)
    monkeypatch.setattr(propagation, "student_features", Diverges())
    found = propagation.infer_from_sums(POOL, of(*known, NOISE), 0)
    assert found.training_labels is found.first and (found.first.labels == once.labels).all()


@pytest.mark.parametrize(
    ("low", "gain", "is_taken"), [(0.75, 0.0, 1), (0.6, 1.5, 1), (0.6, 0.0, 0)]
)
def test_a_network_counts_where_confidence_is_low_or_its_features_are_better(
    problem, monkeypatch, low, gain, is_taken
):
    truth, _, _, known = problem(lambda group, _: group)
    noise = np.random.default_rng(4).normal(size=(NUM_INPUTS, 11))
    views, seen = [
        (strength * np.eye(10, 11)[truth] + noise).astype(np.float32)
        for strength in (0.3, 0.3 + gain)
    ]
    monkeypatch.setattr(propagation, "pool_features_by_name", lambda *_, **_more: ((views,),))
    monkeypatch.setattr(propagation, "LOW_CONFIDENCE", low)  # it is about .7
    monkeypatch.setattr(propagation, "LEAST_CLEAR", 1.01)  # no clusters
    monkeypatch.setattr(propagation, "student_features", lambda *_, **_more: ("network", seen))
    sums = of(*known, NOISE)
    found = propagation.infer_from_sums(POOL, sums, 0)
    once = regress_sums(neighbourhood_averages([[views]]), sums)
    both = averaged(
        [once, regress_sums(neighbourhood_averages([[seen]]), sums)], propagation.PASS_WEIGHTS
    )
    expected = labels_of(both if is_taken else once)
    np.testing.assert_allclose(found.training_labels.weights, expected.weights)
    assert found.network == "network" and found.network_is_better == (gain > 0.0)
    # The model of several rounds is taken as it is.
    weights = np.linalg.lstsq(known[0], 9.0 * np.eye(10)[truth], rcond=None)[0]
    modelled = propagation.infer_from_sums(POOL, sums, 0, weights=weights)
    assert modelled.training_labels is modelled.first
    assert (modelled.first.labels == (known[0] @ weights).argmax(axis=1)).all()


# Nearest neighbors.


@pytest.fixture
def features(monkeypatch):
    """Features of two views that a test knows, of the pool's 300 inputs."""
    random = np.random.default_rng(0)
    views = [random.normal(size=(len(POOL), width)).astype(np.float32) for width in (3, 2)]
    views[0][40:44], views[1][40:44] = views[0][7], views[1][7]  # copies
    monkeypatch.setattr(propagation, "pool_features", lambda *asked: views)
    return np.concatenate(views, axis=1)


def test_they_are_the_nearest_in_all_views_together(features):
    queries = np.array([3, 250, 0])
    found = propagation.nearest(POOL, queries, 5, 0)
    for query, near in zip(queries, found, strict=True):
        distances = np.linalg.norm(features - features[query], axis=1)
        np.testing.assert_array_equal(near, np.argsort(distances, kind="stable")[1:6])


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_a_query_is_not_its_own_neighbour_though_others_are_its_copies(features, number):
    copies = [7, 40, 41, 42, 43]
    found = propagation.nearest(POOL, np.array(copies), number, 0)
    assert found.shape == (5, number) and found.dtype == np.int64
    for query, near in zip(copies, found, strict=True):
        assert query not in near and len(set(near.tolist())) == number
        assert set(near[:4]) <= set(copies)


def test_by_default_half_of_a_querys_share_at_most():
    assert propagation.default_number(POOL, 100) == 1  # of 300 inputs
    assert propagation.default_number(POOL, 50) == 3
    assert propagation.default_number(POOL, 1) == propagation.NEIGHBOURS
    assert propagation.default_number(POOL, 300) == 0
    table = dataclasses.replace(POOL.dataset, augmentation="none")
    assert propagation.default_number(Pool(table, POOL.inputs), 10) == 0
