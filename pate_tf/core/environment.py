"""The environment in which TensorFlow and Keras start; imports neither."""

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

# Variables of the environment, with the value that is needed where one is set.
KERAS_OF_TENSORFLOW: Final = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0"}


def check_environment() -> None:
    """Raises ValueError if the environment asks for another Keras than TensorFlow's."""
    for name, value in KERAS_OF_TENSORFLOW.items():
        if os.environ.get(name, value).lower() not in (value, "false", ""):
            raise ValueError(
                f"{name}: expected {value} or none in the environment, got {os.environ[name]}"
            )


# How libraries that can't be loaded, and threads that can't start, say so.
NO_MEMORY: Final = ("failed to map segment", "cannot allocate memory", "can't start new thread")
MIN_ADDRESSES: Final = 5 * 2**29  # what a small run had at its peak


class _Finder:
    """Finds TensorFlow, once, and loads it quickly and in silence.

    Its libraries write to the terminal as they start, before any log level applies. It creates a
    million objects, all of which stay, and the garbage collector would look through them again and
    again.

    Attributes:
        is_shown: whether what they write is shown.
        is_command: whether the process is a command's: its garbage collector looks at none of these
            objects later either.
    """

    is_shown = is_command = False

    def find_spec(self, name: str, *_: Any) -> Any:
        """Returns the specification of TensorFlow; None of all else, which others find."""
        if name not in ("scipy.stats", "tensorflow"):
            return None
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if 0 <= most < MIN_ADDRESSES:  # they would crash or hang, not raise
            raise ValueError(f"out of memory: `ulimit -v` must allow {MIN_ADDRESSES:,} bytes")
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
                atexit.register(gc.freeze)  # the interpreter collects once more as it ends


_FINDER: Any = _Finder()


def prepare_start_of_tensorflow(*, is_shown: bool, is_command: bool = False) -> None:
    """Sets how TensorFlow starts, where it has not yet, and whether its warnings are shown.

    Args:
        is_shown: whether warnings, and what its libraries write as they start, are shown.
        is_command: whether the process is a command's; never again False once True.
    """
    logging.getLogger("tensorflow").setLevel(logging.NOTSET if is_shown else logging.ERROR)
    _FINDER.is_shown = is_shown
    _FINDER.is_command = is_command or _FINDER.is_command
    if not ("tensorflow" in sys.modules or _FINDER in sys.meta_path):
        sys.meta_path.insert(0, _FINDER)


def start_worker() -> None:
    """Prepares a worker process: it ends when its parent was killed, and leaves Ctrl-C to it."""
    prepare_start_of_tensorflow(is_shown=False, is_command=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
