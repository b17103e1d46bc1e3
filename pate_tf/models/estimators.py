"""Any classifier or regressor of scikit-learn, stored without pickle.

Forests become plain arrays (`forest.py`). Any other estimator becomes an archive of skops: names of
types, and their values. An archive is opened only if skops trusts every type that it names, or the
type is in `TRUSTED` or a class that one of `TRUSTED_MODULES` defines; so reading it imports and
calls nothing but NumPy, SciPy and scikit-learn. The values inside are not checked, and
scikit-learn's compiled code relies on them: write access to `sensitive/` suffices to make a run
crash.
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

from pate_tf.core.dataset import CLASS, SEVERAL_LABELS, Dataset
from pate_tf.data.named_function import Named
from pate_tf.models import forest
from pate_tf.models.forest import Forest

# Of scikit-learn, whose estimators hold instances of classes that skops does not trust by itself.
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
# Beyond classes of these: what estimators hold that treat columns of categories on their own.
TRUSTED = (
    "builtins.range",
    "functools.partial",
    "numpy.dtype",
    "sklearn.utils.validation.check_array",
)

MADE_UP = 10  # records of each class that a classifier is tried on


@dataclasses.dataclass(frozen=True)
class Estimator:
    """Sensitive if its records were: a fitted estimator of scikit-learn.

    Attributes:
        fitted: the estimator; it takes float32 `[num_inputs, num_features]`.
    """

    fitted: Any = dataclasses.field(repr=False)

    def predict(self, inputs: npt.NDArray[Any], dataset: Dataset | None = None) -> npt.NDArray[Any]:
        """Returns labels int64 `[num_inputs]` of inputs `[num_inputs, ...]`.

        Of a data set of numbers it returns these, float64; of several labels `[num_inputs,
        num_labels]`, from 0 to 1. None as a data set stands for classes.

        Whether an estimator fails on an input can follow from the records that it was fitted to. So
        it does not raise then: the label of that input is 0.

        Raises:
            ValueError: if the inputs are not finite, have another number of features, or answers
                are something else, such as names that it was fitted to.
        """
        are_classes = dataset is None or dataset.target == CLASS
        several = () if dataset is None else dataset.label_shape
        rows = forest.flat_rows(inputs)
        if not len(rows):
            return np.zeros((0, *several), np.int64)
        expected = getattr(self.fitted, "n_features_in_", rows.shape[1])
        if rows.shape[1] != expected:
            raise ValueError(f"inputs: expected {expected} features, got {rows.shape[1]}")
        labels = self._answers(rows)
        if labels is None:
            each = (self._answers(row[np.newaxis]) for row in rows)
            none = np.zeros((1, *several), np.int64)
            labels = np.concatenate([none if label is None else label for label in each])
        kinds = "iu" if are_classes else "iuf"
        if labels.shape != (len(rows), *several) or labels.dtype.kind not in kinds:
            raise ValueError(
                f"{type(self.fitted).__name__}: expected a label of every input, got something else"
            )
        return labels.astype(np.int64 if are_classes else np.float64)

    def _answers(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any] | None:
        """Returns what it says of rows; None if it fails."""
        try:
            return np.asarray(self.fitted.predict(rows))
        except NotFittedError:
            raise ValueError(
                f"{type(self.fitted).__name__}: expected a fitted classifier, got one that is not"
            ) from None
        except Exception:  # of any kind
            return None


def is_storable(built: Any) -> bool:
    """Whether something is a classifier or regressor of scikit-learn.

    Raises:
        ValueError: if it can't be stored.
    """
    kinds = (sklearn.base.is_classifier, sklearn.base.is_regressor)
    if not (isinstance(built, BaseEstimator) and any(is_kind(built) for is_kind in kinds)):
        return False
    _dump(built)
    return True


def fit(
    model: Named, dataset: Dataset, inputs: npt.NDArray[Any], labels: npt.NDArray[Any], seed: int
) -> list[npt.NDArray[Any]]:
    """Fits an estimator of scikit-learn, in one thread, so that cores do not matter.

    Records that all have one label make a classifier that always answers it, and no records one
    that always answers the first class. A classifier that fails on these records gives way to one
    that always answers their commonest label: who sees a run stop would learn something of them.
    What fails on numbers or several labels gives way to their mean, and no records count as one
    record of zeros. `check_learns` tells beforehand of one that can't learn at all.

    Args:
        model: as of `forest.fit`, also of a classifier that is no forest.
        dataset: the data the classifier is for.
        inputs: `[num_records, *input_shape]`, raw.
        labels: as of `checked_labels`; classes may be missing among them, or all records.
        seed: fixes every `random_state` among its parameters.

    Returns:
        Arrays that `from_arrays` takes.

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
    except Exception:  # of any kind
        constant = DummyRegressor()
        if dataset.target == CLASS:
            constant = DummyClassifier(strategy="most_frequent")
        return [_dump(constant.fit(rows, labels))]


def check_learns(model: Named, dataset: Dataset) -> None:
    """Raises ValueError unless an estimator learns from made-up records and can be stored."""
    random = np.random.default_rng(0)
    labels: npt.NDArray[Any] = np.arange(MADE_UP * dataset.num_classes) % dataset.num_classes
    if dataset.target == SEVERAL_LABELS:
        labels = random.permuted(np.eye(dataset.num_classes, dtype=np.int64)[labels], axis=0)
    elif dataset.target_range is not None:
        labels = random.uniform(*dataset.target_range, len(labels))
    low, high = (np.asarray(side, np.float64) for side in dataset.value_range)
    inputs = random.uniform(low, high, (len(labels), *dataset.input_shape))
    # Columns that may be codes get whole numbers, which encoders of categories need.
    is_whole = (low == np.floor(low)) & (high == np.floor(high)) & (high - low > 1)
    inputs = np.where(is_whole, np.round(inputs), inputs)
    try:
        rows = forest.flat_rows(inputs)
        from_arrays(_fitted(model, dataset, rows, labels, 0)).predict(rows, dataset)
    except Exception as error:  # of any kind
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"model: expected an estimator that learns from {MADE_UP} made-up records of each "
            f"class of {dataset.name}, got {type(error).__name__}: {reason}"
        ) from None


def _fitted(
    model: Named, dataset: Dataset, rows: npt.NDArray[np.float32], labels: Any, seed: int
) -> list[npt.NDArray[Any]]:
    with warnings.catch_warnings(), threadpoolctl.threadpool_limits(1):
        warnings.simplefilter("ignore")  # they may quote records
        if forest.is_forest(model, dataset):
            return forest.fit(model, dataset, rows, labels, seed).arrays()
        # A copy: what is fitted may not go on from what another teacher left.
        estimator = sklearn.base.clone(forest.unfitted(model, dataset))
        # Many classifiers refuse to learn from one class.
        if dataset.target == CLASS and len(np.unique(labels)) == 1:
            estimator = DummyClassifier(strategy="most_frequent")
        states = {
            name: seed
            for name in estimator.get_params()
            if name.rpartition("__")[2] == "random_state"
        }
        return [_dump(estimator.set_params(**states).fit(rows, labels))]


def from_arrays(arrays: Sequence[npt.NDArray[Any]]) -> Estimator | Forest:
    """Rebuilds a classifier from what `fit` returned; ValueError if it is none that is trusted."""
    if len(arrays) != 1:
        return Forest.from_arrays(arrays)
    import skops.io

    archive = arrays[0].tobytes()
    try:
        fitted = skops.io.loads(archive, trusted=_untrusted(archive))
    except Exception as error:  # zipfile, json, NumPy and scikit-learn each raise their own kinds
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"classifier: expected an archive of skops, got {reason}") from None
    if not isinstance(fitted, BaseEstimator):
        raise ValueError(f"classifier: expected an estimator, got {type(fitted).__name__}")
    return Estimator(fitted)


def _dump(estimator: Any) -> npt.NDArray[np.uint8]:
    """Returns the archive of an estimator as bytes `[num_bytes]`, equal for equal estimators.

    It is compressed, and without what differs between equal estimators: the time, and the addresses
    that skops uses as names: of objects, which serve to find one again that stands in two places
    (it then is loaded twice), and of files, which get numbers.
    """
    import skops.io  # takes a second, which forests need not

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
    except Exception as error:  # of any kind, from a value that is asked for its state
        raise ValueError(
            f"model: expected a classifier that skops can keep, got {type(estimator).__name__} "
            f"and {type(error).__name__}"
        ) from None
    _untrusted(written.getvalue())
    return np.frombuffer(written.getvalue(), np.uint8)


def _untrusted(archive: bytes) -> list[str]:
    """Returns the types beyond skops' own trust that an archive names, all of `TRUSTED_MODULES`."""
    import skops.io

    names = skops.io.get_untrusted_types(data=archive)
    strange = []
    for name in names:
        module, _, kind = name.rpartition(".")
        defined = None
        if module in TRUSTED_MODULES:
            defined = getattr(importlib.import_module(module), kind, None)
        # Defined there: a module's imports are its attributes too.
        is_of_module = isinstance(defined, type) and defined.__module__ == module
        if not is_of_module and (module in TRUSTED_MODULES or name not in TRUSTED):
            strange.append(name)
    if strange:
        raise ValueError(
            f"classifier: expected types of scikit-learn alone, got {', '.join(strange)}; other "
            f"teachers can vote through a file of labels"
        )
    return list(names)
