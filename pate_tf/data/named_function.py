"""A user's own function, named on the command line as `module:function`."""

import importlib
from collections.abc import Callable
from typing import Any


def is_named_function(name: str) -> bool:
    """Whether `name` has the form `module:function`."""
    return ":" in name


def import_function(name: str, *, flag: str) -> Callable[..., Any]:
    """Imports the function that `name` names.

    Args:
      name: `module:function`; the module must be importable.
      flag: what the user gave it as, for errors.

    Raises:
      ValueError: if there is no such function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # whatever the module raises while it is imported
        raise ValueError(f"{flag}: can't import {name!r}: {error}") from error
    if not callable(function):
        raise ValueError(f"{flag}: expected a function at {name!r}, got {type(function).__name__}")
    return function
