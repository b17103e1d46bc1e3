"""Encodes dataclasses as bytes, and decodes untrusted bytes into checked dataclasses.

An encoded message is a JSON header, followed by the raw contents of all `bytes` and array values,
in the order of the fields. The field types of the dataclass determine the structure of the header.
Each dataclass checks its values when it is created.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import io
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from pate_tf.core.artifacts import object_of_pairs

DTYPES: Final = ("|u1", "<u4", "<f4", "<f8", "<i8")
MAX_AXES: Final = 8
_LENGTH_BYTES: Final = 8
_TYPE: Final = "type"  # key under which the header states the name of a dataclass


def encode(message: object) -> bytes:
    """Encodes a message as bytes; `decode` is its inverse.

    Args:
        message: None, a number, a string, an enum member, bytes or an array with one of `DTYPES`;
            or a tuple, a mapping with string keys or a dataclass that contains such values.
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
                # 1 and 1.0 are equal, so they must have the same encoding.
                fields[name] = plain(float(entry) if kind is float else entry)
            return fields
        if isinstance(value, Mapping):
            # Entries are sorted, so that equal mappings have the same encoding.
            return {name: plain(value[name]) for name in sorted(value)}
        if isinstance(value, tuple | list):
            return [plain(entry) for entry in value]
        return value

    header = json.dumps(plain(message)).encode()
    return b"".join([len(header).to_bytes(_LENGTH_BYTES, "big"), header, *contents])


def digest(message: object) -> bytes:
    """Returns the identifier of a message: the SHA-256 digest of its encoding, 32 bytes.

    Different messages of the same types have different encodings. To sign or hash several types for
    different purposes, pass a tuple whose first entry names the purpose.
    """
    return hashlib.sha256(encode(message)).digest()


def decode(kind: Any, content: bytes) -> Any:
    """Decodes a message of a given type.

    Args:
        kind: expected type of the message. In a union of dataclasses, the name of the class in the
            message selects the type.
        content: encoded message, which may come from an untrusted sender.

    Raises:
        ValueError: if the content is not a message of this type, or a value is out of range.
    """
    body = io.BytesIO(content)
    length = int.from_bytes(body.read(_LENGTH_BYTES), "big")
    try:
        header = json.loads(
            body.read(min(length, len(content))),
            parse_constant=_refuse,
            object_pairs_hook=object_of_pairs,
        )
    except (ValueError, RecursionError):
        _refuse()
    try:
        message = _value(kind, header, body)
    except (RecursionError, OverflowError):
        _refuse()
    if body.read(1):
        _refuse()
    return message


@functools.cache
def _field_types(kind: type) -> dict[str, Any]:
    """Maps the name of each argument of a dataclass's constructor to its type."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _refuse(what: object = None) -> NoReturn:
    del what  # not shown, because the sender of the message controls it
    raise ValueError("this is not a message of the protocol")


def _value(kind: Any, value: Any, body: io.BytesIO) -> Any:
    """Decodes a value of type `kind` from a part of the header; raises ValueError if invalid.

    Args:
        kind: expected type of the value.
        value: the part of the JSON header.
        body: the contents of bytes and arrays that follow the header.
    """
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        kind = _member(typing.get_args(kind), value)
        origin = typing.get_origin(kind)
    if kind in (None, types.NoneType):
        return _refuse() if value is not None else None
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, body)
    if origin is np.ndarray:
        return _array(typing.get_args(kind)[1], value, body)
    if origin is tuple:
        return _tuple(typing.get_args(kind), value, body)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            _refuse()
        of_entries = typing.get_args(kind)[1]
        return {name: _value(of_entries, entry, body) for name, entry in value.items()}
    if kind is bytes:
        return _bytes(value, body)
    if issubclass(kind, enum.Enum):
        return kind(value) if value in [member.value for member in kind] else _refuse()
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else _refuse()


def _member(kinds: tuple[Any, ...], value: Any) -> Any:
    """Returns the type in a union that an encoded value names; by default, the first type."""
    if value is None and types.NoneType in kinds:
        return None
    name = value.get(_TYPE) if isinstance(value, dict) else None
    members = [kind for kind in kinds if kind is not types.NoneType]
    return next((member for member in members if member.__name__ == name), members[0])


def _dataclass(kind: Any, value: Any, body: io.BytesIO) -> Any:
    """Decodes a dataclass; raises ValueError if the class name or the fields do not match."""
    fields = _field_types(kind)
    is_whole = isinstance(value, dict) and value.keys() == {_TYPE, *fields}
    if not is_whole or value[_TYPE] != kind.__name__:
        _refuse()
    return kind(**{name: _value(of, value[name], body) for name, of in fields.items()})


def _tuple(kinds: tuple[Any, ...], value: Any, body: io.BytesIO) -> tuple[Any, ...]:
    """Decodes a tuple of the given types; `(kind, ...)` means any number of values of `kind`."""
    if not isinstance(value, list):
        _refuse()
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        _refuse()
    return tuple(_value(kind, entry, body) for kind, entry in zip(kinds, value, strict=True))


def _bytes(length: Any, body: io.BytesIO) -> bytes:
    """Returns the next `length` bytes of the content."""
    if type(length) is not int or length < 0:
        _refuse()
    content = body.read(length)
    return content if len(content) == length else _refuse()


def _array(dtype_hint: Any, value: Any, body: io.BytesIO) -> npt.NDArray[Any]:
    """Decodes an array of finite numbers, which is read-only; raises ValueError if invalid."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data"}:
        _refuse()
    content = _bytes(value["data"], body)
    shape = _value(tuple[int, ...], value["shape"], body)
    scalar = (*typing.get_args(dtype_hint), Any)[0]
    expected = DTYPES if scalar is Any else (np.dtype(scalar).str,)
    if value["dtype"] not in expected:
        raise ValueError(f"the array must have the type {' or '.join(expected)}")
    dtype = np.dtype(value["dtype"])
    if not 1 <= len(shape) <= MAX_AXES or min(shape) < 1:
        raise ValueError(f"the array must have 1 to {MAX_AXES} axes and at least one entry")
    if math.prod(shape) * dtype.itemsize != len(content):  # Python integers don't overflow
        raise ValueError("the array has a number of bytes that does not match its shape")
    array = np.frombuffer(content, dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("the array has NaN or infinite entries")
    return array
