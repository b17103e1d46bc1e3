"""Who holds which records in a trial of shared training on one data set."""

from collections.abc import Sequence

import numpy as np

from pate_tf.partition import random_partition
from pate_tf.values.arrays import IntArray


def dealt_shares(
    num_records: int, num_participants: int, records_each: int | None, *, seed: int
) -> list[IntArray]:
    """Returns the records of each participant, int64 indices, ascending.

    All records evenly, or shares of one size: disjoint as long as there are enough records, then
    overlapping, as in the paper (150 participants of 600 of MNIST's 60,000). A record's places
    depend on its position and public numbers alone.

    Raises:
      ValueError: if there are too few records.
    """
    if records_each is None:
        return random_partition(
            num_records=num_records, num_teachers=num_participants, seed=seed
        ).all_records()
    if not 1 <= records_each <= num_records:
        raise ValueError(
            f"records_each: expected between 1 and {num_records} records, got {records_each}"
        )
    generator = np.random.default_rng(seed)
    dealt: list[IntArray] = []
    while len(dealt) < num_participants:
        order = generator.permutation(num_records)
        whole = num_records // records_each
        dealt += [np.sort(one) for one in order[: whole * records_each].reshape(whole, -1)]
    return dealt[:num_participants]


def most_holders(shares: Sequence[IntArray]) -> int:
    """Returns how many participants hold one record at most, from public numbers alone."""
    return int(np.bincount(np.concatenate(shares)).max())
