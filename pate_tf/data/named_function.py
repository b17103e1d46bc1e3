"""A user's own function: itself, or named on the command line as `module:function`."""

import dataclasses
import importlib
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pate_tf.core.settings import setting

Named = str | Callable[..., Any]
_LIBRARY = str(pathlib.Path(__file__).parents[1])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OnFeatures:
    """What works on features of inputs.

    Attributes:
        representation: that the features are of, a name or the user's own; None of raw inputs, or
            where it is still open.
    """

    representation: Named | None = setting(None, help="What maps inputs to features.")


def is_named_function(name: Named) -> bool:
    """Whether `name` is a function, or has the form `module:function`."""
    return not isinstance(name, str) or ":" in name


def name_of(name: Named) -> str:
    """Returns what a function is called in records and messages; a name as it is."""
    if isinstance(name, str):
        return name
    return f"function {getattr(name, '__name__', type(name).__name__)}"


def import_function(name: Named, *, flag: str) -> Callable[..., Any]:
    """Imports the function that `name` names; a function comes back as it is.

    Args:
        name: a function, or `module:function`, whose module must be importable.
        flag: what the user gave it as, for messages.

    Raises:
        ValueError: if there is no such function.
    """
    if not isinstance(name, str):
        if not callable(name):
            raise ValueError(f"{flag}: expected a function or a name, got {type(name).__name__}")
        return name
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:  # anything can happen on import
        why = "it ends the program" if isinstance(error, SystemExit) else error
        raise ValueError(f"{flag}: can't import {name!r}: {why}") from error
    if not callable(function):
        raise ValueError(f"{flag}: expected a function at {name!r}, got {type(function).__name__}")
    return function


def call_function(name: Named, *arguments: Any, flag: str, is_private: bool = False) -> Any:
    """Calls a function as of `import_function`; what it raises becomes one line with file and line.

    Of a function that reads private data (`is_private`), the line leaves out the exception's text,
    which may quote them, and there is no cause; the library's own exceptions quote none. Keras'
    global precision is afterwards what it was.

    Raises:
        ValueError: if there is no such function, or it raises or ends the program. The exception
            itself is the cause.
    """
    # It may set a precision of Keras for the whole process.
    before = keras.config.dtype_policy() if (keras := sys.modules.get("keras")) else None
    try:
        function = import_function(name, flag=flag)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            # Beyond the call above; a function that can't be called so has no line of its own.
            frames = traceback.extract_tb(error.__traceback__)[1:]
            # The last line of the function's own file: what it calls there says less to its author.
            file = getattr(getattr(function, "__code__", None), "co_filename", None)
            inner = [frame for frame in frames if frame.filename == file] or frames
            place = f" ({inner[-1].filename}, line {inner[-1].lineno})" if inner else ""
            kind = type(error).__name__
            is_of_library = bool(frames) and frames[-1].filename.startswith(_LIBRARY)
            if is_private and not is_of_library:
                raise ValueError(f"{flag}: {name_of(name)} raised {kind}{place}") from None
            raise ValueError(f"{flag}: {name_of(name)} raised {kind}: {error}{place}") from error
    finally:
        if keras := sys.modules.get("keras"):
            keras.config.set_dtype_policy(before or keras.config.floatx())
