"""The user's functions, passed as objects or named as `module:function`."""

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
    """Settings of a model that works on raw inputs or on features of the inputs.

    Attributes:
        representation: name of the representation, or the user's function; None for raw inputs, or
            if it is not chosen yet.
    """

    representation: Named | None = setting(None, help="The map from inputs to features.")


def is_named_function(name: Named) -> bool:
    """Whether `name` is a function, or has the form `module:function`."""
    return not isinstance(name, str) or ":" in name


def name_of(name: Named) -> str:
    """Returns the name of a function for records and messages; a name stays unchanged."""
    if isinstance(name, str):
        return name
    return f"function {getattr(name, '__name__', type(name).__name__)}"


def import_function(name: Named, *, flag: str) -> Callable[..., Any]:
    """Imports the function that `name` names; returns a function unchanged.

    Args:
        name: a function, or `module:function`, whose module must be importable.
        flag: the flag or argument that the user passed it as, for messages.

    Raises:
        ValueError: if there is no such function.
    """
    if not isinstance(name, str):
        if not callable(name):
            raise ValueError(f"{flag} must be a function or a name, got {type(name).__name__}")
        return name
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:  # anything can happen on import
        why = "it exits the program" if isinstance(error, SystemExit) else error
        raise ValueError(f"{flag}: can't import {name!r}: {why}") from error
    if not callable(function):
        raise ValueError(f"{flag}: {name!r} is not a function, but {type(function).__name__}")
    return function


def call_function(name: Named, *arguments: Any, flag: str, is_private: bool = False) -> Any:
    """Imports and calls a function; an exception becomes one line with file and line number.

    If the function reads private data (`is_private`), its exception's text may quote them, so the
    line omits this text and the error has no cause. Exceptions of this library quote no private
    data. Restores Keras' global precision afterwards.

    Raises:
        ValueError: if there is no such function, or if the function raises an exception (which is
            the error's cause) or exits.
    """
    # The function may set the precision of Keras for the whole process.
    before = keras.config.dtype_policy() if (keras := sys.modules.get("keras")) else None
    try:
        function = import_function(name, flag=flag)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            # Leaves out the call above. A function that rejects its arguments has no frame.
            frames = traceback.extract_tb(error.__traceback__)[1:]
            # Name the last line in the function's file, because the mistake is most likely there.
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
