"""Run folders: which data and teachers a run has, and what a folder says of itself.

TensorFlow is not imported.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, sensitive
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicSplit
from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.core.source import PRIVATE_RECORDS, check_same_settings, private_digest
from pate_tf.core.validation import setting
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.teachers.kinds import TrainedTeacher, load_ensemble
from pate_tf.teachers.voters import StoredVotes, Voter

FILE = "run.json"
DEFAULT_NUM_TEACHERS = 100
RECORDS_A_TEACHER = 30
RECORDS_A_CLASS = 3
CONFIG = "config.json"
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers


def ensemble_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns where a run has its ensemble: `sensitive/teachers/ensemble`."""
    return directory.teachers / "ensemble"


def recommended_num_teachers(num_records: int, dataset: Dataset) -> int:
    """Recommends how many teachers learn from features, by public values alone.

    The number of private records counts as public here, as it does in the partition, the ledger and
    every statement, where records are protected. Where owners are it is private.
    """
    each = max(RECORDS_A_TEACHER, RECORDS_A_CLASS * dataset.num_classes)
    return max(1, num_records // each)


def shards_of(
    examples: PrivateExamples,
    *,
    num_teachers: int,
    seed: int,
    partition_file: pathlib.Path | None = None,
) -> Partition:
    """Partitions records among teachers: by a file (`assigned_partition`), by owners, or at random.

    Raises:
        ValueError: if the file is broken or does not fit.
    """
    if partition_file is not None:
        assignment = artifacts.read_array(partition_file)
        if assignment.ndim == 1 and len(assignment) != len(examples):
            raise ValueError(
                "partition: expected the teacher of each record, got another number of them"
            )
        assigned = sensitive.assigned_partition(assignment, num_teachers=num_teachers)
        if assigned.num_records != len(examples):
            raise ValueError("partition: expected the teacher of each record, got others")
        return assigned
    if examples.owners is not None:
        return sensitive.owner_partition(examples.owners, num_teachers=num_teachers, seed=seed)
    return sensitive.random_partition(
        num_records=len(examples), num_teachers=num_teachers, seed=seed
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherRun(DataSource):
    """A run of train_teachers.py, apart from how teachers learn."""

    num_classes: int | None = setting(
        None,
        group="data",
        flag="nb_labels",
        advanced=True,
        help="Number of classes, if you want it checked against the data set.",
    )
    pool_size: int | None = setting(
        None,
        group="data",
        flag="stdnt_share",
        least=1,
        advanced=True,
        help="How many of the public samples, from the first, form the pool that a representation "
        "is trained on, as in train_student.py. Default: the data set's own number.",
    )
    partition_file: pathlib.Path | None = setting(
        None,
        group="training",
        help="A .npy file that says who gets which record: the teacher of each record "
        "[num_records], or record and teacher in two columns [num_pairs, 2]. It must not depend on "
        "other records. Default: dealt out evenly and at random by --seed, a record's position "
        "alone deciding.",
    )
    num_teachers: int | None = setting(
        None,
        group="training",
        flag="nb_teachers",
        least=1,
        help="Number of teachers that partition the private data. Default: for teachers on "
        "features what suits the number of private records and classes, and is printed; for others "
        f"{DEFAULT_NUM_TEACHERS}. "
        "With owners there is no default, as the number of their records is private.",
    )
    teachers: str | None = setting(
        None,
        group="training",
        flag="teacher_id",
        help="Teacher to train in this process, from 0, or a range such as 0-49. Default: all. The "
        "process that finishes the last one exports the ensemble.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run. Default: runs/DATASET-NB_TEACHERS in this folder.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON (sensitive)."
    )

    @property
    def teacher_range(self) -> range | None:
        """The teachers to train in this process; None for all.

        Raises:
            ValueError: if `teachers` is neither a number nor a range `first-last`.
        """
        if self.teachers is None:
            return None
        first, dash, last = self.teachers.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(
                f"teachers: expected a number or a range like 0-49, got {self.teachers!r}"
            )
        return range(int(first), int(last if dash else first) + 1)


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
        from pate_tf.teachers.foreign import ForeignModels  # which imports TensorFlow

        teachers = ForeignModels(elsewhere)
    if num_teachers not in (None, teachers.num_teachers):
        raise ValueError(
            f"num_teachers: expected {teachers.num_teachers}, as the ensemble has, "
            f"got {num_teachers}"
        )
    return teachers.for_pool(public.pool), place


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription:
    """SENSITIVE, as file names are: which data a run is of, and what was made of them.

    Attributes:
        method: "pate" or "feature_sums".
        data_name: name of the data set.
        num_classes: of the data set.
        unit: what is protected, "record" or "owner".
        num_teachers: how many partition the records; None where there is none.
        model: of a teacher, by name; None where there is none.
        representation: of the pool, by name; None for raw inputs.
        pool_size: how many public samples form the pool; None for the data set's own number.
        source: `DataSource.flags`; empty where the data came as arrays.
    """

    method: str = "pate"
    data_name: str
    num_classes: int
    unit: str = "record"
    num_teachers: int | None = None
    model: str | None = None
    representation: str | None = None
    pool_size: int | None = None
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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
        flags: dict[str, Any] = {
            name: pathlib.Path(value)
            if value is not None and name in ("data_dir", "public", "private", "schema")
            else value
            for name, value in self.source.items()
        }
        if self.source and stored is None:
            return DataSource(files=FileSource(**flags))
        if dataset is not None:
            flags["dataset"] = dataset
        if data_dir is not None:
            flags["data_dir"] = data_dir
        return DataSource(**flags)


def described_run(train_dir: pathlib.Path | None) -> RunDescription | None:
    """Returns what a run folder says of itself; None where it says nothing, or there is none.

    Raises:
        ValueError: if the description is broken.
    """
    path = None if train_dir is None else train_dir / artifacts.SENSITIVE / FILE
    if path is None or not path.exists():
        return None
    try:
        return RunDescription(**artifacts.read_json(path))
    except TypeError as error:
        raise ValueError(f"{path}: expected the description of a run, got another") from error


# Trained teachers, so that a stopped run resumes where it stopped: `config.json` and files of
# finished teachers (`finished-<first>-<last>.npz`), each of which appears whole or not at all.


def finished_teachers(folder: pathlib.Path) -> list[int]:
    """Returns the teachers of a folder that are trained, ascending."""
    return sorted(
        teacher
        for path in folder.glob("finished-*.npz")
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

        Raises:
            ValueError: if the folder holds teachers of other settings or records.
        """
        self._folder = artifacts.make_sensitive_folder(folder)
        self._settings = {**settings, PRIVATE_RECORDS: private_digest(folder.parent, *private)}
        self.is_new = not (folder / CONFIG).exists()
        self._claim()

    def _claim(self) -> None:
        """Makes the folder one of these settings, or raises ValueError if it is of others."""
        path = self._folder / CONFIG
        if path.exists():
            stored = artifacts.read_json(path)
            check_same_settings(stored, self._settings, folder=self._folder, holds="teachers")
        else:
            artifacts.write_json(path, self._settings, private=True)

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
        num_bytes, last_save = 0, time.monotonic()
        for teacher, result in trained:
            unsaved[teacher] = result
            num_bytes += sum(array.nbytes for array in result.arrays)
            progress(1)
            if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
                self._save(unsaved)
                unsaved = {}
                num_bytes, last_save = 0, time.monotonic()
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
        teachers: dict[int, TrainedTeacher] = {}
        for path in sorted(self._folder.glob("finished-*.npz")):
            arrays = artifacts.read_arrays(path)
            parts: dict[int, list[npt.NDArray[Any]]] = {
                number: [] for number in arrays.pop("teachers").tolist()
            }
            losses = {number: arrays.pop(f"{number}/losses") for number in parts}
            for name, array in arrays.items():  # in the order that they were written in
                parts[int(name.partition("/")[0])].append(array)
            teachers |= {number: TrainedTeacher(parts[number], losses[number]) for number in parts}
        return [teachers[number] for number in sorted(teachers)]
