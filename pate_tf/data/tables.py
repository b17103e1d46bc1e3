"""Reads private and public tables from CSV, other delimited text, or Parquet files."""

import codecs
import contextlib
import csv
import dataclasses
import functools
import gzip
import io
import itertools
import pathlib
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
import pyarrow.csv

from pate_tf.core.checks import MAX_FAULTS, between, raise_all
from pate_tf.core.dataset import Dataset, is_labeled
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples, warn_holder
from pate_tf.data.schema import (
    GAPS,
    ONE_OF,
    Column,
    Schema,
    field_text,
    is_inexact,
    nearest,
    number_pattern,
    texts_of,
)

PARQUET = (".parquet", ".pq")
HELD_OUT = 0.3  # default fraction of labeled public records outside of the pool
FIRST = "first"
LAST = "last"
REFUSE = "refuse"  # raise an error for a record that does not fit the schema
SKIP = "skip"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextForm:
    """The format of a delimited text file.

    Attributes:
        delimiter: character between fields. A space means one or more spaces.
        encoding: Python's name of the text encoding. A byte order mark of UTF-8 is skipped.
        is_quoted: whether quotation marks enclose fields. If False, they are ordinary characters.
        has_blanks: whether to ignore spaces before fields.
        names: names of the columns; empty if the header was not read yet.
        has_header: whether the file has a line with the column names.
        unnamed: FIRST or LAST if the header has no name for the first or last field; otherwise
            empty.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    is_quoted: bool = True
    has_blanks: bool = False
    names: tuple[str, ...] = ()
    has_header: bool = True
    unnamed: str = ""

    def named(self, header: Sequence[str]) -> list[str]:
        """Returns a name for each field of a record."""
        names = [name.strip() for name in header]
        return {FIRST: ["", *names], LAST: [*names, ""]}.get(self.unnamed, names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTable:
    """Records of a table as texts, or as numbers from a Parquet file.

    Attributes:
        fields: columns by name, pyarrow arrays `[num_records]`. SENSITIVE if the records are
            private.
        what: beginning of error messages, such as the path of the file.
        form: the format of a delimited text file; None for other tables.
        misshapen: positions of skipped records with a wrong number of fields; in ascending order if
            the table was read with `in_order`.
        left_out: names of columns that were not read, because they are empty or their name is not
            unique.
    """

    fields: Mapping[str, Column] = dataclasses.field(repr=False)
    what: str
    form: TextForm | None = None
    misshapen: Sequence[int] = dataclasses.field(default=(), repr=False)
    left_out: Sequence[str] = dataclasses.field(default=(), repr=False)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(next(iter(self.fields.values()), ()))

    def private(
        self,
        dataset: Dataset,
        *,
        label: str | None = None,
        owner: str | None = None,
        on_bad_record: str = REFUSE,
    ) -> PrivateExamples:
        """SENSITIVE: returns the private records.

        Args:
            dataset: data set with a schema that converts records to features.
            label: name of the label's column, or several names separated by commas; None for the
                label of the schema.
            owner: name of the column with each record's owner; None for the owner column of the
                schema.
            on_bad_record: "refuse" to raise an error for a record that does not fit the schema;
                "skip" to leave it out. Skipping depends only on this record. With "skip", the
                number of remaining records is private. Each record then has a different owner,
                identified by its position in the file, so that no other record's teacher depends on
                it.

        Raises:
            ValueError: if a column is missing, a record does not fit the schema, or the file has no
                records. The message contains line numbers, but no values.
        """
        schema: Schema = dataset.schema
        names = schema.label_names(label)
        owner = owner or schema.owner
        if not names:
            raise ValueError("label is required: the name of the label's column")
        self.check_columns([*(each.name for each in schema.columns), *names, owner])
        labels, misfits = self._labels(schema, names, is_private=True)
        owners = None
        if owner is not None:
            owners = np.array(texts_of(self.fields[owner]), np.str_)
            misfits[f"{owner} is empty, but each record needs an owner"] = owners == ""
            is_rounded = np.array([is_inexact(name) for name in owners.tolist()], bool)
            misfits[f"{owner} is a rounded number, but must be a whole number or text"] = is_rounded
        elif on_bad_record == SKIP:
            rows = np.arange(self.num_records + len(self.misshapen))
            owners = np.delete(rows, self.misshapen)
        inputs, kept = self.inputs(schema, misfits, on_bad_record=on_bad_record, is_private=True)
        if owners is not None:
            owners = owners[kept]
        return PrivateExamples(dataset, inputs, labels[kept], owners)

    def public(self, schema: Schema, *, name: str, label: str | None = None) -> PublicExamples:
        """Returns the public records. They need neither labels nor a label column.

        Args:
            schema: schema that converts records to features.
            name: name of the data set, unless the schema has one.
            label: name of the label's column, or several names; see `private`.
        """
        labels = None
        misfits = dict[str, npt.NDArray[np.bool_]]()
        columns = schema.label_names(label)
        if columns and {*columns} <= {*self.fields}:
            labels, misfits = self._labels(schema, columns, is_private=False)
        inputs, _ = self.inputs(schema, misfits)
        for each in schema.columns:
            if each.is_number:
                numbers = dataclasses.replace(each, missing=None).numbers(self.fields[each.name])
                is_outside = (numbers < each.low) | (numbers > each.high)
                warn_of_range(f"{self.what}: {each.name}", is_outside)
        has_labels = labels is not None and bool(is_labeled(labels).any())
        size = pool_size(self.num_records, has_labels=has_labels)
        return PublicExamples(schema.dataset(name, size), inputs, labels)

    def _labels(
        self, schema: Schema, names: Sequence[str], *, is_private: bool
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[np.bool_]]]:
        """Returns the labels, and for each type of fault a mask of the records with this fault.

        A warning reports numbers that are outside their range.
        """
        fields = [self.fields[name] for name in names]
        labels, fits = schema.labels(*fields, may_be_empty=not is_private)
        if (number := schema.number) is not None:
            numbers = number.numbers(fields[0])
            is_outside = (numbers < number.low) | (numbers > number.high)
            warn_of_range(f"{self.what}: {names[0]}", is_outside, is_private=is_private)
        expected = schema.expected_label(may_be_empty=not is_private)
        columns = zip(names, fits.T, strict=True)
        return labels, {f"{name} must be {expected}": ~fits_name for name, fits_name in columns}

    def inputs(
        self,
        schema: Schema,
        misfits: dict[str, npt.NDArray[np.bool_]] | None = None,
        *,
        on_bad_record: str = REFUSE,
        is_private: bool = False,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Returns features `[num_kept, num_features]`, and a mask of the records that were kept.

        Args:
            schema: schema that converts records to features.
            misfits: faults that are already known: for each description of a fault, a mask of the
                records with this fault.
            on_bad_record: "refuse" or "skip", see `private`. A warning reports skipped records.
            is_private: whether the records are private.

        Raises:
            ValueError: if a record does not fit the schema, or if no record is left.
        """
        misfits = misfits or {}
        self.check_columns([column.name for column in schema.columns])
        parts = dict[str, npt.NDArray[np.float32]]()
        # Texts are encoded last, because they need TensorFlow, and errors in other columns should
        # be reported before its slow import.
        for column in sorted(schema.columns, key=lambda column: bool(column.text)):
            if column.text and on_bad_record == REFUSE:
                self.report(misfits, on_bad_record, is_private=is_private)
            features, fits = column.encode(self.fields[column.name])
            parts[column.name] = features
            misfits[f"{column.name} must be {column.expected}"] = ~fits
        kept = ~np.any([np.zeros(self.num_records, bool), *misfits.values()], axis=0)
        self.report(misfits, on_bad_record, is_private=is_private)
        if not kept.any():
            raise ValueError(f"{self.what} contains no record")
        columns = [parts[column.name] for column in schema.columns]
        inputs = np.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]  # no copy
        return inputs[kept] if not kept.all() else inputs, kept

    def check_columns(self, names: Sequence[str | None]) -> None:
        """Raises ValueError if columns are missing. The message lists them."""
        lacking = []
        for name in names:
            if name in self.left_out:
                lacking.append(f"there are several columns {name}, or its values are nested")
            elif name is not None and name not in self.fields:
                near = nearest(name, self.fields)
                hint = "" if near is None else f"; did you mean {near}?"
                lacking.append(f"there is no column {name}{hint}")
        if lacking and any(re.fullmatch(number_pattern(), name) for name in self.fields):
            lacking.append("the first line contains numbers instead of column names")
        if lacking and len(self.fields) == 1:
            lacking.append("the first line has a single field: does it use another delimiter?")
        raise_all(self.what, lacking)

    def report(
        self,
        misfits: Mapping[str, npt.NDArray[np.bool_]],
        on_bad_record: str = REFUSE,
        *,
        is_private: bool = False,
    ) -> None:
        """Raises an error for records that do not fit the schema, or warns if they are skipped."""
        is_bad = np.any([np.zeros(self.num_records, bool), *misfits.values()], axis=0)
        number = int(sum(misfit.sum() for misfit in misfits.values())) + len(self.misshapen)
        if not number:
            return
        texts = {
            int(row): [text for text, misfit in misfits.items() if misfit[row]]
            for row in np.flatnonzero(is_bad)[:MAX_FAULTS]
        }
        faults = list(itertools.islice(self._faults(texts), MAX_FAULTS))
        listed = [place for place, fault in enumerate(faults) if ONE_OF in fault]
        for place in listed[1:]:  # only the first fault contains the list of classes
            faults[place] = faults[place].partition(ONE_OF)[0]
        if on_bad_record == REFUSE:
            hint = " (line numbers are sensitive; `on_bad_record=skip` leaves such records out)"
            raise_all(self.what + hint * is_private, faults, number)
        num_bad = len(self.misshapen) + int(is_bad.sum())
        more = f"; and {number - len(faults):,} more" if number > len(faults) else ""
        text = f"{num_bad:,} records do not fit and are left out: {'; '.join(faults)}{more}"
        warn_holder(f"{self.what}: {text}", is_private=is_private, stacklevel=6)

    def _faults(self, texts: Mapping[int, Sequence[str]]) -> Iterator[str]:
        """Yields a description of each fault, with its line or record number, in order."""
        if self.form is None:
            for row, some in texts.items():
                yield from (f"record {row + 1}: {text}" for text in some)
            return
        records = _records(pathlib.Path(self.what), self.form, self.fields)
        _, names = next(records)
        row = -1
        for line, record in records:
            if len(record) != len(names):
                yield f"line {line} has {len(record)} fields instead of {len(names)}"
            else:
                row += 1
                yield from (f"line {line}: {text}" for text in texts.get(row, ()))


def warn_of_range(what: str, is_outside: npt.NDArray[np.bool_], is_private: bool = False) -> None:
    """Warns about values outside their range. For private values, the warning is sensitive."""
    if is_outside.any():
        warn_holder(
            f"{what}: {is_outside.mean():.2%} of the values are outside their range and will be "
            "clipped. Check low and high in the schema.",
            is_private=is_private,
            stacklevel=5,
        )


def pool_size(num_public: int, *, has_labels: bool, held_out: float | None = None) -> int:
    """Returns the number of public samples in the pool.

    Args:
        num_public: number of public samples.
        has_labels: whether some samples have labels.
        held_out: fraction of samples outside of the pool. If None, `HELD_OUT` if some samples have
            labels, else 0.

    Raises:
        ValueError: if `held_out` is not at least 0 and below 1.
    """
    fraction = (HELD_OUT if has_labels else 0.0) if held_out is None else held_out
    between(0, 1, ends="[)", held_out=fraction)
    most = num_public if fraction == 0.0 else num_public - 1
    return max(1, min(round(num_public * (1.0 - fraction)), most))


# The following functions read delimited text files.


DELIMITERS = (",", ";", "\t", "|")
BLANK: Final = " "  # delimiter of files that contain none of `DELIMITERS`
CONSISTENT: Final = 0.9  # minimum fraction of lines with the same number of fields
LOOKED_AT: Final = 200  # number of lines from which the format is inferred
ABOVE_HEADER: Final = 20  # maximum number of lines to search for the column names
SEPARATOR: Final = re.compile(r"sep=(.)\r?\n?")  # a first line that Excel writes; not a record
BLOCK: Final = 2**24  # number of bytes that are parsed at once
MAX_BLOCK: Final = 2**31 - 2**16  # maximum number of bytes of a record
MAX_RELEASE_SECONDS: Final = 1.0  # maximum time to wait until threads end
NAMED: Final = ". Set `encoding` and `delimiter` in the schema, or close open quotation marks"
NOT_TEXT: Final = {
    b"PK\x03\x04": "an Excel workbook or a zip archive. Save the sheet as CSV, or unpack it.",
    b"\xd0\xcf\x11\xe0": "an Excel workbook. Save the sheet as CSV.",
    b"PAR1": "a Parquet file. Give it the suffix .parquet.",
    **dict.fromkeys((b"@rel", b"@REL", b"@Rel"), "an ARFF file. Save it as CSV."),
    **dict.fromkeys((b'{"', b'[{"', b"[\n", b"{\n"), "a JSON file. Save it as CSV."),
    **dict.fromkeys((b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd"), "an archive. Unpack it."),
    **dict.fromkeys(
        (b"SQLite format 3", b"ARROW1\0", b"FEA1"), "another type of table. Save it as CSV."
    ),
    **dict.fromkeys((b"<!DO", b"<!do", b"<htm"), "a web page. Save the file that it links to."),
}


def text_form(
    path: pathlib.Path, by: Schema | None = None, *, header_only: bool = False
) -> TextForm:
    """Returns the format of a PUBLIC file, from its schema or inferred from the file itself.

    The encoding is UTF-8 or UTF-16 if the bytes are valid, otherwise Windows-1252. The delimiter is
    a member of `DELIMITERS` with which nearly all lines have the same number of fields, at least 2.
    If no member has this property, the delimiter is a space if spaces have it; otherwise it is the
    member that splits the first line into the most fields. Title lines are skipped. If the fields
    of the first line occur again in later lines, this line is a record, and the columns are named
    by their numbers.

    Args:
        path: path of the file. A Parquet file is not read.
        by: schema. Its entries take precedence over inferred values.
        header_only: whether only the header line is read. If so, the file may be private.

    Raises:
        ValueError: if the file can't be read.
    """
    if path.suffix.lower() in PARQUET:
        return TextForm()
    if header_only:
        form = header_of(path)
    else:
        encoding = None if by is None else by.encoding
        if encoding is None:
            with open_bytes(path) as file:
                encoding = _encoding(iter(functools.partial(file.read, BLOCK), b""))
        with open_text(path, TextForm(encoding=encoding)) as text:
            lines = list(itertools.islice(text, LOOKED_AT))
        form = _form_of(lines, encoding, None if by is None else by.delimiter)
    if by is None:
        return form
    return dataclasses.replace(
        form,
        encoding=by.encoding or form.encoding,
        delimiter=by.delimiter or form.delimiter,
        names=by.names or form.names,
        has_header=not by.names,
    )


def _form_of(lines: Sequence[str], encoding: str, delimiter: str | None = None) -> TextForm:
    """Infers the format of a file from its first lines."""
    delimiter = delimiter or _delimiter(lines)
    # In a tab-separated file, quotation marks are text unless they enclose fields.
    fields = "\t".join(map(str.rstrip, lines)).split("\t")
    quoted = [field.endswith('"') for field in fields if field.startswith('"')]
    form = TextForm(
        delimiter=delimiter,
        encoding=encoding,
        is_quoted=delimiter != "\t" or set(quoted) == {True},
        has_blanks=delimiter == BLANK
        or any(re.search(f'{re.escape(delimiter)} +"', line) for line in lines),
    )
    records = [record for _, record in records_of(lines, form, strict=False)]
    if not records:
        return form
    width, _ = Counter(map(len, records)).most_common(1)[0]
    place = next(place for place, record in enumerate(records) if len(record) == width)
    header = records[place]
    others = [each for each in records[place + 1 :] if len(each) == width]
    is_unnamed = bool(place) and 1 < len(records[place - 1]) == width - 1
    has_number = any(re.fullmatch(number_pattern(), field) for field in header)
    if _is_record(header, others) or (is_unnamed and has_number):
        if not is_unnamed:
            names = tuple(f"column_{number + 1}" for number in range(width))
            return dataclasses.replace(form, names=names, has_header=False)
        is_last = not any(record[-1] for record in [header, *others])
        form = dataclasses.replace(form, unnamed=LAST if is_last else FIRST)
        header = records[place - 1]
    return dataclasses.replace(form, names=tuple(form.named(header)))


def _is_record(header: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the first line is a record: its fields occur again in later lines.

    A name may be a value of its own column, too. So the number of these fields is compared with the
    number of fields that are unlike all values of their columns.
    """
    names = [name for name in header if name]
    if names in ([str(start + place) for place in range(len(names))] for start in (0, 1)):
        return False  # column names that are numbers
    columns = list(zip(*others, strict=True))
    num_again = sum(name in column for name, column in zip(header, columns, strict=False) if name)
    num_unlike = sum(map(_is_unlike, header, columns))
    is_numbers = all(re.fullmatch(number_pattern(), name) for name in names)
    is_again = 2 * num_again >= len(header) and num_again > num_unlike
    return is_again or (is_numbers and num_again > 0)


def _is_unlike(name: str, column: Sequence[str]) -> bool:
    """Whether a field has other properties than the values of its column, as a name usually has.

    This is the case if only the values are numbers, if the values are longer texts, or if each
    value occurs several times, but the field never does.
    """
    counts = Counter(value for value in column if value not in ("", *GAPS))
    if not counts or name in ("", *GAPS, *column):
        return False
    number = re.compile(number_pattern())
    is_number = all(map(number.fullmatch, counts)) and not number.fullmatch(name)
    num_longer = sum(len(value.split()) > len(name.split()) for value in counts)
    return is_number or num_longer >= CONSISTENT * len(counts) or min(counts.values()) > 1


def header_of(path: pathlib.Path) -> TextForm:
    """Returns the format and the column names of a file; reads only the header line.

    Raises:
        ValueError: if the file can't be read.
    """
    if path.suffix.lower() in PARQUET:
        from pyarrow import parquet

        try:
            return TextForm(names=tuple(parquet.read_schema(path).names))
        except (OSError, pyarrow.ArrowException):
            raise ValueError(f"{path} is not a Parquet file, or is damaged") from None
    with open_bytes(path) as file:
        content = file.readline(BLOCK)
        if b"sep=" in content[:8]:
            content += file.readline(BLOCK)
    encoding = _encoding([content])
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    lines = content.decode(codec, errors="ignore").splitlines(keepends=True)
    return _form_of(lines, encoding)


def check_other_file(public: pathlib.Path | None, private: pathlib.Path | None) -> None:
    """Raises ValueError if a public path and a private path are the same file."""
    if public and private and public.exists() and private.exists() and public.samefile(private):
        raise ValueError(f"public: {public} is also the private file. Pass another file.")


def check_header(path: pathlib.Path, named: Collection[str]) -> TextForm:
    """Returns the format of a PRIVATE file; raises ValueError if the first line may be a record.

    Otherwise, a schema that is drafted from the first line could publish the values of a record.

    Args:
        path: path of the file. Records are read only to decide whether the first line is a header.
        named: column names that the first line must contain.

    Raises:
        ValueError: if a column is missing, or if the first line contains numbers, dates or fields
            that occur again in later lines. Such fields do not matter if more columns contain
            only numbers, or if `named` contains most fields. The message contains no value from the
            file.
    """
    form = header_of(path)
    header = form.names
    lines = list[str]()
    if path.suffix.lower() not in PARQUET:
        with open_bytes(path) as file:
            text = io.TextIOWrapper(file, encoding=form.encoding, errors="ignore", newline="")
            lines = list(itertools.islice(text, LOOKED_AT))
    records = [record for _, record in records_of(lines, form, strict=False)]
    others = [record for record in records[1:] if len(record) == len(header)]
    columns = dict(zip(header, zip(*others, strict=True), strict=False))
    values = [name for name in header if re.fullmatch(r"[\W_]*\d[\W\d_]*", name)]
    again = [name for name, column in columns.items() if name in column and name not in values]
    number = re.compile(number_pattern())
    num_numeric = sum(all(map(number.fullmatch, filter(None, each))) for each in columns.values())
    if len(values) > 2 and "".join(values).isdecimal() and set(np.diff([*map(int, values)])) == {1}:
        values = []  # column names that are numbers or years
    values += GAPS.intersection(header)
    if not values and (_is_record(header, others) or len(again) >= max(num_numeric, 1)):
        values = again or list(header)
    if values and 2 * len(set(named).intersection(header)) <= len(header):
        places = ", ".join(map(str, sorted({header.index(name) + 1 for name in values})))
        raise ValueError(
            f"private: the first line of {path} looks like a record, because of field {places}. If "
            "that is a column name, rename it. Otherwise, add a line with the column names, or "
            "write a schema by hand with names = [...] for all columns"
        )
    if lacking := [name for name in named if name not in header]:
        raise ValueError(
            f"private: the first line of {path} has no column {', '.join(lacking)}. Use the "
            "spelling in that line, or add a header line if it is a record"
        )
    return form


def _delimiter(lines: Sequence[str]) -> str:
    """Infers the delimiter of a file from its first lines."""
    if lines and (match := SEPARATOR.fullmatch(lines[0])):
        return match[1]

    def widths(delimiter: str) -> tuple[float, int, int]:
        form = TextForm(
            delimiter=delimiter, is_quoted=delimiter != "\t", has_blanks=delimiter == BLANK
        )
        numbers = [len(record) for _, record in records_of(lines, form, strict=False)]
        width, count = Counter(numbers or [0]).most_common(1)[0]
        return (count / len(numbers) if width > 1 else 0.0), width, max(numbers[:1], default=0)

    best = max(DELIMITERS, key=widths)
    if widths(best)[0] < CONSISTENT:
        best = max(DELIMITERS, key=lambda delimiter: widths(delimiter)[2])
        # A file whose lines have many words but whose header has one name has a single column of
        # texts. If lines have two fields and the header has one name, the first field is the row
        # number.
        fraction, width, num_names = widths(BLANK)
        is_blank = fraction >= CONSISTENT and (num_names != 1 or width == 2)
        if is_blank and (len(lines) > 1 or widths(best)[1] < 2):
            return BLANK
    return best


def not_text(path: object, form: TextForm) -> ValueError:
    """Returns the error for a file that does not have this format; the message quotes no values."""
    return ValueError(
        f"{path} is not text in {form.encoding} with the delimiter {form.delimiter!r}{NAMED}"
    )


@contextlib.contextmanager
def open_bytes(path: pathlib.Path) -> Iterator[Any]:
    """Opens a text file, which may be compressed by gzip; raises ValueError if it is not text."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder. Images need no schema: pass their folders to `pate run`, and "
            "the names of the classes if the public images have no labels."
        )
    try:
        with open(path, "rb") as file:
            start = file.read(16)
            file.seek(0)
            for beginning, kind in NOT_TEXT.items():
                if start.startswith(beginning):
                    raise ValueError(f"{path} is {kind}")
            yield gzip.GzipFile(fileobj=file) if start.startswith(b"\x1f\x8b") else file
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path} is truncated: the gzip data end too early") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None


@contextlib.contextmanager
def open_text(path: pathlib.Path, form: TextForm) -> Iterator[io.TextIOWrapper]:
    """Opens a file as text.

    Raises ValueError when the file is opened or read, if it is not text.
    """
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    try:
        with open_bytes(path) as file:
            yield io.TextIOWrapper(file, encoding=encoding, newline="")
    except csv.Error as error:
        raise ValueError(f"{path}: {error}") from None
    except (UnicodeError, LookupError):
        raise not_text(path, form) from None


def _encoding(contents: Iterable[bytes]) -> str:
    """Infers the encoding of a file from its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for content in contents:
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            decoder.decode(content)
        except UnicodeDecodeError:
            # Windows-1252 texts have no zero bytes, so a text with a zero byte is UTF-8.
            return "utf-8" if b"\0" in content else "cp1252"
    return "utf-8"


def records_of(
    text: Iterable[str], form: TextForm, *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """Yields all records that are not empty, each with the number of its last line.

    Raises:
        csv.Error: if a quotation mark is not closed. The message contains its line number.
    """
    csv.field_size_limit(MAX_BLOCK)
    reader = csv.reader(
        text,
        strict=strict,
        delimiter=form.delimiter,
        quoting=csv.QUOTE_MINIMAL if form.is_quoted else csv.QUOTE_NONE,
        skipinitialspace=form.has_blanks,
    )
    last = 0
    try:
        for record in filter(None, reader):
            last = reader.line_num
            line = form.delimiter.join(record)
            if last > 1 or (not SEPARATOR.fullmatch(line) and line != "sep="):
                is_ended = form.delimiter == BLANK and not record[-1]  # the line ends with blanks
                fields = record[:-1] if is_ended else record
                if fields:
                    yield last, fields
    except csv.Error:
        raise csv.Error(
            f"the quotation mark in line {last + 1} is not closed: close or remove it (line "
            "numbers of a private file are sensitive)"
        ) from None


def named_records(
    text: Iterable[str], form: TextForm, wanted: Collection[str | None] | None
) -> Iterator[tuple[int, list[str]]]:
    """Yields the column names, then all records, each with the number of its last line.

    Among the first lines, the header is the line that contains the most names in `wanted`. Lines
    above the header are skipped.
    """
    records = records_of(text, form)
    if not form.has_header:
        yield 0, list(form.names)
        yield from records
        return
    wanted = set(form.names if wanted is None else wanted)
    start = list(itertools.islice(records, ABOVE_HEADER))
    named = [(line, form.named(record)) for line, record in start]
    places = range(len(start))
    place = max(places, key=lambda place: len(wanted & set(named[place][1])), default=0)
    yield from named[place : place + 1]
    yield from start[place + 1 :]
    yield from records


def _records(
    path: pathlib.Path, form: TextForm, wanted: Collection[str | None] | None
) -> Iterator[tuple[int, list[str]]]:
    """Yields the column names and records of a file; see `named_records`."""
    with open_text(path, form) as text:
        yield from named_records(text, form, wanted)


def read_table(
    path: pathlib.Path,
    form: TextForm = TextForm(),
    by: Schema | None = None,
    *others: str | None,
    in_order: bool = False,
) -> TextTable:
    """Reads a delimited text file or a Parquet file.

    Args:
        path: path of the file.
        form: format of the file.
        by: schema. Only its columns are read. If None, all columns are read.
        *others: names of additional columns to read if they exist.
        in_order: whether to return the positions of misshapen records in ascending order, for which
            the file is read by a single thread.

    Raises:
        ValueError: if the file has another format, or can't be read. The message contains no
            values.
    """
    wanted = None
    if by is not None:
        wanted = {*(column.name for column in by.columns), *by.label_names(), by.owner, *others}
    if path.suffix.lower() in PARQUET:
        return _read_parquet(path, wanted)
    line, names = next(_records(path, form, wanted), (0, []))
    places = places_of(names, wanted, str(path))
    table, misshapen = _parsed(path, form, line, len(names), places, in_order)
    fields = {name: table.column(str(place)) for name, place in places.items()}
    if form.is_quoted:
        # Counts the lines of the file to detect fields with several lines, which may be in columns
        # that are not read. If a block ends between the two bytes of a line end, the count is too
        # high by one, which only causes an unnecessary check.
        number = 0
        content = b"\n"
        with open_bytes(path) as file:
            while block := file.read(BLOCK):
                content = block
                number += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n")
        number += not content.endswith((b"\n", b"\r"))
        if number > line + table.num_rows + len(misshapen):
            labels = () if by is None else by.label_names(*others[:1])
            for _ in whole_records(_records(path, form, wanted), path, form, wanted, by, labels):
                pass
    return TextTable(
        fields=fields,
        what=str(path),
        form=form,
        misshapen=misshapen,
        left_out=[name for name in names if name not in fields] if by is None else (),
    )


def whole_records(
    records: Iterator[tuple[int, list[str]]],
    path: object,
    form: TextForm,
    wanted: Collection[str | None] | None,
    by: Schema | None,
    labels: Sequence[str] = (),
) -> Iterator[tuple[int, list[str]]]:
    """Yields the same as `named_records`; raises ValueError if a field may contain other records.

    A field may have several lines if its column is a text or is not read, and if no line of the
    field is a record with a valid label. An unclosed quotation mark in one record therefore can't
    change other records.

    Raises:
        ValueError: if a field may contain other records. The message contains no values.
    """
    before, names = next(records, (0, []))
    yield before, names
    of_one_line = set(wanted or ())
    if by is not None:
        of_one_line -= {each.name for each in by.columns if each.text}
    for line, fields in records:
        for name, field in zip(names, fields, strict=False) if line > before + 1 else ():
            lines = field.splitlines()
            if by is None or len(lines) < 2:
                continue
            if name in of_one_line or any(
                _is_labeled_record(each, names, form, by, labels) for each in lines[1:]
            ):
                raise ValueError(
                    f"{path}: a field of column {name} that ends in line {line} has {len(lines)} "
                    f"lines and may contain other records: close or remove its quotation mark "
                    f"(line numbers of a private file are sensitive)"
                )
        before = line
        yield line, fields


def _is_labeled_record(
    line: str, names: Sequence[str], form: TextForm, by: Schema, labels: Sequence[str]
) -> bool:
    """Whether a single line has a field for each column and contains a valid label."""
    fields = next(csv.reader([line], delimiter=form.delimiter), [])
    places = [names.index(name) for name in labels if name in names]
    if len(fields) != len(names) or not places:
        return False
    return bool(by.labels(*([fields[place]] for place in places))[1].all())


def _parsed(
    path: pathlib.Path,
    form: TextForm,
    first_line: int,
    num_fields: int,
    places: Mapping[str, int],
    in_order: bool,
) -> tuple[pyarrow.Table, list[int]]:
    """Returns the columns at `places`, and the positions of records with a wrong number of fields.

    Every field is read as text, so its meaning never depends on another record.
    """
    misshapen = list[int]()

    def skip(row: Any) -> str:
        misshapen.append((row.number or 0) - 1 - first_line)
        return "skip"

    kinds = {str(place): pyarrow.string() for place in places.values()}
    opened: Any = functools.partial(open_bytes, path)
    if form.has_blanks:
        # Writes a copy of the file without spaces before fields.
        text = io.StringIO(newline="")
        records = _records(path, form, list(places))
        before, _ = next(records, (0, []))
        for line, record in records:
            num_lines = 1 + sum(field.count("\n") for field in record)
            # Writes empty lines, too, so that the positions of later records do not change.
            text.write("\n" * (line - before - num_lines))
            csv.writer(text).writerow(record)
            before = line
        opened = functools.partial(io.BytesIO, text.getvalue().encode())
        form = TextForm()
        first_line = 0
    for block in (BLOCK, MAX_BLOCK):
        misshapen.clear()
        try:
            with opened() as file:
                num_references = sys.getrefcount(skip), sys.getrefcount(file)
                table = pyarrow.csv.read_csv(
                    file,
                    pyarrow.csv.ReadOptions(
                        use_threads=not in_order,
                        block_size=block,
                        skip_rows=first_line,
                        column_names=[str(place) for place in range(num_fields)],
                        encoding="utf8" if form.encoding == "utf-8" else form.encoding,
                    ),
                    pyarrow.csv.ParseOptions(
                        delimiter=form.delimiter,
                        quote_char='"' if form.is_quoted else False,
                        newlines_in_values=form.is_quoted,
                        # If positions identify owners, empty lines are counted, too. Otherwise, an
                        # empty line would change the owners of all later records.
                        ignore_empty_lines=not in_order,
                        invalid_row_handler=skip,
                    ),
                    pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds)),
                )
                # A thread of Arrow may release these Python objects about a millisecond later. If
                # the interpreter ended before that, the process would crash, so this waits until
                # they are released.
                last = time.monotonic() + MAX_RELEASE_SECONDS
                while num_references < (sys.getrefcount(skip), sys.getrefcount(file)):
                    if time.monotonic() > last:
                        break
                    time.sleep(0.001)
            return table, misshapen
        except (pyarrow.ArrowException, UnicodeError, LookupError) as error:
            # Arrow's error messages may quote values, so they are not passed on.
            if "Empty CSV" in str(error):
                return pyarrow.table(dict.fromkeys(kinds, pyarrow.array([], pyarrow.string()))), []
            if "straddl" not in str(error):
                break
    for _ in _records(path, form, None):  # reports an unclosed quotation mark
        pass
    raise not_text(path, form)


def _read_parquet(path: pathlib.Path, wanted: Collection[str | None] | None) -> TextTable:
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        nested = [each.name for each in file.schema_arrow if pyarrow.types.is_nested(each.type)]
        names = ["" if name in nested else name for name in file.schema_arrow.names]
        names = list(places_of(names, wanted, str(path)))
        table = file.read(columns=names)
        fields = {name: of_arrow(table.column(name)) for name in names}
    except (OSError, pyarrow.ArrowException):  # their message may quote values
        raise ValueError(f"{path} is not a Parquet file, or is damaged") from None
    return TextTable(fields=fields, what=str(path), left_out=nested)


def of_arrow(values: Any) -> Column:
    """Converts a pyarrow array to numbers or texts, with null for empty fields."""
    kind = values.type
    if pyarrow.types.is_dictionary(kind):
        return of_arrow(values.cast(kind.value_type))
    if pyarrow.types.is_integer(kind):
        return values
    if pyarrow.types.is_floating(kind):
        numbers = values.cast(pyarrow.float64())
        return pc.if_else(pc.is_nan(numbers), None, numbers)
    if pyarrow.types.is_timestamp(kind):
        values = values.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    if pyarrow.types.is_string(kind):
        return values
    fields = values.to_pylist()
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        # A field that is not UTF-8 must not change other fields, so invalid bytes are replaced.
        fields = [None if value is None else value.decode(errors="replace") for value in fields]
    return pyarrow.array([field_text(value) for value in fields], pyarrow.string())


def places_of(
    names: Sequence[str], wanted: Collection[str | None] | None, what: str
) -> dict[str, int]:
    """Returns the positions of the wanted columns, or of all columns with unique names.

    Raises:
        ValueError: if there are no columns, or if a wanted name occurs several times.
    """
    if not any(names):
        raise ValueError(f"{what}: the first line contains no column names")
    numbers = Counter(names)
    faults = []
    for name in (name for name in numbers if name and numbers[name] > 1 and name in (wanted or ())):
        where = " and ".join(str(place + 1) for place, each in enumerate(names) if each == name)
        faults.append(f"the name {name} occurs several times, in columns {where}")
    raise_all(what, faults)
    return {
        name: place
        for place, name in enumerate(names)
        if name and numbers[name] == 1 and (wanted is None or name in wanted)
    }
