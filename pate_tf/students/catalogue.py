"""Students by name, with their own settings."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.models import catalogue as models
from pate_tf.models import forest
from pate_tf.models.catalogue import check_draws
from pate_tf.models.forest import LEAF, Forest
from pate_tf.students import consistency, gan, supervised
from pate_tf.students.config import StudentConfig, StudentSettings

# The forest student: a random forest on the noisy labels, served as a graph without scikit-learn.
#
# The rest of the pool is not used: a forest has nothing to learn from unlabelled inputs.


class ForestModel(tf.Module):
    """A forest as a graph, called as a Keras model is: from raw inputs to logits."""

    def __init__(self, fitted: Forest) -> None:
        """Takes over the arrays of a forest."""
        super().__init__()
        starts = fitted.starts[:-1]
        first_nodes = np.repeat(starts, np.diff(fitted.starts))[:, np.newaxis]
        is_leaf = fitted.children == LEAF
        itself = np.arange(len(is_leaf))[:, np.newaxis]
        # Of the whole forest instead of the tree; a leaf leads to itself.
        children = np.where(is_leaf, itself, first_nodes + fitted.children)
        self._roots = _constant(starts.astype(np.int32))
        self._children = _constant(children.astype(np.int32))
        self._features = _constant(fitted.features)
        self._thresholds = _constant(fitted.thresholds)
        self._probabilities = _constant(fitted.probabilities)

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns logits float32 `[batch, num_classes]`: the logarithms of the probabilities.

        The largest is that of scikit-learn's label, always: decided in float64, over trees added
        up in the same order.

        Args:
          inputs: float32 `[batch, ...]`, finite.
          training: taken so that it is called as a Keras model is.
        """
        del training
        num_trees = self._roots.shape[0]
        rows = tf.reshape(inputs, [tf.shape(inputs)[0], -1])
        nodes = tf.tile(self._roots[tf.newaxis, :], [tf.shape(rows)[0], 1])
        (nodes,) = tf.while_loop(
            lambda nodes: tf.reduce_any(self._step(rows, nodes) != nodes),
            lambda nodes: (self._step(rows, nodes),),
            (nodes,),
        )
        total = tf.zeros([tf.shape(rows)[0], self._probabilities.shape[1]], tf.float64)
        _, total = tf.while_loop(
            lambda tree, _: tree < num_trees,
            lambda tree, total: (
                tree + 1,
                total + tf.gather(self._probabilities, tf.gather(nodes, tree, axis=1)),
            ),
            (tf.constant(0), total),
        )
        probabilities = total / num_trees
        winners = tf.one_hot(tf.argmax(probabilities, axis=1), probabilities.shape[1])
        # In float32 two classes can become equals; a millionth keeps the winner ahead.
        return tf.cast(tf.math.log(probabilities), tf.float32) + 1e-6 * winners

    def _step(self, rows: tf.Tensor, nodes: tf.Tensor) -> tf.Tensor:
        """From a node of each tree to the child that an input goes to, `[batch, num_trees]`."""
        values = tf.gather(rows, tf.gather(self._features, nodes), batch_dims=1)
        goes_right = tf.cast(values, tf.float64) > tf.gather(self._thresholds, nodes)
        return tf.gather_nd(
            self._children, tf.stack([nodes, tf.cast(goes_right, tf.int32)], axis=-1)
        )


def _constant(array: npt.NDArray[Any]) -> tf.Variable:
    return tf.Variable(array, trainable=False)


def train_random_forest(config: StudentConfig, released: PoolLabels, pool: Pool) -> ForestModel:
    """Fits a forest to the released labels; of labels with weights to the largest one's class.

    Args:
      config: its model names the forest; of the rest the seed alone counts.
      released: noisy labels of some of the pool.
      pool: public inputs `[num_inputs, *input_shape]`.

    Returns:
      A graph from raw inputs to logits `[batch, num_classes]`.

    Raises:
      ValueError: if no query was answered, the labels do not belong to this pool, the model is no
        forest, or an input is not finite.
    """
    released.check_pool(pool)
    return ForestModel(
        forest.fit(
            config.model,
            pool.dataset,
            pool.inputs[released.query_indices],
            released.labels,
            seed=config.seed,
        )
    )


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
    gan.check_images(dataset)
    if config.model != gan.NAME:
        raise ValueError(f"model: expected none for student gan, got {config.model!r}")


def _check_consistency(config: StudentConfig, dataset: Dataset) -> None:
    if not consistency.learns_by_augmentation(dataset):
        raise ValueError(
            f"student consistency: expected images whose augmentation says what keeps a label, got "
            f"none for {dataset.name}; take student supervised"
        )
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
) -> ForestModel:
    del folder, callbacks, show_progress  # it takes seconds
    return train_random_forest(config, released, pool)


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
        default_model=lambda dataset: gan.NAME,
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
