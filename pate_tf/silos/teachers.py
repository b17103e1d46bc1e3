"""What a silo shares: a teacher that gives each public query one label, or its feature sums.

TensorFlow and scikit-learn are imported only by teachers that need them.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.sensitive import SumsByClass
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.rollback_guard import SensitiveWarning
from pate_tf.silos.messages import QueryBatch

RECORD: Final = "record"
BATCH = 500  # queries that a Keras model answers together
FALLBACK: Final = 0  # the vote of a teacher that gives none


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloSums:
    """SENSITIVE: what a silo has in the place of a teacher with method feature_sums.

    Attributes:
        sums: of its records by class, exact.
        representation: digest of the public encoder that they were mapped by, `Encoder.digest`.
        unit: what adds vectors of an L2 norm of at most 1 together, "record" or "owner".
        source: that the records are of; None where it is not known.
        num_records: how many were summed; private where owners are protected.
    """

    sums: SumsByClass
    representation: str
    unit: str = RECORD
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)
    num_records: int | None = dataclasses.field(default=None, repr=False)


def as_sums(source: Any) -> SiloSums | None:
    """Returns `SiloSums` as they are, fitted `pate_tf.FeatureSums` as such; None for a teacher."""
    if isinstance(source, SiloSums):
        return source
    if type(source).__module__ != "pate_tf.release.feature_sums":
        return None
    sums = source.identified
    return SiloSums(
        sums=sums.sums,
        representation=sums.representation_digest,
        unit=sums.unit,
        source=sums.source,
        num_records=sums.num_records,
    )


class SiloTeacher:
    """SENSITIVE: a function, an object with `predict`, or a file, as a teacher that votes.

    Classifiers of scikit-learn get queries as rows of float32, Keras models as float32.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_classes: int | None,
        input_shape: tuple[int, ...] | None = None,
        input_type: str | None = None,
    ) -> None:
        """Takes a model, or loads one.

        Args:
            model: called with queries `[num_queries, *input_shape]`, itself or its `predict`; gives
                labels `[num_queries]` or scores `[num_queries, num_classes]`. Or a path: the folder
                of a SavedModel, as `pate_tf` exports students (signatures from raw inputs to
                `label`); a file `*.keras` of a Keras model from raw inputs, float32, to scores; or
                a file `*.skops` of a classifier of scikit-learn.
            num_classes: number of classes.
            input_shape: shape of one query; None for any.
            input_type: "uint8" or "float32"; None for either.

        Raises:
            ValueError: if there is no such teacher, or no number of classes.
            OSError: if it can't be read.
        """
        if num_classes is None:
            raise ValueError("num_classes: expected a number of classes, got none")
        self.num_classes, self.input_shape, self.input_type = num_classes, input_shape, input_type
        if isinstance(model, str | pathlib.Path):
            model = _loaded(pathlib.Path(model))
        predict = getattr(model, "predict", model)
        if isinstance(model, type) or not callable(predict):
            raise ValueError(
                f"teacher: expected a function or an object with predict(inputs), got "
                f"{type(model).__name__}"
            )
        bases = {f"{base.__module__}.{base.__name__}" for base in type(model).__mro__}
        if type(model).__module__.split(".")[0] == "sklearn":
            from pate_tf.models.classifier import Estimator

            predict = Estimator(model).predict
        elif "keras.src.models.model.Model" in bases:  # Keras is not imported

            def predict(queries: npt.NDArray[Any]) -> npt.NDArray[Any]:
                batches = np.array_split(
                    queries.astype(np.float32), range(BATCH, len(queries), BATCH)
                )
                return np.concatenate(
                    [np.asarray(model(batch, training=False)) for batch in batches]
                )

        self._predict: Callable[[Any], Any] = predict

    def takes(self, batch: QueryBatch) -> bool:
        """Whether a batch has the classes, shape and type that the teacher takes."""
        return (
            batch.num_classes == self.num_classes
            and self.input_shape in (None, batch.queries.shape[1:])
            and self.input_type in (None, str(batch.queries.dtype))
        )

    def votes(self, queries: npt.NDArray[Any]) -> IntArray:
        """Returns a vote int64 `[num_queries]` on each query, even where the model fails.

        Whether a model fails depends on its records, so a failure may not decide whether there is
        an answer: where the model gives no label of a class, its vote is `FALLBACK`. The silo's
        user is warned, without a word of what the model said, which may quote its records.
        """
        answers: npt.NDArray[Any]
        try:
            answers = np.asarray(self._predict(queries))
        except Exception:  # of a user's model
            answers = np.zeros(0)
        is_number = answers.dtype.kind in "iuf"
        if is_number and answers.shape == (len(queries), self.num_classes):
            answers = np.where(np.isfinite(answers).all(axis=1), answers.argmax(axis=1), -1)
        votes, is_label = np.full(len(queries), FALLBACK), np.zeros(len(queries), np.bool_)
        if is_number and answers.shape == (len(queries),):
            is_label = (answers >= 0) & (answers < self.num_classes)
            is_label &= answers == np.floor(answers)
            votes[is_label] = answers[is_label]
        if not is_label.all():
            warnings.warn(
                f"sensitive, for the data holder alone: teacher: expected a label 0 to "
                f"{self.num_classes - 1} of each query, got none of some; they count as votes for "
                f"class {FALLBACK}",
                SensitiveWarning,
                stacklevel=2,
            )
        return votes


def _loaded(path: pathlib.Path) -> Any:
    if path.is_dir():
        from pate_tf.serving.served import ServedStudent

        return ServedStudent(path).classify
    if path.suffix == ".skops":
        from pate_tf.models.classifier import from_arrays

        return from_arrays([np.frombuffer(path.read_bytes(), np.uint8)])
    if path.suffix == ".keras":
        from pate_tf.models.catalogue import load_keras_file

        return load_keras_file(path)
    raise ValueError(
        f"{path}: expected a SavedModel's folder, a .skops or a .keras file, got another"
    )
