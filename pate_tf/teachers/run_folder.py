"""Run folders: which data and teachers a run has, and what a folder says of itself.

TensorFlow is not imported.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples, PublicSplit
from pate_tf.core.reporting import Reporting
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import Settings, described, setting
from pate_tf.core.source import PrivateSource
from pate_tf.data import catalogue
from pate_tf.data.data import FileSource
from pate_tf.teachers.kinds import load_ensemble
from pate_tf.teachers.voters import Voter

FILE = "run.json"


DEFAULT_NUM_TEACHERS = 100


def ensemble_folder(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns where a run has its ensemble: `sensitive/teachers/ensemble`."""
    return directory.teachers / "ensemble"


def default_folder(dataset_name: str, num_teachers: int) -> pathlib.Path:
    """Returns the folder of a run where the user names none."""
    return pathlib.Path(f"runs/{dataset_name}-{num_teachers}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource(Settings):
    """Which data: a data set by its name, or `files` of the user's own."""

    dataset: str = setting(
        "digits",
        group="data",
        help="Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, "
        "another name of TensorFlow Datasets, or module:function.",
    )
    data_dir: pathlib.Path | None = setting(
        None,
        group="data",
        help="Folder with data prepared by TensorFlow Datasets, or UCI's files in adult/ and "
        "diabetes/ below it. Default: TFDS' own; what is not there is downloaded.",
    )
    svhn_extra: bool = setting(
        True, group="data", advanced=True, help="SVHN's extra split is private data too."
    )
    source_name: str | None = setting(
        None,
        group="data",
        help="Public name of the private data. All releases under one name on this machine add up, "
        "whether or not the records changed in between; two names for the same records do not. "
        "Default: the name of the data set, or the private file, told from others by its path.",
    )
    owners_file: pathlib.Path | None = setting(
        None,
        group="data",
        advanced=True,
        help="A .npy file with the owner of each private record (numbers or strings): all records "
        "of one owner go to one teacher, or what they add to feature sums is clipped together. The "
        "guarantee is against adding or removing an owner.",
    )
    files: FileSource | None = None

    @property
    def named_source(self) -> PrivateSource | None:
        """The source that a person named; None for that of the records."""
        return None if self.source_name is None else PrivateSource.named(self.source_name)

    @property
    def words(self) -> str:
        """What is read."""
        return self.dataset if self.files is None else str(self.files.public)

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that name the data, as JSON values; paths are absolute."""
        given = self.files or self
        names = described(FileSource) if self.files else ("dataset", "data_dir", "svhn_extra")
        values = {name: getattr(given, name) for name in names}
        return {
            name: str(value.absolute()) if isinstance(value, pathlib.Path) else value
            for name, value in values.items()
        }

    def load_private(self, reporting: Reporting) -> PrivateExamples:
        """Returns the private records, of a named source, with the owners of `owners_file`.

        Raises:
            ValueError: if there are none, or the owners do not fit.
        """
        with reporting.clock(f"reading {self.words}"):
            if self.files is not None:
                examples = self.files.load_private()
            else:
                examples = catalogue.load_private(
                    self.dataset, data_dir=self.data_dir, svhn_extra=self.svhn_extra
                )
        source = self.named_source or examples.source
        examples = dataclasses.replace(examples, source=source)
        if self.owners_file is None:
            return examples
        owners = artifacts.read_array(self.owners_file)
        if owners.ndim and len(owners) != len(examples):
            raise ValueError(
                "owners_file: expected the owner of each record, got another number of them"
            )
        return dataclasses.replace(examples, owners=owners)

    def load_public(self, reporting: Reporting) -> PublicExamples:
        """Returns the public samples.

        Raises:
            ValueError: if there are none.
        """
        with reporting.clock(f"reading {self.words}"):
            if self.files is not None:
                return self.files.load_public()
            return catalogue.load_public(self.dataset, data_dir=self.data_dir)


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
        "is trained on, as in train_student.py. Default: the data set's own share.",
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
        help="Number of teachers that share the private data. Default: for teachers on features "
        "what suits the number of private records and classes, and is printed; for others "
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
    merge_from: tuple[pathlib.Path, ...] | None = setting(
        None,
        group="training",
        help="Run folders, comma-separated, of other jobs that trained other --teacher_id ranges "
        "of the same ensemble; their teachers are taken over. Without --teacher_id nothing is "
        "trained, and a missing teacher is an error.",
    )
    parallelism: str = setting(
        "ensemble",
        group="training",
        choices=("ensemble", "data"),
        help="ensemble: each device trains teachers of its own; data: all devices train one "
        "teacher at a time, for models too large for one device.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run. Default: runs/DATASET-NB_TEACHERS in this folder.",
    )
    export_each: bool = setting(
        False, group="output", help="Also export every teacher as a SavedModel of its own."
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON (sensitive)."
    )

    @property
    def asked_teachers(self) -> range | None:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSource:
    """Which teachers.

    Attributes:
        num_teachers: checked if given, as it must be with a file of labels; without a folder it
            names the run, `DEFAULT_NUM_TEACHERS` where it is None.
        folder: run folder of the teachers, which holds their ledger; None for
            `runs/DATASET-NUM_TEACHERS`.
        elsewhere: a folder of models or a `.npy` file of labels instead of the folder's ensemble
            (`foreign.load_voter`). The folder must then be given.
    """

    num_teachers: int | None = None
    folder: pathlib.Path | None = None
    elsewhere: pathlib.Path | None = None

    def directory(self, dataset_name: str) -> artifacts.RunDirectory:
        """Returns the run folder of the teachers."""
        default = default_folder(dataset_name, self.num_teachers or DEFAULT_NUM_TEACHERS)
        return artifacts.RunDirectory(self.folder or default)

    def load(self, public: PublicSplit) -> Voter:
        """Returns the teachers.

        Raises:
            ValueError: if there are none, or not as many as expected.
        """
        if self.elsewhere is None:
            ensemble = ensemble_folder(self.directory(public.dataset.name))
            if not ensemble.exists():
                raise ValueError(
                    f"teachers: expected a trained ensemble in {ensemble}, got none; run "
                    f"train_teachers.py first, or say which run folder has one"
                )
            teachers: Voter = load_ensemble(ensemble)
        elif self.folder is None:
            raise ValueError(
                "teachers: expected their run folder as well, the folder of the one ledger that "
                "these teachers ever have"
            )
        else:
            from pate_tf.teachers.foreign import load_voter  # which imports TensorFlow

            if self.elsewhere.suffix == ".npy" and self.num_teachers is None:
                raise ValueError(
                    "num_teachers: expected it with a file of labels, whose rows are the teachers, "
                    "got none; without it a file that is transposed would go unnoticed"
                )
            teachers = load_voter(self.elsewhere, public.pool)
        if self.num_teachers not in (None, teachers.num_teachers):
            raise ValueError(
                f"num_teachers: expected {teachers.num_teachers}, as the ensemble has, "
                f"got {self.num_teachers}"
            )
        return teachers


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription:
    """SENSITIVE, as file names are: which data a run is of, and what was made of them.

    Attributes:
        method: "pate" or "feature_sums".
        data_name: name of the data set.
        num_classes: of the data set.
        unit: what is protected, "record" or "owner".
        num_teachers: how many share the records; None where there is none.
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

    def check(self, *, num_teachers: int | None = None, num_classes: int | None = None) -> None:
        """Compares numbers that a person named with the run's; None is not compared.

        Raises:
            ValueError: if they contradict each other.
        """
        for name, got, own in (
            ("num_teachers", num_teachers, self.num_teachers),
            ("num_classes", num_classes, self.num_classes),
        ):
            if got not in (None, own):
                raise ValueError(f"{name}: expected {own}, as the run folder says, got {got}")

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
        own = self.source.get("dataset")
        got = dataset if files is None else str(files.public)
        if self.source and ((dataset is not None and dataset != own) or (files and own)):
            raise ValueError(
                f"dataset: expected {own or self.source['public']}, as the run folder says, got "
                f"{got}"
            )
        if not self.source and got is None:
            raise ValueError(
                f"dataset: expected it, or files, for the run of arrays {self.data_name}, whose "
                f"folder can't say where its public samples lie; got none"
            )
        if files is not None:
            return DataSource(files=files)
        if self.source and own is None:
            return DataSource(files=FileSource(**_with_paths(self.source)))
        given = {"dataset": dataset, "data_dir": data_dir}
        said = {name: value for name, value in given.items() if value is not None}
        return DataSource(**{**_with_paths(self.source), **said})


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


def _with_paths(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that name data, with paths as such."""
    paths = ("data_dir", "public", "private", "schema")
    return {
        name: pathlib.Path(value) if name in paths and value is not None else value
        for name, value in flags.items()
    }
