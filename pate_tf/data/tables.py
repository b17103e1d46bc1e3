"""Tables in files, comma-separated or Parquet: private on one side and public on the other."""

import codecs
import csv
import dataclasses
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.schema import Schema, field_text

PARQUET = (".parquet", ".pq")
HELD_OUT = 0.3  # of public records some of which have labels, to evaluate the student


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTable:
    """Records as texts. SENSITIVE if they are.

    Attributes:
        fields: of each column by its name, a text for each record.
        places: where each record stands, for messages, which carry no field.
        what: begins a message.
    """

    fields: Mapping[str, Sequence[str]] = dataclasses.field(repr=False)
    places: Sequence[str] = dataclasses.field(repr=False)
    what: str

    def private(
        self,
        schema: Schema,
        public: PublicExamples,
        *,
        label: str | None = None,
        owner: str | None = None,
    ) -> PrivateExamples:
        """SENSITIVE: returns the private records.

        Args:
            schema: how a record becomes features.
            public: whose data set this is.
            label: name of the label's column; None for the schema's.
            owner: name of the owner's column; None for the schema's.

        Raises:
            ValueError: if a column is missing, a record does not fit the schema, or there is none.
        """
        label, owner = label or schema.label, owner or schema.owner
        if label is None:
            raise ValueError("label: expected the name of the label's column, got none")
        if owner and "" in self.column(owner):
            place = self.places[self.fields[owner].index("")]
            raise ValueError(
                f"{self.what}, {place}: {owner}: expected the owner of each record, got none"
            )
        inputs = self.inputs(schema)
        labels = self.labels(schema, label, may_be_empty=False)
        owners = np.array(self.fields[owner], np.str_) if owner else None
        return PrivateExamples(public.dataset, inputs, labels, owners)

    def public(self, schema: Schema, *, name: str, label: str | None = None) -> PublicExamples:
        """Returns the public records; they need no labels, nor a column of them.

        `name` is the data set's unless the schema says it; otherwise as `private`.
        """
        inputs, labels, column = self.inputs(schema, is_public=True), None, label or schema.label
        if column is not None and column in self.fields:
            labels = self.labels(schema, column, may_be_empty=True)
        has_labels = labels is not None and bool((labels >= 0).any())
        size = pool_size(len(self.places), has_labels=has_labels)
        return PublicExamples(schema.dataset(name, size), inputs, labels)

    def column(self, name: str) -> Sequence[str]:
        """Returns the fields of a column; raises ValueError if there is none."""
        if name not in self.fields:
            raise ValueError(f"{self.what}: expected a column {name}, got none")
        return self.fields[name]

    def take(self, rows: Sequence[int]) -> "TextTable":
        """Returns the records at some places."""
        fields = {name: [column[row] for row in rows] for name, column in self.fields.items()}
        return TextTable(fields=fields, places=[self.places[row] for row in rows], what=self.what)

    def labels(
        self, schema: Schema, label: str | None = None, *, may_be_empty: bool
    ) -> npt.NDArray[np.int64]:
        """Returns labels as numbers of classes, int64 `[num_records]`, -1 for an empty one.

        Args:
            schema: names the classes.
            label: name of the column; None for the schema's.
            may_be_empty: whether a label may be.

        Raises:
            ValueError: if there is no such column, or a label is no class.
        """
        number = {name: index for index, name in enumerate(schema.classes)}
        if may_be_empty:
            number = {"": -1, **number}
        values = self.column(label or schema.label or "")
        for value, place in zip(values, self.places, strict=True):
            if value not in number:
                raise ValueError(
                    f"{self.what}, {place}: label: expected one of "
                    f"{', '.join(schema.classes[:12])}, got something else"
                )
        return np.array([number[value] for value in values], np.int64)

    def inputs(self, schema: Schema, *, is_public: bool = False) -> npt.NDArray[np.float32]:
        """Returns features `[num_records, num_features]`; warns of public numbers out of range.

        Raises:
            ValueError: if a column is missing, a record does not fit the schema, or there is none.
        """
        if not self.places:
            raise ValueError(f"{self.what}: expected at least one record, got none")
        features = schema.encode_columns(self.fields, self.what, self.places)
        for column in schema.columns if is_public else ():
            if not column.categories and not column.text:
                numbers = column.numbers(self.fields[column.name])
                warn_of_range(
                    f"{self.what}: {column.name}", (numbers < column.low) | (numbers > column.high)
                )
        return features


def warn_of_range(what: str, is_outside: npt.NDArray[np.bool_]) -> None:
    """Warns of public values outside of their range, if there are some."""
    if is_outside.any():
        warnings.warn(
            f"{what}: {is_outside.mean():.2%} of the values are outside of their range and are "
            f"clipped to it; state the range that is meant",
            stacklevel=4,
        )


def pool_size(num_public: int, *, has_labels: bool, held_out: float | None = None) -> int:
    """Returns how many public samples form the pool.

    Args:
        num_public: how many there are.
        has_labels: whether some have labels.
        held_out: share that stays out of the pool; None for `HELD_OUT`, and for 0 without labels.

    Raises:
        ValueError: if `held_out` is no share below 1.
    """
    share = (HELD_OUT if has_labels else 0.0) if held_out is None else held_out
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out: expected a share from 0 to below 1, got {share}")
    most = num_public if share == 0.0 else num_public - 1
    return max(1, min(round(num_public * (1.0 - share)), most))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextForm:
    """How the text of a file of separated values is written.

    Attributes:
        delimiter: between the fields of a line.
        encoding: as Python names it; a byte order mark of UTF-8 is skipped.
        decimal: "." or ",", in numbers.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."

    def fields(self, record: Sequence[str]) -> list[str]:
        """Returns the fields of a line without spaces around them, numbers with a point."""
        fields = [field.strip() for field in record]
        if self.decimal == ".":
            return fields
        return [
            field.replace(",", ".") if COMMA_NUMBER.fullmatch(field) else field for field in fields
        ]


COMMA_NUMBER = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
POINT_NUMBER = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
DELIMITERS = (",", ";", "\t", "|")
LOOKED_AT = 200  # lines of a file whose form is to be found


def text_form(public: pathlib.Path, by: Schema | None = None) -> TextForm:
    """Returns how files are written: as a schema says, else as a PUBLIC file is.

    The text is UTF-8 or UTF-16 if the file is, else Windows-1252. The delimiter is that of
    `DELIMITERS` with which all first lines have the same number of fields, and most. Numbers have a
    decimal comma if another delimiter stands there, and a number has one and none a point.

    Args:
        public: the file; Parquet is not looked at.
        by: what it says counts more.

    Raises:
        ValueError: if the file can't be read.
    """
    names = [field.name for field in dataclasses.fields(TextForm)]
    stated = {name: getattr(by, name) for name in names if getattr(by, name, None) is not None}
    if public.suffix.lower() in PARQUET or len(stated) == len(names):
        return TextForm(**stated)
    try:
        content = public.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{public}: expected a file that can be read, got {error.strerror}"
        ) from None
    encoding = stated.get("encoding") or _encoding(content)
    try:
        lines = content.decode(encoding).removeprefix("\ufeff").splitlines()[:LOOKED_AT]
    except (UnicodeError, LookupError):
        raise ValueError(f"{public}: expected text in {encoding}, got others") from None

    def width(delimiter: str) -> int:
        widths = {len(record) for record in csv.reader(lines, delimiter=delimiter) if record}
        return widths.pop() if len(widths) == 1 else 0

    delimiter = stated.get("delimiter") or max(DELIMITERS, key=width)
    fields = [
        field.strip() for record in csv.reader(lines, delimiter=delimiter) for field in record
    ]
    has_comma, has_point = (
        any(pattern.fullmatch(field) for field in fields)
        for pattern in (COMMA_NUMBER, POINT_NUMBER)
    )
    is_comma = delimiter != "," and has_comma and not has_point
    decimal = stated.get("decimal") or ("," if is_comma else ".")
    return TextForm(delimiter=delimiter, encoding=encoding, decimal=decimal)


def _encoding(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "utf-8" if b"\0" in content else "cp1252"  # with zero bytes it is no text
    return "utf-8"


def read_table(path: pathlib.Path, form: TextForm = TextForm()) -> TextTable:
    """Reads separated values whose first line names the columns, or Parquet (with pyarrow).

    Raises:
        ValueError: if the file is neither, or can't be read. The message carries no field.
    """
    if path.suffix.lower() in PARQUET:
        return _read_parquet(path)
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    try:
        with open(path, encoding=encoding, newline="") as file:
            return parse_records(file, str(path), form)
    except (csv.Error, UnicodeError, LookupError):
        raise ValueError(
            f"{path}: expected text in {form.encoding}, separated by {form.delimiter!r}, got "
            f"something else"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None


def parse_records(
    lines: Iterable[str], what: str, form: TextForm = TextForm(), names: Sequence[str] | None = None
) -> TextTable:
    """Returns the records of separated values, without blank lines.

    Args:
        lines: of a file.
        what: begins a message.
        form: how the lines are written.
        names: of the columns; None if the first line has them.

    Raises:
        ValueError: if a record has another number of fields. The message carries no field.
        csv.Error: if quotes are not closed.
    """
    reader = csv.reader(lines, strict=True, delimiter=form.delimiter)
    if names is None:
        names = checked_names([name.strip() for name in next(reader, [])], what)
    records, places = [], []
    for record in filter(None, reader):
        place = f"line {reader.line_num}"
        if len(record) != len(names):
            raise ValueError(f"{what}, {place}: expected {len(names)} fields, got {len(record)}")
        records.append(form.fields(record))
        places.append(place)
    columns = list(map(list, zip(*records, strict=True))) or [[] for _ in names]
    return TextTable(fields=dict(zip(names, columns, strict=True)), places=places, what=what)


def _read_parquet(path: pathlib.Path) -> TextTable:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: expected the package pyarrow, which reads Parquet, got none"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException):  # whose text may quote values
        raise ValueError(f"{path}: expected Parquet, got something else") from None
    fields = {
        name: [field_text(value) for value in table.column(name).to_pylist()]
        for name in checked_names(table.column_names, path)
    }
    places = [f"record {index}" for index in range(table.num_rows)]
    return TextTable(fields=fields, places=places, what=str(path))


def checked_names(names: Sequence[str], path: pathlib.Path | str) -> Sequence[str]:
    """Returns the names of a file's columns; raises ValueError unless each has one of its own."""
    if not names or len(set(names)) < len(names) or "" in names:
        raise ValueError(f"{path}: expected a name for each column, each once, in the first line")
    return names
