"""Audits what is claimed: `pate audit mechanism NAME`, `pate audit run`, `pate audit canaries`.

Exit code 0: passed. 1: a violation was found. 2: it could not be run, or has no power.
"""

import dataclasses
import difflib
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from absl import flags

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import MECHANISMS, Flag
from pate_tf.audit import mechanism as mechanism_audit
from pate_tf.cli import command_line
from pate_tf.core import artifacts

FLAGS = flags.FLAGS
VIOLATION, COULD_NOT_RUN = 1, 2
ABOUT: Final = """\
Tries to break what is claimed; spends no budget and changes nothing of a run.

  pate audit mechanism NAME   draws for neighbouring data sets through the real labeller
  pate audit run              recomputes and compares what a run folder holds
  pate audit canaries         puts records of the worst kind among the private data

`pate audit WHICH --help` has the flags. Exit code 0: passed; 1: a violation was found; 2: it could
not be run, or half the noise would not be caught either (no power)."""


def _define_output() -> None:
    flags.DEFINE_string("json", None, "Where to write what was found, as JSON.")
    flags.DEFINE_string("page", None, "Where to write it as an HTML page with a plot.")
    for name in ("json", "page"):
        command_line.shown_in_help(name, "output")


def _define_mechanism(kind: type[Mechanism]) -> Callable[[], None]:
    """Returns what defines the flags of an audit of a mechanism."""

    def define() -> None:
        for parameter in kind.parameters:
            _define_parameter(parameter.flag)
        for field in _planned_fields(kind):
            define = flags.DEFINE_integer if field.type == "int" else flags.DEFINE_float
            define(field.name, None, "Field of the mechanism, which a run plans.")
            command_line.shown_in_help(field.name, "mechanism")
        if "delta" not in FLAGS:
            flags.DEFINE_float(
                "delta", mechanism_audit.DEFAULT_DELTA, "Delta that the printed numbers hold at."
            )
        flags.DEFINE_float(
            "seconds",
            mechanism_audit.DEFAULT_SECONDS,
            "About how long it may take; more time finds smaller errors.",
        )
        flags.DEFINE_integer("draws", None, "Draws for each data set instead of --seconds.")
        flags.DEFINE_string(
            "train_dir", None, "A run folder whose `pate report` is to name this audit."
        )
        for name in ("delta", "seconds", "draws", "train_dir"):
            command_line.shown_in_help(name, "audit")
        _define_output()

    return define


def _define_parameter(flag: Flag) -> None:
    text = f"{flag.help} Default: {flag.default:g}."
    if flag.is_whole:
        flags.DEFINE_integer(flag.name, None, text, lower_bound=0)
    else:
        flags.DEFINE_float(flag.name, None, text)
    command_line.shown_in_help(flag.name, "mechanism")


def _planned_fields(kind: type[Mechanism]) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a mechanism that has no flags elsewhere, as a run plans them."""
    known = {parameter.field for parameter in kind.parameters}
    fields = dataclasses.fields(kind) if "flags" in kind.lacks else ()
    return [one for one in fields if one.name not in known]


def _chosen(kind: type[Mechanism]) -> Mechanism:
    values = {}
    for field in _planned_fields(kind):
        said = FLAGS[field.name].value
        if said is not None:
            values[field.name] = said
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{field.name}: expected a number, got none")
    for parameter in kind.parameters:
        flag = parameter.flag
        said = FLAGS[flag.name].value
        if said is None:
            others = {flag.same_as: FLAGS[flag.same_as].value} if flag.same_as in FLAGS else {}
            said = flag.by_default(others) if others or not flag.same_as else flag.default
        elif flag.is_inverse and not said > 0.0:
            raise ValueError(f"{flag.name}: expected above 0, got {said}")
        values[parameter.field] = flag.to_field(said)
    return kind(**values)


def _audit_mechanism(kind: type[Mechanism]) -> Any:
    return mechanism_audit.audit_mechanism(
        _chosen(kind),
        delta=FLAGS.delta,
        seconds=FLAGS.seconds,
        num_draws=FLAGS.draws,
        reporting=command_line.reporting(),
    )


def _define_run() -> None:
    flags.DEFINE_string("train_dir", None, "Folder of the run.")
    flags.DEFINE_integer(
        "teachers",
        10,
        "How many teachers, at random, are trained again.",
        lower_bound=1,
    )
    flags.DEFINE_string(
        "owners_file", None, "The .npy file of the run with the owner of each private record."
    )
    for name in ("train_dir", "teachers", "owners_file"):
        command_line.shown_in_help(name, "audit")
    _define_output()


def _audit_run() -> Any:
    with command_line.quiet_start(FLAGS):
        from pate_tf.audit.run import audit_run
    owners = FLAGS.owners_file
    return audit_run(
        _train_dir(),
        owners_file=None if owners is None else command_line.path(owners),
        num_teachers=FLAGS.teachers,
        reporting=command_line.reporting(),
    )


def _define_canaries() -> None:
    flags.DEFINE_string("train_dir", None, "Folder of the run; its files are only read.")
    flags.DEFINE_integer("canaries", 400, "Canaries of a run, each in by a coin.", lower_bound=20)
    flags.DEFINE_integer(
        "reruns",
        20_000,
        "How often noise is drawn anew with one canary, and without it.",
        lower_bound=1_600,
    )
    for name in ("train_dir", "canaries", "reruns"):
        command_line.shown_in_help(name, "audit")
    _define_output()


def _audit_canaries() -> Any:
    with command_line.quiet_start(FLAGS):
        from pate_tf.audit.canaries import audit_canaries
    return audit_canaries(
        _train_dir(),
        num_canaries=FLAGS.canaries,
        num_reruns=FLAGS.reruns,
        reporting=command_line.reporting(),
    )


def _train_dir() -> pathlib.Path:
    if FLAGS.train_dir is None:
        raise command_line.FlagValueError("train_dir: expected the folder of a run, got none")
    return pathlib.Path(FLAGS.train_dir)


def _check_output() -> None:
    for name in ("json", "page"):
        if FLAGS[name].value is not None:
            command_line.check_report_file(FLAGS[name].value)


def _print(found: Mapping[str, Any]) -> None:
    """Prints what an audit found."""
    for one in found["checks"]:
        print(f"  {one['outcome'].ljust(11)}  {one['name']}: {one['found']}")
        if one["blind_spot"]:
            print(f"  {''.ljust(11)}  can't see: {one['blind_spot']}")
    if "claimed" in found and found["claimed"] is not None:
        print(
            f"  epsilon at delta {found['delta']:g}: claimed {found['claimed']:.4g}, at least "
            f"{found['lower_bound']:.4g} by what was observed (confidence 99.9 %)"
        )
    if "true_positive_rate" in found:
        print(
            f"  one canary: claimed {found['rerun_claimed']:.4g}, at least "
            f"{found['rerun_lower_bound']:.4g}; {found['true_positive_rate']:.2%} of the draws "
            f"with it are found at a false positive rate of .1 %"
        )
    if "control_caught" in found:
        caught = "caught" if found["control_caught"] else "NOT caught: give it more --seconds"
        print(f"  control: the same with half the noise was {caught}")
    print(f"{found['outcome'].upper()} after {found['seconds']:.0f} s")


def _write(found: Mapping[str, Any]) -> None:
    folder = None
    if FLAGS.train_dir is not None:
        root = pathlib.Path(FLAGS.train_dir)
        if (root / artifacts.SENSITIVE).is_dir():
            folder = artifacts.make_sensitive_folder(root / artifacts.SENSITIVE / "audit")
    name = "_".join(
        [str(found["audit"]), *([found["mechanism"]["name"]] if "mechanism" in found else [])]
    )
    places = {
        "json": FLAGS.json or (folder and str(folder / f"{name}.json")),
        "page": FLAGS.page or (folder and str(folder / f"{name}.html")),
    }
    from pate_tf.audit.page import audit_page

    if places["json"]:
        command_line.write_report(places["json"], found)
    if places["page"]:
        path = pathlib.Path(places["page"])
        path.parent.mkdir(parents=True, exist_ok=True)
        artifacts.write_text(path, audit_page(found), private=True)
    for one in places.values():
        if one:
            print(f"written: {one}")


def _main(audit: Callable[[], Any]) -> Callable[[], None]:
    def main() -> None:
        _check_output()
        try:
            found = audit().to_dict()
        except KeyboardInterrupt:
            print("\nerror: stopped; nothing was charged or written", file=sys.stderr)
            raise SystemExit(command_line.INTERRUPTED) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            # A run that was tampered with may break anything; that is no violation of its own.
            raise ValueError(f"the audit could not be run: {error!r}") from error
        _print(found)
        _write(found)
        if found["outcome"] == mechanism_audit.VIOLATION:
            raise _Violation
        if found["outcome"] == mechanism_audit.NO_POWER:
            raise SystemExit(COULD_NOT_RUN)

    return main


class _Violation(SystemExit):
    """Ends the command with exit code 1, which an error of its user does not have here."""


def _run_as(
    which: str, audit: Callable[[], Any], define: Callable[[], None], description: str | None
) -> None:
    sys.argv[:2] = [f"pate audit {which}"]
    guarded = command_line.guarded(_main(audit), FLAGS, {"num_draws": "draws"})
    try:
        command_line.run(guarded, define, description)
    except _Violation:
        raise SystemExit(VIOLATION) from None
    except SystemExit as end:
        raise SystemExit(COULD_NOT_RUN if end.code == command_line.USER_ERROR else end.code) from (
            None
        )


def run() -> None:
    """Runs the audit that the first argument names, with the arguments that follow it."""
    which = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if which.lstrip("-") in ("help", "h", "helpfull", "helpshort"):
        print(ABOUT)
        return
    if which == "mechanism":
        name = sys.argv[2] if len(sys.argv) > 2 else ""
        names = sorted(
            name
            for name, kind in MECHANISMS.items()
            if "draw" not in kind.lacks or kind.releases_feature_sums
        )
        if name.lstrip("-") in ("help", "h", "helpfull", "helpshort", ""):
            print(f"usage: pate audit mechanism NAME [--flag=value ...]\nNAME: {', '.join(names)}")
            raise SystemExit(0 if name else COULD_NOT_RUN)
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"; did you mean {nearest[0]}?" if nearest else ""
            _end(f"expected a mechanism of {', '.join(names)}, got {name!r}{meant}")
        kind = MECHANISMS[name]
        del sys.argv[2]
        _run_as(which, lambda: _audit_mechanism(kind), _define_mechanism(kind), kind.__doc__)
    elif which == "run":
        _run_as(which, _audit_run, _define_run, "Recomputes and compares what a run folder holds.")
    elif which == "canaries":
        text = "Puts records of the worst kind among the private data of a run, in memory."
        _run_as(which, _audit_canaries, _define_canaries, text)
    else:
        _end(f"expected an audit of mechanism, run, canaries, got {which!r}")


def _end(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(COULD_NOT_RUN)


if __name__ == "__main__":
    run()
