"""A student that learns from labels, and its publication."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import keras
import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import UNKNOWN, Pool, PublicExamples, PublicSplit, to_html
from pate_tf.core.reporting import reporting
from pate_tf.core.settings import PublicationSettings
from pate_tf.core.validation import IntArray, whole_numbers
from pate_tf.data.data import as_inputs
from pate_tf.models import catalogue as models
from pate_tf.queries.labels import Labels
from pate_tf.release.labeller import Labeller
from pate_tf.run import silo_coordinator as silos
from pate_tf.run.student_run import learn
from pate_tf.silos.coordinator import Coordinator
from pate_tf.statement.labels import LabelsStatement
from pate_tf.statement.publishing import Published, publish_model
from pate_tf.students import batches
from pate_tf.students.config import StudentSettings
from pate_tf.students.kinds import AUTO


class Student:
    """Public: a classifier that learns from noisy labels and unlabelled public inputs alone.

    >>> import pate_tf
    >>> student = pate_tf.Student("supervised", model="mlp", steps=20).fit(data.pool, labels)
    >>> student.predict(data.held_out).shape
    (197,)
    >>> 0.0 <= student.evaluate(data.held_out) <= 1.0
    True

    Learning costs nothing beyond its labels (post-processing).
    """

    def __init__(
        self,
        student: str = AUTO,
        *,
        model: Callable[[Dataset], Any] | str | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        initial: keras.Model | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        directory: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        """Takes the settings; those that are None are the student's own.

        Args:
            student: "supervised" (the labels alone), "consistency" (the whole pool too), "gan",
                "random_forest", "linear_head", or another file of `pate_tf.students.kinds`.
                Default: consistency for images whose data set names an augmentation, supervised
                otherwise; but linear_head, which is no Keras model, after several rounds of feature
                sums where `Labels.prefers_linear_head`, and of tables and texts unless the trained
                one fits the sums clearly better.
            model: a function that takes a `Dataset` and returns a Keras model from raw inputs to
                logits, or a name; "random_forest" has one of its own.
            steps: training steps.
            batch_size: labelled inputs a step.
            learning_rate: of Adam, before the schedule.
            seed: fixes initial weights, shuffling and augmentation.
            initial: a network whose weights training begins with, in place of a model. It must have
                learnt from the same labels and public data alone, as `model` of another `Student`
                has.
            callbacks: for Keras' `fit`.
            directory: public; logs and the state of a stopped `fit`, which goes on from there.
                Default: neither is stored.
            verbose: whether progress bars are shown.
        """
        self._settings = StudentSettings(
            student=student,
            model=model,
            max_steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
        )
        self._initial = initial
        self._callbacks = callbacks
        self._directory = None if directory is None else pathlib.Path(directory)
        self._verbose = verbose
        self._fitted: tuple[Any, Labels] | None = None
        self._kind = student

    @classmethod
    def from_model(cls, model: keras.Model, labels: Labels) -> Self:
        """Returns a Keras model of the user's own as a student.

        Args:
            model: from raw inputs to logits or to probabilities. It learnt from these labels and
                public data alone: this can't be checked, and the statement holds for such a model
                only.
            labels: what it learnt from.

        Raises:
            ValueError: if the model is none for the labels' data set, or draws at random.
        """
        student = cls()
        student._fitted = _to_logits(model, labels.pool.dataset), labels
        return student

    def fit(self, pool: Pool, labels: Labels) -> Self:
        """Learns from labels of a pool, from the beginning.

        Args:
            pool: `data.pool`, which the labels are of.
            labels: as `Labeller.label` or `load_labels` returns them.

        Returns:
            This object.

        Raises:
            ValueError: if student, labels and pool do not fit each other, or there is no label.
        """
        if not isinstance(labels, Labels):
            raise ValueError(f"labels: expected pate_tf.Labels, got {type(labels).__name__}")
        if not isinstance(pool, Pool):
            raise ValueError(f"pool: expected data.pool, got {type(pool).__name__}")
        # Labels of held-out samples are for `evaluate` alone.
        nothing = PublicExamples(pool.dataset, pool.inputs[:0])
        model, config = learn(
            self._settings,
            PublicSplit(pool=pool, held_out=nothing),
            labels,
            initial=self._initial,
            folder=self._directory,
            callbacks=self._callbacks,
            reporting=reporting(self._verbose),
        )
        self._kind = config.student
        self._fitted = model, labels
        return self

    @property
    def model(self) -> Any:
        """What was trained: called as a Keras model is, from raw inputs to logits.

        Raises:
            ValueError: if nothing was trained yet.
        """
        return self._trained()[0]

    @property
    def labels(self) -> Labels:
        """The labels that it learnt from.

        Raises:
            ValueError: if nothing was trained yet.
        """
        return self._trained()[1]

    def _trained(self) -> tuple[Any, Labels]:
        if self._fitted is None:
            raise ValueError("student: expected a trained one, got none: call fit(pool, labels)")
        return self._fitted

    def predict(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> IntArray:
        """Returns the label int64 `[num_inputs]` of each raw input `[num_inputs, *input_shape]`.

        Raises:
            ValueError: if nothing was trained yet, or the inputs do not fit.
        """
        return self._logits(inputs).argmax(axis=1).astype(np.int64)

    def predict_proba(
        self, inputs: npt.ArrayLike | Pool | PublicExamples
    ) -> npt.NDArray[np.float64]:
        """Returns the probability of each class, float64 `[num_inputs, num_classes]`.

        The published student gives the same `probabilities`, in float32.

        Args:
            inputs: raw, `[num_inputs, *input_shape]`.

        Raises:
            ValueError: as `predict`.
        """
        return np.asarray(scipy.special.softmax(self._logits(inputs), axis=1))

    def _logits(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> npt.NDArray[np.float64]:
        model, dataset = self.model, self.labels.pool.dataset
        raw = as_inputs(inputs, dataset)
        return batches.outputs(model, raw) if len(raw) else np.zeros([0, dataset.num_classes])

    def evaluate(
        self,
        inputs: PublicExamples | npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
    ) -> float | None:
        """Returns the share of right answers; None where no sample has a label.

        Args:
            inputs: `data.held_out`, or raw inputs `[num_samples, *input_shape]`.
            labels: true labels `[num_samples]` of raw inputs, -1 where unknown.

        Raises:
            ValueError: if nothing was trained yet, or inputs and labels do not fit.
        """
        truth = getattr(inputs, "labels", None) if labels is None else labels
        predictions = self.predict(inputs)
        if truth is None:
            return None
        expected = whole_numbers(truth, "labels")
        if expected.shape != predictions.shape:
            raise ValueError(f"labels: expected [{len(predictions)}], got {list(expected.shape)}")
        is_known = expected != UNKNOWN
        if not is_known.any():
            return None
        return float(np.mean(predictions[is_known] == expected[is_known]))

    def __repr__(self) -> str:
        state = "not trained yet" if self._fitted is None else f"of {len(self.labels)} labels"
        return f"Student(<{self._kind}, {state}>)"

    def _repr_html_(self) -> str:
        rows = [("kind", self._settings.student)]
        if self._fitted is not None:
            rows += [
                ("learnt from", f"{len(self.labels):,} noisy labels"),
                ("their cost", self.labels.cost.in_words()),
            ]
        return to_html("Student", rows)


def publish(
    student: Student,
    folder: str | os.PathLike[str] | None = None,
    *,
    export_formats: Sequence[str] = (),
    holder: str | None = None,
    purpose: str | None = None,
    run_name: str | None = None,
) -> Published[LabelsStatement]:
    """Exports a student as a SavedModel, and states what its labels cost.

    >>> import pate_tf
    >>> published = pate_tf.publish(student, folder / "released")
    >>> sorted(path.name for path in published.folder.iterdir())
    ['privacy_statement.json', 'privacy_statement.md', 'student']

    Args:
        student: a trained one, or `Student.from_model`. Its labels know whose ledger was charged:
            that of a `Labeller`, which may be closed, or of the silos of an open `Coordinator`.
        folder: gets `student/1`, and the statement in JSON and as a page. Default: `released/` of
            the run whose ledger was charged, where `pate report` and `pate audit` look.
        export_formats: of "onnx" and "litert", to write the student in as well.
        holder: who releases it, for the statement. Default: left out.
        purpose: what it is released for, for the statement. Default: left out.
        run_name: of this release, for the statement. Default: date and version number.

    Returns:
        `statement` (of silos, their `SilosStatement`), `folder` and `student_folder`.

    Raises:
        ValueError: if student, labels and ledger do not belong together, or the student can't be
            exported.
    """
    if not isinstance(student, Student):
        raise ValueError(
            f"student: expected pate_tf.Student, got {type(student).__name__}; of a Keras model "
            f"that learned from labels take pate_tf.Student.from_model(model, labels)"
        )
    model, labels = student.model, student.labels
    labeller = labels.labeller
    if not isinstance(labeller, Labeller | Coordinator):
        raise ValueError(
            "labels: expected those of a labeller, whose ledger the statement is made from, got "
            "stored ones: give load_labels(..., labeller=...)"
        )
    if folder is None:
        if isinstance(labeller, Coordinator):
            raise ValueError("folder: expected one for labels of silos, got none")
        folder = cast("pathlib.Path", labeller.source.directory) / artifacts.RELEASED
    target = pathlib.Path(folder)
    if artifacts.is_within(target / "student", artifacts.SENSITIVE):
        raise ValueError(f"folder: expected one outside of sensitive/, got {target}")
    publication = PublicationSettings(holder=holder, purpose=purpose, run_name=run_name)
    if isinstance(labeller, Coordinator):
        published: Any = silos.publish(
            model,
            labels,
            coordinator=labeller,
            folder=target,
            export_formats=export_formats,
            publication=publication,
        )
        return cast("Published[LabelsStatement]", published)
    with labeller.ledger() as ledger:
        return publish_model(
            model,
            labels,
            teachers=labeller.source.for_pool(labels.pool),
            ledger=ledger,
            folder=target,
            export_formats=export_formats,
            publication=publication,
        )


def _to_logits(model: Any, dataset: Dataset) -> keras.Model:
    """Returns a user's model, with logarithms at the end of one that gives probabilities."""
    models.check_model(model, dataset, getattr(model, "name", type(model).__name__))
    models.check_draws(model, training=False)
    last = model.layers[-1] if model.layers else None
    ends_in_softmax = isinstance(last, keras.layers.Softmax) or (
        getattr(last, "activation", None) is keras.activations.softmax
    )
    if not ends_in_softmax:
        return model
    tiny = float(np.finfo(np.float32).tiny)
    logits = keras.ops.log(keras.ops.maximum(model.outputs[0], tiny))
    return keras.Model(model.inputs, logits)
