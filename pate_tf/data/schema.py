"""Schemas of tables, which define the columns with their ranges or categories, label and owner.

A schema is public. It is written by hand or drafted from public records. It must never be derived
from private records, because its ranges and categories would reveal them. The features of a record
depend only on the schema and on this record, so a record never changes the inputs of a teacher that
does not train on it.
"""

import dataclasses
import datetime
import difflib
import functools
import json
import keyword
import math
import os
import pathlib
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from pate_tf.core.checks import raise_all
from pate_tf.core.dataset import CLASS, MAX_CHARACTER, NUMBER, SEVERAL_LABELS, UNKNOWN, Dataset

MAX_TEXT_FEATURES = 2**16
# Words and marks for a missing number, including `STR_NA_VALUES` of pandas.
_GAPS = (
    "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|"
    "null|?|-|--|."
)
GAPS = frozenset(_GAPS.split("|"))
Column: TypeAlias = pyarrow.Array | pyarrow.ChunkedArray
# The three ways to describe a label: classes, several of which can be in one field if there is a
# separator; a number; or several columns.
WAYS = ({"label", "classes", "separator"}, {"label", "low and high"}, {"labels"})
OTHER_DATES = ', or another format that the schema names, such as `date = "%d/%m/%Y"`'
# Names that pandas and pyarrow write for columns without a name.
UNNAMED = re.compile(r"(?:Unnamed: \d+|__index_level_\d+__)?")
MISFIT = -2  # class number of a text that is not a label
ONE_OF = ", one of "  # comes before a list of choices in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table, and its conversion to features.

    A number becomes one feature, clipped to the range. A date becomes its number of days
    (`date.toordinal`), clipped in the same way. A category becomes one-hot features, one for each
    listed value. A text becomes many features (`data.preprocessing`).

    Attributes:
        name: name of the column.
        low: lowest value of a number, from public knowledge; for a date, in days.
        high: highest value, like `low`.
        categories: possible values of a category; empty for numbers, dates and texts.
        other: whether a category has an additional feature for all values that are not listed.
        missing: value that replaces an empty field; None if an empty field is an error.
        text: number of features of a text (hashed n-grams of its words); 0 if the column is not a
            text.
        characters: whether the features of a text are its characters' code points instead of
            n-grams.
        date: format of a date, which contains %d, %m and %Y once each; empty if the column is not a
            date. ISO dates are always accepted. A date may be followed by a space or the letter T;
            the rest of the field, such as a time, is then ignored.
        gaps: words that are treated as an empty field, such as "unknown". For numbers and dates,
            the words in `GAPS` are added.
        decimal: decimal separator of numbers, "." or ","; empty for the separator of the schema.
        thousands: thousands separator of numbers, such as ","; empty if there is none.
        unit: unit before or after a number, such as "$" or "%"; empty if there is no unit.

    Raises:
        ValueError: if the values contradict each other.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    categories: tuple[str, ...] = ()
    other: bool = False
    missing: str | None = None
    text: int = 0
    characters: bool = False
    date: str = ""
    gaps: tuple[str, ...] = ()
    decimal: str = ""
    thousands: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        problem = ""
        if self.text:
            if not 1 <= self.text <= MAX_TEXT_FEATURES or self.categories or self.other:
                problem = f"a text needs 1 to {MAX_TEXT_FEATURES} features and no categories"
        elif self.characters:
            problem = "characters needs text, the number of characters"
        elif self.categories:
            if len(set(self.categories)) < len(self.categories):
                problem = "a category is listed twice"
        elif self.other:
            problem = "other needs categories"
        elif self.date and sorted(re.findall("%.", self.date)) != ["%Y", "%d", "%m"]:
            problem = f"a date format has %d, %m and %Y once each, got {self.date!r}"
        elif not -math.inf < self.low < self.high < math.inf:
            problem = f"low must be below high, both finite, got {self.low} and {self.high}"
        if self.decimal not in ("", ".", ",") or self.thousands in (
            self.decimal or ".",
            *"0123456789",
        ):
            problem = "decimal must be '.' or ',', and thousands another mark"
        if self.missing is not None and self.is_number and not problem:
            try:
                float(self.missing)
            except ValueError:
                problem = f"missing must be a number, got {self.missing!r}"
        if problem:
            raise ValueError(f"columns.{self.name}: {problem}")

    @property
    def width(self) -> int:
        """Number of features of the column."""
        if self.text:
            return self.text
        return len(self.categories) + self.other if self.categories else 1

    @property
    def is_number(self) -> bool:
        """Whether the fields of this column are numbers."""
        return not (self.categories or self.text or self.date)

    @property
    def example(self) -> str | float:
        """An example of a valid value, such as the lowest number or the first category."""
        if self.date:
            return datetime.date.fromordinal(int(self.low)).strftime(self.date)
        return self.low if self.is_number else next(iter(self.categories), "")

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest value of the column's features."""
        if self.characters:
            return (0.0, MAX_CHARACTER)
        return (0.0, 1.0) if self.categories or self.text else (self.low, self.high)

    @property
    def gap_words(self) -> list[str]:
        """All words that are treated as an empty field."""
        return sorted({"", *self.gaps, *(GAPS if self.is_number or self.date else ())})

    @property
    def expected(self) -> str:
        """Description of a valid field, for messages."""
        if self.is_number or self.date:
            others = OTHER_DATES * (self.date == ISO_DATE)
            kind = f"a date {self.date}{others}" if self.date else "a finite number"
            return (
                kind
                if self.missing is not None
                else f"{kind} (if fields may be empty, set `missing` in the schema)"
            )
        return "a category of the schema (`other = true` would allow more)"

    def encode(
        self, values: Column | Sequence[str]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Returns features `[num_records, width]`, and whether each record has a valid field.

        Args:
            values: field of each record, as text or number; null for an empty field.
        """
        if self.is_number or self.date:
            numbers = self.numbers(values)
            fits = np.isfinite(numbers)
            clipped = np.clip(np.where(fits, numbers, self.low), self.low, self.high)
            return clipped.astype(np.float32)[:, np.newaxis], fits
        texts = self.texts(values)
        if self.text:
            from pate_tf.data import preprocessing  # TensorFlow, only for texts

            encoded = preprocessing.encode_texts(
                texts.to_pylist(), self.text, characters=self.characters
            )
            return encoded, np.ones(len(texts), bool)
        distinct, places = distinct_of(texts)
        position = {category: index for index, category in enumerate(self.categories)}
        unlisted = len(self.categories) if self.other else -1
        # A float may be a code that was rounded because another record's field is empty.
        found = [position.get(text, -1 if is_inexact(text) else unlisted) for text in distinct]
        indices = np.array(found, np.int64)[places]
        return np.eye(self.width, dtype=np.float32)[indices], indices >= 0

    def texts(self, values: Column | Sequence[str]) -> Column:
        """Returns fields without surrounding spaces; empty fields and gaps become `missing`."""
        texts = texts_of(values)
        missing = "" if self.missing is None else self.missing
        if self.gaps or missing:
            is_gap = pc.is_in(texts, value_set=pyarrow.array(self.gap_words))
            texts = pc.if_else(is_gap, missing, texts)
        return texts

    def numbers(self, values: Column | Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns the number in each field, `[num_records]`; NaN for a field that is not a number.

        A date is converted to its number of days.
        """
        if self.date:
            distinct, places = distinct_of(self.texts(values))
            return np.array([_days(text, self.date) for text in distinct], np.float64)[places]
        numbers: Any = values
        if isinstance(values, Column) and pyarrow.types.is_integer(values.type):
            # The cast is not safe, because the error message of a safe cast could quote a value.
            numbers = values.cast(pyarrow.float64(), safe=False)
        elif not isinstance(values, Column) or not pyarrow.types.is_floating(values.type):
            texts = texts_of(values)
            pattern = f"^(?:{number_pattern(self.decimal or '.', self.thousands)})$"
            is_gap = pc.is_in(texts, value_set=pyarrow.array(self.gap_words))
            is_number = pc.match_substring_regex(texts, pattern)
            if not pc.all(pc.or_(is_gap, is_number)).as_py():
                # Removes the unit, and replaces special spaces, apostrophes and minus signs by
                # ASCII characters. A text that is already a number is not changed, so no record
                # depends on another record.
                bare = texts
                for written, plain in TYPOGRAPHIC:
                    bare = pc.replace_substring_regex(bare, written, plain)
                if self.unit:
                    unit = re.escape(self.unit)
                    around = rf"^([-+]?)\s*{unit}\s*|\s*{unit}$"
                    bare = pc.replace_substring_regex(bare, around, r"\1")
                texts = pc.if_else(is_number, texts, bare)
                is_number = pc.match_substring_regex(texts, pattern)
            if self.thousands:
                texts = pc.replace_substring(texts, self.thousands, "")
            if self.decimal == ",":
                texts = pc.replace_substring(texts, ",", ".")
            texts = pc.if_else(is_number, pc.utf8_ltrim(texts, "+"), "nan")
            numbers = pc.cast(texts, pyarrow.float64())
            numbers = pc.if_else(is_gap, None, numbers)
        if self.missing is not None:
            numbers = pc.fill_null(numbers, float(self.missing))
        return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)


def texts_of(values: Column | Sequence[str]) -> pyarrow.Array:
    """Converts fields to texts and strips spaces; null becomes an empty text."""
    if not isinstance(values, Column):
        values = pyarrow.array(values, pyarrow.string())
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if not pyarrow.types.is_string(values.type):
        values = pyarrow.array(map(code_text, values.to_pylist()), pyarrow.string())
    return pc.fill_null(pc.utf8_trim_whitespace(values), "")


def distinct_of(texts: pyarrow.Array) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Returns the distinct texts, and for each record the index of its text."""
    encoded = texts.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def number_pattern(decimal: str = ".", thousands: str = "") -> str:
    """Returns a regular expression for numbers with these decimal and thousands separators."""
    whole = r"\d+"
    point = re.escape(decimal)
    if thousands:
        whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)"
    return rf"[-+]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][-+]?\d+)?"


def has_decimals(texts: pyarrow.Array, mark: str) -> bool:
    """Whether a number has this decimal separator (1,5); ignores ambiguous numbers (1,500)."""
    point = re.escape(mark)
    has_mark = pc.match_substring_regex(texts, rf"{point}\d")
    grouped = rf"(?:^|[^\d.,])[1-9]\d{{0,2}}(?:{point}\d{{3}})+(?:[^\d.,]|$)"
    return bool(pc.any(pc.and_not(has_mark, pc.match_substring_regex(texts, grouped))).as_py())


INEXACT = 2.0**53  # larger floats can't represent every whole number
# Spreadsheets write special spaces and apostrophes between thousands or before a unit, a
# typographic minus sign, and parentheses around negative amounts.
TYPOGRAPHIC = (("[\u00a0\u2009\u202f]", " "), ("\u2019", "'"), (r"^\x{2212}|^\((.*)\)$", r"-\1"))
ISO_DATE = "%Y-%m-%d"
_PARTS = {"%d": r"(\d{1,2})", "%m": r"(\d{1,2})", "%Y": r"(\d{4})"}


def date_pattern(form: str) -> str:
    """Returns a regular expression for a date and an optional time, with a group for each part."""
    parts = re.split("(%[dmY])", form)
    return "".join(_PARTS.get(part, re.escape(part)) for part in parts) + "(?:[T ].*)?"


def _days(text: str, form: str) -> float:
    for each in dict.fromkeys((form, ISO_DATE)):
        if match := re.fullmatch(date_pattern(each), text):
            part = dict(zip(re.findall("%[dmY]", each), map(int, match.groups()), strict=True))
            try:
                return float(datetime.date(part["%Y"], part["%m"], part["%d"]).toordinal())
            except ValueError:  # this date does not exist
                return math.nan
    return math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """Public facts about a table. Columns that are not in the schema are ignored.

    Attributes:
        columns: the input columns, in the order of their features.
        classes: classes in the order of their numbers; with a `separator`, the labels that may
            appear in one field. Empty if the label is a number, or if there are `label_columns`.
        label: name of the label's column; None if callers pass the name, or if there are
            `label_columns`.
        label_columns: names of several label columns, each with yes or no; empty if there is only
            one label column.
        number: if the label is a number, its column; else None.
        separator: text between several labels in one field; None if each field has one label.
        max_labels: maximum number of labels of a record that get full weight, see `Dataset`; None
            for the number of labels.
        owner: name of the column with the owner of each record; None if there is no such column.
        name: name of the data set; None for the name of the public file.
        pool_size: default number of public samples in the student's pool. None for 70 % of the
            samples if some samples have labels, otherwise for all samples.
        delimiter: character between the fields of a file; None to detect it in the public file.
        encoding: text encoding of a file; None to detect it in the public file.
        decimal: decimal separator of numbers, "." or ","; None to detect it in the public file.
        names: column names in order, for a file without a header line; empty if there is a header
            line.

    Raises:
        ValueError: if the values contradict each other.
    """

    columns: tuple[TableColumn, ...]
    classes: tuple[str, ...] = ()
    label: str | None = None
    label_columns: tuple[str, ...] = ()
    number: TableColumn | None = None
    separator: str | None = None
    max_labels: int | None = None
    owner: str | None = None
    name: str | None = None
    pool_size: int | None = None
    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("columns must contain at least one column, and each column only once")
        self._check_target()
        if len(self.columns) > 1 and any(column.characters for column in self.columns):
            raise ValueError("characters: the text must be the only input column")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal must be '.' or ',', got {self.decimal!r}")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"delimiter must be one character, got {self.delimiter!r}")
        columns = [
            dataclasses.replace(column, decimal=column.decimal or self.decimal or "")
            for column in self.columns
        ]
        object.__setattr__(self, "columns", tuple(columns))
        if (number := self.number) is not None:
            decimal = number.decimal or self.decimal or ""
            # A missing label is never replaced by a value, so `missing` is None.
            number = dataclasses.replace(number, decimal=decimal, missing=None)
            object.__setattr__(self, "number", number)
        for role, some in (("label", self.label_names()), ("owner", (self.owner,))):
            for name in set(some).intersection(names):
                raise ValueError(f"columns.{name} is the {role}: remove it from the columns")

    def _check_target(self) -> None:
        """Raises ValueError if entries for the label contradict each other."""
        stated: dict[str, Any] = {"labels": self.label_columns, "low and high": self.number}
        stated |= {"label": self.label, "classes": self.classes, "separator": self.separator}
        given = [name for name, value in stated.items() if value]
        if not any(way.issuperset(given) for way in WAYS):
            raise ValueError(
                "label needs either classes (for a class), low and high (for a number) or labels "
                f"(for columns of 0 and 1), got {', '.join(given)}"
            )
        names = self.label_columns or self.classes
        if self.number is None and (len(names) < 2 or len(set(names)) < len(names)):
            raise ValueError(f"classes, labels: list at least 2 different names, got {list(names)}")
        if self.separator and any(self.separator in name or not name for name in names):
            raise ValueError("classes: a label must not be empty, or contain the separator")
        most = len(names) if self.target == SEVERAL_LABELS else 0
        if self.max_labels is not None and not 1 <= self.max_labels <= most:
            raise ValueError(
                f"max_labels must be from 1 to the number of labels, {most}, got {self.max_labels}"
            )

    @property
    def target(self) -> str:
        """Type of the label: "class", "number" or "labels", see `Dataset`."""
        if self.number is not None:
            return NUMBER
        return SEVERAL_LABELS if self.label_columns or self.separator else CLASS

    def label_names(self, label: str | None = None) -> tuple[str, ...]:
        """Returns the names of the label columns; by default, the names in the schema.

        Raises:
            ValueError: if the caller's columns differ from the schema's `label_columns`.
        """
        if self.label_columns and label not in (None, ",".join(self.label_columns)):
            raise ValueError(f"label: the schema has {', '.join(self.label_columns)}, got {label}")
        name = label or self.label
        return self.label_columns or ((name,) if name else ())

    def with_decimals(self, fields: Mapping[str, Column | Sequence[str]]) -> "Schema":
        """Returns the schema with decimal separators that are inferred from PUBLIC records.

        A column gets the decimal comma if some numbers have a decimal comma and none has a decimal
        point. In the opposite case, it gets the decimal point. Ambiguous numbers such as 1,234 are
        ignored. Columns with a thousands separator are not changed.
        """
        columns = []
        for column in (*self.columns, *filter(None, [self.number])):
            values = fields.get(column.name)
            is_read = isinstance(values, Column) and not pyarrow.types.is_string(values.type)
            if column.is_number and not column.thousands and not is_read and values is not None:
                texts = texts_of(values)
                marks = [mark for mark in ".," if has_decimals(texts, mark)]
                if len(marks) == 1 and marks != [column.decimal or "."]:
                    column = dataclasses.replace(column, decimal=marks[0])
            columns.append(column)
        number = None if self.number is None else columns.pop()
        return dataclasses.replace(self, columns=tuple(columns), number=number)

    def dataset(self, name: str, pool_size: int) -> Dataset:
        """Returns a `Dataset` with all public facts that a run needs about the data."""
        lows, highs = zip(
            *(column.value_range for column in self.columns for _ in range(column.width)),
            strict=True,
        )
        names = self.label_columns or self.classes
        return Dataset(
            name=name,
            kind="text" if len(self.columns) == 1 and self.columns[0].text else "tabular",
            input_shape=(len(lows),),
            value_range=(tuple(map(float, lows)), tuple(map(float, highs))),
            num_classes=len(names) or 2,
            class_names=names,
            target=self.target,
            target_range=None if self.number is None else (self.number.low, self.number.high),
            max_labels=self.max_labels or 0,
            pool_size=self.pool_size or pool_size,
            schema=self,
        )

    def input_names(self) -> dict[str, str]:
        """Returns the input name of each column in a served student.

        A name contains letters, digits and `_`. Other characters are replaced by `_`. If the result
        is already used, begins with a digit or is a keyword of Python, it gets the prefix
        `column_`.
        """
        names: dict[str, str] = {}
        for column in self.columns:
            name = re.sub(r"[^A-Za-z0-9_]", "_", column.name)
            while not name.isidentifier() or keyword.iskeyword(name) or name in names.values():
                name = f"column_{name}"
            names[column.name] = name
        return names

    def to_toml(self) -> str:
        """Returns the schema as TOML for `read_schema`, without owner and pool size."""
        stated = {name: getattr(self, name) for name in (*_TEXTS, "classes", "names", "max_labels")}
        stated.update(owner=None, labels=self.label_columns)
        number = [] if self.number is None else _column_lines(self.number)
        stated["decimal"] = None if number else self.decimal  # the lines of `number` contain it
        lines = [f"{name} = {quoted(value)}" for name, value in stated.items() if value] + number
        for column in self.columns:
            lines += ["", f"[columns.{_key(column.name)}]", *_column_lines(column, self.number)]
        return "\n".join(lines) + "\n"

    def expected_label(self, *, may_be_empty: bool = False) -> str:
        """Returns a description of a valid label field, for messages."""
        or_none = " or none" if may_be_empty else ""
        if self.number is not None:
            return f"a finite number{or_none}"
        if self.label_columns:
            return f"1, yes or true, or 0, no or false{or_none and ', or nothing'}"
        kind = f"labels separated by {self.separator!r}" if self.separator else "a class"
        return f"{kind}{or_none}{ONE_OF}{', '.join(self.classes[:12])}"

    def labels(
        self, *fields: Column | Sequence[str], may_be_empty: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Returns the labels in the given fields, and whether each field is valid.

        The spelling of a class may differ from the schema in upper and lower case, a final period,
        or the format of a number, if only one class matches. A number is clipped to its range. In a
        field for several labels, a single separator means that no label applies. Each record is
        read independently of other records.

        Args:
            *fields: one argument for each column of `label_names`: the fields of all records.
            may_be_empty: whether an empty field is valid. It then means an unknown label: -1, NaN,
                or a row of -1 for several labels.

        Returns:
            The labels in the format of `checked_labels`, and the validity of each field, bool
            `[num_records, num_fields]`. The label of an invalid field has no meaning.
        """
        if self.number is not None:
            numbers = self.number.numbers(fields[0])
            fits = np.isfinite(numbers)
            if may_be_empty:
                gaps = pyarrow.array(self.number.gap_words)
                fits |= np.asarray(pc.is_in(texts_of(fields[0]), value_set=gaps))
            return np.clip(numbers, self.number.low, self.number.high), fits[:, np.newaxis]
        parts = []
        for values in fields:
            distinct, places = distinct_of(texts_of(values))
            parts.append(self._codes(distinct)[places])
        lowest = UNKNOWN if may_be_empty else 0
        fits = np.stack([(part >= lowest).all(axis=1) for part in parts], axis=1)
        if self.target == CLASS:
            return parts[0][:, 0], fits
        labels = np.concatenate(parts, axis=1)
        labels[(labels < 0).any(axis=1)] = UNKNOWN
        return labels, fits

    def _codes(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """Returns the class number of each text; with a separator, 0 or 1 per label, `[n, width]`.

        The number is `UNKNOWN` for an empty text, and `MISFIT` for a text that is not a label.
        """
        exact = {"": UNKNOWN, **{name: code for code, name in enumerate(self.classes)}}
        spellings = [_spelled(name) for name in self.classes]
        spelled = {text: code for code, text in enumerate(spellings) if spellings.count(text) == 1}
        spelled = YES_OR_NO if self.label_columns else spelled

        def code_of(text: str) -> int:
            return exact[text] if text in exact else spelled.get(_spelled(text), MISFIT)

        if not self.separator:
            return np.array([code_of(text) for text in texts], np.int64)[:, np.newaxis]
        rows = np.zeros((len(texts), len(self.classes)), np.int64)
        for row, text in zip(rows, texts, strict=True):
            parts = [part.strip() for part in text.split(self.separator)]
            codes = [code_of(part) for part in parts if part or not text]
            lowest = min(codes, default=0)
            row[:] = [lowest if lowest < 0 else code in codes for code in range(len(row))]
        return rows

    def encode(self, record: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Returns the features of one record, float32 `[num_features]`.

        Args:
            record: fields of the record by column name.

        Raises:
            ValueError: if a field is missing or invalid.
        """
        parts = []
        for column in self.columns:
            if column.name not in record:
                raise ValueError(f"record: the column {column.name} is missing")
            features, fits = column.encode([field_text(record[column.name])])
            if not fits.all():
                raise ValueError(f"record: {column.name} must be {column.expected}")
            parts.append(features[0])
        return np.concatenate(parts)


def _spelled(text: str) -> float | str:
    """Normalizes upper and lower case, a final period, and the format of numbers in a label."""
    return _as_number(text.casefold().rstrip("."))


def _as_number(text: str) -> float | str:
    """Converts a label to a number if possible; otherwise returns the text."""
    return float(text) if re.fullmatch(number_pattern(), text) else text


def field_text(value: Any) -> str:
    """Converts a field to the text that a CSV file would contain."""
    if isinstance(value, Decimal):  # all numbers of a column have the same number of decimal places
        value = re.sub(r"\.0*$|(\.\d*?)0+$", r"\1", f"{value:f}")
    return "" if value is None else str(value).strip()


def code_text(value: Any) -> str:
    """Converts a field to text. A float that is a whole number becomes an integer.

    Data frames store all whole numbers of a column as floats if one record has a fraction; this
    function reverses that. A float of `INEXACT` or more keeps its decimal point, because it may be
    rounded.
    """
    is_code = isinstance(value, float) and value.is_integer() and abs(value) < INEXACT
    return field_text(int(value) if is_code else value)


def is_inexact(text: str) -> bool:
    """Whether a text is a float so large that it can't distinguish neighboring whole numbers."""
    return bool(re.fullmatch(r"-?\d+(\.0|(\.\d+)?e\+\d+)", text)) and abs(float(text)) >= INEXACT


# The rest of this module reads schemas from TOML files, and drafts schemas from public records.


MAX_CLASSES = 50  # with more classes, a draft contains a question
USUAL = (",", "utf-8")  # a draft omits this delimiter and encoding
MAX_AMOUNTS = 10  # maximum number of distinct fractions that a draft treats as classes
STATE_CLASSES = "[]  # list all classes"
SEPARATORS = ("|", ";", ", ")  # separators of several labels that a draft detects
MAX_NUMBERED = 20  # with more whole numbers as classes, a draft contains a question
MAX_CATEGORIES = 30  # maximum number of categories in a draft
# Numbers of hashed n-grams of a text in a draft: if it is the only column, and otherwise.
TEXT_FEATURES = 8192
MIXED_TEXT_FEATURES = 2048
TARGET_TEXT_FEATURES = 256  # for numbers and several labels, whose regressions are slower
ALIKE = 0.8  # minimum similarity of a name and its misspelling
WORDS_OF_TEXT = 4.0  # a column with at least this mean number of words is a text in a draft
ONE_OWNER = "name one column. Join several, such as first name, surname and birthday, into one"
_TEXTS = ("name", "label", "owner", "delimiter", "encoding", "decimal", "separator")
OF_NUMBER = ("low", "high", "gaps", "thousands", "unit")  # entries that describe a numeric label
_KEYS = {field.name for field in dataclasses.fields(Schema)} - {"number", "label_columns"}
_KEYS |= {"labels", *OF_NUMBER}
_COLUMN_KEYS = {field.name for field in dataclasses.fields(TableColumn)} - {"name"}
# Types of those column entries that are neither texts nor lists of texts.
_KINDS = {"low": (int, float), "high": (int, float), "text": int, "other": bool, "characters": bool}


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """Reads a schema from a TOML file.

    Raises:
        ValueError: if the file is not TOML, or not a valid schema.
        OSError: if the file can't be read.
    """
    try:
        values = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    try:
        return schema_of(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def schema_of(values: Mapping[str, Any]) -> Schema:
    """Converts parsed TOML values to a schema; raises ValueError if they are not valid."""
    _check_keys(values, _KEYS, "schema")
    columns = values.get("columns")
    if not isinstance(columns, dict) or not all(
        isinstance(entries, dict) for entries in columns.values()
    ):
        raise ValueError("columns are missing: write a table [columns.NAME] for each column")
    read = list[TableColumn]()
    faults = list[str]()
    stated = dict[str, Any]()
    try:
        stated = _target_stated(values)
        if "names" in values:
            stated["names"] = _texts(values["names"], "names")
    except ValueError as error:
        faults.append(str(error))
    for name, entries in columns.items():
        try:
            read.append(_column(name, entries))
        except ValueError as error:
            faults.append(str(error))
    if isinstance(values.get("owner"), list):
        faults.append(f"owner: {ONE_OWNER}")
    raise_all("schema", faults)
    return Schema(
        columns=tuple(read),
        pool_size=_typed(values.get("pool_size"), int, "pool_size"),
        **{name: _typed(values.get(name), str, name) for name in _TEXTS},
        **stated,
    )


def _target_stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Schema` that describe the label.

    Raises:
        ValueError: if the entries contradict each other.
    """
    label = values.get("label")
    if isinstance(label, list):
        raise ValueError('label: for several labels, write labels = ["edema", "effusion"]')
    stated = {"max_labels": _typed(values.get("max_labels"), int, "max_labels")}
    entries = {key: values[key] for key in OF_NUMBER if key in values}
    if "classes" in values:
        stated["classes"] = _texts(values["classes"], "classes")
    elif not entries and "labels" not in values:
        raise ValueError("classes are missing. If the label is a number, write low and high.")
    if "labels" in values:
        stated["label_columns"] = _texts(values["labels"], "labels")
        if len(stated["label_columns"]) == 1:
            raise ValueError(
                "labels must list at least two columns. For one label, write label = "
                f"{quoted(*stated['label_columns'])} and classes = [...] with the values of that "
                "column"
            )
    if entries:
        entries |= {"decimal": values["decimal"]} if "decimal" in values else {}
        low, high = (_typed(values.get(key), (int, float), key) for key in ("low", "high"))
        if low is None or high is None or not -math.inf < low < high < math.inf:
            raise ValueError(f"low must be below high for the label, got {low} and {high}")
        stated["number"] = _column(field_text(label or "label"), entries)
    return stated


def _column(name: str, entries: Mapping[str, Any]) -> TableColumn:
    what = f"columns.{name}"
    _check_keys(entries, _COLUMN_KEYS, what)
    is_range = "low" in entries or "high" in entries
    if is_range + ("categories" in entries) + ("text" in entries) != 1:
        raise ValueError(f"{what} needs exactly one of: low and high, categories, text")
    if is_range and not ("low" in entries and "high" in entries):
        raise ValueError(f"{what} needs both low and high, from public knowledge")
    date = entries.get("date", ISO_DATE if isinstance(entries.get("low"), datetime.date) else None)
    if date is not None:
        for key in ("low", "high"):
            if not isinstance(entries.get(key), datetime.date):
                raise ValueError(f"{what}.{key} must be a date such as 2024-03-01")
        low, high = (entries[key].toordinal() for key in ("low", "high"))
        entries = {**entries, "date": date, "low": low, "high": high}
    values = dict[str, Any]()
    for key, entry in entries.items():
        if key in ("categories", "gaps"):
            values[key] = _texts(entry, f"{what}.{key}")
        elif key == "missing":
            values[key] = field_text(entry)
        else:
            values[key] = _typed(entry, _KINDS.get(key, str), f"{what}.{key}")
    return TableColumn(name=name, **values)


quoted = functools.partial(json.dumps, ensure_ascii=False)  # JSON strings are valid TOML


def _column_lines(column: TableColumn, number: TableColumn | None = None) -> list[str]:
    """Returns a column's entries in TOML.

    Args:
        column: column to write.
        number: column of the label if it is a number; other columns inherit its decimal
            separator.
    """
    if number is not None and number.decimal == "," and column.is_number:
        column = dataclasses.replace(column, decimal=column.decimal or ".")
    if column.text:
        lines = [f"text = {column.text}"]
        lines += ["characters = true"] if column.characters else []
    elif column.categories:
        lines = [f"categories = {quoted(column.categories)}"]
        lines += ["other = true  # adds a category for all other values"] if column.other else []
    elif column.date:
        low, high = (datetime.date.fromordinal(int(day)) for day in (column.low, column.high))
        lines = [f"low = {low}", f"high = {high}", f"date = {quoted(column.date)}"]
    else:
        lines = [f"low = {column.low!r}", f"high = {column.high!r}"]
    if column.missing is not None:
        missing = column.missing if column.is_number else quoted(column.missing)
        lines.append(f"missing = {missing}  # replaces an empty field")
    lines += [f"gaps = {quoted(column.gaps)}"] if column.gaps else []
    for key in ("decimal", "thousands", "unit"):
        lines += [f"{key} = {quoted(getattr(column, key))}"] if getattr(column, key) else []
    return lines


def _check_keys(entries: Mapping[str, Any], allowed: set[str], what: str) -> None:
    if strange := sorted(set(entries) - allowed):
        raise ValueError(f"{what}: unknown entry {strange[0]!r}. Use {', '.join(sorted(allowed))}.")


def _texts(values: Any, what: str) -> tuple[str, ...]:
    is_list = isinstance(values, list) and values
    if not is_list or any(isinstance(value, list | dict) for value in values):
        key = what.rpartition(".")[-1]
        raise ValueError(f'{what} needs a list of {key}, such as {key} = ["a", "b"]')
    return tuple(field_text(value) for value in values)


def _typed(value: Any, kind: Any, what: str) -> Any:
    is_flag = isinstance(value, bool) and kind is not bool
    if value is not None and (is_flag or not isinstance(value, kind)):
        raise ValueError(f"{what} has the wrong type, {type(value).__name__}")
    return value


def draft_columns(
    fields: Mapping[str, Column],
    *,
    without: Collection[str | None],
    categories: Collection[str] = (),
) -> dict[str, TableColumn | None]:
    """Drafts columns from PUBLIC records; returns each by its name, or None if it can't be used.

    Args:
        fields: fields of all records for each column, by column name.
        without: names of columns that are not inputs.
        categories: names of columns in which numbers are categories.

    Raises:
        ValueError: if no column can be used.
    """
    columns = dict[str, TableColumn | None]()
    for name, values in fields.items():
        if name in without or UNNAMED.fullmatch(name):
            continue
        texts = texts_of(values)
        distinct, _ = distinct_of(texts)
        column = None
        if not GAPS.issuperset(filter(None, distinct)):
            column = _drafted_date(name, distinct)
            if column is None and name not in categories:
                column = _drafted_number(name, texts, distinct)
        columns[name] = column or _drafted_text(name, texts, distinct)
    kept = [column for column in columns.values() if column]
    if len(kept) == 1 and kept[0].text:
        columns[kept[0].name] = dataclasses.replace(kept[0], text=TEXT_FEATURES)
    if fields and not any(columns.values()):
        raise ValueError(
            "columns: no column has numbers, texts or repeated values. Write a schema by hand. For "
            f"a column of texts, write [columns.NAME] with text = {TEXT_FEATURES}"
        )
    return columns


def draft(
    fields: Mapping[str, Column],
    *,
    label: str | None = None,
    owner: str | None = None,
    target: str | None = None,
    left_out: Sequence[str] = (),
    names: Sequence[str] = (),
    written: Mapping[str, str | Sequence[str]] | None = None,
) -> str:
    """Drafts a schema in TOML from PUBLIC records. A person must review the draft.

    Comments in the draft contain questions for this person.

    Args:
        fields: fields of all records for each column, by column name.
        label: name of the label's column, or names of several label columns, separated by commas.
            Public records may have no labels.
        owner: name of the column with the owner of each record; None if there is none.
        target: "class", "number" or "labels". Default: inferred from the label's values.
        left_out: names of columns that could not be read.
        names: generated column names if the file has no header line; else empty.
        written: entries of the draft: delimiter and encoding of the file, and classes that replace
            the label's values.

    Raises:
        ValueError: if no column can be used, the label's name is misspelled, or the label's values
            do not match the target.
    """
    labels = split_names(label, fields)
    if names and (strange := sorted({*labels} - {*names})):
        raise ValueError(
            f"label: there is no column {strange[0]}. The first line of the file is a record, so "
            f"the names of the columns are {', '.join(names)}"
        )
    stated, doubts = drafted_target(labels, fields, target)
    number = stated.get("number")
    doubts += _check_roles(fields, labels, owner)
    if numbers := [name for name in fields if re.fullmatch(number_pattern(), name)]:
        doubts.append(f"the first line has numbers ({', '.join(numbers)}): are they column names?")
    doubts += unnamed_left_out([*left_out, *fields])
    doubts += [
        f"left out: several columns are named {name!r}, or the column is nested"
        for name in dict.fromkeys(filter(None, left_out))
    ]
    if number is not None:
        texts = texts_of(fields[labels[0]])
        doubts += _number_doubts(number, texts, distinct_of(texts)[0])
    doubts += _label_doubts(stated.get("classes", ()), fields, without=(*labels, owner))
    remarks = ["Drafted from public records. Review it: ranges and categories become public."]
    others = {"names": names, "owner": owner, **(written or {})}
    lines = _draft_lines([*remarks, *doubts], labels, stated, **others)
    for name, column in draft_columns(fields, without=(*labels, owner)).items():
        lines += ["", f"# left out: {name!r} is empty, or most values occur once (names?)"]
        if column is not None:
            if column.text == MIXED_TEXT_FEATURES and "classes" not in stated:
                column = dataclasses.replace(column, text=TARGET_TEXT_FEATURES)
            lines[-1:] = [f"[columns.{_key(name)}]"]
            lines += [f"# {doubt}" for doubt in _doubts(column, fields[name])]
            lines += _column_lines(column, number)
    return "\n".join(lines) + "\n"


def split_names(text: str | None, known: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the names in a text, split at commas unless the whole text is a known name."""
    if not text:
        return ()
    return (text,) if text in known else tuple(part.strip() for part in text.split(","))


def drafted_target(
    labels: Sequence[str], fields: Mapping[str, Column], target: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Infers the fields of `Schema` for the label from PUBLIC records; also returns questions.

    Args:
        labels: names of the label's columns.
        fields: fields of all records for each column, by column name.
        target: type of the label, see `draft`.

    Raises:
        ValueError: if the label's values do not match the target.
    """
    if len(labels) > 1:
        if target not in (None, SEVERAL_LABELS):
            raise ValueError(f"target: {target} needs a single column, got {', '.join(labels)}")
        return {"label_columns": tuple(labels)}, []
    texts = texts_of(fields[labels[0]] if labels and labels[0] in fields else [])
    spelled = sorted({*distinct_of(texts)[0]} - {""}, key=lambda text: (len(text), text))
    doubts = list[str]()
    if target in (None, NUMBER):
        number, doubts = _drafted_label_number(labels, texts, target)
        if number is not None or target == NUMBER:
            return {"number": number}, doubts
    for separator in SEPARATORS if target != CLASS else ():
        parts = {part.strip() for text in spelled for part in text.split(separator)} - {""}
        joined = [text for text in spelled if separator in text]
        if joined and 2 <= len(parts) <= min(MAX_CLASSES, len(spelled)):
            doubts = [f"{joined[0]} is read as several labels. For classes, use --target=class"]
            return {"classes": tuple(sorted(parts)), "separator": separator}, doubts
    classes = tuple(sorted({_as_number(text): text for text in reversed(spelled)}.values()))
    if target == SEVERAL_LABELS:
        return {"classes": classes, "separator": SEPARATORS[0]}, doubts
    return {"classes": classes}, doubts


def _drafted_label_number(
    labels: Sequence[str], texts: pyarrow.Array, target: str | None
) -> tuple[TableColumn | None, list[str]]:
    """Returns the column of a numeric label (None for classes) and questions for the user."""
    distinct = distinct_of(texts)[0]
    has_values = not GAPS.issuperset(filter(None, distinct))
    number = _drafted_number(labels[0], texts, distinct) if has_values else None
    if number is None:
        if target == NUMBER and has_values:
            raise ValueError(f"target: some values of {labels[0]} are not numbers")
        return None, []
    number = dataclasses.replace(number, missing=None)
    amounts = np.unique(number.numbers(texts))
    amounts = amounts[np.isfinite(amounts)]
    is_whole = np.array_equal(amounts, np.rint(amounts))
    is_numbering = is_whole and amounts[0] in (0, 1) and np.ptp(amounts) < len(amounts)
    is_many = len(amounts) > (MAX_NUMBERED if is_whole else MAX_AMOUNTS)
    doubts = []
    is_clear = is_numbering and len(amounts) < MAX_NUMBERED
    if target is None and not is_clear and len(amounts) <= MAX_CLASSES:
        drafted, other = (CLASS, NUMBER) if is_numbering or not is_many else (NUMBER, CLASS)
        doubts.append(f"is the label a {drafted}? If it is a {other}, use --target={other}")
    if target is None and (is_numbering or not is_many):
        return None, doubts
    return dataclasses.replace(number, low=float(amounts[0])), doubts


def _label_doubts(
    classes: Sequence[str], fields: Mapping[str, Column], *, without: Collection[str | None]
) -> list[str]:
    """Returns questions about the classes, for the person who reviews the draft."""
    doubts = _alike(classes)
    num_records = max(map(len, fields.values()), default=0)
    if len(classes) > MAX_CLASSES or (len(classes) == num_records > 2):
        doubts.append(f"the label has {len(classes)} values: is it an identifier or a number?")
    likes = [
        name
        for name, values in fields.items()
        if name not in without and {*distinct_of(texts_of(values))[0]} - {""} == {*classes}
    ]
    if classes and likes:
        doubts.append(
            f"{', '.join(likes)}: same values as the label. If these are labels, pass all of them: "
            "--label=a,b. Remove columns that are unknown when the model predicts"
        )
    return doubts


def draft_of_names(
    names: Sequence[str],
    *,
    labels: Sequence[str],
    owner: str | None,
    target: str | None = None,
    written: Mapping[str, str | Sequence[str]],
) -> str:
    """Drafts a schema in TOML from column names only. A person must add everything else.

    Args:
        names: names of the columns.
        labels: names of the label's columns.
        owner: name of the column with the owner of each record; None if there is none.
        target: type of the label, see `draft`.
        written: entries of the draft, see `draft`.
    """
    remarks = [
        "Drafted from the column names. It contains no values of records. Add public facts",
        "about each column. Never use the lowest and highest values of private records.",
    ]
    stated, _ = drafted_target(labels, {}, target)
    remarks += unnamed_left_out(names)
    lines = _draft_lines(remarks, labels, stated, owner=owner, **written)
    for name in dict.fromkeys(names):
        if name not in (*labels, owner) and not UNNAMED.fullmatch(name):
            lines += ["", f"[columns.{_key(name)}]", *STATED]
    return "\n".join(lines) + "\n"


def _draft_lines(
    remarks: Sequence[str],
    labels: Sequence[str],
    target: Mapping[str, Any],
    **others: str | Sequence[str] | None,
) -> list[str]:
    """Returns the lines of a draft in TOML: remarks, and entries that are not the default."""
    lines = [f"# {remark}" for remark in remarks]
    lines += [f"label = {quoted(labels[0])}"] if len(labels) == 1 else []
    if "number" in target:
        lines += STATED[:2] if target["number"] is None else _column_lines(target["number"])
    if "classes" in target and not others.get("classes"):
        listed = quoted(target["classes"]) if len(target["classes"]) > 1 else STATE_CLASSES
        lines.append(f"classes = {listed}")
    others = {"labels": target.get("label_columns"), "separator": target.get("separator"), **others}
    stated = {name: value for name, value in others.items() if value and value not in USUAL}
    return [*lines, *(f"{name} = {quoted(value)}" for name, value in stated.items())]


def unnamed_left_out(names: Sequence[str]) -> list[str]:
    """Returns a list with a remark about columns without a name; empty if all have names."""
    number = sum(bool(UNNAMED.fullmatch(name)) for name in names)
    return [f"{number} columns without a name are left out"] if number else []


# Comments in a draft that show three ways to describe a column: a range, categories or text.
STATED = (
    "# low = LOWEST  # possible value; lower values are clipped",
    "# high = HIGHEST",
    '# categories = ["a", "b"]  # instead of a range',
    "# text = 512  # instead of a range; more features need public records",
)


def _check_roles(names: Collection[str], labels: Sequence[str], owner: str | None) -> list[str]:
    """Returns remarks about columns for the label and the owner that are not in the file.

    Raises:
        ValueError: if such a name is misspelled, because the column would become an input.
    """
    doubts = []
    if owner and owner not in names and {*owner.split(",")} <= {*names}:
        raise ValueError(f"owner: {ONE_OWNER}")
    for role, name in [*(("label", name) for name in labels), ("owner", owner)]:
        if name is not None and name not in names and (near := nearest(name, names)):
            if _letters(near) == _letters(name):
                raise ValueError(f"{role}: there is no column {name}. Did you mean {near}?")
            doubts.append(f"there is no column {name!r}: is {near!r} the {role}?")
        elif name is not None and name not in names:
            doubts.append(f"there is no column {name!r}: do public records lack the {role}?")
    return doubts


def nearest(name: str, names: Collection[str]) -> str | None:
    """Returns the name that is most similar to `name`; None if no name is similar."""
    alike = {_letters(each): each for each in names}
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, 1, cutoff=ALIKE)
    return alike.get(_letters(name)) or (folded[close[0]] if close else None)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


# Number formats that are tried in this order: decimal separator and thousands separator.
FORMS = ((".", ""), (",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"))
SENTINELS = frozenset(sign * (10.0**digits - 1.0) for digits in range(2, 7) for sign in (-1, 1)) | {
    -1.0,
    -9.0,
}
DATES = (ISO_DATE, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y")
MARK = r"[^\w\s.,'\u2019+()\u2212-]"  # regular expression for a symbol of a unit
UNIT = re.compile(rf"[-+]?({MARK}?)\s*[-+]?[\d.,'\u2019\s]*\d\s*([^\W\d_]{{0,3}}|{MARK})")
OWNERS = re.compile(  # names of columns that may identify a person
    "(?i:(?:.*[_ .-])?(?:id|key|mrn|ssn|e-?mail)|(?:sur|last|first|full)?[_ .-]?name|"
    "(?:patient|person|subject|customer|client|user|member|participant)"
    "(?:[_ .-]?(?:no|nr|num|number|code|name))?)|.*[a-z]I[Dd]"
)
CODES = re.compile("(?i:(?:.*[_ .-])?(?:zip|plz|code|postcode|zipcode))")  # names of columns
FAR = 5.0  # minimum distance of an outlier, in ranges of all other numbers
NUMBERS_PER_WORD = 20  # with more numbers per word, words are treated as gaps
TRUTH_VALUES = ({"1", "true", "yes", "y", "t"}, {"0", "false", "no", "n", "f"})
YES_OR_NO = {_spelled(word): 1 - place for place, some in enumerate(TRUTH_VALUES) for word in some}


def _drafted_date(name: str, distinct: Sequence[str]) -> TableColumn | None:
    """Drafts a column of dates; returns None if some values are neither dates nor gaps."""
    gaps = tuple(sorted(GAPS.intersection(distinct)))
    for form in DATES:
        days = [_days(text, form) for text in distinct if text not in ("", *gaps)]
        if np.isfinite(days).all():
            column = TableColumn(name=name, low=min(days), high=max(days) + 1.0, date=form)
            return dataclasses.replace(column, missing=str(column.example), gaps=gaps)
    return None


def _drafted_number(name: str, texts: pyarrow.Array, distinct: Sequence[str]) -> TableColumn | None:
    """Drafts a column of numbers; returns None if a text is neither a number nor a gap."""
    gaps = tuple(sorted(GAPS.intersection(distinct)))
    numbers = sorted({*distinct} - {"", *gaps})
    words = [text for text in numbers if not re.search(r"\d", text.partition(" ")[0])]
    if words and NUMBERS_PER_WORD * len(words) < len(numbers):
        gaps = (*gaps, *words)
        numbers = [text for text in numbers if text not in words]
    units = {"".join(match.groups()) if (match := UNIT.fullmatch(text)) else "" for text in numbers}
    unit = units.pop() if len(units) == 1 else ""
    for decimal, thousands in FORMS:
        column = TableColumn(
            name=name,
            decimal="" if decimal == "." else decimal,
            thousands=thousands,
            gaps=gaps,
            unit=unit,
        )
        is_grouped = decimal == "," and not has_decimals(pyarrow.array(numbers), decimal)
        if np.isnan(column.numbers(numbers)).any() or (is_grouped and not thousands):
            continue
        parsed = column.numbers(texts)
        parsed = parsed[np.isfinite(parsed)]
        low = float(parsed.min())
        high = float(parsed.max())
        high = high if low < high else low + max(1.0, 1e-9 * abs(low))
        missing = float(f"{np.median(parsed):.6g}")
        # A gap may be informative, so it is replaced by a value below all other values. The
        # distance to the lowest value is about a quarter of the range, rounded to few digits.
        if "" in distinct or gaps:
            places = 1 - math.floor(math.log10(high - low))
            missing = low = round(low - (high - low) / 4 - 0.5 * 10.0**-places, places) + 0.0
        return dataclasses.replace(column, low=low, high=high, missing=repr(missing))
    return None


def _drafted_text(name: str, texts: pyarrow.Array, distinct: Sequence[str]) -> TableColumn | None:
    """Drafts a column of texts or categories; None if the column is empty or an identifier."""
    values = sorted({*distinct} - {""})
    if len(values) > MAX_CATEGORIES:
        if np.mean([len(text.split()) for text in values]) >= WORDS_OF_TEXT:
            return TableColumn(name=name, text=MIXED_TEXT_FEATURES)
        counts = Counter(texts.to_pylist())
        listed = sorted(values, key=lambda text: (-counts[text], text))[:MAX_CATEGORIES]
        if counts[listed[-1]] == 1:  # most values occur once, as in an identifier
            return None
        values = sorted(listed)
    if not values:
        return None
    return TableColumn(name=name, categories=(*values, *[""] * ("" in distinct)), other=True)


def _doubts(column: TableColumn, fields: Column) -> list[str]:
    """Returns questions about a drafted column, for the person who reviews the draft."""
    texts = texts_of(fields)
    distinct, places = distinct_of(texts)
    doubts = []
    if len(distinct) == 1:
        doubts.append("constant: every public record has the same value")
    # Records of one person have the same identifier and are often adjacent, so a column whose equal
    # values are all adjacent may be an identifier.
    is_grouped = np.count_nonzero(np.diff(places)) + 1 == len(distinct) > MAX_CATEGORIES
    is_repeated = 2 < len(distinct) < len(texts) and not column.date
    if is_repeated and (is_grouped or OWNERS.fullmatch(column.name)):
        doubts.append(f"a person's id? Write owner = {quoted(column.name)} and remove the column")
    if column.is_number:
        doubts += _number_doubts(column, texts, distinct)
    is_short = np.mean([len(text.split()) for text in distinct]) < 2 * WORDS_OF_TEXT
    if column.text and is_short and len(distinct) == len(texts):
        doubts.append("every record has a different short text: if they are names, remove it")
    if column.categories and (rest := len(set(distinct) - set(column.categories))):
        doubts.append(
            f"the most frequent of {len(distinct)} values; `other` covers {rest} more values. Add "
            "important values to the list"
        )
    if column.date and column.date != ISO_DATE:
        days = [text for text in distinct if text not in column.gap_words]
        doubts += [
            f"{form} is also possible: does the day or the month come first?"
            for form in DATES[1:]
            if form != column.date and np.isfinite([_days(text, form) for text in days]).all()
        ]
    return doubts + _alike(column.categories)


def _number_doubts(column: TableColumn, texts: pyarrow.Array, distinct: Sequence[str]) -> list[str]:
    """Returns questions about a drafted column of numbers."""
    doubts = []
    values = dataclasses.replace(column, missing=None).numbers(texts)
    values = values[np.isfinite(values)]  # without gaps
    ascending = np.unique(values)
    low, high = np.quantile(values, (0.01, 0.99))
    if column.missing is not None and float(column.missing) < ascending[0]:
        doubts.append(
            "some fields are empty: `missing` replaces them, and the range includes it. The lowest "
            f"number is {ascending[0]:g}"
        )
    numbers = [text for text in distinct if text not in column.gap_words]
    if CODES.fullmatch(column.name) or any(re.fullmatch(r"0\d.*|\d+[eE]\d+", n) for n in numbers):
        listed = quoted(sorted(numbers)[:MAX_CATEGORIES])
        doubts.append(
            f"are these numbers codes? Then replace low, high and missing by categories = {listed}"
        )
    elif (far := _far_value(ascending)) is not None:
        doubt = "does it mean unknown?" if far in SENTINELS else "correct the range if it is wrong"
        doubts.append(f"{far:.12g} is far from all other values: {doubt}")
    elif values.min() < 0.0 <= low:
        doubts.append(f"99 % of the values are at least 0: is {values.min():g} possible?")
    # Noise on a numeric label is proportional to its range. Without a pool, bins have equal widths,
    # so half of the bins of such a column would get 1 % of the records.
    elif len(ascending) > MAX_NUMBERED and high < ascending[[0, -1]].mean():
        doubts.append(
            f"99 % of the values are in half of the range, at most {high:g}. Is high unusual? A "
            "lower high clips larger values, and less noise is needed"
        )
    is_whole = np.array_equal(ascending, np.rint(ascending))
    if is_whole and len(distinct) == len(texts) > MAX_CATEGORIES:
        doubts.append("every record has a different number: is it an identifier?")
    marks = r"\(" if has_decimals(pyarrow.array(numbers), ".") else r"\(|\."
    is_marked = any(re.search(marks, text) for text in numbers)
    if column.thousands or column.unit or column.decimal == "," or is_marked:
        example = max(
            numbers, key=lambda text: ("(" in text, (column.decimal or ".") in text, len(text))
        )
        doubts.append(f"{example} is read as {column.numbers([example])[0]:.12g}")
    return doubts


def _far_value(ascending: npt.NDArray[np.float64]) -> float | None:
    """Returns the most extreme outlier; None if no number is far from all other numbers."""
    if len(ascending) < 4:
        return None
    gaps = np.diff(ascending)
    few, many = sorted(np.split(ascending, [int(gaps.argmax()) + 1]), key=len)
    farthest = float(max(few, key=lambda number: abs(number - many[0])))
    factor = 1.0 if len(few) == 1 and farthest in SENTINELS else FAR
    return farthest if len(many) > 2 and gaps.max() > factor * np.ptp(many) else None


def _alike(names: Sequence[str]) -> list[str]:
    """Returns questions about names that may be equivalent, such as Yes and yes, or y and 1."""
    groups: dict[str, list[str]] = {}
    for name in names:
        text = name.casefold()
        groups.setdefault(
            next((min(some) for some in TRUTH_VALUES if text in some), text), []
        ).append(name)
    return [
        f"do {' and '.join(map(quoted, some))} mean the same?"
        for some in groups.values()
        if len(some) > 1
    ]


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else quoted(name)
