import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.students.batches import (
    BATCH,
    ShuffledItems,
    dataset_of,
    derived_seeds,
    outputs,
    step_seeds,
)


def rows_of(items: ShuffledItems, steps) -> np.ndarray:
    return np.concatenate([items.at(tf.constant(step, tf.int64))[0] for step in steps])


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_every_pass_sees_every_item_once(num_items, batch_size, seed):
    items = ShuffledItems(np.arange(num_items), batch_size=batch_size, seed=seed)
    num_steps = -(-2 * num_items // batch_size)
    rows = rows_of(items, range(num_steps))
    for number in range(2):
        one_pass = rows[number * num_items : (number + 1) * num_items]
        assert sorted(one_pass) == list(range(num_items))


def test_orders_differ_from_pass_to_pass_and_from_seed_to_seed():
    first = ShuffledItems(np.arange(100), batch_size=100, seed=1)
    second = ShuffledItems(np.arange(100), batch_size=100, seed=2)
    orders = [rows_of(first, [0]), rows_of(first, [1]), rows_of(second, [0]), np.arange(100)]
    for number, order in enumerate(orders):
        assert all(not np.array_equal(order, other) for other in orders[:number])


def test_arrays_stay_together():
    items = ShuffledItems(np.arange(20), np.arange(20) * 3, batch_size=7, seed=4)
    one, other = items.at(tf.constant(5, tf.int64))
    np.testing.assert_array_equal(3 * one, other)


@pytest.mark.parametrize("first_step", [0, 3])
def test_batches_depend_on_the_step_alone(first_step):
    items = ShuffledItems(np.arange(20), batch_size=3, seed=4)
    dataset = dataset_of(lambda step: tuple(items.at(step)), first_step=first_step, end_step=8)
    found = np.concatenate([batch[0] for batch in dataset])
    np.testing.assert_array_equal(found, rows_of(items, range(first_step, 8)))


def test_seeds_differ():
    seeds = [
        tuple(seed.numpy())
        for step in range(5)
        for seed in step_seeds(7, tf.constant(step, tf.int64), 3)
    ]
    assert len(set(seeds)) == 15
    assert len(set(derived_seeds(7, 30) + derived_seeds(8, 30))) == 60
    assert derived_seeds(7, 3) == derived_seeds(7, 5)[:3]


@pytest.mark.parametrize("num", [1, BATCH, BATCH + 1])
def test_outputs_are_those_of_the_model_whatever_their_number(num):
    def double(inputs: tf.Tensor, training: bool) -> tf.Tensor:
        assert not training
        assert inputs.dtype == tf.float32
        return 2.0 * inputs

    given = np.arange(2 * num, dtype=np.uint8).reshape(num, 2)
    np.testing.assert_array_equal(outputs(double, given), 2.0 * given)
