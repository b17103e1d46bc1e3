"""What a silo shares: a teacher that gives each public query one label, or its feature sums.

`simulated_total` adds up the sums of many silos in one process, to plan with.

TensorFlow and scikit-learn are imported only by teachers that need them.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core import validation
from pate_tf.core.sensitive import FeatureSums
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray
from pate_tf.ledger.rollback_guard import warn
from pate_tf.silos.messages import QueryBatch

RECORD: Final = "record"
BATCH = 500  # queries that a Keras model answers together
FALLBACK: Final = 0  # the vote of a teacher that gives none


class SiloTeacher(Protocol):
    """Sensitive: a trained teacher.

    Attributes:
        num_classes: number of classes.
        input_shape: shape of one query; None for any.
        input_type: "uint8" or "float32"; None for either.
    """

    num_classes: int
    input_shape: tuple[int, ...] | None
    input_type: str | None

    def votes(self, queries: npt.NDArray[Any]) -> IntArray:
        """Returns the label int64 `[num_queries]` of each query `[num_queries, *input_shape]`.

        What is no label, and an error, count as a vote for `FALLBACK`; see `votes_of`.
        """


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

    sums: FeatureSums
    representation: str
    unit: str = RECORD
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)
    num_records: int | None = dataclasses.field(default=None, repr=False)


def as_sums(given: Any) -> SiloSums | None:
    """Returns `SiloSums` as they are, fitted `pate_tf.FeatureSums` as such; None for a teacher."""
    if isinstance(given, SiloSums):
        return given
    if type(given).__module__ != "pate_tf.api.feature_sums":
        return None
    stored = getattr(given, "stored", given)
    return SiloSums(
        sums=stored.sums,
        representation=stored.representation_digest,
        unit=stored.unit,
        source=stored.source,
        num_records=stored.num_records,
    )


def votes_of(teacher: SiloTeacher, queries: npt.NDArray[Any]) -> IntArray:
    """Returns a vote int64 `[num_queries]` on each query, even where the teacher fails.

    Whether a teacher fails depends on its records, so a failure may not decide whether there is an
    answer: where the teacher gives no label of a class, its vote is `FALLBACK`. The silo's user is
    warned, without a word of what the teacher said, which may quote its records.
    """
    given: npt.NDArray[Any]
    try:
        given = np.asarray(teacher.votes(queries))
    except Exception:  # of a user's model
        given = np.zeros(0)
    votes, is_label = np.full(len(queries), FALLBACK), np.zeros(len(queries), np.bool_)
    if given.shape == (len(queries),) and given.dtype.kind in "iuf":
        is_label = (given >= 0) & (given < teacher.num_classes) & (given == np.floor(given))
        votes[is_label] = given[is_label]
    if not is_label.all():
        warn(
            f"teacher: expected a label 0 to {teacher.num_classes - 1} of each query, got none of "
            f"some; they count as votes for class {FALLBACK}"
        )
    return votes


def is_fitting(teacher: SiloTeacher, batch: QueryBatch) -> bool:
    """Whether a batch has the classes, shape and type that a teacher takes."""
    return (
        batch.num_classes == teacher.num_classes
        and teacher.input_shape in (None, batch.queries.shape[1:])
        and teacher.input_type in (None, str(batch.queries.dtype))
    )


class OwnTeacher:
    """Sensitive: a function, or an object with `predict`, as a teacher.

    Classifiers of scikit-learn get queries as rows of float32, Keras models as float32.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_classes: int,
        input_shape: tuple[int, ...] | None = None,
        input_type: str | None = None,
    ) -> None:
        """Takes a model.

        Args:
            model: called with queries `[num_queries, *input_shape]`, itself or its `predict`; gives
                labels `[num_queries]` or scores `[num_queries, num_classes]`.
            num_classes: number of classes.
            input_shape: shape of one query; None for any.
            input_type: "uint8" or "float32"; None for either.

        Raises ValueError if it can't be called.
        """
        self.num_classes, self.input_shape, self.input_type = num_classes, input_shape, input_type
        predict = getattr(model, "predict", model)
        if isinstance(model, type) or not callable(predict):
            raise ValueError(
                f"teacher: expected a function or an object with predict(inputs), got "
                f"{type(model).__name__}"
            )
        if type(model).__module__.split(".")[0] == "sklearn":
            from pate_tf.models.classifier import Estimator

            predict = Estimator(model).predict
        elif _is_of_keras(model):
            predict = _called_in_batches(model)
        self._predict: Callable[[Any], Any] = predict

    def __repr__(self) -> str:
        return f"OwnTeacher(<{self.num_classes} classes>)"

    def votes(self, queries: npt.NDArray[Any]) -> IntArray:
        """Returns what the model says of each query, scores as labels; see `SiloTeacher`."""
        answer = np.asarray(self._predict(queries))
        if answer.shape == (len(queries), self.num_classes) and answer.dtype.kind in "iuf":
            answer = np.where(np.isfinite(answer).all(axis=1), answer.argmax(axis=1), -1)
        return answer


def _is_of_keras(model: Any) -> bool:
    """Whether something is a Keras model; Keras is not imported."""
    bases = {f"{base.__module__}.{base.__name__}" for base in type(model).__mro__}
    return "keras.src.models.model.Model" in bases


def _called_in_batches(model: Any) -> Callable[[Any], Any]:
    def predict(queries: npt.NDArray[Any]) -> npt.NDArray[Any]:
        parts = [
            np.asarray(model(queries[start : start + BATCH].astype(np.float32), training=False))
            for start in range(0, len(queries), BATCH)
        ]
        return np.concatenate(parts)

    return predict


def load_teacher(path: str | pathlib.Path, **facts: Any) -> OwnTeacher:
    """Returns a teacher from disk.

    Args:
        path: a SavedModel's folder, as `pate_tf` exports students (signatures from raw inputs to
            `label`); a file `*.keras` of a Keras model from raw inputs, float32, to scores; or a
            file `*.skops` of a classifier of scikit-learn.
        **facts: as of `OwnTeacher`.

    Raises:
        ValueError: if there is no such teacher there.
        OSError: if it can't be read.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        from pate_tf.serving.served import ServedStudent

        model: Any = ServedStudent(path).classify
    elif path.suffix == ".skops":
        from pate_tf.models.classifier import from_arrays

        model = from_arrays([np.frombuffer(path.read_bytes(), np.uint8)])
    elif path.suffix == ".keras":
        from pate_tf.models.catalogue import load_keras_file

        model = load_keras_file(path)
    else:
        raise ValueError(
            f"{path}: expected a SavedModel's folder, a .skops or a .keras file, got another"
        )
    return OwnTeacher(model, **facts)


def as_teacher(
    teacher: Any,
    *,
    num_classes: int | None,
    input_shape: tuple[int, ...] | None = None,
    input_type: str | None = None,
) -> SiloTeacher:
    """Returns a `SiloTeacher` as it is, a path by `load_teacher`, a model as an `OwnTeacher`.

    What else is given is as of `OwnTeacher`; None for the number of classes where a teacher knows.

    Raises ValueError if it is none, or the number of classes is not known.
    """
    if hasattr(teacher, "votes") and hasattr(teacher, "input_shape"):
        given: SiloTeacher = teacher
        return given
    if num_classes is None:
        raise ValueError("num_classes: expected a number of classes, got none")
    make = load_teacher if isinstance(teacher, str | pathlib.Path) else OwnTeacher
    return make(teacher, num_classes=num_classes, input_shape=input_shape, input_type=input_type)


# Thousands of silos in one process, to plan with, without any cryptography.


def simulated_total(
    vectors: npt.NDArray[np.float64],
    labels: IntArray,
    silos: npt.NDArray[np.generic],
    release: SecureFeatureSums,
    *,
    num_classes: int,
    noise: NoiseSource,
    unit: str = "record",
    without: Collection[object] = (),
) -> IntArray | None:
    """Returns the total that silos would open, int64 `[num_features + 1, num_classes]`.

    The same whole numbers as over the network: each silo's sums, each with its own share of the
    noise. The caller sees all records, so that nothing is private: it is for planning, on
    public or made-up records.

    >>> import numpy as np
    >>> from pate_tf.accounting.local import SecureFeatureSums
    >>> from pate_tf.aggregation.noise import SeededNoise
    >>> release = SecureFeatureSums.for_epsilon(1.0, delta=1e-6, num_features=1,
    ...     least_silos=800, colluding=100, num_parties=4, threshold=1)
    >>> total = simulated_total(np.full((1_000, 2), 0.5), np.arange(1_000) % 2, np.arange(1_000),
    ...     release, num_classes=2, noise=SeededNoise(0))
    >>> bool((abs(total / 2**20 - 250) < 60).all())
    True

    Args:
        vectors: of all records, `[num_records, num_features + 1]`, each of an L2 norm of at most 1.
        labels: `[num_records]`.
        silos: whose each record is, `[num_records]`.
        release: what each silo is charged.
        num_classes: number of classes.
        noise: `SeededNoise` is faster than the operating system's.
        unit: "record"; or "owner" where every silo is one person, whose vectors have an L2 norm of
            at most 1 together.
        without: silos that drop out.

    Returns:
        In steps of 1 / LATTICE; None where fewer silos than `release.least_silos` are left.

    Raises:
        ValueError: if lengths or the unit don't fit.
    """
    from pate_tf.aggregation.feature_sums import sums_by_class  # imports scipy; a silo doesn't

    validation.one_of(("record", "owner"), unit=unit)
    if not len(vectors) == len(labels) == len(silos):
        raise ValueError("silos: expected a vector, a label and a silo of each record")
    if vectors.shape[1] != release.num_features + 1:
        raise ValueError(
            f"vectors: expected {release.num_features + 1} numbers, got {vectors.shape[1]}"
        )
    is_there = (
        ~np.isin(silos, np.array(list(without))) if without else np.ones(len(silos), np.bool_)
    )
    num_silos = len(np.unique(silos[is_there]))
    if num_silos < release.least_silos:
        return None
    # Truncated record by record or owner by owner, so that silos' sums add up to that of all.
    total = sums_by_class(
        vectors[is_there],
        labels[is_there],
        num_classes=num_classes,
        owners=silos[is_there] if unit == "owner" else None,
    )
    for _ in range(num_silos):
        total += noise.gaussian_integers(release.share_scale, total.size).reshape(total.shape)
    return total
