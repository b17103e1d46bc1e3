"""Voters: ensembles of teachers that can be asked for votes.

TensorFlow is imported only where a SavedModel is loaded.
"""

import copy
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks
from pate_tf.core.dataset import CLASS, Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import Sharding, VoteCounts, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.data.named_function import Named
from pate_tf.teachers.teacher_settings import TeacherConfig

UNITS = ("record", "owner")
VOTING_BATCH: Final = 256  # inputs; larger batches fall out of the cache and take longer an input
MOST_VOTES: Final = 2**24  # of all teachers on single inputs, in memory at a time

Progress = Callable[[int], object]


class Voter:
    """SENSITIVE: a whole ensemble of teachers, to be asked for votes.

    A subclass sets the first three attributes and overrides `votes`; the other methods follow from
    it.

    Attributes:
        dataset: what is publicly known of the data; of teachers from elsewhere `for_pool` sets it.
        sharding: how many teachers share the private records, and what one shard protects.
        digest: hexadecimal digits that change with any teacher; the ledger knows them by it.
        config: how they were trained; None of teachers from elsewhere.
        num_records: how many private records they learned from; None where that is not known.
        source: of the private data; None where it is not known.
        encoder_digest: of the public encoder's weights, for teachers on features; else None.
        encoder_weights: the same weights, in the order of `Encoder.learnt`.
        covers_pool: whether they can vote on every input of the pool that they are for.
    """

    dataset: Dataset
    sharding: Sharding
    digest: str
    config: TeacherConfig | None = None
    num_records: int | None = None
    source: PrivateSource | None = None
    encoder_digest: str | None = None
    encoder_weights: tuple[Any, ...] = ()
    covers_pool: bool = True

    @property
    def num_teachers(self) -> int:
        """Number of teachers."""
        return self.sharding.num_teachers

    @property
    def unit(self) -> str:
        """What one teacher's shard protects, "record" or "owner"."""
        return self.sharding.unit

    @property
    def representation(self) -> Named | None:
        """Whose features they learned from, by its name; None of raw inputs."""
        return None if self.config is None else self.config.representation

    def for_pool(self, pool: Pool) -> "Voter":
        """Returns the same teachers, to be asked about inputs of a pool.

        Raises:
            ValueError: if they can't label inputs of it.
        """
        del pool
        return self

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
        """Asks every teacher for a label of every input.

        Args:
            inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
            progress: called with the number of queries done since its last call.

        Raises:
            ValueError: if the inputs do not fit, or a teacher fails.
        """
        raise NotImplementedError

    def counts(
        self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None
    ) -> VoteCounts | Votes:
        """Returns how many teachers vote for each class of each query. SENSITIVE.

        Of numbers and several labels it returns the predictions.

        Each teacher has one vote for a query. Few votes are in memory at a time.

        Args:
            inputs: raw queries `[num_queries, *input_shape]`.
            progress: as of `votes`.
        """
        if self.dataset.target != CLASS:
            return self.votes(inputs, progress)
        together = max(1, MOST_VOTES // self.num_teachers)
        parts = []
        for start in range(0, max(1, len(inputs)), together):
            part = inputs[start : start + together]
            parts.append(self.votes(part, progress).counts().values)
        return VoteCounts(np.concatenate(parts))


def digest_for(digest: str, unit: str) -> str:
    """Returns what a ledger knows teachers from elsewhere by.

    Owners are protected by another ledger than records are: the guarantee of one is not that of the
    other.

    Raises:
        ValueError: if the unit is not "record" or "owner".
    """
    checks.one_of(UNITS, unit=unit)
    if unit == "record":
        return digest
    return hashlib.sha256(f"{unit}\0{digest}".encode()).hexdigest()


class StoredVotes(Voter):
    """SENSITIVE: teachers that answered before, for the first inputs of a pool.

    Each owner labels the same public queries and sends only the labels.
    """

    def __init__(
        self, labels: npt.ArrayLike, *, unit: str = "record", source: PrivateSource | None = None
    ) -> None:
        """Takes labels `[num_teachers, num_queries]` of a pool's first inputs.

        Also predictions of numbers, or of several labels `[num_teachers, num_queries, num_labels]`.

        Raises:
            ValueError: if they are something else, or the unit is unknown.
        """
        array = np.asarray(labels)
        # What else they are shows when it is known what teachers predict, in `for_pool`.
        are_numbers = array.dtype.kind == "f" and ((array < 0) | (array != np.floor(array))).any()
        if array.ndim != 3 and not are_numbers:
            array = checks.whole_numbers(array, "votes")
            Votes(array, int(array.max(initial=0)) + 1)  # checks the shape
        self.sharding = Sharding(num_teachers=len(array), unit=unit)
        self.source = source
        self.digest = digest_for(artifacts.digest_array(array), unit)
        self._labels: npt.NDArray[Any] = array
        self._columns: dict[bytes, int] | None = None

    def for_pool(self, pool: Pool) -> Self:
        """See `Voter.for_pool`."""
        Votes(self._labels, pool.dataset.num_classes, pool.dataset)  # checks the labels
        num_teachers, num_queries = self._labels.shape[:2]
        if num_teachers == len(pool) != num_queries:
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got [{num_teachers}, "
                f"{num_queries}] for a pool of {len(pool)} inputs: transpose them"
            )
        if num_queries > len(pool):
            raise ValueError(
                f"votes: expected labels of at most the pool's {len(pool)} inputs, got "
                f"{num_queries}"
            )
        bound = copy.copy(self)
        bound.dataset = pool.dataset
        columns = {row.tobytes(): column for column, row in enumerate(pool.inputs[:num_queries])}
        bound._columns = columns
        bound.covers_pool = all(row.tobytes() in columns for row in pool.inputs)
        return bound

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
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
        progress(len(inputs))
        dataset = None if self._columns is None else self.dataset
        num_classes = int(self._labels.max()) + 1 if dataset is None else dataset.num_classes
        return Votes(self._labels[:, columns], num_classes, dataset)


class Ensemble(Voter):
    """SENSITIVE: an ensemble that was trained here, loaded to be asked for votes.

    Attributes:
        learnt: a digest of all that the teachers learned; `kinds.load_ensemble` makes `digest` of
            it and of their description.
    """

    config: TeacherConfig

    def __init__(self, config: TeacherConfig, learnt: str) -> None:
        """Takes how the teachers were trained, and a digest of all that they learned."""
        self.config = config
        self.sharding = config
        self.dataset = config.dataset
        self.learnt = learnt


class SavedModelEnsemble(Ensemble):
    """SENSITIVE: teachers of a SavedModel, loaded to be asked for votes."""

    def __init__(self, folder: pathlib.Path, config: TeacherConfig) -> None:
        """Loads what `ensemble` saved; raises any exception if it is missing or broken."""
        from pate_tf.data.preprocessing import load_graph  # plans are made without TensorFlow

        self._loaded = load_graph(str(folder))
        public = getattr(self._loaded, "public_weights", ())
        weights = (*self._loaded.stacked, *public)
        super().__init__(config, artifacts.digest_arrays(weights))
        if public:
            self.encoder_digest = artifacts.digest_arrays(public)
            self.encoder_weights = tuple(public)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
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
            progress(len(part))
        return Votes(np.concatenate(labels, axis=1), self.dataset.num_classes, self.dataset)
