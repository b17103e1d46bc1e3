"""The environment in which TensorFlow and Keras start; imports neither."""

import importlib.util
import logging
import os
import sys
import types
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


def _find_spec(name: str, *_: Any) -> Any:
    """Finds TensorFlow, once, and hides what its libraries write to the terminal as they start.

    They do so before any log level applies, wherever TensorFlow is imported first.
    """
    if name != "tensorflow":
        return None
    sys.meta_path.remove(_FINDER)
    spec: Any = importlib.util.find_spec(name)
    if spec is None or sys.stderr is None:
        return spec
    load = spec.loader.exec_module

    def load_quietly(module: types.ModuleType) -> None:
        sys.stderr.flush()
        terminal, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            load(module)
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            os.close(nowhere)

    spec.loader.exec_module = load_quietly
    return spec


_FINDER: Any = types.SimpleNamespace(find_spec=_find_spec)


def show_start_of_tensorflow(is_shown: bool) -> None:
    """Sets whether TensorFlow's warnings, and what its libraries write as they start, are shown."""
    logging.getLogger("tensorflow").setLevel(logging.NOTSET if is_shown else logging.ERROR)
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _FINDER]
    if not (is_shown or "tensorflow" in sys.modules):
        sys.meta_path.insert(0, _FINDER)
