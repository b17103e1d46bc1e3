"""What answered queries cost: `pate analysis --train_dir=runs/mnist-250`.

Reads the ledger and the votes of a run, of ledgers or of a file, and accounts for them in every way
there is. What may be published and what may not are two tables and two files. With --statement it
reads no votes: it verifies a statement against ledgers.
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
# Mechanisms that a file of votes can be analyzed for, with the flag of the noise of each.
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
        "A statement in JSON to verify: against --ledger, else --train_dir, else the ledger "
        "of the run whose released/ folder holds it. An error if that says otherwise.",
    )
    command_line.shown_in_help("statement", "votes")
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")
    command_line.shown_in_help("report_file", "output")
    flags.DEFINE_enum(
        "mechanism",
        None,
        list(KINDS),
        "How labels are drawn from --counts_file. Default: by the "
        "noise, laplace_noisy_max or gaussian_noisy_max.",
    )
    command_line.shown_in_help("mechanism", "votes")
    for kind, _ in KINDS.values():
        command_line.define_parameters(kind, in_analysis=True)


def mechanism() -> Mechanism | None:
    """Returns what draws labels from a file of votes; None where a ledger says it.

    Raises:
        FlagValueError: if a flag is of another mechanism, or given for a ledger.
    """
    names = {name for _, name in KINDS.values() if FLAGS[name].value is not None}
    if FLAGS.counts_file is None:
        if FLAGS.mechanism or names:
            raise command_line.FlagValueError("mechanism: expected with --counts_file alone")
        return None
    default = "gaussian_noisy_max" if names == {"sigma"} else "laplace_noisy_max"
    kind, name = KINDS[FLAGS.mechanism or default]
    if names - {name}:
        raise command_line.FlagValueError(f"mechanism: expected --{name} for {kind.name} alone")
    return command_line.chosen(kind, in_analysis=True)


def main() -> None:
    """Reads the flags, has votes accounted for or a statement verified, prints."""
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
    if run_folder is not None and FLAGS.release is not None:  # read before a draw is charged
        statement.read_statement(artifacts.RunDirectory(run_folder))
    settings = command_line.read(AnalysisSettings)
    report = run_analysis(settings, mechanism(), command_line.reporting())
    if FLAGS.counts_file and not any(FLAGS[name].value for _, name in KINDS.values()):
        command_line.note(f"noise: by default --noise_eps={command_line.DEFAULTS['noise_eps']}")
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
            print(f"  privacy statement  {page}, now with the sanitised epsilon")
    command_line.write_report(FLAGS.report_file, report.values)
