"""What the commands share: starting, ending well, tables, progress bars, reports."""

import os
import pathlib
import re
import sys
import textwrap
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from absl import app, flags

from pate_tf.core import artifacts
from pate_tf.core.reporting import Reporting, ReportTable
from pate_tf.ledger import LedgerError, LedgerWarning

# Flags of the first release that a command does not have any more.


GONE = (
    *("epochs_per_decay", "dropout_seed", "log_device_placement", "too_small"),
    *("teachers_max_steps", "nb_labels", "moments", "noise_eps"),  # some are other commands' still
)


def hint(error: Exception) -> str:
    """Returns what to add to an error about an unknown flag, if it is one of those."""
    if getattr(error, "flagname", "") not in GONE:
        return ""
    return "; docs/how-to/first_release.md says what became of the first release's flags"


# The help of a command: its flags by groups, in the order of use.

_HELP: dict[str, dict[str, bool]] = {}  # whether a flag is advanced, by heading and name
_ORDER = ("flags", "data", "method", "privacy", "queries", "student", "output")  # others follow
_WIDTH = 96


def shown_in_help(flag: str, group: str, *, advanced: bool = False) -> None:
    """Puts a flag below a heading of `--help`; an advanced one stands in `--helpfull` alone."""
    if not any(flag in names for names in _HELP.values()):
        _HELP.setdefault(group, {})[flag] = advanced


def print_help(description: str, *, full: bool) -> None:
    """Prints what a command does and its flags by groups.

    Args:
        description: of the command.
        full: whether to print advanced flags too, and those of absl by name.
    """
    print(description.strip())
    hidden = 0
    places = {group: place for place, group in enumerate(dict.fromkeys((*_ORDER, *_HELP)))}
    for group, names in sorted(_HELP.items(), key=lambda item: places[item[0]]):
        shown = [name for name, advanced in names.items() if full or not advanced]
        hidden += len(names) - len(shown)
        if shown:
            print(f"\n{group}:")
        for name in shown:
            print(f"  --{name}{_value_of(flags.FLAGS[name])}")
            text = _with_default(flags.FLAGS[name])
            print(textwrap.fill(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6))
    if hidden:
        print(f"\n{hidden} more: --helpfull")


def _value_of(flag: Any) -> str:
    """Returns what follows a flag's name in its help."""
    if flag.boolean:
        return ""
    if choices := getattr(flag.parser, "enum_values", None):
        return f"={'|'.join(choices)}"
    return "=" + {"int": "N", "float": "NUMBER", "string": "TEXT"}.get(flag.flag_type(), "A,B,...")


def _with_default(flag: Any) -> str:
    """Returns a flag's help with its default, where it has one and does not say so itself."""
    # absl puts an enum's values in front of its help; they stand behind the name here.
    help_text = re.sub(r"^<[^>]*>: ", "", flag.help)
    if flag.default in (None, "", [], False) or "Default:" in help_text:
        return help_text
    default = ",".join(flag.default) if isinstance(flag.default, list) else flag.default
    return f"{help_text} Default: {default}."


# What a command shows while it works: bars and a clock; without a terminal, lines.

SECONDS_A_LINE = 30.0


@contextmanager
def progress_bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar on a terminal, elsewhere a line now and then.

    Yields:
        A function to call with how many more are done.
    """
    from tqdm import tqdm

    done, said = 0, time.monotonic()
    # disable=None: tqdm's word for "only on a terminal".
    with tqdm(total=total, desc=description, unit=unit, disable=None) as bar:

        def advance(count: int) -> None:
            nonlocal done, said
            done += count
            if bar.disable and done < total and time.monotonic() - said >= SECONDS_A_LINE:
                said = time.monotonic()
                print(f"{description}: {done:,} of {total:,}", file=sys.stderr, flush=True)
            bar.update(count)
            if bar.n >= total:
                bar.close()  # what comes next may have a bar of its own

        yield advance


@contextmanager
def clock(description: str) -> Iterator[None]:
    """Shows how long something takes that can't say how far it is: without a terminal, in lines."""
    from tqdm import tqdm

    done = threading.Event()

    def tick(bar: Any) -> None:
        began = said = time.monotonic()
        while not done.wait(min(1.0, SECONDS_A_LINE)):
            bar.refresh()
            if bar.disable and time.monotonic() - said >= SECONDS_A_LINE:
                said = time.monotonic()
                print(f"{description}: {said - began:.0f} s", file=sys.stderr, flush=True)

    with tqdm(desc=description, bar_format="{desc}: {elapsed}", disable=None, leave=False) as bar:
        thread = threading.Thread(target=tick, args=(bar,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


LONGEST_WORD = 400  # of a message; what is longer, such as a path, is cut
USER_ERROR, FLAG_ERROR, INTERRUPTED = 1, 2, 130
# Packages that come with an extra, and which.
EXTRAS = {
    **dict.fromkeys(("cryptography", "grpc", "grpc_health"), "silos"),
    **dict.fromkeys(("apache_beam", "pyarrow"), "beam"),
}


def run(
    main: Callable[[list[str]], None], define_flags: Callable[[], None], description: str | None
) -> None:
    """Defines a command's flags, reads them, runs it; a wrong flag is one line and exit code 2.

    Args:
        main: the command, called with what is left of the arguments.
        define_flags: defines its flags.
        description: what `--help` prints above them.
    """
    known = set(flags.FLAGS)
    define_flags()
    for name in flags.FLAGS:
        if name not in known:
            shown_in_help(name, "flags")
            # `--helpxml` tells the flags of the program that was started, whatever file has them.
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    sys.modules["__main__"].__doc__ = description
    app.run(main, flags_parser=parse_flags(flags.FLAGS, flags.Error))


def parse_flags(parse: Callable[[list[str]], list[str]], error: type[Exception]) -> Any:
    """Returns a flags parser for `absl.app.run` that ends with exit code 2 and one clear line.

    Args:
        parse: `flags.FLAGS`.
        error: `flags.Error`.
    """

    def parser(arguments: list[str]) -> list[str]:
        asked = {argument.lstrip("-") for argument in arguments[1:] if argument.startswith("-")}
        if asked & {"help", "h", "helpfull", "helpshort"}:
            try:
                print_help(sys.modules["__main__"].__doc__ or "", full="helpfull" in asked)
                sys.stdout.flush()
            except BrokenPipeError:  # a pager or `head` has read enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        try:
            rest = parse(arguments)
        except error as reason:
            _fail(f"{reason}{hint(reason)}", FLAG_ERROR)
        if len(rest) > 1:
            _fail(f"expected flags only, got {' '.join(rest[1:])!r}", FLAG_ERROR)
        return rest

    return parser


def path(text: str | None) -> pathlib.Path | None:
    """Returns the path that a flag names; None where it names none."""
    return pathlib.Path(text) if text else None


class FlagValueError(ValueError):
    """A flag has a value that its setting can't have; ends a command with exit code 2."""


def in_flags(message: str, flag_of_argument: Mapping[str, str]) -> str:
    """Returns an error's message in the words of who typed flags.

    Args:
        message: of the library; begins with the argument that is wrong and a colon, and has further
            arguments in backticks.
        flag_of_argument: the flag that sets an argument, where they have different names.
    """
    argument, colon, rest = message.partition(":")
    for name, flag in flag_of_argument.items():
        rest = rest.replace(f"`{name}`", f"--{flag}")
    return flag_of_argument.get(argument, argument) + colon + rest


def guarded(
    main: Callable[[], None],
    flag_values: Any,
    flag_of_argument: Mapping[str, str] = types.MappingProxyType({}),
) -> Callable[[list[str]], None]:
    """Wraps a script's main function: a user's mistake ends in one line and exit code 1.

    Args:
        main: the script.
        flag_values: `flags.FLAGS`; unless `--verbosity` was given, only warnings are logged.
        flag_of_argument: see `in_flags`.
    """

    def run(arguments: list[str]) -> None:
        del arguments
        if not flag_values["verbosity"].present:
            flag_values["verbosity"].value = -1  # absl.logging.WARNING
        try:
            with _warnings_of_ledgers(flag_of_argument):
                main()
        except KeyboardInterrupt:
            _fail("stopped; the same command goes on from here", INTERRUPTED)
        except FlagValueError as error:
            _fail(in_flags(str(error), flag_of_argument), FLAG_ERROR)
        except (ValueError, OSError, LedgerError) as error:
            if error.__cause__ is not None and flag_values.verbosity > 0:
                traceback.print_exception(error.__cause__)
            _fail(in_flags(_in_words(error), flag_of_argument), USER_ERROR)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            _fail(
                f"expected the package {package} to be installed: pip install "
                f"'pate_tf[{EXTRAS[package]}]'",
                USER_ERROR,
            )
        except MemoryError:
            _fail("out of memory", USER_ERROR)
        except Exception as error:
            # TensorFlow reports a full disk or exhausted device memory by classes of its own, and
            # pathlib a loop of links as a RuntimeError.
            is_of_tensorflow = type(error).__module__.startswith("tensorflow.")
            if not (is_of_tensorflow or str(error).startswith("Symlink loop")):
                raise
            _fail(str(error), USER_ERROR)

    return run


@contextmanager
def _warnings_of_ledgers(flag_of_argument: Mapping[str, str]) -> Iterator[None]:
    """Prints warnings in one line each, once, those of a ledger always."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", LedgerWarning)
        otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            text = in_flags(" ".join(str(message).split()), flag_of_argument)
            if not issubclass(category, UserWarning):
                otherwise(message, category, *rest, **named)
            elif text not in shown:
                shown.add(text)
                print(f"warning: {text}", file=sys.stderr)

        warnings.showwarning = show
        yield


def _fail(message: str, code: int) -> None:
    words = [_shortened(word) for word in message.split()]
    print(f"error: {' '.join(words)}", file=sys.stderr)
    raise SystemExit(code)


def _shortened(word: str) -> str:
    if len(word) <= LONGEST_WORD:
        return word
    half = LONGEST_WORD // 4
    return f"{word[:half]}...{word[-half:]} ({len(word)} characters)"


@contextmanager
def quiet_start(flag_values: Any) -> Iterator[None]:
    """Hides what TensorFlow's libraries write to the terminal while they are imported.

    They do so before any log level applies. `--verbosity` of 0 or more shows it.

    Args:
        flag_values: `flags.FLAGS`.
    """
    if flag_values.verbosity >= 0:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)


def note(text: str) -> None:
    """Prints what the user did not ask for and should know."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Prints what the user should heed to standard error, in one line."""
    print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


def reporting(*, verbose: bool = False) -> Reporting:
    """Returns how a command shows its progress; `verbose` for Keras' bars too."""
    return Reporting(clock=clock, progress_bar=progress_bar, note=note, warn=warn, verbose=verbose)


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints two columns under a title."""
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name.ljust(width)}  {value}")


def print_sensitive_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints a table of what may not be published: red on a terminal."""
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        print("\x1b[31m", end="")
    try:
        print_table(title, rows)
    finally:
        if is_terminal:
            print("\x1b[0m", end="", flush=True)


def print_titled(table: ReportTable) -> None:
    """Prints a table of a run, with flags in the place of arguments."""
    if table.lines:
        print(f"\n{table.title}")
        print("\n".join(table.lines))
        return
    rows = [(name, re.sub(r"`(\w+=\w+)`", r"--\1", value)) for name, value in table.rows]
    (print_sensitive_table if table.is_sensitive else print_table)(table.title, rows)


def _in_words(error: Exception) -> str:
    """What went wrong; of the system's own errors the file first, and no number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


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
        artifacts.check_can_hold_files(file.parent)
        is_wrong = file.is_dir()
    except (ValueError, OSError):
        is_wrong = True
    if is_wrong:
        raise ValueError(f"report_file: expected a file that can be written, got {path}")


def write_report(path: str | None, values: Mapping[str, Any]) -> None:
    """Writes what a script printed as JSON.

    Raises:
        ValueError: if the file would lie in a `released/` folder: reports hold sensitive numbers.
    """
    check_report_file(path)
    if path is None:
        return
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(file, values, private=True)
