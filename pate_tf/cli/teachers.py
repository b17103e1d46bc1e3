"""Trains the teachers: `python train_teachers.py --dataset=mnist --nb_teachers=250`.

The private data set is shared out among the teachers, each is trained on its own part, and all
are exported as one SavedModel below TRAIN_DIR/sensitive. A stopped run goes on where it stopped.
"""

import os
import pathlib
import sys

from absl import flags

from pate_tf.api.reporting import Reporting
from pate_tf.cli import command_line
from pate_tf.cli import flags as data_flags
from pate_tf.teachers.settings import TeacherSettings

FLAGS = flags.FLAGS

# What the library calls what a flag is for, where the two differ.
FLAG_OF_ARGUMENT = {
    "num_teachers": "nb_teachers",
    "num_classes": "nb_labels",
    "pool_size": "stdnt_share",
}
DEFAULT_NUM_TEACHERS = 100  # of the library's too, which takes TensorFlow with it


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "dataset",
        "digits",
        "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another "
        "name of TensorFlow Datasets, or module:function.",
    )
    data_flags.define_data_flags(with_private=True)
    flags.DEFINE_boolean("svhn_extra", True, "Share out SVHN's extra split too, not train alone.")
    flags.DEFINE_integer(
        "nb_teachers",
        None,
        "Number of teachers that share the private data. Default: 100; for ridge, nearest_mean and "
        "nearest_neighbour what suits the number of private records and classes, and is printed. "
        "With owners there is no default, as the number of their records is private.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "teacher_id",
        None,
        "Teacher to train in this process, from 0, or a range such as 0-49. Default: all. The "
        "process that finishes the last one exports the ensemble.",
    )
    flags.DEFINE_string(
        "data_dir",
        None,
        "Folder with data prepared by TensorFlow Datasets, or UCI's files in adult/ and diabetes/ "
        "below it. Default: TFDS' own; what is not there is downloaded.",
    )
    flags.DEFINE_string(
        "train_dir", None, "Folder of the run. Default: runs/DATASET-NB_TEACHERS in this folder."
    )
    flags.DEFINE_string(
        "owners_file",
        None,
        "A .npy file with the owner of each private record (numbers or strings): all records of "
        "one owner go to one teacher, and the guarantee is against adding or removing an owner.",
    )
    flags.DEFINE_string(
        "partition_file",
        None,
        "A .npy file that says who gets which record: the teacher of each record [num_records], or "
        "record and teacher in two columns [num_pairs, 2]. It must not depend on other records. "
        "Default: dealt out evenly and at random by --seed, a record's position alone deciding.",
    )
    data_flags.define(TeacherSettings, group="training")
    flags.DEFINE_integer(
        "stdnt_share",
        None,
        "How many of the public samples, from the first, form the pool that a representation is "
        "learnt from, as in train_student.py. Default: the data set's own share.",
        lower_bound=1,
    )
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    flags.DEFINE_integer(
        "nb_labels", None, "Number of classes, if you want it checked against the data set."
    )
    flags.DEFINE_list(
        "merge_from",
        [],
        "Run folders, comma-separated, of other jobs that trained other --teacher_id ranges of "
        "the same ensemble; their teachers are taken over. Without --teacher_id nothing is "
        "trained, and a missing teacher is an error.",
    )
    flags.DEFINE_boolean(
        "export_each", False, "Also export every teacher as a SavedModel of its own."
    )
    flags.DEFINE_enum(
        "parallelism",
        "ensemble",
        ["ensemble", "data"],
        "ensemble: each device trains teachers of its own; data: all devices train one teacher at "
        "a time, for models too large for one device.",
    )
    flags.DEFINE_boolean(
        "worker",
        False,
        "Serve as the worker that TF_CONFIG names, until ended, and do nothing else. The chief is "
        "the same command without --worker, with a TF_CONFIG whose task is the chief.",
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")


def teachers_asked_for(text: str | None, num_teachers: int) -> list[int] | None:
    """Reads `--teacher_id`: nothing, a number or a range `first-last`.

    Raises:
      ValueError: if it is something else, or out of range.
    """
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"teacher_id: expected a number or a range like 0-49, got {text!r}")
    start, stop = int(first), int(last if dash else first) + 1
    if not start < stop <= num_teachers:
        raise ValueError(f"teacher_id: expected teachers from 0 to {num_teachers - 1}, got {text}")
    return list(range(start, stop))


def chosen_model() -> str | None:
    """The model that `--model` names, or the flag that is short for one."""
    if FLAGS.deeper and FLAGS.model not in (None, "deeper"):
        raise ValueError(f"expected --deeper or --model, got --deeper and --model={FLAGS.model}")
    return "deeper" if FLAGS.deeper else FLAGS.model


def main() -> None:
    """Reads the flags, trains, prints."""
    reporting = Reporting(
        clock=command_line.clock,
        progress_bar=command_line.progress_bar,
        note=command_line.note,
        warn=command_line.warn,
    )
    command_line.check_report_file(FLAGS.report_file)
    files = data_flags.own_files(with_private=True)
    teachers = teachers_asked_for(FLAGS.teacher_id, FLAGS.nb_teachers or DEFAULT_NUM_TEACHERS)
    settings = data_flags.read(TeacherSettings, model=chosen_model())
    with command_line.quiet_start(FLAGS):
        from pate_tf.api import sources, teacher_settings
        from pate_tf.api import teacher_run as train_teachers

    if FLAGS.worker:
        train_teachers.serve_worker()
        return
    report = train_teachers.run(
        train_teachers.TeachersRun(
            data=sources.DataSource(
                files=files,
                dataset=FLAGS.dataset,
                data_dir=command_line.path(FLAGS.data_dir),
                svhn_extra=FLAGS.svhn_extra,
            ),
            num_classes=FLAGS.nb_labels,
            num_teachers=FLAGS.nb_teachers,
            pool_size=FLAGS.stdnt_share,
            teachers=teachers,
            partition=teacher_settings.PartitionSource(
                owners_file=command_line.path(FLAGS.owners_file),
                partition_file=command_line.path(FLAGS.partition_file),
            ),
            settings=settings,
            folder=command_line.path(FLAGS.train_dir),
            merge_from=[pathlib.Path(path) for path in FLAGS.merge_from],
            export_each=FLAGS.export_each,
            parallelism=FLAGS.parallelism,
        ),
        reporting,
    )
    command_line.print_table("Teachers", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)


def run_and_leave(arguments: list[str]) -> None:
    """Runs; the chief of a cluster then leaves at once.

    Otherwise TensorFlow's coordinator would wait on leaving, for ever, for a worker that died.
    """
    guarded = command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT)
    if "TF_CONFIG" not in os.environ:
        guarded(arguments)
        return
    code: object = 0
    try:
        guarded(arguments)
    except SystemExit as leaving:
        code = leaving.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(run_and_leave, define_flags, __doc__)


if __name__ == "__main__":
    run()
