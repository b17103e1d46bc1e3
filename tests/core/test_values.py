import dataclasses
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from data_sets_for_tests import image_dataset, table_dataset
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PoolLabels, PublicExamples
from pate_tf.core.sensitive import PrivateExamples, VoteCounts, Votes

# This number is so large that no shape, limit or number of classes contains its digits.
IMAGES = image_dataset(2, class_names=("a", "b", "c"), augmentation="flip", pool_size=4)

# Rows with one sum.
counts_arrays = st.builds(
    lambda row, num_queries: np.resize(np.append(row, 1), (num_queries, len(row) + 1)),
    hnp.arrays(np.int64, st.integers(0, 4), elements=st.integers(0, 2**60)),
    st.integers(0, 6),
)


@given(counts_arrays)
def test_counts_keep_their_values_as_read_only_int64(values):
    counts = VoteCounts(values)
    np.testing.assert_array_equal(counts.values, values)
    assert counts.values.dtype == np.int64
    assert (counts.num_queries, counts.num_classes) == values.shape
    with pytest.raises(ValueError, match="read-only"):
        counts.values[...] = 0


@pytest.mark.parametrize(
    "values",
    [
        np.ones((2, 2), np.bool_),
        np.ones((2, 2), np.complex128),
        np.array([[1, None]], dtype=object),
        np.full((1, 2), np.iinfo(np.uint64).max),
        np.ones(4, np.int64),
        np.ones((2, 0), np.int64),
        [[True, False]],
    ],
    ids=lambda values: f"{np.asarray(values).dtype}{np.asarray(values).shape}",
)
def test_other_types_and_shapes_are_refused(values):
    with pytest.raises(ValueError, match=r"(counts|num_classes) must"):
        VoteCounts(values)
    if np.shape(values) != (2, 0):  # two teachers and no query are valid votes
        with pytest.raises(ValueError, match="votes must"):
            Votes(values, 3)


@given(
    st.integers(1, 4).flatmap(
        lambda num_classes: st.tuples(
            st.just(num_classes),
            hnp.arrays(
                np.int64,
                st.tuples(st.integers(1, 6), st.integers(0, 5)),
                elements=st.integers(0, num_classes - 1),
            ),
        )
    )
)
def test_counting_agrees_with_a_slow_twin(drawn):
    num_classes, labels = drawn
    counts = Votes(labels, num_classes).counts()
    expected = [
        [sum(int(label == wanted) for label in column) for wanted in range(num_classes)]
        for column in labels.T
    ]
    np.testing.assert_array_equal(
        counts.values, np.array(expected, np.int64).reshape(-1, num_classes)
    )
    assert (counts.values.sum(axis=1) == len(labels)).all()


def test_examples_check_their_shapes():
    for kind in (PrivateExamples, PublicExamples):
        with pytest.raises(ValueError, match="inputs of images must"):
            kind(IMAGES, np.zeros((3, 2, 2)), np.zeros(3, np.int64))
        with pytest.raises(ValueError, match="labels of images must"):
            kind(IMAGES, np.zeros((3, 2, 2, 1)), np.zeros(2, np.int64))
        with pytest.raises(ValueError, match="labels of images must"):
            kind(IMAGES, np.zeros((3, 2, 2, 1)), np.array([0, 1, 3]))
        examples = kind(IMAGES, np.zeros((3, 2, 2, 1)), np.array([0, 1, 2]))
        assert len(examples) == 3
        with pytest.raises(ValueError, match="read-only"):
            examples.labels[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            examples.inputs[0] = 1


def test_public_labels_may_be_absent_all_or_some():
    inputs = np.arange(5 * 4).reshape(5, 2, 2, 1)
    none = PublicExamples(IMAGES, inputs)
    assert none.labels is None
    assert none.split(5).pool.majority_share is None
    assert none.labelled() is None
    split = none.split(5)  # nothing needs to be held out
    assert split.pool.true_labels is None
    assert split.held_out.labels is None
    assert (len(split.pool), len(split.held_out)) == (5, 0)
    assert PublicExamples(IMAGES, inputs, np.full(5, -1)).labels is None
    some = PublicExamples(IMAGES, inputs, np.array([-1, -1, 1, -1, 1]))
    assert some.split(3).pool.majority_share == 1.0
    np.testing.assert_array_equal(some.labelled().inputs, inputs[[2, 4]])
    assert some.split(2).pool.true_labels is None
    np.testing.assert_array_equal(some.split(3).pool.true_labels, [-1, -1, 1])
    rest = some.split(3).without(np.array([2]))
    np.testing.assert_array_equal(rest.inputs, inputs[[0, 1, 3, 4]])
    np.testing.assert_array_equal(rest.labels, [-1, -1, -1, 1])
    assert none.split(3).without(np.array([0])).labels is None
    with pytest.raises(ValueError, match="labels of images must be from -1 to 2"):
        PublicExamples(IMAGES, inputs, np.array([-2, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="labels of images must be from 0 to 2"):
        PrivateExamples(IMAGES, inputs, np.array([-1, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sound"},
        {"augmentation": "magic"},
        {"class_names": ("a",)},
        {"pool_size": -1},
        {"value_range": (1.0, 1.0)},
        {"value_range": (0.0, float("nan"))},
        {"num_classes": 0},
    ],
    ids=str,
)
def test_a_dataset_refuses_nonsense(change):
    with pytest.raises(ValueError, match=" must "):
        Dataset.from_dict({**IMAGES.to_dict(), **change})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 2)) / 2, r"weights must have .*\[2, 3\]"),
        ([[0.5, 0.5, 0.5], [1, 0, 0]], "each row of weights must sum to 1"),
        ([[2.0, -1.0, 0.0], [1, 0, 0]], "at least 0"),
        ([[np.nan, 0.0, 0.0], [1, 0, 0]], "finite"),
    ],
)
def test_weights_are_laws_of_the_classes(weights, message):
    labels = PoolLabels(
        query_indices=[0, 1], labels=[0, 1], num_classes=3, weights=np.asarray(weights)
    )
    with pytest.raises(ValueError, match=message):
        labels.checked()


def test_inputs_that_float32_can_not_hold_are_refused():
    """Each input is checked separately and beforehand: none may become infinite in a teacher."""
    floats = dataclasses.replace(IMAGES, input_type="float32")
    inputs = np.zeros((5, *IMAGES.input_shape))
    PrivateExamples(floats, inputs + 3e38, np.zeros(5, int))
    for value in (1e39, -1e300, np.nan, -np.inf):
        inputs[3, 0, 0, 0] = value
        with pytest.raises(ValueError, match="inputs of images must be finite"):
            PrivateExamples(floats, inputs, np.zeros(5, int))


def test_held_out_samples_of_other_classes_than_the_pool_are_named():
    dataset = table_dataset(1, 0.0, 1.0, 3)
    labels = np.repeat([0, 1, 2], 40)
    shuffled = np.random.default_rng(0).permutation(labels)
    inputs = np.zeros((120, 1), np.float32)
    with pytest.warns(UserWarning, match="sorted by class"):
        PublicExamples(dataset, inputs, labels).split(90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PublicExamples(dataset, inputs, shuffled).split(90)
        PublicExamples(dataset, inputs, np.where(labels == 2, -1, labels)).split(90)
