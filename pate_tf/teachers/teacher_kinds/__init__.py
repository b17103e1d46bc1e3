"""Kinds of teacher by name: a file of this package, and a line of `KINDS`.

To add a kind, add a file with a subclass of `TeacherKind` and an object of it, which has the kind's
name in capitals. A kind is imported when it is used: flags are checked without TensorFlow.
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

OF_STEPS = ("max_steps", "batch_size", "learning_rate", "class_weights")
DESCRIPTION = "ensemble.json"
RECORDS = "records.json"  # number and source of the private records, beside the ensemble
TOGETHER = 64  # teachers whose features are in memory together


@dataclasses.dataclass(repr=False)
class TrainedTeacher:
    """SENSITIVE: what one teacher learned.

    Attributes:
        arrays: trainable weights of a Keras model, then its buffers (moving averages, dropout
            seeds); of other kinds all that they learned.
        losses: float32 `[step]`, the loss of each step.
    """

    arrays: list[npt.NDArray[Any]]
    losses: npt.NDArray[np.float32] = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.float32)
    )


TrainedTeachers = Iterator[tuple[int, TrainedTeacher]]  # with their numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """SENSITIVE: what teachers are trained on, and by what.

    Nothing of what trains them changes what they learn.

    Attributes:
        config: how they are trained.
        examples: the private records of all teachers.
        partition: who gets which record.
        encoder: what makes features, for teachers on them; else None.
        num_processes: how many processes fit classifiers of scikit-learn; None for one a core.
        verbose: whether Keras draws progress bars of its own.
    """

    config: TeacherConfig
    examples: PrivateExamples
    partition: Partition
    encoder: "Encoder | None" = None
    num_processes: int | None = None
    verbose: bool = False

    @property
    def learns_on(self) -> Dataset:
        """What is publicly known of a teacher's inputs: those of the data set, or features."""
        return self.config.dataset if self.encoder is None else self.encoder.feature_dataset

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """The private values that trained teachers depend on."""
        arrays = [self.examples.inputs, self.examples.labels, self.partition.assignment]
        if self.partition.unit == "owner" and self.examples.owners is not None:
            arrays.append(self.partition.numbered(self.examples.owners))
        return arrays

    @functools.cached_property
    def targets(self) -> npt.NDArray[Any]:
        """What outputs of a teacher are compared with: classes, or float32 targets from 0 to 1.

        Of a number s, along its range, (1 - s, s), as of two classes; of several labels whether
        each holds: `[num_records, num_classes]`.
        """
        labels = self.examples.labels
        if self.config.dataset.target == CLASS:
            return labels
        if self.config.dataset.target == NUMBER:
            labels = target_rows(labels, self.config.dataset)
        return labels.astype(np.float32)

    @functools.cached_property
    def records(self) -> list[IntArray]:
        """The record indices of every teacher, each ascending."""
        return self.partition.all_records()

    def shards(self, teachers: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[Any], IntArray]]:
        """Yields each teacher with inputs `[num_records, ...]` and labels of its shard, ascending.

        Inputs are features where there is an encoder: a record's depend on that record and on the
        encoder, which is public, alone (`record_features`). Few shards are in memory
        at a time.
        """
        examples = self.examples
        shards = self.records
        ascending = sorted(teachers)
        if self.encoder is None:
            for teacher in ascending:
                yield teacher, examples.inputs[shards[teacher]], examples.labels[shards[teacher]]
            return
        from pate_tf.models.encoder import record_features

        for start in range(0, len(ascending), TOGETHER):
            group = ascending[start : start + TOGETHER]
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
    """A kind of teacher: how it is trained, saved, loaded.

    Attributes:
        name: of the kind, in `ensemble.json`; says what it is in messages.
        settings: the fields of `TeacherSettings` that it has, besides model, representation, seed.
        features: whether it learns from a representation: "none", "optional" or "required".
        load: from the folder that `save` filled, and the configuration, to the `Ensemble`; by
            default that of a SavedModel. Raises any exception if there is none, or it is broken.
    """

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()
    features: ClassVar[str] = "none"
    load: ClassVar[Any] = SavedModelEnsemble

    def takes(self, built: Any) -> bool:
        """Whether what a function of the user's returned is a teacher of this kind."""
        del built
        return False

    def check_settings(self, settings: TeacherSettings, model: Named) -> None:
        """Raises ValueError if a setting was given that teachers of this kind do not have."""
        for name in OF_STEPS:
            if getattr(settings, name) is not None and name not in self.settings:
                raise ValueError(
                    f"{name}: expected none for {name_of(model)}, of the kind {self.name}, which "
                    f"has no such setting"
                )
        if settings.representation is not None and self.features == "none":
            raise ValueError(
                f"representation: expected none for {name_of(model)}, which learns from raw "
                f"inputs, got {name_of(settings.representation)}"
            )

    def check(self, job: TrainingJob) -> None:
        """Raises ValueError where teachers can't be trained so; nothing was written yet."""

    def definition(self, job: TrainingJob) -> dict[str, Any]:
        """Returns JSON values that say what a teacher computes, all of them public.

        Trained teachers of another definition are not mixed with these.
        """
        fixed = {**job.config.to_dict(), "kind": self.name}
        if job.encoder is not None:
            fixed["encoder"] = job.encoder.digest
        return fixed

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """Yields each of some teachers with what it learned, in any order. SENSITIVE.

        A teacher depends on its own shard, on public values and on the seed alone, and not on which
        other teachers are trained. A shard may be empty: the result must not reveal it.
        """
        raise NotImplementedError

    def save(
        self, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
    ) -> None:
        """Writes what the teachers learned into an empty folder, for `load`."""
        raise NotImplementedError


# The values of `--model` that name each kind; those without are known by what a function returns.
KINDS: dict[str, tuple[str, ...]] = {
    "closed_form": ("ridge",),
    "networks": ("cnn", "wide_cnn", "mlp", "deeper", "paper_mnist", "paper_svhn"),
    "compiled": (),
    "scikit_learn": ("random_forest",),
}
OF_TENSORFLOW = ("closed_form", "networks", "compiled")  # of one file


def kind_of(name: str) -> TeacherKind:
    """Returns the kind of a name; ValueError if there is none."""
    checks.one_of(KINDS, kind=name)
    module = "networks" if name in OF_TENSORFLOW else name
    kind: TeacherKind = getattr(importlib.import_module(f"{__name__}.{module}"), name.upper())
    return kind


def check_model(model: Named | None) -> None:
    """Raises ValueError if a model is named that no kind has."""
    names = [name for models in KINDS.values() for name in models]
    if not (model is None or is_named_function(model) or model in names):
        raise ValueError(
            f"model: expected one of {', '.join(names)} or module:function, got {model!r}"
        )


def find_kind(model: Named, dataset: Dataset) -> TeacherKind:
    """Returns the kind of a model: by its name, or by what a function of the user's returns.

    Raises:
        ValueError: if there is none.
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
        f"model {name_of(model)}: expected a Keras model or another teacher ({kinds}), got "
        f"{type(built).__name__}"
    )


def save_ensemble(
    kind: TeacherKind, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
) -> None:
    """Writes an ensemble at `folder`, whose parent must exist, whole or not at all."""
    with artifacts.atomic_folder(folder) as temporary:
        kind.save(temporary, job, teachers)
        description = {**job.config.to_dict(), "kind": kind.name}
        artifacts.write_json(temporary / DESCRIPTION, description, private=True)
        artifacts.make_private(temporary)


def load_ensemble(folder: pathlib.Path) -> Ensemble:
    """Loads the ensemble that `save_ensemble` wrote. Nothing in the files is executed.

    Raises:
        ValueError: if there is none, or it is broken.
    """
    try:
        description = artifacts.read_json(folder / DESCRIPTION)
        kind = kind_of(description.pop("kind"))  # not part of the digest: model and weights are
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
            f"teachers: expected a run folder with a trained ensemble, got {folder.parents[2]}; "
            f"run train_teachers.py first"
        ) from error
    except Exception as error:  # TensorFlow and JSON each raise their own kinds
        reason = f": {error}" if type(error) is ValueError else ""
        raise ValueError(
            f"teachers: expected a complete ensemble in {folder}, got a broken one{reason}"
        ) from error
