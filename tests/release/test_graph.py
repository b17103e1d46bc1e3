import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pate_tf.accounting.mechanisms import LATTICE
from pate_tf.core.sensitive import Votes
from pate_tf.release.vote_aggregation import VoteAggregation

NUM_CLASSES = 4


@pytest.fixture(scope="module")
def aggregation():
    return VoteAggregation(NUM_CLASSES)


@given(
    labels=arrays.arrays(
        np.int64,
        st.tuples(st.integers(1, 20), st.integers(0, 9)),
        elements=st.integers(0, NUM_CLASSES - 1),
    )
)
@settings(deadline=None, max_examples=50)
def test_counts_are_those_of_the_votes(aggregation, labels):
    counts = aggregation.counts(labels).numpy()
    np.testing.assert_array_equal(counts, Votes(labels, NUM_CLASSES).counts().values)
    assert counts.dtype == np.int64


@given(data=st.data(), batch=st.integers(0, 9))
@settings(deadline=None, max_examples=50)
def test_winner_is_the_largest_sum_and_the_lowest_index_among_equals(aggregation, data, batch):
    shape = (batch, NUM_CLASSES)
    counts = data.draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 3)))
    noise = data.draw(arrays.arrays(np.int64, shape, elements=st.sampled_from([0, LATTICE])))
    labels = aggregation.noisy_winners(counts, noise).numpy()
    np.testing.assert_array_equal(labels, np.argmax(counts * LATTICE + noise, axis=1))
    assert labels.dtype == np.int64


@pytest.mark.parametrize("label", [-1, NUM_CLASSES, 987_654_321, 2**62])
def test_labels_out_of_range_are_refused_without_being_shown(aggregation, label):
    import tensorflow as tf

    labels = np.array([[0, 1], [2, label]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 3") as info:
        aggregation.counts(labels)
    assert "987654321" not in str(info.value)


def test_export_and_reload_give_the_same_labels(aggregation, tmp_path):
    import tensorflow as tf

    tf.saved_model.save(aggregation, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    labels = np.array([[0, 1, 3], [2, 1, 3], [2, 0, 3]])
    counts = loaded.counts(tf.constant(labels)).numpy()
    np.testing.assert_array_equal(counts, Votes(labels, NUM_CLASSES).counts().values)
    noise = np.zeros_like(counts)
    winners = loaded.noisy_winners(tf.constant(counts), tf.constant(noise))
    assert winners.numpy().tolist() == [2, 1, 3]
