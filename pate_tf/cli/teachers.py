"""Trains the teachers: `python train_teachers.py --dataset=mnist --nb_teachers=250`.

The private data set is partitioned among the teachers, each is trained on its own shard, and all
are exported as one ensemble below TRAIN_DIR/sensitive. A stopped run resumes where it stopped.
"""

import os
import sys

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.data.data import Data
from pate_tf.teachers import kinds
from pate_tf.teachers.run_folder import TeacherRun
from pate_tf.teachers.settings import TeacherSettings

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(TeacherRun, TeacherSettings)
ADVANCED = ("class_weights", "learning_rate")


def define_flags() -> None:
    """Defines the flags of this command, in the order of their help."""
    own_flags.define(TeacherRun, group="data", advanced=ADVANCED)
    own_flags.define_data_flags(with_private=True)
    own_flags.define(TeacherSettings, group="training", advanced=ADVANCED)
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    command_line.shown_in_help("deeper", "training", advanced=True)


def main() -> None:
    """Reads the flags, trains, prints."""
    command_line.check_report_file(FLAGS.report_file)
    run = own_flags.read(TeacherRun, files=own_flags.own_files(with_private=True))
    settings = own_flags.values_of(TeacherSettings)
    kinds.check_model(settings["model"])
    if FLAGS.deeper and FLAGS.model not in (None, "deeper"):
        raise ValueError(f"expected --deeper or --model, got --deeper and --model={FLAGS.model}")
    if run.owners_file and run.partition_file:
        raise ValueError("partition: expected owners_file or partition_file, got both")
    reporting = command_line.reporting()
    # Files are read first: what is wrong with them is said before TensorFlow starts.
    data = None if run.files is None else Data.of(run, run.pool_size, reporting)
    from pate_tf.teachers import cluster
    from pate_tf.teachers.teachers import Teachers

    devices = cluster.of_tf_config()  # which serves and doesn't return where it names a worker
    data = Data.of(run, run.pool_size, reporting) if data is None else data
    if run.num_classes not in (None, data.dataset.num_classes):
        raise ValueError(f"num_classes: expected {data.dataset.num_classes}, got {run.num_classes}")
    model, steps = settings.pop("model"), settings.pop("max_steps")
    teachers = Teachers(
        "deeper" if FLAGS.deeper else model,
        num_teachers=run.num_teachers,
        directory=run.folder,
        steps=steps,
        num_processes=None,
        devices=devices,
        **settings,
    ).fit(
        *(data.private, data.pool),
        teachers=run.teacher_range,
        partition_file=run.partition_file,
        data_source=run,
        reporting=reporting,
    )
    report = teachers.report(data, reporting)
    command_line.print_table("Teachers", report.rows)
    command_line.write_report(run.report_file, report.values)


def run() -> None:
    """Runs the command with the flags of this process; the chief of a cluster leaves at once.

    Otherwise TensorFlow's coordinator would wait on leaving, forever, for a worker that died.
    """
    guarded = command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT)

    def run_and_leave(arguments: list[str]) -> None:
        leaving = SystemExit(0)
        try:
            guarded(arguments)
        except SystemExit as error:
            leaving = error
        if "TF_CONFIG" not in os.environ:
            raise leaving
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else 1)

    command_line.run(run_and_leave, define_flags, __doc__)
