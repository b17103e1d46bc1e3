"""Teachers that were trained elsewhere: models in memory or in files."""

import copy
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import Votes
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import whole_numbers
from pate_tf.models import classifier
from pate_tf.models.definition import definition_of
from pate_tf.teachers.voters import Progress, Voter, digest_for

BATCH = 500
OTHER_FORMATS = (".h5", ".hdf5", ".joblib", ".onnx", ".pb", ".pkl", ".pt", ".pth", ".tflite")


class ForeignModels(Voter):
    """SENSITIVE: one model for each teacher, trained elsewhere.

    A model is a Keras model, a fitted classifier of scikit-learn, any object with `predict`, or the
    path of a `.keras` file or a SavedModel, loaded when it is asked. It takes raw inputs `[batch,
    *input_shape]` and returns labels `[batch]` or scores `[batch, num_classes]`. A SavedModel
    answers through `serving_default`, by its output `label` or its only output.

    That their records are disjoint can't be seen from here; the statement says that it was assumed.

    `digest` covers what is known of models: files, settings and weights, or attributes. A teacher
    that changes in a way that this does not see stays under the same ledger, whose budget then
    covers both.
    """

    def __init__(
        self,
        models: Sequence[Any] | pathlib.Path,
        *,
        unit: str = "record",
        source: PrivateSource | None = None,
        num_classes: int | None = None,
    ) -> None:
        """Takes models, or a folder of them, in the order of their names.

        Args:
            models: one for each teacher.
            unit: what one teacher's records are partitioned by, "record" or "owner".
            source: of the private data.
            num_classes: how many scores a model may give; None for those of a pool.

        Raises:
            ValueError: if there is none, one can't predict, or two files are the same.
        """
        self._models = _in_folder(models) if isinstance(models, pathlib.Path) else list(models)
        if not self._models:
            raise ValueError("models: expected at least 1, got none")
        for place, model in enumerate(self._models):
            can_predict = hasattr(model, "predict") and not isinstance(model, type)
            if not can_predict and not isinstance(model, pathlib.Path):
                raise ValueError(
                    f"models: expected objects with predict(inputs), got {type(model).__name__} "
                    f"at {place}"
                )
        self.num_teachers, self.unit, self.source = len(self._models), unit, source
        self.num_classes = num_classes
        if isinstance(models, pathlib.Path):
            digest = artifacts.digest_paths(self._models)
        else:
            definitions = [
                [
                    definition_of(model, of_array=artifacts.digest_array),
                    artifacts.digest_arrays(getattr(model, "get_weights", list)()),
                ]
                for model in self._models
            ]
            digest = hashlib.sha256(json.dumps(definitions).encode()).hexdigest()
        self.digest = digest_for(digest, unit)

    def for_pool(self, pool: Pool) -> Self:
        """See `Voter.for_pool`."""
        bound = copy.copy(self)
        bound.dataset, bound.num_classes = pool.dataset, pool.dataset.num_classes
        return bound

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks one teacher after another, so that only one from a file is in memory.

        Raises:
            ValueError: if a model does not load, fails, or answers something else than labels or
                scores. Its own message is not shown, as it may quote what it learned.
        """
        labels = np.zeros((self.num_teachers, len(inputs)), np.int64)
        for place, model in enumerate(self._models if len(inputs) else ()):
            name = str(model) if isinstance(model, pathlib.Path) else type(model).__name__
            loaded = load_model(model) if isinstance(model, pathlib.Path) else model
            try:
                labels[place] = _labels(loaded, inputs, self.num_classes)
            except Exception as error:  # any that a user's model raises
                raise ValueError(
                    f"models: expected a label or {self.num_classes or 'some'} scores for each "
                    f"input from {name} at {place}, got something else or {type(error).__name__}"
                ) from None
        if progress is not None:
            progress(len(inputs))
        return Votes(labels, self.num_classes or int(labels.max(initial=0)) + 1)


def _in_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the models in a folder; refuses copies: their records would have two votes."""
    if not folder.is_dir():
        raise ValueError(f"models: expected a folder of models, got {folder}")
    others = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in OTHER_FORMATS)
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix == ".keras" or (path / "saved_model.pb").exists()
    )
    if others or not paths:
        raise ValueError(
            f"models: expected .keras files and SavedModels in {folder}, got "
            f"{others[0] if others else 'none'}; write models again by model.save, as .keras, or "
            f"by model.export"
        )
    first: dict[tuple[str, ...], str] = {}
    for path in paths:
        files = sorted(part for part in path.rglob("*") if part.is_file()) or [path]
        content = tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
        if first.setdefault(content, path.name) != path.name:
            raise ValueError(
                f"models: expected a model of its own for each teacher, got the same in "
                f"{first[content]} and {path.name}: its records would have two votes"
            )
    return paths


def load_model(path: pathlib.Path) -> Any:
    """Returns a Keras model, or a function from inputs to answers, from a file.

    Raises:
        ValueError: if it can't be read, or has a layer that Keras does not know.
    """
    try:
        if path.suffix == ".keras":
            return keras.saving.load_model(path, compile=False)
        loaded = tf.saved_model.load(str(path))
        ((name, spec),) = loaded.signatures["serving_default"].structured_input_signature[1].items()
    except Exception as error:  # Keras, TensorFlow and zipfile each raise their own kinds
        layer = re.search(r"Could not locate \w+ '(\w+)'|deserialization of a `(\w+)`", str(error))
        if layer is None:
            raise ValueError(
                f"models: expected a .keras file or a SavedModel, got {path}, which can't be read"
            ) from None
        raise ValueError(
            f"models: expected parts of Keras in {path}, got {layer[1] or layer[2]}, which is not "
            f"registered; write the model by model.export(FOLDER) as a SavedModel, which holds its "
            f"graph"
        ) from None

    def answers(inputs: Any) -> Any:
        # `loaded` is used here so that it lives as long as its signature.
        outputs = loaded.signatures["serving_default"](**{name: tf.cast(inputs, spec.dtype)})
        if "label" in outputs:
            return outputs["label"]
        (output,) = outputs.values()
        return output

    return answers


def _labels(model: Any, inputs: npt.NDArray[Any], num_classes: int | None) -> npt.NDArray[Any]:
    if isinstance(model, keras.Model):
        answer = _in_batches(
            lambda batch: model(tf.cast(batch, tf.float32), training=False), inputs
        )
    elif isinstance(model, classifier.BaseEstimator):
        answer = classifier.Estimator(model).predict(inputs)
    elif hasattr(model, "predict"):
        answer = np.asarray(model.predict(inputs))
    else:
        answer = _in_batches(model, inputs)
    if answer.ndim == 2 and len(answer) == len(inputs) and answer.shape[1] > 1:
        if num_classes not in (None, answer.shape[1]):
            raise ValueError("another number of scores")
        return np.where(np.isnan(answer), -np.inf, answer).argmax(axis=1)
    if answer.shape != (len(inputs),):
        raise ValueError("answers of another shape")
    return whole_numbers(answer, "labels", num_classes=num_classes or 2**31)


def _in_batches(answers: Callable[[Any], Any], inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    starts = range(0, len(inputs), BATCH)
    return np.concatenate([np.asarray(answers(inputs[start : start + BATCH])) for start in starts])
