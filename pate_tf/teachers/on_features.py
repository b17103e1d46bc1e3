"""Features of private records.

What a record's features are depends on its own teacher's share, on the encoder, which is public,
and on the number of teachers: each record has a place in a batch of fixed size that follows from
its teacher and its rank in the share alone, so that not even rounding depends on other teachers'
records. Where owners are protected it follows from the owner's name and the record's rank among the
owner's records, so that a record's features depend on no other owner.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.partition import Partition, owner_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.models.encoder import BATCH, Encoder

SLOTS = 64  # teachers that share a batch
PLACES = -1  # key of the hash of owners to places, which no partition's seed is


def features_of_shares(
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    encoder: Encoder,
    *,
    num_slots: int = SLOTS,
) -> Iterator[tuple[int, npt.NDArray[np.float32], IntArray]]:
    """Yields each teacher with features `[num_records, num_features]` and labels of its share.

    SENSITIVE. Few shares are in memory at a time.

    Args:
        examples: the private records of all teachers.
        partition: who gets which record.
        teachers: whose features are wanted; they come in ascending order.
        encoder: what features are.
        num_slots: how many shares have places in one batch; as many are in memory together.
    """
    shares = partition.all_records()
    slots = min(num_slots, partition.num_teachers)
    size = BATCH // slots  # records of one teacher in a batch
    places, rounds = _places(partition, examples.owners, size)
    wanted = set(teachers)
    for first in range(0, partition.num_teachers, slots):
        group = [one for one in range(first, first + slots) if one in wanted]
        found = {
            one: np.empty((len(shares[one]), encoder.num_features), np.float32) for one in group
        }
        last = max((int(rounds[shares[one]].max(initial=-1)) for one in group), default=-1)
        for number in range(last + 1):
            batch = np.zeros((slots, size, *examples.dataset.input_shape), np.float32)
            parts = {one: np.flatnonzero(rounds[shares[one]] == number) for one in group}
            for one, ranks in parts.items():
                records = shares[one][ranks]
                batch[one - first, places[records]] = examples.inputs[records]
            features = encoder.batch_features(batch.reshape(-1, *batch.shape[2:]))
            by_slot = features.reshape(slots, size, -1)
            for one, ranks in parts.items():
                found[one][ranks] = by_slot[one - first, places[shares[one][ranks]]]
        for one in group:
            yield one, found[one], examples.labels[shares[one]]


def _places(
    partition: Partition, owners: npt.NDArray[Any] | None, size: int
) -> tuple[IntArray, IntArray]:
    """Returns each record's place among `size`, and in which batch; both `[num_records]`.

    A place follows from the record's rank in its share, where owners are protected from its rank
    among the owner's and from the owner's name. The batch is the first whose place is free.
    """
    if partition.unit == "owner" and owners is not None:
        begin = owner_partition(owners, num_teachers=size, seed=PLACES).assignment
        places = (begin + _ranks(partition.numbered(owners))) % size
    else:
        places = _ranks(partition.assignment) % size
    return places, _ranks(partition.assignment * size + places)


def _ranks(groups: IntArray) -> IntArray:
    """Returns how many records of its group, a number, stand before each; `[num_records]`."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    ranks = np.empty_like(groups)
    ranks[order] = np.arange(len(groups)) - (np.cumsum(sizes) - sizes)[groups[order]]
    return ranks
