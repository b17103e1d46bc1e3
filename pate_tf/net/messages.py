"""Dataclasses as bytes, and bytes from anybody as checked dataclasses.

A message is a JSON header, which the types of the fields determine, followed by the content of all
bytes and arrays in their order. A dataclass checks its own values as it is built.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

DTYPES: Final = ("|u1", "<u4", "<f4", "<f8", "<i8")
MOST_AXES: Final = 8
_LENGTH_BYTES: Final = 8
_TYPE: Final = "type"  # key of a dataclass' name


def encode(message: object) -> bytes:
    """Returns a message as bytes; `decode` is its inverse.

    Args:
        message: None, a number, a text, an enum member, bytes, an array of `DTYPES`, or a tuple, a
            mapping by text or a dataclass of these.
    """
    contents: list[bytes] = []

    def plain(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, bytes):
            contents.append(value)
            return len(value)
        if isinstance(value, np.ndarray):
            little = value.astype(value.dtype.newbyteorder("<"), copy=False)
            return {
                "dtype": little.dtype.str,
                "shape": value.shape,
                "data": plain(little.tobytes()),
            }
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields: dict[str, Any] = {_TYPE: type(value).__name__}
            for name, kind in _field_types(type(value)).items():
                entry = getattr(value, name)
                # 1 and 1.0 are the same: what is equal is the same bytes.
                fields[name] = plain(float(entry) if kind is float else entry)
            return fields
        if isinstance(value, Mapping):
            return {name: plain(entry) for name, entry in value.items()}
        if isinstance(value, tuple | list):
            return [plain(entry) for entry in value]
        return value

    header = json.dumps(plain(message)).encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "big"), header, *contents])


def decode(kind: Any, content: bytes) -> Any:
    """Returns the message of a type.

    Args:
        kind: of the message; of a union's members, dataclasses are told apart by name.
        content: from anybody.

    Raises:
        ValueError: if the content is no such message, or a value is out of its range.
    """
    body = io.BytesIO(content)
    length = int.from_bytes(body.read(_LENGTH_BYTES), "big")
    try:
        header = json.loads(body.read(min(length, len(content))), parse_constant=_refuse)
        message = _value(kind, header, body)
    except (RecursionError, OverflowError, json.JSONDecodeError, UnicodeDecodeError):
        _refuse()
    if body.read(1):
        _refuse()
    return message


@functools.cache
def _field_types(kind: type) -> dict[str, Any]:
    """Returns the types of the fields that a dataclass is made from, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _refuse(what: object = None) -> NoReturn:
    del what  # never shown: it is the sender's
    raise ValueError("message: expected one of the protocol, got something else")


def _value(kind: Any, value: Any, body: io.BytesIO) -> Any:
    """Returns the value of a type that a part of a header stands for; raises ValueError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        members = [member for member in arguments if member is not types.NoneType]
        if value is None and len(members) < len(arguments):
            return None
        name = value.get(_TYPE) if isinstance(value, dict) else None
        named = [member for member in members if member.__name__ == name]
        return _value((named or members)[0], value, body)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = _field_types(kind)
        if not isinstance(value, dict) or value.keys() != {_TYPE, *fields}:
            _refuse()
        if value[_TYPE] != kind.__name__:
            _refuse()
        return kind(**{name: _value(of, value[name], body) for name, of in fields.items()})
    if origin is np.ndarray:
        return _array(arguments[1], value, body)
    if kind is bytes:
        content = body.read(value) if type(value) is int and value >= 0 else b""
        return content if type(value) is int and len(content) == value else _refuse()
    if origin is tuple:
        if not isinstance(value, list):
            _refuse()
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], entry, body) for entry in value)
        if len(arguments) != len(value):
            _refuse()
        return tuple(map(_value, arguments, value, [body] * len(value)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            _refuse()
        return {name: _value(arguments[1], entry, body) for name, entry in value.items()}
    if kind is None:
        return _refuse() if value is not None else None
    if issubclass(kind, enum.Enum):
        return kind(value) if isinstance(value, str) else _refuse()
    if kind is float and type(value) is int:
        value = float(value)
    return value if type(value) is kind else _refuse()


def _array(dtype_hint: Any, value: Any, body: io.BytesIO) -> npt.NDArray[Any]:
    """Returns an array that can't be written, of finite numbers; raises ValueError."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data"}:
        _refuse()
    content = _value(bytes, value["data"], body)
    shape = _value(tuple[int, ...], value["shape"], body)
    scalar = (*typing.get_args(dtype_hint), Any)[0]
    expected = DTYPES if scalar is Any else (np.dtype(scalar).str,)
    if value["dtype"] not in expected:
        raise ValueError(f"array: expected the type {' or '.join(expected)}, got another")
    dtype = np.dtype(value["dtype"])
    if not 1 <= len(shape) <= MOST_AXES or min(shape) < 1:
        raise ValueError(f"array: expected 1 to {MOST_AXES} axes with numbers, got others")
    if math.prod(shape) * dtype.itemsize != len(content):  # of any size: nothing wraps around
        raise ValueError("array: expected as many bytes as its shape has, got another number")
    array = np.frombuffer(content, dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("array: expected finite numbers, got NaN or infinite ones")
    return array
