"""Applies a published student to a file, or measures it on one.

  pate predict --student=run --inputs=visits.csv --output=predictions.csv
  pate predict --student=run --inputs=labeled.csv

With --output: the columns of the table, or the names of the images in a folder, with the predicted
class and the probability of each. Without: accuracy, recall by class and calibration on labeled
PUBLIC inputs.
"""

from absl import flags

from pate_tf.cli import command_line

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "student", None, "A run folder, its released/, or a version: RUN/released/student/1."
    )
    flags.DEFINE_string("inputs", None, "A table, or a folder of images.")
    flags.DEFINE_string("output", None, "A new file of comma-separated values. Default: measures.")
    flags.DEFINE_string(
        "label", None, "The label's column. Default: what the student's schema says."
    )
    flags.DEFINE_boolean(
        "strict",
        False,
        "A record that does not fit is an error. Default: it is left out, and named.",
    )
    flags.DEFINE_string("report_file", None, "Where to write what is measured, as JSON.")


def main() -> None:
    """Reads the flags, predicts or measures, prints."""
    command_line.check_report_file(FLAGS.report_file)
    for name in ("student", "inputs"):
        if not FLAGS[name].value:
            raise command_line.FlagValueError(f"{name}: expected it, got none")
    from pate_tf.serving import served

    if FLAGS.output:
        report = served.predict(FLAGS.student, FLAGS.inputs, FLAGS.output, strict=FLAGS.strict)
    else:
        report = served.evaluate(FLAGS.student, FLAGS.inputs, label=FLAGS.label)
    command_line.print_table("Predictions" if FLAGS.output else "Evaluation", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)
