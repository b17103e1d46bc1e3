"""Students by the name that `--student` takes."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras

from pate_tf.models import catalogue as models
from pate_tf.models import forest
from pate_tf.records import Dataset, Pool, PoolLabels
from pate_tf.students import consistency, gan, gan_networks, random_forest, supervised
from pate_tf.students.config import StudentConfig


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
      can_convert: whether it can be written in formats other than SavedModel.
    """

    train: Trainer
    check: Callable[[StudentConfig, Dataset], None]
    default_model: Callable[[Dataset], str] = models.default_model
    max_steps: int = 1_000
    batch_size: int = 64
    learning_rate: float = 0.002
    can_convert: bool = True


def _check_supervised(config: StudentConfig, dataset: Dataset) -> None:
    models.build(config.model, dataset)


def _check_gan(config: StudentConfig, dataset: Dataset) -> None:
    gan_networks.check_images(dataset)
    if config.model != gan_networks.NAME:
        raise ValueError(f"model: expected none for student gan, got {config.model!r}")


def _check_consistency(config: StudentConfig, dataset: Dataset) -> None:
    consistency.check_model(models.build(config.model, dataset))


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
    "supervised": Student(train=supervised.train_supervised, check=_check_supervised),
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


def find_student(config: StudentConfig, dataset: Dataset) -> Student:
    """Returns the student that a configuration names, checked against a data set.

    A forest as the model of the plain student makes it the forest student.

    Raises:
      ValueError: if there is no such student, or the configuration does not fit the data set.
    """
    if config.student not in STUDENTS:
        raise ValueError(f"student: expected one of {', '.join(STUDENTS)}, got {config.student!r}")
    name = config.student
    if name == "supervised" and forest.is_forest(config.model, dataset):
        name = "random_forest"
    STUDENTS[name].check(config, dataset)
    return STUDENTS[name]
