"""The values that move through the house, with their shapes checked at the door.

Sensitive and public values are different types. `PrivateExamples`, `Votes` and `VoteCounts` are
sensitive: their `repr` shows shapes only, and no function on the public side takes them.
`PublicExamples` and `ReleasedLabels` are all that a student ever sees.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

INPUT_KINDS = ("image", "tabular")
AUGMENTATIONS = ("none", "affine", "flip")


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a read-only view, so that a value can't change after it was checked."""
    view = array.view()
    view.flags.writeable = False
    return view


def whole_numbers(values: npt.ArrayLike, what: str) -> IntArray:
    """Returns `values` as a new int64 array.

    Raises:
      ValueError: if they are not finite whole numbers. The message begins with `what` and never
        carries a value.
    """
    array = np.asarray(values)
    if array.dtype == np.bool_ or array.dtype.kind not in "iuf":
        raise ValueError(f"{what}: expected whole numbers, got an array of type {array.dtype}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(f"{what}: expected whole numbers, got NaN or infinite entries")
        if (array != np.floor(array)).any():
            raise ValueError(f"{what}: expected whole numbers, got fractions")
        if array.size and np.abs(array).max() >= 2.0**53:
            raise ValueError(f"{what}: expected numbers below 2**53, got larger ones")
    elif array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what}: expected numbers below 2**63, got larger ones")
    return array.astype(np.int64)


def _labels(values: npt.ArrayLike, num_classes: int, what: str) -> IntArray:
    array = whole_numbers(values, what)
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        raise ValueError(f"{what}: expected labels from 0 to {num_classes - 1}, got others")
    return array


def _check_num_classes(num_classes: int) -> None:
    if num_classes < 1:
        raise ValueError(f"num_classes: expected at least 1, got {num_classes}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is publicly known of a data set; nothing else knows a shape or a number of classes.

    Attributes:
      name: the name in the catalogue.
      kind: "image" or "tabular".
      input_shape: shape of one input, e.g. `(28, 28, 1)`.
      value_range: lowest and highest value that an input can hold, from public metadata, never
        measured on private records; for tabular data also a tuple of lows and one of highs, one a
        feature. Keras models scale it to [0, 1]; forests take raw values.
      num_classes: number of classes.
      class_names: a name for each class, or empty.
      augmentation: what leaves a label unchanged: "none", "affine" (small shifts and rotations)
        or "flip" (shifts and horizontal mirroring).
      pool_size: how many public samples form the student's pool unless the user says otherwise.
    """

    name: str
    kind: str
    input_shape: tuple[int, ...]
    value_range: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]]
    num_classes: int
    class_names: tuple[str, ...] = ()
    augmentation: str = "none"
    pool_size: int

    def __post_init__(self) -> None:
        _check_num_classes(self.num_classes)
        if self.kind not in INPUT_KINDS:
            raise ValueError(f"kind: expected one of {INPUT_KINDS}, got {self.kind!r}")
        if self.augmentation not in AUGMENTATIONS:
            raise ValueError(
                f"augmentation: expected one of {AUGMENTATIONS}, got {self.augmentation!r}"
            )
        if self.kind != "image" and self.augmentation != "none":
            raise ValueError(f"augmentation: expected 'none' for {self.kind} data")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"class_names: expected {self.num_classes} names, got {len(self.class_names)}"
            )
        if self.pool_size < 1:
            raise ValueError(f"pool_size: expected at least 1, got {self.pool_size}")
        low, high = (np.asarray(values, np.float64) for values in self.value_range)
        if low.shape != high.shape or low.shape not in ((), self.input_shape):
            raise ValueError(
                f"value_range: expected two numbers, or two of shape {list(self.input_shape)}, "
                f"got shapes {list(low.shape)} and {list(high.shape)}"
            )
        if not (low < high).all():
            raise ValueError(f"value_range: expected low < high, got {self.value_range}")

    @property
    def input_name(self) -> str:
        """What a served model calls its input: "image" or "features"."""
        return "image" if self.kind == "image" else "features"

    @property
    def input_type(self) -> str:
        """The type of raw inputs: "uint8" for images, "float32" for tabular features."""
        return "uint8" if self.kind == "image" else "float32"

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values; `from_dict` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Dataset":
        """Rebuilds a `Dataset` from `to_dict()`, also after a trip through JSON."""
        tuples = {name: tuple(fields[name]) for name in ("input_shape", "class_names")}
        tuples["value_range"] = tuple(
            tuple(values) if isinstance(values, list | tuple) else values
            for values in fields["value_range"]
        )
        return cls(**{**fields, **tuples})


def _check_inputs(inputs: npt.NDArray[Any], dataset: Dataset) -> None:
    if inputs.shape[1:] != dataset.input_shape:
        raise ValueError(
            f"inputs of {dataset.name}: expected [num_examples, "
            f"{', '.join(map(str, dataset.input_shape))}], got {list(inputs.shape)}"
        )


@dataclasses.dataclass(frozen=True)
class _Examples:
    dataset: Dataset
    inputs: npt.NDArray[Any] = dataclasses.field(repr=False)
    labels: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, self.dataset)
        labels = _labels(self.labels, self.dataset.num_classes, f"labels of {self.dataset.name}")
        if labels.shape != (len(self.inputs),):
            raise ValueError(
                f"labels of {self.dataset.name}: expected [{len(self.inputs)}], "
                f"got {list(labels.shape)}"
            )
        object.__setattr__(self, "inputs", _frozen(self.inputs))
        object.__setattr__(self, "labels", _frozen(labels))

    def __len__(self) -> int:
        return len(self.labels)


class PrivateExamples(_Examples):
    """Sensitive: the labelled records that the teachers share out among themselves.

    Attributes:
      dataset: what is publicly known of them.
      inputs: `[num_records, *input_shape]`.
      labels: int64 `[num_records]`.
    """


class PublicExamples(_Examples):
    """Public inputs: the student's pool and the held-out part that evaluates it.

    The labels serve evaluation alone.

    Attributes:
      dataset: what is publicly known of them.
      inputs: `[num_examples, *input_shape]`.
      labels: int64 `[num_examples]`.
    """

    def split(self, share: int) -> tuple["PublicExamples", "PublicExamples"]:
        """Returns the student's side (the first `share` samples) and the held-out rest.

        Raises:
          ValueError: if either part would be empty.
        """
        if not 0 < share < len(self):
            raise ValueError(
                f"stdnt_share: expected between 1 and {len(self) - 1} of the {len(self)} public "
                f"samples of {self.dataset.name}, got {share}"
            )
        student_side = PublicExamples(self.dataset, self.inputs[:share], self.labels[:share])
        held_out = PublicExamples(self.dataset, self.inputs[share:], self.labels[share:])
        return student_side, held_out

    @property
    def majority_share(self) -> float:
        """Share of the commonest class: what a constant answer gets right."""
        return float(np.bincount(self.labels).max() / len(self))

    def pool(self) -> "Pool":
        """Returns the inputs without their labels."""
        return Pool(self.dataset, self.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Public: unlabelled inputs. What a student learns from, beside the released labels.

    A pool equals itself alone, so that what was computed of one can be kept by it.

    Attributes:
      dataset: what is publicly known of them.
      inputs: `[num_inputs, *input_shape]`.
    """

    dataset: Dataset
    inputs: npt.NDArray[Any] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, self.dataset)
        object.__setattr__(self, "inputs", _frozen(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Sensitive: how many teachers voted for each class, a row a query.

    Attributes:
      values: int64 `[num_queries, num_classes]`, read-only.

    Raises:
      ValueError: if the values are not whole numbers of at least 0 in two dimensions. The
        message never carries a value.
    """

    values: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        values = whole_numbers(self.values, "counts")
        if values.ndim != 2 or values.shape[1] < 1:
            raise ValueError(
                f"counts: expected [num_queries, num_classes], got shape {list(values.shape)}"
            )
        if values.size and values.min() < 0:
            raise ValueError("counts: expected numbers of at least 0, got negative ones")
        object.__setattr__(self, "values", _frozen(values))

    def __repr__(self) -> str:
        return f"VoteCounts(<{self.num_queries} queries, {self.num_classes} classes>)"

    @property
    def num_queries(self) -> int:
        """Number of queries, the rows."""
        return int(self.values.shape[0])

    @property
    def num_classes(self) -> int:
        """Number of classes, the columns."""
        return int(self.values.shape[1])

    def take(self, indices: npt.ArrayLike) -> "VoteCounts":
        """Returns the counts of the queries at `indices`, int `[num_taken]`.

        Raises:
          ValueError: if an index is not a whole number from 0 to `num_queries - 1`.
        """
        rows = whole_numbers(indices, "indices")
        if rows.ndim != 1:
            raise ValueError(f"indices: expected [num_taken], got shape {list(rows.shape)}")
        if rows.size and (rows.min() < 0 or rows.max() >= self.num_queries):
            raise ValueError(
                f"indices: expected numbers from 0 to {self.num_queries - 1}, got others"
            )
        return VoteCounts(self.values[rows])


@dataclasses.dataclass(frozen=True)
class Votes:
    """Sensitive: the label that each teacher gave to each query.

    Attributes:
      labels: int64 `[num_teachers, num_queries]`, read-only.
      num_classes: number of classes.

    Raises:
      ValueError: if a label is not a whole number from 0 to `num_classes - 1`. The message never
        carries a label.
    """

    labels: IntArray = dataclasses.field(repr=False)
    num_classes: int

    def __post_init__(self) -> None:
        _check_num_classes(self.num_classes)
        labels = _labels(self.labels, self.num_classes, "votes")
        if labels.ndim != 2 or labels.shape[0] < 1:
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got shape {list(labels.shape)}"
            )
        object.__setattr__(self, "labels", _frozen(labels))

    def __repr__(self) -> str:
        return (
            f"Votes(<{self.num_teachers} teachers, {self.num_queries} queries, "
            f"{self.num_classes} classes>)"
        )

    @property
    def num_teachers(self) -> int:
        """Number of teachers, the rows."""
        return int(self.labels.shape[0])

    @property
    def num_queries(self) -> int:
        """Number of queries, the columns."""
        return int(self.labels.shape[1])

    def counts(self) -> VoteCounts:
        """Counts the votes: int64 `[num_queries, num_classes]`; every row sums to num_teachers."""
        counts = np.zeros((self.num_queries, self.num_classes), np.int64)
        columns = np.arange(self.num_queries)
        for teacher_labels in self.labels:
            counts[columns, teacher_labels] += 1
        return VoteCounts(counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolLabels:
    """Public: labels of some inputs of a pool, whatever a student learns from.

    Made from `ReleasedLabels` alone: those themselves, or with others that were inferred from them,
    which is post-processing and costs nothing.

    Attributes:
      query_indices: int64 `[num_labels]`, positions of the labelled inputs in the pool.
      labels: int64 `[num_labels]`.
      num_classes: number of classes.
    """

    query_indices: IntArray = dataclasses.field(repr=False)
    labels: IntArray = dataclasses.field(repr=False)
    num_classes: int

    def __post_init__(self) -> None:
        _check_num_classes(self.num_classes)
        labels = _labels(self.labels, self.num_classes, "released labels")
        indices = whole_numbers(self.query_indices, "query indices")
        if labels.ndim != 1 or indices.shape != labels.shape:
            raise ValueError(
                f"released labels: expected labels and query indices of one length, got "
                f"{list(labels.shape)} and {list(indices.shape)}"
            )
        object.__setattr__(self, "labels", _frozen(labels))
        object.__setattr__(self, "query_indices", _frozen(indices))

    def check_pool(self, pool: Pool) -> None:
        """Checks that a student can learn from these labels of this pool.

        Raises:
          ValueError: if there is no label, or the labels do not belong to this pool.
        """
        if len(self.labels) == 0:
            raise ValueError("student: expected at least 1 released label, got none")
        if self.query_indices.max() >= len(pool) or self.query_indices.min() < 0:
            raise ValueError(
                f"student: expected labels of a pool of {len(pool)} inputs, got others"
            )
        if self.num_classes != pool.dataset.num_classes:
            raise ValueError(
                f"student: expected labels of {pool.dataset.num_classes} classes, "
                f"got {self.num_classes}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedLabels(PoolLabels):
    """Public: noisy labels that were paid for, with the mechanism that drew them and their cost.

    Only the labeller makes them (`pate_tf.aggregation.labeller`).

    Attributes:
      query_indices: int64 `[num_answered]`, positions of the answered queries in the pool.
      labels: int64 `[num_answered]`, the noisy winners.
      num_classes: number of classes.
      num_queries: how many queries were asked; a mechanism with a threshold may answer fewer.
      mechanism: the mechanism's `to_dict()`.
      epsilon: data-independent epsilon of these queries alone.
      delta: the delta that epsilon holds at.
      ledger_rows: sequence numbers of the ledger rows that paid for them.
      secure_noise: False if the noise came from `--insecure_seed`; then nothing is private.
    """

    num_queries: int
    mechanism: Mapping[str, object]
    epsilon: float
    delta: float
    ledger_rows: tuple[int, ...]
    secure_noise: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.labels) > self.num_queries:
            raise ValueError(
                f"released labels: expected at most {self.num_queries} answers, got "
                f"{len(self.labels)}"
            )

    @property
    def num_answered(self) -> int:
        """How many of the queries got a label."""
        return len(self.labels)
