"""What a user states of a table: its columns, their ranges and categories, its label and owner.

A schema is public. It is written by hand, or drafted from public records; never from private ones,
since then a range or a list of categories would tell of them. So a record becomes features by the
schema and by itself alone, and a teacher's inputs can't change with another teacher's records.
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
from pate_tf.core.dataset import CLASS, LARGEST_CHARACTER, NUMBER, SEVERAL_LABELS, UNKNOWN, Dataset

MOST_TEXT_FEATURES = 2**16
# Words that stand for no number: `STR_NA_VALUES` of pandas, and marks.
GAPS = frozenset(
    [
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
        "?",
        "-",
        "--",
        ".",
    ]
)
Column: TypeAlias = pyarrow.Array | pyarrow.ChunkedArray
# What is stated of a label: a class, or several in one field; a number; several columns.
WAYS = ({"label", "classes", "separator"}, {"label", "low and high"}, {"labels"})
OTHER_DATES = ', unless the schema says another, such as `date = "%d/%m/%Y"`'
# A column without a name, and what pandas and pyarrow call one.
UNNAMED = re.compile(r"(?:Unnamed: \d+|__index_level_\d+__)?")
MISFIT = -2  # the code of a label that is none
ONE_OF = ", one of "  # begins a list in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table, and how it becomes features.

    A number is one feature, clipped to the range, and so is a date, as its number of days
    (`date.toordinal`). A category is a feature for each in the list, 1 for the one that it is. A
    text is many, as `data.preprocessing` makes them.

    Attributes:
        name: of the column.
        low: lowest value of a number, from public knowledge; of a date, in days.
        high: highest value.
        categories: what else it can be; empty for a number.
        other: whether there is one more feature for values that are not in the list.
        missing: what stands for an empty field; None if that is an error.
        text: how many features a text becomes, hashed n-grams of its words; 0 if it is none.
        date: how a date is written, of %d, %m and %Y, each once; empty if it is none. ISO dates
            are understood too, and what follows a date and a space or a T counts for nothing.
        gaps: words that stand for an empty field, such as unknown; of numbers and dates besides
            `GAPS`.
        decimal: "." or ",", in numbers; empty as the schema has it.
        thousands: what may stand between thousands of a number, such as ","; empty for nothing.
        unit: what may stand before or after a number, such as "$" or "%"; empty for nothing.

    Raises:
        ValueError: if range and categories don't stand together.
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
        expected = ""
        if self.text:
            if not 1 <= self.text <= MOST_TEXT_FEATURES or self.categories or self.other:
                expected = f"for a text from 1 to {MOST_TEXT_FEATURES} features and no categories"
        elif self.characters:
            expected = "characters with text alone, whose number they are"
        elif self.categories:
            if len(set(self.categories)) < len(self.categories):
                expected = "each category once, got one twice"
        elif self.other:
            expected = "other with categories alone"
        elif self.date and sorted(re.findall("%.", self.date)) != ["%Y", "%d", "%m"]:
            expected = f"a date of %d, %m and %Y, each once, got {self.date!r}"
        elif not -math.inf < self.low < self.high < math.inf:
            expected = f"finite low < high, got {self.low} and {self.high}"
        if self.decimal not in ("", ".", ",") or self.thousands in (
            self.decimal or ".",
            *"0123456789",
        ):
            expected = "decimal '.' or ',', and another mark between thousands"
        if self.missing is not None and self.is_number and not expected:
            try:
                float(self.missing)
            except ValueError:
                expected = f"a number for missing, got {self.missing!r}"
        if expected:
            raise ValueError(f"columns.{self.name}: expected {expected}")

    @property
    def width(self) -> int:
        """How many features it becomes."""
        if self.text:
            return self.text
        return len(self.categories) + self.other if self.categories else 1

    @property
    def is_number(self) -> bool:
        """Whether its fields are numbers."""
        return not (self.categories or self.text or self.date)

    @property
    def example(self) -> str | float:
        """A value that fits, of what the schema says: the lowest number, the first category."""
        if self.date:
            return datetime.date.fromordinal(int(self.low)).strftime(self.date)
        return self.low if self.is_number else next(iter(self.categories), "")

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest value of each of its features."""
        if self.characters:
            return (0.0, LARGEST_CHARACTER)
        return (0.0, 1.0) if self.categories or self.text else (self.low, self.high)

    @property
    def gap_words(self) -> list[str]:
        """What stands for an empty field."""
        return sorted({"", *self.gaps, *(GAPS if self.is_number or self.date else ())})

    @property
    def expected(self) -> str:
        """What each field has to be, for messages."""
        if self.is_number or self.date:
            others = OTHER_DATES * (self.date == ISO_DATE)
            kind = f"a date {self.date}{others}" if self.date else "a finite number"
            return kind if self.missing is not None else f"{kind} (no `missing` stands for gaps)"
        return "a category of the schema (no `other` stands for others)"

    def encode(
        self, values: Column | Sequence[str]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Returns features `[num_records, width]`, and which records fit the column.

        Args:
            values: a field of each record, texts or numbers, null where there is none.
        """
        if self.is_number or self.date:
            numbers = self.numbers(values)
            fits = np.isfinite(numbers)
            clipped = np.clip(np.where(fits, numbers, self.low), self.low, self.high)
            return clipped.astype(np.float32)[:, np.newaxis], fits
        texts = self.texts(values)
        if self.text:
            from pate_tf.data import preprocessing  # TensorFlow, for texts alone

            encoded = preprocessing.encode_texts(
                texts.to_pylist(), self.text, characters=self.characters
            )
            return encoded, np.ones(len(texts), bool)
        distinct, places = distinct_of(texts)
        position = {category: index for index, category in enumerate(self.categories)}
        unlisted = len(self.categories) if self.other else -1
        indices = np.array([position.get(text, unlisted) for text in distinct], np.int64)[places]
        return np.eye(self.width, dtype=np.float32)[indices], indices >= 0

    def texts(self, values: Column | Sequence[str]) -> Column:
        """Returns fields without spaces around them, `missing` for those that are not known."""
        texts = texts_of(values)
        missing = "" if self.missing is None else self.missing
        if self.gaps or missing:
            is_gap = pc.is_in(texts, value_set=pyarrow.array(self.gap_words))
            texts = pc.if_else(is_gap, missing, texts)
        return texts

    def numbers(self, values: Column | Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns the number that each field says, `[num_records]`; NaN where it says none.

        Of a date it is that of its days.
        """
        if self.date:
            distinct, places = distinct_of(self.texts(values))
            return np.array([_days(text, self.date) for text in distinct], np.float64)[places]
        numbers: Any = values
        if isinstance(values, Column) and pyarrow.types.is_integer(values.type):
            numbers = values.cast(pyarrow.float64(), safe=False)  # else errors quote large values
        elif not isinstance(values, Column) or not pyarrow.types.is_floating(values.type):
            texts = texts_of(values)
            pattern = f"^(?:{number_pattern(self.decimal or '.', self.thousands)})$"
            is_gap = pc.is_in(texts, value_set=pyarrow.array(self.gap_words))
            is_number = pc.match_substring_regex(texts, pattern)
            if not pc.all(pc.or_(is_gap, is_number)).as_py():
                # Without the unit, with plain blanks, apostrophes and minus signs; each text by
                # itself: one that is a number already stays as it is.
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
    """Returns fields as texts without spaces around them, empty where there is nothing."""
    if not isinstance(values, Column):
        values = pyarrow.array(values, pyarrow.string())
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if not pyarrow.types.is_string(values.type):
        values = pyarrow.array(map(code_text, values.to_pylist()), pyarrow.string())
    return pc.fill_null(pc.utf8_trim_whitespace(values), "")


def distinct_of(texts: pyarrow.Array) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Returns the distinct texts, and which of them each record has."""
    encoded = texts.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def number_pattern(decimal: str = ".", thousands: str = "") -> str:
    """Returns a regular expression of numbers with a decimal mark, and a mark between thousands."""
    whole = r"\d+"
    point = re.escape(decimal)
    if thousands:
        whole = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)"
    return rf"[-+]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][-+]?\d+)?"


def has_decimals(texts: pyarrow.Array, mark: str) -> bool:
    """Whether a mark stands in some numbers where none stands between thousands: 1,5 not 1,500."""
    point = re.escape(mark)
    has_mark = pc.match_substring_regex(texts, rf"{point}\d")
    grouped = rf"(?:^|[^\d.,])[1-9]\d{{0,2}}(?:{point}\d{{3}})+(?:[^\d.,]|$)"
    return bool(pc.any(pc.and_not(has_mark, pc.match_substring_regex(texts, grouped))).as_py())


INEXACT = 2.0**53  # floats from here on are not all whole numbers
# How spreadsheets write blanks and apostrophes between thousands, or before a unit; a typographic
# minus, and parentheses of accountants.
TYPOGRAPHIC = (("[\u00a0\u2009\u202f]", " "), ("\u2019", "'"), (r"^\x{2212}|^\((.*)\)$", r"-\1"))
ISO_DATE = "%Y-%m-%d"
_PARTS = {"%d": r"(\d{1,2})", "%m": r"(\d{1,2})", "%Y": r"(\d{4})"}


def date_pattern(form: str) -> str:
    """Returns a regular expression of a date and what may follow, a group for each part."""
    parts = re.split("(%[dmY])", form)
    return "".join(_PARTS.get(part, re.escape(part)) for part in parts) + "(?:[T ].*)?"


def _days(text: str, form: str) -> float:
    for each in dict.fromkeys((form, ISO_DATE)):
        if match := re.fullmatch(date_pattern(each), text):
            part = dict(zip(re.findall("%[dmY]", each), map(int, match.groups()), strict=True))
            try:
                return float(datetime.date(part["%Y"], part["%m"], part["%d"]).toordinal())
            except ValueError:  # no day of the calendar
                return math.nan
    return math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """What is publicly known of a table; columns that it does not name are not used.

    Attributes:
        columns: in the order of their features.
        classes: what the label can be, in the order of the classes' numbers; with a `separator`
            the labels of which a field holds several. Empty for a number or `label_columns`.
        label: name of the label's column; None if the caller says, or with `label_columns`.
        label_columns: names of several labels, a column of yes or no each; empty for one column.
        number: the label's column if it is a number, and how it is read; None for other labels.
        separator: what stands between several labels in one field; None if a field holds one.
        max_labels: as of `Dataset`; None for the number of labels.
        owner: name of the column that says whose a record is; None for none.
        name: of the data set; None for the public file's.
        pool_size: how many public samples form the student's pool by default; None for 70 % of
            those of the public file if some have labels, else all.
        delimiter: what stands between the fields of a file; None as the public file has it.
        encoding: of a file's text; None as the public file has it.
        decimal: "." or ",", in numbers; None as the public file has it.
        names: of the columns of a file that doesn't name them, in their order; empty if it does.

    Raises:
        ValueError: if they don't stand together.
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
            raise ValueError("columns: expected at least one, each once")
        self._check_target()
        if len(self.columns) > 1 and any(column.characters for column in self.columns):
            raise ValueError("characters: expected a text that is the only column, got others")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"delimiter: expected one character, got {self.delimiter!r}")
        columns = [
            dataclasses.replace(column, decimal=column.decimal or self.decimal or "")
            for column in self.columns
        ]
        object.__setattr__(self, "columns", tuple(columns))
        if (number := self.number) is not None:
            decimal = number.decimal or self.decimal or ""
            number = dataclasses.replace(number, decimal=decimal, missing=None)  # labels are given
            object.__setattr__(self, "number", number)
        for role, some in (("label", self.label_names()), ("owner", (self.owner,))):
            for name in set(some).intersection(names):
                raise ValueError(f"columns.{name}: expected no {role} among them")

    def _check_target(self) -> None:
        """Raises ValueError unless what is stated of the label stands together."""
        stated: dict[str, Any] = {"labels": self.label_columns, "low and high": self.number}
        stated |= {"label": self.label, "classes": self.classes, "separator": self.separator}
        given = [name for name, value in stated.items() if value]
        if not any(way.issuperset(given) for way in WAYS):
            raise ValueError(
                f"label: write one of classes (a class), low and high (a number) or labels (a "
                f"column of 0 and 1 each), got {', '.join(given)}"
            )
        names = self.label_columns or self.classes
        if self.number is None and (len(names) < 2 or len(set(names)) < len(names)):
            raise ValueError(f"classes, labels: expected at least 2 different, got {list(names)}")
        if self.separator and any(self.separator in name or not name for name in names):
            raise ValueError("classes: a label must not be empty, or contain the separator")
        most = len(names) if self.target == SEVERAL_LABELS else 0
        if self.max_labels is not None and not 1 <= self.max_labels <= most:
            raise ValueError(
                f"max_labels: write at most the number of labels, {most}; only several labels "
                f"have it. Got {self.max_labels}"
            )

    @property
    def target(self) -> str:
        """What a record is labeled with, as of `Dataset`."""
        if self.number is not None:
            return NUMBER
        return SEVERAL_LABELS if self.label_columns or self.separator else CLASS

    def label_names(self, label: str | None = None) -> tuple[str, ...]:
        """Returns the columns of the label: what a caller names, else the schema's, if any.

        Raises:
            ValueError: if the caller names others than the schema's `label_columns`.
        """
        if self.label_columns and label not in (None, ",".join(self.label_columns)):
            raise ValueError(
                f"label: the schema has the labels {', '.join(self.label_columns)}, got {label}"
            )
        name = label or self.label
        return self.label_columns or ((name,) if name else ())

    def with_decimals(self, fields: Mapping[str, Column | Sequence[str]]) -> "Schema":
        """Returns the schema with the decimal mark of each number that records show.

        A comma where a number has one and none has a point, a point where it is the other way
        round; marks as in 1,234 show nothing. Never by PRIVATE records, and not where there is a
        mark between thousands.
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
        """Returns what a run knows of the data."""
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
        """Returns what a served student calls each column, by column: letters, digits and `_`.

        A name of its own stays; other characters become `_`, and a name that is taken then, or
        begins with a digit or is a word of Python, gets `column_` in front.
        """
        names: dict[str, str] = {}
        for column in self.columns:
            name = re.sub(r"[^A-Za-z0-9_]", "_", column.name)
            while not name.isidentifier() or keyword.iskeyword(name) or name in names.values():
                name = f"column_{name}"
            names[column.name] = name
        return names

    def to_toml(self) -> str:
        """Returns the schema as `read_schema` reads it, without owner and size of the pool."""
        stated = {name: getattr(self, name) for name in (*_TEXTS, "classes", "names", "max_labels")}
        stated.update(owner=None, labels=self.label_columns)
        number = [] if self.number is None else _column_lines(self.number)
        stated["decimal"] = None if number else self.decimal  # else the number has it
        lines = [f"{name} = {_quoted(value)}" for name, value in stated.items() if value] + number
        for column in self.columns:
            lines += ["", f"[columns.{_key(column.name)}]", *_column_lines(column, self.number)]
        return "\n".join(lines) + "\n"

    def expected_label(self, *, may_be_empty: bool = False) -> str:
        """Returns what each field of a label has to be, for messages."""
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
        """Returns labels as of `checked_labels`, and which fields of them fit.

        A class that is not as it is written is the only one that is the same number, or differs in
        case or a period at the end. A number is clipped. Of several labels in a field, a separator
        alone says that none holds. Each record is read by itself.

        Args:
            *fields: of the columns of `label_names`, a field of each record.
            may_be_empty: whether an empty field is unknown: -1, NaN, or of several labels a row of
                -1. Otherwise it does not fit.

        Returns:
            The labels, and bool `[num_records, num_fields]`. What does not fit has no label.
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
        """Returns the code of each text, or with a separator 0 and 1 of each label, `[n, width]`.

        It is `UNKNOWN` for an empty text, and `MISFIT` for one that is no label.
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
        """Returns the float32 `[num_features]` features of one record, fields by column.

        Raises:
            ValueError: if a field is missing or does not fit.
        """
        parts = []
        for column in self.columns:
            if column.name not in record:
                raise ValueError(f"record: expected a column {column.name}, got none")
            features, fits = column.encode([field_text(record[column.name])])
            if not fits.all():
                raise ValueError(f"record: {column.name}: expected {column.expected}, got others")
            parts.append(features[0])
        return np.concatenate(parts)


def _spelled(text: str) -> float | str:
    """Returns what labels share that differ in case, a period, or how a number is written."""
    return _as_number(text.casefold().rstrip("."))


def _as_number(text: str) -> float | str:
    """Returns the number that a label is; else the label, which equals no number."""
    return float(text) if re.fullmatch(number_pattern(), text) else text


def field_text(value: Any) -> str:
    """Returns a field as text, as a file of comma-separated values would have it."""
    if isinstance(value, Decimal):  # a column has as many places as one of its numbers
        value = re.sub(r"\.0*$|(\.\d*?)0+$", r"\1", f"{value:f}")
    return "" if value is None else str(value).strip()


def code_text(value: Any) -> str:
    """Returns a field as text; a float that is a whole number has no point.

    From `INEXACT` on it keeps its point: whole numbers of a column are floats, and rounded, if one
    record has a fraction.
    """
    is_code = isinstance(value, float) and value.is_integer() and abs(value) < INEXACT
    return field_text(int(value) if is_code else value)


def is_inexact(text: str) -> bool:
    """Whether a text is that of a float too large to tell whole numbers apart."""
    return bool(re.fullmatch(r"-?\d+(\.0|(\.\d+)?e\+\d+)", text)) and abs(float(text)) >= INEXACT


# Schemas in TOML: read, and drafted from public records.


MOST_CLASSES = 50  # that a draft takes without a word
USUAL = (",", "utf-8")  # delimiter and encoding that a draft doesn't state
MOST_AMOUNTS = 10  # numbers with fractions that a draft takes for classes
STATE_CLASSES = "[]  # state them, in the order of their numbers"
SEPARATORS = ("|", ";", ", ")  # of labels in one field, that a draft finds
MOST_NUMBERED = 20  # whole numbers that a draft takes for classes without a word
MOST_CATEGORIES = 30  # that a draft lists; a column with more is text or left out
TEXT_FEATURES = 2048  # hashed n-grams of a text, unless a schema says another number
ALIKE = 0.8  # ratio of two names from which on one may be meant for the other
WORDS_OF_TEXT = 4.0  # on average from which on a draft takes a column for text
ONE_OWNER = "name one column; join several, such as first name, surname and birthday, into one"
_TEXTS = ("name", "label", "owner", "delimiter", "encoding", "decimal", "separator")
OF_NUMBER = ("low", "high", "gaps", "thousands", "unit")  # of a label that is one
_KEYS = {field.name for field in dataclasses.fields(Schema)} - {"number", "label_columns"}
_KEYS |= {"labels", *OF_NUMBER}
_COLUMN_KEYS = {field.name for field in dataclasses.fields(TableColumn)} - {"name"}
# Of the entries of a column that are neither texts nor lists of them.
_KINDS = {"low": (int, float), "high": (int, float), "text": int, "other": bool, "characters": bool}


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """Reads a schema in TOML.

    Raises:
        ValueError: if it is no TOML, or says what no schema says.
        OSError: if it can't be read.
    """
    try:
        values = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a schema in TOML, got something else ({error})"
        ) from None
    try:
        return schema_of(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def schema_of(values: Mapping[str, Any]) -> Schema:
    """Returns the schema that TOML's values say; ValueError if they say what no schema says."""
    _check_keys(values, _KEYS, "schema")
    columns = values.get("columns")
    if not isinstance(columns, dict) or not all(
        isinstance(entries, dict) for entries in columns.values()
    ):
        raise ValueError("columns: expected a table [columns.NAME] for each column, got none")
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
    """Returns what the entries of a schema say of the label, as `Schema` has it.

    Raises:
        ValueError: if they can't be meant.
    """
    label = values.get("label")
    if isinstance(label, list):
        raise ValueError('label: for several labels write labels = ["edema", "effusion"]')
    stated = {"max_labels": _typed(values.get("max_labels"), int, "max_labels")}
    entries = {key: values[key] for key in OF_NUMBER if key in values}
    if "classes" in values:
        stated["classes"] = _texts(values["classes"], "classes")
    elif not entries and "labels" not in values:
        raise ValueError(
            'classes: list the classes: classes = ["a", "b"]; a number has low and high instead'
        )
    if "labels" in values:
        stated["label_columns"] = _texts(values["labels"], "labels")
        if len(stated["label_columns"]) == 1:
            raise ValueError(
                f"labels: one label is a class; write label = {_quoted(*stated['label_columns'])} "
                f"and classes = [...] with the values of that column"
            )
    if entries:
        low, high = (_typed(values.get(key), (int, float), key) for key in ("low", "high"))
        if low is None or high is None or not -math.inf < low < high < math.inf:
            raise ValueError(
                f"low, high: write the lowest and the highest value of the label, such as low = 0 "
                f"and high = 100; got {low} and {high}"
            )
        stated["number"] = _column(field_text(label or "label"), entries)
    return stated


def _column(name: str, entries: Mapping[str, Any]) -> TableColumn:
    what = f"columns.{name}"
    _check_keys(entries, _COLUMN_KEYS, what)
    is_range = "low" in entries or "high" in entries
    if is_range + ("categories" in entries) + ("text" in entries) != 1:
        got = "both" if is_range or "text" in entries else "none"
        raise ValueError(f"{what}: expected either low and high, or categories, or text, got {got}")
    if is_range and not ("low" in entries and "high" in entries):
        raise ValueError(f"{what}: expected low and high, from public knowledge, or categories")
    date = entries.get("date", ISO_DATE if isinstance(entries.get("low"), datetime.date) else None)
    if date is not None:
        for key in ("low", "high"):
            if not isinstance(entries.get(key), datetime.date):
                raise ValueError(f"{what}.{key}: expected a date such as 2024-03-01, got none")
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


_quoted = functools.partial(json.dumps, ensure_ascii=False)  # TOML reads JSON's texts


def _column_lines(column: TableColumn, number: TableColumn | None = None) -> list[str]:
    """Returns a column's entries in TOML.

    `number` is the label, whose decimal mark stands for all columns that name none.
    """
    if number is not None and number.decimal == "," and column.is_number:
        column = dataclasses.replace(column, decimal=column.decimal or ".")
    if column.text:
        lines = [f"text = {column.text}"]
        lines += ["characters = true"] if column.characters else []
    elif column.categories:
        lines = [f"categories = {_quoted(column.categories)}"]
        lines += ["other = true  # one more, for what is not listed"] if column.other else []
    elif column.date:
        low, high = (datetime.date.fromordinal(int(day)) for day in (column.low, column.high))
        lines = [f"low = {low}", f"high = {high}", f"date = {_quoted(column.date)}"]
    else:
        lines = [f"low = {column.low!r}", f"high = {column.high!r}"]
    if column.missing is not None:
        missing = column.missing if column.is_number else _quoted(column.missing)
        lines.append(f"missing = {missing}  # stands for an empty field")
    lines += [f"gaps = {_quoted(column.gaps)}"] if column.gaps else []
    for key in ("decimal", "thousands", "unit"):
        lines += [f"{key} = {_quoted(getattr(column, key))}"] if getattr(column, key) else []
    return lines


def _check_keys(entries: Mapping[str, Any], allowed: set[str], what: str) -> None:
    if strange := sorted(set(entries) - allowed):
        raise ValueError(f"{what}: expected some of {sorted(allowed)}, got {strange[0]!r}")


def _texts(values: Any, what: str) -> tuple[str, ...]:
    is_list = isinstance(values, list) and values
    if not is_list or any(isinstance(value, list | dict) for value in values):
        key = what.rpartition(".")[-1]
        raise ValueError(f'{what}: list the {key}: {key} = ["a", "b"]')
    return tuple(field_text(value) for value in values)


def _typed(value: Any, kind: Any, what: str) -> Any:
    is_flag = isinstance(value, bool) and kind is not bool
    if value is not None and (is_flag or not isinstance(value, kind)):
        raise ValueError(f"{what}: expected another type than {type(value).__name__}")
    return value


def draft_columns(
    fields: Mapping[str, Column],
    *,
    without: Collection[str | None],
    categories: Collection[str] = (),
) -> dict[str, TableColumn | None]:
    """Returns columns of PUBLIC records, by name; None for one that can't be used.

    Args:
        fields: of each column by its name.
        without: names of columns that are no inputs.
        categories: names of columns that are categories, though they hold numbers.

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
    if fields and not any(columns.values()):
        raise ValueError(
            "columns: none has numbers, texts, or values of several records; write a schema "
            f"by hand, [columns.NAME] with text = {TEXT_FEATURES} for texts"
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
    written: Mapping[str, str] | None = None,
) -> str:
    """Returns a draft of a schema in TOML, from PUBLIC records alone; to be looked through.

    Comments say what needs thought.

    Args:
        fields: of each column by its name.
        label: name of the label's column, which public records need not have; of several labels
            the names of their columns, with commas.
        owner: name of the owner's column.
        target: "class", "number" or "labels". Default: by the label's values.
        left_out: columns that could not be read by a name of their own.
        names: that columns were called as the file doesn't name them; empty if it does.
        written: delimiter and encoding of the file; None for the usual ones.

    Raises:
        ValueError: if no column can be used, the label's has another spelling, or its values do not
            fit the target.
    """
    labels = split_label(label, fields)
    if names and (strange := sorted({*labels} - {*names})):
        raise ValueError(
            f"label: expected one of {', '.join(names)}, as the first line of the file is a "
            f"record and names no columns; got {strange[0]}"
        )
    stated, doubts = drafted_target(labels, fields, target)
    number = stated.get("number")
    doubts += _check_roles(fields, labels, owner)
    if numbers := [name for name in fields if re.fullmatch(number_pattern(), name)]:
        doubts.append(
            f"the first line has numbers ({', '.join(numbers)}): does it name the columns?"
        )
    doubts += unnamed_left_out([*left_out, *fields])
    doubts += [
        f"left out: {name!r} is the name of several columns, or nested"
        for name in dict.fromkeys(filter(None, left_out))
    ]
    if number is not None:
        texts = texts_of(fields[labels[0]])
        doubts += _number_doubts(number, texts, distinct_of(texts)[0])
    doubts += _label_doubts(stated.get("classes", ()), fields, without=(*labels, owner))
    remarks = ["Drafted from public records. Look it through: ranges and categories are public."]
    others = {"names": names, "owner": owner, **(written or {})}
    lines = _draft_lines([*remarks, *doubts], labels, stated, **others)
    for name, column in draft_columns(fields, without=(*labels, owner)).items():
        lines += ["", f"# left out: {name!r} is empty, or most values are of one record: names?"]
        if column is not None:
            lines[-1:] = [f"[columns.{_key(name)}]"]
            lines += [f"# {doubt}" for doubt in _doubts(column, fields[name])]
            lines += _column_lines(column, number)
    return "\n".join(lines) + "\n"


def split_label(label: str | None, names: Collection[str]) -> tuple[str, ...]:
    """Returns the names of the label's columns: several where commas separate no column's name."""
    if not label:
        return ()
    return (label,) if label in names else tuple(part.strip() for part in label.split(","))


def drafted_target(
    labels: Sequence[str], fields: Mapping[str, Column], target: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Returns what PUBLIC records say of the label, as `Schema` has it, and what needs thought.

    Args:
        labels: names of the label's columns.
        fields: of each column by its name.
        target: as of `draft`.

    Raises:
        ValueError: if the values do not fit the target.
    """
    if len(labels) > 1:
        if target not in (None, SEVERAL_LABELS):
            raise ValueError(f"target: a {target} has one column, got {', '.join(labels)}")
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
        if joined and 2 <= len(parts) <= min(MOST_CLASSES, len(spelled)):
            doubts = [f"{joined[0]} is read as several labels; --target=class drafts classes"]
            return {"classes": tuple(sorted(parts)), "separator": separator}, doubts
    classes = tuple(sorted({_as_number(text): text for text in reversed(spelled)}.values()))
    if target == SEVERAL_LABELS:
        return {"classes": classes, "separator": SEPARATORS[0]}, doubts
    return {"classes": classes}, doubts


def _drafted_label_number(
    labels: Sequence[str], texts: pyarrow.Array, target: str | None
) -> tuple[TableColumn | None, list[str]]:
    """Returns a label that is a number, None for classes; and what needs thought."""
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
    is_many = len(amounts) > (MOST_NUMBERED if is_whole else MOST_AMOUNTS)
    doubts = []
    if target is None and is_whole and MOST_NUMBERED <= len(amounts) <= MOST_CLASSES:
        drafted, other = (CLASS, NUMBER) if is_numbering or not is_many else (NUMBER, CLASS)
        doubts.append(
            f"the label has {len(amounts)} whole values: a number or classes? This is the draft of "
            f"a {drafted}; for the other write --target={other}"
        )
    if target is None and (is_numbering or not is_many):
        return None, doubts
    return dataclasses.replace(number, low=float(amounts[0])), doubts


def _label_doubts(
    classes: Sequence[str], fields: Mapping[str, Column], *, without: Collection[str | None]
) -> list[str]:
    """Returns what a person should think about in the label's classes."""
    doubts = _alike(classes)
    num_records = max(map(len, fields.values()), default=0)
    if len(classes) > MOST_CLASSES or (len(classes) == num_records > 2):
        doubts.append(f"the label has {len(classes)} values: an identifier, or a number?")
    likes = [
        name
        for name, values in fields.items()
        if name not in without and {*distinct_of(texts_of(values))[0]} - {""} == {*classes}
    ]
    if classes and likes:
        doubts.append(
            f"{', '.join(likes)}: same values as the label. Several labels? Name them all, "
            "--label=a,b; remove columns that are not known when it is predicted"
        )
    return doubts


def draft_of_names(
    names: Sequence[str],
    *,
    labels: Sequence[str],
    owner: str | None,
    target: str | None = None,
    written: Mapping[str, str],
) -> str:
    """Returns a draft of a schema in TOML, by names of columns alone; all else is to be stated.

    Args:
        names: of the columns.
        labels: names of the label's columns.
        owner: name of the owner's column.
        target: as of `draft`.
        written: delimiter and encoding of the file.
    """
    remarks = [
        "Drafted from the names of columns; nothing of a record is in it. State what is publicly",
        "known of each: never the lowest and highest value that private records have.",
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
    """Returns remarks and entries of a draft in TOML, without those that are empty or usual."""
    lines = [f"# {remark}" for remark in remarks]
    lines += [f"label = {_quoted(labels[0])}"] if len(labels) == 1 else []
    if "number" in target:
        lines += STATED[:2] if target["number"] is None else _column_lines(target["number"])
    if "classes" in target:
        listed = _quoted(target["classes"]) if len(target["classes"]) > 1 else STATE_CLASSES
        lines.append(f"classes = {listed}")
    others = {"labels": target.get("label_columns"), "separator": target.get("separator"), **others}
    stated = {name: value for name, value in others.items() if value and value not in USUAL}
    return [*lines, *(f"{name} = {_quoted(value)}" for name, value in stated.items())]


def unnamed_left_out(names: Sequence[str]) -> list[str]:
    """Returns the remark on columns without a name; empty if there is none."""
    number = sum(bool(UNNAMED.fullmatch(name)) for name in names)
    return [f"{number} columns without a name are left out"] if number else []


# What is stated of a column: one of three.
STATED = (
    "# low = 0.0",
    "# high = 1.0",
    "# missing = 0.0  # stands for an empty field",
    '# categories = ["a", "b"]',
    "# other = true  # one more, for what is not listed",
    "# text = 512  # features of a text; more take public records",
)


def _check_roles(names: Collection[str], labels: Sequence[str], owner: str | None) -> list[str]:
    """Returns what is to be said of the columns of label and owner where there are none.

    Raises:
        ValueError: if a column's name has another spelling: it would be taken for an input.
    """
    doubts = []
    if owner and owner not in names and {*owner.split(",")} <= {*names}:
        raise ValueError(f"owner: {ONE_OWNER}")
    for role, name in [*(("label", name) for name in labels), ("owner", owner)]:
        if name is not None and name not in names and (near := nearest(name, names)):
            if _letters(near) == _letters(name):
                raise ValueError(
                    f"{role}: expected a column of the file, got no column {name}; there is {near}"
                )
            doubts.append(f"no column {name}; there is {near}: is it the {role}?")
        elif name is not None and name not in names:
            doubts.append(f"no column {name}: have public records no {role}?")
    return doubts


def nearest(name: str, names: Collection[str]) -> str | None:
    """Returns what a name that there is not may have been meant for; None if nothing is alike."""
    alike = {_letters(each): each for each in names}
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), folded, 1, cutoff=ALIKE)
    return alike.get(_letters(name)) or (folded[close[0]] if close else None)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


# Decimal mark of numbers, and mark between thousands.
FORMS = ((".", ""), (",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"))
SENTINELS = frozenset(sign * (10.0**digits - 1.0) for digits in range(2, 7) for sign in (-1, 1)) | {
    -1.0,
    -9.0,
}
DATES = (ISO_DATE, "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y")
MARK = r"[^\w\s.,'\u2019+()\u2212-]"  # of a unit
UNIT = re.compile(rf"[-+]?({MARK}?)\s*[-+]?[\d.,'\u2019\s]*\d\s*([^\W\d_]{{0,3}}|{MARK})")
OWNERS = re.compile(  # names of columns that say whose a record is
    "(?i:(?:.*[_ .-])?(?:id|key)|patient|person|subject|customer|client|user|member|participant)"
    "|.*[a-z]I[Dd]"
)
FAR = 5.0  # ranges of the other numbers between them and an outlier
NUMBERS_PER_WORD = 20  # from which on a draft takes a word among numbers for a gap
TRUTH_VALUES = ({"1", "true", "yes", "y", "t"}, {"0", "false", "no", "n", "f"})
YES_OR_NO = {_spelled(word): 1 - place for place, some in enumerate(TRUTH_VALUES) for word in some}


def _drafted_date(name: str, distinct: Sequence[str]) -> TableColumn | None:
    """Returns a column of dates; None if some values are none, besides gaps."""
    gaps = tuple(sorted(GAPS.intersection(distinct)))
    for form in DATES:
        days = [_days(text, form) for text in distinct if text not in ("", *gaps)]
        if np.isfinite(days).all():
            column = TableColumn(name=name, low=min(days), high=max(days) + 1.0, date=form)
            return dataclasses.replace(column, missing=str(column.example), gaps=gaps)
    return None


def _drafted_number(name: str, texts: pyarrow.Array, distinct: Sequence[str]) -> TableColumn | None:
    """Returns a column of numbers of one of `FORMS`; None if some values are none, besides gaps."""
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
        # Where public records lack it, that may tell something: a value below all others, a short
        # number about a quarter of the range away.
        if "" in distinct or gaps:
            places = 1 - math.floor(math.log10(high - low))
            missing = low = round(low - (high - low) / 4 - 0.5 * 10.0**-places, places) + 0.0
        return dataclasses.replace(column, low=low, high=high, missing=repr(missing))
    return None


def _drafted_text(name: str, texts: pyarrow.Array, distinct: Sequence[str]) -> TableColumn | None:
    """Returns a column of texts or categories; None if it has no values, or one of each record."""
    values = sorted({*distinct} - {""})
    if len(values) > MOST_CATEGORIES:
        if np.mean([len(text.split()) for text in values]) >= WORDS_OF_TEXT:
            return TableColumn(name=name, text=TEXT_FEATURES)
        counts = Counter(texts.to_pylist())
        listed = sorted(values, key=lambda text: (-counts[text], text))[:MOST_CATEGORIES]
        if counts[listed[-1]] == 1:  # mostly values of one record each: an identifier
            return None
        values = sorted(listed)
    if not values:
        return None
    return TableColumn(name=name, categories=(*values, *[""] * ("" in distinct)), other=True)


def _doubts(column: TableColumn, fields: Column) -> list[str]:
    """Returns what a person should think about before a drafted column is used."""
    texts = texts_of(fields)
    distinct, places = distinct_of(texts)
    doubts = []
    if len(distinct) == 1:
        doubts.append("constant: every public record has the same value")
    # Records of one person have one value, and often follow each other.
    is_grouped = np.count_nonzero(np.diff(places)) + 1 == len(distinct) > MOST_CATEGORIES
    is_repeated = 2 < len(distinct) < len(texts) and not column.date
    if is_repeated and (is_grouped or OWNERS.fullmatch(column.name)):
        doubts.append(
            f"does this column say whose record it is? Then write owner = {_quoted(column.name)} "
            "above and remove the column here"
        )
    if column.is_number:
        doubts += _number_doubts(column, texts, distinct)
    is_short = np.mean([len(text.split()) for text in distinct]) < 2 * WORDS_OF_TEXT
    if column.text and is_short and len(distinct) == len(texts):
        doubts.append("every record has a short text of its own: names? Then remove the column")
    if column.categories and (rest := len(set(distinct) - set(column.categories))):
        doubts.append(f"the most frequent of {len(distinct)} values; other stands for {rest} more")
    if column.date and column.date != ISO_DATE:
        days = [text for text in distinct if text not in column.gap_words]
        doubts += [
            f"{form} fits, too: is the day or the month first?"
            for form in DATES[1:]
            if form != column.date and np.isfinite([_days(text, form) for text in days]).all()
        ]
    return doubts + _alike(column.categories)


def _number_doubts(column: TableColumn, texts: pyarrow.Array, distinct: Sequence[str]) -> list[str]:
    """Returns what a person should think about in a drafted column of numbers."""
    doubts = []
    values = dataclasses.replace(column, missing=None).numbers(texts)
    values = values[np.isfinite(values)]  # gaps are none
    ascending = np.unique(values)
    if column.missing is not None and float(column.missing) < ascending[0]:
        doubts.append(
            f"some fields are empty: missing stands for them, and low includes it; the lowest "
            f"number is {ascending[0]:g}"
        )
    if (far := _far_value(ascending)) is not None:
        doubt = "does it mean unknown?" if far in SENTINELS else "an error? Then correct the range"
        doubts.append(f"{far:g} lies far from the others: {doubt}")
    elif values.min() < 0.0 <= np.quantile(values, 0.01):
        doubts.append(f"of 100 values 99 are not below 0: is {values.min():g} possible?")
    is_whole = np.array_equal(ascending, np.rint(ascending))
    if is_whole and len(distinct) == len(texts) > MOST_CATEGORIES:
        doubts.append("every record has a number of its own: an identifier?")
    numbers = [text for text in distinct if text not in column.gap_words]
    marks = r"\(" if has_decimals(pyarrow.array(numbers), ".") else r"\(|\."
    is_marked = any(re.search(marks, text) for text in numbers)
    if column.thousands or column.unit or column.decimal == "," or is_marked:
        example = max(
            numbers, key=lambda text: ("(" in text, (column.decimal or ".") in text, len(text))
        )
        doubts.append(f"{example} is read as {column.numbers([example])[0]:.12g}")
    for text in [text for text in numbers if re.fullmatch(r"\d+[eE]\d+", text)][:1]:
        doubts.append(
            f"{text} is read as {column.numbers([text])[0]:.12g}: numbers or codes? For codes "
            "write categories = [...] instead of low, high and missing"
        )
    if any(re.match(r"0\d", text) for text in distinct):
        doubts.append("some begin with 0: codes of categories?")
    return doubts


def _far_value(ascending: npt.NDArray[np.float64]) -> float | None:
    """Returns the extreme of a few numbers that lie far from most others; None if none do."""
    if len(ascending) < 4:
        return None
    gaps = np.diff(ascending)
    few, many = sorted(np.split(ascending, [int(gaps.argmax()) + 1]), key=len)
    farthest = float(max(few, key=lambda number: abs(number - many[0])))
    factor = 1.0 if len(few) == 1 and farthest in SENTINELS else FAR
    return farthest if len(many) > 2 and gaps.max() > factor * np.ptp(many) else None


def _alike(names: Sequence[str]) -> list[str]:
    """Returns which names may say the same: they differ in case alone, or are truth values."""
    groups: dict[str, list[str]] = {}
    for name in names:
        text = name.casefold()
        groups.setdefault(
            next((min(some) for some in TRUTH_VALUES if text in some), text), []
        ).append(name)
    return [
        f"do {' and '.join(map(_quoted, some))} mean the same?"
        for some in groups.values()
        if len(some) > 1
    ]


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quoted(name)
