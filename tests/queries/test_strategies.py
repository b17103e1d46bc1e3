"""What each strategy that learns between rounds goes by."""

import ast
import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from labels_for_tests import released_labels
from query_helpers import POOL, islands

from pate_tf.core.public import Pool
from pate_tf.queries import strategies


def test_uncertain_goes_by_the_least_sure_answer(monkeypatch):
    monkeypatch.setattr(strategies, "STEPS", 200)
    pool, labels = islands(200)
    inputs = pool.inputs.copy()
    # Half of one class, half of another: no student can be sure of these.
    one, other = np.flatnonzero(labels == 1)[0], np.flatnonzero(labels == 2)[0]
    inputs[150:160] = (inputs[one] + inputs[other]) / 2
    indices = np.arange(100)
    scores = strategies.STRATEGIES["uncertain"].score(
        Pool(pool.dataset, inputs), released_labels(indices, labels[:100]), 0
    )
    assert scores.shape == (200,)
    assert scores.min() >= 0.1 - 1e-6  # the largest of ten probabilities
    assert scores.max() <= 1.0
    sure = np.delete(np.arange(100, 200), np.arange(50, 60))
    assert scores[150:160].max() < np.median(scores[sure])


def slow_order(row):
    candidate = int(np.argmax(row))
    others = [score for index, score in enumerate(row) if index != candidate and score > 0.1]
    return row[candidate] + (0.0 if row[candidate] < 0.9 and len(others) >= 4 else 1.0)


@given(
    st.integers(1, 8).flatmap(
        lambda num_classes: arrays.arrays(
            np.float64,
            (5, num_classes),
            elements=st.sampled_from([0.0, 0.05, 0.1, 0.11, 0.5, 0.89, 0.9, 0.95, 1.0]),
        )
    )
)
def test_the_papers_rule_selects_and_the_candidates_score_sorts(scores):
    expected = [slow_order(row) for row in scores]
    np.testing.assert_allclose(strategies.expert_order(scores), expected)


def test_the_experts_are_one_against_all(monkeypatch):
    monkeypatch.setattr(strategies, "STEPS", 200)
    seen = []
    monkeypatch.setattr(strategies, "expert_order", lambda scores: seen.append(scores) or scores)
    pool, labels = islands(200)
    strategies.expert_scores(pool, released_labels(np.arange(100), labels[:100]), 0)
    (scores,) = seen
    assert scores.shape == (200, 10)
    of_its_class = scores[np.arange(200), labels]
    assert (of_its_class[100:] > 0.5).mean() > 0.95
    others = scores[np.eye(10)[labels] == 0]
    assert (others < 0.5).mean() > 0.98
    # Not a softmax: the scores of an input are free to add up to anything.
    assert np.abs(scores.sum(axis=1) - 1.0).max() > 1e-3


def test_siamese_matches_what_looks_the_same_and_nothing_else(monkeypatch):
    monkeypatch.setattr(strategies, "STEPS", 200)
    pool, labels = islands(300)
    known = np.flatnonzero(labels < 8)[:60]  # of two classes no label is known
    matches = strategies.matches(pool, released_labels(known, labels[known]), 0)
    assert matches.num_classes == 10
    assert set(matches.query_indices.tolist()).isdisjoint(known.tolist())
    truth = labels[matches.query_indices]
    assert (matches.labels == truth)[truth < 8].mean() > 0.98
    num_unknown = (labels < 8).sum() - 60
    assert (truth < 8).sum() > num_unknown / 2
    # An image of a class without labels matches less often than one of a known class.
    assert (truth >= 8).sum() / (labels >= 8).sum() < 0.5 * (truth < 8).sum() / num_unknown


@pytest.mark.parametrize(
    ("of_mechanism", "augmentation", "num_queries", "is_whole_pool", "expected"),
    [
        ("first", "affine", 50, True, "diverse"),
        ("first", "affine", 49, True, "first"),
        ("first", "affine", 50, False, "first"),
        ("first", "none", 500, True, "first"),
        ("medoids", "affine", 500, True, "medoids"),
        ("medoids", "none", 5, True, "medoids"),
    ],
)
def test_auto_follows_from_mechanism_data_and_number(
    of_mechanism, augmentation, num_queries, is_whole_pool, expected
):
    dataset = dataclasses.replace(POOL.dataset, augmentation=augmentation)
    name = strategies.recommended(of_mechanism, dataset, num_queries, is_whole_pool=is_whole_pool)
    assert name == expected


def test_no_true_label_can_be_reached_from_here():
    """A `Pool` has some for forecasts; they, and types that have them, are named nowhere here."""
    import pkgutil

    import pate_tf.queries

    assert hasattr(POOL, "true_labels")
    of_labels = {"PublicExamples", "PrivateExamples", "load_public", "evaluation", "true_labels"}
    for module in pkgutil.walk_packages(pate_tf.queries.__path__, "pate_tf.queries."):
        tree = ast.parse(inspect.getsource(__import__(module.name, fromlist=["_"])))
        names = {getattr(node, part, "") for node in ast.walk(tree) for part in ("id", "attr")}
        assert not names & of_labels
