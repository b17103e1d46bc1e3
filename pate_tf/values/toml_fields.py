"""Reads small TOML files into checked values; every mistake is one line that names the file."""

import math
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Returns the tables of a TOML file.

    Raises:
      ValueError: if it is no TOML.
      OSError: if it can't be read.
    """
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: expected TOML, got something else: {reason}") from None


class Fields:
    """Takes the values of one table one by one; what is left at the end is a mistake.

    Args:
      where: begins every message: the file and the table.
      values: of the table.
    """

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: expected a table, got something else")
        self._where = where
        self._values = dict(values)

    def number(self, name: str, *, above: float = 0.0, most: float = math.inf) -> float:
        """Returns a finite number above `above` and up to `most`."""
        value = self._take(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not above < value <= most:
            limit = "" if math.isinf(most) else f" and up to {most:g}"
            raise ValueError(
                f"{self._where}: expected {name} as a number above {above:g}{limit}, got {value!r}"
            )
        return float(value)

    def whole(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        """Returns a whole number of at least `least`."""
        if default is not None and name not in self._values:
            return default
        value = self._take(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"{self._where}: expected {name} as a whole number of at least {least}, got "
                f"{value!r}"
            )
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """Returns a text that is not empty."""
        if default is not None and name not in self._values:
            return default
        value = self._take(name)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{self._where}: expected {name} as a text, got {value!r}")
        return value

    def texts(self, name: str, *, among: Sequence[str]) -> tuple[str, ...]:
        """Returns a list of one or more different texts of `among`."""
        value = self._take(name)
        if not isinstance(value, list) or not value or not all(one in among for one in value):
            raise ValueError(
                f"{self._where}: expected {name} as a list of {', '.join(among)}, got {value!r}"
            )
        return tuple(dict.fromkeys(value))

    def table(self, name: str) -> "Fields":
        """Returns a table inside of this one."""
        return Fields(f"{self._where}, [{name}]", self._take(name))

    def tables(self, name: str) -> list["Fields"]:
        """Returns an array of one or more tables."""
        value = self._take(name)
        if not isinstance(value, list) or not value:
            raise ValueError(f"{self._where}: expected one or more [[{name}]], got none")
        return [
            Fields(f"{self._where}, [[{name}]] {place}", one) for place, one in enumerate(value, 1)
        ]

    def has(self, name: str) -> bool:
        """Whether there is such a value."""
        return name in self._values

    def end(self) -> None:
        """Raises ValueError if something was not taken."""
        if self._values:
            names = ", ".join(sorted(self._values))
            raise ValueError(f"{self._where}: expected nothing else, got {names}")

    def _take(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{self._where}: expected {name}, got none")
        return self._values.pop(name)
