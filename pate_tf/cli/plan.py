"""Compares methods and mechanisms for an epsilon: `pate plan --epsilon=1 --nb_teachers=250`.

Prints how many labels each is expected to release, how accurate these are, and the commands to
type. Everything comes from the numbers that you state: no data, votes or ledger are read, so that
nothing is spent.
"""

from absl import flags

from pate_tf.accounting.planning import HELPS, NOTHING_CHARGED, ForecastError, PlanSettings, plan
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(PlanSettings)


def define() -> None:
    """Defines the flags of this command."""
    own_flags.define(PlanSettings, group="plan")
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON.")
    command_line.shown_in_help("report_file", "output")


def main() -> None:
    """Reads the flags, plans, prints; exit code 4 where labels are not worth their cost."""
    command_line.check_report_file(FLAGS.report_file)
    if FLAGS.epsilon is None:
        raise command_line.FlagValueError("epsilon: expected what the release may cost, got none")
    try:
        planned = plan(**own_flags.values_of(PlanSettings))
    except ForecastError as error:  # a plan charges nothing in any case
        raise ForecastError(str(error).replace(NOTHING_CHARGED, HELPS)) from None
    print(planned)
    command_line.write_report(FLAGS.report_file, planned.to_dict())
    if planned.is_noise:
        raise SystemExit(command_line.NOT_WORTH_ITS_COST)
