"""Publishing a student with the statement of what its labels cost."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any, overload

import keras
import numpy as np

from pate_tf.api import silo_coordinator as silos
from pate_tf.api import student_publishing
from pate_tf.api.labeller import Labeller
from pate_tf.api.labels import Labels
from pate_tf.api.silo_coordinator import PublishedOfSilos
from pate_tf.api.student import Student
from pate_tf.api.student_publishing import Published
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.models import catalogue as models
from pate_tf.models.catalogue import check_draws
from pate_tf.silos.coordinator import Coordinator


@overload
def publish(
    student: Student | keras.Model,
    labels: Labels,
    labeller: Labeller,
    folder: str | os.PathLike[str],
    *,
    export_formats: Sequence[str] = (),
) -> Published: ...


@overload
def publish(
    student: Student | keras.Model,
    labels: Labels,
    labeller: Coordinator,
    folder: str | os.PathLike[str],
    *,
    export_formats: Sequence[str] = (),
) -> PublishedOfSilos: ...


def publish(
    student: Student | keras.Model,
    labels: Labels,
    labeller: Labeller | Coordinator,
    folder: str | os.PathLike[str],
    *,
    export_formats: Sequence[str] = (),
) -> Published | PublishedOfSilos:
    """Exports a student as a SavedModel, and states what its labels cost.

    >>> import pate_tf
    >>> published = pate_tf.publish(student, labels, labeller, folder / "released")
    >>> sorted(path.name for path in published.folder.iterdir())
    ['privacy_statement.json', 'privacy_statement.md', 'student']

    Args:
      student: a trained one, or a Keras model of the user's own, from raw inputs to logits or to
        probabilities, that learnt from these labels and public data alone. Nobody can see that from
        here: the statement holds for such a model only.
      labels: what it learnt from.
      labeller: whose ledger paid for them; it may be closed. Or the open `Coordinator` of the silos
        that answered.
      folder: gets `student/1`, and the statement in JSON and as a page.
      export_formats: of "onnx" and "litert", to write the student in besides.

    Returns:
      `statement`, `folder` and `student_folder`.

    Raises:
      ValueError: if student, labels and ledger do not belong together, or the student can't be
        exported.
    """
    target = pathlib.Path(folder)
    if artifacts.is_within(target / "student", artifacts.SENSITIVE):
        raise ValueError(f"folder: expected one outside of sensitive/, got {target}")
    if isinstance(student, Student):
        if student.labels.queried is not labels.queried and not _same(student.labels, labels):
            raise ValueError("labels: expected those that the student learnt from, got others")
        model = student.model
    else:
        model = _to_logits(student, labels.pool.dataset)
    if isinstance(labeller, Coordinator):
        return silos.publish(
            model,
            labels.queried,
            labels.pool,
            coordinator=labeller,
            folder=target,
            export_formats=export_formats,
        )
    with labeller.ledger() as ledger:
        return student_publishing.publish(
            model,
            labels.queried,
            labels.pool,
            teachers=labeller.teachers.known.voter(labels.pool),
            ledger=ledger,
            folder=target,
            export_formats=export_formats,
        )


def _same(one: Labels, other: Labels) -> bool:
    """Whether two were bought together, though one was saved and read meanwhile."""
    first, second = one.queried, other.queried
    facts = [
        (
            labels.queried.pool_digest,
            labels.queried.strategy,
            labels.cost,
            labels.released.ledger_rows,
            labels.released.secure_noise,
        )
        for labels in (one, other)
    ]
    return facts[0] == facts[1] and all(
        np.array_equal(getattr(part, name), getattr(its_twin, name))
        for part, its_twin in ((first.released, second.released), (first.labels, second.labels))
        for name in ("query_indices", "labels", "weights")
    )


def _to_logits(model: Any, dataset: Dataset) -> keras.Model:
    """Returns a user's model, with logarithms at the end of one that gives probabilities."""
    models.check_model(model, dataset, getattr(model, "name", type(model).__name__))
    check_draws(model, training=False)
    last = model.layers[-1] if model.layers else None
    ends_in_softmax = isinstance(last, keras.layers.Softmax) or (
        getattr(last, "activation", None) is keras.activations.softmax
    )
    if not ends_in_softmax:
        return model
    tiny = float(np.finfo(np.float32).tiny)
    logits = keras.ops.log(keras.ops.maximum(model.outputs[0], tiny))
    return keras.Model(model.inputs, logits)
