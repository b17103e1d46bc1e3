"""Pipelines: feature sums, teachers in closed form, predictions of a published student.

What travels between workers are blocks: integer sums, digests, features of some records. Integer
sums do not depend on bundles, workers or retries; digests and shares are sorted where they meet. So
a result is to the last bit that of one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import logging
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

from pate_tf.api import feature_sums, teacher_training
from pate_tf.api.feature_sums import StoredSums, Summands, SumsSettings
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.api.run_folder import DataSource, RunDescription, ensemble_folder
from pate_tf.beam.merging import merged
from pate_tf.beam.sources import ROWS, Block, Source, Span, filesystems, is_local, source_of
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import Partition, owner_partition, teachers_of_positions
from pate_tf.core.record_set import (
    DIGEST_BYTES,
    Digests,
    RecordSet,
    fingerprint,
    numbered_digests,
    owner_digests,
    record_digests,
    sorted_digests,
)
from pate_tf.core.validation import IntArray, one_of, whole
from pate_tf.data.named_function import name_of
from pate_tf.models import closed_form
from pate_tf.models.encoder import record_features
from pate_tf.serving.served import ServedStudent
from pate_tf.teachers import kinds
from pate_tf.teachers.ensemble import SavedEncoder, save_encoder
from pate_tf.teachers.settings import TeacherSettings
from pate_tf.teachers.store import Finished, TeacherState, TeacherStore
from pate_tf.teachers.voters import RECORDS

REFUSE, DROP = "refuse", "drop"
BUCKETS: Final = 256
MOST_BUCKETS: Final = 2**16
GROUP: Final = 64  # teachers that are solved for together
MOST_DIGESTS: Final = 2**20  # in the memory of a worker
MOST_FILES: Final = 1_000  # of digests, that are open together
LOCAL_RUNNER: Final = "FnApiRunner"
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what is logged."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def checked_options(engine: Engine) -> Any:
    """Returns Beam's options.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if Beam has no such option, the value is none of it, or nothing can be written
            below `work_dir`.
    """
    options = engine.options
    with _quiet():  # Beam logs which of its extras are missing
        import apache_beam  # noqa: F401
        from apache_beam.options.pipeline_options import PipelineOptions

    parsers: list[Any] = []
    given = list(options)
    if not any(one.split("=")[0] == "--runner" for one in given):
        given.append(f"--runner={LOCAL_RUNNER}")
    if not any(one.startswith("--default_sdk_harness_log_level") for one in given):
        given.append("--default_sdk_harness_log_level=CRITICAL")
    found = PipelineOptions(given)
    try:
        with _quiet(), contextlib.redirect_stderr(io.StringIO()) as said:
            found.get_all_options(add_extra_args_fn=parsers.append)
            unknown = parsers[0].parse_known_args(given)[1]
    except SystemExit:
        reason = said.getvalue().strip().splitlines()
        raise ValueError(
            f"options: expected Beam's, got {reason[-1] if reason else given}"
        ) from None
    if unknown:
        raise ValueError(
            f"options: expected a flag of this command or an option of Apache Beam, got "
            f"{unknown[0]!r}"
        )
    filesystems().set_options(found)  # files are looked for before there is a pipeline
    if engine.work_dir is not None:
        folder = _shared_folder(engine.work_dir)
        _remove(folder)
    return found


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


class WorkerKilledError(ValueError):
    """A worker process of the local runner ended early. Threads of Beam's wait for it for ever."""


def _watched(run: Callable[[], None]) -> None:
    """Runs a pipeline of the local runner in a thread, and watches its worker processes.

    Beam starts them and waits for ever if one is killed.

    Raises:
        WorkerKilledError: if one is; then the others are ended.
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
                raise WorkerKilledError(
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
    own = [line for line in lines if line.startswith("ValueError: ")]
    if isinstance(error, ValueError) and lines and not own:
        own = lines[:1]
    if own:
        return own[-1].removeprefix("ValueError: ").partition(" [while running")[0]
    last = lines[-1] if lines else type(error).__name__
    return f"beam: expected the pipeline to be done, got {type(error).__name__}: {last[:300]}"


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

    def read(self, name: str) -> bytes | None:
        """Returns a file's content; None if there is none."""
        if not filesystems().exists(self.path(name)):
            return None
        with filesystems().open(self.path(name), "application/octet-stream") as file:
            content: bytes = file.read()
        return content

    def write_arrays(self, name: str, **arrays: Any) -> None:
        """Writes a file of arrays, as `write` does."""
        content = io.BytesIO()
        np.savez(content, **arrays)
        self.write(name, content.getvalue())

    def read_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Returns what `write_arrays` wrote.

        Raises:
            ValueError: if there is nothing.
        """
        content = self.read(name)
        if content is None:
            raise ValueError(f"beam: expected {name} of a pipeline that is done, got none")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {one: arrays[one] for one in arrays.files}

    def digests(self, kind: str, folder: pathlib.Path) -> Iterator[Digests]:
        """Yields the digests that workers wrote, ascending; `folder` holds copies meanwhile."""
        if is_local(self.folder):
            paths = sorted(pathlib.Path(self.folder).glob(f"{kind}-*"))
        else:
            systems, paths = filesystems(), []
            for one in systems.match([self.path(f"{kind}-*")])[0].metadata_list:
                paths.append(folder / one.path.rpartition("/")[2])
                with systems.open(one.path, "application/octet-stream") as file:
                    paths[-1].write_bytes(file.read())
        while len(paths) > MOST_FILES:
            groups = [paths[at : at + MOST_FILES] for at in range(0, len(paths), MOST_FILES)]
            paths = []
            for group in groups:
                paths.append(folder / secrets.token_hex(8))
                with open(paths[-1], "wb") as whole:
                    for part in _merged_files(group):
                        whole.write(part.tobytes())
        return _merged_files(paths)


def _merged_files(paths: Sequence[pathlib.Path]) -> Iterator[Digests]:
    return merged([np.memmap(one, np.uint8, mode="r").reshape(-1, DIGEST_BYTES) for one in paths])


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
def _working(
    directory: artifacts.RunDirectory, engine: Engine
) -> Iterator[tuple[_Work, pathlib.Path]]:
    """Makes the folder that workers share, and one of this process; removes both at the end."""
    artifacts.remove_abandoned(directory.root)
    own = artifacts.temporary_name(directory.sensitive / "beam")
    own.mkdir(mode=0o700)
    shared = str(own)
    try:
        if engine.work_dir is not None:
            shared = _shared_folder(engine.work_dir)
        yield _Work(shared), own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        if shared != str(own):
            _remove(shared)


ENCODER: Final = "encoder.zip"


@functools.lru_cache(maxsize=2)
def _encoder(shared: str, dataset: str) -> SavedEncoder:
    """Returns an encoder, loaded once a worker."""
    content = _Work(shared).read(ENCODER)
    if content is None:
        raise ValueError(f"work_dir: expected a folder that all workers reach, got {shared}")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
        return SavedEncoder(pathlib.Path(folder), Dataset.from_dict(json.loads(dataset)))


def _bucket(digests: Digests, buckets: int) -> IntArray:
    """Returns the bucket of each digest; they ascend with the digests."""
    first = digests[:, 0].astype(np.int64) * 256 + digests[:, 1]
    return first * buckets // MOST_BUCKETS


def _by_bucket(digests: Digests, buckets: int) -> Iterator[tuple[int, IntArray]]:
    """Yields each bucket that has digests, with their places."""
    bucket = _bucket(digests, buckets)
    order = np.argsort(bucket, kind="stable")
    found, starts = np.unique(bucket[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """What workers need to turn a span into features; all of it is small."""

    source: Source
    work: _Work
    dataset: str  # JSON
    buckets: int

    @property
    def encoder(self) -> SavedEncoder:
        return _encoder(self.work.folder, self.dataset)

    @property
    def num_classes(self) -> int:
        return self.source.dataset.num_classes


def _totals(block: Block) -> tuple[npt.NDArray[np.uint64], Digests, Digests | None]:
    """Returns the fingerprint of a block's records, their digests and those of their owners."""
    records, owners = record_digests(block.inputs), None
    if block.owners is not None:
        names, inverse = np.unique(block.owners, return_inverse=True)
        owners = owner_digests(names)[inverse]
    return fingerprint(records, block.labels, owners), records, owners


def _merged_pairs(
    parts: Iterable[tuple[Digests, IntArray, IntArray]], num_classes: int, width: int
) -> tuple[Digests, IntArray, IntArray]:
    """Adds up what parts hold of the same owner and class; few parts are in memory.

    Args:
        parts: digests of owners, classes and totals of each pair.
        num_classes: number of classes.
        width: of the totals.

    Returns:
        The distinct owners' digests, ascending; of each pair the owner's number times `num_classes`
        plus the class, ascending; and its totals `[num_pairs, width]`.
    """
    owners = np.empty((0, DIGEST_BYTES), np.uint8)
    keys, totals = np.empty(0, np.int64), np.empty((0, width), np.int64)
    waiting: list[tuple[Digests, IntArray, IntArray]] = []

    def merge() -> None:
        nonlocal owners, keys, totals
        together = [(owners[keys // num_classes], keys % num_classes, totals), *waiting]
        waiting.clear()
        digests, classes, added = (np.concatenate(each) for each in zip(*together, strict=True))
        owners, numbers = numbered_digests(digests)
        pairs = numbers * num_classes + classes
        order = np.argsort(pairs, kind="stable")
        keys, starts = np.unique(pairs[order], return_index=True)
        totals = np.add.reduceat(added[order], starts, axis=0) if len(keys) else added

    for part in parts:
        waiting.append(part)
        if sum(len(one[1]) for one in waiting) > max(4_096, len(keys)):
            merge()
    merge()
    return owners, keys, totals


# Feature sums.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SumsJob(_Job):
    """What workers need to add records up: what each adds."""

    summands: Summands


@dataclasses.dataclass(frozen=True)
class _Partial:
    """SENSITIVE: what some records add.

    Attributes:
        sums: the table of `Summands`.
        lanes: their fingerprint.
        num_bad: records that were left out.
    """

    sums: IntArray
    lanes: npt.NDArray[np.uint64]
    num_bad: int

    def __add__(self, other: _Partial) -> _Partial:
        return _Partial(
            self.sums + other.sums, self.lanes + other.lanes, self.num_bad + other.num_bad
        )


def _sum_span(job: _SumsJob, span: Span) -> Iterator[tuple[str, Any]]:
    """Yields what a span's records add, and of owners their totals; writes digests."""
    summands = job.summands
    partial = _Partial(summands.nothing(), np.zeros(2, np.uint64), 0)
    files = _DigestFiles(job.work, span)
    for block in job.source.blocks(span):
        lanes, records, owners = _totals(block)
        sums = summands.nothing()
        if owners is None:
            for rows, features in record_features(job.encoder, block.inputs, digests=records):
                sums += summands.of_records(features, block.labels[rows])
        else:
            pairs = (
                (owners[rows], block.labels[rows], summands.of_owned(features))
                for rows, features in record_features(job.encoder, block.inputs, digests=records)
            )
            digests, keys, totals = _merged_pairs(pairs, job.num_classes, summands.num_rows)
            of_pair, first = digests[keys // job.num_classes], len(summands.scale) + 1
            for bucket, some in _by_bucket(of_pair, job.buckets):
                # Few clusters have records of a pair: nearly all counts are zeros.
                counts = sparse.csr_array(totals[some, first:])
                classes = keys[some] % job.num_classes
                yield "owners", (bucket, (of_pair[some], classes, totals[some, :first], counts))
        files.add(records)
        partial += _Partial(sums, lanes, block.num_bad)
    files.write()
    yield "partial", partial


def _sum_owners(job: _SumsJob, keyed: tuple[int, Iterable[Any]]) -> _Partial:
    """Returns what the owners of a bucket add; writes their digests."""
    bucket, parts = keyed
    whole = (
        (digests, classes, np.concatenate([totals, counts.toarray()], axis=1))
        for digests, classes, totals, counts in parts
    )
    digests, keys, totals = _merged_pairs(whole, job.num_classes, job.summands.num_rows)
    job.work.write(f"owners-{bucket:05d}", digests.tobytes())
    return _Partial(job.summands.of_owners(totals, keys), np.zeros(2, np.uint64), 0)


class _DigestFiles:
    """Digests of a span's records, on their way to files that each ascend."""

    def __init__(self, work: _Work, span: Span) -> None:
        self._work, self._name = work, f"records-{span.number:06d}"
        self._parts: list[Digests] = []
        self._number = self._files = 0

    def add(self, digests: Digests) -> None:
        """Takes some; writes a file once there are many."""
        self._parts.append(digests)
        self._number += len(digests)
        if self._number >= MOST_DIGESTS:
            self.write()

    def write(self) -> None:
        """Writes what was not written yet."""
        if self._number:
            digests = sorted_digests(np.concatenate(self._parts))
            self._work.write(f"{self._name}-{self._files:06d}", digests.tobytes())
            self._parts, self._number = [], 0
            self._files += 1


def _build_sums(job: _SumsJob, spans: Sequence[Span], pipeline: Any) -> None:
    import apache_beam as beam

    def tagged(span: Span) -> Iterator[Any]:
        for tag, value in _sum_span(job, span):
            yield value if tag == "partial" else beam.pvalue.TaggedOutput(tag, value)

    nothing = _Partial(job.summands.nothing(), np.zeros(2, np.uint64), 0)
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
        | "add" >> beam.CombineGlobally(functools.partial(_added, nothing))
        | "write" >> beam.Map(functools.partial(_write_partial, job.work))
    )


def _write_partial(work: _Work, partial: _Partial) -> None:
    work.write_arrays(
        PARTIAL, sums=partial.sums, lanes=partial.lanes, num_bad=np.array(partial.num_bad, np.int64)
    )


def _added(nothing: _Partial, parts: Iterable[_Partial]) -> _Partial:
    """Returns the sum of parts; they are integers, so the order does not matter."""
    return functools.reduce(_Partial.__add__, parts, nothing)


def check_bad(number: int, bad_rows: str, reporting: Reporting, place: pathlib.Path) -> None:
    """Raises ValueError if records that do not fit are to be refused; else says what becomes of it.

    The rule for each depends on that record and the schema alone. The number is SENSITIVE: it
    stands in `place` alone.
    """
    if number and bad_rows == REFUSE:
        raise ValueError(
            "private: expected records that fit the schema, got some that do not (another number "
            "of fields, no finite number, an unknown category or label, no owner); bad_rows=drop "
            "leaves out each that does not"
        )
    if bad_rows == DROP:  # whether there are any or not
        reporting.note(f"how many records do not fit the schema: left_out in {place} (sensitive)")


def sums(
    data: DataSource,
    *,
    directory: str | os.PathLike[str],
    settings: SumsSettings = SumsSettings(),  # noqa: B008 (frozen)
    private: str | None = None,
    pool_size: int | None = None,
    bad_rows: str = REFUSE,
    engine: Engine = Engine(),
    reporting: Reporting = QUIET,
) -> StoredSums:
    """Computes feature sums by a Beam pipeline; stores what `FeatureSums.fit` stores.

    They are to the last bit those of one process, for any runner, bundles, number of workers and
    retries: numbers are added as integers, and what a record's or an owner's are follows from that
    record or owner alone. `pate_tf.FeatureSums.load` reads them. Workers must have one kind of
    processor for that: TensorFlow rounds differently on others.

    Args:
        data: where private records and public samples lie.
        directory: the run folder.
        settings: how records become sums.
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
    encoder = feature_sums.sums_encoder(settings, source.dataset, pool, run, reporting)
    nothing = np.zeros(2, np.uint64)
    expected = feature_sums.described_sums(settings, encoder, nothing, source.has_owners)
    del expected["records"]
    feature_sums.stored_before(run, expected)  # before hours are spent
    with _working(run, engine) as (work, own):
        summands = feature_sums.summands_of(pool, encoder)
        job = _SumsJob(**_job(source, work, encoder, engine), summands=summands)
        with reporting.clock("summing features of records"):
            run_pipeline(functools.partial(_build_sums, job, spans), options)
        found = work.read_arrays(PARTIAL)
        num_bad = int(found["num_bad"])
        place = feature_sums.sums_folder(run) / feature_sums.DESCRIPTION
        check_bad(num_bad, bad_rows, reporting, place)
        described = feature_sums.described_sums(
            settings, encoder, found["lanes"], source.has_owners
        )
        if (before := feature_sums.stored_before(run, described)) is not None:
            return before
        return feature_sums.store(
            described,
            encoder,
            summands,
            found["sums"],
            directory=run,
            records=work.digests("records", own),
            owners=work.digests("owners", own) if source.has_owners else None,
            pool_size=len(pool),
            source=_flags(data, private),
            num_left_out=num_bad,
        )


def _flags(data: DataSource, private: str | None) -> dict[str, Any]:
    """Returns the flags that name the data, for `run.json`."""
    return {**data.flags, **({} if private is None else {"private": private})}


def _job(source: Source, work: _Work, encoder: Any, engine: Engine) -> dict[str, Any]:
    """Writes an encoder where workers load it; returns the fields of a `_Job`."""
    with tempfile.TemporaryDirectory() as folder:
        save_encoder(pathlib.Path(folder) / "encoder", encoder)
        archive = shutil.make_archive(f"{folder}/encoder", "zip", f"{folder}/encoder")
        work.write(ENCODER, pathlib.Path(archive).read_bytes())
    return {
        "source": source,
        "work": work,
        "dataset": json.dumps(source.dataset.to_dict()),
        "buckets": engine.buckets,
    }


# Teachers in closed form.

NO_SUMS: Final = _Partial(np.zeros((0, 0), np.int64), np.zeros(2, np.uint64), 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TeacherJob(_Job):
    """What workers need to solve for teachers.

    Attributes:
        scale: of the encoder.
        model: "ridge", "nearest_mean" or "nearest_neighbour".
        num_teachers: that share the records.
        seed: of the partition.
        num_views: of the encoder.
    """

    scale: npt.NDArray[np.float64] | None
    model: str
    num_teachers: int
    seed: int
    num_views: int


def _shares_of_span(job: _TeacherJob, span: Span) -> Iterator[tuple[str, Any]]:
    """Yields features and labels of a span's records by group of teachers; writes digests."""
    partial, files = NO_SUMS, _DigestFiles(job.work, span)
    for block in job.source.blocks(span):
        lanes, records, _ = _totals(block)
        if block.owners is None:
            first = span.position + int(block.places.min(initial=0))
            last = span.position + int(block.places.max(initial=0)) + 1
            teachers = teachers_of_positions(
                first, last, num_teachers=job.num_teachers, seed=job.seed
            )[span.position + block.places - first]
        else:
            teachers = owner_partition(
                block.owners, num_teachers=job.num_teachers, seed=job.seed
            ).assignment
        for rows, features in record_features(job.encoder, block.inputs, digests=records):
            groups = teachers[rows] // GROUP
            for group in np.unique(groups).tolist():
                some = rows[groups == group]
                yield (
                    "shares",
                    (group, (teachers[some], features[groups == group], block.labels[some])),
                )
        files.add(records)
        partial += _Partial(partial.sums, lanes, block.num_bad)
    files.write()
    yield "partial", partial


def _solve(job: _TeacherJob, keyed: tuple[int, Iterable[Any]]) -> None:
    """Solves for the teachers of a group, those without a record too, and writes them."""
    group, parts = keyed
    own = range(group * GROUP, min((group + 1) * GROUP, job.num_teachers))
    features: dict[int, list[Any]] = {one: [] for one in own}
    labels: dict[int, list[Any]] = {one: [] for one in own}
    for part in parts:
        if part is None:
            continue
        teachers, some_features, some_labels = part
        for one in np.unique(teachers).tolist():
            features[one].append(some_features[teachers == one])
            labels[one].append(some_labels[teachers == one])
    none = np.empty((0, job.encoder.num_features), np.float32)
    arrays: dict[str, Any] = {}
    for one in own:
        solved = closed_form.fit(
            job.model,
            np.concatenate([none, *features.pop(one)]),
            np.concatenate([np.empty(0, np.int64), *labels.pop(one)]),
            num_classes=job.num_classes,
            num_views=job.num_views,
            scale=job.scale,
        )
        arrays |= {f"{one}/{place}": array for place, array in enumerate(solved)}
    job.work.write_arrays(f"teachers-{group:05d}.npz", **arrays)


def _build_teachers(job: _TeacherJob, spans: Sequence[Span], pipeline: Any) -> None:
    import apache_beam as beam

    def tagged(span: Span) -> Iterator[Any]:
        for tag, value in _shares_of_span(job, span):
            yield value if tag == "partial" else beam.pvalue.TaggedOutput(tag, value)

    shared = (
        pipeline
        | "spans" >> beam.Create(list(spans))
        | "spread" >> beam.Reshuffle()
        | "features" >> beam.FlatMap(tagged).with_outputs("shares", main="partial")
    )
    groups = -(-job.num_teachers // GROUP)
    everyone = pipeline | "groups" >> beam.Create([(group, None) for group in range(groups)])
    _ = (
        [shared.shares, everyone]
        | "with empty ones" >> beam.Flatten()
        | "shares" >> beam.GroupByKey()
        | "solve" >> beam.Map(functools.partial(_solve, job))
    )
    _ = (
        shared.partial
        | "add" >> beam.CombineGlobally(functools.partial(_added, NO_SUMS))
        | "write" >> beam.Map(functools.partial(_write_partial, job.work))
    )


def teachers(
    data: DataSource,
    *,
    directory: str | os.PathLike[str],
    num_teachers: int,
    settings: TeacherSettings = TeacherSettings(),  # noqa: B008 (frozen)
    private: str | None = None,
    pool_size: int | None = None,
    bad_rows: str = REFUSE,
    engine: Engine = Engine(),
    reporting: Reporting = QUIET,
) -> pathlib.Path:
    """Trains teachers in closed form by a Beam pipeline; returns the folder of their ensemble.

    The ensemble is to the last bit that of `train_teachers.py`: records go to teachers by owner, or
    by their position among all records, a bad one's position staying empty. Files of text and
    TFRecord are read once more, here, to count the records before each.

    Args:
        data: as of `sums`, like all arguments that are not named here.
        directory: the run folder.
        num_teachers: how many share the records.
        settings: how they learn; the model is one of `closed_form.NAMES`, "ridge" by default.
        private: see `sums`.
        pool_size: see `sums`.
        bad_rows: see `sums`.
        engine: see `sums`.
        reporting: see `sums`.

    Raises:
        ModuleNotFoundError: if the extra is missing.
        ValueError: if something does not fit, the pipeline fails, or the folder holds others.
    """
    one_of((REFUSE, DROP), bad_rows=bad_rows)
    settings = dataclasses.replace(settings, model=settings.model or closed_form.RIDGE)
    one_of(closed_form.NAMES, model=settings.model)
    options = checked_options(engine)
    public = data.load_public(reporting)
    source = source_of(data, private, public, rows=engine.rows)
    spans = source.spans(positions=not source.has_owners)
    unit = "owner" if source.has_owners else "record"
    kind, config = teacher_training.complete_settings(
        settings,
        source.dataset,
        Partition(np.arange(num_teachers), num_teachers, unit),  # its number and unit count
    )
    encoder = teacher_training.encoder_for(
        config, public.split(pool_size or public.dataset.pool_size).pool, reporting
    )
    if encoder is None:
        raise ValueError("representation: expected one, got none")
    run = artifacts.RunDirectory(pathlib.Path(directory))
    teacher_training.check_places(run)
    with _working(run, engine) as (work, own):
        job = _TeacherJob(
            **_job(source, work, encoder, engine),
            scale=encoder.scale,
            model=str(config.model),
            num_teachers=num_teachers,
            seed=config.seed,
            num_views=encoder.num_views,
        )
        with reporting.clock("solving for teachers"):
            run_pipeline(functools.partial(_build_teachers, job, spans), options)
        found = work.read_arrays(PARTIAL)
        num_bad = int(found["num_bad"])
        check_bad(num_bad, bad_rows, reporting, run.teachers / RECORDS)
        lanes = [f"{one:016x}" for one in found["lanes"].tolist()]
        identity = {
            **config.to_dict(),
            "kind": kind.name,
            "encoder": encoder.digest,
            "records": lanes,
        }
        store = TeacherStore(run.teachers, identity)
        RunDescription(
            data_name=source.dataset.name,
            num_classes=source.dataset.num_classes,
            unit=unit,
            num_teachers=num_teachers,
            model=str(config.model),
            representation=name_of(config.representation or ""),
            pool_size=pool_size,
            source=_flags(data, private),
        ).write(run)
        record_set = RecordSet.of_sorted(work.digests("records", own))
        total = {"num_records": record_set.num_records + num_bad, "left_out": num_bad}
        described = {**record_set.to_dict(), **total}
        artifacts.write_json(run.teachers / RECORDS, described, private=True)
        if missing := set(range(num_teachers)) - store.finished():
            store.save_all(
                ((one, state) for one, state in _solved(work, num_teachers) if one in missing),
                lambda _: None,
            )
    target = ensemble_folder(run)
    if missing or not target.exists():
        kinds.save_ensemble(kind, target, config, Finished(run.teachers, num_teachers), encoder)
    return target


def _solved(work: _Work, num_teachers: int) -> Iterator[tuple[int, TeacherState]]:
    """Yields the teachers that workers wrote, in order."""
    for group in range(-(-num_teachers // GROUP)):
        found: dict[int, list[npt.NDArray[Any]]] = {}
        for name, array in work.read_arrays(f"teachers-{group:05d}.npz").items():
            found.setdefault(int(name.partition("/")[0]), []).append(array)
        for one in sorted(found):
            yield one, TeacherState(found[one])


# Public inputs: features, and a published student's predictions.


@functools.lru_cache(maxsize=1)
def _student(folder: str) -> ServedStudent:
    """Returns a student, loaded once a worker."""
    return ServedStudent(pathlib.Path(folder))


@functools.lru_cache(maxsize=1)
def _stored(folder: str) -> StoredSums:
    return StoredSums(pathlib.Path(folder))


def _predict_span(
    source: Source, folder: str, output: str, as_features: bool, span: Span
) -> Iterator[tuple[int, int]]:
    """Writes what is predicted of a span's inputs; yields how many there are, and bad ones."""
    number = num_bad = 0
    tables: list[dict[str, npt.NDArray[Any]]] = []
    for block in source.blocks(span):
        found: dict[str, npt.NDArray[Any]] = {"record": block.places}
        if as_features:
            found["features"] = _stored(folder).features(block.inputs)
        else:
            labels, probabilities = _student(folder).answer(block.inputs)
            found |= {"label": labels, "probabilities": probabilities}
        tables.append(found)
        number, num_bad = number + len(block.places), num_bad + block.num_bad
    arrays: dict[str, Any] = {
        name: np.concatenate([one[name] for one in tables]) for name in (tables or [{}])[0]
    }
    arrays |= {"path": np.array(span.path), "start": np.array(span.start)}
    _Work(output).write_arrays(f"part-{span.number:06d}.npz", **arrays)
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
    if features_of is not None:
        root = artifacts.RunDirectory(pathlib.Path(features_of))
        folder = str(feature_sums.sums_folder(root))
        _stored(folder)
    else:
        folder = str(student)
        _student(folder)
    if not filesystems().exists(output):
        filesystems().mkdirs(output)
    one = functools.partial(_predict_span, source, folder, output, features_of is not None)

    def build(pipeline: Any) -> None:
        import apache_beam as beam

        _ = (
            pipeline
            | "spans" >> beam.Create(list(spans))
            | "spread" >> beam.Reshuffle()
            | "predict" >> beam.FlatMap(one)
            | "count" >> beam.CombineGlobally(_both)
            | "write" >> beam.Map(functools.partial(_write_counts, _Work(output)))
        )

    with reporting.clock("predicting"):
        run_pipeline(build, options)
    counts = json.loads(_Work(output).read("counts.json") or b"{}")
    return int(counts["inputs"]), int(counts["bad"])


def _both(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    number = bad = 0
    for some, of_them in counts:
        number, bad = number + some, bad + of_them
    return number, bad


def _write_counts(work: _Work, counts: tuple[int, int]) -> None:
    content = json.dumps({"inputs": counts[0], "bad": counts[1]})
    work.write("counts.json", content.encode())
