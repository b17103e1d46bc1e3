"""Applies a published student to a file, or evaluates it on a file.

  pate predict --student=run --inputs=visits.csv --output=predictions.csv
  pate predict --student=run --inputs=labeled.csv

With --output, the command writes a CSV file with the columns of the table (or the file names of
images) and the predictions: a class and the probability of each class, a number with a 95 %
interval, or several labels with their probabilities. Without --output, it prints the quality of
the student on labeled PUBLIC inputs.
"""

import contextlib
import pathlib

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core.artifacts import RELEASED
from pate_tf.statement.report import PAGE
from pate_tf.teachers.run_folder import described_run

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "student", None, "Run folder, its released/, or a version such as RUN/released/student/1."
    )
    flags.DEFINE_string("inputs", None, "Inputs of the student: a table, or a folder of images.")
    flags.DEFINE_string("output", None, "CSV file to create. Default: evaluate the student.")
    flags.DEFINE_string("label", None, "Column of the label. Default: the label of the schema.")
    flags.DEFINE_boolean(
        "strict", False, "Fail on invalid records. Default: leave them out and report them."
    )
    flags.DEFINE_string("report_file", None, "JSON file for the results of the evaluation.")


def main() -> None:
    """Reads the flags, predicts or evaluates, and prints the results."""
    command_line.check_report_file(FLAGS.report_file)
    what = "a run folder, its released/, or a version such as RUN/released/student/1"
    command_line.require(what, "student")
    command_line.require("a table, or a folder of images", "inputs")
    from pate_tf.serving import served

    run = served.newest_version(pathlib.Path(FLAGS.student)).absolute().parent.parent.parent
    inputs = pathlib.Path(FLAGS.inputs).resolve()
    with contextlib.suppress(OSError, ValueError):  # the run may belong to another user or version
        source = getattr(described_run(run), "source", {})
        stored = [source.get("private"), source.get("public")]
        private, public = (path and pathlib.Path(path).resolve() for path in stored)
        if private == inputs:
            command_line.warn(
                f"{FLAGS.inputs} contains the records that this student was trained on. Its "
                "accuracy on them says nothing about new records, and all results are sensitive."
            )
        elif public == inputs and not FLAGS.output:
            command_line.warn(
                f"The student has learned from most records of {FLAGS.inputs}, so its results on "
                f"them are too good. {run}/{RELEASED}/{PAGE} has the results on other records."
            )
    if FLAGS.output:
        report = served.predict(FLAGS.student, FLAGS.inputs, FLAGS.output, strict=FLAGS.strict)
    else:
        report = served.evaluate(FLAGS.student, FLAGS.inputs, label=FLAGS.label)
    command_line.print_table("Predictions" if FLAGS.output else "Evaluation", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)
