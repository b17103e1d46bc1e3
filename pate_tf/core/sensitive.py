"""Types for sensitive values: private records, their partition, votes and counts."""

import dataclasses
import hashlib
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import checks
from pate_tf.core.checks import IntArray, frozen_view, whole_numbers
from pate_tf.core.dataset import CLASS, Dataset, Examples, checked_labels
from pate_tf.core.settings import ProtectedUnit
from pate_tf.core.source import PrivateSource, owner_name


class SensitiveWarning(UserWarning):
    """A warning that reveals facts about the private records. Only the data holder may see it."""


def warn_holder(text: str, *, is_private: bool = True, stacklevel: int = 3) -> None:
    """Warns about records. For private records, issues a `SensitiveWarning` with a prefix.

    `stacklevel` is an argument of `warnings.warn`. By default, the warning shows the line that
    called the caller of this function.
    """
    kind = SensitiveWarning if is_private else UserWarning
    secret = "sensitive, only for the data holder: " if is_private else ""
    warnings.warn(secret + text, kind, stacklevel=stacklevel)


def owner_array(owners: npt.ArrayLike) -> npt.NDArray[Any]:
    """Returns the owner of each record, `[num_records]`, as an array of whole numbers or strings.

    If `owners` has no dtype (a list, for example), each owner is converted to a string separately.
    NumPy would instead choose one type that fits all owners. One owner could then change the names
    of all other owners.

    Raises:
        ValueError: if an owner is neither a whole number nor a string. The message does not contain
            the owner.
    """
    names = np.asarray(owners, None if hasattr(owners, "dtype") else object)
    if names.dtype.kind == "O" and all(
        isinstance(owner, str | int | np.integer) and not isinstance(owner, bool)
        for owner in names.flat
    ):
        names = np.array([str(owner) for owner in names.flat], np.str_).reshape(names.shape)
    if names.dtype.kind not in "iuUS" or names.ndim != 1:
        raise ValueError(
            f"owners must be whole numbers or strings, got {names.dtype} of shape {names.shape}"
        )
    return names


@dataclasses.dataclass(frozen=True)
class PrivateExamples(Examples):
    """Sensitive: the labeled private records, partitioned among the teachers.

    Attributes:
        dataset: public facts about the records.
        inputs: `[num_records, *input_shape]`.
        labels: label of each record, in the format of `dataset.checked_labels`.
        owners: owner of each record, whole numbers or strings `[num_records]`; None if each record
            has a different owner.
        source: name or path of the private data, see `core.source`. Ledgers add up the costs of all
            releases from one source. None if the run folder identifies the source.
        split: if `Data.hold_back` split the records, an object that identifies the call of
            `hold_back`, and whether these are the held-back records; else None. A copy of these
            records has no `split`, because it may contain other records or owners.

    Raises:
        ValueError: if inputs, labels or owners don't match the data set, or an input is not finite.
            The message never contains a value.
    """

    labels: npt.NDArray[Any] = dataclasses.field(repr=False)
    owners: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)
    split: tuple[object, bool] | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "split", None)
        object.__setattr__(self, "labels", checked_labels(self.labels, self))
        if self.owners is not None:
            owners = owner_array(self.owners)
            if owners.shape != (len(self),):
                raise ValueError("owners must have one entry for each record")
            object.__setattr__(self, "owners", frozen_view(owners))

    def take(self, rows: npt.NDArray[np.bool_]) -> Self:
        """Returns the records for which `rows`, `[num_records]`, is true."""
        owners = None if self.owners is None else self.owners[rows]
        return dataclasses.replace(
            self, inputs=self.inputs[rows], labels=self.labels[rows], owners=owners
        )

    @property
    def public_size(self) -> int | None:
        """Number of records. None if records have owners, because the number is then private."""
        return None if self.owners is not None else len(self)

    def __repr__(self) -> str:
        if self.owners is not None:
            return "PrivateExamples(<records of owners>)"
        return f"PrivateExamples(<{len(self)} records>)"


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Sensitive: the number of votes for each class, one row per query.

    Attributes:
        values: int64 `[num_queries, num_classes]`, read-only.

    Raises:
        ValueError: unless the values are non-negative whole numbers in two dimensions and all rows
            have the same positive sum. Every privacy guarantee assumes that each teacher votes once
            on each query. The message never contains a value.
    """

    values: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        values = np.array(self.values)
        if values.dtype != np.int64:
            values = whole_numbers(values, "counts")
        checks.shape(["num_queries", "num_classes"], counts=values)
        checks.whole(num_classes=values.shape[1])
        if values.size and values.min() < 0:
            raise ValueError("counts must not be negative")
        totals = values.sum(axis=1)
        if len(totals) and (totals != totals[0]).any():
            raise ValueError("counts must have one vote per teacher and query, but row sums differ")
        if len(totals) and totals[0] < 1:
            raise ValueError("counts must contain at least one vote for every query")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        return f"VoteCounts(<{self.num_queries} queries, {self.num_classes} classes>)"

    @property
    def dimensions(self) -> str:
        """Text with the number of teachers, the number of queries and the number of classes."""
        return (
            f"{self.num_teachers} teachers, {self.num_queries} queries, {self.num_classes} classes"
        )

    @property
    def num_teachers(self) -> int:
        """Number of teachers: the sum of any row; 0 if there are no queries."""
        return int(self.values[:1].sum())

    @property
    def num_queries(self) -> int:
        """Number of queries: the number of rows."""
        return int(self.values.shape[0])

    @property
    def num_classes(self) -> int:
        """Number of classes: the number of columns."""
        return int(self.values.shape[1])

    def take(self, indices: npt.ArrayLike) -> "VoteCounts":
        """Returns the counts of the queries at the positions `indices`, int `[num_taken]`.

        Raises:
            ValueError: if an index is not a whole number from 0 to `num_queries - 1`, or an index
                is repeated.
        """
        rows = whole_numbers(indices, "indices", below=self.num_queries)
        checks.shape(["num_taken"], indices=rows)
        queries, numbers = np.unique(rows, return_counts=True)
        if len(queries) < len(rows):
            twice = queries[numbers.argmax()]
            raise ValueError(f"indices must be distinct, but {twice} occurs more than once")
        return VoteCounts(self.values[rows])


@dataclasses.dataclass(frozen=True)
class SumsByClass:
    """Sensitive: sums of the records' feature vectors by class, or of predictions by query.

    Attributes:
        values: int64, read-only, in units of 1 / LATTICE. Sums of records have the shape
            `[num_features + 1, num_classes]`. If there is no pool, the second moments are appended
            as further columns: `[num_features + 1, num_classes + num_features + 1]`. Sums of
            teachers' predictions have the shape `[num_queries, num_classes]`; see `sums_of_votes`.

    Raises:
        ValueError: if the values are not whole numbers in two dimensions. The message never
            contains a value.
    """

    values: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        values = whole_numbers(self.values, "sums")
        checks.shape(["num_features + 1", "num_classes"], sums=values)
        checks.whole(numbers=values.size)
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        return f"SumsByClass(<{self.values.shape[0]} numbers of {self.values.shape[1]} classes>)"


@dataclasses.dataclass(frozen=True)
class Votes:
    """Sensitive: the vote of each teacher on each query.

    Attributes:
        labels: read-only array. For target "class", int64 `[num_teachers, num_queries]`. For target
            "number", float64 of the same shape, clipped to the target's range. For target "labels",
            the probability of each label, float64 `[num_teachers, num_queries, num_labels]`,
            clipped to [0, 1]. NaN is replaced by the lowest value. NaN is not an error: such an
            error would reveal something about the records of one teacher.
        num_classes: number of classes or labels.
        dataset: data set that defines the target "number" or "labels"; None for target "class".

    Raises:
        ValueError: if a class is not a whole number from 0 to `num_classes - 1`, or if the array
            has the wrong shape. The message says whether classes are negative or seem to start at
            1.
    """

    labels: npt.NDArray[Any] = dataclasses.field(repr=False)
    num_classes: int
    dataset: Dataset | None = None

    def __post_init__(self) -> None:
        if self.dataset is not None and self.dataset.target != CLASS:
            object.__setattr__(self, "labels", _checked_predictions(self.labels, self.dataset))
            return
        object.__setattr__(self, "dataset", None)
        labels = np.array(self.labels)
        num_classes = self.num_classes
        if labels.ndim != 2 or labels.shape[0] < 1:
            hint = "; did you pass aggregated labels?" if labels.ndim == 1 else ""
            raise ValueError(
                f"votes must have shape [num_teachers, num_queries], got {list(labels.shape)}{hint}"
            )
        if labels.dtype != np.int64:
            labels = np.array(whole_numbers(labels, "votes"))
        low = labels.min(initial=num_classes)
        high = labels.max(initial=0)
        if low < 0 or high >= num_classes:
            hint = ""
            if low < 0:
                hint = ", not negative. Use a separate class for abstentions, such as -1"
            elif (low, high) == (1, num_classes):
                hint = ". They seem to start at 1: subtract 1"
            raise ValueError(f"votes must be labels from 0 to {num_classes - 1}{hint}")
        labels.flags.writeable = False
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        teachers, queries = self.labels.shape[:2]
        return f"Votes(<{teachers} teachers, {queries} queries, {self.num_classes} classes>)"

    def counts(self) -> VoteCounts:
        """Returns the number of votes for each class; every row sums to `num_teachers`."""
        num_queries = self.labels.shape[1]
        counts = np.zeros((num_queries, self.num_classes), np.int64)
        columns = np.arange(num_queries)
        for teacher_labels in self.labels:
            counts[columns, teacher_labels] += 1
        return VoteCounts(counts)


def _checked_predictions(values: npt.NDArray[Any], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns predictions for target "number" or "labels" in the format of `Votes.labels`."""
    if values.ndim < 2 or values.shape[2:] != dataset.label_shape or values.dtype.kind not in "iuf":
        wanted = ", ".join(map(str, ("num_teachers", "num_queries", *dataset.label_shape)))
        raise ValueError(
            f"votes must be numbers [{wanted}] for target {dataset.target}, got {values.dtype} of "
            f"shape {list(values.shape)}"
        )
    low, high = dataset.target_range or (0.0, 1.0)
    return frozen_view(
        np.clip(np.where(np.isnan(values), low, values), low, high, dtype=np.float64)
    )


# The partition of the records among the teachers.
# Each record (or owner) must belong to exactly one teacher. This assignment must not depend on the
# other records, nor on the number of records. Therefore one record (or owner) changes at most one
# vote per query (docs/proofs/theory.md, Propositions S1 and S2).


MAX_TEACHERS = 2**20  # limit if the number of records is not public


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding(ProtectedUnit):
    """Public facts about the partition of the private records among the teachers.

    Attributes:
        num_teachers: number of shards, one for each teacher.
        unit: protected unit: "record", or "owner" for all records of one owner.
    """

    num_teachers: int


@dataclasses.dataclass(frozen=True)
class Partition(Sharding):
    """Sensitive: assigns each record to exactly one teacher.

    Attributes:
        assignment: number of each record's teacher, int64 `[num_records]`, read-only.
        num_teachers: number of teachers. With unit "record", each teacher has at least one record.
            With unit "owner", a teacher may have no records. This is not an error: such an error
            would reveal something about a single owner.
        unit: protected unit: "record", or "owner" for all records of one owner.

    Raises:
        ValueError: if the number of a teacher is out of range, or if the unit is "record" and a
            teacher has no record.
    """

    assignment: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        assignment = whole_numbers(self.assignment, "partition", below=self.num_teachers)
        checks.shape(["num_records"], partition=assignment)
        checks.one_of(("record", "owner"), unit=self.unit)
        sizes = np.bincount(assignment, minlength=self.num_teachers)
        if self.unit == "record" and not sizes.all():
            raise ValueError("partition: a teacher has no records. Use fewer teachers.")
        object.__setattr__(self, "assignment", assignment)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(self.assignment)

    def numbered(self, owners: npt.NDArray[Any]) -> IntArray:
        """Numbers the owners; returns the number of each record's owner, `[num_records]`.

        Args:
            owners: owner of each record, `[num_records]`.

        Raises:
            ValueError: if two teachers have records of the same owner, because the guarantee would
                then not hold for owners.
        """
        _, first, numbers = np.unique(owners, return_index=True, return_inverse=True)
        if (self.assignment[first][numbers] != self.assignment).any():
            raise ValueError("all records of an owner must belong to the same teacher")
        return numbers.astype(np.int64)

    def all_records(self) -> list[IntArray]:
        """Returns a list with each teacher's record indices, in ascending order."""
        order = np.argsort(self.assignment, kind="stable")
        sizes = np.bincount(self.assignment, minlength=self.num_teachers)
        return np.split(order, np.cumsum(sizes)[:-1])


def random_partition(*, num_records: int, num_teachers: int, seed: int) -> Partition:
    """Assigns records to teachers at random by their positions, in shards of almost equal size.

    The sizes of the shards differ by at most one. Each block of `num_teachers` consecutive
    positions is assigned in a separate random order. The teacher of record i therefore depends only
    on i, `num_teachers` and `seed`. Hence

    - replacing a record's content changes the shard of one teacher;
    - adding or removing the last record changes the shard of one teacher;
    - adding or removing an earlier record moves all later records to other positions and changes
      all shards. This partition therefore protects only against the replacement of a record. If
      records are added or removed over time, give each record an owner, such as a stable name, and
      use `owner_partition`.

    Raises:
        ValueError: if `num_teachers` is less than 1 or more than the number of records.
    """
    checks.whole(1, num_records, num_teachers=num_teachers)
    # All blocks use one random stream, so that additional blocks do not change earlier blocks.
    draws = np.random.default_rng(np.random.PCG64(seed)).random(
        (-(-num_records // num_teachers), num_teachers)
    )
    dealt = np.argsort(draws, axis=1, kind="stable").astype(np.int64, copy=False)
    return Partition(dealt.ravel()[:num_records], num_teachers=num_teachers)


def owner_partition(owners: npt.ArrayLike, *, num_teachers: int, seed: int) -> Partition:
    """Assigns all records of an owner to one teacher, selected by a keyed hash of the owner.

    The teacher of an owner must not depend on the other owners or on their number, so the owners
    can't be sorted and shuffled. Shard sizes therefore vary. A teacher without records learns
    nothing, and its vote contains no information. More teachers than records are allowed, because
    the number of records is not public. Hence

    - adding or removing all records of one owner changes the shard of one teacher;
    - changing the records of one owner changes the shard of one teacher;
    - replacing one owner by another changes the shards of at most two teachers.

    Within each shard, records keep their order.

    Args:
        owners: owner of each record, integers or strings `[num_records]`.
        num_teachers: number of teachers.
        seed: key of the hash.

    Raises:
        ValueError: if the number of teachers is not between 1 and `MAX_TEACHERS`, or if owners are
            neither integers nor strings.
    """
    checks.whole(1, MAX_TEACHERS, num_teachers=num_teachers)
    unique, positions = np.unique(owner_array(owners), return_inverse=True)
    key = str(seed).encode()
    teachers = [
        int.from_bytes(hashlib.blake2b(owner_name(owner), key=key, digest_size=16).digest())
        % num_teachers
        for owner in unique.tolist()
    ]
    return Partition(
        np.array(teachers, np.int64)[positions], num_teachers=num_teachers, unit="owner"
    )
