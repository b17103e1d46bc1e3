"""Kinds of teacher; a file of this package defines one and registers it.

A kind's entry says all that others need: `--model` takes its values and help from here, and the
report its words. To add a kind, add a file with a subclass of `TeacherKind`, and `register` an
object of it.

A file of this package imports TensorFlow, Keras and scikit-learn inside of its functions: flags are
defined without them.
"""

import dataclasses
import importlib
import pathlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pate_tf.core import artifacts, validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of
from pate_tf.teachers.settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.store import Finished, TeacherState, TeacherStore
from pate_tf.teachers.voters import Ensemble, Saved

if TYPE_CHECKING:
    from pate_tf.models.encoder import Encoder

PARALLELISMS = ("ensemble", "data")
OF_STEPS = ("max_steps", "batch_size", "learning_rate", "class_weights")
DESCRIPTION = "ensemble.json"

# Makes callbacks for one teacher; or unused ones, which are copied for each.
Callbacks = Sequence[Any] | Callable[[], Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """What trains teachers. Apart from callbacks, nothing here changes what they learn.

    Attributes:
        callbacks: for `fit` of compiled Keras models; see `kinds.compiled.new_callbacks`.
        parallelism: "ensemble" if each replica trains teachers of its own, "data" if all replicas
            train one teacher at a time.
        num_processes: how many processes fit classifiers of scikit-learn; None for one a core.
        devices: a `tf.distribute.Strategy` over devices of this host, or a `cluster.Cluster` of
            workers; None for all GPUs, else the CPU.
        verbose: whether Keras draws progress bars of its own.
    """

    callbacks: Callbacks | None = None
    parallelism: str = "ensemble"
    num_processes: int | None = None
    devices: Any = None
    verbose: bool = False

    @property
    def is_cluster(self) -> bool:
        """Whether workers on other hosts train."""
        return hasattr(self.devices, "num_workers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """SENSITIVE: what teachers are trained on, and by what.

    Attributes:
        config: how they are trained.
        examples: the private records of all teachers.
        partition: who gets which record.
        encoder: what makes features, for teachers on them; else None.
        engine: what trains them.
    """

    config: TeacherConfig
    examples: PrivateExamples
    partition: Partition
    encoder: "Encoder | None"
    engine: Engine

    def __post_init__(self) -> None:
        config, shares = self.config, self.partition
        for what, expected, got in (
            ("teachers", config.num_teachers, shares.num_teachers),
            ("unit", config.unit, shares.unit),
            ("records", len(self.examples), shares.num_records),
        ):
            if got != expected:
                raise ValueError(f"partition: expected {what} {expected}, got {got}")

    @property
    def learns_on(self) -> Dataset:
        """What is publicly known of a teacher's inputs: those of the data set, or features."""
        return self.config.dataset if self.encoder is None else self.encoder.feature_dataset


class TeacherKind:
    """A kind of teacher: how it is trained, saved, loaded.

    Attributes:
        name: of the kind, in `ensemble.json`; says what it is in messages.
        models: values of `--model` that name it, with the help of each.
        settings: the fields of `TeacherSettings` that it has, besides model, representation, seed.
        representation: whether it learns from features: "none", "optional" or "required".
        is_distributed: whether a cluster, or several devices for one teacher, can train it.
        has_callbacks: whether Keras' callbacks can watch its training.
        augments: whether images are augmented as the data set allows; others take them as they are.
    """

    name: ClassVar[str]
    models: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ()
    representation: ClassVar[str] = "none"
    is_distributed: ClassVar[bool] = False
    has_callbacks: ClassVar[bool] = False
    augments: ClassVar[bool] = False

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

    def train(
        self, work: Work, teachers: Sequence[int], store: TeacherStore
    ) -> Iterator[tuple[int, TeacherState]]:
        """Yields each of some teachers with what it learnt, in any order. SENSITIVE.

        A teacher depends on its own share, on public values and on the seed alone, and not on which
        other teachers are trained. A share may be empty: the result must not reveal it.

        Args:
            work: on what.
            teachers: those that are not trained yet.
            store: may hold unfinished states, and takes them.
        """
        raise NotImplementedError

    def save(
        self,
        folder: pathlib.Path,
        config: TeacherConfig,
        finished: Finished,
        encoder: "Encoder | None",
    ) -> None:
        """Writes what the teachers learnt into an empty folder, for `load`."""
        raise NotImplementedError

    def load(self, saved: Saved) -> Ensemble:
        """Returns the teachers that `save` wrote; by default those of `ensemble.save_module`.

        Raises:
            Exception: of any kind, if there are none, or they are broken.
        """
        from pate_tf.teachers import ensemble

        return ensemble.SavedModelEnsemble(saved)

    def save_each(self, folder: pathlib.Path, config: TeacherConfig, finished: Finished) -> None:
        """Writes a SavedModel for each teacher into an empty folder.

        Raises:
            ValueError: if teachers of this kind have none.
        """
        raise ValueError(
            f"export_each: expected Keras teachers, got {name_of(config.model)}, which are one file"
        )


KINDS: dict[str, TeacherKind] = {}


def register(kind: TeacherKind) -> None:
    """Makes a kind known by its name and its models."""
    KINDS[kind.name] = kind


def help_of_models() -> str:
    """Returns what every value of `--model` means, for `--help`."""
    each = (f"{model}: {text}" for kind in KINDS.values() for model, text in kind.models.items())
    return "; ".join(each)


def find_kind(model: Named, dataset: Dataset) -> TeacherKind:
    """Returns the kind of a model: by its name, or by what a function of the user's returns.

    Raises:
        ValueError: if there is none.
    """
    if not is_named_function(model):
        for kind in KINDS.values():
            if model in kind.models:
                return kind
        known = ", ".join(name for kind in KINDS.values() for name in kind.models)
        raise ValueError(f"model: expected one of {known} or module:function, got {model!r}")
    built = call_function(model, dataset, flag="model")
    for kind in KINDS.values():
        if kind.takes(built):
            return kind
    kinds = ", ".join(KINDS)
    raise ValueError(
        f"model {name_of(model)}: expected a Keras model or another teacher ({kinds}), got "
        f"{type(built).__name__}"
    )


def check_settings(kind: TeacherKind, settings: TeacherSettings, model: Named) -> None:
    """Raises ValueError where settings are given that a kind of teacher does not have."""
    for name in OF_STEPS:
        if getattr(settings, name) is not None and name not in kind.settings:
            raise ValueError(
                f"{name}: expected none for {name_of(model)}, of the kind {kind.name}, which has "
                f"no such setting"
            )
    if settings.representation is not None and kind.representation == "none":
        raise ValueError(
            f"representation: expected none for {name_of(model)}, which learns from raw inputs, "
            f"got {name_of(settings.representation)}"
        )


def check_work(kind: TeacherKind, work: Work) -> None:
    """Raises ValueError where a kind of teacher can't be trained so; writes nothing."""
    config, engine = work.config, work.engine
    validation.one_of(PARALLELISMS, parallelism=engine.parallelism)
    if engine.parallelism == "data" and engine.is_cluster:
        raise ValueError("parallelism: expected 'ensemble' on a cluster, got 'data'")
    if not kind.is_distributed and (engine.parallelism == "data" or engine.is_cluster):
        raise ValueError(
            f"model: expected a Keras model that is not compiled where several devices or hosts "
            f"train, got {name_of(config.model)}; train parts of the others on each machine and "
            f"merge them"
        )
    if engine.callbacks and not kind.has_callbacks:
        raise ValueError("callbacks: expected with a compiled Keras model alone, got them without")
    if (config.representation is None) != (work.encoder is None):
        raise ValueError("encoder: expected one with a representation alone, and always with one")
    kind.check(work)


def save_ensemble(
    kind: TeacherKind,
    folder: pathlib.Path,
    config: TeacherConfig,
    finished: Finished,
    encoder: "Encoder | None",
) -> None:
    """Writes an ensemble at `folder`, whose parent must exist, whole or not at all."""
    with artifacts.atomic_folder(folder) as temporary:
        kind.save(temporary, config, finished, encoder)
        description = {**config.to_dict(), "kind": kind.name}
        artifacts.write_json(temporary / DESCRIPTION, description, private=True)
        artifacts.make_private(temporary)


def load_ensemble(folder: pathlib.Path) -> Ensemble:
    """Loads the ensemble that `save_ensemble` wrote. Nothing in the files is executed.

    Raises:
        ValueError: if there is none, or it is broken.
    """
    try:
        description = artifacts.read_json(folder / DESCRIPTION)
        # Not part of the digest: model and weights are.
        kind = KINDS[description.pop("kind")]
        return kind.load(Saved(folder, description, TeacherConfig.from_dict(description)))
    except FileNotFoundError as error:
        raise ValueError(
            f"teachers: expected a trained ensemble in {folder}, got none; run train_teachers.py "
            f"first"
        ) from error
    except KeyError as error:
        raise ValueError(
            f"teachers: expected an ensemble of this version in {folder}, got another; remove that "
            f"folder and run train_teachers.py again, which trains nothing anew"
        ) from error
    except Exception as error:  # TensorFlow and JSON each raise their own kinds
        reason = f": {error}" if type(error) is ValueError else ""
        raise ValueError(
            f"teachers: expected a complete ensemble in {folder}, got a broken one{reason}"
        ) from error


for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
