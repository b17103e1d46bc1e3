"""Run folders: which data and teachers a run has, and what a folder says of itself.

TensorFlow is not imported.
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
RECORDS_A_TEACHER = 30
RECORDS_A_CLASS = 3
CONFIG = "config.json"
ENSEMBLE = "ensemble"
FINISHED = "finished-*.npz"
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers


def ensemble_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns where a run has its ensemble: `sensitive/teachers/ensemble`."""
    return directory.teachers / ENSEMBLE


def recommended_num_teachers(num_records: int, dataset: Dataset) -> int:
    """Recommends how many teachers learn from features, by public values alone.

    The number of private records counts as public here, as it does in the partition, the ledger and
    every statement, where records are protected. Where owners are it is private.
    """
    each = max(RECORDS_A_TEACHER, RECORDS_A_CLASS * dataset.num_classes)
    return max(1, num_records // each)


def load_teachers(
    public: PublicSplit,
    *,
    num_teachers: int | None = None,
    folder: pathlib.Path | None = None,
    elsewhere: pathlib.Path | None = None,
) -> tuple[Voter, pathlib.Path]:
    """Returns teachers and their run folder, which holds their ledger.

    Args:
        public: that they are asked about.
        num_teachers: checked if given, as it must be with a file of labels; without a folder it
            names the run, `DEFAULT_NUM_TEACHERS` where it is None.
        folder: run folder of the teachers; None for `runs/DATASET-NUM_TEACHERS`.
        elsewhere: a folder of models, or a `.npy` or `.csv` file of labels
            `[num_teachers, num_queries]`, instead of the folder's ensemble. The folder must then be
            given.

    Raises:
        ValueError: if there are none, or not as many as expected.
    """
    from pate_tf.teachers.teacher_kinds import load_ensemble
    from pate_tf.teachers.voters import StoredVotes

    default = f"runs/{public.dataset.name}-{num_teachers or DEFAULT_NUM_TEACHERS}"
    place = folder or pathlib.Path(default)
    teachers: Voter
    if elsewhere is None:
        teachers = load_ensemble(ensemble_folder(artifacts.RunDirectory(place)))
    elif folder is None:
        raise ValueError(
            "teachers: expected their run folder as well, the folder of the one ledger that "
            "these teachers ever have"
        )
    elif not elsewhere.exists():
        raise ValueError(
            f"teachers: expected a .npy or .csv file or a folder of models at {elsewhere}, got none"
        )
    elif elsewhere.is_file():
        if num_teachers is None:
            raise ValueError(
                "num_teachers: expected it with a file of labels, whose rows are the teachers, "
                "got none; without it a file that is transposed would go unnoticed"
            )
        teachers = StoredVotes(artifacts.read_array(elsewhere))
    else:
        from pate_tf.teachers.foreign import ForeignModels

        teachers = ForeignModels(elsewhere)
    if num_teachers not in (None, teachers.num_teachers):
        raise ValueError(
            f"num_teachers: expected {teachers.num_teachers}, as the ensemble has, "
            f"got {num_teachers}"
        )
    return teachers.for_pool(public.pool), place


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription(TeacherNumber, PoolSize, OnFeatures, ProtectedUnit):
    """SENSITIVE, as file names are: which data a run is of, and what was made of them.

    Attributes:
        data_name: name of the data set.
        num_teachers: how many partition the records; None of feature sums.
        representation: of feature sums, by name; None for raw inputs, and of teachers.
        pool_size: how many public samples form the pool, 0 without any; None for the data set's own
            number.
        source: `DataSource.flags`; empty where the data came as arrays.
    """

    restated: ClassVar = {"pool_size": {"least": 0}}
    data_name: str
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def method(self) -> str:
        """What was made: "pate" or "feature_sums"."""
        return "feature_sums" if self.num_teachers is None else "pate"

    def write(self, directory: artifacts.RunDirectory) -> None:
        """Writes `sensitive/run.json`."""
        folder = artifacts.make_sensitive_folder(directory.sensitive)
        artifacts.write_json(folder / FILE, dataclasses.asdict(self), private=True)

    def check(self, *, num_teachers: int | None = None) -> None:
        """Raises ValueError if a person named another number of teachers than the run's."""
        if num_teachers not in (None, self.num_teachers):
            raise ValueError(
                f"num_teachers: expected {self.num_teachers}, as the run folder says, got "
                f"{num_teachers}"
            )

    def data(
        self,
        *,
        dataset: str | None = None,
        data_dir: pathlib.Path | None = None,
        files: FileSource | None = None,
    ) -> DataSource:
        """Returns the run's data; what a person names again is checked, or fills in.

        Args:
            dataset: as of `DataSource`; None where it is not named.
            data_dir: where the data lie now, if elsewhere than the run says.
            files: the user's files, if they lie elsewhere now.

        Raises:
            ValueError: if a name contradicts the run, or nothing says where the data lie.
        """
        stored = self.source.get("dataset")
        named = dataset if files is None else str(files.public)
        if self.source and (dataset not in (None, stored) or (files and stored)):
            raise ValueError(
                f"dataset: expected {stored or self.source['public']}, as the run folder says, got "
                f"{named}"
            )
        if not self.source and named is None:
            raise ValueError(
                f"dataset: expected it, or files, for the run of arrays {self.data_name}, whose "
                f"folder can't say where its public samples lie; got none"
            )
        if files is not None:
            # Of private records whose name is not said again it is the run's.
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
    """Returns what a run folder says of itself; None where it says nothing, or there is none.

    Raises:
        ValueError: if the description is broken.
    """
    path = None if train_dir is None else train_dir / artifacts.SENSITIVE / FILE
    if path is None or not path.exists():
        return None
    stored = artifacts.read_json(path)
    try:
        return RunDescription(**stored)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} was changed, or another version wrote it: choose another folder for this "
            f"run, and keep the old one, because it holds the ledger"
        ) from error


# Trained teachers, so that a stopped run resumes where it stopped: `config.json` and files of
# finished teachers (`finished-<first>-<last>.npz`), each of which appears whole or not at all.


def finished_teachers(folder: pathlib.Path) -> list[int]:
    """Returns the teachers of a folder that are trained, ascending."""
    return sorted(
        teacher
        for path in folder.glob(FINISHED)
        for teacher in artifacts.read_arrays(path, ["teachers"])["teachers"].tolist()
    )


class TeacherStore:
    """SENSITIVE: the training folder of an ensemble."""

    def __init__(
        self, folder: pathlib.Path, settings: Mapping[str, Any], private: Sequence[npt.NDArray[Any]]
    ) -> None:
        """Opens or creates the folder, in a run's `sensitive/`.

        Args:
            folder: of the teachers.
            settings: public JSON values by name, which fix the result of the training.
            private: arrays that do so, too: records, labels, partition. A keyed digest is stored.
                Finished teachers of others are removed, as if none had been trained, unless the
                ensemble is whole: then it stays, whatever the records.

        Raises:
            ValueError: if the folder holds teachers of other settings.
        """
        self._folder = artifacts.make_sensitive_folder(folder)
        self._settings = settings
        self._records = private_digest(folder.parent, *private)
        self._claim()

    def _claim(self) -> None:
        """Makes the folder one of these settings, or raises ValueError if it is of others.

        A teacher of other records would give a record that is in both two votes, in two shards.
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
        """Lets other settings have the folder, unless there are trained teachers in it."""
        if not finished_teachers(self._folder):
            (self._folder / CONFIG).unlink(missing_ok=True)

    def save_all(
        self, trained: Iterable[tuple[int, TrainedTeacher]], progress: Callable[[int], object]
    ) -> None:
        """Saves finished teachers, several to a file: every few seconds, or where they get large.

        `progress` is called with the number of teachers that got done since its last call.
        """
        unsaved: dict[int, TrainedTeacher] = {}
        num_bytes = 0
        last_save = time.monotonic()
        for teacher, result in trained:
            unsaved[teacher] = result
            num_bytes += sum(array.nbytes for array in result.arrays)
            progress(1)
            if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
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
            arrays[f"{teacher}/losses"] = result.losses
            arrays |= {f"{teacher}/{place}": array for place, array in enumerate(result.arrays)}
        self._claim()  # another process may have failed, and abandoned the folder
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
            losses = {number: arrays.pop(f"{number}/losses") for number in parts}
            for name, array in arrays.items():  # in the order that they were written in
                parts[int(name.partition("/")[0])].append(array)
            teachers |= {number: TrainedTeacher(parts[number], losses[number]) for number in parts}
        return [teachers[number] for number in sorted(teachers)]
