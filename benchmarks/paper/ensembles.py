"""Ensembles and their votes, made once and kept in the sensitive folder of the output.

All experiments share them. Beside an ensemble lies every teacher's vote on every public sample.
"""

import dataclasses
import pathlib

import numpy as np
import numpy.typing as npt

from pate_tf.api import teacher_training as run
from pate_tf.core import artifacts
from pate_tf.core.partition import random_partition
from pate_tf.core.public import PublicExamples, PublicSplit
from pate_tf.core.sensitive import Votes
from pate_tf.data import catalogue as data
from pate_tf.models.catalogue import default_model
from pate_tf.models.forest import RANDOM_FOREST
from pate_tf.teachers.kinds import load_ensemble
from pate_tf.teachers.settings import TeacherSettings
from pate_tf.teachers.voters import Voter


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsembleName:
    """Which ensemble.

    Attributes:
        dataset: what it learns.
        num_teachers: how many share the private records; 1 for a model without privacy.
        forests: whether teachers are random forests rather than the data set's default network.
    """

    dataset: str
    num_teachers: int
    forests: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where ensembles come from.

    Attributes:
        folder: ensembles and votes go here; sensitive.
        data_dirs: where the data of each data set lie; None for those that need none.
        seed: of partition, training and students; not of the privacy noise.
    """

    folder: pathlib.Path
    data_dirs: dict[str, pathlib.Path | None]
    seed: int
    _splits: dict[str, PublicSplit] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def public(self, dataset: str) -> PublicExamples:
        """Returns the public samples of a data set.

        Raises:
            ValueError: if the data are not there.
        """
        return data.load_public(dataset, data_dir=self.data_dirs[dataset])

    def split(self, dataset: str) -> PublicSplit:
        """Returns the student's pool and the held-out samples.

        Always the same object, for which features that were learnt last need not be learnt again.
        """
        if dataset not in self._splits:
            public = self.public(dataset)
            self._splits[dataset] = public.split(public.dataset.pool_size)
        return self._splits[dataset]

    def run_directory(self, ensemble: EnsembleName) -> artifacts.RunDirectory:
        """Returns where an ensemble is kept."""
        artifacts.make_sensitive_folder(self.folder)
        kind = "-forests" if ensemble.forests else ""
        return artifacts.RunDirectory(
            self.folder / f"{ensemble.dataset}-{ensemble.num_teachers}{kind}-seed{self.seed}"
        )

    def ensemble(self, name: EnsembleName) -> Voter:
        """Returns an ensemble trained as train_teachers.py does, unless it is there already.

        Raises:
            ValueError: if the data are not there.
        """
        dataset, num_teachers = name.dataset, name.num_teachers
        examples = data.load_private(dataset, data_dir=self.data_dirs[dataset])
        shares = random_partition(
            num_records=len(examples), num_teachers=num_teachers, seed=self.seed
        )
        model = RANDOM_FOREST if name.forests else default_model(examples.dataset)
        settings = TeacherSettings(model=model, seed=self.seed)
        _, config = run.complete_settings(settings, examples.dataset, shares)
        directory = self.run_directory(name)
        run.train(
            config=config,
            examples=examples,
            partition=shares,
            teachers=range(num_teachers),
            run_directory=directory,
            progress=lambda done: None,
        )
        return load_ensemble(run.ensemble_folder(directory))

    def votes(self, name: EnsembleName) -> Votes:
        """Returns every teacher's vote on every public sample, asked for once. Sensitive."""
        public = self.public(name.dataset)
        path = self.run_directory(name).sensitive / "votes.npz"
        if not path.exists():
            labels = self.ensemble(name).votes(public.inputs).labels
            artifacts.write_arrays(path, {"labels": labels}, private=True)
        return Votes(artifacts.read_arrays(path)["labels"], public.dataset.num_classes)

    def probabilities(self, name: EnsembleName, temperature: float) -> npt.NDArray[np.float32]:
        """Returns the teachers' mean probabilities on the pool, `[pool_size, num_classes]`.

        NOT PRIVATE, and no mechanism here could release them.
        """
        folder = self.run_directory(name).sensitive
        path = folder / f"probabilities-{temperature:g}.npz"
        if not path.exists():
            pool = self.split(name.dataset).pool
            found = self.ensemble(name).probabilities(pool.inputs, temperature)
            artifacts.write_arrays(path, {"probabilities": found}, private=True)
        return artifacts.read_arrays(path)["probabilities"]
