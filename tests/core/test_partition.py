import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.core.sensitive import Partition, owner_partition, random_partition

seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 200).flatmap(
    lambda records: st.tuples(st.just(records), st.integers(1, records))
)
owner_names = st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name)


def assert_disjoint_and_complete(partition: Partition) -> None:
    parts = partition.all_records()
    assert len(parts) == partition.num_teachers
    together = np.concatenate(parts)
    np.testing.assert_array_equal(np.sort(together), np.arange(partition.num_records))
    for teacher, part in enumerate(parts):
        np.testing.assert_array_equal(part, np.sort(part))
        assert (partition.assignment[part] == teacher).all()


@given(sizes, seeds)
def test_random_is_disjoint_and_complete_with_the_remainder_spread(size, seed):
    num_records, num_teachers = size
    partition = random_partition(num_records=num_records, num_teachers=num_teachers, seed=seed)
    assert_disjoint_and_complete(partition)
    lengths = [len(part) for part in partition.all_records()]
    assert max(lengths) - min(lengths) <= 1
    assert sum(length > num_records // num_teachers for length in lengths) == (
        num_records % num_teachers
    )


@given(sizes, st.integers(0, 50), seeds)
def test_a_records_teacher_does_not_depend_on_how_many_come_after_it(size, more, seed):
    num_records, num_teachers = size
    few, many = (
        random_partition(num_records=number, num_teachers=num_teachers, seed=seed).assignment
        for number in (num_records, num_records + more)
    )
    np.testing.assert_array_equal(many[:num_records], few)


def test_every_block_is_dealt_out_in_an_order_of_its_own():
    dealt = random_partition(num_records=6 * 1000, num_teachers=6, seed=3).assignment
    blocks = dealt.reshape(1000, 6)
    np.testing.assert_array_equal(np.sort(blocks, axis=1), np.tile(np.arange(6), (1000, 1)))
    assert len(np.unique(blocks, axis=0)) > 500  # of 720 orders
    # Each teacher gets each place of a block equally often: 167 +- 6 standard deviations.
    for place in range(6):
        assert np.abs(np.bincount(blocks[:, place], minlength=6) - 1000 / 6).max() < 71


@given(st.lists(owner_names, min_size=1, max_size=40), st.integers(1, 3), seeds)
def test_owners_stay_together(owners, num_teachers, seed):
    partition = owner_partition(owners, num_teachers=num_teachers, seed=seed)
    assert partition.unit == "owner"
    assert_disjoint_and_complete(partition)
    for owner in set(owners):
        places = [place for place, name in enumerate(owners) if name == owner]
        assert len(set(partition.assignment[places].tolist())) == 1


@given(
    st.lists(owner_names, min_size=30, max_size=60, unique=True),
    st.lists(owner_names, min_size=1, max_size=20),
    seeds,
)
def test_an_owners_teacher_does_not_depend_on_the_other_owners(owners, others, seed):
    before = owner_partition(owners, num_teachers=2, seed=seed)
    after = owner_partition(others + owners, num_teachers=2, seed=seed)
    reverse = owner_partition(owners[::-1], num_teachers=2, seed=seed)
    np.testing.assert_array_equal(after.assignment[len(others) :], before.assignment)
    np.testing.assert_array_equal(reverse.assignment[::-1], before.assignment)


@given(st.lists(owner_names, min_size=20, max_size=40), st.integers(1, 60), seeds)
def test_an_owner_who_leaves_changes_one_share_even_if_nothing_is_left_of_it(
    owners, num_teachers, seed
):
    before = owner_partition(owners, num_teachers=num_teachers, seed=seed)
    leaving = owners[0]
    stay = [place for place, name in enumerate(owners) if name != leaving]
    if not stay:
        return
    after = owner_partition([owners[place] for place in stay], num_teachers=num_teachers, seed=seed)
    np.testing.assert_array_equal(after.assignment, before.assignment[stay])


def test_how_many_records_owners_have_refuses_no_number_of_teachers():
    assert owner_partition(["a"], num_teachers=1000, seed=0).num_teachers == 1000
    for number in (0, -1, 2**20 + 1):
        with pytest.raises(ValueError, match="num_teachers must be a whole number from 1 to"):
            owner_partition(["a"], num_teachers=number, seed=0)


@pytest.mark.parametrize("stranger", [0.5, float("nan"), None], ids=str)
def test_one_foreign_owner_does_not_move_the_others(stranger):
    # 0.5 next to 1 makes NumPy write "1.0": refused or harmless, but never another teacher.
    owners = list(range(50))
    before = owner_partition(owners, num_teachers=4, seed=0).assignment
    try:
        after = owner_partition([*owners, stranger], num_teachers=4, seed=0).assignment
    except ValueError:
        return
    np.testing.assert_array_equal(after[:-1], before)


@pytest.mark.parametrize(
    "numbers",
    [
        [0, 2],
        [0, -1],
        [0, 0],
        [],
        [[0, 0, 1]],
        [0, np.nan],
        [True, False],
        ["0", "1"],
        np.array([0, 2**64 - 1], np.uint64),
        3,
    ],
    ids=str,
)
def test_refuses_what_is_no_partition(numbers):
    with pytest.raises(ValueError, match=r"^partition( must|: )"):
        Partition(np.array(numbers), num_teachers=2)


def test_the_assignment_is_read_only_and_not_in_the_repr():
    given_assignment = np.array([0, 1, 0])
    partition = Partition(given_assignment, num_teachers=2)
    given_assignment[0] = 1
    assert partition.assignment.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="read-only"):
        partition.assignment[0] = 1
    assert repr(partition) == repr(Partition(np.array([1, 0, 1]), num_teachers=2))
