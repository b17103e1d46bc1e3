"""What answered queries cost: `pate analysis --train_dir=runs/mnist-250`.

Reads the ledger and the votes of a run, of ledgers or of a file, and accounts for them in every way
there is. What may be published and what may not are two tables and two files. Checks statements.
With --calibrate it reads no votes and plans noise, mechanism and method for an epsilon.
"""

from absl import flags

from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.planning import PlanSettings, plan
from pate_tf.analysis.accounting import AnalysisConfig
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core.settings import described
from pate_tf.run import analysis

FLAGS = flags.FLAGS
KINDS = (
    analysis.SourceSettings,
    AnalysisConfig,
    analysis.ReleaseSettings,
    analysis.RunSettings,
)
OF_PLAN = own_flags.names_of(PlanSettings)
SHORT = ("epsilon", "queries", "nb_teachers", "margin")  # of a plan, in the short help
SHARED = ("delta", "nb_labels", "mechanism")  # of a plan and of other settings
FLAG_OF_ARGUMENT = {
    **own_flags.flag_of_argument(*KINDS, PlanSettings),
    "acknowledge_reset": "discard_release",
    "attempts": "attempts",  # in the words of flags
}


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    own_flags.define(analysis.SourceSettings, group="votes")
    own_flags.define(AnalysisConfig, group="accounting", without=("delta",))
    own_flags.define(analysis.RunSettings, group="accounting")
    own_flags.define(analysis.ReleaseSettings, group="release")
    flags.DEFINE_boolean(
        "calibrate",
        False,
        "Compare both methods and all mechanisms for --epsilon from public values, and print the "
        "commands to type, as pate plan does. Reads no votes.",
    )
    command_line.shown_in_help("calibrate", "calibration")
    for name in OF_PLAN:
        if name not in SHARED:
            command_line.shown_in_help(name, "calibration", advanced=name not in SHORT)
    without = [
        name for name, each in described(PlanSettings).items() if (each.flag or name) in SHARED
    ]
    own_flags.define(PlanSettings, group="calibration", without=without)
    flags.DEFINE_alias("target_epsilon", "epsilon")
    own_flags.define_mechanism_flags(
        default=None,
        help_text="How labels are drawn from votes. Default: laplace_noisy_max, or what the ledger "
        "says.",
        in_analysis=True,
    )


def analysis_run() -> analysis.AnalysisRun:
    """Returns the analysis that the flags ask for."""
    source = own_flags.read(analysis.SourceSettings)
    is_file = source.counts_file is not None
    settings = own_flags.read(analysis.RunSettings)
    return analysis.AnalysisRun(
        source=source,
        mechanism=own_flags.chosen(in_analysis=True) if is_file else None,
        said={} if is_file else own_flags.said_fields(),
        accounting=own_flags.read(
            AnalysisConfig, delta=DEFAULT_DELTA if settings.delta is None else settings.delta
        ),
        release=own_flags.read(analysis.ReleaseSettings),
        settings=settings,
    )


def check_flags() -> None:
    """Checks that one thing is asked for.

    Raises:
        FlagValueError: if there are several, or flags of a calibration without one.
    """
    named = [
        name for name in ("counts_file", "train_dir", "ledger", "calibrate") if FLAGS[name].value
    ]
    if len(named) != 1 and (named or FLAGS.statement is None):
        raise command_line.FlagValueError(
            "expected exactly one of --counts_file, --train_dir, --ledger and --calibrate, or "
            f"--statement alone, got {' and '.join(f'--{name}' for name in named) or 'none'}"
        )
    own_flags.values_of(PlanSettings)
    if FLAGS.calibrate:
        if FLAGS.epsilon is None:
            raise command_line.FlagValueError("epsilon: expected it with --calibrate, got none")
        return
    if FLAGS.bound == []:
        raise command_line.FlagValueError("bound: expected some of them, got none")
    for name in OF_PLAN:
        if FLAGS[name].present and not (
            name in SHARED or (name == "epsilon" and _is_of_mechanism())
        ):
            raise command_line.FlagValueError(f"{name}: expected with --calibrate, got it without")


def _is_of_mechanism() -> bool:
    """Whether --epsilon is a parameter of the mechanism; of a ledger it may be."""
    if not FLAGS.counts_file:
        return True
    kind = own_flags.chosen_kind(in_analysis=True)
    return "epsilon" in own_flags.parameters(kind, in_analysis=True)


def main() -> None:
    """Reads the flags, has votes accounted for or noise found, prints."""
    command_line.check_report_file(FLAGS.report_file)
    check_flags()
    if FLAGS.calibrate:
        if noise := own_flags.given(in_analysis=True):
            raise ValueError(f"{noise[0]}: expected none with --calibrate, which finds the noise")
        settings = own_flags.values_of(PlanSettings)
        planned = plan(**{name: value for name, value in settings.items() if value is not None})
        print(planned)
        values = planned.to_dict()
    else:
        report = analysis.run(analysis_run(), command_line.reporting())
        values = report.values
        for table in report.tables:
            command_line.print_titled(table)
    command_line.write_report(FLAGS.report_file, values)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define, __doc__)


if __name__ == "__main__":
    run()
