"""Trains the teachers: `python train_teachers.py --dataset=mnist --nb_teachers=250`.

The private data set is shared out among the teachers, each is trained on its own part, and all
are exported as one ensemble below TRAIN_DIR/sensitive. A stopped run goes on where it stopped.
"""

import os
import sys

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.teachers import kinds
from pate_tf.teachers.run_folder import TeacherRun
from pate_tf.teachers.settings import TeacherSettings

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(TeacherRun, TeacherSettings)
ADVANCED = ("class_weights", "learning_rate", "merge_from", "parallelism", "export_each")


def define_flags() -> None:
    """Defines the flags of this command, in the order of their help."""
    own_flags.define(TeacherRun, group="data", advanced=ADVANCED)
    own_flags.define_data_flags(with_private=True)
    own_flags.define(TeacherSettings, group="training", advanced=ADVANCED)
    FLAGS["model"].help = f"{FLAGS['model'].help} Known: {kinds.help_of_models()}."
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    flags.DEFINE_boolean(
        "worker",
        False,
        "Serve as the worker that TF_CONFIG names, until ended, and do nothing else. The chief is "
        "the same command without --worker, with a TF_CONFIG whose task is the chief.",
    )
    for name in ("deeper", "worker"):
        command_line.shown_in_help(name, "training", advanced=True)


def chosen_model() -> str | None:
    """The model that `--model` names, or the flag that is short for one."""
    if FLAGS.deeper and FLAGS.model not in (None, "deeper"):
        raise ValueError(f"expected --deeper or --model, got --deeper and --model={FLAGS.model}")
    return "deeper" if FLAGS.deeper else FLAGS.model


def main() -> None:
    """Reads the flags, trains, prints."""
    command_line.check_report_file(FLAGS.report_file)
    asked = own_flags.read(TeacherRun, files=own_flags.own_files(with_private=True))
    settings = own_flags.read(TeacherSettings, model=chosen_model())
    with command_line.quiet_start(FLAGS):
        from pate_tf.teachers import teacher_training

    if FLAGS.worker:
        teacher_training.serve_worker()
        return
    report = teacher_training.run(settings, asked, reporting=command_line.reporting())
    command_line.print_table("Teachers", report.rows)
    command_line.write_report(asked.report_file, report.values)


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
