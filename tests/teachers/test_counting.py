"""Votes on groups of inputs: each teacher has one for each group, whatever its size."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.teachers import voters

DIGITS = data.load_public("digits").dataset
NUM_CLASSES = 10


class Table:
    """Teachers whose votes on an input are a column that its first pixel names."""

    dataset = DIGITS
    unit = "record"
    digest = "ab" * 32

    def __init__(self, labels):
        self.labels = np.asarray(labels)
        self.num_teachers = len(self.labels)

    def votes(self, inputs, progress=None):
        places = inputs[:, 0, 0, 0].astype(int)
        for _ in places:
            if progress is not None:
                progress(1)
        return Votes(self.labels[:, places], NUM_CLASSES)


def groups_of(places):
    inputs = np.zeros((*np.shape(places), *DIGITS.input_shape), np.float32)
    inputs[..., 0, 0, 0] = places
    return inputs


def by_hand(labels, places):
    """Counts of groups, one teacher and one group after another."""
    counts = np.zeros((len(places), NUM_CLASSES), np.int64)
    for row, group in enumerate(places):
        for teacher in labels:
            named = Counter(int(teacher[place]) for place in group)
            most = max(named.values())
            first = int(teacher[group[0]])
            tied = sorted(name for name, number in named.items() if number == most)
            counts[row, first if first in tied else tied[0]] += 1
    return counts


@settings(max_examples=50)
@given(data=st.data())
def test_it_is_the_class_that_a_teacher_names_most_often(data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    num_teachers, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    labels = random.integers(0, data.draw(st.integers(1, NUM_CLASSES)), (num_teachers, 12))
    places = random.integers(0, 12, (data.draw(st.integers(0, 4)), size))
    found = voters.counts_of_groups(Table(labels), groups_of(places))
    np.testing.assert_array_equal(found.values, by_hand(labels, places))


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_another_teacher_moves_one_vote_of_each_group_and_no_more(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, (6, 12))
    changed = labels.copy()
    changed[2] = random.integers(0, 4, 12)
    places = random.integers(0, 12, (5, 7))
    one, other = (
        voters.counts_of_groups(Table(each), groups_of(places)).values for each in (labels, changed)
    )
    moved = one - other
    assert (moved.sum(axis=1) == 0).all()
    assert np.abs(moved).sum(axis=1).max() <= 2


def test_a_few_groups_at_a_time_are_counted_alike_and_told_of(monkeypatch):
    random = np.random.default_rng(0)
    labels, places = random.integers(0, 10, (8, 40)), random.integers(0, 40, (11, 5))
    at_once = voters.counts_of_groups(Table(labels), groups_of(places)).values
    monkeypatch.setattr(voters, "MOST_VOTES", 3 * 8 * 5)
    told = []
    in_parts = voters.counts_of_groups(Table(labels), groups_of(places), told.append).values
    np.testing.assert_array_equal(in_parts, at_once)
    assert sum(told) == 11 and max(told) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_a_group_of_one_is_the_query_alone(number):
    labels = np.random.default_rng(1).integers(0, 10, (8, 40))
    places = np.arange(number)[:, None]
    teachers = Table(labels)
    np.testing.assert_array_equal(
        voters.counts_of_groups(teachers, groups_of(places)).values,
        voters.counts(teachers, groups_of(places)[:, 0]).values,
    )
