"""Features of private records.

A record's features depend on that record and on the encoder, which is public, alone
(`models.encoder.record_features`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.models.encoder import Encoder, record_features

TOGETHER = 64  # teachers whose features are in memory together


def features_of_shares(
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    encoder: Encoder,
) -> Iterator[tuple[int, npt.NDArray[np.float32], IntArray]]:
    """Yields each teacher with features `[num_records, num_features]` and labels of its share.

    SENSITIVE. Few shares are in memory at a time.

    Args:
        examples: the private records of all teachers.
        partition: who gets which record.
        teachers: whose features are wanted; they come in ascending order.
        encoder: what features are.
    """
    shares = partition.all_records()
    wanted = sorted(set(teachers))
    for first in range(0, len(wanted), TOGETHER):
        group = wanted[first : first + TOGETHER]
        rows = np.concatenate([shares[one] for one in group])
        position = np.empty(partition.num_records, np.int64)
        position[rows] = np.arange(len(rows))
        found = np.empty((len(rows), encoder.num_features), np.float32)
        for some, features in record_features(encoder, examples.inputs, rows):
            found[position[some]] = features
        ends = np.cumsum([len(shares[one]) for one in group])
        for one, part in zip(group, np.split(found, ends[:-1]), strict=True):
            yield one, part, examples.labels[shares[one]]
