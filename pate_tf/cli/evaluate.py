"""Measures a published student: `pate evaluate --student=run --inputs=labelled.csv`.

Reads a labelled PUBLIC file, or folders of images by class, and prints accuracy, recall by class
and calibration.
"""

from absl import flags

from pate_tf.cli import command_line

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "student", None, "A run folder, its released/, or a version: RUN/released/student/1."
    )
    flags.DEFINE_string(
        "inputs", None, "Public records with labels: a table or a folder of images."
    )
    flags.DEFINE_string(
        "label", None, "The label's column. Default: what the student's schema says."
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON.")


def main() -> None:
    """Reads the flags, measures, prints."""
    command_line.check_report_file(FLAGS.report_file)
    for name in ("student", "inputs"):
        if not FLAGS[name].value:
            raise command_line.FlagValueError(f"{name}: expected it, got none")
    with command_line.quiet_start(FLAGS):
        from pate_tf.serving import served
    report = served.evaluate(FLAGS.student, FLAGS.inputs, label=FLAGS.label)
    command_line.print_table("Evaluation", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS), define, __doc__)


if __name__ == "__main__":
    run()
