"""Computes feature sums with a Beam pipeline. A single process would get identical sums.

The private files are divided into spans. A worker reads a span in blocks of records.
"""

import contextlib
import csv
import dataclasses
import functools
import glob
import hashlib
import io
import itertools
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
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.source import (
    DIGEST_BYTES,
    KEY_BYTES,
    PrivateSource,
    Records,
    content_sum,
    owner_digests,
    record_digests,
)
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.named_function import Named
from pate_tf.data.schema import Column, texts_of
from pate_tf.data.tables import (
    PARQUET,
    REFUSE,
    named_records,
    not_text,
    of_arrow,
    places_of,
    text_form,
    whole_records,
)
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models.encoder import SavedEncoder, record_features, record_vectors, save_encoder
from pate_tf.release.feature_sums import DESCRIPTION, FeatureSums, Summands, sums_folder

ENCODER: Final = "encoder.zip"
KEY: Final = "digest.key"
PARTIAL: Final = "partial.npz"
ADDED: Final = -1  # key of partial sums; other keys are first bytes of owners' digests
MIN_MERGED: Final = 4_096
OWNER: Final = ("owner", f"S{DIGEST_BYTES}")
PAIR: Final = np.dtype([OWNER, ("label", np.int64)])
ROWS: Final = 2**15  # maximum number of rows in a block

BoolArray = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of the private files that one worker reads.

    Attributes:
        number: index of the span, counted from 0.
        path: path of the file.
        start: index of the row group if the file is Parquet, else 0.
    """

    number: int
    path: str
    start: int


@dataclasses.dataclass(frozen=True, repr=False)
class Block:
    """SENSITIVE: a block of private records.

    Attributes:
        inputs: `[num_records, *input_shape]`, finite.
        labels: int64 `[num_records]`.
        owners: names of owners, `[num_records]`; None if records have no owners.
        num_bad: number of additional records that were left out because they do not fit the schema.
    """

    inputs: npt.NDArray[Any]
    labels: IntArray
    owners: npt.NDArray[Any] | None
    num_bad: int = 0


class TableSource:
    """Private records in CSV or Parquet files, which are read by a schema.

    Attributes:
        dataset: public facts about the records.
        has_owners: whether records have owners.
        is_strict: whether a record that does not fit the schema is an error.
    """

    def __init__(self, data: DataSource, pattern: str | None, dataset: Dataset) -> None:
        """Initializes the source. Does not read private files.

        Args:
            data: settings that name the files, the schema and the label column. If owners are
                protected, they also name the owner column. The public file must have the same
                format as the private files.
            pattern: path of the private files, which may contain `*`; None for
                `data.files.private`.
            dataset: public facts about the records.

        Raises:
            ValueError: if `data` names no files, no schema or no label column.
        """
        files: FileSource | None = data.files
        if files is None:
            raise ValueError(f"dataset={data.dataset}: Beam reads only files. Use FeatureSums.fit.")
        if data.owners_file is not None:
            raise ValueError("owners_file must not be set. Name the owner column in the schema.")
        if files.schema is None:
            raise ValueError("schema is required. `pate schema` drafts one from a file")
        pattern = pattern or (None if files.private is None else str(files.private))
        if pattern is None:
            raise ValueError("private is required: the files of the private records")
        if is_local(pattern):  # Beam finds no files if the pattern has no folder
            pattern = str(pathlib.Path(pattern).absolute())
        self.dataset = dataset
        self._schema = dataset.schema
        self._pattern = pattern
        first = files.public or pathlib.Path(min(glob.glob(pattern), default=pattern))
        self._form = text_form(first, self._schema, header_only=files.public is None)
        self._labels = self._schema.label_names(files.label)
        self._owner = files.owner or self._schema.owner
        names = [column.name for column in self._schema.columns]
        self._wanted = [*names, *self._labels, self._owner]
        self.has_owners = self._owner is not None
        self.is_strict = files.on_bad_record == REFUSE
        if not self._labels:
            raise ValueError("label is required: the name of the label column")

    def spans(self) -> list[Span]:
        """Returns the spans of all files.

        Raises ValueError if no file matches or a file can't be read.
        """
        try:
            matches = filesystems().match([self._pattern])[0].metadata_list
        except Exception as error:  # each file system has its own errors
            raise ValueError(
                f"private={self._pattern} can't be listed: {' '.join(str(error).split())}"
            ) from error
        paths = sorted(match.path for match in matches)
        if not paths:
            raise ValueError(f"private={self._pattern} matches no file")
        spans: list[Span] = []
        for path in paths:
            if path.lower().endswith(PARQUET):
                with _parquet(path) as file:
                    groups = range(file.num_row_groups)
                spans += [Span(len(spans) + group, path, group) for group in groups]
            else:
                spans.append(Span(len(spans), path, 0))
        return spans

    def blocks(self, span: Span) -> Iterator[Block]:
        """Yields the records of a span; raises ValueError if a file can't be read to its end."""
        path = span.path
        parts = self._of_parquet(span) if path.lower().endswith(PARQUET) else self._of_text(path)
        for columns, is_whole in parts:
            yield self._block(columns, is_whole, path)

    def _block(self, columns: Mapping[str, Column], is_whole: BoolArray, path: str) -> Block:
        """Returns a block of the complete records that fit the schema."""
        schema = self._schema
        for name in filter(None, self._wanted):
            if name not in columns:
                raise ValueError(f"{path} has no column {name!r}")
        encoded = [column.encode(columns[column.name]) for column in schema.columns]
        labels, fit = schema.labels(*(columns[name] for name in self._labels))
        is_good = np.all([is_whole, *fit.T, *(fits for _, fits in encoded)], axis=0)
        owners = None
        if self._owner is not None:
            owners = np.array(texts_of(columns[self._owner]), np.str_)
            is_good &= owners != ""
            owners = owners[is_good]
        inputs = np.concatenate([features for features, _ in encoded], axis=1)
        num_bad = int((~is_good).sum())
        return Block(inputs[is_good], labels[is_good], owners, num_bad)

    def _of_parquet(self, span: Span) -> Iterator[tuple[Mapping[str, Column], BoolArray]]:
        with _parquet(span.path) as file:
            names = [*places_of(file.schema_arrow.names, self._wanted, span.path)]
            try:
                for batch in file.iter_batches(ROWS, row_groups=[span.start], columns=names):
                    columns = {name: of_arrow(batch.column(name)) for name in names}
                    yield columns, np.ones(batch.num_rows, np.bool_)
            except (OSError, pyarrow.ArrowException) as error:
                raise ValueError(f"{span.path} is a broken Parquet file") from error

    def _of_text(self, path: str) -> Iterator[tuple[Mapping[str, Column], BoolArray]]:
        form = self._form
        encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
        with filesystems().open(path) as raw:
            text = io.TextIOWrapper(raw, encoding=encoding, newline="")
            try:
                records_of_file = named_records(text, form, self._wanted)
                whole = whole_records(
                    records_of_file, path, form, self._wanted, self._schema, self._labels
                )
                lines = (record for _, record in whole)
                names = next(lines, [])
                wanted = places_of(names, self._wanted, path)
                while records := list(itertools.islice(lines, ROWS)):
                    are_whole = np.array([len(record) == len(names) for record in records])
                    columns = {
                        name: pyarrow.array(
                            record[place] if is_whole else ""
                            for record, is_whole in zip(records, are_whole, strict=True)
                        )
                        for name, place in wanted.items()
                    }
                    yield columns, are_whole
            except (csv.Error, UnicodeError):
                raise not_text(path, form) from None


def _parquet(path: str) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(filesystems().open(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is not a Parquet file") from error


def filesystems() -> Any:
    """Returns Beam's file systems, for local paths and for installed systems such as gs://.

    Raises:
        ModuleNotFoundError: if the extra `beam` is not installed.
    """
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def is_local(path: str) -> bool:
    """Whether a path is local. False for remote file systems such as gs://."""
    return "://" not in path


def checked_options(flags: Sequence[str]) -> Any:
    """Converts flags to Beam options. Raises ModuleNotFoundError if Beam is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # silences log messages about missing extras of Beam
    try:
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions(
            [
                "--runner=FnApiRunner",  # Beam's local runner; a later flag overrides it
                "--default_sdk_harness_log_level=CRITICAL",
                *flags,
            ]
        )
    finally:
        logging.disable(before)
    filesystems().set_options(options)  # needed to list files before the pipeline exists
    return options


def run_pipeline(build: Callable[[Any], object], options: Any) -> None:
    """Builds and runs a pipeline, and waits until it finishes.

    Raises:
        ValueError: if the pipeline fails. The message is one line.
    """
    import apache_beam as beam

    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # suppresses tracebacks of workers
    try:
        pipeline = beam.Pipeline(options=options)
        build(pipeline)
        result = pipeline.run()
        with getattr(result, "client", contextlib.nullcontext()):  # closes a Dask client
            state = result.wait_until_finish()
    except Exception as error:  # raised by Beam, also for errors of workers
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        lines = lines or [type(error).__name__]
        of_workers = [line for line in lines if line.startswith("ValueError: ")]
        state = f"{type(error).__name__}: {lines[-1][:300]}"
        reason = f"the Beam pipeline failed: {state}"
        if of_workers or isinstance(error, ValueError):
            line = of_workers[-1] if of_workers else lines[0]
            reason = line.removeprefix("ValueError: ").partition(" [while running")[0]
        raise ValueError(reason) from error
    if state is not None and state != "DONE":
        raise ValueError(f"the Beam pipeline ended in the state {state}")


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Replaces exceptions of other libraries, because their messages can quote private values.

    Messages of pate_tf contain no private values and stay unchanged. An exception of another
    library is replaced by a ValueError that names only its type and the module that raised it.
    """
    try:
        yield
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
        reason = f"private records can't be read: {type(error).__name__} in {module}"
        if isinstance(error, ValueError) and module.startswith("pate_tf."):
            reason = str(error)
        raise ValueError(reason) from None


@dataclasses.dataclass(frozen=True)
class SharedFolder:
    """SENSITIVE: a temporary folder that workers and this process share during a run."""

    folder: str

    def write(self, name: str, content: bytes) -> None:
        """Writes a file atomically. A repeated task may write the same content again."""
        systems = filesystems()
        path = f"{self.folder}/{name}"
        temporary = f"{self.folder}/part-{secrets.token_hex(8)}"
        with systems.create(temporary, "application/octet-stream") as file:
            file.write(content)
        with contextlib.suppress(Exception):  # an earlier attempt wrote the same file
            systems.delete([path])
        systems.rename([temporary], [path])

    def read(self, name: str) -> bytes:
        """Returns the content of a file.

        Raises:
            ValueError: if the file does not exist.
        """
        path = f"{self.folder}/{name}"
        if not filesystems().exists(path):
            raise ValueError(f"{name} is missing in {self.folder}: all workers need `work_dir`")
        with filesystems().open(path, "application/octet-stream") as file:
            content: bytes = file.read()
        return content


@contextlib.contextmanager
def shared_folder(parent: str | os.PathLike[str]) -> Iterator[SharedFolder]:
    """Creates a folder that workers share, and its parents; deletes the folder at the end.

    Raises:
        ValueError: if the folder can't be created or written.
    """
    parent = os.fspath(parent)
    # The name of the folder is recognizable: if this process is killed, the next run on this
    # machine deletes the folder.
    folder = f"{parent}/{artifacts.temporary_name(pathlib.Path('beam')).name}"
    shared = SharedFolder(folder)
    try:
        if is_local(parent):
            os.makedirs(folder, 0o700)
        else:
            filesystems().mkdirs(folder)
        shared.write("begun", b"")
    except Exception as error:  # each file system has its own errors
        raise ValueError(
            f"work_dir={parent} is not a writable folder ({' '.join(str(error).split())})"
        ) from error
    try:
        with (
            artifacts.lease(pathlib.Path(folder)) if is_local(parent) else contextlib.nullcontext()
        ):
            yield shared
    finally:
        if is_local(parent):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            filesystems().delete([f"{folder}/"])  # on object stores, "/" deletes everything below


# Sums over records.


@functools.lru_cache(maxsize=2)
def _encoder(shared: SharedFolder, dataset: Dataset) -> SavedEncoder:
    """Returns the encoder from the shared folder. Each worker loads it only once."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(shared.read(ENCODER))).extractall(folder)
        return SavedEncoder(pathlib.Path(folder), dataset)


class _OwnerTotals:
    """SENSITIVE: collects the sums over the records of each pair of an owner and a class.

    Totals of equal pairs are merged often, which saves memory.
    """

    def __init__(self, width: int) -> None:
        self._parts = [(np.empty(0, PAIR), np.empty((0, width), np.int64))]

    def add(self, pairs: npt.NDArray[np.void], totals: IntArray) -> None:
        """Adds totals `[num_pairs, width]` of (owner, class) pairs.

        A pair can occur several times.
        """
        self._parts.append((pairs, totals))
        waiting = sum(len(each) for each, _ in self._parts[1:])
        if waiting > max(MIN_MERGED, len(self._parts[0][0])):
            self.merged()

    def merged(self) -> tuple[npt.NDArray[np.void], IntArray]:
        """Returns the distinct (owner, class) pairs in ascending order, and their totals."""
        pairs, totals = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        order = np.argsort(pairs, kind="stable")
        pairs, starts = np.unique(pairs[order], return_index=True)
        if len(pairs):
            totals = np.add.reduceat(totals[order], starts, axis=0)
        self._parts = [(pairs, totals)]
        return pairs, totals


@dataclasses.dataclass(frozen=True, repr=False)
class _Partial:
    """SENSITIVE: sums over a subset of the records.

    Attributes:
        sums: sums over these records, in the form that `Summands` defines.
        lanes: result of `content_sum` for these records.
        receipt: checksum that shows whether every result was added exactly once. It is the sum of
            the weights (see `_weight`) of all spans that were read, minus the weights of owners'
            parts that were not added yet.
        num_records: number of records.
        num_bad: number of additional records that were left out because they do not fit the
            schema.
    """

    sums: IntArray
    lanes: npt.NDArray[np.uint64]
    receipt: int
    num_records: int = 0
    num_bad: int = 0

    def __add__(self, other: "_Partial") -> "_Partial":
        return _Partial(*map(operator.add, vars(self).values(), vars(other).values()))


def _weight(*place: int) -> int:
    """Returns a weight for the checksum of worker results: a 40-bit hash of `place`.

    The checksum (`_Partial.receipt`) is correct only if each result was added exactly once.

    Args:
        *place: number of a span; for owners' parts, the numbers of a span, a block and a bucket.
    """
    digest = hashlib.sha256(repr(place).encode()).digest()
    return int.from_bytes(digest[:5], "big")


def _sum_span(
    source: TableSource, shared: SharedFolder, summands: Summands, span: Span
) -> Iterator[tuple[int, Any]]:
    """Yields (key, value) pairs of a span: totals of owners by bucket, then partial sums."""
    key = shared.read(KEY)
    encoder = _encoder(shared, source.dataset)
    sums = np.zeros((summands.num_rows, summands.num_columns), np.int64)
    lanes = np.zeros(4, np.uint64)
    receipt = _weight(span.number)
    num_records = num_bad = 0
    for number, block in enumerate(source.blocks(span)):
        digests = record_digests(block.inputs)
        lanes += content_sum(digests, block.labels)
        num_records += len(digests)
        num_bad += block.num_bad
        features_of_rows = record_features(encoder, block.inputs, digests=digests)
        if block.owners is None:
            for rows, features in features_of_rows:
                vectors = record_vectors(features, summands.scale)
                sums += summands.of_records(vectors, block.labels[rows])
            continue
        shape = block.labels.shape[1:]
        pairs = np.empty(len(digests), [OWNER, ("label", block.labels.dtype, shape)])
        pairs["owner"] = owner_digests(block.owners, key)
        pairs["label"] = block.labels
        numbers: npt.NDArray[Any]
        if summands.has_products:
            numbers = np.zeros((len(digests), summands.num_rows))
            for rows, features in features_of_rows:
                numbers[rows] = record_vectors(features, summands.scale)
        else:
            of_block = _OwnerTotals(summands.num_rows)
            for rows, features in features_of_rows:
                of_block.add(pairs[rows], summands.of_owned(features))
            pairs, numbers = of_block.merged()
        owners = np.ascontiguousarray(pairs["owner"]).view(np.uint8)
        buckets = owners.reshape(-1, DIGEST_BYTES)[:, 0]
        for bucket in np.unique(buckets).tolist():
            some = buckets == bucket
            weight = _weight(span.number, number, bucket)
            receipt -= weight
            # Nearly all numbers are 0: a record is in few bins, and the records of a pair are in
            # few clusters. So the numbers are stored as a sparse array.
            yield bucket, (weight, pairs[some], sparse.csr_array(numbers[some]))
    yield ADDED, _Partial(sums, lanes, receipt, num_records, num_bad)


@without_values()
def _sum_owners(summands: Summands, keyed: tuple[int, Iterable[Any]]) -> tuple[int, _Partial]:
    """Returns the contribution of all owners in a bucket, with the key `ADDED`."""
    receipt = 0
    of_bucket = _OwnerTotals(summands.num_rows)
    records = list[tuple[npt.NDArray[np.void], Any]]()
    for weight, pairs, numbers in keyed[1]:
        receipt += weight
        if summands.has_products:
            records.append((pairs, numbers))
        else:
            of_bucket.add(pairs, numbers.toarray())
    if summands.has_products:  # clips all records of an owner together, like a single process
        parts, vectors = zip(*records, strict=True)
        pairs = np.concatenate(parts)
        table = summands.of_products(
            sparse.vstack(vectors).toarray(), pairs["label"], pairs["owner"]
        )
    else:
        pairs, totals = of_bucket.merged()
        _, owners = np.unique(pairs["owner"], return_inverse=True)
        table = summands.of_owners(totals, owners * summands.num_classes + pairs["label"])
    return ADDED, _Partial(table, np.zeros(4, np.uint64), receipt)


def _build_sums(
    source: TableSource,
    summands: Summands,
    spans: Sequence[Span],
    shared: SharedFolder,
    pipeline: Any,
) -> None:
    """Builds the pipeline of `sums`. Workers get the records and a few public values."""
    import apache_beam as beam

    sums = np.zeros((summands.num_rows, summands.num_columns), np.int64)
    nothing = _Partial(sums, np.zeros(4, np.uint64), 0)

    def write(keyed: tuple[int, _Partial]) -> None:
        content = io.BytesIO()
        np.savez(content, **vars(keyed[1]))
        shared.write(PARTIAL, content.getvalue())

    def sum_span(span: Span) -> Iterator[Any]:
        with without_values():
            yield from _sum_span(source, shared, summands, span)

    # The key of every output is a number, because the Dask runner supports neither tags nor side
    # inputs. If a worker is lost, the Dask runner computes its results again. Repeated results must
    # get the same keys.
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
        # The sum of integers does not depend on the order in which Beam adds them.
        | "add" >> beam.CombinePerKey(lambda some: sum(some, nothing))
        | "write" >> beam.Map(write)
    )


def sums(
    data: DataSource,
    *,
    directory: str | os.PathLike[str],
    representation: Named | None = None,
    seed: int = 0,
    private: str | None = None,
    pool_size: int | None = None,
    options: Sequence[str] = (),
    work_dir: str | None = None,
    reporting: Reporting = QUIET,
) -> FeatureSums:
    """Computes feature sums with a Beam pipeline and stores them as `FeatureSums.fit` does.

    The sums are identical to the sums of a single process, for any runner, number of workers and
    number of retries. The reason is that integers are added, and that the contribution of a record
    or owner depends only on this record or owner. All workers must have the same type of processor,
    because TensorFlow rounds differently on different types. `pate_tf.FeatureSums.load` reads the
    stored sums.

    Args:
        data: settings that name the files of private records and public samples. If there are no
            public samples, second moments are computed, too. If `on_bad_record` is "skip", a record
            that does not fit the schema is left out. The stored description of the sums contains
            the number of such records, `left_out`.
        directory: run folder.
        representation: representation of inputs; None for the default of the data format.
        seed: seed of the representation.
        private: path of the private files, which may contain `*` and may be on a remote file system
            of Beam such as gs://; None for the private file that `data` names.
        pool_size: number of public samples in the pool; None for the default of the data set.
        options: options of Beam as flags, such as `["--runner=FlinkRunner", ...]`. By default,
            Beam's local runner is used in this process.
        work_dir: folder for temporary files, which contain private data. All workers must be able
            to access it; it may be on a remote file system of Beam such as gs://. Default: a folder
            in `sensitive/` of the run folder.
        reporting: functions that show progress, notes and warnings.

    Raises:
        ModuleNotFoundError: if Beam is not installed.
        ValueError: if arguments or data are not valid, the pipeline fails, or the folder contains
            other sums.
    """
    beam_options = checked_options(options)
    if work_dir is not None:  # fails early, before the long computation
        with shared_folder(work_dir):
            pass
    public = data.load_public(reporting)
    source = TableSource(data, private, public.dataset)
    spans = source.spans()
    run = artifacts.RunDirectory(pathlib.Path(directory))
    pool = public.split(pool_size or public.dataset.pool_size).pool
    summed = FeatureSums(directory=directory, representation=representation, seed=seed)
    summed.reporting = reporting
    encoder = summed.encoder_for(source.dataset, pool)
    described = summed.described(encoder, has_owners=source.has_owners)
    charged_to = data.named_source or PrivateSource.named(source.dataset.name)
    if data.files is not None and data.named_source is None:
        charged_to = PrivateSource.of_file(private or str(data.files.private), data.files.name)
    if summed.is_stored(described, charged_to):  # checked early, before the long computation
        reporting.warn_of_stored(sums_folder(run) / DESCRIPTION, "feature sums")
        return summed
    artifacts.remove_abandoned(run.root)
    summands = Summands.of(encoder, pool)
    build = functools.partial(_build_sums, source, summands, spans)
    with (
        reporting.clock("summing features of records"),
        shared_folder(work_dir or run.sensitive) as shared,
    ):
        with tempfile.TemporaryDirectory() as folder:
            save_encoder(pathlib.Path(folder) / "encoder", encoder)
            archive = shutil.make_archive(f"{folder}/encoder", "zip", f"{folder}/encoder")
            shared.write(ENCODER, pathlib.Path(archive).read_bytes())
        shared.write(KEY, secrets.token_bytes(KEY_BYTES))
        run_pipeline(functools.partial(build, shared), beam_options)
        total = np.load(io.BytesIO(shared.read(PARTIAL)), allow_pickle=False)
    if total["receipt"] != sum(_weight(span.number) for span in spans):
        raise ValueError("Beam lost or duplicated worker results. Run the pipeline again.")
    num_bad = int(total["num_bad"])
    if num_bad and source.is_strict:
        raise ValueError(
            "private contains records that do not fit the schema: a wrong number of fields, a "
            "number that is not finite, an unknown category or label, or no owner. To leave out "
            "such records, pass `on_bad_record=skip`."
        )
    if not source.is_strict:  # shown in any case, because the number is sensitive
        place = sums_folder(run) / DESCRIPTION
        reporting.note(f"`left_out` in {place} counts records that do not fit (sensitive)")
    warn_of_same_records(charged_to, total["lanes"].tobytes(), run.sensitive)
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
