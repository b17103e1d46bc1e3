"""Voters: ensembles of teachers that can be asked for votes.

TensorFlow is imported where a SavedModel is loaded, alone.
"""

import copy
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.teachers.settings import TeacherConfig

UNITS = ("record", "owner")
VOTING_BATCH: Final = 256  # inputs; larger batches fall out of the cache and take longer an input
MOST_VOTES: Final = 2**24  # of all teachers on single inputs, in memory at a time

Progress = Callable[[int], object]


class Voter:
    """SENSITIVE: a whole ensemble of teachers, to be asked for votes.

    A subclass sets the first four attributes and overrides `votes`; the other methods follow from
    it, and are overridden where teachers can do better.

    Attributes:
        dataset: what is publicly known of the data; of teachers from elsewhere `for_pool` sets it.
        num_teachers: number of teachers.
        digest: hexadecimal digits that change with any teacher; the ledger knows them by it.
        unit: what one teacher's shard protects, "record" or "owner".
        config: how they were trained; None of teachers from elsewhere.
        num_records: how many private records they learned from; None where that is not known.
        source: of the private data; None where it is not known.
        encoder_digest: of the public encoder's weights, for teachers on features; else None.
        encoder_weights: the same weights, in the order of `Encoder.learnt`.
        representation: whose features they learned from, by its name; None of raw inputs.
    """

    dataset: Dataset
    num_teachers: int
    digest: str
    unit: str = "record"
    config: TeacherConfig | None = None
    num_records: int | None = None
    source: PrivateSource | None = None
    encoder_digest: str | None = None
    encoder_weights: tuple[Any, ...] = ()
    representation: Named | None = None

    def for_pool(self, pool: Pool) -> "Voter":
        """Returns the same teachers, to be asked about inputs of a pool.

        Raises:
            ValueError: if they can't label inputs of it.
        """
        del pool
        return self

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks every teacher for a label of every input.

        Args:
            inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
            progress: called with the number of queries done since its last call.

        Raises:
            ValueError: if the inputs do not fit, or a teacher fails.
        """
        raise NotImplementedError

    def covers(self, inputs: npt.NDArray[Any]) -> bool:
        """Whether the teachers can vote on each of raw inputs `[num_inputs, *input_shape]`."""
        del inputs
        return True

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """Returns how many teachers vote for each class. SENSITIVE.

        Few votes are in memory at a time.
        """
        size = max(1, MOST_VOTES // self.num_teachers)
        starts = range(0, max(1, len(inputs)), size)
        parts = [self.votes(inputs[start : start + size], progress).counts() for start in starts]
        return VoteCounts(np.concatenate([part.values for part in parts]))

    def group_counts(
        self, groups: npt.NDArray[Any], progress: Progress | None = None
    ) -> VoteCounts:
        """Returns how many teachers vote for each class, each once for every group. SENSITIVE.

        A teacher votes for the class that it names most often in a group. Of several it takes that
        of the group's first input if that is one of them, else the first class. Few votes are in
        memory at a time.

        Args:
            groups: raw inputs `[num_queries, group_size, *input_shape]`, a query first in each.
            progress: as of `votes`.
        """
        (num_queries, size), num_classes = groups.shape[:2], self.dataset.num_classes
        together = max(1, MOST_VOTES // (self.num_teachers * size))
        parts = [np.empty((0, num_classes), np.int64)]
        for start in range(0, num_queries, together):
            part = groups[start : start + together]
            single = self.votes(part.reshape(-1, *groups.shape[2:])).labels
            labels = single.reshape(self.num_teachers, len(part), size)
            # Doubled, so that the first input can break a tie and do no more.
            numbers = np.stack(
                [
                    2 * (labels == place).sum(axis=2) + (labels[..., 0] == place)
                    for place in range(num_classes)
                ],
                axis=2,
            )
            parts.append(Votes(numbers.argmax(axis=2), num_classes).counts().values)
            if progress is not None:
                progress(len(part))
        return VoteCounts(np.concatenate(parts))


def digest_for(digest: str, unit: str) -> str:
    """Returns what a ledger knows teachers from elsewhere by.

    Owners are protected by another ledger than records are: the guarantee of one is not that of the
    other.

    Raises:
        ValueError: if the unit is not "record" or "owner".
    """
    validation.one_of(UNITS, unit=unit)
    if unit == "record":
        return digest
    return hashlib.sha256(f"{unit}\0{digest}".encode()).hexdigest()


class StoredVotes(Voter):
    """SENSITIVE: teachers that answered before, for the first inputs of a pool.

    Each owner labels the same public queries and sends the labels alone.
    """

    def __init__(
        self, labels: npt.ArrayLike, *, unit: str = "record", source: PrivateSource | None = None
    ) -> None:
        """Takes labels `[num_teachers, num_queries]` of a pool's first inputs.

        Raises:
            ValueError: if they are not whole numbers of at least 0 in two dimensions, or the unit
                is unknown.
        """
        array = validation.whole_numbers(labels, "votes")
        Votes(array, int(array.max(initial=0)) + 1)  # checks the shape
        self.num_teachers, self.unit, self.source = len(array), unit, source
        self.digest = digest_for(artifacts.digest_array(array), unit)
        self._labels: IntArray = array
        self._columns: dict[bytes, int] | None = None

    def for_pool(self, pool: Pool) -> Self:
        """See `Voter.for_pool`."""
        num_teachers, num_queries = self._labels.shape
        if num_teachers == len(pool) != num_queries:
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got [{num_teachers}, "
                f"{num_queries}] for a pool of {len(pool)} inputs: transpose them"
            )
        Votes(self._labels, pool.dataset.num_classes)  # checks the labels
        if num_queries > len(pool):
            raise ValueError(
                f"votes: expected labels of at most the pool's {len(pool)} inputs, got "
                f"{num_queries}"
            )
        bound = copy.copy(self)
        bound.dataset = pool.dataset
        bound._columns = {
            row.tobytes(): column for column, row in enumerate(pool.inputs[:num_queries])
        }
        return bound

    def covers(self, inputs: npt.NDArray[Any]) -> bool:
        """Whether each of raw inputs `[num_inputs, *input_shape]` was labeled."""
        columns = self._columns or {}
        return all(row.tobytes() in columns for row in inputs)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Looks up the labels of queries: by their inputs, without a pool by their positions.

        Raises:
            ValueError: if one was not labeled.
        """
        if self._columns is None:
            columns = list(range(len(inputs)))
            missing = max(0, len(inputs) - self._labels.shape[1])
        else:
            columns = [self._columns.get(row.tobytes(), -1) for row in inputs]
            missing = columns.count(-1)
        if missing:
            raise ValueError(
                f"queries: the stored labels cover {self._labels.shape[1]} queries, {missing} "
                f"others were asked"
            )
        if progress is not None:
            progress(len(inputs))
        is_bound = self._columns is not None
        num_classes = self.dataset.num_classes if is_bound else int(self._labels.max()) + 1
        return Votes(self._labels[:, columns], num_classes)


class Ensemble(Voter):
    """SENSITIVE: an ensemble that was trained here, loaded to be asked for votes.

    Attributes:
        learnt: a digest of all that the teachers learned; `kinds.load_ensemble` makes `digest` of
            it and of their description.
    """

    config: TeacherConfig

    def __init__(self, config: TeacherConfig, learnt: str) -> None:
        """Takes how the teachers were trained, and a digest of all that they learned."""
        self.config, self.learnt = config, learnt
        self.dataset = config.dataset
        self.num_teachers = config.num_teachers
        self.unit, self.representation = config.unit, config.representation


class SavedModelEnsemble(Ensemble):
    """SENSITIVE: teachers of a SavedModel, loaded to be asked for votes."""

    def __init__(self, folder: pathlib.Path, config: TeacherConfig) -> None:
        """Loads a saved `voting_module`; raises any exception if it is missing or broken."""
        from pate_tf.data.preprocessing import load_graph  # plans are made without TensorFlow

        self._loaded = load_graph(str(folder))
        public = getattr(self._loaded, "public_weights", ())
        weights = (*self._loaded.stacked, *public)
        super().__init__(config, artifacts.digest_arrays(weights))
        if public:
            self.encoder_digest = artifacts.digest_arrays(public)
            self.encoder_weights = tuple(public)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """See `Voter.votes`."""
        import tensorflow as tf

        shape = self.dataset.input_shape
        if inputs.shape[1:] != shape:
            raise ValueError(f"queries: expected inputs of {shape}, got {inputs.shape[1:]}")
        labels = []
        for start in range(0, max(1, len(inputs)), VOTING_BATCH):
            part = inputs[start : start + VOTING_BATCH]
            batch = {self.dataset.input_name: tf.constant(part, self.dataset.input_type)}
            labels.append(self._loaded.signatures["votes"](**batch)["votes"].numpy())
            if progress is not None:
                progress(len(part))
        return Votes(np.concatenate(labels, axis=1), self.dataset.num_classes)
