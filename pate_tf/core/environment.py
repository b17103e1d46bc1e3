"""Prepares the environment of TensorFlow and Keras without importing them."""

import atexit
import contextlib
import gc
import importlib.util
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, Final

# Environment variables with the required value, if they are set.
KERAS_OF_TENSORFLOW: Final = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0"}


def check_environment() -> None:
    """Raises ValueError if the environment selects a Keras backend other than TensorFlow."""
    for name, value in KERAS_OF_TENSORFLOW.items():
        if os.environ.get(name, value).lower() not in (value, "false", ""):
            raise ValueError(
                f"the environment variable {name} must be {value} or unset, got {os.environ[name]}"
            )


# Parts of error messages if a library can't be loaded or a thread can't start.
NO_MEMORY: Final = (
    *("failed to map segment", "cannot allocate memory", "can't start new thread"),
    "error return without exception set",  # of Python's imports
)
MIN_ADDRESSES: Final = 5 * 2**29  # peak of a small run, in bytes


class _Finder:
    """Imports TensorFlow quickly and without output; used once.

    TensorFlow's libraries write to the terminal when they start, before any log level applies. The
    import creates a million permanent objects, which the garbage collector would scan repeatedly.

    Attributes:
        is_shown: whether to show the output.
        is_command: whether the process is a command; then the garbage collector never scans these
            objects.
    """

    is_shown = is_command = False

    def find_spec(self, name: str, *_: Any) -> Any:
        """Returns the specification of TensorFlow; None for other modules."""
        if name not in ("scipy.stats", "tensorflow"):
            return None
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= most < MIN_ADDRESSES:  # with less memory, imports crash or hang
            raise ValueError(f"out of memory: set `ulimit -v` to {MIN_ADDRESSES:,} bytes or more")
        if name != "tensorflow":
            return None
        sys.meta_path.remove(_FINDER)
        spec: Any = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._load(load, module)
        return spec

    def _load(self, load: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
        with contextlib.ExitStack() as stack:
            if gc.isenabled():
                stack.callback(gc.enable)
                gc.disable()
            if not self.is_shown and sys.stderr is not None:
                sys.stderr.flush()
                terminal = os.dup(2)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                stack.callback(os.close, terminal)
                stack.callback(os.close, nowhere)
                stack.callback(os.dup2, terminal, 2)
                os.dup2(nowhere, 2)
            load(module)
            if self.is_command:
                gc.freeze()
                atexit.register(gc.freeze)  # the interpreter collects garbage when it ends


_FINDER: Any = _Finder()


def prepare_start_of_tensorflow(*, is_shown: bool, is_command: bool = False) -> None:
    """Sets the log level of TensorFlow, and prepares its import if it was not imported yet.

    Args:
        is_shown: whether to show warnings and the output of the import.
        is_command: whether the process is a command; once True, it stays True.
    """
    logging.getLogger("tensorflow").setLevel(logging.NOTSET if is_shown else logging.ERROR)
    _FINDER.is_shown = is_shown
    _FINDER.is_command = is_command or _FINDER.is_command
    if not ("tensorflow" in sys.modules or _FINDER in sys.meta_path):
        sys.meta_path.insert(0, _FINDER)


def start_worker() -> None:
    """Prepares a worker process: it ends with its parent, which also handles Ctrl-C."""
    prepare_start_of_tensorflow(is_shown=False, is_command=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
