"""From two files to a published student with its statement, in one command.

  pate schema --public=public.csv --label=diagnosis
  pate run --private=private.csv --public=public.csv --schema=schema.toml --epsilon=1

Chooses the method by public values, trains teachers or computes feature sums, releases noisy labels
for --epsilon, trains a student and writes it with its statement below TRAIN_DIR/released. It prints
the commands that it stands for, which take what this one has no flag for.
"""

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.run.whole_run import WholeRun

FLAGS = flags.FLAGS


def define() -> None:
    """Defines the flags of this command."""
    own_flags.define(WholeRun, group="data", advanced=("svhn_extra",))
    own_flags.define_data_flags(with_private=True)


def main() -> None:
    """Reads the flags, runs, prints."""
    command_line.check_report_file(FLAGS.report_file)
    if FLAGS.epsilon is None:
        raise command_line.FlagValueError("epsilon: expected what the labels may cost, got none")
    asked = own_flags.read(WholeRun, files=own_flags.own_files(with_private=True))
    with command_line.quiet_start(FLAGS):
        from pate_tf.run import student_run, whole_run
        from pate_tf.teachers import teachers

        del student_run, teachers  # imported here, where what they print is hidden
    report = whole_run.run(asked, command_line.reporting())
    command_line.print_table("Run", report.rows)
    command_line.write_report(asked.report_file, report.values)
    if report.failure:
        raise ValueError(report.failure)


def run() -> None:
    """Runs the command with the flags of this process."""
    named = own_flags.flag_of_argument(WholeRun)
    command_line.run(command_line.guarded(main, FLAGS, named), define, __doc__)


if __name__ == "__main__":
    run()
