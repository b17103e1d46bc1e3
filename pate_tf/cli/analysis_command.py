"""Computes the cost of answered queries: `pate analysis --train_dir=runs/mnist-250`.

The command reads the ledger and the votes of a run, several ledgers, or a file of votes. It
computes the privacy cost by all methods of accounting. Publishable and sensitive results are in
separate tables and files. With --statement, the command verifies a privacy statement against
ledgers and reads no votes.
"""

import pathlib
import re

from absl import flags

from pate_tf import statement
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import offered
from pate_tf.analysis.analyse_run import AnalysisSettings
from pate_tf.analysis.analyse_run import run as run_analysis
from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.statement.report import write_pages

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = command_line.flag_of_argument(AnalysisSettings)
# Maps the name of each mechanism for files of votes to its class and the flag for its noise.
KINDS: dict[str, tuple[type[Mechanism], str]] = {
    name: (kind, next(iter(command_line.parameters(kind, in_analysis=True).values())))
    for name, kind in offered().items()
    if kind.bounds and len(command_line.parameters(kind)) == 1
}


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    command_line.define(AnalysisSettings, group="votes")
    flags.DEFINE_string(
        "statement",
        None,
        "JSON file of a statement to verify. The command fails if the statement disagrees with "
        "the ledgers in --ledger and --train_dir. Default: the ledger of the statement's own run.",
    )
    command_line.shown_in_help("statement", "votes")
    flags.DEFINE_string("report_file", None, "JSON file for the printed results (sensitive).")
    command_line.shown_in_help("report_file", "output")
    flags.DEFINE_enum(
        "mechanism",
        None,
        list(KINDS),
        "Mechanism whose cost is computed for --counts_file. Default: laplace_noisy_max or "
        "gaussian_noisy_max, depending on the noise flag.",
    )
    command_line.shown_in_help("mechanism", "votes")
    for kind, _ in KINDS.values():
        command_line.define_parameters(kind, in_analysis=True)


def mechanism() -> Mechanism | None:
    """Returns the mechanism for a file of votes; None if votes come from a ledger.

    Raises:
        FlagValueError: if a flag belongs to another mechanism or is used together with a ledger.
    """
    names = {name for _, name in KINDS.values() if FLAGS[name].value is not None}
    if FLAGS.counts_file is None:
        if FLAGS.mechanism or names:
            raise command_line.FlagValueError("`mechanism` and flags for noise need --counts_file")
        return None
    default = "gaussian_noisy_max" if names == {"sigma"} else "laplace_noisy_max"
    kind, name = KINDS[FLAGS.mechanism or default]
    if names - {name}:
        raise command_line.FlagValueError(f"mechanism: {kind.name} takes only --{name}")
    return command_line.chosen(kind, in_analysis=True)


def main() -> None:
    """Reads the flags, analyzes votes or verifies a statement, and prints the results."""
    command_line.check_report_file(FLAGS.report_file)
    run_folder = command_line.path(FLAGS.train_dir)
    if FLAGS.statement is not None:
        ledgers = [pathlib.Path(path) for path in FLAGS.ledger or ()]
        if run_folder is not None:
            ledgers.append(run_folder / artifacts.SENSITIVE)
        verdict = statement.verify(pathlib.Path(FLAGS.statement), ledgers)
        command_line.print_table("Statement", [(FLAGS.statement, verdict)])
        command_line.write_report(FLAGS.report_file, {"statement": verdict})
        return
    if run_folder is not None and FLAGS.release is not None:  # fails before a draw is charged
        statement.read_statement(artifacts.RunDirectory(run_folder))
    settings = command_line.read(AnalysisSettings)
    report = run_analysis(settings, mechanism(), command_line.reporting())
    if FLAGS.counts_file and not any(FLAGS[name].value for _, name in KINDS.values()):
        command_line.note(f"noise: the default --noise_eps={command_line.DEFAULTS['noise_eps']}")
    for table in report.tables:
        if table.lines:
            print("\n".join([f"\n{table.title}", *table.lines]))
            continue
        rows = [(name, re.sub(r"`(\w+=\w+)`", r"--\1", value)) for name, value in table.rows]
        command_line.print_table(table.title, rows)
    if run_folder is not None and "epsilon_sanitised" in report.values:
        page = statement.add_release(artifacts.RunDirectory(run_folder))
        if page is not None:
            write_pages(run_folder)
            print(f"  privacy statement  {page}, updated with the sanitised epsilon")
    command_line.write_report(FLAGS.report_file, report.values)
