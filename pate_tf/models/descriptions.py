"""Descriptions: JSON values that say what something is, to be kept and compared.

Two kinds of values are compared in ways of their own: numbers made by `near` may differ by
rounding, and `UNKNOWN` equals anything.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts

UNKNOWN = "unknown"
LONGEST_VALUE = 80  # characters of a value in a message
DEEPEST = 20  # objects within objects; what lies deeper counts by its class
DIGEST = re.compile(r"[0-9a-f]{64}")


def difference(found: Any, wanted: Any) -> str | None:
    """Says in a few words where two descriptions differ first; None if they do not.

    Digests are told apart and never shown: that of private records would help to guess them.

    Args:
      found: JSON values, as they were kept in a folder.
      wanted: JSON values, as they are now.
    """
    path: list[str] = []
    while True:
        if _same(found, wanted):
            return None
        if isinstance(found, Mapping) and isinstance(wanted, Mapping) and "near" not in wanted:
            keys = [*wanted, *(key for key in found if key not in wanted)]
            key = next(key for key in keys if not _same_at(found, wanted, key))
            path.append(str(key))
            found, wanted = found.get(key), wanted.get(key)
        elif isinstance(found, list) and isinstance(wanted, list):
            pairs = enumerate(zip(found, wanted, strict=False))
            place = next((i for i, pair in pairs if not _same(*pair)), None)
            if place is None:
                found, wanted = len(found), len(wanted)
            else:
                path.append(str(place))
                found, wanted = found[place], wanted[place]
        else:
            values = (_shown(found), _shown(wanted))
            if "" in values or values[0] == values[1]:
                return f"{' '.join(path)}: others in this folder than now"
            return f"{' '.join(path)}: {values[0]} in this folder, {values[1]} now"


def _same_at(found: Mapping[str, Any], wanted: Mapping[str, Any], key: str) -> bool:
    return key in found and key in wanted and _same(found[key], wanted[key])


def _same(one: Any, other: Any) -> bool:
    if UNKNOWN in (one, other):
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return False
        if "near" in one:
            return _is_near(one, other)
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _is_near(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    numbers = np.array(one["near"]), np.array(other["near"])
    if numbers[0].shape != numbers[1].shape:
        return False
    return bool((np.abs(numbers[0] - numbers[1]) <= max(one["within"], other["within"])).all())


def _shown(value: Any) -> str:
    """A value as a message shows it; empty if it shows none."""
    if isinstance(value, str):
        return "" if DIGEST.fullmatch(value) else value[:LONGEST_VALUE]
    if isinstance(value, Mapping):
        return str(value.get("class", ""))[:LONGEST_VALUE]
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else ""


def certain(describe: Callable[[], Any]) -> dict[str, Any]:
    """Describes twice; what differs, because something draws at random, is `UNKNOWN`.

    Args:
      describe: returns JSON values, an object at the top.
    """
    # A trip through JSON turns tuples into lists, as they are read back.
    one, other = (json.loads(json.dumps(describe())) for _ in range(2))
    kept = _common(one, other)
    return kept if isinstance(kept, dict) else {"class": UNKNOWN}


def _common(one: Any, other: Any) -> Any:
    if _same(one, other):
        return one
    are_objects = isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()
    if are_objects and "near" not in one:
        return {key: _common(one[key], other[key]) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_common(*pair) for pair in zip(one, other, strict=True)]
    return UNKNOWN


def near(numbers: npt.NDArray[Any], within: float) -> Any:
    """Describes numbers that may differ by rounding; `UNKNOWN` if one is not finite.

    Args:
      numbers: of any shape.
      within: the largest difference that is none.
    """
    if not (np.isfinite(numbers).all() and math.isfinite(within)):
        return UNKNOWN
    return {"near": np.ravel(numbers).astype(np.float64).tolist(), "within": within}


def plain(value: Any, depth: int = 0) -> Any:
    """Describes any value, without addresses: objects by their class and what they hold.

    Functions go by their names, arrays by their digests. `random_state` is left out.

    Args:
      value: of any type.
      depth: how many objects it lies within.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return plain(value.item(), depth)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return artifacts.digest_array(value)
    if isinstance(value, type) or hasattr(value, "__name__"):
        return qualified_name(value)
    kind = qualified_name(type(value))
    if depth == DEEPEST:
        return kind
    inner = functools.partial(plain, depth=depth + 1)
    if isinstance(value, Mapping):
        return {str(key): inner(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(inner, value), key=json.dumps)
    if isinstance(value, (list, tuple, range, np.ndarray)):
        return [inner(each) for each in value]
    if isinstance(value, functools.partial):
        return {"class": inner(value.func), "args": inner(value.args), **inner(value.keywords)}
    if hasattr(value, "get_params"):
        held = value.get_params(deep=False)
    else:
        held = getattr(value, "__dict__", {})
    kept = {str(key): inner(each) for key, each in held.items() if key != "random_state"}
    return {"class": kind, **kept}


def qualified_name(named: Any) -> str:
    """Returns `module.name` of a class or a function."""
    name = getattr(named, "__qualname__", None) or named.__name__
    return f"{getattr(named, '__module__', None) or type(named).__module__}.{name}"
