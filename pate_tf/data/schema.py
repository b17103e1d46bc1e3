"""What a user states of a table: its columns, their ranges and categories, its label and owner.

A schema is public. It is written by hand, or drafted from public records; never from private ones,
since then a range or a list of categories would tell of them. So a record becomes features by the
schema and by itself alone, and a teacher's inputs can't change with another teacher's records.
"""

import dataclasses
import json
import math
import pathlib
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

    A number is one feature, clipped to the range. A category is a feature for each in the list, 1
    for the one that it is. A text is many, as `data.text` makes them.

    Attributes:
        name: of the column.
        low: lowest value of a number, from public knowledge.
        high: highest value.
        categories: what else it can be; empty for a number.
        other: whether there is one more feature for values that are not in the list.
        missing: what stands for an empty field; None if that is an error.
        text: how many features a text becomes, hashed n-grams of its words; 0 if it is none.

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
            from pate_tf.data import text  # TensorFlow, for texts alone

            return text.encode(values, self.text)
        if not self.categories:
            return self._numbers(values, what, places)
        position = {category: index for index, category in enumerate(self.categories)}
        rest = len(self.categories) if self.other else -1
        found = np.array([position.get(value, rest) for value in values], np.int64)
        self._check(found >= 0, "a category of the schema", what, places)
        return np.eye(self.width, dtype=np.float32)[found]

    def _numbers(self, values: Sequence[str], what: str, places: Sequence[str]) -> Any:
        numbers = numbers_or_nan(values)
        self._check(np.isfinite(numbers), "a finite number", what, places)
        return np.clip(numbers, self.low, self.high).astype(np.float32)[:, np.newaxis]

    def _check(
        self, is_right: npt.NDArray[np.bool_], expected: str, what: str, places: Sequence[str]
    ) -> None:
        if not is_right.all():
            place = places[int(np.argmin(is_right))]
            raise ValueError(
                f"{what}, {place}: {self.name}: expected {expected}, got something else; the "
                f"schema may say `missing` for empty fields and `other` for further categories"
            )


def numbers_or_nan(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Returns the number that each text is, `[num_texts]`; NaN for one that is none."""
    try:
        return np.array(texts, np.float64)
    except ValueError:
        if len(texts) == 1:
            return np.full(1, np.nan)
        return np.concatenate([numbers_or_nan([one]) for one in texts])


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

    Raises:
        ValueError: if they don't stand together.
    """

    columns: tuple[TableColumn, ...]
    classes: tuple[str, ...]
    label: str | None = None
    owner: str | None = None
    name: str | None = None
    pool_size: int | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ValueError("columns: expected at least one, each once")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes: expected at least 2 different ones, got {list(self.classes)}"
            )
        for role in ("label", "owner"):
            if getattr(self, role) in names:
                raise ValueError(f"columns.{getattr(self, role)}: expected no {role} among them")

    @property
    def num_features(self) -> int:
        """How many features a record has."""
        return sum(column.width for column in self.columns)

    def dataset(self, name: str, pool_size: int) -> Dataset:
        """Returns what a run knows of the data."""
        lows, highs = zip(
            *(column.value_range for column in self.columns for _ in range(column.width)),
            strict=True,
        )
        return Dataset(
            name=self.name or name,
            kind="text" if len(self.columns) == 1 and self.columns[0].text else "tabular",
            input_shape=(self.num_features,),
            value_range=(tuple(map(float, lows)), tuple(map(float, highs))),
            num_classes=len(self.classes),
            class_names=self.classes,
            pool_size=self.pool_size or pool_size,
        )

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

    def encode_labels(
        self, values: Sequence[str], what: str, places: Sequence[str], *, may_be_empty: bool
    ) -> npt.NDArray[np.int64]:
        """Returns labels as numbers of classes, int64 `[num_records]`, as `TableColumn.encode`.

        An empty one is -1, the sign of no label, or an error, as `may_be_empty` says.
        """
        number = {name: index for index, name in enumerate(self.classes)}
        if may_be_empty:
            number = {"": -1, **number}
        for value, place in zip(values, places, strict=True):
            if value not in number:
                raise ValueError(
                    f"{what}, {place}: label: expected one of {', '.join(self.classes[:12])}, got "
                    f"something else"
                )
        return np.array([number[value] for value in values], np.int64)


def field_text(value: Any) -> str:
    """Returns a field as text, as a file of comma-separated values would have it."""
    return "" if value is None else str(value).strip()


# Schemas in TOML: read, and drafted from public records.


MOST_CATEGORIES = 30  # that a draft lists; a column with more is left out
_KEYS = {"label", "classes", "owner", "name", "pool_size", "columns"}
_COLUMN_KEYS = {"low", "high", "categories", "other", "missing", "text"}


def read_schema(path: pathlib.Path) -> Schema:
    """Reads a schema in TOML.

    Raises:
        ValueError: if it is no TOML, or says what no schema says.
        OSError: if it can't be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
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
    if not isinstance(columns, dict) or not all(isinstance(one, dict) for one in columns.values()):
        raise ValueError("columns: expected a table [columns.NAME] for each column, got none")
    return Schema(
        columns=tuple(_column(name, given) for name, given in columns.items()),
        classes=_texts(values.get("classes"), "classes"),
        **{name: _typed(values.get(name), str, name) for name in ("label", "owner", "name")},
        pool_size=_typed(values.get("pool_size"), int, "pool_size"),
    )


def _column(name: str, given: Mapping[str, Any]) -> TableColumn:
    what = f"columns.{name}"
    _check_keys(given, _COLUMN_KEYS, what)
    is_range = "low" in given or "high" in given
    if is_range + ("categories" in given) + ("text" in given) != 1:
        got = "both" if is_range or "text" in given else "none"
        raise ValueError(f"{what}: expected either low and high, or categories, or text, got {got}")
    if is_range and not ("low" in given and "high" in given):
        raise ValueError(f"{what}: expected low and high, from public knowledge, or categories")
    types = {"low": (int, float), "high": (int, float), "text": int, "other": bool}
    values: dict[str, Any] = {
        key: _typed(given[key], kind, f"{what}.{key}")
        for key, kind in types.items()
        if key in given
    }
    if "categories" in given:
        values["categories"] = _texts(given["categories"], f"{what}.categories")
    if given.get("missing") is not None:
        values["missing"] = field_text(given["missing"])
    return TableColumn(name=name, **values)


def _check_keys(given: Mapping[str, Any], known: set[str], what: str) -> None:
    if strange := sorted(set(given) - known):
        raise ValueError(f"{what}: expected some of {sorted(known)}, got {strange[0]!r}")


def _texts(given: Any, what: str) -> tuple[str, ...]:
    is_list = isinstance(given, list) and given
    if not is_list or any(isinstance(one, list | dict) for one in given):
        raise ValueError(f"{what}: expected a list of texts, got none")
    return tuple(field_text(one) for one in given)


def _typed(given: Any, kind: Any, what: str) -> Any:
    is_flag = isinstance(given, bool) and kind is not bool
    if given is not None and (is_flag or not isinstance(given, kind)):
        raise ValueError(f"{what}: expected another type than {type(given).__name__}")
    return given


def draft(
    fields: Mapping[str, Sequence[str]],
    *,
    label: str | None = None,
    owner: str | None = None,
    categories: Collection[str] = (),
) -> str:
    """Returns a draft of a schema in TOML, from PUBLIC records alone; to be looked through.

    Args:
        fields: of each column by its name.
        label: name of the label's column, which public records need not have.
        owner: name of the owner's column.
        categories: names of columns that are categories, though they hold numbers.

    Raises:
        ValueError: if no column can be used.
    """
    classes = sorted({value for value in fields.get(label or "", ()) if value})
    listed = json.dumps(classes, ensure_ascii=False) if len(classes) > 1 else ""
    lines = [
        "# Drafted from public records. Look it through: ranges and categories are public.",
        *([f"label = {json.dumps(label)}"] if label else []),
        f"classes = {listed or '[]  # state them, in the order of their numbers'}",
        *([f"owner = {json.dumps(owner)}"] if owner else []),
    ]
    bodies = {
        name: _draft_column(values, may_be_numbers=name not in categories)
        for name, values in fields.items()
        if name not in (label, owner)
    }
    if not any(bodies.values()):
        raise ValueError("columns: expected numbers or few categories in one at least, got none")
    for name, body in bodies.items():
        left_out = f"# left out: {name!r} has no number and too many values"
        lines += ["", *([f"[columns.{_key(name)}]", *body] if body else [left_out])]
    return "\n".join(lines) + "\n"


def _draft_column(fields: Sequence[str], *, may_be_numbers: bool) -> list[str]:
    has_gaps, values = "" in fields, [value for value in fields if value]
    numbers = numbers_or_nan(values)
    found = sorted(set(values))
    if may_be_numbers and len(numbers) and np.isfinite(numbers).all():
        low, high = float(numbers.min()), float(numbers.max())
        high = high if low < high else low + 1.0
        missing = [f"missing = {low!r}  # stands for an empty field"] if has_gaps else []
        is_code = 2 < len(found) <= MOST_CATEGORIES and (numbers == np.floor(numbers)).all()
        codes = [f"# if these are codes: categories = {json.dumps(found)}"] if is_code else []
        return [f"low = {low!r}", f"high = {high!r}", *missing, *codes]
    if not found or len(found) > MOST_CATEGORIES:
        return []
    listed = json.dumps([*found, *([""] if has_gaps else [])], ensure_ascii=False)
    return [f"categories = {listed}", "other = true  # one more, for what is not listed"]


def _key(name: str) -> str:
    is_bare = name and all(one.isascii() and (one.isalnum() or one in "_-") for one in name)
    return name if is_bare else json.dumps(name, ensure_ascii=False)
