"""Flags as a command sees them, and the result of a call."""

import types

import pytest

# The beginning of a schema.
AGE = """
label = "ill"
classes = ["no", "yes"]
[columns.age]
low = 18
high = 90
"""


def flag_values(verbosity: int | None = None) -> types.SimpleNamespace:
    class Values(dict):
        verbosity = property(lambda self: self["verbosity"].value)

    given = verbosity is not None
    return Values(verbosity=types.SimpleNamespace(present=given, value=verbosity if given else 0))


def end(call, *arguments) -> int:
    with pytest.raises(SystemExit) as caught:
        call(*arguments)
    return caught.value.code
