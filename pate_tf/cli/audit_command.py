"""Checks a run folder before publication, without spending privacy budget.

  pate audit run --train_dir=RUN   checks a run and writes the report for the person who signs

It checks the released files, the ledger and recorded digests. `pate audit run --help` lists the
flags. Exit code 0: passed; 1: a violation was found; 2: the audit could not be run, or the run has
no ledger.
"""

import pathlib
import sys
from typing import Any

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts

FLAGS = flags.FLAGS
COULD_NOT_RUN = 2


def _audit_run() -> dict[str, Any]:
    """Audits a run and returns the results.

    Writes the report, unless the audit found a violation. An earlier report would not show the
    violation, so it is moved out of `released/`.
    """
    from pate_tf.audit.run_audit import VIOLATION, audit_run
    from pate_tf.statement.report import PAGE, STATEMENTS, write_pages

    command_line.require("the folder of a run", "train_dir")
    root = pathlib.Path(FLAGS.train_dir)
    page = root / artifacts.RELEASED / PAGE
    audit = audit_run(root, reporting=command_line.reporting())
    for check in audit.checks:
        print(f"  {check.outcome.ljust(11)}  {check.name}: {check.detail}")
        if check.blind_spot:
            print(f"  {''.ljust(11)}  can't see: {check.blind_spot}")
    place = root
    if (root / artifacts.SENSITIVE).is_dir():
        place = artifacts.make_sensitive_folder(root / artifacts.SENSITIVE / "audit")
        artifacts.write_json(place / "run.json", audit.to_dict(), private=True)
        print(f"written: {place / 'run.json'} (SENSITIVE)")
    if audit.outcome != VIOLATION and any(page.with_name(name).exists() for name in STATEMENTS):
        print(f"written: {write_pages(root, audit=audit)} (publishable)")
    elif page.is_file():
        page.chmod(0o600)  # as all files in `sensitive/`
        print(f"moved: {page.replace(place / PAGE)} (it does not show the result of this audit)")
    return audit.to_dict()


def _define() -> None:
    flags.DEFINE_string("train_dir", None, "Folder of the run.")
    flags.DEFINE_string("report_file", None, "JSON file for the results (sensitive).")


def run() -> None:
    """Runs `pate audit run` with the remaining arguments, or prints the help."""
    command_line.subcommand(["run"], __doc__)
    ending = 0

    def main() -> None:
        from pate_tf.audit.run_audit import NOT_CHECKED, VIOLATION

        nonlocal ending
        command_line.check_report_file(FLAGS.report_file)
        try:
            values = _audit_run()
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the audit could not be run: {error!r}") from error
        print(values["outcome"].upper())
        ending = {VIOLATION: 1, NOT_CHECKED: COULD_NOT_RUN}.get(values["outcome"], 0)
        command_line.write_report(FLAGS.report_file, values)

    sys.argv[0] = "pate audit run"
    try:
        command_line.run(command_line.guarded(main, FLAGS), _define, __doc__)
    except SystemExit as end:
        # Exit code 1 means that the audit found a violation, so a wrong flag needs another code.
        code = COULD_NOT_RUN if end.code == command_line.USER_ERROR else end.code
        raise SystemExit(ending or code) from None
