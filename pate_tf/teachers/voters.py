"""Voters: ensembles of teachers that can be asked for votes. TensorFlow is not imported."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import PrivateExamples, VoteCounts, Votes
from pate_tf.core.source import PrivateSource, Records
from pate_tf.core.validation import IntArray
from pate_tf.teachers.settings import TeacherConfig

UNITS = ("record", "owner")
MOST_VOTES: Final = 2**24  # of all teachers on single inputs, in memory at a time
RECORDS: Final = "records.json"

Progress = Callable[[int], object]


class Voter:
    """SENSITIVE: a whole ensemble of teachers, to be asked for votes.

    A subclass sets the first four attributes and overrides `votes`; the other methods follow from
    it, and are overridden where teachers can do better.

    Attributes:
        dataset: what is publicly known of the data.
        num_teachers: number of teachers.
        digest: hexadecimal digits that change with any teacher; the ledger knows them by it.
        unit: what one teacher's share protects, "record" or "owner".
        config: how they were trained; None of teachers from elsewhere.
        num_records: how many private records they learnt from; None where that is not known.
        source: that these are of; None where it is not known.
        encoder_digest: of the public encoder's weights, for teachers on features; else None.
    """

    dataset: Dataset
    num_teachers: int
    digest: str
    unit: str = "record"
    config: TeacherConfig | None = None
    num_records: int | None = None
    source: PrivateSource | None = None
    encoder_digest: str | None = None

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks every teacher for a label of every input.

        Args:
            inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
            progress: called with the number of queries done since its last call; teachers that are
                done may count as their share of the queries.

        Raises:
            ValueError: if the inputs do not fit, or a teacher fails.
        """
        raise NotImplementedError

    def covers(self, inputs: npt.NDArray[Any]) -> bool:
        """Whether the teachers can vote on each of raw inputs `[num_inputs, *input_shape]`."""
        del inputs
        return True

    def counts(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> VoteCounts:
        """Returns how many teachers vote for each class: `votes(inputs).counts()`. SENSITIVE."""
        return self.votes(inputs, progress).counts()

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
        num_queries, size = groups.shape[:2]
        together = max(1, MOST_VOTES // (self.num_teachers * size))
        parts = [np.empty((0, self.dataset.num_classes), np.int64)]
        for start in range(0, num_queries, together):
            some = groups[start : start + together]
            single = self.votes(some.reshape(-1, *groups.shape[2:]), _of_groups(progress, size))
            parts.append(_group_votes(single, size).counts().values)
        return VoteCounts(np.concatenate(parts))

    def probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Returns what the teachers state on average, `[num_queries, num_classes]`.

        SENSITIVE, and not covered by any mechanism here: for comparisons alone. Logits are divided
        by the temperature: the larger, the smoother; otherwise as `votes`.

        Raises:
            ValueError: if they answer with labels alone, or the temperature is not above 0.
        """
        validation.positive(temperature=temperature)
        return self._probabilities(inputs, temperature, progress)

    def _probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None
    ) -> npt.NDArray[np.float32]:
        del inputs, temperature, progress
        raise ValueError(
            "teachers: expected Keras teachers trained by train_teachers.py, which state "
            "probabilities, got teachers that answer with labels alone"
        )


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
    """Returns what takes numbers of inputs and reports whole groups."""
    if progress is None:
        return None
    inputs = reported = 0

    def advance(number: int) -> None:
        nonlocal inputs, reported
        inputs += number
        progress(inputs // size - reported)
        reported = inputs // size

    return advance


def by_teacher(progress: Progress | None, teacher: int, num_teachers: int, number: int) -> None:
    """Reports a teacher that is done as its share of `number` queries."""
    if progress is not None:
        progress((teacher + 1) * number // num_teachers - teacher * number // num_teachers)


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

    def __init__(self, votes: Votes, pool: Pool, *, unit: str = "record") -> None:
        """Takes labels of a pool's first inputs; ValueError if they don't fit the pool."""
        if votes.num_queries > len(pool) or votes.num_classes != pool.dataset.num_classes:
            raise ValueError(
                f"votes: expected labels of {pool.dataset.num_classes} classes, of at most the "
                f"pool's {len(pool)} inputs, got {votes.num_classes} and {votes.num_queries}"
            )
        if votes.num_teachers == len(pool) != votes.num_queries:
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got [{votes.num_teachers}, "
                f"{votes.num_queries}] for a pool of {len(pool)} inputs: transpose them"
            )
        self.dataset = pool.dataset
        self.num_teachers = votes.num_teachers
        self.unit = unit
        self.digest = digest_for(artifacts.digest_array(votes.labels), unit)
        self._labels = votes.labels
        queries = pool.inputs[: votes.num_queries]
        self._columns = {row.tobytes(): column for column, row in enumerate(queries)}

    def covers(self, inputs: npt.NDArray[Any]) -> bool:
        """Whether each of raw inputs `[num_inputs, *input_shape]` was labelled."""
        return all(row.tobytes() in self._columns for row in inputs)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Looks up the labels of queries of the pool; ValueError if one was not labelled."""
        columns = [self._columns.get(row.tobytes(), -1) for row in inputs]
        missing = columns.count(-1)
        if missing:
            raise ValueError(
                f"queries: the stored labels cover {self._labels.shape[1]} queries, {missing} "
                f"others were asked"
            )
        if progress is not None:
            progress(len(inputs))
        return Votes(self._labels[:, columns], self.dataset.num_classes)


# Ensembles that were trained and saved here.


@dataclasses.dataclass(frozen=True)
class Saved:
    """A saved ensemble's folder, with what `ensemble.json` says.

    Attributes:
        folder: of the ensemble.
        description: the fields of the configuration, as they were written.
        config: the same, checked.
    """

    folder: pathlib.Path
    description: Mapping[str, Any]
    config: TeacherConfig


class Ensemble(Voter):
    """SENSITIVE: an ensemble that was trained here, loaded to be asked for votes.

    A subclass overrides `_votes`, which takes inputs of the right shape.
    """

    config: TeacherConfig

    def __init__(self, saved: Saved, learnt: str) -> None:
        """Takes the folder that it was loaded from, and a digest of all that was learnt."""
        self.config = saved.config
        self.dataset = saved.config.dataset
        self.num_teachers = saved.config.num_teachers
        self.unit = saved.config.unit
        text = json.dumps(saved.description, sort_keys=True) + learnt
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        if (records := records_in(saved.folder.parent)) is not None:
            self.num_records, self.source = records.num_records, records.source

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """See `Voter.votes`."""
        validation.shape(["num_queries", *self.dataset.input_shape], queries=inputs)
        return self._votes(inputs, progress)

    def _votes(self, inputs: npt.NDArray[Any], progress: Progress | None) -> Votes:
        raise NotImplementedError


def store_records(folder: pathlib.Path, examples: PrivateExamples) -> None:
    """Writes number and source of private records into teachers' sensitive folder."""
    records = Records(num_records=len(examples), source=examples.source)
    artifacts.write_json(folder / RECORDS, dataclasses.asdict(records), private=True)


def records_in(folder: pathlib.Path) -> Records | None:
    """Returns what `store_records` wrote; None if there is nothing.

    Raises:
        ValueError: if the file is broken.
    """
    path = folder / RECORDS
    return Records.from_dict(artifacts.read_json(path)) if path.exists() else None
