"""What the commands share: starting, ending well, tables, reports."""

import functools
import os
import pathlib
import re
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags
from tqdm import tqdm

from pate_tf.accounting.planning import ForecastError
from pate_tf.core import artifacts
from pate_tf.core.environment import check_environment, prepare_start_of_tensorflow
from pate_tf.core.reporting import LINE_SECONDS, Reporting, clock
from pate_tf.core.validation import ITEM
from pate_tf.ledger import LedgerError

LONGEST_MESSAGE = 900
CLOCK_LINE = "{desc}: {elapsed}\n"
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}, {remaining} left\n"
USER_ERROR, FLAG_ERROR, LEDGER_ERROR, NOT_WORTH_ITS_COST, INTERRUPTED = 1, 2, 3, 4, 130
# Flags of the first release that a command does not have any more.
GONE = (
    *("epochs_per_decay", "dropout_seed", "log_device_placement", "too_small"),
    *("teachers_max_steps", "nb_labels", "moments", "noise_eps"),  # some are other commands' still
)
HELP = ("help", "h", "helpfull", "helpshort")  # what asks for it, less the dashes
# How the system, TensorFlow and SQLite say that a disk is full, or a quota.
FULL_DISK = ("No space left on device", "Disk quota exceeded", "File too large", "disk is full")
# Packages that come with an extra, and which.
EXTRAS = {**dict.fromkeys(("cryptography", "grpc", "grpc_health"), "silos"), "apache_beam": "beam"}

# The help of a command: its flags by groups, in the order of use.

_HELP: dict[str, dict[str, bool]] = {}  # whether a flag is advanced, by heading and name
_ORDER = ("flags", "data", "method", "privacy", "queries", "student", "output")  # others follow


def shown_in_help(flag: str, group: str, *, advanced: bool = False) -> None:
    """Puts a flag below a heading of `--help`; an advanced one stands in `--helpfull` alone."""
    if not any(flag in names for names in _HELP.values()):
        _HELP.setdefault(group, {})[flag] = advanced


def print_help(description: str, *, full: bool) -> None:
    """Prints what a command does and its flags by groups.

    Args:
        description: of the command.
        full: whether to print advanced flags too.
    """
    print(description.strip())
    for group in dict.fromkeys((*_ORDER, *_HELP)):
        names = [
            name for name, is_advanced in _HELP.get(group, {}).items() if full or not is_advanced
        ]
        if names:
            print(f"\n{group}:")
        for name in names:
            flag: Any = flags.FLAGS[name]
            choices = getattr(flag.parser, "enum_values", None)
            value = "|".join(choices) if choices else flag.flag_type()
            # absl puts an enum's values in front of its help; they stand behind the name here.
            text = re.sub(r"^<[^>]*>: ", "", flag.help)
            if flag.default not in (None, "", [], False) and "Default:" not in text:
                text += f" Default: {flag.default_as_str.strip(chr(39))}."
            print(f"  --{name}" + ("" if flag.boolean else f"={value}"))
            # A line for each value that the text explains, and for the default.
            for line in re.split(r"(?<=[.;]) (?=(?:Default|[a-z][\w:, ]*): )", text):
                print(textwrap.fill(line, 96, initial_indent=" " * 6, subsequent_indent=" " * 6))
    if not full:
        print("\nmore: --helpfull")


def run(
    main: Callable[[list[str]], None], define_flags: Callable[[], None], description: str | None
) -> None:
    """Defines a command's flags, reads them, runs it; a wrong flag is one line and exit code 2.

    Args:
        main: the command, called with what is left of the arguments.
        define_flags: defines its flags.
        description: what `--help` prints above them.
    """
    before = set(flags.FLAGS)
    define_flags()
    defined = set(flags.FLAGS) - before
    for name in flags.FLAGS:
        if name in defined:
            shown_in_help(name, "flags")
            # `--helpxml` lists the flags of the program that was started, whatever file has them.
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    sys.modules["__main__"].__doc__ = description
    try:
        app.run(main, flags_parser=parse_flags)
    finally:
        for name in defined:  # of a process that runs several commands
            delattr(flags.FLAGS, name)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses flags for `absl.app.run`; a mistake ends with exit code 2 and one clear line."""
    names = {argument.lstrip("-") for argument in arguments[1:] if argument.startswith("-")}
    if names.intersection(HELP):
        try:
            print_help(sys.modules["__main__"].__doc__ or "", full="helpfull" in names)
            sys.stdout.flush()
        except BrokenPipeError:  # a pager or `head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    try:
        others: list[str] = flags.FLAGS(arguments)
    except flags.Error as error:
        hint = ""
        if getattr(error, "flagname", "") in GONE:
            hint = "; docs/how-to/first_release.md says what became of the first release's flags"
        _fail(f"{error}{hint}", FLAG_ERROR)
    if len(others) > 1:
        _fail(f"expected flags only, got {' '.join(others[1:])!r}", FLAG_ERROR)
    return others


def path(text: str | None) -> pathlib.Path | None:
    """Returns the path that a flag names; None where it names none."""
    return pathlib.Path(text) if text else None


class FlagValueError(ValueError):
    """A flag has a value that its setting can't have; ends a command with exit code 2."""


def in_flags(message: str, flag_of_argument: Mapping[str, str]) -> str:
    """Returns an error's message in the words of who typed flags.

    Args:
        message: of the library; begins with the argument that is wrong and a colon, and has further
            arguments in backticks, such as `name` or `name=value`.
        flag_of_argument: the flag that sets an argument, where they have different names.
    """
    for name, flag in {**dict.fromkeys(flags.FLAGS), **flag_of_argument}.items():
        message = re.sub(rf"`{re.escape(name)}(=\w+)?`", rf"--{flag or name}\1", message)
    argument, colon, text = message.partition(":")
    return flag_of_argument.get(argument, argument) + colon + text


def guarded(
    main: Callable[[], None],
    flag_values: Any,
    flag_of_argument: Mapping[str, str] = types.MappingProxyType({}),
) -> Callable[[list[str]], None]:
    """Wraps a command's main function: a user's mistake ends in one line and exit code 1.

    Warnings are one line each, once.

    Args:
        main: the command.
        flag_values: `flags.FLAGS`; unless `--verbosity` was given, only warnings are logged.
        flag_of_argument: see `in_flags`.
    """

    def run(arguments: list[str]) -> None:
        del arguments
        if not flag_values["verbosity"].present:
            flag_values["verbosity"].value = -1  # absl.logging.WARNING
        prepare_start_of_tensorflow(is_shown=flag_values.verbosity >= 0, is_command=True)
        message, code = "", USER_ERROR
        try:
            check_environment()
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                show = functools.cache(warn)  # as "once" forgets when filters change
                warnings.showwarning = lambda message, *_, **__: show(
                    in_flags(str(message), flag_of_argument)
                )
                main()
            return
        except KeyboardInterrupt:
            message, code = "stopped; the same command resumes from here", INTERRUPTED
        except FlagValueError as error:
            message, code = str(error), FLAG_ERROR
        except ForecastError as error:
            message, code = str(error), NOT_WORTH_ITS_COST
        except (ValueError, OSError, LedgerError) as error:
            if error.__cause__ is not None and flag_values.verbosity > 0:
                traceback.print_exception(error.__cause__)
            message, code = str(error), LEDGER_ERROR if isinstance(error, LedgerError) else code
            if isinstance(error, OSError) and error.filename is not None and error.strerror:
                message = f"{error.filename}: {error.strerror}"
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            extra = f"pip install 'pate_tf[{EXTRAS[package]}]'"
            message = f"expected the package {package} to be installed: {extra}"
        except MemoryError:
            message = "out of memory"
        except Exception as error:
            # TensorFlow reports a full disk or exhausted device memory by classes of its own, and
            # pathlib a loop of links as a RuntimeError.
            is_of_tensorflow = type(error).__module__.startswith("tensorflow.")
            if not (is_of_tensorflow or str(error).startswith("Symlink loop")):
                raise
            message = str(error)
        if any(text in message for text in FULL_DISK):
            message += "; free some space there and run the same command again: it resumes"
        _fail(in_flags(message, flag_of_argument), code)

    return run


def _fail(message: str, code: int) -> None:
    lines = [" ".join(line.split())[:LONGEST_MESSAGE] for line in message.split(ITEM)]
    print(f"error: {ITEM.join(lines)}", file=sys.stderr)
    raise SystemExit(code)


# Prints what the user did not ask for and should know.
note: Callable[[str], None] = functools.partial(print, flush=True)


def warn(text: str) -> None:
    """Prints what the user should heed to standard error, in one line."""
    print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


def reporting(*, verbose: bool = False) -> Reporting:
    """Returns how a command shows its progress: bars on a terminal, `verbose` for Keras' too.

    Elsewhere a line every half minute, of what takes longer.
    """
    bars: Any = {"clock": clock, "progress_bar": tqdm}
    if not sys.stderr.isatty():
        seldom: dict[str, Any] = dict.fromkeys(
            ("mininterval", "maxinterval", "delay"), LINE_SECONDS
        )
        seldom["leave"] = False
        bars = {
            "clock": functools.partial(
                clock, seconds=LINE_SECONDS, bar_format=CLOCK_LINE, **seldom
            ),
            "progress_bar": functools.partial(tqdm, bar_format=LINE, **seldom),
        }
    return Reporting(**bars, note=note, warn=warn, verbose=verbose)


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints two columns under a title."""
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name.ljust(width)}  {value}")


def check_report_file(path: str | None) -> None:
    """Checks where a report is to go, before anything is done that can't be undone.

    Raises:
        ValueError: if the file would lie in a `released/` folder, since reports hold sensitive
            numbers, or can't be written.
    """
    if path is None:
        return
    file = pathlib.Path(path)
    if artifacts.is_within(file, artifacts.RELEASED):
        raise ValueError(
            f"report_file: expected a path outside of released/, got {path}; "
            f"a report holds numbers that may not be published"
        )
    try:
        artifacts.RunDirectory(file.parent).check(files=[file.name], folders=[])
    except (ValueError, OSError) as error:
        raise ValueError(f"report_file: expected a file that can be written, got {path}") from error


def write_report(path: str | None, values: Mapping[str, Any]) -> None:
    """Writes what a command printed as JSON; see `check_report_file`."""
    check_report_file(path)
    if path is not None:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(pathlib.Path(path), values, private=True)
