"""Votes that a plan assumes, from public values, before anybody looks at real ones."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from pate_tf.accounting.planned_release import DEFAULT_PROFILE
from pate_tf.accounting.quadrature import IntArray

# As planned releases assume it. A public guess: what teachers that are right nearly always have in
# common on inputs that are typical of their class. Data on which people disagree have less.
DEFAULT_MARGIN: Final = DEFAULT_PROFILE


def profile_counts(num_teachers: int, num_classes: int, profile: float) -> IntArray:
    """Returns the sorted counts of the profile, int64 [1, num_classes].

    The first class leads the others by the share `profile` of the teachers; what is left is spread
    evenly over all classes.

    Raises:
        ValueError: unless 0 < profile <= 1, num_teachers >= 1 and num_classes >= 1.
    """
    if not 0.0 < profile <= 1.0:
        raise ValueError(f"expected profile in (0, 1], got {profile}")
    if num_teachers < 1 or num_classes < 1:
        raise ValueError(
            f"expected at least one teacher and one class, got {num_teachers} and {num_classes}"
        )
    lead = round(profile * num_teachers) if num_classes > 1 else num_teachers
    each, left = divmod(num_teachers - lead, num_classes)
    counts = np.full((1, num_classes), each, np.int64)
    counts[0, 0] += lead
    counts[0, 1 : 1 + left] += 1
    return -np.sort(-counts, axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssumedVotes:
    """An assumption about votes that nobody has looked at. Public.

    On every query but the exceptions one class, the right one, leads each other class by the same
    share of the teachers; what is left of them is spread evenly over all classes. On an exception
    the right class and one other have half of the votes each.

    Attributes:
        num_teachers: at least 1.
        num_classes: at least 2.
        margin: by how many of the teachers, as a share in (0, 1], the first class leads the second.
        num_exceptions: of the queries, on which teachers are divided. Default 0.

    Raises:
        ValueError: if a value is out of range.
    """

    num_teachers: int
    num_classes: int
    margin: float = DEFAULT_MARGIN
    num_exceptions: int = 0

    def __post_init__(self) -> None:
        if self.num_teachers < 1 or self.num_classes < 2:
            raise ValueError(
                f"expected at least one teacher and two classes, got {self.num_teachers} and "
                f"{self.num_classes}"
            )
        if not 0.0 < self.margin <= 1.0:
            raise ValueError(f"margin: expected in (0, 1], got {self.margin}")
        if self.num_exceptions != int(self.num_exceptions) or self.num_exceptions < 0:
            raise ValueError(f"num_exceptions: expected at least 0, got {self.num_exceptions}")

    def counts(self, num_queries: int) -> IntArray:
        """Returns the assumed counts, int64 [num_queries, num_classes]; class 0 is right.

        Raises:
            ValueError: if there are fewer queries than exceptions.
        """
        if num_queries < self.num_exceptions:
            raise ValueError(
                f"num_exceptions: expected at most the {num_queries} queries, got "
                f"{self.num_exceptions}"
            )
        counts = np.repeat(
            profile_counts(self.num_teachers, self.num_classes, self.margin), num_queries, axis=0
        )
        counts[: self.num_exceptions] = 0
        counts[: self.num_exceptions, 0] = self.num_teachers // 2
        counts[: self.num_exceptions, 1] = self.num_teachers - self.num_teachers // 2
        return counts

    def with_half_the_margin(self) -> AssumedVotes:
        """Returns the same with teachers that agree half as well."""
        return dataclasses.replace(self, margin=self.margin / 2.0)

    def in_words(self) -> str:
        """Returns the assumption as one sentence."""
        but = f" but {self.num_exceptions:,}" if self.num_exceptions else ""
        return (
            f"on every query{but} the right class leads every other by {100.0 * self.margin:g} % "
            f"of {self.num_teachers:,} teachers, among {self.num_classes:,} classes"
        )
