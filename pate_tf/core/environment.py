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

# If one of these environment variables is set, it must have this value.
KERAS_OF_TENSORFLOW: Final = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0"}


def check_environment() -> None:
    """Raises ValueError if the environment selects a Keras backend other than TensorFlow."""
    for name, value in KERAS_OF_TENSORFLOW.items():
        if os.environ.get(name, value).lower() not in (value, "false", ""):
            raise ValueError(
                f"the environment variable {name} must be {value} or unset, got {os.environ[name]}"
            )


# An error message contains one of these texts if there is not enough memory to load a library or to
# start a thread.
NO_MEMORY: Final = (
    *("failed to map segment", "cannot allocate memory", "can't start new thread"),
    # Python's import system raises these.
    *("error return without exception set", "returned NULL without setting an exception"),
)
MIN_ADDRESSES: Final = 5 * 2**29  # peak address space of a small run, in bytes


class _Finder:
    """Import hook that makes the first import of TensorFlow fast and silent.

    TensorFlow's libraries write to the terminal while they are imported, before any log level
    applies. The import also creates a million permanent objects. The garbage collector would scan
    these objects repeatedly.

    Attributes:
        is_shown: whether to show the output of the import.
        is_command: whether the process runs a command of pate_tf. If so, the garbage collector
            never scans the objects that the import created.
    """

    is_shown = is_command = False

    def find_spec(self, name: str, *_: Any) -> Any:
        """Returns the module specification of TensorFlow; None for every other module."""
        if name not in ("scipy.stats", "tensorflow"):
            return None
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= most < MIN_ADDRESSES:  # with less memory, imports crash or hang
            raise ValueError(f"out of memory: raise `ulimit -v` to {MIN_ADDRESSES:,} bytes or more")
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
                atexit.register(gc.freeze)  # makes the garbage collection at exit fast


_FINDER: Any = _Finder()


def prepare_start_of_tensorflow(*, is_shown: bool, is_command: bool = False) -> None:
    """Sets TensorFlow's log level. If TensorFlow is not imported yet, installs `_Finder`.

    Args:
        is_shown: whether to show warnings and the output of the import.
        is_command: whether the process runs a command of pate_tf. Once True, this can't be undone.
    """
    logging.getLogger("tensorflow").setLevel(logging.NOTSET if is_shown else logging.ERROR)
    _FINDER.is_shown = is_shown
    _FINDER.is_command = is_command or _FINDER.is_command
    if not ("tensorflow" in sys.modules or _FINDER in sys.meta_path):
        sys.meta_path.insert(0, _FINDER)


def start_worker() -> None:
    """Prepares a worker process: it ignores Ctrl-C and ends when its parent process ends."""
    prepare_start_of_tensorflow(is_shown=False, is_command=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
