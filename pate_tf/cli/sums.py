"""Computes feature sums by Apache Beam: `pate sums --dataset=digits --train_dir=run`.

  pate sums --private='records-*.parquet' --public=public.csv --schema=schema.toml --train_dir=run
  pate sums merge a b c --train_dir=merged

The sums are those that train_student.py --method=feature_sums computes in one process, which reads
them from --train_dir then. Flags that are none of these go to Beam: --runner, --direct_num_workers,
--direct_running_mode, ... Partial sums are merged without Beam.
"""

import dataclasses
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core.settings import Settings, setting
from pate_tf.data.data_source import DataSource
from pate_tf.teachers.run_folder import TeacherRun
from pate_tf.teachers.settings import TeacherSettings

FLAGS = flags.FLAGS
MERGE = "merge"
# Of the settings of teachers, those that both kinds of run have.
OF_RUN = ("dataset", "data_dir", "svhn_extra", "pool_size", "owners_file", "folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings(Settings):
    """How a pipeline runs."""

    bad_rows: str = setting(
        "refuse",
        group="data",
        choices=("refuse", "drop"),
        help="What becomes of records of files that do not fit the schema: refuse all in the end, "
        "or drop each that does not. Whether one fits depends on that record alone.",
    )
    buckets: int = setting(
        256,
        group="pipeline",
        least=1,
        most=2**16,
        advanced=True,
        help="Into how many parts owners are shared out. One part is in the memory of "
        "one worker. Changes no result.",
    )
    rows: int = setting(
        2**15,
        group="pipeline",
        least=1,
        advanced=True,
        help="Rows that travel together. Changes no result.",
    )
    work_dir: str | None = setting(
        None,
        group="pipeline",
        advanced=True,
        help="Folder that all workers reach, for what they leave there until the end; it holds "
        "private data. Default: below TRAIN_DIR/sensitive.",
    )


def define_common(
    *, also: tuple[str, ...] = (), without: tuple[str, ...] = (), private: bool = True
) -> None:
    """Defines the flags of a pipeline.

    Args:
        also: further fields of `TeacherRun`.
        without: fields of `TeacherRun` that it does not have.
        private: whether it reads private records.
    """
    has = {*OF_RUN, *also}.difference(without)
    others = [field.name for field in dataclasses.fields(TeacherRun) if field.name not in has]
    own_flags.define(TeacherRun, group="data", without=others)
    own_flags.define_data_flags(with_private=private)
    own_flags.define(EngineSettings, group="pipeline", without=() if private else ("bad_rows",))


def define() -> None:
    """Defines the flags of this command."""
    define_common()
    own_flags.define(
        TeacherSettings,
        group="data",
        without=[
            field.name
            for field in dataclasses.fields(TeacherSettings)
            if field.name not in ("representation", "seed")
        ],
    )


BEAM: list[str] = []  # options of Beam's, taken out of the arguments
PATHS: list[str] = []  # what `merge` is to merge


def take_apart(arguments: list[str]) -> list[str]:
    """Returns the arguments that are flags of this command; the others go to `BEAM` or `PATHS`."""
    own: list[str] = []
    is_merge = arguments[:1] == [MERGE]
    known = {"help", "helpfull", "helpshort", "h", "?", "helpxml", "flagfile"}
    rest = arguments[1:] if is_merge else arguments
    place = 0
    while place < len(rest):
        one = rest[place]
        name = one.lstrip("-").partition("=")[0]
        is_flag = one.startswith("-")
        is_own = name in FLAGS or name in known or name.removeprefix("no") in FLAGS
        target = own if is_own or not is_flag else BEAM
        has_value = is_flag and "=" not in one and place + 1 < len(rest)
        takes_next = has_value and not rest[place + 1].startswith("-")
        if is_own and name in FLAGS and FLAGS[name].boolean:
            takes_next = False
        if not is_flag and is_merge:
            target = PATHS
        target.append(one)
        if takes_next and is_flag and not (is_merge and not is_own):
            place += 1
            target.append(rest[place])
        place += 1
    if is_merge:
        PATHS.insert(0, MERGE)
    return own


def data_of() -> tuple[DataSource, str | None]:
    """Returns the data that the flags name, and the pattern of private files, if there is one."""
    has_private = "private" in FLAGS
    private = FLAGS.private if has_private and FLAGS["private"].present else None
    files = own_flags.own_files(with_private=has_private)
    if files is not None and private is not None:
        files = dataclasses.replace(files, private=None)
    data = DataSource(
        dataset=FLAGS.dataset,
        data_dir=command_line.path(FLAGS.data_dir),
        svhn_extra=FLAGS.svhn_extra if "svhn_extra" in FLAGS else True,
        owners_file=command_line.path(FLAGS.owners_file) if "owners_file" in FLAGS else None,
        files=files,
    )
    if private is not None and "://" not in private:
        private = str(pathlib.Path(private).absolute())
    return data, private


def engine_of(settings: EngineSettings) -> Any:
    """Returns how the pipeline runs, with the options that were taken out of the arguments."""
    from pate_tf.beam import pipelines

    return pipelines.Engine(
        options=BEAM, buckets=settings.buckets, rows=settings.rows, work_dir=settings.work_dir
    )


def run_and_leave(main: Callable[[], None], *kinds: type) -> Callable[[list[str]], None]:
    """Wraps a command; after a worker was killed it leaves at once, as Beam's threads don't end."""
    guarded = command_line.guarded(main, FLAGS, own_flags.flag_of_argument(*kinds))

    def run(arguments: list[str]) -> None:
        try:
            guarded(arguments)
        except SystemExit as leaving:
            if not any(one.name == "run_worker" for one in threading.enumerate()):
                raise
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)

    return run


def main() -> None:
    """Reads the flags, sums or merges, prints."""
    folder = command_line.path(FLAGS.train_dir)
    if PATHS:
        if BEAM:
            raise ValueError(f"merge: expected run folders and --train_dir, got {BEAM[0]!r}")
        if folder is None:
            raise ValueError("train_dir: expected a folder for the merged sums, got none")
        with command_line.quiet_start(FLAGS):
            from pate_tf.release import feature_sums
        stored = feature_sums.FeatureSums.merge(PATHS[1:], directory=folder)
    else:
        engine = own_flags.read(EngineSettings)
        data, private = data_of()
        with command_line.quiet_start(FLAGS):
            from pate_tf.beam import pipelines
            from pate_tf.release import feature_sums
        name = data.dataset
        if data.files is not None:
            name = data.files.public.stem
        folder = folder or feature_sums.default_folder(name)
        stored = pipelines.sums(
            data,
            directory=folder,
            representation=FLAGS.representation,
            seed=FLAGS.seed,
            private=private,
            pool_size=FLAGS.stdnt_share,
            bad_rows=engine.bad_rows,
            engine=engine_of(engine),
            reporting=command_line.reporting(),
        )
    rows = [
        ("data set", stored.dataset.name),
        ("protects", f"each {stored.unit}"),
        ("features", f"{len(stored.summands.scale)} of {stored.representation}"),
        ("sums", f"{folder} (sensitive)"),
        ("next", f"train_student.py --train_dir={folder} --method=feature_sums --epsilon=1"),
    ]
    if stored.unit == "record":
        rows.insert(1, ("records", f"{stored.num_records:,}"))
    command_line.print_table("Feature sums", rows)


def run() -> None:
    """Runs the command with the flags of this process."""

    def define_and_take_apart() -> None:
        define()
        sys.argv[1:] = take_apart(sys.argv[1:])

    command_line.run(run_and_leave(main, TeacherRun), define_and_take_apart, __doc__)


if __name__ == "__main__":
    run()
