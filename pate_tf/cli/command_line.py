"""Functions that all commands use: start, error messages, tables, reports and flags.

Flags are defined from the dataclasses of settings and from the registry of mechanisms.
"""

import contextlib
import dataclasses
import datetime
import difflib
import functools
import json
import logging
import os
import pathlib
import re
import sys
import textwrap
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from absl import app, flags
from tqdm import tqdm

from pate_tf.accounting.mechanisms import Mechanism, base
from pate_tf.cli.stopping import FLAG_ERROR, INTERRUPTED, RESUMES
from pate_tf.core import artifacts
from pate_tf.core.checks import GUIDE, ITEM
from pate_tf.core.environment import NO_MEMORY, check_environment, prepare_start_of_tensorflow
from pate_tf.core.reporting import LINE_SECONDS, Reporting, clock
from pate_tf.core.settings import FUNCTION, described, value_type
from pate_tf.data.data_source import FileSource
from pate_tf.ledger import LedgerError
from pate_tf.net.credentials import GIVE_UP_SECONDS
from pate_tf.net.health import CONTACT, Watch, serve_health
from pate_tf.planning.forecast import ForecastError

FLAGS = flags.FLAGS
Kind = TypeVar("Kind")

MAX_MESSAGE_LENGTH = 900
CLOCK_LINE = "{desc}: {elapsed}\n"
LOG_FIELDS = ("time", "level", "role", "name", "message")
HELP_TEXT = textwrap.TextWrapper(96, " " * 6, " " * 6, break_on_hyphens=False)
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {remaining} left{postfix}\n"
USER_ERROR = 1
LEDGER_ERROR = 3
NOT_WORTH_ITS_COST = 4
TRANSIENT = 75  # EX_TEMPFAIL of sysexits.h: the user should start the same command again
# Additional names of flags.
ALIASES = {"stdnt_share": "pool_size", "nb_teachers": "num_teachers", "nb_labels": "num_classes"}
RESULTS: list[str] = []  # JSON results of the running command, for `--json`
# Flags of the first release that were removed.
_GONE = (
    "epochs_per_decay dropout_seed log_device_placement too_small deeper teachers_max_steps "
    "nb_labels moments noise_eps"  # some of these still exist in other commands
)
GONE = _GONE.split()
HELP = ("help", "h", "helpfull", "helpshort")  # flags that print the help
# Each error message of the operating system, TensorFlow or SQLite about a full disk contains one of
# these texts.
FULL_DISK = ("No space left on device", "Disk quota exceeded", "File too large", "disk is full")
# Maps each optional package to the extra of pate_tf that installs it.
EXTRAS = {**dict.fromkeys(("cryptography", "grpc"), "silos"), "apache_beam": "beam"}

# The help of a command lists its flags by groups, in the order of use.

# Maps each heading to its flags. The value of a flag is whether it is advanced.
_HELP: dict[str, dict[str, bool]] = {}
# These headings come first, in this order. All other headings follow.
_ORDER = ("flags", "data", "method", "privacy", "queries", "student", "output")


def shown_in_help(flag: str, group: str, *, advanced: bool = False) -> None:
    """Lists a flag under a heading of `--help`. Advanced flags appear only in `--helpfull`."""
    if not any(flag in names for names in _HELP.values()):
        _HELP.setdefault(group, {})[flag] = advanced


def print_help(description: str, *, full: bool) -> None:
    """Prints the description of a command and its flags by group.

    Args:
        description: text that is printed above the flags.
        full: whether to print advanced flags, too.
    """
    print(description.strip())
    for group in dict.fromkeys((*_ORDER, *_HELP)):
        names = [
            name for name, is_advanced in _HELP.get(group, {}).items() if full or not is_advanced
        ]
        if names:
            print(f"\n{group}:")
        for name in names:
            flag: Any = FLAGS[name]
            choices = getattr(flag.parser, "enum_values", None)
            value = "|".join(choices) if choices else flag.flag_type()
            # absl prints the values of an enum flag before its help text. Here, they follow the
            # flag's name.
            text = re.sub(r"^<[^>]*>: ", "", flag.help)
            if flag.default not in (None, "", [], False) and "Default:" not in text:
                text += f" Default: {flag.default_as_str.strip(chr(39))}."
            print(f"  --{name}" + ("" if flag.boolean else f"={value}"))
            # Starts a new line for the explanation of each value, and for the default.
            for line in re.split(r"(?<=[.;]) (?=(?:Default|[a-z][\w:, ]*): )", text):
                print(HELP_TEXT.fill(line))
    if not full:
        print("\nmore: --helpfull")


def run(
    main: Callable[[list[str]], None], define_flags: Callable[[], None], description: str | None
) -> None:
    """Runs a command with its flags. If a flag is invalid, prints one line and exits with code 2.

    Args:
        main: function that runs the command. Its argument is the list of arguments without flags.
        define_flags: function that defines the flags of the command.
        description: text above the flags in `--help`.
    """
    before = set(FLAGS)
    define_flags()
    flags.DEFINE_boolean(
        "json", False, "Print the result as JSON to standard output, everything else to stderr."
    )
    shown_in_help("json", "output")
    defined = set(FLAGS) - before
    for name in FLAGS:
        if name in defined:
            shown_in_help(name, "flags")
            # `--helpxml` lists only flags that are registered for the started program.
            FLAGS.register_key_flag_for_module(sys.argv[0], FLAGS[name])
    sys.modules["__main__"].__doc__ = description
    try:
        app.run(main, flags_parser=parse_flags)
    finally:
        for name in defined:  # flags of this command, because a process may run several commands
            delattr(FLAGS, name)


def subcommand(names: Collection[str], description: str | None) -> str:
    """Removes the first argument of this process and returns it, if it is one of `names`.

    If it asks for help or is missing, prints the description instead, and ends the process.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name.lstrip("-") in HELP:
        print(description)
        raise SystemExit(0)
    if name not in names:
        needed = f"{sys.argv[0]} needs a command: {', '.join(names)}"
        _fail(f"{needed}. Got {name!r}", FLAG_ERROR)
    return sys.argv.pop(1)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parses flags for `absl.app.run`. If one is invalid, prints one line and exits with code 2."""
    names = {argument.lstrip("-") for argument in arguments[1:] if argument.startswith("-")}
    if names.intersection(HELP):
        try:
            print_help(sys.modules["__main__"].__doc__ or "", full="helpfull" in names)
            sys.stdout.flush()
        except BrokenPipeError:  # a pager or `head` closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    try:
        others: list[str] = FLAGS(arguments)
    except flags.Error as error:
        text = str(error).partition(". Did you mean")[0]  # absl may suggest its own flags
        name = getattr(error, "flagname", "")
        shown = [flag for group in _HELP.values() for flag in group if flag in FLAGS]
        if name:
            near = difflib.get_close_matches(name, shown, n=1)
            text += f". Did you mean: {near[0]} ?" if near else f". See `{arguments[0]} --help`"
        if name in GONE:
            text += f". See {GUIDE}/how-to/first_release.html for flags of the first release."
        _fail(text, FLAG_ERROR)
    if len(others) > 1:
        _fail(f"{' '.join(others[1:])!r} is not a flag. Flags look like --name=value.", FLAG_ERROR)
    return others


def path(text: str | None) -> pathlib.Path | None:
    """Returns the path in a flag's value; None if the flag has no value."""
    return pathlib.Path(text) if text else None


class FlagValueError(ValueError):
    """A flag has an invalid value. The command ends with exit code 2."""


def require(what: str, *names: str) -> None:
    """Raises FlagValueError if a flag in `names` has no value; its message ends with `what`."""
    for name in names:
        if FLAGS[name].value in (None, ""):
            raise FlagValueError(f"{name} is required: {what}")


def in_flags(message: str, flag_of_argument: Mapping[str, str]) -> str:
    """Replaces the names of arguments in an error message with the names of their flags.

    Args:
        message: message that may begin with the name of an argument, as in "name: ...", "name is
            required" or "name must be ...". Elsewhere in the message, names of arguments must be in
            backticks, such as `name` or `name=value`.
        flag_of_argument: maps an argument to its flag, if the flag has a different name.
    """
    for name, flag in {**dict.fromkeys(FLAGS), **flag_of_argument}.items():
        message = re.sub(rf"`{re.escape(name)}(=\w+)?`", rf"--{flag or name}\1", message)
    if argument := re.match(r"(\w+)(?=:|=| is | must | needs )", message):
        name = flag_of_argument.get(argument[1], argument[1])
        dashes = "--" if name in FLAGS else ""
        message = f"{dashes}{name}{message[argument.end() :]}"
    return message


def guarded(
    main: Callable[[], None],
    flag_values: Any,
    flag_of_argument: Mapping[str, str] = types.MappingProxyType({}),
) -> Callable[[list[str]], None]:
    """Wraps a command's main function, so that mistakes and warnings are printed on one line.

    After a user's mistake, the wrapper prints the message and exits with a nonzero code. It prints
    each warning only once.

    Args:
        main: main function of the command.
        flag_values: the object `flags.FLAGS`. If `--verbosity` is not set, only warnings and errors
            are logged.
        flag_of_argument: see `in_flags`.
    """

    def run(_: list[str]) -> None:
        if not flag_values["verbosity"].present:
            flag_values["verbosity"].value = -1  # absl.logging.WARNING
        prepare_start_of_tensorflow(is_shown=flag_values.verbosity >= 0, is_command=True)
        try:
            check_environment()
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                # The cache shows each text once. Python's filter "once" would forget the texts
                # whenever the filters change.
                show = functools.cache(warn)
                warnings.showwarning = lambda message, *_, **__: show(
                    in_flags(str(message), flag_of_argument)
                )
                if "json" in flag_values and flag_values["json"].value:
                    _print_only_results(main)
                else:
                    main()
        except (Exception, KeyboardInterrupt) as error:
            if error.__cause__ is not None and flag_values.verbosity > 0:
                traceback.print_exception(error.__cause__)
            explained = _explained(error)
            if explained is None:
                raise
            message, code = explained
            _fail(in_flags(message, flag_of_argument), code)

    return run


def _print_only_results(main: Callable[[], None]) -> None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            main()
    finally:
        while RESULTS:
            print(RESULTS.pop(0))


def _explained(error: BaseException) -> tuple[str, int] | None:
    """Returns the message and the exit code for a user's mistake; None for a bug."""
    code = USER_ERROR
    message = str(error)
    if isinstance(error, KeyboardInterrupt):
        return f"stopped; {RESUMES}", INTERRUPTED
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            return None
        extra = f"pip install 'pate_tf[{EXTRAS[package]}]'"
        message = f"The package {package} is not installed. Run: {extra}"
    elif isinstance(error, MemoryError) or any(text in message for text in NO_MEMORY):
        message = "out of memory"
    elif isinstance(error, OSError) and error.filename is not None and error.strerror:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ValueError | OSError | LedgerError):
        codes = {
            FlagValueError: FLAG_ERROR,
            ForecastError: NOT_WORTH_ITS_COST,
            LedgerError: LEDGER_ERROR,
            ConnectionError: TRANSIENT,
            TimeoutError: TRANSIENT,
        }
        code = next((codes[kind] for kind in codes if isinstance(error, kind)), code)
    # TensorFlow has its own exceptions for a full disk or exhausted device memory. pathlib raises a
    # RuntimeError for a circular symbolic link. All other exceptions are bugs.
    elif not (type(error).__module__.startswith("tensorflow.") or message.startswith("Symlink")):
        return None
    if any(text in message for text in FULL_DISK):
        message += "; free some disk space and run the same command again to resume"
    return message, code


def _fail(message: str, code: int) -> None:
    lines = [" ".join(line.split())[:MAX_MESSAGE_LENGTH] for line in message.split(ITEM)]
    print(f"error: {ITEM.join(lines)}", file=sys.stderr)
    raise SystemExit(code)


# Prints information for the user.
note: Callable[[str], None] = functools.partial(print, flush=True)


def warn(text: str) -> None:
    """Prints a warning to standard error, on one line."""
    print(f"warning: {' '.join(text.split())}", file=sys.stderr, flush=True)


def define_operation() -> None:
    """Defines the flags of long-running processes that communicate over a network."""
    flags.DEFINE_float(
        "give_up_after",
        GIVE_UP_SECONDS,
        "After this many seconds without a connection, the process ends with exit code 75. At the "
        "end of a run, a server waits at most this long for other processes to notice the end.",
        lower_bound=0.0,
    )
    shown_in_help("give_up_after", "run")
    help_text = "Format of log lines: plain text, or JSON objects with the same fields."
    flags.DEFINE_enum("log_format", "text", ("text", "json"), help_text)
    help_text = "Port on 127.0.0.1 for /healthz (probes) and /metrics (Prometheus). Default: none."
    flags.DEFINE_integer("metrics_port", None, help_text, lower_bound=1, upper_bound=65535)


# Describes the `status` of a silo, aggregator or coordinator: the class of settings that has its
# folder, and a function that returns the metrics for that folder.
StatusOf = tuple[type, Callable[[pathlib.Path], Mapping[str, float]]]


def define_status(status_of: StatusOf) -> None:
    """Defines the flags of a `status` command."""
    kind, _ = status_of
    define(kind, group="flags", without=set(described(kind)) - {"folder"})


def print_status(status_of: StatusOf) -> None:
    """Prints the progress of a process from its files. The process need not be running."""
    kind, numbers_of = status_of
    flag = described(kind)["folder"].flag or "folder"
    folder = pathlib.Path(FLAGS[flag].value or "")
    if not FLAGS[flag].value or not any(folder.glob("*")):
        got = FLAGS[flag].value or "no value"
        raise ValueError(f"{flag} must be a folder that this command has used before, got {got}")
    numbers = {name.removeprefix("pate_"): each for name, each in numbers_of(folder).items()}
    numbers["rounds"] = numbers.pop("rounds_total")
    if (folder / CONTACT).exists():
        numbers["contact_age_seconds"] = time.time() - (folder / CONTACT).stat().st_mtime
    process = "running"
    with contextlib.suppress(ValueError), artifacts.only_writer(folder):
        process = "not running"
    write_report(None, {"process": process, **numbers})
    rows = [(name.replace("_", " "), f"{number:.6g}") for name, number in numbers.items()]
    print_table(str(folder), [("process", process), *rows])


def start_operation(role: str, name: str) -> tuple[Callable[[str], None], Watch]:
    """Starts printing the library's log. With --metrics_port, also answers health probes.

    Returns a function that logs an event, and the result of `pate_tf.net.health.serve_health`.

    A log line contains the time, the level, the role and name of this process, and the message. A
    repeated warning is printed only once; the log line of the next event says how often it came.
    """
    repeated: Counter[str] = Counter()
    is_json = FLAGS.log_format == "json"  # read now, because flags may be deleted later

    def is_printed(record: logging.LogRecord) -> bool:
        message = record.getMessage().removeprefix(f"{name}: ")
        if record.levelno > logging.INFO:
            repeated[message] += 1
            if repeated[message] > 1:
                return False
        else:
            counted = [f"{number} times: {text}" for text, number in repeated.items() if number > 1]
            message = "; ".join([message, *counted])
            repeated.clear()
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        values = (moment, record.levelname, role, name, message)
        record.line = f"{moment} {record.levelname} {role} {name}: {message}"
        if is_json:
            record.line = json.dumps(dict(zip(LOG_FIELDS, values, strict=True)))
        return True

    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(is_printed)
    logging.basicConfig(handlers=[handler], format="%(line)s", force=True)
    logger = logging.getLogger("pate_tf")
    logger.setLevel(logging.INFO)
    return logger.info, serve_health(FLAGS.metrics_port)


def reporting(*, verbose: bool = False) -> Reporting:
    """Returns the `Reporting` of a command. With `verbose`, Keras also shows its progress bars.

    On a terminal, progress is shown as bars; elsewhere, as a line every half minute in long steps.
    """
    shown = functools.partial(Reporting, note=note, warn=warn, verbose=verbose)
    # A terminal may have no size, for example in a container. tqdm would then show empty bars.
    if sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns:
        return shown(clock=clock, progress_bar=tqdm)
    seldom: dict[str, Any] = dict.fromkeys(("mininterval", "maxinterval", "delay"), LINE_SECONDS)
    # tqdm also writes spaces and carriage returns, to erase the line before.
    seldom["file"] = types.SimpleNamespace(
        write=lambda text: sys.stderr.write(text.strip(" \r")), flush=sys.stderr.flush
    )
    lines = functools.partial(tqdm, leave=False, bar_format=LINE, **seldom)
    seldom |= {"leave": False, "seconds": LINE_SECONDS, "bar_format": CLOCK_LINE}
    return shown(clock=functools.partial(clock, **seldom), progress_bar=lines)


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints two columns under a title."""
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name.ljust(width)}  {value}")


def check_report_file(path: str | None) -> None:
    """Checks the path of a report. Commands call this before any step that can't be undone.

    Raises:
        ValueError: if the file can't be written, or if it is in a folder called `released`. Reports
            contain sensitive numbers and must not be there.
    """
    if path is None:
        return
    file = pathlib.Path(path)
    if artifacts.is_within(file, artifacts.RELEASED):
        raise ValueError(f"report_file is sensitive and must be outside of released/, got {path}")
    try:
        artifacts.RunDirectory(file.parent).check(files=[file.name], folders=[])
    except (ValueError, OSError) as error:
        raise ValueError(f"report_file: can't write {path}") from error


def write_report(path: str | None, values: Mapping[str, Any]) -> None:
    """Writes a command's result as JSON, unless `path` is None. Prints it with the flag `--json`.

    Raises ValueError for the same paths as `check_report_file`.
    """
    check_report_file(path)
    if "json" in FLAGS and FLAGS.json:
        RESULTS.append(json.dumps(values))
    if path is not None:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        artifacts.write_json(pathlib.Path(path), values, private=True)


# Functions that define and read flags for the fields of settings (dataclasses).


NUMBERS = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float}


def define(
    kind: type,
    *,
    group: str,
    without: Iterable[str] = (),
    advanced: Iterable[str] = (),
    **defaults: Any,
) -> None:
    """Defines a flag for each setting of a dataclass; see `pate_tf.core.settings`.

    If two classes have a setting of the same name, they share one flag.

    Args:
        kind: dataclass with settings.
        group: heading in `--help` for settings that do not define a heading.
        without: fields that get no flag in this command.
        advanced: flags that this command shows only in `--helpfull`, in addition to the settings
            that are marked as advanced.
        **defaults: by field: default values that differ from the dataclass in this command.
    """
    values = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, each in described(kind).items():
        flag = each.flag or name
        if name in without:
            continue
        is_advanced = each.advanced or flag in advanced
        shown_in_help(flag, each.group or group, advanced=is_advanced)
        if flag in FLAGS:
            continue
        default = defaults.get(name, values[name])
        if default is dataclasses.MISSING:
            default = None
        is_of, is_list = value_type(kind, name)
        if is_list:
            flags.DEFINE_list(flag, [str(value) for value in default or ()] or default, each.help)
        elif is_of in NUMBERS:
            NUMBERS[is_of](flag, default, each.help)
        elif each.choices is not None and FUNCTION not in each.choices:
            flags.DEFINE_enum(flag, default, list(each.choices), each.help)
        else:
            flags.DEFINE_string(flag, None if default is None else str(default), each.help)
        if flag in ALIASES:
            flags.DEFINE_alias(ALIASES[flag], flag)
            shown_in_help(ALIASES[flag], each.group or group, advanced=True)


def read(kind: type[Kind], **values: Any) -> Kind:
    """Returns settings with the values of the flags.

    Args:
        kind: dataclass with settings. `define` must have defined its flags.
        **values: by field: values that replace those of flags, and values of fields without a flag.

    Raises:
        FlagValueError: if a value is invalid for its setting.
        ValueError: if values contradict each other.
    """
    return kind(**{**values_of(kind), **values})


def values_of(kind: type) -> dict[str, Any]:
    """Returns the values of a dataclass's flags, as a dictionary by field.

    Raises:
        FlagValueError: if a value is invalid for its setting.
        ValueError: if a list contains something that is not a number, but must contain numbers.
    """
    values: dict[str, Any] = {}
    for name, each in described(kind).items():
        flag = each.flag or name
        if flag not in FLAGS:
            continue
        is_of, is_list = value_type(kind, name)
        value = FLAGS[flag].value
        if is_list and value is not None:
            try:
                values[name] = tuple(is_of(text) for text in value)
            except ValueError:
                raise ValueError(
                    f"{name} must be numbers separated by commas, got {','.join(value)!r}"
                ) from None
        else:
            is_none = value is None or (value == "" and is_of is pathlib.Path)
            values[name] = None if is_none else is_of(value)
        try:
            each.check(name, values[name])
        except ValueError as error:
            raise FlagValueError(str(error)) from None
    return values


def flag_of_argument(*kinds: type) -> dict[str, str]:
    """Returns a dictionary from arguments to flags, for arguments whose flag has another name.

    If several dataclasses have the same argument, the first dataclass determines the flag.
    """
    table: dict[str, str] = {}
    for kind in kinds:
        for name, each in described(kind).items():
            table.setdefault(name, each.flag or name)
    return {name: flag for name, flag in table.items() if name != flag}


# Functions for the flags that name the user's own data: tables with a schema, or folders of images.


OF_PRIVATE = ("private", "owner", "on_bad_record")


def define_data_flags(*, with_private: bool) -> None:
    """Defines the flags for the user's own data.

    Args:
        with_private: whether the command may open private records.
    """
    define(FileSource, group="data", without=() if with_private else OF_PRIVATE)


def own_files(*, with_private: bool, needs_public: bool = True) -> FileSource | None:
    """Returns the settings of the user's files; None if no flag for files is set.

    Args:
        with_private: whether the command opens private records. If so, --private is required.
        needs_public: whether --public is required if the command opens no private records.

    Raises:
        ValueError: if a required flag is missing, or if --dataset or --data_dir is set, too.
    """
    names = [name for name in described(FileSource) if with_private or name not in OF_PRIVATE]
    given = {name: FLAGS[name].value for name in names if FLAGS[name].present}
    if not given:
        return None
    for name in ("private",) if with_private else ("public",) * needs_public:
        if not given.get(name):
            raise ValueError(f"{name} is required with --{next(iter(given))}")
    for name in ("dataset", "data_dir"):
        if name in FLAGS and FLAGS[name].present:
            raise ValueError(f"{name}: use either --{name} or --{next(iter(given))}, not both")
    return read(FileSource)


# Functions for the flags of the parameters of all registered mechanisms.


DEFAULTS = {"lap_scale": 20.0, "noise_eps": 0.1}  # defaults of the first release


def define_parameters(kind: type[Mechanism], *, in_analysis: bool = False) -> None:
    """Defines a flag for each parameter of a mechanism. The flags have no default values.

    In an analysis, the only flag for gamma is `--noise_eps`, as in the first release.
    """
    without = () if in_analysis else ("gamma",)
    nothing: dict[str, Any] = dict.fromkeys(described(kind))
    define(kind, group="mechanisms", without=without, **nothing)
    if "gamma" in nothing and not in_analysis and "lap_scale" not in FLAGS:
        flags.DEFINE_float(
            "lap_scale",
            None,
            f"Scale b of Laplace noise Lap(b), in votes. Default: {DEFAULTS['lap_scale']:g}.",
        )
        shown_in_help("lap_scale", "mechanisms", advanced=True)


def parameters(kind: type[Mechanism], *, in_analysis: bool = False) -> dict[str, str]:
    """Returns the flag of each parameter of a mechanism, as a dictionary by field."""
    return {
        field: "lap_scale" if field == "gamma" and not in_analysis else each.flag or field
        for field, each in described(kind).items()
    }


def given() -> list[str]:
    """Returns the names of the mechanism flags that have a value."""
    tables = map(parameters, base.offered().values())
    names = dict.fromkeys(name for table in tables for name in table.values())
    return [name for name in names if FLAGS[name].value is not None]


def chosen_kind() -> type[Mechanism]:
    """Returns the class of the mechanism that `--mechanism` selects, or the default class.

    The default is `laplace_noisy_max` if it has all parameters that are set by flags, else
    `gaussian_noisy_max`.

    Raises:
        ValueError: if a flag is set for a parameter that the mechanism does not have.
    """
    offered = base.offered()
    typed = set(given())
    kinds = [offered[name] for name in ("laplace_noisy_max", "gaussian_noisy_max")]
    if FLAGS.mechanism:
        kinds = [offered[FLAGS.mechanism]]
    names = [set(parameters(kind).values()) for kind in kinds]
    place = next((place for place, some in enumerate(names) if typed <= some), 0)
    for name in sorted(typed - names[place]):
        expected = parameters(kinds[place]).values()
        raise ValueError(
            f"{name}: {kinds[place].name} does not have this parameter. It takes "
            f"{' and '.join(f'--{each}' for each in expected)}."
        )
    return kinds[place]


def chosen(kind: type[Mechanism] | None = None, *, in_analysis: bool = False) -> Mechanism:
    """Returns a mechanism whose parameters are the values of flags.

    Args:
        kind: class of the mechanism. Default: `chosen_kind()`.
        in_analysis: whether the command is an analysis, see `define_parameters`.

    Raises:
        ValueError: if a parameter is missing or out of range, or if the mechanism does not have it.
    """
    kind = kind or chosen_kind()
    required = {
        field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
    }
    values: dict[str, Any] = {}
    intervals = described(kind)
    for field, flag in parameters(kind, in_analysis=in_analysis).items():
        value = FLAGS[flag].value
        value = DEFAULTS.get(flag) if value is None else value
        try:
            intervals[field].check(flag, value)
        except ValueError as error:
            raise FlagValueError(str(error)) from None
        if value is not None:
            values["scale" if flag == "lap_scale" else field] = value
        elif field in required:
            raise ValueError(f"{flag} is required for {kind.name}. Pass a number.")
    return kind(**values)
