"""Columns of a raw table as numbers, by public lists of categories.

A record's features depend on that record and on what the table's documentation says, never on
other records: so a teacher's inputs can't change with another teacher's records.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

MOST_NAMED = 12  # categories in an error message


@dataclasses.dataclass(frozen=True)
class Column:
    """One feature of a table.

    Attributes:
      name: as the table's documentation calls it.
      categories: what it can be, in the order of their numbers from 0 on; empty for a number.
      low: lowest value to scale by, in the column's own unit.
      high: highest value to scale by; values outside are allowed.
    """

    name: str
    categories: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0

    @property
    def value_range(self) -> tuple[float, float]:
        """Public low and high values."""
        if self.categories:
            return 0.0, float(max(1, len(self.categories) - 1))
        return self.low, self.high

    @property
    def expected(self) -> str:
        """What an error message says was expected."""
        if not self.categories:
            return "a finite number"
        named = ", ".join(self.categories[:MOST_NAMED])
        rest = len(self.categories) - MOST_NAMED
        return f"one of {named}" + (f" or {rest} more" if rest > 0 else "")

    def encode(self, text: str) -> float:
        """Returns a field as a number: a category by its place in the public list.

        Raises:
          ValueError: if it is an unknown category, or no finite number.
        """
        text = text.strip()
        try:
            if self.categories:
                return float(self.categories.index(text))
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self.name}: expected {self.expected}, got {text!r}")
        return number


def encode(columns: Iterable[Column], record: Mapping[str, str]) -> list[float]:
    """Returns one record as features, in the order of `columns`.

    Raises:
      ValueError: if a field is missing, an unknown category, or no finite number.
    """
    features = []
    for column in columns:
        if column.name not in record:
            raise ValueError(f"{column.name}: expected a field of this name, got none")
        features.append(column.encode(record[column.name]))
    return features


def value_range(columns: Sequence[Column]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the public low and high value of each column, to scale by."""
    lows, highs = zip(*(column.value_range for column in columns), strict=True)
    return tuple(lows), tuple(highs)


def num_categories(columns: Sequence[Column]) -> tuple[int, ...]:
    """Returns how many categories each column has; 0 for a number."""
    return tuple(len(column.categories) for column in columns)
