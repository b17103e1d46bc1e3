"""Finds the data and the teachers of a run folder, and stores the run's description in it.

This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicSplit
from pate_tf.core.settings import ProtectedUnit, TeacherNumber
from pate_tf.core.source import PRIVATE_RECORDS, check_same_settings, private_digest
from pate_tf.data.data_source import DataSource, FileSource, PoolSize
from pate_tf.data.named_function import OnFeatures

if TYPE_CHECKING:
    from pate_tf.teachers.teacher_kinds import TrainedTeacher
    from pate_tf.teachers.voters import Voter

FILE = "run.json"
DEFAULT_NUM_TEACHERS = 100
RECORDS_PER_TEACHER = 30
RECORDS_PER_CLASS = 3
CONFIG = "config.json"
ENSEMBLE = "ensemble"
FINISHED = "finished-*.npz"
SECONDS_BETWEEN_SAVES = 10.0
MAX_UNSAVED = 16 * 2**20  # maximum bytes of finished teachers that are not saved yet


def ensemble_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder of a run's trained teachers: `sensitive/teachers/ensemble`."""
    return directory.teachers / ENSEMBLE


def recommended_num_teachers(num_records: int, dataset: Dataset) -> int:
    """Returns the recommended number of teachers that learn from features.

    The result is public. If the unit of privacy is a record, the number of private records is
    treated as public here, in the partition, in the ledger and in every statement. If the unit is
    an owner, the number of records is private, and this function must not be used.
    """
    each = max(RECORDS_PER_TEACHER, RECORDS_PER_CLASS * dataset.num_classes)
    return max(1, num_records // each)


def load_teachers(
    public: PublicSplit,
    *,
    num_teachers: int | None = None,
    folder: pathlib.Path | None = None,
    elsewhere: pathlib.Path | None = None,
) -> tuple[Voter, pathlib.Path]:
    """Loads teachers; returns them and their run folder, which contains their privacy ledger.

    Args:
        public: public samples, including the pool that the teachers label.
        num_teachers: expected number of teachers; None to accept any number. Required if
            `elsewhere` is a file of labels. If `folder` is None, the name of the default folder
            contains this number, or `DEFAULT_NUM_TEACHERS` if this number is None.
        folder: run folder of the teachers; None for `runs/DATASET-NUM_TEACHERS`.
        elsewhere: path of a folder of models, or of a `.npy` or `.csv` file of labels
            `[num_teachers, num_queries]`, to use instead of the ensemble in the run folder. If it
            is given, `folder` is required.

    Raises:
        ValueError: if there are no teachers, or their number differs from `num_teachers`.
    """
    from pate_tf.teachers.teacher_kinds import load_ensemble
    from pate_tf.teachers.voters import StoredVotes

    default = f"runs/{public.dataset.name}-{num_teachers or DEFAULT_NUM_TEACHERS}"
    place = folder or pathlib.Path(default)
    teachers: Voter
    if elsewhere is None:
        teachers = load_ensemble(ensemble_folder(artifacts.RunDirectory(place)))
    elif folder is None:
        raise ValueError("teachers needs `teachers_dir` too, a folder for the teachers' ledger")
    elif not elsewhere.exists():
        raise ValueError(
            f"teachers={elsewhere} does not exist. Name a .npy or .csv file or a folder of models."
        )
    elif elsewhere.is_file():
        if num_teachers is None:
            raise ValueError(
                "num_teachers is required with a file of labels: it detects a transposed file"
            )
        teachers = StoredVotes(artifacts.read_array(elsewhere))
    else:
        from pate_tf.teachers.foreign import ForeignModels

        teachers = ForeignModels(elsewhere)
    if num_teachers not in (None, teachers.num_teachers):
        raise ValueError(f"num_teachers must be {teachers.num_teachers}, got {num_teachers}")
    return teachers.for_pool(public.pool), place


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription(TeacherNumber, PoolSize, OnFeatures, ProtectedUnit):
    """The data and the method of a run. SENSITIVE, because it contains names of private files.

    Attributes:
        data_name: name of the data set.
        num_teachers: number of teachers; None for feature sums.
        representation: name of the representation whose features were summed; None for raw inputs
            and for runs with teachers.
        pool_size: number of public samples in the pool; 0 if there are no public samples; None for
            the data set's default.
        source: the flags that name the data, see `DataSource.flags`; empty if the data were arrays.
    """

    restated: ClassVar = {"pool_size": {"least": 0}}
    data_name: str
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def method(self) -> str:
        """Method of the run: "pate" or "feature_sums"."""
        return "feature_sums" if self.num_teachers is None else "pate"

    def write(self, directory: artifacts.RunDirectory) -> None:
        """Writes `sensitive/run.json`."""
        folder = artifacts.make_sensitive_folder(directory.sensitive)
        artifacts.write_json(folder / FILE, dataclasses.asdict(self), private=True)

    def check(self, *, num_teachers: int | None = None) -> None:
        """Raises ValueError if `num_teachers` is given and differs from the run's number."""
        if num_teachers not in (None, self.num_teachers):
            raise ValueError(f"num_teachers is {self.num_teachers} in this run, got {num_teachers}")

    def data(
        self,
        *,
        dataset: str | None = None,
        data_dir: pathlib.Path | None = None,
        files: FileSource | None = None,
    ) -> DataSource:
        """Returns the data source of the run, from its description and the arguments.

        Args:
            dataset: name of the data set, see `DataSource`; None to use the name in the
                description.
            data_dir: folder of the data, if the data were moved.
            files: the user's files, if they were moved.

        Raises:
            ValueError: if an argument contradicts the run's description, or if neither the
                arguments nor the description name the data.
        """
        stored = self.source.get("dataset")
        named = dataset if files is None else str(files.public)
        if self.source and (dataset not in (None, stored) or (files and stored)):
            raise ValueError(
                f"dataset must be {stored or self.source['public']}, as in this run, got {named}"
            )
        if not self.source and named is None:
            raise ValueError(
                f"dataset is required, or `public`: the run {self.data_name} was made from arrays, "
                f"so its folder does not name the public samples"
            )
        if files is not None:
            # Without private files, there is no file to name the data set after, so the name comes
            # from the description.
            name = files.name or (None if files.private else self.data_name)
            return DataSource(files=dataclasses.replace(files, name=name))
        flags = dict(self.source)
        for name in ("data_dir", "public", "private", "schema"):
            if flags.get(name) is not None:
                flags[name] = pathlib.Path(flags[name])
        if self.source and stored is None:
            return DataSource(files=FileSource(**flags))
        given = {"dataset": dataset, "data_dir": data_dir}
        return DataSource(**flags | {name: each for name, each in given.items() if each})


def described_run(train_dir: pathlib.Path | None) -> RunDescription | None:
    """Returns the description of a run; None if `train_dir` is None or has no description.

    Raises:
        ValueError: if the description can't be read.
    """
    path = None if train_dir is None else train_dir / artifacts.SENSITIVE / FILE
    if path is None or not path.exists():
        return None
    stored = artifacts.read_json(path)
    try:
        return RunDescription(**stored)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} was changed, or written by another version. Choose another folder for this "
            f"run. Keep the old folder, because it contains the privacy ledger"
        ) from error


# Interrupted training resumes from stored teachers. The folder contains `config.json` with the
# settings, and files of finished teachers (`finished-<first>-<last>.npz`). Each file is written
# atomically.


def finished_teachers(folder: pathlib.Path) -> list[int]:
    """Returns the numbers of the finished teachers in a folder, ascending."""
    return sorted(
        teacher
        for path in folder.glob(FINISHED)
        for teacher in artifacts.read_arrays(path, ["teachers"])["teachers"].tolist()
    )


class TeacherStore:
    """SENSITIVE: the folder in which teachers are stored while an ensemble is trained."""

    def __init__(
        self, folder: pathlib.Path, settings: Mapping[str, Any], private: Sequence[npt.NDArray[Any]]
    ) -> None:
        """Opens or creates the folder.

        Args:
            folder: folder of the teachers, inside the folder `sensitive/` of a run.
            settings: public settings by name that determine the result of the training, as JSON
                values.
            private: private arrays that also determine the result: records, labels and partition.
                Only a keyed digest of these arrays is stored. If the digest has changed, finished
                teachers are removed, and all teachers are trained again. However, a complete set of
                teachers is kept even if the records have changed.

        Raises:
            ValueError: if the folder contains teachers with other settings.
        """
        self._folder = artifacts.make_sensitive_folder(folder)
        self._settings = settings
        self._records = private_digest(folder.parent, *private)
        self._claim()

    def _claim(self) -> None:
        """Reserves the folder for these settings; raises ValueError if it has other settings.

        Finished teachers that learned from different records are removed. Otherwise, a record in
        both data sets could be in the shards of two teachers and influence two votes.
        """
        path = self._folder / CONFIG
        if path.exists():
            stored = artifacts.read_json(path)
            records = stored.pop(PRIVATE_RECORDS, None)
            check_same_settings(stored, self._settings, folder=self._folder, holds="teachers")
            if records == self._records or (self._folder / ENSEMBLE).exists():
                return
            for finished in self._folder.glob(FINISHED):
                finished.unlink()
        artifacts.write_json(path, {**self._settings, PRIVATE_RECORDS: self._records}, private=True)

    def abandon(self) -> None:
        """Releases the folder for other settings, unless it contains trained teachers."""
        if not finished_teachers(self._folder):
            (self._folder / CONFIG).unlink(missing_ok=True)

    def save_all(
        self, trained: Iterable[tuple[int, TrainedTeacher]], progress: Callable[[int], object]
    ) -> None:
        """Saves teachers while they are trained, several of them in each file.

        A file is written every few seconds, or earlier if unsaved teachers take much memory. This
        method calls `progress` with the number of teachers that were finished since its last call.
        """
        unsaved: dict[int, TrainedTeacher] = {}
        num_bytes = 0
        last_save = time.monotonic()
        for teacher, result in trained:
            unsaved[teacher] = result
            num_bytes += sum(array.nbytes for array in result.arrays)
            progress(1)
            if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MAX_UNSAVED:
                self._save(unsaved)
                unsaved = {}
                num_bytes = 0
                last_save = time.monotonic()
        self._save(unsaved)

    def _save(self, teachers: Mapping[int, TrainedTeacher]) -> None:
        if not teachers:
            return
        arrays: dict[str, npt.NDArray[Any]] = {"teachers": np.array(sorted(teachers), np.int64)}
        for teacher, result in teachers.items():
            arrays[f"{teacher}/curves"] = result.curves
            arrays |= {f"{teacher}/{place}": array for place, array in enumerate(result.arrays)}
        self._claim()  # another process may have failed and abandoned the folder
        name = f"finished-{min(teachers):06d}-{max(teachers):06d}.npz"
        artifacts.write_arrays(self._folder / name, arrays, private=True)

    def load(self) -> list[TrainedTeacher]:
        """Returns all trained teachers, in the order of their numbers."""
        from pate_tf.teachers.teacher_kinds import TrainedTeacher

        teachers: dict[int, TrainedTeacher] = {}
        for path in sorted(self._folder.glob(FINISHED)):
            arrays = artifacts.read_arrays(path)
            parts: dict[int, list[npt.NDArray[Any]]] = {
                number: [] for number in arrays.pop("teachers").tolist()
            }
            curves = {number: arrays.pop(f"{number}/curves") for number in parts}
            for name, array in arrays.items():  # in the order in which they were written
                parts[int(name.partition("/")[0])].append(array)
            teachers |= {number: TrainedTeacher(parts[number], curves[number]) for number in parts}
        return [teachers[number] for number in sorted(teachers)]
