"""Ends a command quickly, with one line of text, after SIGTERM or if memory runs out."""

import contextlib
import ctypes
import functools
import os
import resource
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

FLAG_ERROR: Final = 2
INTERRUPTED: Final = 130
TERMINATED: Final = 143
SECONDS: Final = 8.0  # systemd and container engines kill a process after 10 seconds
RESUMES: Final = "the same command resumes, but trains an unfinished representation again"
LINE: Final = f"error: stopped by SIGTERM; {RESUMES}\n".encode()
NO_MEMORY_LINE: Final = b"error: out of memory: `ulimit -v` allows too little\n"


class Terminated(BaseException):
    """SIGTERM arrived.

    This is not a `KeyboardInterrupt`. If that interrupts code in `exec`, such as the definition of
    a dataclass, then `python -m` ends like after SIGINT, even if the exception is caught.
    """


@functools.cache
def end_on_sigterm() -> threading.Event:
    """Installs a handler that ends this process within `SECONDS` after SIGTERM.

    Returns an event, which is set if SIGTERM arrived. The exit code must then be `TERMINATED`, even
    if a library ignores or replaces the exception.

    The handler prints one line and raises `Terminated` in the main thread.

    A handler is needed, because the kernel ignores SIGTERM for process 1 of a container without
    one. Python runs a handler only between two instructions of the main thread, and one call into a
    library may last longer than `SECONDS`. Therefore, the signal also wakes a second thread, which
    ends the process if the main thread does not. Files are written completely or not at all, so no
    file is damaged.
    """
    has_arrived = threading.Event()
    reader, writer = os.pipe()
    # Writes to a copy, because standard error itself is redirected while TensorFlow starts.
    terminal = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else os.dup(2)
    tell = functools.cache(functools.partial(os.write, terminal, LINE))

    def raise_once(number: int, frame: FrameType | None) -> None:
        # Later signals are ignored, because they would interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        has_arrived.set()
        tell()
        raise Terminated

    def watch() -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        time.sleep(SECONDS)
        tell()
        os._exit(TERMINATED)

    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, raise_once)
    threading.Thread(target=watch, daemon=True).start()
    return has_arrived


def _end_in_one_line() -> None:
    """Prints one line and ends the process. C++ calls this function for an uncaught exception."""
    os.write(2, NO_MEMORY_LINE)
    os._exit(1)


# This constant protects the function from garbage collection, because C++ may call it.
_UNCAUGHT: Final = ctypes.CFUNCTYPE(None)(_end_in_one_line)


def end_without_memory() -> None:
    """Installs a handler that ends this process with one line if a library can't allocate memory.

    Without the handler, the library would abort and print a traceback of all threads.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] >= 0:
        with contextlib.suppress(OSError, AttributeError):  # some systems have no libstdc++
            ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE(_UNCAUGHT)
