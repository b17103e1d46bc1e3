"""Pipelines: feature sums, and predictions of a published student.

Integer sums do not depend on bundles, workers or retries, so a result is to the last bit that of
one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import logging
import operator
import os
import pathlib
import secrets
import shlex
import shutil
import subprocess
import tempfile
import threading
import types
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from pate_tf.beam.sources import ROWS, Source, Span, filesystems, is_local, source_of
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.private_digest import private_digest
from pate_tf.core.record_set import (
    DIGEST_BYTES,
    RECORD_KEY,
    keyed_sum,
    owner_digests,
    record_digests,
)
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.source import PrivateSource, Records
from pate_tf.core.validation import IntArray, one_of, whole
from pate_tf.data.data_source import DataSource
from pate_tf.data.named_function import Named
from pate_tf.models.encoder import record_features
from pate_tf.release.feature_sums import DESCRIPTION, FeatureSums, Summands, sums_folder
from pate_tf.serving.served import ServedStudent
from pate_tf.teachers.ensemble import SavedEncoder, save_encoder

REFUSE, DROP = "refuse", "drop"
BUCKETS: Final = 256
MOST_BUCKETS: Final = 2**16
PARTIAL: Final = "partial.npz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """How a pipeline runs. Nothing here changes what it computes.

    Attributes:
        options: Beam's own, as flags: `["--runner=FlinkRunner", ...]`. Default: Beam's local
            runner in this process.
        buckets: into how many parts owners are shared out; each part is in the memory of one
            worker.
        rows: of a block.
        work_dir: a folder that all workers reach, also on a file system of Beam's such as gs://,
            for what they leave there until the end. Holds private data. Default: below
            `sensitive/` of the run folder.

    Raises:
        ValueError: if a number is out of range.
    """

    options: Sequence[str] = ()
    buckets: int = BUCKETS
    rows: int = ROWS
    work_dir: str | None = None

    def __post_init__(self) -> None:
        whole(1, MOST_BUCKETS, buckets=self.buckets)
        whole(1, rows=self.rows)


# What runs a pipeline.


def checked_options(engine: Engine) -> Any:
    """Returns Beam's options.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if Beam has no such option, the value is none of it, or nothing can be written
            below `work_dir`.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Beam logs which of its extras are missing
    try:
        import apache_beam  # noqa: F401
        from apache_beam.options.pipeline_options import PipelineOptions

        flags, parsers = list(engine.options), list[Any]()
        if not any(flag.split("=")[0] == "--runner" for flag in flags):
            flags.append("--runner=FnApiRunner")  # Beam's local one
        if not any(flag.startswith("--default_sdk_harness_log_level") for flag in flags):
            flags.append("--default_sdk_harness_log_level=CRITICAL")
        options = PipelineOptions(flags)
        with contextlib.redirect_stderr(io.StringIO()) as messages:
            options.get_all_options(add_extra_args_fn=parsers.append)
            unknown = parsers[0].parse_known_args(flags)[1]
    except SystemExit:
        reason = messages.getvalue().strip().splitlines() or flags
        raise ValueError(f"options: expected Beam's, got {reason[-1]}") from None
    finally:
        logging.disable(before)
    if unknown:
        raise ValueError(
            f"options: expected a flag of this command or an option of Apache Beam, got "
            f"{unknown[0]!r}"
        )
    filesystems().set_options(options)  # files are looked for before there is a pipeline
    if engine.work_dir is not None:
        _remove(_shared_folder(engine.work_dir))
    return options


def run_pipeline(build: Callable[[Any], object], options: Any) -> None:
    """Builds and runs a pipeline, and waits until it is done.

    Raises:
        ValueError: if it fails; one line.
    """
    import apache_beam as beam

    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # workers' tracebacks
    ended: list[Any] = []

    def run() -> None:
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline)
            ended.append(pipeline.run().wait_until_finish())
        except Exception as error:  # Beam's own, and what a worker raised, as text
            ended.append(error)

    if options.get_all_options()["direct_running_mode"] == "multi_processing":
        _watched(run)
    else:
        run()
    state = ended[0]
    if isinstance(state, Exception):
        raise ValueError(_reason(state)) from state
    if state is not None and state != "DONE":
        raise ValueError(f"beam: expected the pipeline to be done, got {state}")


def _watched(run: Callable[[], None]) -> None:
    """Runs a pipeline of the local runner in a thread, and watches its worker processes.

    Beam starts them, and its threads wait for ever if one is killed.

    Raises:
        ValueError: if one is; then the others are ended.
    """
    from apache_beam.runners.portability import local_job_service

    started: list[subprocess.Popen[Any]] = []

    def popen(command: str, *, shell: bool, env: Mapping[str, str]) -> subprocess.Popen[Any]:
        del shell  # killed, it would leave its worker running
        started.append(subprocess.Popen(shlex.split(command), env=env))
        return started[-1]

    thread = threading.Thread(target=run, daemon=True)
    known, hook = local_job_service.subprocess, threading.excepthook
    local_job_service.subprocess = types.SimpleNamespace(Popen=popen)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
            if thread.is_alive() and any(worker.poll() for worker in started):
                threading.excepthook = lambda _: None  # Beam's threads say so, too
                for worker in started:
                    worker.kill()
                    worker.wait()
                raise ValueError(
                    "beam: expected workers that run to the end, got one that was killed; the same "
                    "command computes all anew, to the same bits"
                )
    finally:
        local_job_service.subprocess = known
        if not thread.is_alive():
            threading.excepthook = hook


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
def _working(directory: artifacts.RunDirectory, engine: Engine) -> Iterator[_Work]:
    """Makes the folder that workers share; removes it at the end."""
    artifacts.remove_abandoned(directory.root)
    if engine.work_dir is not None:
        shared = _shared_folder(engine.work_dir)
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Job:
    """What workers need to add records up; all of it is small and public.

    Attributes:
        source: of the records.
        work: the folder that workers share; it holds the encoder and the key of the digests.
        buckets: into how many parts owners are shared out.
        summands: what each record adds.
    """

    source: Source
    work: _Work
    buckets: int
    summands: Summands


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
        lanes: `record_set.keyed_sum` of the records.
        num_records: how many there are.
        num_bad: records next to these that were left out.
    """

    sums: IntArray
    lanes: npt.NDArray[np.uint64]
    num_records: int = 0
    num_bad: int = 0

    def __add__(self, other: _Partial) -> _Partial:
        return _Partial(*map(operator.add, vars(self).values(), vars(other).values()))


def _sum_span(job: _Job, span: Span) -> Iterator[tuple[str, Any]]:
    """Yields what a span's records add, and of owners their totals."""
    summands, num_classes, key = job.summands, job.summands.num_classes, job.work.read(KEY)
    encoder = _encoder(job.work.folder, json.dumps(job.source.dataset.to_dict()))
    partial = _Partial(summands.nothing(), np.zeros(4, np.uint64))
    for block in job.source.blocks(span):
        records = record_digests(block.inputs)
        owners = None if block.owners is None else owner_digests(block.owners, key)
        lanes = keyed_sum(key, records, block.labels, owners)
        sums = summands.nothing()
        if owners is None:
            for rows, features in record_features(encoder, block.inputs, digests=records):
                sums += summands.of_records(features, block.labels[rows])
        else:
            pairs = (
                (owners[rows], block.labels[rows], summands.of_owned(features))
                for rows, features in record_features(encoder, block.inputs, digests=records)
            )
            digests, keys, totals = _merged_pairs(pairs, num_classes, summands.num_rows)
            of_pair, first = digests[keys // num_classes], len(summands.scale) + 1
            begin = of_pair.view(np.uint8).reshape(-1, DIGEST_BYTES)[:, :2].astype(np.int64)
            buckets = (begin @ [256, 1]) * job.buckets // MOST_BUCKETS
            for bucket in np.unique(buckets).tolist():
                some = np.flatnonzero(buckets == bucket)
                # Few clusters have records of a pair: nearly all counts are zeros.
                counts = sparse.csr_array(totals[some, first:])
                classes = keys[some] % num_classes
                yield "owners", (bucket, (of_pair[some], classes, totals[some, :first], counts))
        partial += _Partial(sums, lanes, len(records), block.num_bad)
    yield "partial", partial


@_without_values()
def _sum_owners(job: _Job, keyed: tuple[int, Iterable[Any]]) -> _Partial:
    """Returns what the owners of a bucket add."""
    parts = (
        (digests, classes, np.concatenate([totals, counts.toarray()], axis=1))
        for digests, classes, totals, counts in keyed[1]
    )
    _, keys, totals = _merged_pairs(parts, job.summands.num_classes, job.summands.num_rows)
    return _Partial(job.summands.of_owners(totals, keys), np.zeros(4, np.uint64))


def _build_sums(job: _Job, spans: Sequence[Span], pipeline: Any) -> None:
    import apache_beam as beam

    def tagged(span: Span) -> Iterator[Any]:
        with _without_values():
            for tag, value in _sum_span(job, span):
                yield value if tag == "partial" else beam.pvalue.TaggedOutput(tag, value)

    nothing = _Partial(job.summands.nothing(), np.zeros(4, np.uint64))
    summed = (
        pipeline
        | "spans" >> beam.Create(list(spans))
        | "spread" >> beam.Reshuffle()
        | "sum" >> beam.FlatMap(tagged).with_outputs("owners", main="partial")
    )
    partials = [summed.partial]
    if job.source.has_owners:
        partials.append(
            summed.owners
            | "owners" >> beam.GroupByKey()
            | "clip and sum" >> beam.Map(functools.partial(_sum_owners, job))
        )
    _ = (
        partials
        | "all" >> beam.Flatten()
        # Integers: their order does not matter.
        | "add" >> beam.CombineGlobally(lambda some: functools.reduce(operator.add, some, nothing))
        | "write" >> beam.Map(lambda total: job.work.write_arrays(PARTIAL, **vars(total)))
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
    engine: Engine = Engine(),
    reporting: Reporting = QUIET,
) -> FeatureSums:
    """Computes feature sums by a Beam pipeline; stores what `FeatureSums.fit` stores.

    They are to the last bit those of one process, for any runner, bundles, number of workers and
    retries: numbers are added as integers, and what a record's or an owner's are follows from that
    record or owner alone. `pate_tf.FeatureSums.load` reads them. Workers must have one kind of
    processor for that: TensorFlow rounds differently on others.

    Args:
        data: where private records and public samples lie.
        directory: the run folder.
        representation: of the pool; None for the default of the kind of data.
        seed: of the representation.
        private: files of the private records: a path or a pattern with `*`, also on a file system
            of Beam's such as gs://; None for those of `data`.
        pool_size: how many public samples form the pool; None for the data set's own number.
        bad_rows: what becomes of a record that does not fit the schema: "refuse", which refuses all
            of them in the end, or "drop", by which it adds nothing; how many there are stands in
            the description of the sums, `left_out`.
        engine: how the pipeline runs.
        reporting: how progress is shown.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if something does not fit, the pipeline fails, or the folder holds others.
    """
    one_of((REFUSE, DROP), bad_rows=bad_rows)
    options = checked_options(engine)
    public = data.load_public(reporting)
    source = source_of(data, private, public, rows=engine.rows)
    spans = source.spans()
    run = artifacts.RunDirectory(pathlib.Path(directory))
    pool = public.split(pool_size or public.dataset.pool_size).pool
    summed = FeatureSums(directory=directory, representation=representation, seed=seed)
    summed.reporting = reporting
    encoder = summed.encoder_for(source.dataset, pool)
    expected = summed.described(encoder, [], has_owners=source.has_owners)
    del expected["records"]
    summed.is_stored(expected)  # before hours are spent
    with _working(run, engine) as work, tempfile.TemporaryDirectory() as folder:
        save_encoder(pathlib.Path(folder) / "encoder", encoder)
        archive = shutil.make_archive(f"{folder}/encoder", "zip", f"{folder}/encoder")
        work.write(ENCODER, pathlib.Path(archive).read_bytes())
        work.write(KEY, private_digest(run.sensitive, RECORD_KEY).encode())
        job = _Job(
            source=source,
            work=work,
            buckets=engine.buckets,
            summands=Summands.of(encoder, pool),
        )
        with reporting.clock("summing features of records"):
            run_pipeline(functools.partial(_build_sums, job, spans), options)
        total = work.read_arrays(PARTIAL)
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
        job.summands,
        total["sums"],
        records=Records(num_records=int(total["num_records"]) + num_bad, source=charged_to),
        num_left_out=num_bad,
        pool_size=len(pool),
        flags={**data.flags, **({} if private is None else {"private": private})},
    )


# Public inputs: features, and a published student's predictions.


@functools.lru_cache(maxsize=1)
def _model(folder: str, as_features: bool) -> FeatureSums | ServedStudent:
    """Returns sums, for their encoder, or a student, loaded once a worker."""
    return FeatureSums.load(folder) if as_features else ServedStudent(pathlib.Path(folder))


def _predict_span(
    source: Source, folder: str, output: str, as_features: bool, span: Span
) -> Iterator[tuple[int, int]]:
    """Writes what is predicted of a span's inputs; yields how many there are, and bad ones."""
    number = num_bad = 0
    model = _model(folder, as_features)
    tables: list[dict[str, Any]] = []
    for block in source.blocks(span):
        table: dict[str, Any] = {"record": block.places}
        if isinstance(model, FeatureSums):
            table["features"] = model.features(block.inputs)
        else:
            table["label"], table["probabilities"] = model.answer(block.inputs)
        tables.append(table)
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
    yield number, num_bad


def predict(
    data: DataSource,
    *,
    output: str,
    student: str | os.PathLike[str] | None = None,
    features_of: str | os.PathLike[str] | None = None,
    inputs: str | None = None,
    engine: Engine = Engine(),
    reporting: Reporting = QUIET,
) -> tuple[int, int]:
    """Applies a published student, or the encoder of feature sums, to many public inputs.

    Writes `part-000000.npz`, ... into a folder, one for each file, row group or part of an array,
    with the arrays `path`, `start`, `record` (places in that file from `start` on, `[num_inputs]`)
    and `label` int64 `[num_inputs]` and `probabilities` float32 `[num_inputs, num_classes]`, or
    `features` float32 `[num_inputs, num_features]`. Inputs that do not fit have no row.

    Args:
        data: where public samples lie.
        output: a folder that workers reach; it must be new or empty.
        student: a version of an exported student, such as `released/student/1`.
        features_of: instead, the run folder of feature sums.
        inputs: files of inputs, a path or a pattern; None for the public samples of `data`.
        engine: how the pipeline runs.
        reporting: how progress is shown.

    Returns:
        How many inputs there were, and how many do not fit.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if something does not fit, or the pipeline fails.
    """
    if (student is None) == (features_of is None):
        raise ValueError("student: expected a student or features_of, got none or both")
    options = checked_options(engine)
    if filesystems().exists(output) and filesystems().match([f"{output}/*"])[0].metadata_list:
        raise ValueError(f"output: expected a new or an empty folder, got {output}")
    public = data.load_public(reporting)
    if data.files is not None:
        inputs = inputs or str(data.files.public)
    source = source_of(data, inputs, public, is_private=False, rows=engine.rows)
    spans = source.spans()
    folder = str(student)
    if features_of is not None:
        folder = os.path.abspath(features_of)
    _model(folder, features_of is not None)
    if not filesystems().exists(output):
        filesystems().mkdirs(output)
    predict_span = functools.partial(_predict_span, source, folder, output, features_of is not None)
    work = _Work(output)

    def build(pipeline: Any) -> None:
        import apache_beam as beam

        _ = (
            pipeline
            | "spans" >> beam.Create(list(spans))
            | "spread" >> beam.Reshuffle()
            | "predict" >> beam.FlatMap(predict_span)
            | "count" >> beam.CombineGlobally(lambda some: np.sum([(0, 0), *some], 0).tolist())
            | "write" >> beam.Map(lambda some: work.write("counts.json", json.dumps(some).encode()))
        )

    with reporting.clock("predicting"):
        run_pipeline(build, options)
    number, num_bad = json.loads(work.read("counts.json"))
    return int(number), int(num_bad)
