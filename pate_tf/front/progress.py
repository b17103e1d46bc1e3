"""Progress bars that a notebook shows, and a terminal too."""

import contextlib
from collections.abc import Callable, Iterator

from pate_tf.runs.reporting import QUIET, Reporting


def reporting(verbose: bool) -> Reporting:
    """Returns how a run shows its progress: with bars, or not at all."""
    return Reporting(progress_bar=_bar, clock=_clock, verbose=True) if verbose else QUIET


@contextlib.contextmanager
def _bar(description: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=description, unit=unit) as bar:
        yield bar.update


@contextlib.contextmanager
def _clock(description: str) -> Iterator[None]:
    from tqdm.auto import tqdm

    with tqdm(desc=description, bar_format="{desc}: {elapsed}"):
        yield
