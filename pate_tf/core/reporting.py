"""Progress and reports of a run. Does not import TensorFlow."""

import contextlib
import contextvars
import dataclasses
import datetime
import functools
import html
import pathlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

Row = tuple[str, str]
LINE_SECONDS = 30  # time between two progress lines if the output is not a terminal
NOT_MEASURED = "not measured: there are no public labeled records for a test"
_CLOCK = contextvars.ContextVar[tqdm | None]("clock", default=None)  # innermost clock that runs
_NO_BAR: Callable[..., Any] = functools.partial(tqdm, disable=True)
_WARN: Callable[[str], object] = functools.partial(warnings.warn, stacklevel=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """Functions that show the progress of a run. They never change a result.

    Attributes:
        clock: function that takes a description and returns a context manager, which shows the
            elapsed time while its block runs.
        progress_bar: function that takes a description, a total and a unit, and returns a tqdm
            progress bar.
        note: function that shows a text. The user should read it before privacy budget is spent.
        confirm: function that is called after the notes and before privacy budget is spent. It may
            end the command.
        warn: function that shows a warning of one line.
        verbose: whether Keras draws its own progress bars.
        began: start time of the run, by `time.monotonic`.
    """

    clock: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    progress_bar: Callable[..., Any] = _NO_BAR
    note: Callable[[str], object] = lambda text: None
    confirm: Callable[[], None] = lambda: None
    warn: Callable[[str], object] = _WARN
    verbose: bool = False
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def warn_of_stored(self, path: pathlib.Path, holds: str) -> None:
        """Warns that stored results are used and that this call does not read the private records.

        Args:
            path: file or folder with the results. The warning contains its modification time.
            holds: name of the results, such as "teachers".
        """
        when = datetime.datetime.fromtimestamp(path.stat().st_mtime)
        self.warn(
            f"{path.parent} contains {holds} of {when:%Y-%m-%d %H:%M}. They are used, and the "
            "private records are not read again. To use other records, choose another folder."
        )


QUIET = Reporting()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of a report, with either rows or lines of text.

    Attributes:
        title: title of the table.
        rows: pairs of a name and a value.
        lines: lines of text; used instead of rows.
        is_sensitive: whether the table must not be published.
    """

    title: str
    rows: Sequence[Row] = dataclasses.field(default=(), repr=False)
    lines: Sequence[str] = dataclasses.field(default=(), repr=False)
    is_sensitive: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReport:
    """SENSITIVE: the report of a run, for the data holder.

    Attributes:
        values: results of the run as JSON values, by name.
        rows: the same results as rows of a table.
        tables: tables of an analysis; used instead of `rows`. Public and sensitive results are in
            separate tables. Names of arguments are in backticks.
    """

    values: dict[str, Any] = dataclasses.field(repr=False)
    rows: Sequence[Row] = dataclasses.field(default=(), repr=False)
    tables: Sequence[ReportTable] = dataclasses.field(default=(), repr=False)


def card(shown: object) -> str:
    """Returns the text of an object as escaped HTML for a notebook, with the first line in bold."""
    title, _, text = str(shown).partition("\n")
    return f"<b>{html.escape(title)}</b><pre>{html.escape(text)}</pre>"


def amount(value: float) -> str:
    """Formats a number with four significant digits, without an exponent below 1e15."""
    return f"{float(f'{value:.4g}'):,.15g}"


# Progress bars for notebooks and terminals.


def reporting(verbose: bool | Reporting) -> Reporting:
    """Returns `verbose` if it is a `Reporting`. For a bool, creates one with or without output."""
    if isinstance(verbose, Reporting):
        return verbose
    if not verbose:
        return QUIET
    from tqdm.auto import tqdm as bar  # warns in a notebook without widgets

    return Reporting(progress_bar=bar, clock=clock, note=print, verbose=True)


@contextlib.contextmanager
def clock(description: str, *, seconds: float = 1.0, **options: Any) -> Iterator[None]:
    """Shows a description and the elapsed time while the block runs.

    Args:
        description: text to show, such as the name of the current step.
        seconds: time between two updates, in seconds.
        **options: arguments of the tqdm progress bar.
    """
    is_done = threading.Event()
    with tqdm(**{"desc": description, "bar_format": "{desc}: {elapsed}", **options}) as bar:

        def refresh() -> None:
            while not is_done.wait(seconds):
                bar.refresh()

        threading.Thread(target=refresh, daemon=True).start()
        token = _CLOCK.set(bar)
        try:
            yield
        finally:
            _CLOCK.reset(token)
            is_done.set()


def steps_on_clock(total: int) -> Callable[[int], object]:
    """Adds a step counter to the running clock. Returns a function that advances the counter."""
    bar = _CLOCK.get()
    if bar is None:
        return lambda number: None
    bar.total = total
    bar.bar_format = bar.bar_format.replace("{elapsed}", "step {n} of {total}, {remaining} left")
    return bar.update
