"""Columns of a raw table as numbers, by public lists of categories.

A record's features depend on that record and on what the table's documentation says, never on
other records: so a teacher's inputs can't change with another teacher's records.
"""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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


# Raw tables as their owners publish them: found or downloaded, and read record by record.


class RawDataError(ValueError):
    """A raw file that does not hold what it should; its message is one line for the user.

    It names the place, never the record's values.
    """


def raw_files(dl_manager: Any, urls: Mapping[str, str]) -> dict[str, pathlib.Path]:
    """Returns raw files by name: those put into the manual folder by hand, or downloaded ones.

    Downloads are checked against `checksums.tsv`.

    Args:
      dl_manager: TFDS' download manager.
      urls: from a file's name to where it is downloaded from.
    """
    try:
        folder = pathlib.Path(dl_manager.manual_dir)
    except AssertionError:  # how TFDS says that there is no such folder
        by_hand = []
    else:
        by_hand = [folder / name for name in urls if (folder / name).is_file()]
    if len(by_hand) < len(urls):
        by_hand = [pathlib.Path(path) for path in dl_manager.download(list(urls.values()))]
    return dict(zip(urls, by_hand, strict=True))


def read_records(
    lines: Iterable[str], fields: Sequence[str], *, file: str, first_line: int = 1
) -> Iterator[tuple[str, dict[str, str]]]:
    """Reads comma-separated records; blank lines are left out.

    Args:
      lines: of the file, without a header.
      fields: the name of each field.
      file: its name, for errors.
      first_line: the number of the first of `lines` in the file.

    Yields:
      Where the record stands, for errors, and its fields by name.

    Raises:
      RawDataError: if a record has another number of fields, or the file is no text.
    """
    reader = csv.reader(lines)
    try:
        for record in reader:
            if not record:
                continue
            place = f"{file}, line {reader.line_num + first_line - 1}"
            if len(record) != len(fields):
                raise RawDataError(f"{place}: expected {len(fields)} fields, got {len(record)}")
            yield place, dict(zip(fields, (field.strip() for field in record), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise RawDataError(f"{file}: expected comma-separated text, got something else") from error


def encode_record(columns: Iterable[Column], place: str, record: Mapping[str, str]) -> list[float]:
    """As `encode`, for a record of a private file.

    Raises:
      RawDataError: names the place and the column, not the value.
    """
    features = []
    for column in columns:
        try:
            features.append(column.encode(record[column.name]))
        except ValueError:
            raise RawDataError(
                f"{place}: {column.name}: expected {column.expected}, got something else"
            ) from None
    return features


def encode_label(labels: Mapping[str, int], place: str, text: str) -> int:
    """Returns the class of a record's label.

    Raises:
      RawDataError: if the label is unknown.
    """
    if text not in labels:
        raise RawDataError(
            f"{place}: label: expected one of {', '.join(labels)}, got something else"
        )
    return labels[text]
