"""How a run shows its progress and returns its report. TensorFlow is not imported."""

import contextlib
import dataclasses
import datetime
import functools
import pathlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

Row = tuple[str, str]
LINE_SECONDS = 30  # between lines of progress where there is no terminal
NOT_MEASURED = "not measured: there are no public labels"
_NO_BAR: Callable[..., Any] = functools.partial(tqdm, disable=True)
_WARN: Callable[[str], object] = functools.partial(warnings.warn, stacklevel=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """How a run shows its progress. Nothing here changes a result.

    Attributes:
        clock: from a description to a context that is entered while work of unknown length goes on.
        progress_bar: makes tqdm's bar of a description, a total and a unit.
        note: takes what the user should know before anything is charged.
        confirm: is called after the notes and before anything is charged; may end the command.
        warn: takes a warning, one line.
        verbose: whether Keras draws its own progress bars.
        began: of the run, by `time.monotonic`.
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
        """How long the run has taken so far."""
        return time.monotonic() - self.began

    def warn_of_stored(self, path: pathlib.Path, holds: str) -> None:
        """Warns that stored results are used, and not the private records that were given again.

        Args:
            path: a file or folder that was written with the results.
            holds: what they are.
        """
        when = datetime.datetime.fromtimestamp(path.stat().st_mtime)
        self.warn(
            f"{path.parent} holds {holds} of {when:%Y-%m-%d %H:%M}, which are used: the private "
            f"records are not read again. For other records choose another folder."
        )


QUIET = Reporting()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportTable:
    """Rows, or lines, under a title.

    Attributes:
        title: what they are.
        rows: names and values.
        lines: instead of rows.
        is_sensitive: whether they may not be published.
    """

    title: str
    rows: Sequence[Row] = dataclasses.field(default=(), repr=False)
    lines: Sequence[str] = dataclasses.field(default=(), repr=False)
    is_sensitive: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReport:
    """SENSITIVE: the report of a run, for the holder of the private data.

    Attributes:
        values: JSON values.
        rows: the same as rows of a table.
        tables: of an analysis instead: those that may be published and those that may not, apart.
            Names of arguments stand in backticks.
    """

    values: dict[str, Any] = dataclasses.field(repr=False)
    rows: Sequence[Row] = dataclasses.field(default=(), repr=False)
    tables: Sequence[ReportTable] = dataclasses.field(default=(), repr=False)


# Progress bars that a notebook shows, and a terminal too.


def reporting(verbose: bool | Reporting) -> Reporting:
    """Returns how a run shows its progress: with bars, not at all, or as a command does."""
    if isinstance(verbose, Reporting):
        return verbose
    if not verbose:
        return QUIET
    from tqdm.auto import tqdm as bar  # warns in a notebook without widgets

    return Reporting(progress_bar=bar, clock=clock, note=print, verbose=True)


@contextlib.contextmanager
def clock(description: str, *, seconds: float = 1.0, **options: Any) -> Iterator[None]:
    """Shows what is done, and how long it takes.

    Args:
        description: of what is done.
        seconds: after which it is shown anew.
        **options: of tqdm's bar.
    """
    is_done = threading.Event()
    with tqdm(**{"desc": description, "bar_format": "{desc}: {elapsed}", **options}) as bar:

        def refresh() -> None:
            while not is_done.wait(seconds):
                bar.refresh()

        threading.Thread(target=refresh, daemon=True).start()
        try:
            yield
        finally:
            is_done.set()
