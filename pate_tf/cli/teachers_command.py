"""Trains the teachers: `pate teachers --dataset=mnist --nb_teachers=250`.

The private data set is partitioned among the teachers. Each teacher is trained on its own shard,
and all teachers are exported as one ensemble to TRAIN_DIR/sensitive. If the command is stopped, the
same command resumes it.
"""

import dataclasses
import pathlib
from typing import ClassVar

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.core.settings import TeacherNumber, setting
from pate_tf.data.data_source import DataSource, PoolSize
from pate_tf.data.loaded_data import Data
from pate_tf.teachers import teacher_kinds
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS
from pate_tf.teachers.teacher_settings import TeacherSettings

FLAGS = flags.FLAGS
ADVANCED = ("class_weights", "learning_rate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherRun(TeacherNumber, PoolSize, DataSource):
    """Settings of `pate teachers`, except for those in `TeacherSettings`."""

    restated: ClassVar = {
        "num_teachers": {
            "group": "training",
            "help": "Number of teachers. The private data are partitioned among them. Default: for "
            "teachers on features, the command computes a number from the numbers of private "
            f"records and classes, and prints it; for other teachers, {DEFAULT_NUM_TEACHERS}. With "
            "owners there is no default, because the number of records is private.",
        }
    }
    teachers: str | None = setting(
        None,
        group="training",
        flag="teacher_id",
        help="Number of the teacher to train in this process, counted from 0, or a range such as "
        "0-49. Default: all. The process that finishes the last teacher exports all teachers.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Folder of the run. Default: runs/DATASET-NB_TEACHERS in the current folder.",
    )
    report_file: str | None = setting(
        None, group="output", help="JSON file for the printed results (sensitive)."
    )

    @property
    def teacher_range(self) -> range | None:
        """Numbers of the teachers to train in this process; None for all teachers.

        Raises:
            ValueError: if `teachers` is neither a number nor a range `first-last`.
        """
        if self.teachers is None:
            return None
        first, dash, last = self.teachers.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"teachers must be a number or range like 0-49, got {self.teachers!r}")
        return range(int(first), int(last if dash else first) + 1)


FLAG_OF_ARGUMENT = command_line.flag_of_argument(TeacherRun, TeacherSettings)


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    command_line.define(TeacherRun, group="data", advanced=ADVANCED)
    command_line.define_data_flags(with_private=True)
    command_line.define(TeacherSettings, group="training", advanced=ADVANCED)


def main() -> None:
    """Reads the flags, trains the teachers, and prints the results."""
    command_line.check_report_file(FLAGS.report_file)
    run = command_line.read(TeacherRun, files=command_line.own_files(with_private=True))
    settings = command_line.values_of(TeacherSettings)
    teacher_kinds.check_model(settings["model"])
    if run.teachers is None:
        artifacts.check_no_writer(run.folder, artifacts.SENSITIVE, "teachers")
    reporting = command_line.reporting()
    # Files are read first, so their errors are reported before TensorFlow starts.
    data = None if run.files is None else Data.of(run, run.pool_size, reporting)
    from pate_tf.teachers.teacher_set import Teachers

    data = Data.of(run, run.pool_size, reporting) if data is None else data
    teachers = Teachers(
        settings.pop("model"),
        num_teachers=run.num_teachers,
        directory=run.folder,
        steps=settings.pop("max_steps"),
        num_processes=None,
        **settings,
    ).fit(data.private, data.pool, teachers=run.teacher_range, data_source=run, reporting=reporting)
    report = teachers.report(data, reporting)
    command_line.print_table("Teachers", report.rows)
    command_line.write_report(run.report_file, report.values)
