"""Trains and publishes a student with its statement from two files, in one command.

  pate schema --public=public.csv --label=diagnosis
  pate run --private=private.csv --public=public.csv --schema=schema.toml --epsilon=1

The command chooses a method from public facts, and trains teachers or computes feature sums. It
releases noisy labels with a budget of --epsilon and trains a student on them. The student and its
privacy statement are written to TRAIN_DIR/released. For more settings, see pate teachers and pate
student.
"""

import dataclasses
from collections.abc import Callable

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.data.data_source import DataSource
from pate_tf.data.loaded_data import Data
from pate_tf.planning.release_settings import Budget, Output, ReleaseSettings, RunSettings
from pate_tf.queries.strategies import QueryWishes
from pate_tf.students.student_kinds import TRAINING, StudentSettings

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = command_line.flag_of_argument(DataSource, ReleaseSettings, Budget, QueryWishes)


def define() -> None:
    """Defines the flags of this command."""
    command_line.define(DataSource, group="data")
    command_line.define_data_flags(with_private=True)
    command_line.define(Budget, group="privacy", without=("planned_release", "insecure_seed"))
    command_line.define(ReleaseSettings, group="method", without=("margin",))
    command_line.define(QueryWishes, group="method", without=("strategy", "num_queries"))
    command_line.define(StudentSettings, group="student", advanced=(*TRAINING, "model"))
    command_line.define(Output, group="output")


def main(confirm: Callable[[], None] = lambda: None) -> None:
    """Runs all steps and prints the results. `confirm` is called before budget is spent."""
    command_line.check_report_file(FLAGS.report_file)
    what = "the privacy budget of this run. A common choice is --epsilon=1."
    command_line.require(what, "epsilon")
    origin = command_line.read(DataSource, files=command_line.own_files(with_private=True))
    release = command_line.read(
        ReleaseSettings, budget=command_line.read(Budget), queries=command_line.read(QueryWishes)
    )
    student = command_line.read(StudentSettings)
    output = command_line.read(Output)
    artifacts.check_no_writer(output.folder, artifacts.RELEASED)
    reporting = dataclasses.replace(command_line.reporting(), confirm=confirm)
    # Files are read first, so that their errors are reported before TensorFlow starts.
    data = None if origin.files is None else Data.of(origin, None, reporting)
    from pate_tf.run.pipeline import RunData, run

    data = Data.of(origin, None, reporting) if data is None else data
    fitted, folder = run(
        RunData(public=data.public, private=data.private, origin=origin),
        RunSettings(release=release, student=student, output=output),
        reporting=reporting,
    )
    report = fitted.report(folder, origin)
    command_line.print_table("Run", report.rows)
    command_line.write_report(output.report_file, report.values)
