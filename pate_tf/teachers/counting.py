"""Votes of very many teachers, counted without ever holding all of them."""

from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from pate_tf.teachers.voters import Progress, Voter
from pate_tf.values.sensitive import VoteCounts


@runtime_checkable
class CountingVoter(Protocol):
    """Sensitive: an ensemble that counts its votes itself, a few teachers' at a time."""

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """Counts every teacher's vote on every raw input `[num_queries, *input_shape]`."""


def counts(
    teachers: Voter, inputs: npt.NDArray[Any], progress: Progress | None = None
) -> VoteCounts:
    """Returns how many teachers vote for each class. SENSITIVE.

    Args:
      teachers: the ensemble. Where it can count by itself, memory does not grow with the number of
        teachers times the number of queries.
      inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
      progress: called with the number of queries done since its last call.
    """
    if isinstance(teachers, CountingVoter):
        return teachers.counts(inputs, progress)
    return teachers.votes(inputs, progress).counts()
