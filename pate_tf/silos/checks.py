"""What messages are made of: queries and their digests, mechanisms with their parameters."""

import hashlib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

RANDOMISED_RESPONSE: Final = "randomised_response"
SECURE_HISTOGRAM: Final = "secure_histogram"

# The parameters of every mechanism, and whether each is a whole number.
MECHANISM_PARAMETERS: Final[Mapping[str, Mapping[str, bool]]] = {
    RANDOMISED_RESPONSE: {"epsilon": False},
    "truncated_geometric": {"epsilon": False},
    SECURE_HISTOGRAM: {"sigma": False, "num_parties": True, "threshold": True},
}


def query_digest(query: npt.NDArray[Any]) -> bytes:
    """Returns what a query is known by: SHA-256 of its type, shape and bytes, 32 bytes."""
    digest = hashlib.sha256(f"{query.dtype.str}{query.shape}".encode())
    digest.update(np.ascontiguousarray(query).tobytes())
    return digest.digest()


def query_digests(queries: npt.NDArray[Any]) -> tuple[bytes, ...]:
    """Returns the digest of each query of an array `[num_queries, ...]`."""
    return tuple(query_digest(query) for query in queries)


def checked_mechanism(mechanism: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the mechanism of a batch as a mapping that can't be written.

    Args:
      mechanism: a name, and exactly the parameters that `MECHANISM_PARAMETERS` lists for it.

    Raises:
      ValueError: if the name is unknown, or a parameter is missing, unknown or not a positive
        finite number.
    """
    values = dict(mechanism)
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in MECHANISM_PARAMETERS:
        raise ValueError(f"mechanism: expected one of {sorted(MECHANISM_PARAMETERS)}, got another")
    expected = MECHANISM_PARAMETERS[name]
    if set(values) != set(expected):
        raise ValueError(
            f"mechanism {name}: expected the parameters {sorted(expected)}, got others"
        )
    checked: dict[str, Any] = {"name": name}
    for parameter, is_whole in expected.items():
        value = values[parameter]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"mechanism {name}: expected a number as {parameter}, got another")
        if not (math.isfinite(value) and value > 0) or (is_whole and value != int(value)):
            kind = "whole number" if is_whole else "number"
            raise ValueError(f"mechanism {name}: expected a positive {kind} as {parameter}")
        checked[parameter] = int(value) if is_whole else float(value)
    return MappingProxyType(checked)


def check_queries(queries: object) -> None:
    """Checks that something is a batch of queries.

    Raises:
      ValueError: unless it is an array of uint8 or float32, `[num_queries, ...]`, at least one
        query of at least one number, all finite.
    """
    if not isinstance(queries, np.ndarray):
        raise ValueError(f"queries: expected an array, got {type(queries).__name__}")
    if queries.dtype.str not in (np.dtype("uint8").str, np.dtype("<f4").str):
        raise ValueError(f"queries: expected uint8 or float32, got {queries.dtype}")
    if queries.ndim < 2 or not queries.size:
        raise ValueError(f"queries: expected [num_queries, ...], got shape {queries.shape}")
    if queries.dtype.kind == "f" and not np.isfinite(queries).all():
        raise ValueError("queries: expected finite numbers, got NaN or infinite ones")
