"""Voters: ensembles of teachers that can vote on queries.

TensorFlow is imported only to load a SavedModel.
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
VOTING_BATCH: Final = 256  # inputs per batch; larger batches exceed the CPU cache and are slower
MAX_VOTES: Final = 2**24  # maximum number of votes in memory at a time, over all teachers

Progress = Callable[[int], object]


class Voter:
    """SENSITIVE: a complete ensemble of teachers that can vote.

    A subclass sets the first three attributes and overrides `votes`, which the other methods use.

    Attributes:
        dataset: public facts about the data. For the user's votes or models, `for_pool` sets this
            attribute.
        sharding: number of teachers, and unit of privacy ("record" or "owner").
        digest: hexadecimal digest that changes if any teacher changes, and identifies the teachers
            in the privacy ledger.
        config: training configuration; None for the user's votes or models.
        num_records: number of private records that the teachers learned from; None if unknown.
        source: the named private data source that is charged for releases; None if unknown.
        encoder_digest: digest of the public encoder's weights; None if teachers take raw inputs.
        encoder_weights: weights of the public encoder, in the order of `Encoder.learnt`.
        covers_pool: whether the teachers can vote on every input of the pool.
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
        """Unit of privacy, "record" or "owner"."""
        return self.sharding.unit

    @property
    def representation(self) -> Named | None:
        """Representation that the teachers learned from; None for raw inputs."""
        return None if self.config is None else self.config.representation

    def for_pool(self, pool: Pool) -> "Voter":
        """Returns the same teachers, prepared for the inputs of a pool.

        Raises:
            ValueError: if the teachers can't label the pool's inputs.
        """
        del pool
        return self

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
        """Returns the label that every teacher gives to every input. SENSITIVE.

        Args:
            inputs: raw inputs of the data set, `[num_queries, *input_shape]`.
            progress: function that is called with the number of queries that were answered since
                its last call.

        Raises:
            ValueError: if the inputs have the wrong shape, or a teacher fails.
        """
        raise NotImplementedError

    def counts(
        self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None
    ) -> VoteCounts | Votes:
        """Returns the number of votes for each class and query. SENSITIVE.

        Each teacher has one vote per query. If the target is a number or several labels, this
        method returns the predictions of all teachers instead. The votes are computed in parts, to
        limit the use of memory.

        Args:
            inputs: raw queries `[num_queries, *input_shape]`.
            progress: function that is called with the number of answered queries, see `votes`.
        """
        if self.dataset.target != CLASS:
            return self.votes(inputs, progress)
        chunk = max(1, MAX_VOTES // self.num_teachers)
        parts = []
        for start in range(0, max(1, len(inputs)), chunk):
            part = inputs[start : start + chunk]
            parts.append(self.votes(part, progress).counts().values)
        return VoteCounts(np.concatenate(parts))


def digest_for(digest: str, unit: str) -> str:
    """Returns the digest that identifies the user's votes or models in a privacy ledger.

    The digest depends on the unit of privacy, because owners and records need separate ledgers: a
    guarantee for records does not hold for owners.

    Args:
        digest: digest of the votes or models.
        unit: unit of privacy, "record" or "owner".

    Raises:
        ValueError: if the unit is not "record" or "owner".
    """
    checks.one_of(UNITS, unit=unit)
    if unit == "record":
        return digest
    return hashlib.sha256(f"{unit}\0{digest}".encode()).hexdigest()


class StoredVotes(Voter):
    """SENSITIVE: teachers that are given by their votes on the first inputs of a pool.

    Use this class if each owner labels the same public queries and sends only the labels.
    """

    def __init__(
        self, labels: npt.ArrayLike, *, unit: str = "record", source: PrivateSource | None = None
    ) -> None:
        """Takes each teacher's labels of the first inputs of a pool, `[num_teachers, num_queries]`.

        For a numeric target, pass predicted numbers instead. For a target of several labels, pass
        probabilities, `[num_teachers, num_queries, num_labels]`.

        Raises:
            ValueError: if the labels have another shape or type, or the unit is unknown.
        """
        array = np.asarray(labels)
        # `for_pool` completes this check, because the type of target is not known before.
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
                f"votes must have shape [num_teachers, num_queries], got [{num_teachers}, "
                f"{num_queries}] for a pool of {len(pool)} inputs. Transpose them."
            )
        if num_queries > len(pool):
            raise ValueError(
                f"votes must have at most {len(pool)} queries, the pool's size, got {num_queries}"
            )
        bound = copy.copy(self)
        bound.dataset = pool.dataset
        columns = {row.tobytes(): column for column, row in enumerate(pool.inputs[:num_queries])}
        bound._columns = columns
        bound.covers_pool = all(row.tobytes() in columns for row in pool.inputs)
        return bound

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
        """Returns the stored labels of queries; finds them by input, or by position without a pool.

        Raises:
            ValueError: if a query has no stored label.
        """
        if self._columns is None:
            columns = list(range(len(inputs)))
            missing = max(0, len(inputs) - self._labels.shape[1])
        else:
            columns = [self._columns.get(row.tobytes(), -1) for row in inputs]
            missing = columns.count(-1)
        if missing:
            raise ValueError(
                f"queries: {missing} are not among the {self._labels.shape[1]} stored queries"
            )
        progress(len(inputs))
        dataset = None if self._columns is None else self.dataset
        num_classes = int(self._labels.max()) + 1 if dataset is None else dataset.num_classes
        return Votes(self._labels[:, columns], num_classes, dataset)


class Ensemble(Voter):
    """SENSITIVE: a stored ensemble that this library trained.

    Attributes:
        learnt: digest of all learned parameters of the teachers. `teacher_kinds.load_ensemble`
            computes `digest` from this value and from the description of the teachers.
    """

    config: TeacherConfig

    def __init__(self, config: TeacherConfig, learnt: str) -> None:
        """Stores the training configuration, and a digest of all learned parameters."""
        self.config = config
        self.sharding = config
        self.dataset = config.dataset
        self.learnt = learnt


class SavedModelEnsemble(Ensemble):
    """SENSITIVE: a stored ensemble of teachers in one SavedModel."""

    def __init__(self, folder: pathlib.Path, config: TeacherConfig) -> None:
        """Loads the SavedModel; may raise any exception if it is missing or damaged."""
        from pate_tf.data.preprocessing import load_graph  # so that planning needs no TensorFlow

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

        checks.shape(["num_queries", *self.dataset.input_shape], queries=inputs)
        labels = []
        for start in range(0, max(1, len(inputs)), VOTING_BATCH):
            part = inputs[start : start + VOTING_BATCH]
            batch = {self.dataset.input_name: tf.constant(part, self.dataset.input_type)}
            labels.append(self._loaded.signatures["votes"](**batch)["votes"].numpy())
            progress(len(part))
        return Votes(np.concatenate(labels, axis=1), self.dataset.num_classes, self.dataset)
