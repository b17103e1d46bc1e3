"""Students by name, with their own settings."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import keras

from pate_tf.models import catalogue as models
from pate_tf.models import forest
from pate_tf.models.draws import check_draws
from pate_tf.students import consistency, gan, gan_networks, random_forest, supervised
from pate_tf.students.config import StudentConfig, StudentSettings
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool, PoolLabels

TRAINING: Final = ("max_steps", "batch_size", "learning_rate")


class Trainer(Protocol):
    """What trains a student: from released labels and a pool to a model."""

    def __call__(
        self,
        config: StudentConfig,
        released: PoolLabels,
        pool: Pool,
        *,
        folder: pathlib.Path | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        show_progress: bool = False,
    ) -> Any:
        """Returns a model that is called as a Keras model is, from raw inputs to logits.

        Args:
          config: how it is trained.
          released: noisy labels of some of the pool.
          pool: public inputs `[num_inputs, *input_shape]`.
          folder: logs and the state of an unfinished run lie below it; None for neither.
          callbacks: called as Keras calls them; a forest has no epochs and calls none.
          show_progress: whether a progress bar is drawn.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """One way to learn from released labels.

    Attributes:
      train: trains it.
      check: raises ValueError if a configuration does not fit a data set; asked before labels are
        paid for.
      default_model: the model's name where the user names none.
      max_steps: training steps where the user says nothing.
      batch_size: labelled examples a step, likewise.
      learning_rate: of Adam, likewise.
      of_whole_table: other numbers of the three above for labels of every input of a table's pool,
        which were worked out together: single ones are not noisy, and are to be followed closely.
      can_convert: whether it can be written in formats other than SavedModel.
    """

    train: Trainer
    check: Callable[[StudentConfig, Dataset], None]
    default_model: Callable[[Dataset], str] = models.default_model
    max_steps: int = 1_000
    batch_size: int = 64
    learning_rate: float = 0.002
    of_whole_table: Mapping[str, float] = dataclasses.field(default_factory=dict)
    can_convert: bool = True


def _check_supervised(config: StudentConfig, dataset: Dataset) -> None:
    check_draws(models.build(config.model, dataset), training=False)


def _check_gan(config: StudentConfig, dataset: Dataset) -> None:
    gan_networks.check_images(dataset)
    if config.model != gan_networks.NAME:
        raise ValueError(f"model: expected none for student gan, got {config.model!r}")


def _check_consistency(config: StudentConfig, dataset: Dataset) -> None:
    model = models.build(config.model, dataset)
    consistency.check_model(model)
    check_draws(model, training=False)


def _check_forest(config: StudentConfig, dataset: Dataset) -> None:
    if not forest.is_forest(config.model, dataset):
        raise ValueError(f"model: expected a forest, got {config.model!r}")


def _train_forest(
    config: StudentConfig,
    released: PoolLabels,
    pool: Pool,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    show_progress: bool = False,
) -> random_forest.ForestModel:
    del folder, callbacks, show_progress  # it takes seconds
    return random_forest.train_random_forest(config, released, pool)


STUDENTS = {
    "supervised": Student(
        train=supervised.train_supervised,
        check=_check_supervised,
        # On half of Adult's pool, students of the other half's labels agree with 97 to 98 % of what
        # sums say there; with 95 % by the numbers for a few labels.
        of_whole_table={"max_steps": 3_000, "batch_size": 256, "learning_rate": 0.005},
    ),
    "gan": Student(
        train=gan.train_gan,
        check=_check_gan,
        default_model=lambda dataset: gan_networks.NAME,
        max_steps=10_000,
        batch_size=100,
        learning_rate=0.003,
    ),
    "consistency": Student(
        train=consistency.train_consistency,
        check=_check_consistency,
        default_model=lambda dataset: "wide_cnn" if dataset.kind == "image" else "mlp",
        max_steps=2_000,
    ),
    "random_forest": Student(
        train=_train_forest,
        check=_check_forest,
        default_model=lambda dataset: forest.RANDOM_FOREST,
        can_convert=False,
    ),
}


def complete(
    settings: StudentSettings, dataset: Dataset, *, labels_whole_pool: bool = False
) -> StudentConfig:
    """Fills in a student's own settings where the user says nothing.

    Args:
      settings: what the user says.
      dataset: what it learns from.
      labels_whole_pool: whether every input of the pool has a label, worked out from noisy sums.

    Raises:
      ValueError: if there is no such student, or a setting is out of range.
    """
    own = _student(settings.student)
    model = own.default_model(dataset) if settings.model is None else settings.model
    if own is STUDENTS["random_forest"] or forest.is_forest(model, dataset):
        for name in TRAINING:
            if getattr(settings, name) is not None:
                raise ValueError(f"{name}: expected none for a forest, which has no steps")
    training: dict[str, Any] = {name: getattr(own, name) for name in TRAINING}
    if labels_whole_pool and dataset.kind == "tabular":
        training |= own.of_whole_table
    said = {name: getattr(settings, name) for name in TRAINING}
    training |= {name: value for name, value in said.items() if value is not None}
    return StudentConfig(student=settings.student, model=model, seed=settings.seed, **training)


def _student(name: str) -> Student:
    if name not in STUDENTS:
        raise ValueError(f"student: expected one of {', '.join(STUDENTS)}, got {name!r}")
    return STUDENTS[name]


def find_student(config: StudentConfig, dataset: Dataset) -> Student:
    """Returns the student that a configuration names, checked against a data set.

    A forest as the model of the plain student makes it the forest student.

    Raises:
      ValueError: if there is no such student, or the configuration does not fit the data set.
    """
    student = _student(config.student)
    if config.student == "supervised" and forest.is_forest(config.model, dataset):
        student = STUDENTS["random_forest"]
    student.check(config, dataset)
    return student
