"""What the three scripts share: ending well, tables, progress bars, reports.

A roof room: only the scripts import it. Flags themselves stand in the scripts.
"""

import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pate_tf import artifacts
from pate_tf.ledger import LedgerError

USER_ERROR, FLAG_ERROR, INTERRUPTED = 1, 2, 130


def parse_flags(parse: Callable[[list[str]], list[str]], error: type[Exception]) -> Any:
    """Returns a flags parser for `absl.app.run` that ends with exit code 2 and one clear line.

    Args:
      parse: `flags.FLAGS`.
      error: `flags.Error`.
    """

    def parser(arguments: list[str]) -> list[str]:
        try:
            rest = parse(arguments)
        except error as reason:
            _fail(str(reason), FLAG_ERROR)
        if len(rest) > 1:
            _fail(f"expected flags only, got {' '.join(rest[1:])!r}", FLAG_ERROR)
        return rest

    return parser


def guarded(main: Callable[[], None], flag_values: Any) -> Callable[[list[str]], None]:
    """Wraps a script's main function: a user's mistake ends in one line and exit code 1.

    Args:
      main: the script.
      flag_values: `flags.FLAGS`; unless `--verbosity` was given, only warnings are logged.
    """

    def run(arguments: list[str]) -> None:
        del arguments
        if not flag_values["verbosity"].present:
            flag_values["verbosity"].value = -1  # absl.logging.WARNING
        try:
            main()
        except KeyboardInterrupt:
            _fail("stopped; the same command goes on from here", INTERRUPTED)
        except (ValueError, OSError, LedgerError) as error:
            _fail(str(error), USER_ERROR)
        except MemoryError:
            _fail("out of memory", USER_ERROR)
        except Exception as error:
            # TensorFlow reports a full disk or exhausted device memory by classes of its own.
            if not type(error).__module__.startswith("tensorflow."):
                raise
            _fail(str(error), USER_ERROR)

    return run


def _fail(message: str, code: int) -> None:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    print(f"error: {' '.join(lines)}", file=sys.stderr)
    raise SystemExit(code)


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


@contextmanager
def progress_bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar on a terminal, nothing elsewhere.

    Yields:
      A function to call with how many more are done.
    """
    from tqdm import tqdm

    # disable=None: tqdm's word for "only on a terminal".
    with tqdm(total=total, desc=description, unit=unit, disable=None) as bar:

        def advance(count: int) -> None:
            bar.update(count)
            if bar.n >= total:
                bar.close()  # what comes next may have a bar of its own

        yield advance


@contextmanager
def clock(description: str) -> Iterator[None]:
    """Shows on a terminal how long something takes that can't say how far it is."""
    from tqdm import tqdm

    done = threading.Event()

    def tick(bar: Any) -> None:
        while not done.wait(1.0):
            bar.refresh()

    with tqdm(desc=description, bar_format="{desc}: {elapsed}", disable=None, leave=False) as bar:
        thread = threading.Thread(target=tick, args=(bar,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


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
    nearest = next(folder for folder in file.absolute().parents if folder.exists())
    if file.is_dir() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
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
