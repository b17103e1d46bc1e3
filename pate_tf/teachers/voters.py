"""Whoever maps inputs to labels can be a teacher: what the labelling side needs of an ensemble.

`Ensemble` is our own SavedModel of many teachers. Here are the teachers that come from elsewhere:
a folder of models, or a file of labels from teachers that never leave their owners.
"""

import hashlib
import math
import pathlib
from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import VoteCounts, Votes
from pate_tf.core.validation import IntArray

BATCH = 500

UNITS = ("record", "owner")

Progress = Callable[[int], object]


class Voter(Protocol):
    """Sensitive: a whole ensemble of teachers, to be asked for votes."""

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of the data."""

    @property
    def num_teachers(self) -> int:
        """Number of teachers."""

    @property
    def unit(self) -> str:
        """What one teacher's share protects, "record" or "owner"."""

    @property
    def digest(self) -> str:
        """Hexadecimal digits that change with any teacher; the ledger knows them by it."""

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks every teacher for a label of every raw input `[num_queries, *input_shape]`."""


@runtime_checkable
class ProbabilisticVoter(Protocol):
    """Sensitive: an ensemble that can also say how probable each class is."""

    def probabilities(
        self, inputs: npt.NDArray[Any], temperature: float, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Returns what the teachers state on average, `[num_queries, num_classes]`."""


def probabilities(
    teachers: Voter,
    inputs: npt.NDArray[Any],
    temperature: float,
    progress: Progress | None = None,
) -> npt.NDArray[np.float32]:
    """Returns the averaged probabilities `[num_queries, num_classes]` of teachers who have them.

    Raises:
      ValueError: if they answer with labels alone, or the temperature is not above 0.
    """
    if not 0.0 < temperature < math.inf:
        raise ValueError(f"temperature: expected a finite number above 0, got {temperature}")
    if not isinstance(teachers, ProbabilisticVoter):
        raise ValueError(
            "teachers: expected Keras teachers trained by train_teachers.py, which state "
            "probabilities, got teachers who answer with labels alone"
        )
    return teachers.probabilities(inputs, temperature, progress)


def covers(teachers: Voter, inputs: npt.NDArray[Any]) -> bool:
    """Whether teachers can vote on each of raw inputs: models can, a file of labels on its own."""
    return not isinstance(teachers, KeptVotes) or teachers.covers(inputs)


def check_unit(unit: str) -> None:
    """Raises ValueError unless a unit is one that a teacher's share can protect."""
    if unit not in UNITS:
        raise ValueError(f"unit: expected one of {', '.join(UNITS)}, got {unit!r}")


def digest_for(digest: str, unit: str) -> str:
    """Returns what a ledger knows teachers from elsewhere by.

    Owners are protected by another ledger than records are: what one of them promised can't
    become a promise to the other.
    """
    check_unit(unit)
    if unit == "record":
        return digest
    return hashlib.sha256(f"{unit}\0{digest}".encode()).hexdigest()


class ModelFolder:
    """Sensitive: teachers trained elsewhere, one `.keras` file or SavedModel folder each.

    Each takes raw inputs `[batch, *input_shape]` and returns labels `[batch]` or scores
    `[batch, num_classes]`. A SavedModel answers through `serving_default`, by its output `label` or
    its only output. That their records are disjoint can't be seen from here; the statement says
    that it was assumed.
    """

    def __init__(self, folder: pathlib.Path, dataset: Dataset, *, unit: str = "record") -> None:
        """Finds the teachers, in the order of their names; models are loaded when asked.

        Args:
          folder: that they lie in.
          dataset: what is publicly known of the data.
          unit: what one teacher's records are shared out by, "record" or "owner".

        Raises:
          ValueError: if there are none, or two of them are the same.
        """
        self.unit = unit
        self.dataset = dataset
        self._paths = self.paths(folder)
        self.num_teachers = len(self._paths)
        self._check_different()
        self.digest = digest_for(artifacts.digest_paths(self._paths), unit)

    @staticmethod
    def paths(folder: pathlib.Path) -> list[pathlib.Path]:
        """Returns the teachers in a folder, in the order of their names.

        Raises:
          ValueError: if there are none.
        """
        found = sorted(
            path
            for path in folder.iterdir()
            if path.suffix == ".keras" or (path / "saved_model.pb").exists()
        )
        if not found:
            raise ValueError(
                f"teachers: expected .keras files or SavedModel folders in {folder}, got none"
            )
        return found

    def _check_different(self) -> None:
        """Refuses copies: a record that one teacher learnt from would have two votes."""
        first: dict[tuple[str, ...], str] = {}
        for path in self._paths:
            files = sorted(part for part in path.rglob("*") if part.is_file()) or [path]
            content = tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
            if first.setdefault(content, path.name) != path.name:
                raise ValueError(
                    f"teachers: expected a model of its own for each teacher, got the same in "
                    f"{first[content]} and {path.name}: its records would have two votes"
                )

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks one teacher after another, so that only one is in memory.

        Raises:
          ValueError: if a model does not load or does not fit the data set.
        """
        labels = []
        for index, path in enumerate(self._paths):
            labels.append(self._labels(path, inputs))
            if progress is not None:
                done = (index + 1) * len(inputs) // self.num_teachers
                progress(done - index * len(inputs) // self.num_teachers)
        return Votes(np.stack(labels), self.dataset.num_classes)

    def _labels(self, path: pathlib.Path, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            classify = _load_classifier(path, self.dataset)
            parts = [np.empty(0, np.int64)]
            for start in range(0, len(inputs), BATCH):
                answer = np.asarray(classify(inputs[start : start + BATCH]))
                if answer.shape[1:] not in ((), (self.dataset.num_classes,)):
                    raise ValueError(
                        f"answers of shape {list(answer.shape)} for "
                        f"{self.dataset.num_classes} classes"
                    )
                parts.append(answer.argmax(axis=1) if answer.ndim == 2 else answer)
        except Exception as error:  # Keras, TensorFlow and zipfile each raise their own kinds
            reason = str(error).strip().splitlines()
            raise ValueError(
                f"teachers: expected a model for {self.dataset.name} at {path}, got: "
                f"{reason[0] if reason else type(error).__name__}"
            ) from error
        return np.concatenate(parts)


def _load_classifier(path: pathlib.Path, dataset: Dataset) -> Callable[[Any], Any]:
    if path.suffix == ".keras":
        model = keras.saving.load_model(path)
        return lambda inputs: model(tf.cast(inputs, tf.float32), training=False)
    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]
    ((name, spec),) = serve.structured_input_signature[1].items()

    def classify(inputs: Any) -> Any:
        # `loaded` is used here so that it lives as long as its signature.
        outputs = loaded.signatures["serving_default"](**{name: tf.cast(inputs, spec.dtype)})
        if "label" in outputs:
            return outputs["label"]
        (output,) = outputs.values()
        return output

    return classify


class KeptVotes:
    """Sensitive: teachers who answered before, for the first inputs of a pool.

    Each owner labels the same public queries and sends the labels alone.
    """

    def __init__(self, votes: Votes, pool: Pool, *, unit: str = "record") -> None:
        """Takes labels.

        Args:
          votes: of the pool's first `num_queries` inputs.
          pool: public inputs.
          unit: what one teacher's records are shared out by, "record" or "owner".

        Raises:
          ValueError: if votes and pool don't fit.
        """
        if votes.num_queries > len(pool) or votes.num_classes != pool.dataset.num_classes:
            raise ValueError(
                f"votes: expected labels of {pool.dataset.num_classes} classes, of at most the "
                f"pool's {len(pool)} inputs, got {votes.num_classes} and {votes.num_queries}"
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
        """Looks up the labels of queries of the pool.

        Raises:
          ValueError: if an input is not among the labelled queries.
        """
        columns = [self._columns.get(row.tobytes(), -1) for row in inputs]
        missing = columns.count(-1)
        if missing:
            raise ValueError(
                f"queries: the kept labels cover {self._labels.shape[1]} queries, {missing} "
                f"others were asked"
            )
        if progress is not None:
            progress(len(inputs))
        return Votes(self._labels[:, columns], self.dataset.num_classes)


def _read_votes(path: pathlib.Path, pool: Pool) -> KeptVotes:
    """Reads labels `[num_teachers, num_queries]` from a `.npy` file."""
    votes = Votes(artifacts.read_array(path), pool.dataset.num_classes)
    if votes.num_queries > len(pool):
        raise ValueError(
            f"{path}: expected labels of at most the pool's {len(pool)} inputs, got "
            f"{votes.num_queries}"
        )
    return KeptVotes(votes, pool)


def load_voter(path: pathlib.Path, pool: Pool) -> Voter:
    """Takes a `.npy` file of labels or a folder of models as an ensemble.

    Raises:
      ValueError: if `path` is neither, or holds what does not fit.
    """
    if path.suffix == ".npy":
        if not path.is_file():
            raise ValueError(f"teachers: expected a file of labels at {path}, got none")
        return _read_votes(path, pool)
    if path.is_dir():
        return ModelFolder(path, pool.dataset)
    raise ValueError(f"teachers: expected a .npy file or a folder of models, got {path}")


# Votes of very many teachers, counted without ever holding all of them.


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
