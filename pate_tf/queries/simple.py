"""Choices that no label plays a part in, and labels as they were released."""

import numpy as np

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.values.arrays import IntArray
from pate_tf.values.public import Pool, PoolLabels


def choose_first(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns the first positions of the pool, `[num_queries]`."""
    del pool, seed
    return np.arange(num_queries)


def random_order(pool: Pool, seed: int) -> IntArray:
    """Returns all positions of the pool in an order that the seed decides, `[num_inputs]`."""
    return np.random.default_rng(seed).permutation(len(pool))


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns positions drawn without replacement, `[num_queries]`.

    More queries of the same seed begin with the same ones, which are paid for already.
    """
    return random_order(pool, seed)[:num_queries]


def as_released(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns the released labels: nothing else follows from them."""
    del pool, seed
    return released
