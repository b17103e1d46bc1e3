"""Applies a published student to many inputs by Apache Beam.

  pate predict --student=run/released/student/1 --dataset=mnist --output=predictions

Writes a file of arrays for each part of the inputs: label and probabilities, or with --features_of
the features that sums in a run folder are of. Flags that are none of these go to Beam.
"""

import sys

from absl import flags

from pate_tf.api.run_folder import TeacherRun
from pate_tf.cli import command_line, sums
from pate_tf.cli import flags as own_flags

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command, and takes Beam's out of the arguments."""
    sums.define_common(without=("svhn_extra", "owners_file", "folder", "pool_size"), private=False)
    flags.DEFINE_string(
        "student", None, "Folder of a version of an exported student: RUN/released/student/1."
    )
    flags.DEFINE_string("features_of", None, "Instead of --student: a run folder of feature sums.")
    flags.DEFINE_string(
        "inputs",
        None,
        "Files of inputs by --schema, such as 'inputs-*.parquet'. Default: --public.",
    )
    flags.DEFINE_string("output", None, "Folder for the predictions; new or empty.")
    sys.argv[1:] = sums.take_apart(sys.argv[1:])


def main() -> None:
    """Reads the flags, predicts, prints."""
    engine = own_flags.read(sums.EngineSettings)
    data, _ = sums.data_of()
    if FLAGS.output is None:
        raise ValueError("output: expected a folder for the predictions, got none")
    with command_line.quiet_start(FLAGS):
        from pate_tf.beam import pipelines
    number, bad = pipelines.predict(
        data,
        output=FLAGS.output,
        student=FLAGS.student,
        features_of=FLAGS.features_of,
        inputs=FLAGS.inputs,
        engine=sums.engine_of(engine),
        reporting=command_line.reporting(),
    )
    rows = [("inputs", f"{number:,}"), ("output", FLAGS.output)]
    if bad:
        rows.insert(1, ("do not fit the schema", f"{bad:,}"))
    command_line.print_table("Predictions", rows)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(sums.run_and_leave(main, TeacherRun), define, __doc__)


if __name__ == "__main__":
    run()
