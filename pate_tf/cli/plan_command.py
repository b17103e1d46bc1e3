"""Compares methods and mechanisms for an epsilon: `pate plan --epsilon=1 --nb_teachers=250`.

Prints the expected number of labels, their expected accuracy, and the commands to run. The plan
uses only the numbers that you provide. It reads no data, votes or ledger and spends no privacy
budget. For your own files, `pate run` prints a plan before it spends anything.
"""

from absl import flags

from pate_tf.accounting.mechanisms.base import offered
from pate_tf.cli import command_line
from pate_tf.planning.comparison import plan
from pate_tf.planning.forecast import HELPS, NOTHING_CHARGED, ForecastError
from pate_tf.planning.release_settings import Privacy, PublicNumbers, ReleaseSettings
from pate_tf.queries.strategies import QueryWishes
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS

FLAGS = flags.FLAGS
PARTS = (Privacy, PublicNumbers, ReleaseSettings, QueryWishes)
FLAG_OF_ARGUMENT = command_line.flag_of_argument(*PARTS)


def define() -> None:
    """Defines the flags of this command."""
    for shown in ("epsilon", "delta", "unit", "margin"):
        command_line.shown_in_help(shown, "privacy")
    command_line.define(Privacy, group="privacy")
    command_line.define(PublicNumbers, group="data")
    command_line.define(
        ReleaseSettings,
        group="method",
        without=("method", "public_labels"),
        num_teachers=DEFAULT_NUM_TEACHERS,
    )
    command_line.define(QueryWishes, group="method", without=("strategy", "representation"))
    flags.DEFINE_enum("mechanism", None, list(offered()), "Mechanism to compare. Default: all.")
    command_line.shown_in_help("mechanism", "method")
    flags.DEFINE_string("report_file", None, "JSON file for the printed results.")
    command_line.shown_in_help("report_file", "output")


def main() -> None:
    """Reads the flags and prints the plan. Exits with code 4 if noise would spoil the labels."""
    command_line.check_report_file(FLAGS.report_file)
    command_line.require("the privacy budget. A common choice is --epsilon=1.", "epsilon")
    try:
        values = {
            name: value for part in PARTS for name, value in command_line.values_of(part).items()
        }
        planned = plan(mechanism=FLAGS.mechanism, **values)
    except ForecastError as error:  # a plan never charges anything, so its message gives advice
        raise ForecastError(str(error).replace(NOTHING_CHARGED, HELPS)) from None
    print(planned)
    command_line.write_report(FLAGS.report_file, planned.to_dict())
    if planned.is_noise:
        raise SystemExit(command_line.NOT_WORTH_ITS_COST)
