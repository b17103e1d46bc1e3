"""Teachers that are the user's own trained models, in memory or in files."""

import copy
import hashlib
import json
import pathlib
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt
import scipy.special
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.checks import whole_numbers
from pate_tf.core.dataset import CLASS, SEVERAL_LABELS, Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import Sharding, Votes, warn_holder
from pate_tf.core.source import PrivateSource
from pate_tf.models import estimators
from pate_tf.models.architectures import definition_of
from pate_tf.teachers.voters import Progress, Voter, digest_for

BATCH = 500
OTHER_FORMATS = (".h5", ".hdf5", ".joblib", ".onnx", ".pb", ".pkl", ".pt", ".pth", ".tflite")


class ForeignModels(Voter):
    """SENSITIVE: teachers that are the user's trained models, one model for each teacher.

    A model is a Keras model, a fitted scikit-learn classifier, any object with the method
    `predict`, or the path of a `.keras` file or a SavedModel, which is loaded each time it votes. A
    model takes raw inputs `[batch, *input_shape]`.

    - If the target is a class, the model returns labels `[batch]` or scores `[batch, num_classes]`.
      For two classes, it may return `[batch, 1]`: the probability of the second class, or its logit
      if the last layer of a Keras model has no activation.
    - If the target is a number, the model returns numbers `[batch]` or `[batch, 1]` in the unit of
      the target.
    - If the target is several labels, the model returns the probability of each label, `[batch,
      num_labels]`, or log odds if the last layer of a Keras model has no activation.

    A SavedModel is called through its signature `serving_default`. If this signature has several
    outputs, the output `label` is used.

    This class can't check that the models learned from disjoint records, so the privacy statement
    lists this as an assumption. The class refuses a model that is given twice, a Keras model with
    the same weights as another model, and a copied file.

    For files, `digest` covers their content. For models in memory, `digest` covers settings and
    weights, or attributes. If a model changes in a way that the digest does not cover, the teachers
    keep their privacy ledger, so both versions of the model share one budget.
    """

    def __init__(
        self,
        models: Sequence[Any] | pathlib.Path,
        *,
        unit: str = "record",
        source: PrivateSource | None = None,
        num_classes: int | None = None,
    ) -> None:
        """Takes one model for each teacher.

        Args:
            models: the models; or the path of a folder of models, which are used in the order of
                their names.
            unit: unit of privacy: "record" if each record was used for only one teacher, "owner"
                if all records of each owner were used for only one teacher.
            source: the named private data source that is charged for each release.
            num_classes: number of scores that a model returns for each input; None for the number
                of classes of the pool.

        Raises:
            ValueError: if there is no model, if a model has no method for predictions, or if two
                models are the same.
        """
        self._models = _in_folder(models) if isinstance(models, pathlib.Path) else list(models)
        if not self._models:
            raise ValueError("models must not be empty")
        first: dict[Any, int] = {}
        for place, model in enumerate(self._models):
            can_predict = hasattr(model, "predict") and not isinstance(model, type)
            if not can_predict and not isinstance(model, pathlib.Path):
                raise ValueError(
                    f"models must have a method predict, got {type(model).__name__} at {place}"
                )
            earlier = first.setdefault(_content(model), place)
            if earlier != place:
                is_file = isinstance(model, pathlib.Path)
                raise ValueError(
                    f"models: {self._models[earlier] if is_file else earlier} and "
                    f"{model if is_file else place} are the same and would have two votes. "
                    f"Give each teacher a different model."
                )
        self.sharding = Sharding(num_teachers=len(self._models), unit=unit)
        self.source = source
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
        bound.dataset = pool.dataset
        bound.num_classes = pool.dataset.num_classes
        return bound

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
        """Returns the votes of all teachers on some inputs. SENSITIVE.

        Models from files are loaded one at a time. NaN scores cause no error, because they may
        depend on private records; only the data holder gets a warning.

        Raises:
            ValueError: if a model can't be loaded, fails, or returns neither labels nor scores. The
                message of the model's own error is not shown, because it may quote private values.
        """
        dataset: Dataset | None = getattr(self, "dataset", None)  # set by `for_pool`
        labels: npt.NDArray[Any] = np.zeros((self.num_teachers, len(inputs)), np.int64)
        if dataset is not None and dataset.target != CLASS:
            labels = np.zeros((*labels.shape, *dataset.label_shape))
        for place, model in enumerate(self._models if len(inputs) else ()):
            name = str(model) if isinstance(model, pathlib.Path) else type(model).__name__
            loaded = load_model(model) if isinstance(model, pathlib.Path) else model
            wanted = f"a label or {self.num_classes or 'some'} scores for each input"
            if dataset is not None and dataset.target != CLASS:
                wanted = f"a prediction of target {dataset.target} for each input"
            try:
                labels[place] = _labels(loaded, inputs, self.num_classes, dataset)
            except WrongAnswerError as error:
                raise ValueError(
                    f"models: {name} at {place} returned {error}, not {wanted}"
                ) from None
            except Exception as error:  # a user's model may raise any exception
                raise ValueError(
                    f"models: {name} at {place} failed with {type(error).__name__}; it must take "
                    f"an array {list(inputs.shape)} and return {wanted}"
                ) from None
        progress(len(inputs))
        return Votes(labels, self.num_classes or int(labels.max(initial=0)) + 1, dataset)


def _in_folder(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the paths of the `.keras` files and SavedModels in a folder."""
    if not folder.is_dir():
        raise ValueError(f"models must be a folder of models; {folder} is not a folder")
    others = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in OTHER_FORMATS)
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix == ".keras" or (path / "saved_model.pb").exists()
    )
    if others or not paths:
        found = f"contains {others[0]}" if others else "contains no model"
        raise ValueError(f"models: {folder} {found}. Use model.save (.keras) or model.export.")
    return paths


def load_model(path: pathlib.Path) -> Any:
    """Loads a Keras model, or the function of a SavedModel that maps inputs to outputs.

    Raises:
        ValueError: if the file can't be read, or the model has a layer that Keras does not know.
    """
    try:
        if path.suffix == ".keras":
            return keras.saving.load_model(path, compile=False)
        loaded = tf.saved_model.load(str(path))
        ((name, spec),) = loaded.signatures["serving_default"].structured_input_signature[1].items()
    except Exception as error:  # Keras, TensorFlow and zipfile raise different exceptions
        layer = re.search(r"Could not locate \w+ '(\w+)'|deserialization of a `(\w+)`", str(error))
        if layer is None:
            raise ValueError(f"models: {path} is not a .keras file or a SavedModel") from None
        raise ValueError(
            f"models: {path} contains {layer[1] or layer[2]}, which is not registered with Keras. "
            f"Save the model by model.export(FOLDER); a SavedModel needs no registered layers."
        ) from None

    def answers(inputs: Any) -> Any:
        # The signature does not keep its SavedModel in memory, so this function holds a reference
        # to `loaded`.
        outputs = loaded.signatures["serving_default"](**{name: tf.cast(inputs, spec.dtype)})
        if "label" in outputs:
            return outputs["label"]
        return list(outputs.values()) if len(outputs) > 1 else next(iter(outputs.values()))

    return answers


def _content(model: Any) -> Any:
    """Returns a key; two models have equal keys only if one is the other or a copy of it."""
    if isinstance(model, keras.Model):
        weights = model.get_weights()
        return artifacts.digest_arrays(weights) if weights else id(model)
    if not isinstance(model, pathlib.Path):
        return id(model)  # small classifiers may be equal even if their records are disjoint
    if zipfile.is_zipfile(model):
        with zipfile.ZipFile(model) as archive:
            names = sorted({*archive.namelist()} - {"metadata.json"})  # contains the time of saving
            return tuple(hashlib.sha256(archive.read(name)).digest() for name in names)
    files = sorted(part for part in model.rglob("*") if part.is_file()) or [model]
    return tuple(hashlib.sha256(file.read_bytes()).digest() for file in files)


class WrongAnswerError(ValueError):
    """Raised if a model returns neither labels nor scores; the message contains no values."""


def _labels(
    model: Any, inputs: npt.NDArray[Any], num_classes: int | None, dataset: Dataset | None = None
) -> npt.NDArray[Any]:
    threshold = 0.5  # a single score above this threshold is a vote for the second of two classes
    if isinstance(model, keras.Model):
        answer = _in_batches(
            lambda batch: model(tf.cast(batch, tf.float32), training=False), inputs
        )
        if getattr(model.layers[-1], "activation", None) is keras.activations.linear:
            threshold = 0.0
    elif isinstance(model, estimators.BaseEstimator):
        answer = estimators.Estimator(model).predict(inputs, dataset)
    elif hasattr(model, "predict"):
        answer = np.asarray(model.predict(inputs))
    else:
        answer = _in_batches(model, inputs)
    if answer.dtype.kind == "f" and np.isnan(answer).any():
        warn_holder("some teachers return NaN scores, which are treated as the lowest score")
    if dataset is not None and dataset.target != CLASS:
        shape = (len(inputs), *dataset.label_shape)
        if answer.shape not in (shape, (*shape, 1)):
            raise WrongAnswerError(f"an array {list(answer.shape)} for {len(inputs)} inputs")
        is_log_odds = threshold == 0.0 and dataset.target == SEVERAL_LABELS
        return (scipy.special.expit(answer) if is_log_odds else answer).reshape(shape)
    if answer.shape == (len(inputs), 1) and num_classes in (None, 2):
        return answer[:, 0] > threshold
    is_scores = answer.ndim == 2 and len(answer) == len(inputs) and answer.shape[1] > 1
    if is_scores and num_classes in (None, answer.shape[1]):
        return np.where(np.isnan(answer), -np.inf, answer).argmax(axis=1)
    if answer.shape != (len(inputs),):
        raise WrongAnswerError(f"an array {list(answer.shape)} for {len(inputs)} inputs")
    try:
        return whole_numbers(answer, "labels", below=num_classes or 2**31)
    except ValueError:
        raise WrongAnswerError(f"{answer.dtype} numbers that are not class labels") from None


def _in_batches(answers: Callable[[Any], Any], inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    parts = []
    for start in range(0, len(inputs), BATCH):
        answer = answers(inputs[start : start + BATCH])
        if isinstance(answer, (list, tuple, dict)):
            raise WrongAnswerError(f"{len(answer)} outputs")
        parts.append(np.asarray(answer))
    return np.concatenate(parts)
