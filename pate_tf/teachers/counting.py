"""Votes of very many teachers, counted without ever holding all of them."""

from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pate_tf.teachers.voters import Progress, Voter
from pate_tf.values.arrays import IntArray
from pate_tf.values.sensitive import VoteCounts, Votes

MOST_VOTES: Final = 2**24  # of all teachers on single inputs, in memory at a time


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


def counts_of_groups(
    teachers: Voter, groups: npt.NDArray[Any], progress: Progress | None = None
) -> VoteCounts:
    """Returns how many teachers vote for each class, each once for every group. SENSITIVE.

    A teacher votes for the class that it names most often in a group. Of several it takes that of
    the group's first input if that is one of them, else the first class.

    Args:
      teachers: the ensemble.
      groups: raw inputs `[num_queries, group_size, *input_shape]`, a query the first of its group.
      progress: called with the number of queries done since its last call.
    """
    num_queries, size = groups.shape[:2]
    together = max(1, MOST_VOTES // (teachers.num_teachers * size))
    parts = [np.empty((0, teachers.dataset.num_classes), np.int64)]
    for start in range(0, num_queries, together):
        some = groups[start : start + together]
        single = teachers.votes(some.reshape(-1, *groups.shape[2:]), _of_groups(progress, size))
        parts.append(_group_votes(single, size).counts().values)
    return VoteCounts(np.concatenate(parts))


def _group_votes(votes: Votes, size: int) -> Votes:
    """Returns a vote for each `size` inputs, `[num_teachers, num_groups]`."""
    labels = votes.labels.reshape(votes.num_teachers, -1, size)
    most: IntArray = np.zeros(labels.shape[:2], np.int64)
    winners: IntArray = np.zeros_like(most)
    for place in range(votes.num_classes):
        named = labels == place
        # Doubled, so that the first input can break a tie and do no more.
        number = 2 * named.sum(axis=2) + named[:, :, 0]
        winners[number > most] = place
        np.maximum(most, number, out=most)
    return Votes(winners, votes.num_classes)


def _of_groups(progress: Progress | None, size: int) -> Progress | None:
    """Returns what takes numbers of inputs and tells of whole groups."""
    if progress is None:
        return None
    inputs = told = 0

    def advance(number: int) -> None:
        nonlocal inputs, told
        inputs += number
        progress(inputs // size - told)
        told = inputs // size

    return advance
