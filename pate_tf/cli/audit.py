"""Audits what is claimed: `pate audit mechanism NAME`, `pate audit run`.

Exit code 0: passed. 1: a violation was found. 2: it could not be run, or has no power.
"""

import difflib
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from absl import flags

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import MECHANISMS
from pate_tf.audit import mechanism as audits
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core import artifacts

FLAGS = flags.FLAGS
VIOLATION, COULD_NOT_RUN = 1, 2
HELP: Final = ("help", "h", "helpfull", "helpshort")
ABOUT: Final = """\
Tries to break what is claimed; spends no budget and changes nothing of a run.

  pate audit mechanism NAME   draws for neighboring data sets through the real labeller
  pate audit run              verifies a run folder

`pate audit WHICH --help` has the flags. Exit code 0: passed; 1: a violation was found; 2: it could
not be run, or half the noise would not be caught either (no power)."""
RUN: Final = "Verifies a run folder: an allow-list of files, the ledger, the private records."


def _define_mechanism(kind: type[Mechanism]) -> None:
    """Defines the flags of an audit of a mechanism."""
    own_flags.define_parameters(kind)
    for name in own_flags.parameters(kind).values():
        command_line.shown_in_help(name, "mechanism")
    if "delta" not in FLAGS:
        flags.DEFINE_float("delta", audits.DEFAULT_DELTA, "Delta that the printed numbers hold at.")
    flags.DEFINE_float(
        "seconds",
        audits.DEFAULT_SECONDS,
        "About how long it may take; more time finds smaller errors.",
    )
    flags.DEFINE_integer("draws", None, "Draws for each data set instead of --seconds.")


def _audit_mechanism(kind: type[Mechanism]) -> Any:
    return audits.audit_mechanism(
        own_flags.chosen(kind),
        delta=FLAGS.delta,
        seconds=FLAGS.seconds,
        num_draws=FLAGS.draws,
        reporting=command_line.reporting(),
    )


def _define_run() -> None:
    flags.DEFINE_string(
        "owners_file", None, "The .npy file of the run with the owner of each private record."
    )


def _audit_run() -> Any:
    with command_line.quiet_start(FLAGS):
        from pate_tf.audit.run import audit_run
    if FLAGS.train_dir is None:
        raise command_line.FlagValueError("train_dir: expected the folder of a run, got none")
    return audit_run(
        pathlib.Path(FLAGS.train_dir),
        owners_file=command_line.path(FLAGS.owners_file),
        reporting=command_line.reporting(),
    )


def _print(found: Mapping[str, Any]) -> None:
    """Prints what an audit found."""
    for check in found["checks"]:
        print(f"  {check['outcome'].ljust(11)}  {check['name']}: {check['found']}")
        if check["blind_spot"]:
            print(f"  {''.ljust(11)}  can't see: {check['blind_spot']}")
    if "claimed" in found:
        print(
            f"  epsilon at delta {found['delta']:g}: claimed {found['claimed']:.4g}, at least "
            f"{found['lower_bound']:.4g} by what was observed (confidence 99.9 %)"
        )
        caught = "caught" if found["control_caught"] else "NOT caught: give it more --seconds"
        print(f"  control: the same with half the noise was {caught}")
    sensitive = " (SENSITIVE: do not publish)" if found["audit"] == "run" else ""
    print(f"{found['outcome'].upper()} after {found['seconds']:.0f} s{sensitive}")


def _write(found: Mapping[str, Any]) -> None:
    """Writes what was found to --json, else below the run's `sensitive/audit`."""
    path = FLAGS.json
    if path is None and FLAGS.train_dir is not None:
        sensitive = pathlib.Path(FLAGS.train_dir) / artifacts.SENSITIVE
        name = "_".join(
            [found["audit"], *([found["mechanism"]["name"]] if "claimed" in found else [])]
        )
        if sensitive.is_dir():
            path = str(artifacts.make_sensitive_folder(sensitive / "audit") / f"{name}.json")
    if path is not None:
        command_line.write_report(path, found)
        print(f"written: {path}")


def _run_as(which: str, audit: Callable[[], Any], define: Callable[[], None], about: str) -> None:
    is_violation = False

    def define_all() -> None:
        flags.DEFINE_string("train_dir", None, "Folder of the run, where `pate report` finds this.")
        define()
        flags.DEFINE_string("json", None, "Where to write what was found, as JSON.")
        for name in ("train_dir", "owners_file", "delta", "seconds", "draws"):
            if name in FLAGS:
                command_line.shown_in_help(name, "audit")
        command_line.shown_in_help("json", "output")

    def main() -> None:
        nonlocal is_violation
        if FLAGS.json is not None:
            command_line.check_report_file(FLAGS.json)
        try:
            found = audit().to_dict()
        except KeyboardInterrupt:
            print("\nerror: stopped; nothing was charged or written", file=sys.stderr)
            raise SystemExit(command_line.INTERRUPTED) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the audit could not be run: {error!r}") from error
        _print(found)
        is_violation = found["outcome"] == audits.VIOLATION
        _write(found)
        if found["outcome"] == audits.NO_POWER:
            raise SystemExit(COULD_NOT_RUN)

    sys.argv[:2] = [f"pate audit {which}"]
    guarded = command_line.guarded(main, FLAGS, {"num_draws": "draws"})
    try:
        command_line.run(guarded, define_all, about)
    except SystemExit as end:
        # Exit code 1 is a violation's alone.
        code = COULD_NOT_RUN if end.code == command_line.USER_ERROR else end.code
        raise SystemExit(VIOLATION if is_violation else code) from None


def run() -> None:
    """Runs the audit that the first argument names, with the arguments that follow it."""
    which = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if which.lstrip("-") in HELP:
        print(ABOUT)
    elif which == "run":
        _run_as(which, _audit_run, _define_run, RUN)
    elif which != "mechanism":
        _end(f"expected an audit of mechanism or run, got {which!r}")
    else:
        name = sys.argv[2] if len(sys.argv) > 2 else ""
        names = sorted(
            name
            for name, kind in MECHANISMS.items()
            if "draw" not in kind.lacks or kind.releases_feature_sums
        )
        if name.lstrip("-") in (*HELP, ""):
            print(f"usage: pate audit mechanism NAME [--flag=value ...]\nNAME: {', '.join(names)}")
            raise SystemExit(0 if name else COULD_NOT_RUN)
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"; did you mean {nearest[0]}?" if nearest else ""
            _end(f"expected a mechanism of {', '.join(names)}, got {name!r}{meant}")
        kind = MECHANISMS[name]
        del sys.argv[2]
        about = kind.__doc__ or name
        _run_as(which, lambda: _audit_mechanism(kind), lambda: _define_mechanism(kind), about)


def _end(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(COULD_NOT_RUN)


if __name__ == "__main__":
    run()
