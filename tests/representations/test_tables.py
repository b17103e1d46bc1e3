"""Features of tables: bins, and products of two numbers."""

import dataclasses

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.representations.catalogue import encoder_of
from pate_tf.representations.raw import BINS

TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(7,),
    value_range=((-9.0,) + (0.0,) * 6, (9.0, 99.0) + (1.0,) * 5),
    num_classes=2,
    pool_size=1_000,
)
RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.normal(0, 1, 1_000)
SPIKE = np.where(RANDOM.random(1_000) < 0.93, 0.0, RANDOM.integers(1, 99, 1_000))
INPUTS = np.column_stack(
    [NORMAL, SPIKE, RANDOM.integers(0, 2, 1_000), np.eye(4)[RANDOM.integers(0, 4, 1_000)]]
).astype(np.float32)
NUM_RAW = 7 + 1


def _bins(pool: Pool, inputs: np.ndarray) -> np.ndarray:
    """Returns `[num_inputs, num_bins]`: whether an input is in each bin."""
    return encoder_of(pool, "bins").features(inputs)[:, NUM_RAW:] > 0.0


def test_bins_lie_beside_raw_features_and_hold_about_as_many_inputs_each():
    pool = Pool(TABLE, INPUTS)
    raw, features = (encoder_of(pool, name).features(INPUTS) for name in ("raw", "bins"))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-5)
    beside = features[:, :NUM_RAW]
    np.testing.assert_allclose(
        beside / np.linalg.norm(beside, axis=1, keepdims=True), raw, atol=1e-5
    )
    squares = np.square(features)
    np.testing.assert_allclose(squares[:, NUM_RAW:].sum(axis=1), 0.2, atol=1e-5)
    bins = _bins(pool, INPUTS)
    assert (bins[:, :BINS].sum(axis=1) == 1).all()
    assert (np.abs(bins[:, :BINS].sum(axis=0) - 100) <= 2).all()
    places = bins[:, :BINS].argmax(axis=1)
    assert (np.diff(places[NORMAL.argsort()]) >= 0).all()


def test_a_column_that_is_nearly_always_0_has_bins_for_what_is_not():
    spike = _bins(Pool(TABLE, INPUTS), INPUTS)[:, BINS:]  # a number with two values has no bins
    assert 4 <= spike.shape[1] <= BINS and (spike.sum(axis=1) == 1).all()
    of_zero = spike[SPIKE == 0].any(axis=0)
    assert of_zero.sum() == 1 and not spike[SPIKE > 0][:, of_zero].all()


def test_whole_numbers_that_are_neighbours_in_float32_have_bins_of_their_own():
    inputs = INPUTS.copy()
    inputs[:, 1] = 2.0**24 + 2.0 * (np.arange(1_000) % 6)
    bins = _bins(Pool(TABLE, inputs), inputs)[:, BINS:]
    assert bins.shape[1] == 6 and (bins.sum(axis=0) >= 166).all()


def test_inner_products_of_pairs_are_squares_of_those_of_raw_and_wide_tables_are_refused():
    pool = Pool(TABLE, INPUTS)
    raw, pairs = (encoder_of(pool, name).features(INPUTS[:50]) for name in ("raw", "pairs"))
    assert pairs.shape == (50, NUM_RAW * (NUM_RAW + 1) // 2)
    np.testing.assert_allclose(pairs @ pairs.T, np.square(raw @ raw.T), atol=1e-5)
    wide = dataclasses.replace(TABLE, input_shape=(65,), value_range=(0.0, 1.0))
    with pytest.raises(ValueError, match="at most 64 numbers and categories, got 65"):
        encoder_of(Pool(wide, np.zeros((2, 65), np.float32)), "pairs")
