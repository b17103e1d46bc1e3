"""Where a run takes data and teachers from, in plain values: names, numbers and paths."""

import dataclasses
import pathlib

from pate_tf.api.files import FileSource
from pate_tf.api.reporting import Reporting
from pate_tf.api.teacher_training import ensemble_folder, load_ensemble
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples, PublicSplit
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue as data
from pate_tf.teachers.voters import Voter, load_voter

DEFAULT_NUM_TEACHERS = 100


def run_folder(dataset_name: str, num_teachers: int) -> pathlib.Path:
    """Returns the folder of a run where the user names none."""
    return pathlib.Path(f"runs/{dataset_name}-{num_teachers}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource:
    """Which data.

    Attributes:
      dataset: a name that `data.catalogue` knows, or `module:function`; not heeded with `files`.
      data_dir: where the data lie; None for the default of TensorFlow Datasets.
      svhn_extra: whether SVHN's extra split is private data too.
      files: the user's own files instead; None for none.
    """

    dataset: str = "digits"
    data_dir: pathlib.Path | None = None
    svhn_extra: bool = True
    files: FileSource | None = None

    @property
    def words(self) -> str:
        """What is read."""
        return self.dataset if self.files is None else str(self.files.public)

    def load_private(self, reporting: Reporting) -> PrivateExamples:
        """Returns the private records.

        Raises:
          ValueError: if there are none.
        """
        with reporting.clock(f"reading {self.words}"):
            if self.files is not None:
                return self.files.load_private()
            return data.load_private(
                self.dataset, data_dir=self.data_dir, svhn_extra=self.svhn_extra
            )

    def load_public(self, reporting: Reporting) -> PublicExamples:
        """Returns the public samples.

        Raises:
          ValueError: if there are none.
        """
        with reporting.clock(f"reading {self.words}"):
            if self.files is not None:
                return self.files.load_public()
            return data.load_public(self.dataset, data_dir=self.data_dir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSource:
    """Which teachers.

    Attributes:
      num_teachers: checked if given; without a folder it names the run,
        `DEFAULT_NUM_TEACHERS` where it is None.
      folder: run folder of the teachers, which holds their ledger; None for
        `runs/DATASET-NUM_TEACHERS`.
      elsewhere: a folder of models or a `.npy` file of labels instead of the folder's ensemble; see
        `voters.load_voter`. The folder must then be given.
    """

    num_teachers: int | None = None
    folder: pathlib.Path | None = None
    elsewhere: pathlib.Path | None = None

    def directory(self, dataset_name: str) -> artifacts.RunDirectory:
        """Returns the run folder of the teachers."""
        default = run_folder(dataset_name, self.num_teachers or DEFAULT_NUM_TEACHERS)
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
            teachers = load_voter(self.elsewhere, public.pool)
        if self.num_teachers not in (None, teachers.num_teachers):
            raise ValueError(
                f"num_teachers: expected {teachers.num_teachers}, as the ensemble has, "
                f"got {self.num_teachers}"
            )
        return teachers
