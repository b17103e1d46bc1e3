"""Teachers in memory that somebody trained: Keras models, classifiers, whatever has `predict`."""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import Votes
from pate_tf.core.validation import IntArray, labels_array
from pate_tf.models import classifier
from pate_tf.models import fingerprint as descriptions
from pate_tf.teachers.voters import BATCH, Progress, digest_for


@runtime_checkable
class Predictor(Protocol):
    """Sensitive: one teacher of the user's own."""

    def predict(self, inputs: Any) -> Any:
        """Returns labels `[batch]` or scores `[batch, num_classes]` of raw inputs."""


def check_predictors(models: Sequence[Any]) -> None:
    """Raises ValueError unless there is a model, and each can predict."""
    if not models:
        raise ValueError("models: expected at least 1, got none")
    for place, model in enumerate(models):
        if isinstance(model, type) or not isinstance(model, Predictor):
            raise ValueError(
                f"models: expected objects with predict(inputs), got {type(model).__name__} at "
                f"{place}"
            )


def digest_of(models: Sequence[Any]) -> str:
    """SHA-256 over what is known of models: settings and weights, or what an object holds.

    A teacher that changes in a way that this does not see stays under the same ledger, whose budget
    then covers both.
    """
    return hashlib.sha256(json.dumps([_described(model) for model in models]).encode()).hexdigest()


def _described(model: Any) -> Any:
    if isinstance(model, keras.Model):
        weights = (keras.ops.convert_to_numpy(weight) for weight in model.weights)
        return [descriptions.settings_of(model), artifacts.digest_arrays(weights)]
    held = descriptions.plain(getattr(model, "__dict__", {}))
    return [descriptions.qualified_name(type(model)), descriptions.plain(model), held]


class ModelList:
    """Sensitive: teachers that were trained elsewhere, one object each.

    That their records are disjoint can't be seen from here; the statement says that it was assumed.
    """

    def __init__(self, models: Sequence[Any], dataset: Dataset, *, unit: str = "record") -> None:
        """Takes models: Keras', classifiers of scikit-learn, or objects with `predict`.

        Args:
          models: one for each teacher.
          dataset: what is publicly known of the data.
          unit: what one teacher's records are shared out by, "record" or "owner".

        Raises:
          ValueError: if there is none, or one can't predict.
        """
        check_predictors(models)
        self.dataset = dataset
        self.num_teachers = len(models)
        self.unit = unit
        self._models = list(models)

    @functools.cached_property
    def digest(self) -> str:
        """See `digest_of`."""
        return digest_for(digest_of(self._models), self.unit)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks one teacher after another for a label of every raw input.

        Raises:
          ValueError: as `labels_of`.
        """
        num_classes = self.dataset.num_classes
        labels = labels_of(self._models, inputs, num_classes=num_classes, progress=progress)
        return Votes(labels, num_classes)


def labels_of(
    models: Sequence[Any],
    inputs: npt.NDArray[Any],
    *,
    num_classes: int | None = None,
    progress: Progress | None = None,
) -> IntArray:
    """Asks one model after another for a label of every raw input. SENSITIVE.

    Args:
      models: as `ModelList` takes them.
      inputs: `[num_queries, *input_shape]`.
      num_classes: how many scores a model may give; None for any number.
      progress: called with the number of queries done since its last call.

    Returns:
      int64 `[num_models, num_queries]`.

    Raises:
      ValueError: if a model fails, or answers something else than labels or scores. What it says is
        not shown, as it may quote what it learnt.
    """
    labels = np.zeros((len(models), len(inputs)), np.int64)
    for place, model in enumerate(models if len(inputs) else ()):
        try:
            labels[place] = _labels(model, inputs, num_classes)
        except Exception as error:  # whatever a user's model raises
            raise ValueError(
                f"models: expected a label or {num_classes or 'some'} scores for each input from "
                f"{type(model).__name__} at {place}, got something else or {type(error).__name__}"
            ) from None
        if progress is not None:
            done = (place + 1) * len(inputs) // len(models)
            progress(done - place * len(inputs) // len(models))
    return labels


def _labels(model: Any, inputs: npt.NDArray[Any], num_classes: int | None) -> npt.NDArray[Any]:
    if isinstance(model, keras.Model):
        starts = range(0, len(inputs), BATCH)
        batches = (tf.constant(inputs[one : one + BATCH], tf.float32) for one in starts)
        answer = np.concatenate([np.asarray(model(batch, training=False)) for batch in batches])
    elif classifier.is_estimator(model):
        answer = classifier.Estimator(model).predict(inputs)
    else:
        answer = np.asarray(model.predict(inputs))
    if answer.ndim == 2 and len(answer) == len(inputs) and answer.shape[1] > 1:
        if num_classes not in (None, answer.shape[1]):
            raise ValueError("another number of scores")
        return np.where(np.isnan(answer), -np.inf, answer).argmax(axis=1)
    if answer.shape != (len(inputs),):
        raise ValueError("answers of another shape")
    return labels_array(answer, num_classes or 2**31, "labels")
