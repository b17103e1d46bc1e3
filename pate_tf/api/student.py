"""A student that learns from labels."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.api.data import as_inputs
from pate_tf.api.labels import Labels
from pate_tf.api.student_training import learn
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import UNKNOWN, Pool, PublicExamples, PublicSplit
from pate_tf.core.validation import IntArray, whole_numbers
from pate_tf.statement.privacy_statement import to_html
from pate_tf.students import batches
from pate_tf.students.catalogue import complete
from pate_tf.students.config import StudentSettings


class Student:
    """Public: a classifier that learns from noisy labels and unlabelled public inputs alone.

    >>> import pate_tf
    >>> student = pate_tf.Student("supervised", model="mlp", steps=20).fit(data.pool, labels)
    >>> student.predict(data.held_out).shape
    (197,)
    >>> 0.0 <= student.evaluate(data.held_out) <= 1.0
    True

    Whatever it learns costs nothing beyond its labels (post-processing).
    """

    def __init__(
        self,
        student: str = "supervised",
        *,
        model: Callable[[Dataset], Any] | str | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        directory: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        """Takes the settings; those that are None are the student's own.

        Args:
          student: "supervised" (the labels alone), "consistency" (the whole pool too), "gan" or
            "random_forest".
          model: a function that takes a `Dataset` and returns a Keras model from raw inputs to
            logits, or a name; "random_forest" has one of its own.
          steps: training steps.
          batch_size: labelled inputs a step.
          learning_rate: of Adam, before the schedule.
          seed: fixes initial weights, shuffling and augmentation.
          callbacks: for Keras' `fit`.
          directory: public; logs and the state of a stopped `fit`, which goes on from there.
            Default: neither is kept.
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
        self._callbacks = callbacks
        self._directory = None if directory is None else pathlib.Path(directory)
        self._verbose = verbose
        self._model: Any = None
        self._labels: Labels | None = None

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
        # Nobody watches: what is held out may have labels, and those are for `evaluate`.
        nothing = PublicExamples(pool.dataset, pool.inputs[:0])
        self._model = learn(
            complete(
                self._settings,
                pool.dataset,
                labels_whole_pool=labels.queried.released.noisy_sums is not None,
            ),
            PublicSplit(pool=pool, held_out=nothing),
            labels.queried,
            folder=self._directory,
            callbacks=self._callbacks,
            verbose=self._verbose,
        )
        self._labels = labels
        return self

    @property
    def model(self) -> Any:
        """What was trained: called as a Keras model is, from raw inputs to logits.

        Raises:
          ValueError: if nothing was trained yet.
        """
        if self._model is None:
            raise ValueError("student: expected a trained one, got none: call fit(pool, labels)")
        return self._model

    @property
    def labels(self) -> Labels:
        """The labels that it learnt from.

        Raises:
          ValueError: if nothing was trained yet.
        """
        if self._labels is None:
            raise ValueError("student: expected a trained one, got none: call fit(pool, labels)")
        return self._labels

    def predict(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> IntArray:
        """Returns the label int64 `[num_inputs]` of each raw input `[num_inputs, *input_shape]`.

        Raises:
          ValueError: if nothing was trained yet, or the inputs do not fit.
        """
        model, dataset = self.model, self.labels.pool.dataset
        raw = as_inputs(inputs, dataset)
        if not len(raw):
            return np.zeros(0, np.int64)
        return batches.outputs(model, raw).argmax(axis=1).astype(np.int64)

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
        given = self.predict(inputs)
        if truth is None:
            return None
        known = whole_numbers(truth, "labels")
        if known.shape != given.shape:
            raise ValueError(f"labels: expected [{len(given)}], got {list(known.shape)}")
        is_known = known != UNKNOWN
        return float(np.mean(given[is_known] == known[is_known])) if is_known.any() else None

    def __repr__(self) -> str:
        state = "not trained yet" if self._labels is None else f"of {len(self._labels)} labels"
        return f"Student(<{self._settings.student}, {state}>)"

    def _repr_html_(self) -> str:
        rows = [("kind", self._settings.student)]
        if self._labels is not None:
            rows += [
                ("learnt from", f"{len(self._labels):,} noisy labels"),
                ("their cost", self._labels.cost.in_words()),
            ]
        return to_html("Student", rows)
