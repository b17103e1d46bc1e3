"""Sensitive values: private records, their partition, votes, counts. A `repr` shows shapes."""

import dataclasses
import hashlib
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import IntArray, frozen_view, whole_numbers
from pate_tf.core.dataset import CLASS, Dataset, Examples, checked_labels
from pate_tf.core.settings import ProtectedUnit
from pate_tf.core.source import PrivateSource, owner_name


class SensitiveWarning(UserWarning):
    """SENSITIVE: something about the private records, for the data holder alone."""


def warn_holder(text: str, *, is_private: bool = True, stacklevel: int = 3) -> None:
    """Warns of something about records: of private ones with a `SensitiveWarning`, which says so.

    `stacklevel` is as of `warnings.warn`, where 3 is the caller's caller.
    """
    kind = SensitiveWarning if is_private else UserWarning
    secret = "sensitive, for the data holder alone: " if is_private else ""
    warnings.warn(secret + text, kind, stacklevel=stacklevel)


def owner_array(owners: npt.ArrayLike) -> npt.NDArray[Any]:
    """Returns owners, whole numbers or strings `[num_records]`, as an array of one type.

    What has no such type, such as a list, becomes strings, each owner by itself: a type that fits
    all would depend on each, and with it how all others are written as names.

    Raises:
        ValueError: if an owner is something else. The message carries no owner.
    """
    names = np.asarray(owners, None if hasattr(owners, "dtype") else object)
    if names.dtype.kind == "O" and all(
        isinstance(owner, str | int | np.integer) and not isinstance(owner, bool)
        for owner in names.flat
    ):
        names = np.array([str(owner) for owner in names.flat], np.str_).reshape(names.shape)
    if names.dtype.kind not in "iuUS" or names.ndim != 1:
        raise ValueError(
            f"owners: expected whole numbers or strings [num_records], got {names.dtype} of shape "
            f"{list(names.shape)}"
        )
    return names


@dataclasses.dataclass(frozen=True)
class PrivateExamples(Examples):
    """Sensitive: the labeled records that the teachers share out among themselves.

    Attributes:
        dataset: what is publicly known of them.
        inputs: `[num_records, *input_shape]`.
        labels: as of `checked_labels`: classes, numbers, or several labels of each record.
        owners: whose each record is, whole numbers or strings `[num_records]`; None if each record
            stands for itself.
        source: that releases from them are charged to; None where the run folder is its own.
        split: which call of `Data.hold_back` they come from, and whether they are the part that was
            held back; None for records that were not split.

    Raises:
        ValueError: if inputs, labels or owners don't fit the data set, or an input is not finite.
            The message never carries a value.
    """

    labels: npt.NDArray[Any] = dataclasses.field(repr=False)
    owners: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)
    split: tuple[object, bool] | None = dataclasses.field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", checked_labels(self.labels, self))
        if self.owners is not None:
            owners = owner_array(self.owners)
            if owners.shape != (len(self),):
                raise ValueError("owners: expected one for each record, got another number")
            object.__setattr__(self, "owners", frozen_view(owners))

    def take(self, rows: npt.NDArray[np.bool_]) -> Self:
        """Returns the records where `rows`, `[num_records]`, is true."""
        owners = None if self.owners is None else self.owners[rows]
        return dataclasses.replace(
            self, inputs=self.inputs[rows], labels=self.labels[rows], owners=owners
        )

    @property
    def public_size(self) -> int | None:
        """How many there are; None with owners, as that is private then."""
        return None if self.owners is not None else len(self)

    def __repr__(self) -> str:
        if self.owners is not None:
            return "PrivateExamples(<records of owners>)"
        return f"PrivateExamples(<{len(self)} records>)"


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Sensitive: how many teachers voted for each class, a row a query.

    Attributes:
        values: int64 `[num_queries, num_classes]`, read-only.

    Raises:
        ValueError: unless every query has one vote of every teacher, and there is one, as every
            guarantee assumes: whole numbers of at least 0 in two dimensions, rows of one sum. The
            message never carries a value.
    """

    values: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        values = np.array(self.values)
        if values.dtype != np.int64:
            values = whole_numbers(values, "counts")
        if values.ndim != 2 or values.shape[1] < 1:
            raise ValueError(
                f"counts: expected [num_queries, num_classes], got shape {list(values.shape)}"
            )
        if values.size and values.min() < 0:
            raise ValueError("counts: expected numbers of at least 0, got negative ones")
        totals = values.sum(axis=1)
        if len(totals) and (totals != totals[0]).any():
            raise ValueError(
                "counts: expected one vote of every teacher on every query, got rows with "
                "different sums"
            )
        if len(totals) and totals[0] < 1:
            raise ValueError("counts: expected at least one vote on every query, got none")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        return f"VoteCounts(<{self.num_queries} queries, {self.num_classes} classes>)"

    @property
    def dimensions(self) -> str:
        """The numbers of teachers, queries and classes, in words."""
        return (
            f"{self.num_teachers} teachers, {self.num_queries} queries, {self.num_classes} classes"
        )

    @property
    def num_teachers(self) -> int:
        """Number of teachers, the sum of each row; 0 without queries."""
        return int(self.values[:1].sum())

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
            ValueError: if an index is not a whole number from 0 to `num_queries - 1`, or is there
                twice.
        """
        rows = whole_numbers(indices, "indices")
        if rows.ndim != 1:
            raise ValueError(f"indices: expected [num_taken], got shape {list(rows.shape)}")
        if rows.size and (rows.min() < 0 or rows.max() >= self.num_queries):
            raise ValueError(
                f"indices: expected numbers from 0 to {self.num_queries - 1}, got others"
            )
        queries, numbers = np.unique(rows, return_counts=True)
        if len(queries) < len(rows):
            twice = queries[numbers.argmax()]
            raise ValueError(f"indices: expected each query once, got {twice} more than once")
        return VoteCounts(self.values[rows])


@dataclasses.dataclass(frozen=True)
class SumsByClass:
    """Sensitive: sums of the records' vectors of each class, or of teachers' rows for each query.

    Attributes:
        values: int64 `[num_features + 1, num_classes]`, in steps of 1 / LATTICE, read-only; without
            a pool `[num_features + 1, num_classes + num_features + 1]`, second moments beside them.
            Of teachers' predictions `[num_queries, num_classes]`, as of `sums_of_votes`.

    Raises:
        ValueError: if the values are not whole numbers in two dimensions. The message never carries
            a value.
    """

    values: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        values = whole_numbers(self.values, "sums")
        if values.ndim != 2 or min(values.shape) < 1:
            raise ValueError(
                f"sums: expected [num_features + 1, num_classes], got shape {list(values.shape)}"
            )
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        return f"SumsByClass(<{self.values.shape[0]} numbers of {self.values.shape[1]} classes>)"


@dataclasses.dataclass(frozen=True)
class Votes:
    """Sensitive: the label that each teacher gave to each query, or its prediction.

    Attributes:
        labels: int64 `[num_teachers, num_queries]`, read-only. Of a number float64 in its unit,
            clipped to its range; of several labels the probability of each, float64 `[num_teachers,
            num_queries, num_labels]`, clipped to [0, 1]. NaN counts as the lowest value: whether a
            teacher fails can follow from its records.
        num_classes: number of classes or labels.
        dataset: what teachers predict, where it is no class; else None.

    Raises:
        ValueError: if a label is not a whole number from 0 to `num_classes - 1`. The message says
            whether they are negative or seem to be counted from 1. Of predictions, if their shape
            does not fit.
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
            hint = ": one label a query, already aggregated?" if labels.ndim == 1 else ""
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got shape {list(labels.shape)}{hint}"
            )
        if labels.dtype != np.int64:
            labels = np.array(whole_numbers(labels, "votes"))
        low = labels.min(initial=num_classes)
        high = labels.max(initial=0)
        if low < 0 or high >= num_classes:
            misfits = "others"
            if low < 0:
                misfits = "negative ones: give abstentions, such as -1, a class of their own"
            elif (low, high) == (1, num_classes):
                misfits = "labels that are counted from 1: subtract 1"
            raise ValueError(f"votes: expected labels from 0 to {num_classes - 1}, got {misfits}")
        labels.flags.writeable = False
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        num_teachers, num_queries = self.labels.shape[:2]
        return (
            f"Votes(<{num_teachers} teachers, {num_queries} queries, {self.num_classes} classes>)"
        )

    def counts(self) -> VoteCounts:
        """Counts the votes: int64 `[num_queries, num_classes]`; every row sums to num_teachers."""
        num_queries = self.labels.shape[1]
        counts = np.zeros((num_queries, self.num_classes), np.int64)
        columns = np.arange(num_queries)
        for teacher_labels in self.labels:
            counts[columns, teacher_labels] += 1
        return VoteCounts(counts)


def _checked_predictions(values: npt.NDArray[Any], dataset: Dataset) -> npt.NDArray[np.float64]:
    """Returns what teachers predict of numbers or several labels, as `Votes.labels` has it."""
    if values.ndim < 2 or values.shape[2:] != dataset.label_shape or values.dtype.kind not in "iuf":
        wanted = ", ".join(map(str, ("num_teachers", "num_queries", *dataset.label_shape)))
        raise ValueError(
            f"votes: expected numbers [{wanted}] for target {dataset.target}, got {values.dtype} "
            f"of shape {list(values.shape)}"
        )
    low, high = dataset.target_range or (0.0, 1.0)
    return frozen_view(
        np.clip(np.where(np.isnan(values), low, values), low, high, dtype=np.float64)
    )


# Record to teacher, disjoint and complete.
#
# A record (or an owner) must reach one teacher only, and its teacher must not depend on the other
# records, nor on how many there are: that is what makes one record (or owner) change at most one
# vote a query (docs/proofs/theory.md, Propositions S1 and S2).


MOST_TEACHERS = 2**20  # where how many records there are is not public


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding(ProtectedUnit):
    """How private records are divided among teachers. Public.

    Attributes:
        num_teachers: number of shards, one for each teacher.
        unit: what one shard protects: "record", or "owner" for all records of one owner.
    """

    num_teachers: int


@dataclasses.dataclass(frozen=True)
class Partition(Sharding):
    """Which teacher each record belongs to: disjoint and complete by its form.

    Attributes:
        assignment: int64 `[num_records]`, the teacher of each record, read-only.
        num_teachers: number of teachers. For unit "record" each has at least one record. For unit
            "owner" a teacher may have none: whether it does can hang on one owner, and to refuse it
            would change all teachers at once.
        unit: what is protected, "record" or "owner" (all records of one owner together).

    Raises:
        ValueError: if a teacher is out of range, or has no record where it must have one.
    """

    assignment: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        assignment = whole_numbers(self.assignment, "partition")
        if assignment.ndim != 1:
            raise ValueError(f"partition: expected [num_records], got {list(assignment.shape)}")
        if assignment.size and (assignment.min() < 0 or assignment.max() >= self.num_teachers):
            raise ValueError(f"partition: expected teachers from 0 to {self.num_teachers - 1}")
        if self.unit not in ("record", "owner"):
            raise ValueError(f"unit: expected 'record' or 'owner', got {self.unit!r}")
        sizes = np.bincount(assignment, minlength=self.num_teachers)
        if self.unit == "record" and not sizes.all():
            raise ValueError(
                "partition: expected at least one record a teacher, got a teacher without any; use "
                "fewer teachers"
            )
        object.__setattr__(self, "assignment", assignment)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(self.assignment)

    def numbered(self, owners: npt.NDArray[Any]) -> IntArray:
        """Returns a number for each record's owner, `[num_records]`.

        Args:
            owners: whose each record is, `[num_records]`.

        Raises:
            ValueError: if records of one owner belong to two teachers: owners are not protected
                then.
        """
        _, first, numbers = np.unique(owners, return_index=True, return_inverse=True)
        if (self.assignment[first][numbers] != self.assignment).any():
            raise ValueError(
                "owners: expected all records of an owner with one teacher, got an owner with more"
            )
        return numbers.astype(np.int64)

    def all_records(self) -> list[IntArray]:
        """Returns the record indices of every teacher, each ascending, in one pass."""
        order = np.argsort(self.assignment, kind="stable")
        sizes = np.bincount(self.assignment, minlength=self.num_teachers)
        return np.split(order, np.cumsum(sizes)[:-1])


def random_partition(*, num_records: int, num_teachers: int, seed: int) -> Partition:
    """Deals record positions out at random; sizes differ by at most one.

    Each block of `num_teachers` neighboring positions is dealt out in a random order of its own,
    so the teacher of record i is a function of i, `num_teachers` and `seed` alone. Hence

    - replacing a record's content changes the share of one teacher;
    - a record more or less at the end does so too;
    - a record more or less before the end moves all later positions, and changes all shares: this
      partition protects against replacement. Where records come and go, give each an owner, such
      as a stable name of its own, and use `owner_partition`.

    Raises:
        ValueError: if there are more teachers than records, or none.
    """
    if num_teachers < 1:
        raise ValueError(f"num_teachers: expected at least 1, got {num_teachers}")
    if num_teachers > num_records:
        raise ValueError(
            f"num_teachers: expected at most one teacher a record ({num_records} records), "
            f"got {num_teachers}"
        )
    # A stream of draws: more blocks do not change those before them.
    draws = np.random.default_rng(np.random.PCG64(seed)).random(
        (-(-num_records // num_teachers), num_teachers)
    )
    dealt = np.argsort(draws, axis=1, kind="stable").astype(np.int64, copy=False)
    return Partition(dealt.ravel()[:num_records], num_teachers=num_teachers)


def owner_partition(owners: npt.ArrayLike, *, num_teachers: int, seed: int) -> Partition:
    """Sends all records of one owner to one teacher, by a keyed hash of the owner's name.

    A hash, not a shuffle of the sorted owners: the teacher of one owner may not depend on who the
    others are, nor on how many. Sizes therefore vary, and a teacher may be left without records: it
    then learns nothing, and its vote says nothing. There may be more teachers than records, since
    how many records there are is not public. Hence

    - all records of one owner more or less change the share of one teacher;
    - so do other records of the same owner;
    - one owner replaced by another changes two, that of the one and that of the other.

    Within a share, records keep the order that they have in the whole.

    Args:
        owners: `[num_records]`, each record's owner, integers or strings.
        num_teachers: number of teachers.
        seed: key of the hash.

    Raises:
        ValueError: if the number of teachers is not from 1 to `MOST_TEACHERS`, or owners are
            something else.
    """
    if not 1 <= num_teachers <= MOST_TEACHERS:
        raise ValueError(f"num_teachers: expected from 1 to {MOST_TEACHERS}, got {num_teachers}")
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
