"""What a terminal shows while a command works: bars and a clock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
