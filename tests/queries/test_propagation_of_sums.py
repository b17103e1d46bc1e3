"""Labels of a pool from noisy sums: by groups where the sums do not speak against them."""

import dataclasses

import numpy as np
import pytest

from pate_tf.core.public import Pool
from pate_tf.data import catalogue as data
from pate_tf.models.encoder import record_vectors
from pate_tf.queries import propagation
from pate_tf.queries.strategies import STRATEGIES, find_strategy
from pate_tf.students.training import TrainingDivergedError

DIGITS = data.load_public("digits")
NUM_INPUTS, NUM_RECORDS = 300, 20_000
POOL = Pool(DIGITS.dataset, DIGITS.inputs[:NUM_INPUTS])
NOISE = 5.0


def drawn(random, number):
    """Ten groups that are far apart, and in each something small beside."""
    group = np.arange(number) % 10
    side = random.integers(0, 2, number)
    features = 8.0 * np.eye(10, 11)[group] + 0.3 * random.normal(size=(number, 11))
    features[:, 10] = 6.0 * side - 3.0
    return group, side, features.astype(np.float32)


@pytest.fixture
def problem(monkeypatch):
    """Infers labels of a pool whose groups the network sees, and not what lies beside."""

    def infer(classes_of):
        random = np.random.default_rng(0)
        records = drawn(random, NUM_RECORDS)
        pool = drawn(random, NUM_INPUTS)
        monkeypatch.setattr(
            propagation, "pool_features_by_name", lambda *_args, **_more: ((pool[2],),)
        )
        seen = pool[2][:, :10]
        monkeypatch.setattr(propagation, "student_features", lambda *_: seen)
        medoids = dataclasses.replace(
            find_strategy("medoids"), choose=lambda *_args, **_more: np.arange(0, NUM_INPUTS, 3)
        )
        monkeypatch.setitem(STRATEGIES, "medoids", medoids)
        sums = record_vectors(records[2], None).T @ np.eye(10)[classes_of(*records[:2])]
        sums = sums + random.normal(0.0, NOISE, sums.shape)
        vectors = record_vectors(pool[2], None).astype(np.float32)
        found = propagation.infer_from_sums(POOL, vectors, sums, NOISE, 0)
        return classes_of(*pool[:2]), found.first, found.learnt, (vectors, sums)

    return infer


def test_where_groups_are_classes_they_name_their_inputs(problem):
    truth, once, found, _ = problem(lambda group, _: group)
    assert (once.labels == truth).mean() > 0.95 and once.weights is not None
    assert found.weights is None
    assert (found.labels == truth[found.query_indices]).all()


def test_where_sums_speak_against_groups_they_decide(problem):
    """Two groups of three hold two classes each, told apart by what the network does not see."""
    truth, once, found, (vectors, sums) = problem(
        lambda group, side: np.where(group < 7, (group + side) % 10, group)
    )
    assert found.weights is not None and len(found.labels) == NUM_INPUTS
    assert (found.labels == truth).mean() > 0.7  # a linear function can say no more
    one_group = np.arange(NUM_INPUTS) % 10
    misfits = [propagation.misfit(labels, vectors, sums, NOISE) for labels in (truth, one_group)]
    assert misfits[0] + propagation.MOST_MISFIT < misfits[1]
    assert once.num_classes == 10


def test_groups_that_leave_much_of_the_pool_unclear_are_no_classes(problem, monkeypatch):
    truth, _, clear, known = problem(lambda group, _: group)
    assert clear.weights is None
    spread_all = propagation.propagate_labels

    def of_some(graph, labels):
        found = spread_all(graph, labels)
        kept = np.arange(len(found.labels)) >= NUM_INPUTS // 5  # of every class some
        return dataclasses.replace(
            found, query_indices=found.query_indices[kept], labels=found.labels[kept]
        )

    assert len(clear.labels) >= propagation.LEAST_CLEAR * NUM_INPUTS
    monkeypatch.setattr(propagation, "propagate_labels", of_some)
    found = propagation.infer_from_sums(POOL, *known, NOISE, 0).learnt
    assert found.weights is not None and len(found.labels) == NUM_INPUTS
    assert (found.labels == truth).mean() > 0.95


def test_of_a_table_students_learn_how_probable_classes_are_and_certainty_is_of_noise(problem):
    """Seven of ten records of a group are of one class, which is certain; and three of the next."""
    random = np.random.default_rng(1)

    def classes_of(group, _):
        return np.where(random.random(len(group)) < 0.7, group, (group + 1) % 10)

    *_, (vectors, sums) = problem(classes_of)
    table = Pool(dataclasses.replace(POOL.dataset, augmentation="none"), POOL.inputs)
    found = propagation.infer_from_sums(table, vectors, sums, NOISE, 0)
    group = np.arange(NUM_INPUTS) % 10
    assert (found.learnt.labels == group).all() and (found.first.labels == group).all()
    shares = found.learnt.weights[np.arange(NUM_INPUTS), group]
    assert (shares > 0.5).all() and (shares < 0.85).all()
    assert shares.mean() == pytest.approx(0.7, abs=0.1)
    others = found.learnt.weights[np.arange(NUM_INPUTS), (group + 1) % 10]
    assert others.mean() == pytest.approx(0.3, abs=0.1)
    sure = found.first.weights.max(axis=1)
    assert found.certainty == pytest.approx(sure.mean()) and found.certainty > 0.95


def test_misfit_is_minus_the_logarithm_of_a_density():
    random = np.random.default_rng(3)
    vectors = record_vectors(random.normal(size=(50, 4)).astype(np.float32), None)
    labels = random.integers(0, 3, 50)
    exact = 7.0 * vectors.T @ np.eye(3)[labels]
    assert propagation.misfit(labels, vectors, exact, 2.0) == pytest.approx(0.0, abs=1e-8)
    off = exact.copy()
    off[1, 2] += 6.0
    assert propagation.misfit(labels, vectors, off, 2.0) == pytest.approx(4.5)


def test_a_network_that_diverges_leaves_what_the_first_time_said(problem, monkeypatch):
    def diverged(*_):
        raise TrainingDivergedError("loss")

    class Diverges:
        def __call__(self, *_):
            diverged()

    _, once, _, known = problem(lambda group, _: group)
    monkeypatch.setattr(propagation, "student_features", Diverges())
    found = propagation.infer_from_sums(POOL, known[0], known[1], NOISE, 0)
    assert found.learnt is found.first and (found.first.labels == once.labels).all()
