import numpy as np
import pytest
from classifiers_for_tests import TABLE
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from pate_tf.core.dataset import Dataset
from pate_tf.models import forest
from pate_tf.models.forest import Forest


def records(num: int, seed: int = 0, classes=(0, 1, 2)) -> tuple[np.ndarray, np.ndarray]:
    """Returns coarse features, with ties and equal inputs that have different labels."""
    random = np.random.default_rng(seed)
    inputs = random.integers(-3, 3, (num, 4)).astype(np.float32) / 3
    labels = np.array(classes)[random.integers(0, len(classes), num)]
    return inputs, labels


def fitted(num: int = 60, seed: int = 0, model: str = forest.RANDOM_FOREST) -> Forest:
    return forest.fit(model, TABLE, *records(num, seed), seed=seed)


@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 2), (1,)])
@pytest.mark.parametrize("num", [1, 30, 200])
def test_it_answers_exactly_as_scikit_learn(num, classes):
    inputs, labels = records(num, num, classes)
    queries = records(500, seed=99)[0]
    twin = RandomForestClassifier(n_estimators=100, random_state=3).fit(inputs, labels)
    ours = forest.fit(forest.RANDOM_FOREST, TABLE, inputs, labels, seed=3)
    assert ours.num_trees == 100
    np.testing.assert_array_equal(ours.predict(queries), twin.predict(queries))
    again = Forest.from_arrays(ours.arrays())
    np.testing.assert_array_equal(again.predict(queries), twin.predict(queries))


def few_trees(dataset: Dataset) -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=4)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_ties_between_classes_are_broken_as_scikit_learn_breaks_them(seed):
    inputs, labels = records(40, seed)
    inputs[:, 1:] = 0.0  # six inputs in all, with mixed labels
    twin = few_trees(TABLE).set_params(random_state=seed).fit(inputs, labels)
    ours = forest.fit(few_trees, TABLE, inputs, labels, seed=seed)
    queries = np.unique(inputs, axis=0)
    np.testing.assert_array_equal(ours.predict(queries), twin.predict(queries))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused(bad):
    inputs, labels = records(10)
    inputs[3, 1] = bad
    with pytest.raises(ValueError, match="inputs must be finite"):
        forest.fit(forest.RANDOM_FOREST, TABLE, inputs, labels, seed=0)
    with pytest.raises(ValueError, match="inputs must be finite"):
        fitted().predict(inputs)


def broken(**changes: object) -> dict[str, np.ndarray]:
    good = {
        "starts": np.array([0, 3, 4]),
        "children": np.array([[1, 2], [-1, -1], [-1, -1], [-1, -1]], np.int32),
        "features": np.array([3, 0, 0, 0], np.int32),
        "thresholds": np.array([0.5, 0.0, 0.0, 0.0]),
        "probabilities": np.array([[0, 0], [1, 0], [0, 1], [0.5, 0.5]]),
        "num_features": 4,
    }
    return {**good, **changes}


def children(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int32)


def test_a_forest_written_by_hand_answers():
    by_hand = Forest(**broken())
    inputs = np.array([[0, 0, 0, 0.5], [9, 9, 9, 0.6]], np.float32)
    assert by_hand.predict(inputs).tolist() == [0, 1]


LEAF = (-1, -1)


@pytest.mark.parametrize(
    "changes",
    [
        {"children": children((1, 3), LEAF, LEAF, LEAF)},
        {"children": children((1, 2**30), LEAF, LEAF, LEAF)},
        {"children": children((0, 2), LEAF, LEAF, LEAF)},  # itself
        {"children": children((1, 2), (0, 2), LEAF, LEAF)},  # a circle
        {"children": children((1, 2), LEAF, LEAF, (1, 2))},
        {"children": children((-2, -2), LEAF, LEAF, LEAF)},
        {"children": children((1, 2), LEAF, LEAF)},
        {"features": np.array([4, 0, 0, 0], np.int32)},
        {"features": np.array([-2, 0, 0, 0], np.int32)},
        {"num_features": 3},
        {"thresholds": np.array([np.nan, 0, 0, 0])},
        {"probabilities": np.full((4, 2), np.nan)},
        {"probabilities": np.zeros((4, 0))},
        {"starts": np.array([0, 3, 5])},
        {"starts": np.array([0])},
        {"starts": np.array([0, 3, 3, 4])},
        {"starts": np.array([0, 9, 4])},
        {"starts": np.array([0.0, 3.0, 4.0])},
    ],
)
def test_arrays_that_are_no_forest_are_refused(changes):
    with pytest.raises(ValueError, match="forest: the arrays do not form trees"):
        Forest(**broken(**changes))
