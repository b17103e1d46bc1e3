"""Sensitive values: private records, votes, counts. Their `repr` shows shapes only."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import Examples, checked_labels
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray, frozen_view, labels_array, whole, whole_numbers


@dataclasses.dataclass(frozen=True)
class PrivateExamples(Examples):
    """Sensitive: the labelled records that the teachers share out among themselves.

    Attributes:
        dataset: what is publicly known of them.
        inputs: `[num_records, *input_shape]`.
        labels: int64 `[num_records]`.
        owners: whose each record is, whole numbers or strings `[num_records]`; None if each record
            stands for itself.
        source: that releases from them are charged to; None where the run folder is its own.

    Raises:
        ValueError: if inputs, labels or owners don't fit the data set, or an input is not finite.
            The message never carries a value.
    """

    labels: IntArray = dataclasses.field(repr=False)
    owners: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "labels", checked_labels(self.labels, self))
        if self.owners is not None:
            owners = np.asarray(self.owners)
            if owners.dtype.kind not in "iuUS" or owners.shape != (len(self),):
                raise ValueError(
                    f"owners: expected whole numbers or strings, one for each record, got "
                    f"{owners.dtype} in {owners.ndim} dimensions"
                )
            object.__setattr__(self, "owners", frozen_view(owners))

    def __repr__(self) -> str:
        if self.owners is not None:  # how many records they have is private
            return "PrivateExamples(<records of owners>)"
        return f"PrivateExamples(<{len(self)} records>)"


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Sensitive: how many teachers voted for each class, a row a query.

    Attributes:
        values: int64 `[num_queries, num_classes]`, read-only.

    Raises:
        ValueError: if the values are not whole numbers of at least 0 in two dimensions. The message
            never carries a value.
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
        object.__setattr__(self, "values", frozen_view(values))

    def __repr__(self) -> str:
        return f"VoteCounts(<{self.num_queries} queries, {self.num_classes} classes>)"

    def check_totals(self) -> None:
        """Checks that every query has one vote of every teacher, as every guarantee assumes.

        Raises:
            ValueError: if there are no votes, or queries differ in how many they have. The message
                never carries a value.
        """
        totals = self.values.sum(axis=1)
        if len(totals) and (totals != totals[0]).any():
            raise ValueError(
                "counts: expected one vote of every teacher on every query, got rows with "
                "different sums"
            )
        if len(totals) and totals[0] < 1:
            raise ValueError("counts: expected at least one vote on every query, got none")

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
class SumsByClass:
    """Sensitive: sums of the records' vectors of each class (`pate_tf.teachers.on_features`).

    Attributes:
        values: int64 `[num_features + 1, num_classes]`, in steps of 1 / LATTICE, read-only.

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
        object.__setattr__(self, "values", frozen_view(values))

    def __repr__(self) -> str:
        return f"SumsByClass(<{self.values.shape[0]} numbers of {self.values.shape[1]} classes>)"


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
        whole(num_classes=self.num_classes)
        labels = labels_array(self.labels, self.num_classes, "votes")
        if labels.ndim != 2 or labels.shape[0] < 1:
            raise ValueError(
                f"votes: expected [num_teachers, num_queries], got shape {list(labels.shape)}"
            )
        object.__setattr__(self, "labels", frozen_view(labels))

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
