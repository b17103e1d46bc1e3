import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.core.public import PoolLabels, PublicExamples
from pate_tf.data.digits import DIGITS
from pate_tf.students.evaluation import (
    Accuracy,
    accuracy,
    accuracy_in_pool,
    check_evaluate_on,
    evaluate,
    evaluated_samples,
)


@given(st.integers(1, 20_000).flatmap(lambda num: st.tuples(st.integers(0, num), st.just(num))))
def test_the_interval_is_wilsons(drawn):
    right, num = drawn
    low, high = Accuracy(right / num, num).interval
    expected = scipy.stats.binomtest(right, num).proportion_ci(0.95, method="wilson")
    assert low == pytest.approx(expected.low, abs=1e-9)
    assert high == pytest.approx(expected.high, abs=1e-9)
    assert -1e-12 <= low <= right / num + 1e-12
    assert right / num - 1e-12 <= high <= 1 + 1e-12


def test_accuracy_counts_agreement():
    result = accuracy([1, 2, 3, 3], [1, 2, 0, 3])
    assert (result.value, result.num_samples) == (0.75, 4)


@pytest.mark.parametrize(
    ("labels", "truth"), [([], []), ([1], [1, 2]), ([[1]], [[1]]), ([1, 2], 1)], ids=str
)
def test_lists_that_do_not_match_are_refused(labels, truth):
    with pytest.raises(ValueError, match="accuracy: expected"):
        accuracy(labels, truth)


def test_a_student_is_asked_for_raw_inputs():
    inputs = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8, 1)
    held_out = PublicExamples(DIGITS, inputs, np.array([1, 2, 3]))

    def classify(given_inputs):
        np.testing.assert_array_equal(given_inputs, inputs)
        assert given_inputs.dtype == np.uint8
        return np.array([1, 2, 2])

    assert evaluate(classify, held_out).value == pytest.approx(2 / 3)


def numbered(num: int) -> PublicExamples:
    """Images that show their own positions."""
    inputs = np.zeros((num, 8, 8, 1), np.uint8)
    inputs[:, 0, 0, 0] = np.arange(num)
    return PublicExamples(DIGITS, inputs, np.arange(num) % 10)


@pytest.mark.parametrize(
    ("evaluate_on", "expected"),
    [("held_out", [8, 9, 10, 11]), ("all_unqueried", [0, 2, 3, 4, 6, 8, 9, 10, 11])],
)
def test_only_samples_that_nobody_asked_for_evaluate(evaluate_on, expected):
    samples = evaluated_samples(evaluate_on, numbered(12).split(8), queries=np.array([7, 1, 5]))
    assert samples.inputs[:, 0, 0, 0].tolist() == expected
    assert samples.labels.tolist() == [number % 10 for number in expected]


def test_other_samples_are_refused():
    with pytest.raises(ValueError, match="evaluate_on: expected one of held_out, all_unqueried"):
        evaluated_samples("everything", numbered(12).split(8), queries=np.array([1]))


def labelled(num: int, *known: int) -> PublicExamples:
    """The same, with labels of some alone."""
    labels = np.full(num, -1)
    labels[list(known)] = np.array(known) % 10
    return PublicExamples(DIGITS, numbered(num).inputs, labels)


@pytest.mark.parametrize(
    ("known", "evaluate_on", "expected"),
    [
        ([], None, None),
        ([9, 11], None, [9, 11]),
        ([9, 11], "held_out", [9, 11]),
        ([0, 1], None, None),
        ([0, 1], "all_unqueried", [0]),
        ([1], "all_unqueried", None),
        ([0, 1, 9], "all_unqueried", [0, 9]),
    ],
    ids=str,
)
def test_samples_without_a_label_evaluate_nothing(known, evaluate_on, expected):
    public = labelled(12, *known).split(8)
    samples = evaluated_samples(evaluate_on, public, queries=np.array([1]))
    if expected is None:
        assert samples is None
    else:
        assert samples.inputs[:, 0, 0, 0].tolist() == expected
        assert samples.labels.tolist() == expected_labels(expected)


def expected_labels(numbers: list[int]) -> list[int]:
    return [number % 10 for number in numbers]


@pytest.mark.parametrize(
    ("known", "evaluate_on"),
    [([], "held_out"), ([], "all_unqueried"), ([0, 1], "held_out")],
)
def test_what_can_not_be_measured_is_not_promised(known, evaluate_on):
    with pytest.raises(ValueError, match="evaluate_on: expected public samples with labels"):
        check_evaluate_on(evaluate_on, labelled(12, *known).split(8))


def test_labels_in_the_pool_are_measured_where_the_truth_is_known():
    given = PoolLabels(
        query_indices=np.array([0, 1, 2]), labels=np.array([0, 5, 5]), num_classes=10
    )
    assert accuracy_in_pool(given, labelled(12, 0, 1).split(8)) == Accuracy(0.5, 2)
    assert accuracy_in_pool(given, labelled(12, 7).split(8)) is None
    assert accuracy_in_pool(given, labelled(12, 11).split(8)) is None
    assert accuracy_in_pool(given, numbered(12).split(8)) == Accuracy(1 / 3, 3)
