"""Applies a published student to a file, or to many inputs by Apache Beam.

  pate predict --student=run --inputs=visits.csv --output=predictions.csv
  pate predict --student=run --dataset=mnist --output=predictions

An --output that ends in .csv gets the columns of a table, or the names of the images in a folder,
with the predicted class and the probability of each, written as the table is. Any other is a
folder: Beam writes a file of arrays for each part of the inputs, label and probabilities, or with
--features_of the features that sums in a run folder are of. Flags that are none of these go to
Beam.
"""

import pathlib
import sys

from absl import flags

from pate_tf.cli import command_line, sums
from pate_tf.cli import flags as own_flags
from pate_tf.teachers.run_folder import TeacherRun

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command, and takes Beam's out of the arguments."""
    sums.define_common(without=("svhn_extra", "owners_file", "folder", "pool_size"), private=False)
    flags.DEFINE_string(
        "student", None, "A run folder, its released/, or a version: RUN/released/student/1."
    )
    flags.DEFINE_string("features_of", None, "Instead of --student: a run folder of feature sums.")
    flags.DEFINE_string(
        "inputs",
        None,
        "A table, or a folder of images. Of Beam, files by --schema such as 'inputs-*.parquet'; "
        "default: --public.",
    )
    flags.DEFINE_string(
        "output", None, "Where predictions go: a new file .csv, or a new or empty folder, by Beam."
    )
    sys.argv[1:] = sums.take_apart(sys.argv[1:])


def main() -> None:
    """Reads the flags, predicts, prints."""
    if FLAGS.output is None:
        raise ValueError("output: expected a file or a folder for the predictions, got none")
    if FLAGS.output.lower().endswith(".csv"):
        _predict_file()
        return
    engine = own_flags.read(sums.EngineSettings)
    data, _ = sums.data_of()
    with command_line.quiet_start(FLAGS):
        from pate_tf.beam import pipelines
        from pate_tf.serving.served import newest_version
    number, bad = pipelines.predict(
        data,
        output=FLAGS.output,
        student=None if FLAGS.student is None else newest_version(pathlib.Path(FLAGS.student)),
        features_of=FLAGS.features_of,
        inputs=FLAGS.inputs,
        engine=sums.engine_of(engine),
        reporting=command_line.reporting(),
    )
    rows = [("inputs", f"{number:,}"), ("output", FLAGS.output)]
    if bad:
        rows.insert(1, ("do not fit the schema", f"{bad:,}"))
    command_line.print_table("Predictions", rows)


def _predict_file() -> None:
    """Predicts in this process."""
    for name in ("student", "inputs"):
        if not FLAGS[name].value:
            raise ValueError(f"{name}: expected it with a file of predictions, got none")
    others = [name for name in ("features_of", *own_flags.NAMES) if FLAGS[name].present]
    if others or sums.BEAM:
        raise ValueError(
            f"output: expected a folder with {(others or sums.BEAM)[0]}, got a file; the student "
            f"knows the schema of its data"
        )
    with command_line.quiet_start(FLAGS):
        from pate_tf.serving import served
    report = served.predict(FLAGS.student, FLAGS.inputs, FLAGS.output)
    command_line.print_table("Predictions", report.rows)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(sums.run_and_leave(main, TeacherRun), define, __doc__)


if __name__ == "__main__":
    run()
