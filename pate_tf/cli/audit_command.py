"""Audits what is claimed: `pate audit mechanism NAME`, `pate audit run`.

Exit code 0: passed. 1: a violation was found. 2: it could not be run, or there was no ledger.
"""

import pathlib
import sys
from typing import Any, Final

from absl import flags

from pate_tf.accounting.conversions import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import MECHANISMS
from pate_tf.audit import mechanism as audits
from pate_tf.cli import command_line
from pate_tf.core import artifacts

FLAGS = flags.FLAGS
VIOLATION = 1
COULD_NOT_RUN = 2
CODES: Final = {audits.VIOLATION: VIOLATION, audits.NOT_CHECKED: COULD_NOT_RUN}
ABOUT: Final = """\
Tries to break what is claimed; spends no budget.

  pate audit mechanism NAME   draws for neighboring data sets
  pate audit run              verifies a run folder, writes the page for the person who signs

`pate audit WHICH --help` has the flags. Exit code 0: passed; 1: a violation was found; 2: it could
not be run, or a run has no ledger."""
RUN: Final = "Verifies a run folder against an allow-list, the ledger and its seals."


def _audit_run() -> dict[str, Any]:
    """Audits a run, writes the page if there is a statement and no violation, else deletes it."""
    from pate_tf.audit.run_audit import audit_run
    from pate_tf.statement.report import PAGE, STATEMENTS, write_pages

    if FLAGS.train_dir is None:
        raise command_line.FlagValueError("train_dir: expected the folder of a run, got none")
    root = pathlib.Path(FLAGS.train_dir)
    page = root / artifacts.RELEASED / PAGE
    audit = audit_run(root, reporting=command_line.reporting())
    if page.is_file():
        page.unlink()  # of an earlier audit
    for check in audit.checks:
        print(f"  {check.outcome.ljust(11)}  {check.name}: {check.detail}")
        if check.blind_spot:
            print(f"  {''.ljust(11)}  can't see: {check.blind_spot}")
    sensitive = root / artifacts.SENSITIVE
    if sensitive.is_dir():
        path = artifacts.make_sensitive_folder(sensitive / "audit") / "run.json"
        command_line.write_report(str(path), audit.to_dict())
        print(f"written: {path} (SENSITIVE)")
    is_stated = any(page.with_name(name).exists() for name in STATEMENTS)
    if audit.outcome != audits.VIOLATION and is_stated:
        print(f"written: {write_pages(root, audit=audit)} (publishable)")
    return audit.to_dict()


def _run_as(kind: type[Mechanism] | None) -> None:
    """Audits a mechanism; None for a run."""
    ending = 0

    def define() -> None:
        if kind is None:
            flags.DEFINE_string("train_dir", None, "Folder of the run.")
        else:
            command_line.define_parameters(kind)
            if "delta" not in FLAGS:
                about = "Delta that is tested besides others."
                flags.DEFINE_float("delta", DEFAULT_DELTA, about)
            flags.DEFINE_integer("draws", audits.DEFAULT_DRAWS, "Draws for each of two data sets.")
        flags.DEFINE_string("json", None, "Where to write what was found, as JSON.")

    def main() -> None:
        nonlocal ending
        command_line.check_report_file(FLAGS.json)
        try:
            if kind is None:
                values = _audit_run()
            else:
                values = audits.audit_mechanism(
                    command_line.chosen(kind),
                    delta=FLAGS.delta,
                    num_draws=FLAGS.draws,
                    reporting=command_line.reporting(),
                ).to_dict()
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the audit could not be run: {error!r}") from error
        if "claimed" in values:
            print(
                f"  epsilon at delta {values['delta']:g}: claimed {values['claimed']:.4g}, at "
                f"least {values['lower_bound']:.4g} by {values['num_draws']:,} draws for "
                f"{values['neighbors']} (confidence 99.9 %)"
            )
        print(values["outcome"].upper())
        ending = CODES.get(values["outcome"], 0)
        command_line.write_report(FLAGS.json, values)

    sys.argv[:2] = [f"pate audit {'run' if kind is None else 'mechanism'}"]
    guarded = command_line.guarded(main, FLAGS, {"num_draws": "draws"})
    try:
        command_line.run(guarded, define, RUN if kind is None else kind.__doc__)
    except SystemExit as end:
        # Exit code 1 is a violation's alone.
        code = COULD_NOT_RUN if end.code == command_line.USER_ERROR else end.code
        raise SystemExit(ending or code) from None


def run() -> None:
    """Runs the audit that the first argument names, with the arguments that follow it."""
    which = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if which.lstrip("-") in command_line.HELP:
        print(ABOUT)
    elif which == "run":
        _run_as(None)
    else:
        name = sys.argv[2] if len(sys.argv) > 2 else ""
        kind = MECHANISMS.get(name)
        if (
            which != "mechanism"
            or kind is None
            or ("draw" in kind.lacks and not kind.releases_feature_sums)
        ):
            names = ", ".join(sorted(MECHANISMS))
            print(f"error: expected run, or mechanism and one of {names}", file=sys.stderr)
            raise SystemExit(COULD_NOT_RUN)
        del sys.argv[2]
        _run_as(kind)
