"""From two files to a published student with its statement, in one command.

  pate schema --public=public.csv --label=diagnosis
  pate run --private=private.csv --public=public.csv --schema=schema.toml --epsilon=1

Chooses the method by public values, trains teachers or computes feature sums, releases noisy labels
for --epsilon, trains a student and writes it with its statement below TRAIN_DIR/released. Other
settings: pate teachers and pate student.
"""

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.data.data import Data
from pate_tf.run import whole_run

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(whole_run.WholeRun)


def define() -> None:
    """Defines the flags of this command."""
    own_flags.define(whole_run.WholeRun, group="data", without=("svhn_extra", "run_name"))
    own_flags.define_data_flags(with_private=True)


def main() -> None:
    """Reads the flags, runs, prints."""
    command_line.check_report_file(FLAGS.report_file)
    if FLAGS.epsilon is None:
        raise command_line.FlagValueError(
            "epsilon: expected what the labels may cost, got none; a usual one is --epsilon=1"
        )
    files = own_flags.own_files(with_private=True)
    settings = own_flags.read(whole_run.WholeRun, files=files)
    reporting = command_line.reporting()
    # Files are read first: what is wrong with them is said before TensorFlow starts.
    data = None if files is None else Data.of(settings, None, reporting)
    import pate_tf.run.student  # noqa: F401  (TensorFlow, where what it prints is hidden)

    report = whole_run.run(settings, data, reporting)
    command_line.print_table("Run", report.rows)
    command_line.write_report(settings.report_file, report.values)
