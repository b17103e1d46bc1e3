"""Fits scikit-learn classifiers and regressors, and stores them without pickle.

Forests are stored as plain arrays (`forest.py`). Any other estimator is stored as a skops archive,
which contains the types and values of objects. An archive is opened only if each type is trusted by
skops, is in `TRUSTED`, or is a class that is defined in one of `TRUSTED_MODULES`. Therefore,
reading an archive imports and calls only NumPy, SciPy and scikit-learn. The values in the archive
are not checked, although scikit-learn's compiled code relies on them. Therefore, anyone with write
access to `sensitive/` can make a run crash.
"""

import dataclasses
import importlib
import io
import json
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.base
import threadpoolctl
from sklearn.base import BaseEstimator as BaseEstimator
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import NotFittedError

from pate_tf.core import checks
from pate_tf.core.dataset import CLASS, SEVERAL_LABELS, Dataset
from pate_tf.data.named_function import Named
from pate_tf.models import forest
from pate_tf.models.forest import Forest

# Scikit-learn modules whose classes are needed to load estimators. Skops does not trust them.
TRUSTED_MODULES = (
    "sklearn.calibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor",
    "sklearn.gaussian_process._gpc",
    "sklearn.gaussian_process.kernels",
    "sklearn.metrics._dist_metrics",
    "sklearn.metrics._scorer",
    "sklearn.model_selection._split",
    "sklearn.multiclass",
    "sklearn.neighbors._ball_tree",
    "sklearn.neighbors._kd_tree",
    "sklearn.neural_network._stochastic_optimizers",
    "sklearn.tree._tree",
    "sklearn.utils._bunch",
)
# Further trusted types. Estimators that encode columns of categories contain them.
TRUSTED = (
    "builtins.range",
    "functools.partial",
    "numpy.dtype",
    "sklearn.utils.validation.check_array",
)

NUM_TRIAL_RECORDS = 10  # artificial records per class, to test whether an estimator can learn


@dataclasses.dataclass(frozen=True)
class Estimator:
    """A fitted scikit-learn estimator. It is sensitive if its training records are sensitive.

    Attributes:
        fitted: estimator that takes inputs float32 `[num_inputs, num_features]`.
    """

    fitted: Any = dataclasses.field(repr=False)

    def predict(self, inputs: npt.NDArray[Any], dataset: Dataset | None = None) -> npt.NDArray[Any]:
        """Predicts labels, int64 `[num_inputs]`, for inputs `[num_inputs, ...]`.

        If the target of the data set is a number, the labels are float64 `[num_inputs]`. For a
        target of several labels, the result is float64 `[num_inputs, num_labels]`, from 0 to 1. If
        `dataset` is None, labels are classes.

        Whether an estimator fails for an input can depend on its training records. Therefore, a
        failure raises no error; the input gets the label 0 instead.

        Raises:
            ValueError: if the inputs are not finite or have a wrong number of features, or if the
                estimator does not predict numbers; for example, if it predicts names of classes.
        """
        are_classes = dataset is None or dataset.target == CLASS
        several = () if dataset is None else dataset.label_shape
        rows = forest.flat_rows(inputs)
        if not len(rows):
            return np.zeros((0, *several), np.int64)
        expected = getattr(self.fitted, "n_features_in_", rows.shape[1])
        checks.shape(["num_inputs", expected], inputs=rows)
        labels = self._answers(rows)
        if labels is None:
            each = (self._answers(row[np.newaxis]) for row in rows)
            none = np.zeros((1, *several), np.int64)
            labels = np.concatenate([none if label is None else label for label in each])
        kinds = "iu" if are_classes else "iuf"
        if labels.shape != (len(rows), *several) or labels.dtype.kind not in kinds:
            raise ValueError(f"{type(self.fitted).__name__} must predict one label for every input")
        return labels.astype(np.int64 if are_classes else np.float64)

    def _answers(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any] | None:
        """Returns the predictions for rows; None if the estimator fails."""
        try:
            return np.asarray(self.fitted.predict(rows))
        except NotFittedError:
            raise ValueError(f"{type(self.fitted).__name__} is not fitted") from None
        except Exception:  # an estimator may raise any exception
            return None


def is_storable(built: Any) -> bool:
    """Whether an object is a scikit-learn classifier or regressor.

    Raises:
        ValueError: if the object is such an estimator, but can't be stored.
    """
    kinds = (sklearn.base.is_classifier, sklearn.base.is_regressor)
    if not (isinstance(built, BaseEstimator) and any(is_kind(built) for is_kind in kinds)):
        return False
    _dump(built)
    return True


def fit(
    model: Named, dataset: Dataset, inputs: npt.NDArray[Any], labels: npt.NDArray[Any], seed: int
) -> list[npt.NDArray[Any]]:
    """Fits a scikit-learn estimator in one thread, so that the result is reproducible.

    If all records have the same label, the classifier always predicts this label. Without records,
    it always predicts the first class. If the estimator fails on the records, no error is raised,
    because the error would reveal something about the records. Instead, the estimator is replaced
    by a constant prediction: the most frequent class, or the mean if the target is a number or
    several labels. Call `check_learns` first to find estimators that can't learn at all.

    Args:
        model: name of an estimator, or a function that returns an unfitted estimator, as in
            `forest.fit`. Every classifier or regressor is allowed.
        dataset: data set of the inputs.
        inputs: raw inputs `[num_records, *input_shape]`.
        labels: labels in the format of `checked_labels`. Some classes may have no records, and
            there may be no records at all.
        seed: value for every parameter `random_state` of the estimator.

    Returns:
        Arrays, from which `from_arrays` rebuilds the fitted estimator.

    Raises:
        ValueError: if the inputs are not finite.
    """
    if not len(labels):
        inputs = np.zeros((1, *dataset.input_shape))
        labels = np.zeros((1, *labels.shape[1:]), labels.dtype)
    rows = forest.flat_rows(inputs)
    try:
        return _fitted(model, dataset, rows, labels, seed)
    except MemoryError:
        raise
    except Exception:  # an estimator may raise any exception
        constant = DummyRegressor()
        if dataset.target == CLASS:
            constant = DummyClassifier(strategy="most_frequent")
        return [_dump(constant.fit(rows, labels))]


def check_learns(model: Named, dataset: Dataset) -> None:
    """Raises ValueError unless an estimator can learn from artificial records and can be stored."""
    random = np.random.default_rng(0)
    labels: npt.NDArray[Any] = (
        np.arange(NUM_TRIAL_RECORDS * dataset.num_classes) % dataset.num_classes
    )
    if dataset.target == SEVERAL_LABELS:
        labels = random.permuted(np.eye(dataset.num_classes, dtype=np.int64)[labels], axis=0)
    elif dataset.target_range is not None:
        labels = random.uniform(*dataset.target_range, len(labels))
    low, high = (np.asarray(side, np.float64) for side in dataset.value_range)
    inputs = random.uniform(low, high, (len(labels), *dataset.input_shape))
    # In the artificial records, columns that may contain category codes get integers, because
    # category encoders need integers.
    is_whole = (low == np.floor(low)) & (high == np.floor(high)) & (high - low > 1)
    inputs = np.where(is_whole, np.round(inputs), inputs)
    try:
        rows = forest.flat_rows(inputs)
        from_arrays(_fitted(model, dataset, rows, labels, 0)).predict(rows, dataset)
    except Exception as error:  # an estimator may raise any exception
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"model: the estimator can't learn from {NUM_TRIAL_RECORDS} artificial records of each "
            f"class of {dataset.name}. It raised {type(error).__name__}: {reason}"
        ) from None


def _fitted(
    model: Named, dataset: Dataset, rows: npt.NDArray[np.float32], labels: Any, seed: int
) -> list[npt.NDArray[Any]]:
    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
        warnings.simplefilter("ignore")  # warnings may contain private values
        if forest.is_forest(model, dataset):
            return forest.fit(model, dataset, rows, labels, seed).arrays()
        # The estimator is copied, so that each teacher starts from the same state.
        estimator = sklearn.base.clone(forest.unfitted(model, dataset))
        # Many classifiers raise an error if all records have the same class, so such records get a
        # constant classifier.
        if dataset.target == CLASS and len(np.unique(labels)) == 1:
            estimator = DummyClassifier(strategy="most_frequent")
        states = {
            name: seed
            for name in estimator.get_params()
            if name.rpartition("__")[2] == "random_state"
        }
        return [_dump(estimator.set_params(**states).fit(rows, labels))]


def from_arrays(arrays: Sequence[npt.NDArray[Any]]) -> Estimator | Forest:
    """Rebuilds an estimator from the result of `fit`; raises ValueError for untrusted types."""
    if len(arrays) != 1:
        return Forest.from_arrays(arrays)
    import skops.io

    archive = arrays[0].tobytes()
    try:
        fitted = skops.io.loads(archive, trusted=_untrusted(archive))
    except Exception as error:  # zipfile, json, NumPy and scikit-learn raise different exceptions
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"classifier can't be loaded: {reason}") from None
    if not isinstance(fitted, BaseEstimator):
        raise ValueError(f"classifier must be an estimator, got {type(fitted).__name__}")
    return Estimator(fitted)


def _dump(estimator: Any) -> npt.NDArray[np.uint8]:
    """Returns the compressed archive of an estimator, uint8 `[num_bytes]`.

    Equal estimators have identical archives: the archive contains no time, and the memory addresses
    that skops uses as names are removed. Files are numbered instead, and objects have no names. As
    a consequence, an object that is referenced twice is loaded as two objects.
    """
    import skops.io  # slow to import; not needed for forests

    files: dict[str, str] = {}

    def without_addresses(node: dict[str, Any]) -> dict[str, Any]:
        if isinstance(node.get("__id__"), int):
            del node["__id__"]
        if isinstance(node.get("file"), str):
            suffix = node["file"].rpartition(".")[2]
            node["file"] = files.setdefault(node["file"], f"{len(files)}.{suffix}")
        return node

    written = io.BytesIO()
    try:
        archive = io.BytesIO(skops.io.dumps(estimator))
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile(written, "w") as new:
            schema = json.loads(old.read("schema.json"), object_hook=without_addresses)
            contents = {number: old.read(name) for name, number in files.items()}
            contents["schema.json"] = json.dumps(schema).encode()
            for name, content in contents.items():
                new.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    except Exception as error:  # reading an object's state may raise any exception
        raise ValueError(
            f"model: skops can't store {type(estimator).__name__}: it raised {type(error).__name__}"
        ) from None
    _untrusted(written.getvalue())
    return np.frombuffer(written.getvalue(), np.uint8)


def _untrusted(archive: bytes) -> list[str]:
    """Returns the types in an archive that this module trusts but skops does not.

    Raises:
        ValueError: if the archive contains a type that neither skops nor this module trusts.
    """
    import skops.io

    names = skops.io.get_untrusted_types(data=archive)
    strange = []
    for name in names:
        module, _, kind = name.rpartition(".")
        defined = None
        if module in TRUSTED_MODULES:
            defined = getattr(importlib.import_module(module), kind, None)
        # A module also has imported names as attributes, so this checks that the class is defined
        # in the module.
        is_of_module = isinstance(defined, type) and defined.__module__ == module
        if not is_of_module and (module in TRUSTED_MODULES or name not in TRUSTED):
            strange.append(name)
    if strange:
        raise ValueError(
            f"the estimator contains types outside scikit-learn: {', '.join(strange)}. Pass the "
            "votes of such teachers as a file of labels."
        )
    return list(names)
