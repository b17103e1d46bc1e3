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
from pate_tf.core.dataset import LARGEST_CHARACTER, Dataset

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
OTHER_DATES = ', unless the schema says another, such as `date = "%d/%m/%Y"`'
# A column without a name, and what pandas and pyarrow call one.
UNNAMED = re.compile(r"(?:Unnamed: \d+|__index_level_\d+__)?")


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
        classes: what the label can be, in the order of the classes' numbers.
        label: name of the label's column; None if the caller says.
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
    classes: tuple[str, ...]
    label: str | None = None
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
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes: expected at least 2 different ones, got {list(self.classes)}"
            )
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
        for role in ("label", "owner"):
            if getattr(self, role) in names:
                raise ValueError(f"columns.{getattr(self, role)}: expected no {role} among them")

    def with_decimals(self, fields: Mapping[str, Column | Sequence[str]]) -> "Schema":
        """Returns the schema with the decimal mark of each number that records show.

        A comma where a number has one and none has a point, a point where it is the other way
        round; marks as in 1,234 show nothing. Never by PRIVATE records, and not where there is a
        mark between thousands.
        """
        columns = []
        for column in self.columns:
            values = fields.get(column.name)
            is_read = isinstance(values, Column) and not pyarrow.types.is_string(values.type)
            if column.is_number and not column.thousands and not is_read and values is not None:
                texts = texts_of(values)
                marks = [mark for mark in ".," if has_decimals(texts, mark)]
                if len(marks) == 1 and marks != [column.decimal or "."]:
                    column = dataclasses.replace(column, decimal=marks[0])
            columns.append(column)
        return dataclasses.replace(self, columns=tuple(columns))

    def dataset(self, name: str, pool_size: int) -> Dataset:
        """Returns what a run knows of the data."""
        lows, highs = zip(
            *(column.value_range for column in self.columns for _ in range(column.width)),
            strict=True,
        )
        return Dataset(
            name=name,
            kind="text" if len(self.columns) == 1 and self.columns[0].text else "tabular",
            input_shape=(len(lows),),
            value_range=(tuple(map(float, lows)), tuple(map(float, highs))),
            num_classes=len(self.classes),
            class_names=self.classes,
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
        names = ("name", "label", "delimiter", "encoding", "decimal", "classes", "names")
        stated = {name: getattr(self, name) for name in names}
        lines = [f"{name} = {_quoted(value)}" for name, value in stated.items() if value]
        for column in self.columns:
            lines += ["", f"[columns.{_key(column.name)}]", *_column_lines(column)]
        return "\n".join(lines) + "\n"

    @property
    def some_classes(self) -> str:
        """The first classes, for messages."""
        return ", ".join(self.classes[:12])

    def labels(
        self, values: Column | Sequence[str], *, may_be_empty: bool = False
    ) -> npt.NDArray[np.int64]:
        """Returns labels as numbers of classes, int64 `[num_records]`; -2 for what is no class.

        A label that is no class as it is written is the only one that is the same number, or
        differs in case or a period at the end.

        Args:
            values: of the label's column.
            may_be_empty: whether an empty one is -1.
        """
        numbers = {name: place for place, name in enumerate(self.classes)}
        spellings = [_as_number(name.casefold().rstrip(".")) for name in self.classes]
        equal = {text: place for place, text in enumerate(spellings) if spellings.count(text) == 1}
        if may_be_empty:
            numbers = {"": -1, **numbers}
        distinct, places = distinct_of(texts_of(values))
        indices = [
            numbers[text]
            if text in numbers
            else equal.get(_as_number(text.casefold().rstrip(".")), -2)
            for text in distinct
        ]
        return np.array(indices, np.int64)[places]

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
MOST_CATEGORIES = 30  # that a draft lists; a column with more is text or left out
TEXT_FEATURES = 2048  # hashed n-grams of a text, unless a schema says another number
ALIKE = 0.8  # ratio of two names from which on one may be meant for the other
WORDS_OF_TEXT = 4.0  # on average from which on a draft takes a column for text
ONE_COLUMN = {  # where a user names several
    "label": "a run learns one label; name one column, and run once for each label",
    "owner": "name one column; join several, such as first name, surname and birthday, into one",
}
_TEXTS = ("label", "owner", "name", "delimiter", "encoding", "decimal")
_KEYS = {field.name for field in dataclasses.fields(Schema)}
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
    lists = dict[str, Any]()
    for name in ("classes", "names"):
        try:
            if name == "classes" or name in values:
                lists[name] = _texts(values.get(name), name)
        except ValueError as error:
            faults.append(str(error))
    for name, entries in columns.items():
        try:
            read.append(_column(name, entries))
        except ValueError as error:
            faults.append(str(error))
    for role in ("label", "owner"):
        if isinstance(values.get(role), list):
            faults.append(f"{role}: {ONE_COLUMN[role]}")
    raise_all("schema", faults)
    return Schema(
        columns=tuple(read),
        pool_size=_typed(values.get("pool_size"), int, "pool_size"),
        **{name: _typed(values.get(name), str, name) for name in _TEXTS},
        **lists,
    )


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


def _column_lines(column: TableColumn) -> list[str]:
    """Returns a column's entries in TOML."""
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
    left_out: Sequence[str] = (),
    names: Sequence[str] = (),
    written: Mapping[str, str] | None = None,
) -> str:
    """Returns a draft of a schema in TOML, from PUBLIC records alone; to be looked through.

    Comments say what needs thought.

    Args:
        fields: of each column by its name.
        label: name of the label's column, which public records need not have.
        owner: name of the owner's column.
        left_out: columns that could not be read by a name of their own.
        names: that columns were called as the file doesn't name them; empty if it does.
        written: delimiter and encoding of the file; None for the usual ones.

    Raises:
        ValueError: if no column can be used, or the label's has another spelling.
    """
    if names and label is not None and label not in names:
        raise ValueError(
            f"label: expected one of {', '.join(names)}, as the first line of the file is a "
            f"record and names no columns; got {label}"
        )
    doubts = _check_roles(fields, label=label, owner=owner)
    labels = texts_of(fields[label] if label and label in fields else [])
    spelled = sorted(set(labels.to_pylist()) - {""}, key=lambda text: (len(text), text))
    classes = sorted({_as_number(text): text for text in reversed(spelled)}.values())
    if numbers := [name for name in fields if re.fullmatch(number_pattern(), name)]:
        doubts.append(
            f"the first line has numbers ({', '.join(numbers)}): does it name the columns?"
        )
    doubts += unnamed_left_out([*left_out, *fields])
    doubts += [
        f"left out: {name!r} is the name of several columns, or nested"
        for name in dict.fromkeys(filter(None, left_out))
    ]
    doubts += _label_doubts(classes, fields, without=(label, owner))
    listed = "" if len(classes) < 2 or _are_amounts(classes) else _quoted(classes)
    remarks = ["Drafted from public records. Look it through: ranges and categories are public."]
    lines = _draft_lines(
        [*remarks, *doubts], label, listed, names=names, owner=owner, **(written or {})
    )
    for name, column in draft_columns(fields, without=(label, owner)).items():
        lines += ["", f"# left out: {name!r} is empty, or most values are of one record: names?"]
        if column is not None:
            lines[-1:] = [f"[columns.{_key(name)}]"]
            lines += [f"# {doubt}" for doubt in _doubts(column, fields[name])]
            lines += _column_lines(column)
    return "\n".join(lines) + "\n"


def _are_amounts(classes: Sequence[str]) -> bool:
    """Whether labels are amounts, of which a run learns none, rather than classes."""
    numbers = [float(text) for text in classes if re.fullmatch(number_pattern(), text)]
    is_whole = np.array_equal(numbers, np.rint(numbers))
    is_many = len(numbers) > (MOST_CLASSES if is_whole else MOST_AMOUNTS)
    is_numbering = is_whole and is_many and np.ptp(numbers) < len(numbers)
    return is_many and len(numbers) == len(classes) and not is_numbering


def _label_doubts(
    classes: Sequence[str], fields: Mapping[str, Column], *, without: Collection[str | None]
) -> list[str]:
    """Returns what a person should think about in the label's values."""
    doubts = _alike(classes)
    num_records = max(map(len, fields.values()), default=0)
    if _are_amounts(classes):
        doubts.append(
            f"the label has {len(classes)} values, all numbers: a run learns classes, it predicts "
            "no numbers; make a column of classes, such as low and high"
        )
    elif len(classes) > MOST_CLASSES or (len(classes) == num_records > 2):
        doubts.append(f"the label has {len(classes)} values: an identifier, or a number?")
    for text in classes:
        parts = re.split(r"\s*[;,|/]\s*", text)
        if len(parts) > 1 and {*parts} <= {*classes}:
            doubts.append(f"{text!r} is several labels: {ONE_COLUMN['label']}")
            break
    likes = [
        name
        for name, values in fields.items()
        if name not in without and {*distinct_of(texts_of(values))[0]} - {""} == {*classes}
    ]
    if classes and likes:
        doubts.append(
            f"{', '.join(likes)}: same values as the label. Other labels? A run learns one; remove "
            "columns that are not known when it is predicted"
        )
    return doubts


def draft_of_names(
    names: Sequence[str], *, label: str, owner: str | None, written: Mapping[str, str]
) -> str:
    """Returns a draft of a schema in TOML, by names of columns alone; all else is to be stated.

    Args:
        names: of the columns.
        label: name of the label's column.
        owner: name of the owner's column.
        written: delimiter and encoding of the file.
    """
    remarks = [
        "Drafted from the names of columns; nothing of a record is in it. State what is publicly",
        "known of each: never the lowest and highest value that private records have.",
    ]
    lines = _draft_lines([*remarks, *unnamed_left_out(names)], label, "", owner=owner, **written)
    for name in dict.fromkeys(names):
        if name not in (label, owner) and not UNNAMED.fullmatch(name):
            lines += ["", f"[columns.{_key(name)}]", *STATED]
    return "\n".join(lines) + "\n"


def _draft_lines(
    remarks: Sequence[str], label: str | None, classes: str, **others: str | Sequence[str] | None
) -> list[str]:
    """Returns remarks and entries of a draft in TOML, without those that are empty or usual."""
    classes = classes or "[]  # state them, in the order of their numbers"
    lines = [f"# {remark}" for remark in remarks]
    lines += [f"label = {_quoted(label)}"] if label else []
    stated = {name: value for name, value in others.items() if value and value not in USUAL}
    entries = [f"{name} = {_quoted(value)}" for name, value in stated.items()]
    return [*lines, f"classes = {classes}", *entries]


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


def _check_roles(names: Collection[str], **roles: str | None) -> list[str]:
    """Returns what is to be said of the columns of label and owner where there are none.

    Raises:
        ValueError: if a column's name has another spelling: it would be taken for an input.
    """
    doubts = []
    for role, name in roles.items():
        if name and name not in names and {*name.split(",")} <= {*names}:
            raise ValueError(f"{role}: {ONE_COLUMN[role]}")
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
