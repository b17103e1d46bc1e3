"""Pipelines: feature sums, and predictions of a published student.

Integer sums do not depend on bundles, workers or retries, so a result is to the last bit that of
one process. What becomes of a record follows from that record and the schema alone. One that does
not fit is counted as bad; it never changes what another record becomes.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import glob
import hashlib
import io
import itertools
import json
import logging
import operator
import os
import pathlib
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow
from scipy import sparse

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import (
    DIGEST_BYTES,
    RECORD_KEY,
    PrivateSource,
    Records,
    keyed_sum,
    owner_digests,
    private_digest,
    record_digests,
)
from pate_tf.core.validation import IntArray, one_of
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.named_function import Named
from pate_tf.data.schema import Column, texts_of
from pate_tf.data.tables import PARQUET, named_records, not_text, of_arrow, places_of, text_form
from pate_tf.models.encoder import record_features, record_vectors
from pate_tf.release.feature_sums import DESCRIPTION, FeatureSums, Summands, sums_folder
from pate_tf.serving.served import ServedStudent
from pate_tf.teachers.ensemble import SavedEncoder, save_encoder

ROWS: Final = 2**15  # of a block
TO_THE_END: Final = -1
REFUSE, DROP = "refuse", "drop"
BUCKETS: Final = 256  # parts of the owners; each is in the memory of one worker
ADDED: Final = -1  # key of what is added up as it is
PARTIAL: Final = "partial.npz"

# Where records come from: spans of files or arrays, read in blocks of rows.


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


# Data sets by name: arrays, loaded once a worker, or mapped.


@functools.lru_cache(maxsize=2)
def _loaded(data: DataSource, is_private: bool) -> PrivateExamples | PublicExamples:
    return data.load_private(QUIET) if is_private else data.load_public(QUIET)


class NamedSource:
    """Records of a data set that is named: digits, of TensorFlow Datasets, `module:function`.

    Attributes:
        dataset: what is publicly known of them.
        has_owners: whether records have owners.
    """

    def __init__(self, data: DataSource, *, is_private: bool = True) -> None:
        """Loads them here too, to count them.

        Args:
            data: names them.
            is_private: whether these are the private ones.

        Raises:
            ValueError: if they can't be had.
        """
        self._data, self._is_private = data, is_private
        examples = _loaded(data, is_private)
        self.dataset, self._number = examples.dataset, len(examples)
        self.has_owners = getattr(examples, "owners", None) is not None

    def spans(self) -> list[Span]:
        """Returns all spans; raises ValueError if there are none, or a file can't be read."""
        starts = range(0, self._number, ROWS)
        return [
            Span(number, "", start, min(start + ROWS, self._number))
            for number, start in enumerate(starts)
        ]

    def blocks(self, span: Span) -> Iterator[Block]:
        """Yields the records of a span; raises ValueError if a file can't be read to its end."""
        examples, some = _loaded(self._data, self._is_private), slice(span.start, span.stop)
        labels, owners = examples.labels, getattr(examples, "owners", None)
        yield Block(
            np.asarray(examples.inputs[some]),
            np.full(span.stop - span.start, -1, np.int64) if labels is None else labels[some],
            None if owners is None else owners[some],
            np.arange(span.stop - span.start),
        )


# Tables in files, by a schema.


class TableSource:
    """Records of files of comma-separated values or Parquet, by a schema.

    Attributes:
        dataset: what is publicly known of them.
        has_owners: whether records have owners.
    """

    def __init__(
        self, files: FileSource, pattern: str, dataset: Dataset, *, is_private: bool = True
    ) -> None:
        """Names them; nothing is read before `spans`.

        Args:
            files: their schema, columns of label and owner, and a public file in the same form.
            pattern: a path, or one with `*`.
            dataset: what is publicly known of them.
            is_private: whether each record needs a label.

        Raises:
            ValueError: if private records have no label.
        """
        self._pattern, self._schema, self.dataset = pattern, dataset.schema, dataset
        first = files.public or pathlib.Path(min(glob.glob(pattern), default=pattern))
        self._form = text_form(first, self._schema, header_alone=files.public is None)
        self._label = files.label or self._schema.label
        self._owner = (files.owner or self._schema.owner) if is_private else None
        self._is_private = is_private
        names = (column.name for column in self._schema.columns)
        self._wanted = {*names, self._label, self._owner}
        self.has_owners = self._owner is not None
        if is_private and self._label is None:
            raise ValueError("label: expected the name of the label's column, got none")

    def spans(self) -> list[Span]:
        """Returns all spans; raises ValueError if there are none, or a file can't be read."""
        try:
            matches = filesystems().match([self._pattern])[0].metadata_list
        except Exception as error:  # each file system has its own
            raise ValueError(
                f"private: expected files {self._pattern}, got {' '.join(str(error).split())}"
            ) from error
        paths = sorted(match.path for match in matches)
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
        """Yields the records of a span; raises ValueError if a file can't be read to its end."""
        path = span.path
        parts = self._of_parquet(span) if path.lower().endswith(PARQUET) else self._of_text(path)
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
        encoded = [column.encode(columns[column.name]) for column in schema.columns]
        for _, fits in encoded:
            is_good &= fits
        labels = np.full(number, -1, np.int64)
        if self._label in columns:
            labels = schema.labels(columns[self._label], may_be_empty=not self._is_private)
            is_good &= labels > -2
        owners = None
        if self._owner is not None:
            owners = np.array(texts_of(columns[self._owner]), np.str_)
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

    def _of_parquet(self, span: Span) -> Iterator[tuple[Mapping[str, Column], IntArray]]:
        with _parquet(span.path) as file:
            names = [*places_of(file.schema_arrow.names, self._wanted, span.path)]
            start = 0
            groups = list(range(span.start, span.stop))
            try:
                for batch in file.iter_batches(ROWS, row_groups=groups, columns=names):
                    columns = {name: of_arrow(batch.column(name)) for name in names}
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
                lines = (record for _, record in named_records(text, form, self._wanted))
                names = next(lines, [])
                wanted = places_of(names, self._wanted, path)
                number = 0
                while records := list(itertools.islice(lines, ROWS)):
                    fits = np.array([len(record) == len(names) for record in records])
                    columns = {
                        name: pyarrow.array(
                            record[place] if is_whole else ""
                            for record, is_whole in zip(records, fits, strict=True)
                        )
                        for name, place in wanted.items()
                    }
                    yield columns, np.where(fits, np.arange(number, number + len(records)), -1)
                    number += len(records)
            except (csv.Error, UnicodeError):
                raise not_text(path, form) from None


def _parquet(path: str) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(filesystems().open(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: expected Parquet, got something else") from error


def is_local(path: str) -> bool:
    """Whether a path is one of this machine, and not of a file system of Beam's."""
    return "://" not in path


def source_of(
    data: DataSource, pattern: str | None, public: PublicExamples, *, is_private: bool = True
) -> NamedSource | TableSource:
    """Returns the records that a person names.

    Args:
        data: names them.
        pattern: of files; None for `data.files.private`.
        public: what `data.load_public` returned.
        is_private: whether these are the private ones.

    Raises:
        ValueError: if they can't be had, or are images in folders.
    """
    files: FileSource | None = data.files
    if files is None:
        return NamedSource(data, is_private=is_private)
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
    return TableSource(files, pattern, public.dataset, is_private=is_private)


# What runs a pipeline.


def checked_options(flags: Sequence[str], work_dir: str | None) -> Any:
    """Returns Beam's options.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if nothing can be written below `work_dir`.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Beam logs which of its extras are missing
    try:
        import apache_beam  # noqa: F401
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions(
            [
                "--runner=FnApiRunner",  # Beam's local one; the last of several counts
                "--default_sdk_harness_log_level=CRITICAL",
                *flags,
            ]
        )
    finally:
        logging.disable(before)
    filesystems().set_options(options)  # files are looked for before there is a pipeline
    if work_dir is not None:
        _remove(_shared_folder(work_dir))
    return options


def run_pipeline(build: Callable[[Any], object], options: Any) -> None:
    """Builds and runs a pipeline, and waits until it is done.

    Raises:
        ValueError: if it fails; one line.
    """
    import apache_beam as beam

    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # workers' tracebacks
    try:
        pipeline = beam.Pipeline(options=options)
        build(pipeline)
        result = pipeline.run()
        with getattr(result, "client", contextlib.nullcontext()):  # Dask's stays open
            state = result.wait_until_finish()
    except Exception as error:  # Beam's own, and what a worker raised, as text
        raise ValueError(_reason(error)) from error
    if state is not None and state != "DONE":
        raise ValueError(f"beam: expected the pipeline to be done, got {state}")


def _reason(error: Exception) -> str:
    """Returns what went wrong in a worker, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    of_workers = [line for line in lines if line.startswith("ValueError: ")]
    if of_workers or isinstance(error, ValueError):
        line = of_workers[-1] if of_workers else lines[0]
        return line.removeprefix("ValueError: ").partition(" [while running")[0]
    return f"beam: expected the pipeline to be done, got {type(error).__name__}: {lines[-1][:300]}"


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Replaces errors of a worker that may quote private values: those that a library raised.

    Errors that were raised in pate_tf name no value; libraries' are known by their type and place.
    """
    try:
        yield
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
        reason = f"private: expected readable records, got {type(error).__name__} in {module}"
        if isinstance(error, ValueError) and module.startswith("pate_tf."):
            reason = str(error)
        raise ValueError(reason) from None


class _Work:
    """A folder that workers and this process share until a run is done. SENSITIVE."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        """Returns the path of a file."""
        return str(filesystems().join(self.folder, name))

    def write(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all; of two attempts, one stays, and they are equal."""
        systems = filesystems()
        temporary = self.path(f"part-{secrets.token_hex(8)}")
        with systems.create(temporary, "application/octet-stream") as file:
            file.write(content)
        with contextlib.suppress(Exception):  # an earlier attempt's, which is equal
            systems.delete([self.path(name)])
        systems.rename([temporary], [self.path(name)])

    def read(self, name: str) -> bytes:
        """Returns a file's content.

        Raises:
            ValueError: if there is none.
        """
        if not filesystems().exists(self.path(name)):
            raise ValueError(
                f"beam: expected {name} in a folder that all workers reach, got none in "
                f"{self.folder}"
            )
        with filesystems().open(self.path(name), "application/octet-stream") as file:
            content: bytes = file.read()
        return content

    def write_arrays(self, name: str, **arrays: Any) -> None:
        """Writes a file of arrays, as `write` does."""
        content = io.BytesIO()
        np.savez(content, **arrays)
        self.write(name, content.getvalue())

    def read_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Returns what `write_arrays` wrote; raises ValueError if there is nothing."""
        with np.load(io.BytesIO(self.read(name)), allow_pickle=False) as arrays:
            return {array: arrays[array] for array in arrays.files}


def _shared_folder(work_dir: str) -> str:
    """Makes a folder below `work_dir`, which may not be there.

    Raises:
        ValueError: if it can't, or nothing can be written there.
    """
    try:
        folder = str(filesystems().join(work_dir, f"pate-{secrets.token_hex(8)}"))
        if is_local(folder):
            os.makedirs(folder, 0o700)
        else:
            filesystems().mkdirs(folder)
        _Work(folder).write("begun", b"")
    except Exception as error:  # each file system has its own
        raise ValueError(
            f"work_dir: expected a folder that can be written, got {work_dir} "
            f"({' '.join(str(error).split())})"
        ) from error
    return folder


def _remove(folder: str) -> None:
    """Removes a folder that workers shared."""
    if is_local(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        filesystems().delete([f"{folder}/"])  # "/": on object stores, all below it


@contextlib.contextmanager
def _working(directory: artifacts.RunDirectory, work_dir: str | None) -> Iterator[_Work]:
    """Makes the folder that workers share; removes it at the end."""
    artifacts.remove_abandoned(directory.root)
    if work_dir is not None:
        shared = _shared_folder(work_dir)
    else:
        folder = artifacts.temporary_name(directory.sensitive / "beam")
        folder.mkdir(mode=0o700)
        shared = str(folder)
    try:
        yield _Work(shared)
    finally:
        _remove(shared)


ENCODER, KEY = "encoder.zip", "digest.key"


@functools.lru_cache(maxsize=2)
def _encoder(shared: str, dataset: str) -> SavedEncoder:
    """Returns an encoder, loaded once a worker."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(_Work(shared).read(ENCODER))).extractall(folder)
        return SavedEncoder(pathlib.Path(folder), Dataset.from_dict(json.loads(dataset)))


def _merged_pairs(
    parts: Iterable[tuple[npt.NDArray[np.bytes_], IntArray, IntArray]], num_classes: int, width: int
) -> tuple[npt.NDArray[np.bytes_], IntArray, IntArray]:
    """Adds up what parts hold of the same owner and class; few parts are in memory.

    Args:
        parts: digests of owners, classes and totals of each pair.
        num_classes: number of classes.
        width: of the totals.

    Returns:
        The distinct owners' digests, ascending; of each pair the owner's number times `num_classes`
        plus the class, ascending; and its totals `[num_pairs, width]`.
    """
    owners = np.empty(0, f"S{DIGEST_BYTES}")
    keys, totals = np.empty(0, np.int64), np.empty((0, width), np.int64)
    waiting: list[tuple[npt.NDArray[np.bytes_], IntArray, IntArray]] = []

    def merge() -> None:
        nonlocal owners, keys, totals
        together = [(owners[keys // num_classes], keys % num_classes, totals), *waiting]
        waiting.clear()
        digests, classes, added = (np.concatenate(each) for each in zip(*together, strict=True))
        owners, numbers = np.unique(digests, return_inverse=True)
        pairs = numbers * num_classes + classes
        order = np.argsort(pairs, kind="stable")
        keys, starts = np.unique(pairs[order], return_index=True)
        totals = np.add.reduceat(added[order], starts, axis=0) if len(keys) else added

    for part in parts:
        waiting.append(part)
        if sum(len(classes) for _, classes, _ in waiting) > max(4_096, len(keys)):
            merge()
    merge()
    return owners, keys, totals


# Feature sums.


@dataclasses.dataclass(frozen=True, repr=False)
class _Partial:
    """SENSITIVE: what some records add.

    Attributes:
        sums: the table of `Summands`.
        lanes: `keyed_sum` of the records.
        receipt: weights of the spans that were read, less those of owners' parts not yet added.
        num_records: how many there are.
        num_bad: records next to these that were left out.
    """

    sums: IntArray
    lanes: npt.NDArray[np.uint64]
    receipt: int
    num_records: int = 0
    num_bad: int = 0

    def __add__(self, other: _Partial) -> _Partial:
        return _Partial(*map(operator.add, vars(self).values(), vars(other).values()))


def _weight(*place: int) -> int:
    """Returns 40 bits that follow from a place: of a span, or of its owners in a bucket.

    Weights add up to what they must only if each result was added exactly once.
    """
    digest = hashlib.sha256(repr(place).encode()).digest()
    return int.from_bytes(digest[:5], "big")


def _sum_span(
    source: NamedSource | TableSource, work: _Work, summands: Summands, span: Span
) -> Iterator[tuple[int, Any]]:
    """Yields what a span's records add, under `ADDED`, and of owners their totals, by bucket."""
    num_classes, key = summands.num_classes, work.read(KEY)
    encoder = _encoder(work.folder, json.dumps(source.dataset.to_dict()))
    partial = _Partial(
        np.zeros((summands.num_rows, summands.num_columns), np.int64),
        np.zeros(4, np.uint64),
        _weight(span.number),
    )
    for number, block in enumerate(source.blocks(span)):
        records = record_digests(block.inputs)
        owners = None if block.owners is None else owner_digests(block.owners, key)
        lanes = keyed_sum(key, records, block.labels, owners)
        sums, receipt = np.zeros((summands.num_rows, summands.num_columns), np.int64), 0
        if owners is None:
            for rows, features in record_features(encoder, block.inputs, digests=records):
                vectors = record_vectors(features, summands.scale)
                sums += summands.of_records(vectors, block.labels[rows])
        else:
            pairs = (
                (owners[rows], block.labels[rows], summands.of_owned(features))
                for rows, features in record_features(encoder, block.inputs, digests=records)
            )
            digests, keys, totals = _merged_pairs(pairs, num_classes, summands.num_rows)
            of_pair, first = digests[keys // num_classes], len(summands.scale) + 1
            begin = of_pair.view(np.uint8).reshape(-1, DIGEST_BYTES)[:, :2].astype(np.int64)
            buckets = (begin @ [256, 1]) * BUCKETS // 2**16
            for bucket in np.unique(buckets).tolist():
                some = np.flatnonzero(buckets == bucket)
                # Few clusters have records of a pair: nearly all counts are zeros.
                counts = sparse.csr_array(totals[some, first:])
                classes = keys[some] % num_classes
                weight = _weight(span.number, number, bucket)
                receipt -= weight
                yield bucket, (weight, of_pair[some], classes, totals[some, :first], counts)
        partial += _Partial(sums, lanes, receipt, len(records), block.num_bad)
    yield ADDED, partial


@_without_values()
def _sum_owners(summands: Summands, keyed: tuple[int, Iterable[Any]]) -> tuple[int, _Partial]:
    """Returns what the owners of a bucket add, under `ADDED`."""
    receipt = 0

    def parts() -> Iterator[tuple[npt.NDArray[np.bytes_], IntArray, IntArray]]:
        nonlocal receipt
        for weight, digests, classes, totals, counts in keyed[1]:
            receipt += weight
            yield digests, classes, np.concatenate([totals, counts.toarray()], axis=1)

    _, keys, totals = _merged_pairs(parts(), summands.num_classes, summands.num_rows)
    return ADDED, _Partial(summands.of_owners(totals, keys), np.zeros(4, np.uint64), receipt)


def _build_sums(
    source: NamedSource | TableSource,
    work: _Work,
    summands: Summands,
    spans: Sequence[Span],
    pipeline: Any,
) -> None:
    """Builds the pipeline of `sums`; what workers need besides records is small and public."""
    import apache_beam as beam

    sums = np.zeros((summands.num_rows, summands.num_columns), np.int64)
    nothing = _Partial(sums, np.zeros(4, np.uint64), 0)

    def sum_span(span: Span) -> Iterator[Any]:
        with _without_values():
            yield from _sum_span(source, work, summands, span)

    # Keys are numbers and every output of a step has a key: Dask's runner knows no tags or side
    # inputs, and computes results that a worker lost anew, which must have the same keys.
    summed = (
        pipeline
        | "spans" >> beam.Create(list(spans))
        | "spread" >> beam.Reshuffle()
        | "sum" >> beam.FlatMap(sum_span)
    )
    partials = [summed | "added" >> beam.Filter(lambda keyed: keyed[0] == ADDED)]
    if source.has_owners:
        partials.append(
            summed
            | "of owners" >> beam.Filter(lambda keyed: keyed[0] != ADDED)
            | "owners" >> beam.GroupByKey()
            | "clip and sum" >> beam.Map(functools.partial(_sum_owners, summands))
        )
    _ = (
        partials
        | "all" >> beam.Flatten()
        # Integers: their order does not matter.
        | "add" >> beam.CombinePerKey(lambda some: functools.reduce(operator.add, some, nothing))
        | "write" >> beam.Map(lambda total: work.write_arrays(PARTIAL, **vars(total[1])))
    )


def sums(
    data: DataSource,
    *,
    directory: str | os.PathLike[str],
    representation: Named | None = None,
    seed: int = 0,
    private: str | None = None,
    pool_size: int | None = None,
    bad_rows: str = REFUSE,
    options: Sequence[str] = (),
    work_dir: str | None = None,
    reporting: Reporting = QUIET,
) -> FeatureSums:
    """Computes feature sums by a Beam pipeline; stores what `FeatureSums.fit` stores.

    They are to the last bit those of one process, for any runner, bundles, number of workers and
    retries: numbers are added as integers, and what a record's or an owner's are follows from that
    record or owner alone. `pate_tf.FeatureSums.load` reads them. Workers must have one kind of
    processor for that: TensorFlow rounds differently on others.

    Args:
        data: where private records and public samples lie. Without public ones second moments
            stand beside the sums; records have no owners then.
        directory: the run folder.
        representation: of the pool; None for the default of the kind of data.
        seed: of the representation.
        private: files of the private records: a path or a pattern with `*`, also on a file system
            of Beam's such as gs://; None for those of `data`.
        pool_size: how many public samples form the pool; None for the data set's own number.
        bad_rows: what becomes of a record that does not fit the schema: "refuse", which refuses all
            of them in the end, or "drop", by which it adds nothing; how many there are stands in
            the description of the sums, `left_out`.
        options: Beam's own, as flags: `["--runner=FlinkRunner", ...]`. Default: Beam's local
            runner in this process.
        work_dir: a folder that all workers reach, also on a file system of Beam's such as gs://,
            for what they leave there until the end. Holds private data. Default: below
            `sensitive/` of the run folder.
        reporting: how progress is shown.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if something does not fit, the pipeline fails, or the folder holds others.
    """
    one_of((REFUSE, DROP), bad_rows=bad_rows)
    beam_options = checked_options(options, work_dir)
    public = data.load_public(reporting)
    source = source_of(data, private, public)
    spans = source.spans()
    run = artifacts.RunDirectory(pathlib.Path(directory))
    pool = public.split(pool_size or public.dataset.pool_size).pool
    if source.has_owners and not pool:
        raise ValueError("owner: expected none without public records, got some")
    summed = FeatureSums(directory=directory, representation=representation, seed=seed)
    summed.reporting = reporting
    encoder = summed.encoder_for(source.dataset, pool)
    expected = summed.described(encoder, [], has_owners=source.has_owners)
    del expected["records"]
    summed.is_stored(expected)  # before hours are spent
    with _working(run, work_dir) as work, tempfile.TemporaryDirectory() as folder:
        save_encoder(pathlib.Path(folder) / "encoder", encoder)
        archive = shutil.make_archive(f"{folder}/encoder", "zip", f"{folder}/encoder")
        work.write(ENCODER, pathlib.Path(archive).read_bytes())
        work.write(KEY, private_digest(run.sensitive, RECORD_KEY).encode())
        summands = Summands.of(encoder, pool)
        build = functools.partial(_build_sums, source, work, summands, spans)
        with reporting.clock("summing features of records"):
            run_pipeline(build, beam_options)
        total = work.read_arrays(PARTIAL)
    if total["receipt"] != sum(_weight(span.number) for span in spans):
        raise ValueError("beam: expected each result of a worker once, got some twice or never")
    num_bad = int(total["num_bad"])
    if num_bad and bad_rows == REFUSE:
        raise ValueError(
            "private: expected records that fit the schema, got some that do not (another number "
            "of fields, no finite number, an unknown category or label, no owner); bad_rows=drop "
            "leaves out each that does not"
        )
    if bad_rows == DROP:  # whether there are any or not
        place = sums_folder(run) / DESCRIPTION
        reporting.note(f"how many records do not fit the schema: left_out in {place} (sensitive)")
    records = [private_digest(run.sensitive, total["lanes"])]
    described = summed.described(encoder, records, has_owners=source.has_owners)
    if summed.is_stored(described, data.named_source):
        return summed
    charged_to = data.named_source or PrivateSource.named(source.dataset.name)
    if path := private or (data.files and data.files.private):
        charged_to = data.named_source or PrivateSource.of_file(path)
    return summed.store(
        described,
        encoder,
        summands,
        total["sums"],
        records=Records(num_records=int(total["num_records"]) + num_bad, source=charged_to),
        num_left_out=num_bad,
        pool_size=len(pool),
        flags={**data.flags, **({} if private is None else {"private": private})},
    )


# Predictions of a published student.


_student = functools.lru_cache(maxsize=1)(ServedStudent)  # loaded once a worker


def _predict_span(
    source: NamedSource | TableSource, folder: str, output: str, span: Span
) -> set[tuple[int, int, int]]:
    """Writes what is predicted of a span's inputs.

    Returns:
        Its number, how many inputs there are, and bad ones: in a set, where a repetition is none.
    """
    number = num_bad = 0
    tables: list[dict[str, Any]] = []
    for block in source.blocks(span):
        label, probabilities = _student(pathlib.Path(folder)).answer(block.inputs)
        tables.append({"record": block.places, "label": label, "probabilities": probabilities})
        number, num_bad = number + len(block.places), num_bad + block.num_bad
    arrays = (
        {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        if tables
        else {}
    )
    _Work(output).write_arrays(
        f"part-{span.number:06d}.npz",
        path=np.array(span.path),
        start=np.array(span.start),
        **arrays,
    )
    return {(span.number, number, num_bad)}


def predict(
    data: DataSource,
    *,
    output: str,
    student: str | os.PathLike[str],
    inputs: str | None = None,
    options: Sequence[str] = (),
    reporting: Reporting = QUIET,
) -> tuple[int, int]:
    """Applies a published student to many public inputs.

    Writes `part-000000.npz`, ... into a folder, one for each file, row group or part of an array,
    with the arrays `path`, `start`, `record` (places in that file from `start` on, `[num_inputs]`)
    and `label` int64 `[num_inputs]` and `probabilities` float32 `[num_inputs, num_classes]`. Inputs
    that do not fit have no row.

    Args:
        data: where public samples lie.
        output: a folder that workers reach; it must be new or empty.
        student: a version of an exported student, such as `released/student/1`.
        inputs: files of inputs, a path or a pattern; None for the public samples of `data`.
        options: as of `sums`.
        reporting: how progress is shown.

    Returns:
        How many inputs there were, and how many do not fit.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if something does not fit, or the pipeline fails.
    """
    beam_options = checked_options(options, None)
    if filesystems().exists(output) and filesystems().match([f"{output}/*"])[0].metadata_list:
        raise ValueError(f"output: expected a new or an empty folder, got {output}")
    public = data.load_public(reporting)
    if data.files is not None:
        inputs = inputs or str(data.files.public)
    source = source_of(data, inputs, public, is_private=False)
    spans = source.spans()
    _student(pathlib.Path(student))
    if not filesystems().exists(output):
        filesystems().mkdirs(output)
    predict_span = functools.partial(_predict_span, source, str(student), output)
    work = _Work(output)

    def build(pipeline: Any) -> None:
        import apache_beam as beam

        _ = (
            pipeline
            | "spans" >> beam.Create(list(spans))
            | "spread" >> beam.Reshuffle()
            | "predict" >> beam.Map(predict_span)
            | "all" >> beam.CombineGlobally(lambda some: set().union(*some)).without_defaults()
            | "write"
            >> beam.Map(lambda some: work.write("counts.json", json.dumps([*some]).encode()))
        )

    with reporting.clock("predicting"):
        run_pipeline(build, beam_options)
    counts = np.array(json.loads(work.read("counts.json")), np.int64).reshape(-1, 3)
    if len(counts) != len(spans):
        raise ValueError(f"beam: expected predictions of {len(spans)} parts, got {len(counts)}")
    return int(counts[:, 1].sum()), int(counts[:, 2].sum())
