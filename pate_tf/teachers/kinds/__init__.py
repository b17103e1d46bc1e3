"""Kinds of teacher; a file of this package defines one and registers it.

A kind's entry says all that others need: `--model` takes its values and help from here. To add a
kind, add a file with a subclass of `TeacherKind`, and `register` an object of it.

A file of this package imports TensorFlow, Keras and scikit-learn inside of its functions: flags are
defined without them.
"""

import dataclasses
import hashlib
import importlib
import json
import pathlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.core.source import Records
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.voters import Ensemble, SavedModelEnsemble

if TYPE_CHECKING:
    from pate_tf.models.encoder import Encoder

OF_STEPS = ("max_steps", "batch_size", "learning_rate", "class_weights")
DESCRIPTION = "ensemble.json"
RECORDS = "records.json"  # number and source of the private records, beside the ensemble
TOGETHER = 64  # teachers whose features are in memory together

# Makes callbacks for one teacher; or unused ones, which are copied for each.
Callbacks = Sequence[Any] | Callable[[], Sequence[Any]]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """SENSITIVE: what teachers are trained on, and by what.

    Apart from callbacks, nothing of what trains them changes what they learn.

    Attributes:
        config: how they are trained.
        examples: the private records of all teachers.
        partition: who gets which record.
        encoder: what makes features, for teachers on them; else None.
        callbacks: for `fit` of compiled Keras models; see `kinds.networks.new_callbacks`.
        num_processes: how many processes fit classifiers of scikit-learn; None for one a core.
        devices: a `tf.distribute.Strategy` over devices of this host, or a `cluster.Cluster` of
            workers; None for all GPUs, else the CPU.
        verbose: whether Keras draws progress bars of its own.
    """

    config: TeacherConfig
    examples: PrivateExamples
    partition: Partition
    encoder: "Encoder | None" = None
    callbacks: Callbacks | None = None
    num_processes: int | None = None
    devices: Any = None
    verbose: bool = False

    @property
    def learns_on(self) -> Dataset:
        """What is publicly known of a teacher's inputs: those of the data set, or features."""
        return self.config.dataset if self.encoder is None else self.encoder.feature_dataset

    def shards(self, teachers: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[Any], IntArray]]:
        """Yields each teacher with inputs `[num_records, ...]` and labels of its shard, ascending.

        Inputs are features where there is an encoder: a record's depend on that record and on the
        encoder, which is public, alone (`models.encoder.record_features`). Few shards are in memory
        at a time.
        """
        shards, examples = self.partition.all_records(), self.examples
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
        models: values of `--model` that name it, with the help of each.
        settings: the fields of `TeacherSettings` that it has, besides model, representation, seed.
        representation: whether it learns from features: "none", "optional" or "required".
        is_distributed: whether a cluster can train it.
        has_callbacks: whether Keras' callbacks can watch its training.
        load: from the folder that `save` filled, and the configuration, to the `Ensemble`; by
            default that of a SavedModel. Raises any exception if there is none, or it is broken.
    """

    name: ClassVar[str]
    models: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ()
    representation: ClassVar[str] = "none"
    is_distributed: ClassVar[bool] = False
    has_callbacks: ClassVar[bool] = False
    load: ClassVar[Any] = SavedModelEnsemble

    def takes(self, built: Any) -> bool:
        """Whether what a function of the user's returned is a teacher of this kind."""
        del built
        return False

    def check(self, work: Work) -> None:
        """Raises ValueError where teachers can't be trained so; nothing was written yet."""

    def definition(self, work: Work) -> dict[str, Any]:
        """Returns JSON values that say what a teacher computes, beyond its configuration.

        Trained teachers of another definition are not mixed with these.
        """
        del work
        return {}

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """Yields each of some teachers with what it learned, in any order. SENSITIVE.

        A teacher depends on its own shard, on public values and on the seed alone, and not on which
        other teachers are trained. A shard may be empty: the result must not reveal it.
        """
        raise NotImplementedError

    def save(self, folder: pathlib.Path, work: Work, teachers: Sequence[TrainedTeacher]) -> None:
        """Writes what the teachers learned into an empty folder, for `load`."""
        raise NotImplementedError


KINDS: dict[str, TeacherKind] = {}


def register(kind: TeacherKind) -> None:
    """Makes a kind known by its name and its models."""
    KINDS[kind.name] = kind


def check_model(model: Named | None) -> None:
    """Raises ValueError if a model is named that no kind has."""
    names = [name for kind in KINDS.values() for name in kind.models]
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
        return next(kind for kind in KINDS.values() if model in kind.models)
    built = call_function(model, dataset, flag="model")
    for kind in KINDS.values():
        if kind.takes(built):
            return kind
    kinds = ", ".join(KINDS)
    raise ValueError(
        f"model {name_of(model)}: expected a Keras model or another teacher ({kinds}), got "
        f"{type(built).__name__}"
    )


def save_ensemble(
    kind: TeacherKind, folder: pathlib.Path, work: Work, teachers: Sequence[TrainedTeacher]
) -> None:
    """Writes an ensemble at `folder`, whose parent must exist, whole or not at all."""
    with artifacts.atomic_folder(folder) as temporary:
        kind.save(temporary, work, teachers)
        description = {**work.config.to_dict(), "kind": kind.name}
        artifacts.write_json(temporary / DESCRIPTION, description, private=True)
        artifacts.make_private(temporary)


def load_ensemble(folder: pathlib.Path) -> Ensemble:
    """Loads the ensemble that `save_ensemble` wrote. Nothing in the files is executed.

    Raises:
        ValueError: if there is none, or it is broken.
    """
    try:
        description = artifacts.read_json(folder / DESCRIPTION)
        kind = KINDS[description.pop("kind")]  # not part of the digest: model and weights are
        ensemble: Ensemble = kind.load(folder, TeacherConfig.from_dict(description))
        text = json.dumps(description, sort_keys=True) + ensemble.learnt
        ensemble.digest = hashlib.sha256(text.encode()).hexdigest()
        if (folder.parent / RECORDS).exists():
            records = Records.from_dict(artifacts.read_json(folder.parent / RECORDS))
            ensemble.num_records, ensemble.source = records.num_records, records.source
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


for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
