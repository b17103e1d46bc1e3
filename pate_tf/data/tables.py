"""Tables in files, comma-separated or Parquet: private on one side and public on the other."""

import codecs
import csv
import dataclasses
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence

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
        for name in filter(None, (label, owner)):
            if name not in self.fields:
                raise ValueError(f"{self.what}: expected a column {name}, got none")
        if owner and "" in self.fields[owner]:
            place = self.places[self.fields[owner].index("")]
            raise ValueError(
                f"{self.what}, {place}: {owner}: expected the owner of each record, got none"
            )
        inputs = self.inputs(schema)
        labels = schema.encode_labels(
            self.fields[label], self.what, self.places, may_be_empty=False
        )
        owners = np.array(self.fields[owner], np.str_) if owner else None
        return PrivateExamples(public.dataset, inputs, labels, owners)

    def public(self, schema: Schema, *, name: str, label: str | None = None) -> PublicExamples:
        """Returns the public records; they need no labels, nor a column of them.

        `name` is the data set's unless the schema says it; otherwise as `private`.
        """
        inputs, labels, column = self.inputs(schema, is_public=True), None, label or schema.label
        if column is not None and column in self.fields:
            labels = schema.encode_labels(
                self.fields[column], self.what, self.places, may_be_empty=True
            )
        has_labels = labels is not None and bool((labels >= 0).any())
        size = pool_size(len(self.places), has_labels=has_labels)
        return PublicExamples(schema.dataset(name, size), inputs, labels)

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

    @property
    def unusual(self) -> dict[str, str]:
        """What differs from the usual form, by name."""
        usual = vars(TextForm())
        return {name: value for name, value in vars(self).items() if value != usual[name]}

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

    The text is UTF-8 or UTF-16 if the file is, else Windows-1252. The delimiter is that of a comma,
    a semicolon, a tabulator and a bar with which the first lines have most fields, all as many.
    Numbers have a decimal comma if another delimiter stands there, and some number has one and none
    a point.

    Args:
        public: the file; Parquet is not looked at.
        by: what it says counts more.

    Raises:
        ValueError: if the file can't be read.
    """
    stated = {
        name: getattr(by, name)
        for name in ("delimiter", "encoding", "decimal")
        if getattr(by, name, None) is not None
    }
    if public.suffix.lower() in PARQUET or len(stated) == 3:
        return TextForm(**stated)
    try:
        content = public.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{public}: expected a file that can be read, got {error.strerror}"
        ) from None
    if "encoding" not in stated:
        stated["encoding"] = _encoding(content)
    try:
        text = content.decode(stated["encoding"])
    except (UnicodeError, LookupError):
        raise ValueError(f"{public}: expected text in {stated['encoding']}, got others") from None
    lines = text.removeprefix("\ufeff").splitlines()[:LOOKED_AT]
    if "delimiter" not in stated:
        numbers = {mark: [len(record) for record in _records(lines, mark)] for mark in DELIMITERS}
        # How many fields the first line and most lines have; none if these numbers differ.
        usual = {
            mark: lengths[0]
            for mark, lengths in numbers.items()
            if lengths and max(set(lengths), key=lengths.count) == lengths[0]
        }
        stated["delimiter"] = max(DELIMITERS, key=lambda mark: usual.get(mark, 0))
    if "decimal" not in stated:
        records = _records(lines, stated["delimiter"])
        fields = [field.strip() for record in records for field in record]
        has_comma, has_point = (
            any(pattern.fullmatch(field) for field in fields)
            for pattern in (COMMA_NUMBER, POINT_NUMBER)
        )
        is_comma = stated["delimiter"] != "," and has_comma and not has_point
        stated["decimal"] = "," if is_comma else "."
    return TextForm(**stated)


def _encoding(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        content.decode()
    except UnicodeDecodeError:
        # Where both zero bytes and letters beyond ASCII are, it is no text.
        return "utf-8" if b"\0" in content else "cp1252"
    return "utf-8"


def _records(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    try:
        return [record for record in csv.reader(lines, delimiter=delimiter) if record]
    except csv.Error:
        return []


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
            reader = csv.reader(file, strict=True, delimiter=form.delimiter)
            names = checked_names([name.strip() for name in next(reader, [])], path)
            records, places = [], []
            for record in filter(None, reader):
                if len(record) != len(names):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: expected {len(names)} fields, got "
                        f"{len(record)}"
                    )
                records.append(form.fields(record))
                places.append(f"line {reader.line_num}")
    except (csv.Error, UnicodeError, LookupError):
        raise ValueError(
            f"{path}: expected text in {form.encoding}, separated by {form.delimiter!r}, got "
            f"something else"
        ) from None
    except OSError as error:
        raise ValueError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    columns = list(map(list, zip(*records, strict=True))) or [[] for _ in names]
    return TextTable(fields=dict(zip(names, columns, strict=True)), places=places, what=str(path))


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
