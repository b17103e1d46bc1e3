"""Imports and calls the user's functions, which are passed as objects or as `module:function`."""

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
        representation: name of the representation, or a function of the user. None if the model
            takes raw inputs, or if no representation is chosen yet.
    """

    representation: Named | None = setting(None, help="Mapping from inputs to features.")


def is_named_function(name: Named) -> bool:
    """Whether `name` is a function, or has the form `module:function`."""
    return not isinstance(name, str) or ":" in name


def name_of(name: Named) -> str:
    """Returns the name of a function, for files and messages; returns a name unchanged."""
    if isinstance(name, str):
        return name
    return f"function {getattr(name, '__name__', type(name).__name__)}"


def import_function(name: Named, *, flag: str) -> Callable[..., Any]:
    """Imports a function by its name `module:function`; returns a function unchanged.

    Args:
        name: a function, or the text `module:function`. The module must be importable.
        flag: name of the flag or argument with the function, for messages.

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
    except (Exception, SystemExit) as error:  # an import can raise any exception
        why = "it exits the program" if isinstance(error, SystemExit) else error
        raise ValueError(f"{flag}: can't import {name!r}: {why}") from error
    if not callable(function):
        raise ValueError(f"{flag}: {name!r} is not a function, but {type(function).__name__}")
    return function


def call_function(name: Named, *arguments: Any, flag: str, is_private: bool = False) -> Any:
    """Imports and calls a function; converts its exception to an error with file and line number.

    If the function reads private data (`is_private`), the text of its exception may quote these
    data. The error then omits this text and has no cause. Exceptions of this library keep their
    text, because they quote no private data. Keras' global precision is restored after the call.

    Raises:
        ValueError: if there is no such function, or if the function exits or raises an exception,
            which becomes the cause of this error.
    """
    # The function may change the precision of Keras for the whole process, so the precision is
    # saved here.
    before = keras.config.dtype_policy() if (keras := sys.modules.get("keras")) else None
    try:
        function = import_function(name, flag=flag)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            # Omits the frame of the call above. It is the only frame if the arguments do not match
            # the function.
            frames = traceback.extract_tb(error.__traceback__)[1:]
            # Reports the last line in the function's file, because the mistake is most likely
            # there.
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
