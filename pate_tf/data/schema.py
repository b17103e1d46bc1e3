"""What a user states of a table: its columns, their ranges and categories, its label and owner.

A schema is public. It is written by hand, or drafted from public records; never from private ones,
since then a range or a list of categories would tell of them. So a record becomes features by the
schema and by itself alone, and a teacher's inputs can't change with another teacher's records.
"""

import dataclasses
import datetime
import functools
import json
import keyword
import math
import os
import pathlib
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import Dataset

MOST_TEXT_FEATURES = 2**16


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
    date: str = ""

    def __post_init__(self) -> None:
        expected = ""
        if self.text:
            if not 1 <= self.text <= MOST_TEXT_FEATURES or self.categories or self.other:
                expected = f"for a text from 1 to {MOST_TEXT_FEATURES} features and no categories"
        elif self.categories:
            if len(set(self.categories)) < len(self.categories):
                expected = "each category once, got one twice"
        elif self.other:
            expected = "other with categories alone"
        elif self.date and sorted(re.findall("%.", self.date)) != ["%Y", "%d", "%m"]:
            expected = f"a date of %d, %m and %Y, each once, got {self.date!r}"
        elif not -math.inf < self.low < self.high < math.inf:
            expected = f"finite low < high, got {self.low} and {self.high}"
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
        return (0.0, 1.0) if self.categories or self.text else (self.low, self.high)

    def encode(self, values: Sequence[str], what: str, places: Sequence[str]) -> Any:
        """Returns the features float32 `[num_records, width]` of the column's fields.

        Args:
            values: a field of each record.
            what: begins an error's message, which names the place and no value.
            places: where each record stands.

        Raises:
            ValueError: if a field does not fit the column.
        """
        if self.missing is not None:
            values = [self.missing if value == "" else value for value in values]
        if self.text:
            from pate_tf.data import preprocessing  # TensorFlow, for texts alone

            return preprocessing.encode_texts(values, self.text)
        if self.categories:
            position = {category: index for index, category in enumerate(self.categories)}
            unlisted = len(self.categories) if self.other else -1
            indices = np.array([position.get(value, unlisted) for value in values], np.int64)
            fits, expected = indices >= 0, "a category of the schema"
            features = np.eye(self.width, dtype=np.float32)[indices]
        else:
            numbers = self.numbers(values)
            fits = np.isfinite(numbers)
            expected = f"a date {self.date}" if self.date else "a finite number"
            features = np.clip(numbers, self.low, self.high).astype(np.float32)[:, np.newaxis]
        if not fits.all():
            raise ValueError(
                f"{what}, {places[int(np.argmin(fits))]}: {self.name}: expected {expected}, got "
                f"something else; the schema may say `missing` for empty fields and `other` for "
                f"further categories"
            )
        return features

    def numbers(self, values: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns the number, or the days, that each field says, `[num_records]`; else NaN."""
        if not self.date:
            return numbers_or_nan(values)
        return np.array([_days(value, self.date) for value in values], np.float64)


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


def numbers_or_nan(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Returns the number that each text is, `[num_texts]`; NaN for one that is none."""
    try:
        return np.array(texts, np.float64)
    except ValueError:
        if len(texts) == 1:
            return np.full(1, np.nan)
        return np.concatenate([numbers_or_nan([text]) for text in texts])


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

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("columns: expected at least one, each once")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes: expected at least 2 different ones, got {list(self.classes)}"
            )
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal: expected '.' or ',', got {self.decimal!r}")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"delimiter: expected one character, got {self.delimiter!r}")
        for role in ("label", "owner"):
            if getattr(self, role) in names:
                raise ValueError(f"columns.{getattr(self, role)}: expected no {role} among them")

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
        lines = [
            *(
                f"{name} = {_quoted(getattr(self, name))}"
                for name in ("name", "label", "delimiter", "encoding", "decimal")
                if getattr(self, name) is not None
            ),
            f"classes = {_quoted(self.classes)}",
        ]
        for column in self.columns:
            lines += ["", f"[columns.{_key(column.name)}]", *_column_lines(column)]
        return "\n".join(lines) + "\n"

    def encode_columns(
        self, fields: Mapping[str, Sequence[str]], what: str, places: Sequence[str]
    ) -> npt.NDArray[np.float32]:
        """Returns records as features float32 `[num_records, num_features]`.

        `fields` has a text for each record, by column; otherwise as `TableColumn.encode`.
        """
        for column in self.columns:
            if column.name not in fields:
                raise ValueError(f"{what}: expected a column {column.name}, got none")
        parts = [column.encode(fields[column.name], what, places) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def encode(self, record: Mapping[str, Any]) -> npt.NDArray[np.float32]:
        """Returns the float32 `[num_features]` features of one record, fields by column.

        Raises:
            ValueError: if a field is missing or does not fit.
        """
        fields = {name: [field_text(value)] for name, value in record.items()}
        return self.encode_columns(fields, "record", ["0"])[0]


def field_text(value: Any) -> str:
    """Returns a field as text, as a file of comma-separated values would have it."""
    return "" if value is None else str(value).strip()


# Schemas in TOML: read, and drafted from public records.


MOST_CATEGORIES = 30  # that a draft lists; a column with more is text or left out
TEXT_FEATURES = 2048  # as `preprocessing.NUM_FEATURES`
WORDS_OF_TEXT = 4.0  # on average from which on a draft takes a column for text
_FORM = ("delimiter", "encoding", "decimal")
_KEYS = {"label", "classes", "owner", "name", "pool_size", "columns", *_FORM}
_COLUMN_KEYS = {"low", "high", "categories", "other", "missing", "text", "date"}


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
    return Schema(
        columns=tuple(_column(name, entries) for name, entries in columns.items()),
        classes=_texts(values.get("classes"), "classes"),
        **{
            name: _typed(values.get(name), str, name) for name in ("label", "owner", "name", *_FORM)
        },
        pool_size=_typed(values.get("pool_size"), int, "pool_size"),
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
    kinds = {"low": (int, float), "high": (int, float), "text": int, "other": bool, "date": str}
    values: dict[str, Any] = {
        key: _typed(entries[key], kind, f"{what}.{key}")
        for key, kind in kinds.items()
        if key in entries
    }
    if "categories" in entries:
        values["categories"] = _texts(entries["categories"], f"{what}.categories")
    if entries.get("missing") is not None:
        values["missing"] = field_text(entries["missing"])
    return TableColumn(name=name, **values)


_quoted = functools.partial(json.dumps, ensure_ascii=False)  # TOML reads JSON's texts


def _column_lines(column: TableColumn) -> list[str]:
    """Returns a column's entries in TOML."""
    if column.text:
        lines = [f"text = {column.text}"]
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
    return lines


def _check_keys(entries: Mapping[str, Any], allowed: set[str], what: str) -> None:
    if strange := sorted(set(entries) - allowed):
        raise ValueError(f"{what}: expected some of {sorted(allowed)}, got {strange[0]!r}")


def _texts(values: Any, what: str) -> tuple[str, ...]:
    is_list = isinstance(values, list) and values
    if not is_list or any(isinstance(value, list | dict) for value in values):
        raise ValueError(f"{what}: expected a list of texts, got none")
    return tuple(field_text(value) for value in values)


def _typed(value: Any, kind: Any, what: str) -> Any:
    is_flag = isinstance(value, bool) and kind is not bool
    if value is not None and (is_flag or not isinstance(value, kind)):
        raise ValueError(f"{what}: expected another type than {type(value).__name__}")
    return value


def draft_columns(
    fields: Mapping[str, Sequence[str]],
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
    columns = {
        name: _draft_column(name, values, may_be_numbers=name not in categories)
        for name, values in fields.items()
        if name not in without
    }
    if not any(columns.values()):
        raise ValueError(
            "columns: expected numbers, categories or texts in one at least, got none: no column "
            "has values, or each has many different ones of few words; write a schema by hand, "
            f"[columns.NAME] with text = {TEXT_FEATURES} for texts"
        )
    return columns


def draft(
    fields: Mapping[str, Sequence[str]], *, label: str | None = None, owner: str | None = None
) -> str:
    """Returns a draft of a schema in TOML, from PUBLIC records alone; to be looked through.

    Args:
        fields: of each column by its name.
        label: name of the label's column, which public records need not have.
        owner: name of the owner's column.

    Raises:
        ValueError: if no column can be used.
    """
    classes = sorted(set(fields.get(label or "", ())) - {""})
    listed = _quoted(classes) if len(classes) > 1 else ""
    lines = [
        "# Drafted from public records. Look it through: ranges and categories are public.",
        *([f"label = {json.dumps(label)}"] if label else []),
        f"classes = {listed or '[]  # state them, in the order of their numbers'}",
        *([f"owner = {json.dumps(owner)}"] if owner else []),
    ]
    for name, column in draft_columns(fields, without=(label, owner)).items():
        lines += ["", f"# left out: {name!r} has no number and too many values of few words"]
        if column is not None:
            lines[-1:] = [f"[columns.{_key(name)}]", *_column_lines(column)]
    return "\n".join(lines) + "\n"


def _draft_column(name: str, fields: Sequence[str], *, may_be_numbers: bool) -> TableColumn | None:
    has_gaps, values = "" in fields, [value for value in fields if value]
    numbers = numbers_or_nan(values)
    distinct = sorted(set(values))
    if may_be_numbers and len(numbers) and np.isfinite(numbers).all():
        low, high = float(numbers.min()), float(numbers.max())
        high = high if low < high else low + 1.0
        # Below all values, so that none is taken for a missing one.
        if has_gaps:  # a short number about a quarter of the range below
            places = 1 - math.floor(math.log10(high - low))
            low = round(low - (high - low) / 4 - 0.5 * 10.0**-places, places)
        return TableColumn(name=name, low=low, high=high, missing=repr(low) if has_gaps else None)
    if len(distinct) > MOST_CATEGORIES:
        is_text = np.mean([len(text.split()) for text in distinct]) >= WORDS_OF_TEXT
        return TableColumn(name=name, text=TEXT_FEATURES) if is_text else None
    if not distinct:
        return None
    return TableColumn(name=name, categories=(*distinct, *[""] * has_gaps), other=True)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quoted(name)
