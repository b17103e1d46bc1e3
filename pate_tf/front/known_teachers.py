"""What may stand behind the front door's `Teachers`: all of it votes, and has a digest."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pate_tf import artifacts
from pate_tf.front.data import as_inputs
from pate_tf.teachers import own_models
from pate_tf.teachers.voters import KeptVotes, ModelFolder, Voter, digest_for
from pate_tf.values.arrays import IntArray
from pate_tf.values.public import Pool, PublicExamples
from pate_tf.values.sensitive import Votes


class KnownTeachers:
    """Teachers that can vote, whatever they are.

    Attributes:
      digest: the ledger knows them by it.
      unit: what one teacher's share protects.
      num_teachers: how many they are.
    """

    digest: str
    num_teachers: int
    unit: str = "record"

    @property
    def identified(self) -> Any:
        """What a ledger is opened for: `digest`, `unit` and whatever else is known of it."""
        return self

    def voter(self, pool: Pool) -> Voter:
        """Returns what votes on inputs of a pool."""
        raise NotImplementedError

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        raise NotImplementedError


class LoadedTeachers(KnownTeachers):
    """An ensemble that was trained and exported here."""

    def __init__(self, ensemble: Voter) -> None:
        self._ensemble = ensemble
        self.digest, self.unit = ensemble.digest, ensemble.unit
        self.num_teachers = ensemble.num_teachers

    @property
    def identified(self) -> Any:
        """See `KnownTeachers`."""
        return self._ensemble

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return self._ensemble

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        return self._ensemble.votes(as_inputs(inputs, self._ensemble.dataset)).labels


class GivenVotes(KnownTeachers):
    """Labels that teachers gave elsewhere; see `Teachers.from_votes`."""

    def __init__(self, labels: IntArray, unit: str) -> None:
        self._labels, self.unit = labels, unit
        self.num_teachers = len(labels)
        self.digest = digest_for(artifacts.digest_array(labels), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return KeptVotes(Votes(self._labels, pool.dataset.num_classes), pool, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        number = len(getattr(inputs, "inputs", inputs))
        if number > self._labels.shape[1]:
            raise ValueError(
                f"inputs: expected at most the {self._labels.shape[1]} that were labelled, got "
                f"{number}"
            )
        return self._labels[:, :number].copy()


class GivenModels(KnownTeachers):
    """Models that were trained elsewhere; see `Teachers.from_models`."""

    def __init__(self, models: Sequence[Any], unit: str) -> None:
        own_models.check_predictors(models)
        self._models, self.unit = models, unit
        self.num_teachers = len(models)
        self.digest = digest_for(own_models.digest_of(models), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return own_models.ModelList(self._models, pool.dataset, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        raw = np.asarray(getattr(inputs, "inputs", inputs))
        return own_models.labels_of(self._models, raw)


class FolderOfModels(KnownTeachers):
    """A folder of them."""

    def __init__(self, folder: pathlib.Path, unit: str) -> None:
        self._folder, self.unit = folder, unit
        paths = ModelFolder.paths(folder)
        self.num_teachers = len(paths)
        self.digest = digest_for(artifacts.digest_paths(paths), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return ModelFolder(self._folder, pool.dataset, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        if not isinstance(inputs, (Pool, PublicExamples)):
            raise ValueError(
                "inputs: expected data.pool or data.held_out, which name the data set of a folder "
                "of models, got an array"
            )
        return ModelFolder(self._folder, inputs.dataset).votes(inputs.inputs).labels


def known_models(models: Sequence[Any] | str | os.PathLike[str], unit: str) -> KnownTeachers:
    """Returns models, or those of a folder, as teachers; see `Teachers.from_models`."""
    if not isinstance(models, (str, os.PathLike)):
        return GivenModels(list(models), unit)
    folder = pathlib.Path(models)
    if not folder.is_dir():
        raise ValueError(f"models: expected a folder of models, got {folder}")
    return FolderOfModels(folder, unit)
