import numpy as np
import pytest
from query_helpers import POOL, Answers, islands

from pate_tf.core.public import Pool, PoolLabels
from pate_tf.queries import strategies
from pate_tf.queries.labels import QueryConfig, ask_in_rounds, check_queries
from pate_tf.queries.strategies import STRATEGIES, Strategy, choose_random


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(strategies, "STEPS", 20)


def config(strategy: str, **changes: object) -> QueryConfig:
    made = QueryConfig(num_queries=changes.pop("num_queries", 40), **changes)
    object.__setattr__(made, "strategy", strategy)  # a toy is no choice of the flag
    return made


@pytest.fixture
def by_last_label(monkeypatch):
    """A strategy that leaves a trace of the answers it saw, without training."""

    def score(pool, given, seed):
        last = given.labels[-1]
        return (np.arange(len(pool)) + 20.0 * last + seed) % len(pool)

    strategy = Strategy(help="a toy", words="toys", choose=choose_random, score=score, rounds=5)
    monkeypatch.setitem(STRATEGIES, "by_last_label", strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_asks_what_it_may_and_the_same_after_the_same_answers(strategy):
    is_adaptive = STRATEGIES[strategy].is_adaptive
    pool, labels = islands(200)
    wanted = config(strategy, rounds=2 if is_adaptive else 1)
    answers = Answers(labels)
    labeled = ask_in_rounds(wanted, pool, answers)
    assert labeled.queries.dtype == np.int64
    assert len(set(labeled.queries.tolist())) == 40
    assert labeled.queries.min() >= 0
    assert labeled.queries.max() < 200
    assert len(answers.rounds) == wanted.rounds
    np.testing.assert_array_equal(answers.rounds[-1][:20], answers.rounds[0][:20])
    # What is asked last covers all rounds, so that its cost is that of all of them.
    assert labeled.released.num_queries == 40
    np.testing.assert_array_equal(labeled.released.query_indices, labeled.queries)
    np.testing.assert_array_equal(labeled.released.labels, labels[labeled.queries])

    again = ask_in_rounds(wanted, pool, Answers(labels))
    np.testing.assert_array_equal(labeled.queries, again.queries)
    np.testing.assert_array_equal(
        labeled.training_labels.query_indices, again.training_labels.query_indices
    )
    np.testing.assert_array_equal(labeled.training_labels.labels, again.training_labels.labels)

    other_answers = Answers(np.where(labels < 5, 0, labels))  # five classes become one
    after_others = ask_in_rounds(wanted, pool, other_answers)
    np.testing.assert_array_equal(after_others.queries[:20], labeled.queries[:20])
    assert np.array_equal(after_others.queries, labeled.queries) == (not is_adaptive)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_seed_decides_where_asking_begins(strategy):
    pool, _ = islands(200)  # not images, so that no features are learned
    one, other = (STRATEGIES[strategy].choose(pool, 5, seed) for seed in (0, 1))
    # Groups that stand out are found from any seed, and with them what is typical of each.
    assert strategy == "medoids" or np.array_equal(one, other) == (strategy == "first")


def test_random_is_uniform_over_the_pool():
    drawn = [choose_random(POOL, 100, seed) for seed in range(600)]
    hits = np.bincount(np.concatenate(drawn), minlength=300)
    # Each is binomial, 600 draws at 1/3; the chance of 6 deviations is 2e-9, for 300 inputs 6e-7.
    assert np.abs(hits - 200).max() < 6 * np.sqrt(600 * 2 / 9)
    # More of the same seed begin with the same ones, which were charged.
    np.testing.assert_array_equal(choose_random(POOL, 150, 3)[:100], drawn[3])


@pytest.mark.parametrize(
    ("num_queries", "rounds", "sizes"),
    [
        (40, None, [8, 16, 24, 32, 40]),
        (7, 3, [2, 4, 7]),
        (3, None, [1, 2, 3]),
        (300, 2, [150, 300]),
        (5, 1, [5]),
    ],
)
@pytest.mark.usefixtures("by_last_label")
def test_rounds_are_of_about_equal_size(num_queries, rounds, sizes):
    answers = Answers()
    wanted = config("by_last_label", num_queries=num_queries, rounds=rounds)
    ask_in_rounds(wanted, POOL, answers)
    assert [len(queries) for queries in answers.rounds] == sizes


@pytest.mark.usefixtures("by_last_label")
def test_the_lowest_scores_that_were_not_asked_come_next():
    answers = Answers(np.full(300, 2))
    ask_in_rounds(config("by_last_label", num_queries=20, rounds=2), POOL, answers)
    first, both = answers.rounds
    expected = [index % 300 for index in range(260, 560) if index % 300 not in first][:10]
    np.testing.assert_array_equal(both[10:], expected)


def test_inferred_labels_stand_beside_the_released_ones(monkeypatch):
    def infer(pool, given, seed):
        """Drops the first and adds two."""
        indices = [*given.query_indices[1:], 298, 299]
        labels = [*given.labels[1:], 1, 2]
        labels = PoolLabels(query_indices=indices, labels=labels, num_classes=given.num_classes)
        return labels.checked()

    strategy = Strategy(
        help="a toy", words="toys", choose=lambda pool, num, seed: np.arange(num), infer=infer
    )
    monkeypatch.setitem(STRATEGIES, "inferring", strategy)
    labeled = ask_in_rounds(config("inferring", num_queries=3), POOL, Answers())
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
        ({"strategy": "auto"}, "strategy: expected one of first, random"),
        ({"num_queries": 0}, "num_queries: expected from 1 to the pool's 300, got 0"),
        ({"rounds": True}, "rounds: expected a whole number, got True"),
        ({"rounds": 41}, "rounds: expected from 1 to 40, got 41"),
        ({"representation": "raw"}, "representation: expected with strategy diverse or medoids"),
        ({"strategy": "uncertain", "representation": "raw"}, "representation: expected with"),
        ({"num_queries": 301}, "num_queries: expected from 1 to the pool's 300, got 301"),
        ({"strategy": "random", "rounds": 2}, "rounds: expected 1 for strategy random"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        check_queries(config(**{"strategy": "first", **changes}), POOL)
    assert "\n" not in str(caught.value)
    check_queries(config("medoids", representation="raw"), POOL)


@pytest.mark.usefixtures("by_last_label")
def test_copies_are_asked_once_with_any_answers():
    """How many distinct queries there are is what epsilon is stated for."""
    copies = Pool(POOL.dataset, np.repeat(POOL.inputs[:30], 3, axis=0))
    for answers in (Answers(np.full(90, 2)), Answers(np.full(90, 7))):
        wanted = config("by_last_label", num_queries=30, rounds=3)
        labeled = ask_in_rounds(wanted, copies, answers).queries
        assert len({copies.inputs[index].tobytes() for index in labeled}) == 30
    with pytest.raises(
        ValueError, match="num_queries: expected from 1 to the pool's 30 distinct inputs"
    ):
        check_queries(config("by_last_label", num_queries=31, rounds=3), copies)
