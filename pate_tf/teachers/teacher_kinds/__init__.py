"""Kinds of teachers, such as networks or scikit-learn estimators, by name.

To add a kind, write a module with a subclass of `TeacherKind` and an instance of this subclass. The
name of the instance is the name of the kind in capitals. Then add a line to `KINDS`. A kind is
imported only when it is used, so that flags are checked without TensorFlow.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import CLASS, NUMBER, Dataset, target_rows
from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.core.source import Records
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of
from pate_tf.teachers.teacher_settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.voters import Ensemble, SavedModelEnsemble

if TYPE_CHECKING:
    from pate_tf.models.encoder import Encoder

TRAINING_SETTINGS = ("max_steps", "batch_size", "learning_rate", "class_weights")
DESCRIPTION = "ensemble.json"
RECORDS = "records.json"  # file with the number and source of the private records
TEACHERS_PER_GROUP = 64  # number of teachers whose features are in memory at the same time


@dataclasses.dataclass(repr=False)
class TrainedTeacher:
    """SENSITIVE: the weights of one trained teacher, and the course of its training.

    Attributes:
        arrays: for a Keras model, its trainable weights, followed by its buffers (moving averages,
            dropout seeds); for other kinds, all learned parameters.
        curves: loss and accuracy on the records of each step, float32 `[2, num_steps]`. An unknown
            accuracy is NaN.
    """

    arrays: list[npt.NDArray[Any]]
    curves: npt.NDArray[np.float32] = dataclasses.field(
        default_factory=lambda: np.zeros((2, 0), np.float32)
    )


TrainedTeachers = Iterator[tuple[int, TrainedTeacher]]  # pairs of a teacher's number and teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """SENSITIVE: the inputs of training: configuration, records and execution options.

    The execution options `num_processes` and `verbose` do not change the trained teachers.

    Attributes:
        config: training configuration.
        examples: private records of all teachers.
        partition: partition of the records among the teachers.
        encoder: encoder that maps raw inputs to features; None for teachers that learn from raw
            inputs.
        num_processes: number of processes that fit scikit-learn classifiers; None for one process
            per core.
        verbose: whether Keras draws progress bars.
    """

    config: TeacherConfig
    examples: PrivateExamples
    partition: Partition
    encoder: "Encoder | None" = None
    num_processes: int | None = None
    verbose: bool = False

    @property
    def learns_on(self) -> Dataset:
        """Public facts about the data that teachers take: raw inputs or features."""
        return self.config.dataset if self.encoder is None else self.encoder.feature_dataset

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """The private arrays on which trained teachers depend: records, labels and partition."""
        arrays = [self.examples.inputs, self.examples.labels, self.partition.assignment]
        if self.partition.unit == "owner" and self.examples.owners is not None:
            arrays.append(self.partition.numbered(self.examples.owners))
        return arrays

    @functools.cached_property
    def targets(self) -> npt.NDArray[Any]:
        """Training targets: classes, or numbers from 0 to 1, float32 `[num_records, num_classes]`.

        If the data set has a numeric target, its position s in its range, from 0 to 1, becomes the
        training targets (1 - s, s), like probabilities of two classes. If the target is several
        labels, each label has the training target 1 if it applies, otherwise 0.
        """
        labels = self.examples.labels
        if self.config.dataset.target == CLASS:
            return labels
        if self.config.dataset.target == NUMBER:
            labels = target_rows(labels, self.config.dataset)
        return labels.astype(np.float32)

    @functools.cached_property
    def records(self) -> list[IntArray]:
        """The ascending indices of each teacher's records, one array for each teacher."""
        return self.partition.all_records()

    def shards(self, teachers: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[Any], IntArray]]:
        """Yields the number of each given teacher, and the inputs and labels of its shard.

        Teachers are in ascending order. Inputs have the shape `[num_records, ...]`. With an
        encoder, the inputs are features. The features of a record depend only on that record and
        the public encoder (`record_features`). Only some shards are in memory at a time.
        """
        examples = self.examples
        shards = self.records
        ascending = sorted(teachers)
        if self.encoder is None:
            for teacher in ascending:
                yield teacher, examples.inputs[shards[teacher]], examples.labels[shards[teacher]]
            return
        from pate_tf.models.encoder import record_features

        for start in range(0, len(ascending), TEACHERS_PER_GROUP):
            group = ascending[start : start + TEACHERS_PER_GROUP]
            rows = np.concatenate([shards[teacher] for teacher in group])
            position = np.empty(self.partition.num_records, np.int64)
            position[rows] = np.arange(len(rows))
            features = np.empty((len(rows), self.encoder.num_features), np.float32)
            for part, values in record_features(self.encoder, examples.inputs, rows):
                features[position[part]] = values
            ends = np.cumsum([len(shards[teacher]) for teacher in group])
            for teacher, of_teacher in zip(group, np.split(features, ends[:-1]), strict=True):
                yield teacher, of_teacher, examples.labels[shards[teacher]]


class TeacherKind:
    """A kind of teacher: trains, saves and loads the teachers of this kind.

    Attributes:
        name: name of the kind, which appears in `ensemble.json` and in messages.
        settings: fields of `TeacherSettings` that the kind supports, in addition to model,
            representation and seed.
        features: whether teachers learn from the features of a representation: "none", "optional"
            or "required".
        load: function that takes the configuration and the folder that `save` wrote, and returns
            the `Ensemble` of teachers. By default, it loads a SavedModel. If files are missing or
            damaged, it may raise any exception.
    """

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()
    features: ClassVar[str] = "none"
    load: ClassVar[Any] = SavedModelEnsemble

    def takes(self, built: Any) -> bool:
        """Whether a user's model has the type that this kind of teacher needs.

        Args:
            built: object that the user's function returned.
        """
        del built
        return False

    def check_settings(self, settings: TeacherSettings, model: Named) -> None:
        """Raises ValueError if the user gave a setting that this kind does not support."""
        for name in TRAINING_SETTINGS:
            if getattr(settings, name) is not None and name not in self.settings:
                raise ValueError(f"{name} does not apply to {name_of(model)} of kind {self.name}")
        if settings.representation is not None and self.features == "none":
            raise ValueError(
                f"representation must not be given for {name_of(model)}, which learns from raw "
                f"inputs, got {name_of(settings.representation)}"
            )

    def check(self, job: TrainingJob) -> None:
        """Raises ValueError if teachers can't be trained; called before anything is written."""

    def definition(self, job: TrainingJob) -> dict[str, Any]:
        """Returns public JSON values that determine the model and the training of a teacher.

        Teachers with different definitions are never combined in one ensemble.
        """
        fixed = {**job.config.to_dict(), "kind": self.name}
        if job.encoder is not None:
            fixed["encoder"] = job.encoder.digest
        return fixed

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """Trains some teachers; yields each teacher's number and result, in any order. SENSITIVE.

        A teacher depends only on its own shard, public values and the seed, but not on other
        teachers. A shard may be empty. An empty shard must not cause an error, because the error
        would reveal something about the records.
        """
        raise NotImplementedError

    def save(
        self, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
    ) -> None:
        """Writes trained teachers into an empty folder; `load` reads them."""
        raise NotImplementedError


# For each kind, the values of `--model` that select it. A kind without values is selected if a
# user's function returns a model of this kind.
KINDS: dict[str, tuple[str, ...]] = {
    "closed_form": ("ridge",),
    "networks": ("cnn", "wide_cnn", "mlp", "paper_mnist", "paper_svhn"),
    "compiled": (),
    "scikit_learn": ("random_forest",),
}
TENSORFLOW_KINDS = ("closed_form", "networks", "compiled")  # defined in networks.py


def kind_of(name: str) -> TeacherKind:
    """Returns the kind with the name `name`; raises ValueError if there is no such kind."""
    checks.one_of(KINDS, kind=name)
    module = "networks" if name in TENSORFLOW_KINDS else name
    kind: TeacherKind = getattr(importlib.import_module(f"{__name__}.{module}"), name.upper())
    return kind


def check_model(model: Named | None) -> None:
    """Raises ValueError if the model's name is unknown. None and user functions are accepted."""
    names = [name for models in KINDS.values() for name in models]
    if not (model is None or is_named_function(model) or model in names):
        raise ValueError(f"model must be {', '.join(names)} or module:function, got {model!r}")


def find_kind(model: Named, dataset: Dataset) -> TeacherKind:
    """Returns the kind of teacher for a model.

    Args:
        model: name of a model, or a user's function, which is called to determine the type of model
            that it returns.
        dataset: data set that is passed to the function.

    Raises:
        ValueError: if no kind supports the model.
    """
    check_model(model)
    if not is_named_function(model):
        return kind_of(next(name for name, models in KINDS.items() if model in models))
    built = call_function(model, dataset, flag="model")
    for kind in map(kind_of, KINDS):
        if kind.takes(built):
            return kind
    kinds = ", ".join(KINDS)
    raise ValueError(
        f"model {name_of(model)} must return a teacher ({kinds}), got {type(built).__name__}"
    )


def save_ensemble(
    kind: TeacherKind, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
) -> None:
    """Writes an ensemble atomically into the new folder `folder`, whose parent must exist."""
    with artifacts.atomic_folder(folder) as temporary:
        kind.save(temporary, job, teachers)
        description = {**job.config.to_dict(), "kind": kind.name}
        artifacts.write_json(temporary / DESCRIPTION, description, private=True)
        artifacts.make_private(temporary)


def load_ensemble(folder: pathlib.Path) -> Ensemble:
    """Loads the ensemble that `save_ensemble` wrote, without executing code from the files.

    Raises:
        ValueError: if the ensemble is missing or damaged.
    """
    try:
        description = artifacts.read_json(folder / DESCRIPTION)
        kind = kind_of(description.pop("kind"))  # the digest does not cover the kind
        ensemble: Ensemble = kind.load(folder, TeacherConfig.from_dict(description))
        text = json.dumps(description, sort_keys=True) + ensemble.learnt
        ensemble.digest = hashlib.sha256(text.encode()).hexdigest()
        if (folder.parent / RECORDS).exists():
            records = Records.from_dict(artifacts.read_json(folder.parent / RECORDS))
            ensemble.num_records = records.num_records
            ensemble.source = records.source
        return ensemble
    except FileNotFoundError as error:
        raise ValueError(
            f"teachers: {folder.parents[2]} contains no trained ensemble. Run `pate teachers`."
        ) from error
    except Exception as error:  # TensorFlow and JSON raise different exceptions
        reason = f": {error}" if type(error) is ValueError else ""
        raise ValueError(f"teachers: {folder} is incomplete or damaged{reason}") from error
