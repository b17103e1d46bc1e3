"""Labels of a pool from noisy sums, by clusters where these fit the sums; nearest neighbours."""

import dataclasses

import numpy as np
import pytest
import scipy.special
from query_helpers import POOL

from pate_tf.core.public import Pool
from pate_tf.models.encoder import record_vectors
from pate_tf.queries import propagation
from pate_tf.queries.strategies import STRATEGIES, find_strategy
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
        medoids = dataclasses.replace(
            find_strategy("medoids"), choose=lambda *_args, **_more: np.arange(0, NUM_INPUTS, 3)
        )
        monkeypatch.setitem(STRATEGIES, "medoids", medoids)
        sums = record_vectors(records[2], None).T @ np.eye(10)[classes_of(*records[:2])]
        sums = sums + random.normal(0.0, NOISE, sums.shape)
        vectors = record_vectors(pool[2], None).astype(np.float32)
        found = propagation.infer_from_sums(POOL, of(vectors, sums, NOISE), 0)
        return classes_of(*pool[:2]), found.first, found.learnt, (vectors, sums)

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


def test_clusters_that_leave_much_of_the_pool_unclear_are_no_classes(problem, monkeypatch):
    truth, _, clear, known = problem(lambda group, _: group)
    assert clear.weights is None
    propagate_all = propagation.propagate_labels

    def of_some(graph, labels):
        found = propagate_all(graph, labels)
        kept = np.arange(len(found.labels)) >= NUM_INPUTS // 5  # of every class some
        return dataclasses.replace(
            found, query_indices=found.query_indices[kept], labels=found.labels[kept]
        )

    assert len(clear.labels) >= propagation.LEAST_CLEAR * NUM_INPUTS
    monkeypatch.setattr(propagation, "propagate_labels", of_some)
    found = propagation.infer_from_sums(POOL, of(*known, NOISE), 0).learnt
    assert found.weights is not None and len(found.labels) == NUM_INPUTS
    assert (found.labels == truth).mean() > 0.95


@pytest.mark.parametrize(("less_likely", "taken"), [(10, (1, 1)), (35, (0, 1)), (60, (0, 0))])
def test_after_several_rounds_clusters_may_fit_the_first_ones_sums_less(
    problem, monkeypatch, less_likely, taken
):
    """Of one round, and of several: the model of these fits noise of the first, too."""
    truth, _, _, (vectors, sums) = problem(lambda group, _: group)
    weights = 9.0 * np.linalg.lstsq(vectors, np.eye(10)[truth], rcond=None)[0]
    misfits = iter([less_likely, 0.0] * 2)  # of cluster labels, then of the others
    monkeypatch.setattr(propagation.NoisySums, "misfit", lambda *_: next(misfits))
    for is_taken, model in zip(taken, (None, weights), strict=True):
        found = propagation.infer_from_sums(POOL, of(vectors, sums, NOISE), 0, weights=model)
        assert (found.certainty is None) == bool(is_taken)


def test_of_a_table_students_learn_how_probable_classes_are_and_certainty_is_of_noise(problem):
    """Seven of ten records of a group are of one class, which is certain; and three of the next."""
    random = np.random.default_rng(1)

    def classes_of(group, _):
        return np.where(random.random(len(group)) < 0.7, group, (group + 1) % 10)

    *_, (vectors, sums) = problem(classes_of)
    table = Pool(dataclasses.replace(POOL.dataset, augmentation="none"), POOL.inputs)
    found = propagation.infer_from_sums(table, of(vectors, sums, NOISE), 0)
    group = np.arange(NUM_INPUTS) % 10
    assert (found.learnt.labels == group).all() and (found.first.labels == group).all()
    shares = found.learnt.weights[np.arange(NUM_INPUTS), group]
    assert (shares > 0.5).all() and (shares < 0.85).all()
    assert shares.mean() == pytest.approx(0.7, abs=0.1)
    others = found.learnt.weights[np.arange(NUM_INPUTS), (group + 1) % 10]
    assert others.mean() == pytest.approx(0.3, abs=0.1)
    sure = found.first.weights.max(axis=1)
    assert found.certainty == pytest.approx(sure.mean()) and found.certainty > 0.95
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


def test_misfit_is_minus_the_logarithm_of_a_density():
    random = np.random.default_rng(3)
    vectors = record_vectors(random.normal(size=(50, 4)).astype(np.float32), None)
    labels = random.integers(0, 3, 50)
    exact = 7.0 * vectors.T @ np.eye(3)[labels]
    assert of(vectors, exact, 2.0).misfit(labels) == pytest.approx(0.0, abs=1e-8)
    off = exact.copy()
    off[1, 2] += 6.0
    known = of(vectors, off, 2.0)
    assert known.misfit(labels) == pytest.approx(0.5 * (6.0 / known.deviation) ** 2)
    assert known.misfit(np.eye(3)[labels]) == known.misfit(labels)


def test_a_network_that_diverges_leaves_what_the_first_time_said(problem, monkeypatch):
    def diverged(*_, **_more):
        raise TrainingDivergedError("loss")

    class Diverges:
        def __call__(self, *_, **_more):
            diverged()

    _, once, _, known = problem(lambda group, _: group)
    monkeypatch.setattr(propagation, "student_features", Diverges())
    found = propagation.infer_from_sums(POOL, of(*known, NOISE), 0)
    assert found.learnt is found.first and (found.first.labels == once.labels).all()


@pytest.mark.parametrize(
    ("little", "gain", "taken"),
    [(0.75, 1.5, "further"), (0.75, 0.0, "both"), (0.65, 1.5, "both"), (0.65, 0.0, "first")],
)
def test_what_passes_count_follows_from_certainty_and_from_how_likely_features_make_the_sums(
    problem, monkeypatch, little, gain, taken
):
    """What is little certainty, .7 being there, and how much better features become each time."""
    truth, _, _, known = problem(lambda group, _: group)
    noise = np.random.default_rng(4).normal(size=(NUM_INPUTS, 11))

    def features(strength):
        return (strength * np.eye(10, 11)[truth] + noise).astype(np.float32)

    first = 0.3  # hardly any group
    views = ((features(first),),)
    monkeypatch.setattr(propagation, "pool_features_by_name", lambda *_, **_more: views)
    monkeypatch.setattr(propagation, "LITTLE_CERTAINTY", little)
    monkeypatch.setattr(propagation, "LEAST_CLEAR", 1.01)  # no clusters
    right, seen, networks = [], [], []

    def student_features(pool, labels, seed, *, network=None, progress=None):
        right.append((labels.labels == truth).mean())
        networks.append(network)
        seen.append(features(first + gain * (len(seen) + 1)))
        return len(seen), seen[-1]

    monkeypatch.setattr(propagation, "student_features", student_features)
    sums = of(*known, NOISE)
    found = propagation.infer_from_sums(POOL, sums, 0)
    last = regress_sums(neighbourhood_averages([[seen[-1]]]), sums)
    if taken == "further":
        assert networks == [None, *range(1, 1 + propagation.FURTHER_PASSES)]
        assert right[0] < right[-1] <= (found.learnt.labels == truth).mean()
    else:
        assert networks == [None]
        once = regress_sums(neighbourhood_averages(views), sums)
        both = averaged([once, last], propagation.PASS_WEIGHTS)
        last = {"both": both, "first": once}[taken]
    assert found.network == len(networks)
    np.testing.assert_allclose(found.learnt.weights, labels_of(last).weights)


@pytest.mark.parametrize(("gain", "is_better"), [(1.5, True), (0.0, False)])
def test_after_rounds_a_network_whose_features_are_clearly_better_names_the_pool(
    problem, monkeypatch, gain, is_better
):
    """By the sums as all rounds tell them, which have less noise; the model otherwise."""
    truth, _, _, (vectors, sums) = problem(lambda group, _: group)
    noise = np.random.default_rng(4).normal(size=(NUM_INPUTS, 11))
    wrong = np.where(np.arange(NUM_INPUTS) % 3, truth, (truth + 1) % 10)
    weights = np.linalg.lstsq(vectors, 9.0 * np.eye(10)[wrong], rcond=None)[0]

    def features(strength):
        return (strength * np.eye(10, 11)[truth] + noise).astype(np.float32)

    views, seen = ((features(0.3),),), features(0.3 + gain)
    monkeypatch.setattr(propagation, "pool_features_by_name", lambda *_, **_more: views)
    monkeypatch.setattr(propagation, "LEAST_CLEAR", 1.01)  # no clusters
    monkeypatch.setattr(propagation, "student_features", lambda *_, **_more: ("network", seen))
    first, told = of(vectors, sums, 4.0 * NOISE), of(vectors, sums, NOISE)
    found = propagation.infer_from_sums(POOL, first, 0, weights=weights, of_rounds=told)
    assert found.network_is_better == is_better and found.network == "network"
    modelled = (vectors @ weights).argmax(axis=1)
    assert (found.first.labels == modelled).all() and found.certainty is not None
    if is_better:
        both = [regress_sums(neighbourhood_averages(one), told) for one in (views, [[seen]])]
        expected = labels_of(averaged(both, propagation.PASS_WEIGHTS)).weights
        np.testing.assert_allclose(found.learnt.weights, expected)
    else:
        assert found.learnt is found.first


# Nearest neighbours.


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


def test_they_do_not_depend_on_what_else_is_asked(features):
    everything = propagation.nearest(POOL, np.arange(len(POOL)), 6, 0)
    for queries in (np.array([5]), np.array([299, 7, 40]), np.arange(150)):
        np.testing.assert_array_equal(propagation.nearest(POOL, queries, 6, 0), everything[queries])


def test_by_default_half_of_a_querys_share_at_most():
    assert propagation.default_number(POOL, 100) == 1  # of 300 inputs
    assert propagation.default_number(POOL, 50) == 3
    assert propagation.default_number(POOL, 1) == propagation.NEIGHBOURS
    assert propagation.default_number(POOL, 300) == 0


def test_no_neighbours_by_default_where_no_change_keeps_a_label():
    table = dataclasses.replace(
        POOL.dataset, kind="tabular", input_type="", input_shape=(64,), augmentation="none"
    )
    inputs = POOL.inputs.reshape(-1, 64).astype(np.float32)
    assert propagation.default_number(Pool(table, inputs), 10) == 0
