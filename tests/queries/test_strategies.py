"""Every strategy, its error messages, and the resolution of `auto`."""

import ast
import dataclasses
import inspect

import numpy as np
import pytest
from query_helpers import POOL, Answers, islands

from pate_tf.core.public import PoolLabels
from pate_tf.queries import strategies
from pate_tf.queries.strategies import (
    STRATEGIES,
    QueryConfig,
    Strategy,
    ask_once,
    check_queries,
    choose_random,
)


def config(strategy: str, **changes: object) -> QueryConfig:
    made = QueryConfig(num_queries=changes.pop("num_queries", 40), **changes)
    object.__setattr__(made, "strategy", strategy)  # a toy is not among the flag's choices
    return made


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_asks_what_it_may_and_the_same_after_any_answers(strategy):
    pool, labels = islands(200)
    wanted = config(strategy)
    labeled = ask_once(wanted, pool, Answers(labels))
    assert labeled.queries.dtype == np.int64
    assert len(set(labeled.queries.tolist())) == 40
    assert labeled.queries.min() >= 0
    assert labeled.queries.max() < 200
    assert labeled.released.num_queries == 40
    np.testing.assert_array_equal(labeled.released.query_indices, labeled.queries)
    np.testing.assert_array_equal(labeled.released.labels, labels[labeled.queries])

    again = ask_once(wanted, pool, Answers(labels))
    np.testing.assert_array_equal(
        labeled.training_labels.query_indices, again.training_labels.query_indices
    )
    np.testing.assert_array_equal(labeled.training_labels.labels, again.training_labels.labels)

    other_answers = Answers(np.where(labels < 5, 0, labels))  # five classes become one
    after_others = ask_once(wanted, pool, other_answers)
    np.testing.assert_array_equal(after_others.queries, labeled.queries)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_seed_decides_where_asking_begins(strategy):
    pool, _ = islands(200)  # these are not images, so no features are learned
    one, other = (STRATEGIES[strategy].choose(pool, 5, seed) for seed in (0, 1))
    # Every seed finds the separate groups, and with them the typical inputs of each group.
    assert strategy == "medoids" or np.array_equal(one, other) == (strategy == "first")


def test_random_is_uniform_over_the_pool():
    drawn = [choose_random(POOL, 100, seed) for seed in range(600)]
    hits = np.bincount(np.concatenate(drawn), minlength=300)
    # Each count is binomial, 600 draws at 1/3. The chance of 6 deviations is 2e-9, for 300 inputs
    # 6e-7.
    assert np.abs(hits - 200).max() < 6 * np.sqrt(600 * 2 / 9)
    # A larger number with the same seed begins with the same inputs, which were charged.
    np.testing.assert_array_equal(choose_random(POOL, 150, 3)[:100], drawn[3])


def test_inferred_labels_stand_beside_the_released_ones(monkeypatch):
    def infer(pool, given, seed, representation):
        """Drops the first and adds two."""
        indices = [*given.query_indices[1:], 298, 299]
        labels = [*given.labels[1:], 1, 2]
        labels = PoolLabels(query_indices=indices, labels=labels, num_classes=given.num_classes)
        return labels.checked()

    strategy = Strategy(
        help="a toy",
        words="toys",
        choose=lambda pool, num, seed, representation: np.arange(num),
        infer=infer,
    )
    monkeypatch.setitem(STRATEGIES, "inferring", strategy)
    labeled = ask_once(config("inferring", num_queries=3), POOL, Answers())
    assert labeled.released.num_answered == labeled.released.num_queries == 3
    assert labeled.released.query_indices.tolist() == [0, 1, 2]
    assert not hasattr(labeled.training_labels, "epsilon")
    assert labeled.training_labels.query_indices.tolist() == [1, 2, 298, 299]
    assert len(labeled.inferred.labels) == 2
    assert labeled.inferred.query_indices.tolist() == [298, 299]
    assert labeled.inferred.labels.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "auto"}, "strategy must be one of first, random"),
        ({"num_queries": 0}, "num_queries must be from 1 to 300, got 0"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"representation": "raw"}, "representation needs the strategy diverse or medoids"),
        ({"num_queries": 301}, "num_queries must be from 1 to 300, got 301"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        check_queries(config(**{"strategy": "first", **changes}), POOL)
    assert "\n" not in str(caught.value)
    check_queries(config("medoids", representation="raw"), POOL)


@pytest.mark.parametrize(
    ("augmentation", "num_queries", "is_whole_pool", "expected"),
    [
        ("affine", 50, True, "diverse"),
        ("affine", 49, True, "first"),
        ("affine", 50, False, "first"),
        ("none", 500, True, "first"),
    ],
)
def test_auto_follows_from_data_and_number(augmentation, num_queries, is_whole_pool, expected):
    dataset = dataclasses.replace(POOL.dataset, augmentation=augmentation)
    name = strategies.recommended(dataset, num_queries, is_whole_pool=is_whole_pool)
    assert name == expected


def test_no_true_label_can_be_reached_from_here():
    """A `Pool` has true labels for forecasts. No module here names them or types that have them."""
    import pkgutil

    import pate_tf.queries

    assert hasattr(POOL, "true_labels")
    of_labels = {
        "PublicExamples",
        "PrivateExamples",
        "load_public",
        "accuracy_in_pool",
        "true_labels",
    }
    for module in pkgutil.walk_packages(pate_tf.queries.__path__, "pate_tf.queries."):
        tree = ast.parse(inspect.getsource(__import__(module.name, fromlist=["_"])))
        names = {getattr(node, part, "") for node in ast.walk(tree) for part in ("id", "attr")}
        assert not names & of_labels
