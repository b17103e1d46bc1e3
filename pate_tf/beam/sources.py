"""Where a pipeline's records come from: spans of files or arrays, read in blocks of rows.

What becomes of a record follows from that record and the schema alone. One that does not fit is
counted as bad; it never changes what another record becomes.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.schema import TableColumn, field_text, numbers_or_nan
from pate_tf.data.tables import PARQUET, checked_names, text_form

ROWS: Final = 2**15  # of a block
RECORDS: Final = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
TO_THE_END: Final = -1

Column = Sequence[str] | npt.NDArray[Any]


def filesystems() -> Any:
    """Returns Beam's file systems: local paths, and whatever is installed, such as gs://.

    Raises:
        ModuleNotFoundError: if the extra is missing.
    """
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


@dataclasses.dataclass(frozen=True, order=True)
class Span:
    """A part of a source that one worker reads.

    Attributes:
        number: of the span, from 0.
        path: of the file; empty for arrays.
        start: first row group of a Parquet file, or row of arrays; 0 for other files.
        stop: the one after the last; `TO_THE_END` for all.
    """

    number: int
    path: str
    start: int
    stop: int


@dataclasses.dataclass(frozen=True, repr=False)
class Block:
    """Some records. SENSITIVE unless they are public.

    Attributes:
        inputs: `[num_records, *input_shape]`, finite.
        labels: int64 `[num_records]`; -1 where there is none, in public records alone.
        owners: names `[num_records]`; None for none.
        places: of each record in its span, `[num_records]`.
        num_bad: how many records next to these do not fit the schema.
    """

    inputs: npt.NDArray[Any]
    labels: IntArray
    owners: npt.NDArray[Any] | None
    places: IntArray
    num_bad: int = 0


class Source:
    """Records that workers read span by span.

    Attributes:
        dataset: what is publicly known of them.
        has_owners: whether records have owners.
    """

    dataset: Dataset
    has_owners: bool = False

    def spans(self) -> list[Span]:
        """Returns all spans.

        Raises:
            ValueError: if there are none, or a file can't be read.
        """
        raise NotImplementedError

    def blocks(self, span: Span) -> Iterator[Block]:
        """Yields the records of a span.

        Raises:
            ValueError: if a file can't be read to its end.
        """
        raise NotImplementedError


# Data sets by name: arrays, loaded once a worker, or mapped.


@functools.lru_cache(maxsize=2)
def _loaded(data: DataSource, is_private: bool) -> PrivateExamples | PublicExamples:
    return data.load_private(QUIET) if is_private else data.load_public(QUIET)


class NamedRecords(Source):
    """Records of a data set that is named: digits, of TensorFlow Datasets, `module:function`."""

    def __init__(self, data: DataSource, *, is_private: bool = True, rows: int = ROWS) -> None:
        """Loads them here too, to count them.

        Args:
            data: names them.
            is_private: whether these are the private ones.
            rows: of a span.

        Raises:
            ValueError: if they can't be had.
        """
        self._data, self._is_private, self._rows = data, is_private, rows
        examples = _loaded(data, is_private)
        self.dataset, self._number = examples.dataset, len(examples)
        self.has_owners = getattr(examples, "owners", None) is not None

    def spans(self) -> list[Span]:
        """See `Source.spans`."""
        starts = range(0, self._number, self._rows)
        return [
            Span(number, "", start, min(start + self._rows, self._number))
            for number, start in enumerate(starts)
        ]

    def blocks(self, span: Span) -> Iterator[Block]:
        """See `Source.blocks`."""
        examples, some = _loaded(self._data, self._is_private), slice(span.start, span.stop)
        labels, owners = examples.labels, getattr(examples, "owners", None)
        yield Block(
            np.asarray(examples.inputs[some]),
            np.full(span.stop - span.start, -1, np.int64) if labels is None else labels[some],
            None if owners is None else owners[some],
            np.arange(span.stop - span.start),
        )


# Tables in files, by a schema.


class TableRecords(Source):
    """Records of files of comma-separated values, Parquet or TFRecord.

    Examples of a TFRecord file have a feature of one value for each column.
    """

    def __init__(
        self,
        files: FileSource,
        pattern: str,
        dataset: Dataset,
        *,
        is_private: bool = True,
        rows: int = ROWS,
    ) -> None:
        """Names them; nothing is read before `spans`.

        Args:
            files: their schema, columns of label and owner, and a public file in the same form.
            pattern: a path, or one with `*`.
            dataset: what is publicly known of them.
            is_private: whether each record needs a label.
            rows: of a block.

        Raises:
            ValueError: if private records have no label.
        """
        self._pattern, self._schema, self.dataset = pattern, dataset.schema, dataset
        self._form = text_form(files.public, self._schema)
        self._label = files.label or self._schema.label
        self._owner = (files.owner or self._schema.owner) if is_private else None
        self._is_private, self._rows = is_private, rows
        self.has_owners = self._owner is not None
        if is_private and self._label is None:
            raise ValueError("label: expected the name of the label's column, got none")

    def spans(self) -> list[Span]:
        """See `Source.spans`."""
        try:
            found = filesystems().match([self._pattern])[0].metadata_list
        except Exception as error:  # each file system has its own
            raise ValueError(
                f"private: expected files {self._pattern}, got {' '.join(str(error).split())}"
            ) from error
        paths = sorted(one.path for one in found)
        if not paths:
            raise ValueError(f"private: expected files {self._pattern}, got none")
        spans: list[Span] = []
        for path in paths:
            if path.lower().endswith(PARQUET):
                with _parquet(path) as file:
                    groups = range(file.num_row_groups)
                spans += [Span(len(spans) + group, path, group, group + 1) for group in groups]
            else:
                spans.append(Span(len(spans), path, 0, TO_THE_END))
        return spans

    def blocks(self, span: Span) -> Iterator[Block]:
        """See `Source.blocks`."""
        path = span.path
        if path.lower().endswith(PARQUET):
            parts = self._of_parquet(span)
        elif path.lower().endswith(RECORDS):
            parts = self._of_examples(path)
        else:
            parts = self._of_text(path)
        for columns, places in parts:
            yield self._block(columns, places, path)

    def _block(self, columns: Mapping[str, Column], places: IntArray, path: str) -> Block:
        """Returns the records that fit; places below 0 are of records without all fields."""
        schema, number = self._schema, len(places)
        needed = [self._label if self._is_private else None, self._owner]
        for name in (*(column.name for column in schema.columns), *needed):
            if name is not None and name not in columns:
                raise ValueError(f"{path}: expected a column {name}, got none")
        is_good = places >= 0
        encoded = [_encoded(column, columns[column.name]) for column in schema.columns]
        for _, fits in encoded:
            is_good &= fits
        labels = np.full(number, -1, np.int64)
        if self._label in columns:
            labels, fits = self._labels(columns[self._label or ""])
            is_good &= fits
        owners = None
        if self._owner is not None:
            distinct, inverse = _distinct(columns[self._owner])
            owners = np.array(distinct, np.str_)[inverse]
            is_good &= owners != ""
        inputs = np.concatenate(
            [np.empty((number, 0), np.float32), *(features for features, _ in encoded)], axis=1
        )
        return Block(
            inputs[is_good],
            labels[is_good],
            None if owners is None else owners[is_good],
            places[is_good],
            int(number - is_good.sum()),
        )

    def _labels(self, values: Column) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        numbers = {name: place for place, name in enumerate(self._schema.classes)}
        if not self._is_private:
            numbers = {"": -1, **numbers}
        distinct, inverse = _distinct(values)
        found = np.array([numbers.get(text, -2) for text in distinct], np.int64)[inverse]
        return found, found > -2

    def _of_parquet(self, span: Span) -> Iterator[tuple[Mapping[str, Column], IntArray]]:
        import pyarrow

        wanted = {column.name for column in self._schema.columns} | {self._label, self._owner}
        with _parquet(span.path) as file:
            names = [name for name in file.schema_arrow.names if name in wanted]
            checked_names(file.schema_arrow.names, span.path)
            start = 0
            groups = list(range(span.start, span.stop))
            try:
                for batch in file.iter_batches(self._rows, row_groups=groups, columns=names):
                    columns = {
                        name: _of_arrow(batch.column(place))
                        for place, name in enumerate(batch.schema.names)
                    }
                    yield columns, np.arange(start, start + batch.num_rows)
                    start += batch.num_rows
            except (OSError, pyarrow.ArrowException) as error:
                raise ValueError(f"{span.path}: expected Parquet, got a broken file") from error

    def _of_text(self, path: str) -> Iterator[tuple[Mapping[str, Column], IntArray]]:
        form = self._form
        encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
        with filesystems().open(path) as raw:
            text = io.TextIOWrapper(raw, encoding=encoding, newline="")
            try:
                reader = csv.reader(text, strict=True, delimiter=form.delimiter)
                names = [name.strip() for name in next(reader, [])]
                checked_names(names, path)
                lines, number = filter(None, reader), 0
                while records := list(itertools.islice(lines, self._rows)):
                    fits = np.array([len(record) == len(names) for record in records])
                    rows = [
                        form.fields(record) if is_whole else [""] * len(names)
                        for record, is_whole in zip(records, fits, strict=True)
                    ]
                    places = np.where(fits, np.arange(number, number + len(records)), -1)
                    yield dict(zip(names, zip(*rows, strict=True), strict=True)), places
                    number += len(records)
            except (csv.Error, UnicodeError):
                raise ValueError(
                    f"{path}: expected text in {form.encoding}, separated by {form.delimiter!r}, "
                    f"got something else"
                ) from None

    def _of_examples(self, path: str) -> Iterator[tuple[Mapping[str, Column], IntArray]]:
        import tensorflow as tf

        compression = "GZIP" if path.lower().endswith(".gz") else ""
        names = [column.name for column in self._schema.columns]
        names += [name for name in (self._label, self._owner) if name]
        number = 0
        try:
            records = tf.data.TFRecordDataset(path, compression).batch(self._rows)
            for batch in records.as_numpy_iterator():
                examples = [tf.train.Example.FromString(one).features.feature for one in batch]
                fields = [[_feature_text(one, name) for name in names] for one in examples]
                fits = np.array([None not in row for row in fields])
                columns = {
                    name: [row[place] or "" for row in fields] for place, name in enumerate(names)
                }
                if not any(self._label in one for one in examples):
                    columns.pop(self._label or "", None)
                places = np.arange(number, number + len(batch))
                yield columns, np.where(fits, places, -1)
                number += len(batch)
        except Exception as error:  # TensorFlow and protobuf raise their own
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"{path}: expected TFRecord, got a broken file") from error


def _parquet(path: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(filesystems().open(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: expected Parquet, got something else") from error


def _feature_text(features: Any, name: str) -> str | None:
    """Returns a feature of an example as text; empty where there is none, None for several."""
    kind = features[name].WhichOneof("kind") if name in features else None
    values = [] if kind is None else getattr(features[name], kind).value
    if len(values) > 1:
        return None
    value = values[0] if len(values) else ""
    return field_text(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _of_arrow(array: Any) -> Column:
    """Returns a column's numbers, NaN kept and null as None, or its fields as text."""
    import pyarrow

    kind = array.type
    if (pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind)) and not array.null_count:
        numbers: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers
    if pyarrow.types.is_dictionary(kind):
        array = array.dictionary_decode()
    return [field_text(value) for value in array.to_pylist()]


def _distinct(values: Column) -> tuple[list[str], IntArray]:
    """Returns the distinct fields as text, and which of them each record has."""
    if isinstance(values, np.ndarray):
        found, inverse = np.unique(values, return_inverse=True)
        return [field_text(one) for one in found.tolist()], inverse
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(places, np.int64)


def _encoded(
    column: TableColumn, values: Column
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Returns a column's features `[num_records, width]`, and which records fit it.

    As `TableColumn.encode`, record by record.
    """
    if not column.is_number:
        distinct, inverse = _distinct(values)
        found = np.zeros((len(distinct), column.width), np.float32)
        fits = np.ones(len(distinct), bool)
        for place, text in enumerate(distinct):
            try:
                found[place] = column.encode([text], "", ["0"])[0]
            except ValueError:
                fits[place] = False
        return found[inverse], fits[inverse]
    if isinstance(values, np.ndarray):
        numbers = values.astype(np.float64)
    else:
        missing = column.missing
        texts = values if missing is None else [missing if one == "" else one for one in values]
        numbers = numbers_or_nan(texts)
    is_finite = np.isfinite(numbers)
    clipped = np.clip(np.where(is_finite, numbers, column.low), column.low, column.high)
    return clipped.astype(np.float32)[:, None], is_finite


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, and not of a file system of Beam's."""
    return "://" not in path


def source_of(
    data: DataSource,
    pattern: str | None,
    public: PublicExamples,
    *,
    is_private: bool = True,
    rows: int = ROWS,
) -> Source:
    """Returns the records that a person names.

    Args:
        data: names them.
        pattern: of files; None for `data.files.private`.
        public: what `data.load_public` returned.
        is_private: whether these are the private ones.
        rows: of a block.

    Raises:
        ValueError: if they can't be had, or are images in folders.
    """
    files: FileSource | None = data.files
    if files is None:
        return NamedRecords(data, is_private=is_private, rows=rows)
    if data.owners_file is not None:
        raise ValueError(
            "owners_file: expected with the name of a data set alone; of files the schema names "
            "the owner's column"
        )
    if files.schema is None:
        raise ValueError("schema: expected a schema of the files, got none")
    pattern = pattern or (None if files.private is None else str(files.private))
    if pattern is None:
        raise ValueError("private: expected the files of the private records, got none")
    if is_local(pattern):  # Beam finds nothing by a pattern without a folder
        pattern = str(pathlib.Path(pattern).absolute())
    return TableRecords(files, pattern, public.dataset, is_private=is_private, rows=rows)
