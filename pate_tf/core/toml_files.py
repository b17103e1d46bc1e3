"""Reads and checks the values of TOML files. Error messages are one line with the file name."""

import math
import pathlib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pate_tf.core.checks import between, refuse, whole
from pate_tf.core.settings import described, value_type


class Fields:
    """Reads the values of a TOML table by name. `end` reports values that were not read.

    Args:
        where: name of the file and of the table, for messages.
        values: table that the TOML parser returned.
    """

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} must be a table")
        self._where = where
        self._values = dict(values)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Fields":
        """Returns the fields of a TOML file.

        Raises:
            ValueError: if the file is not a TOML file.
            OSError: if the file can't be read.
        """
        try:
            return cls(str(path), tomllib.loads(path.read_bytes().decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{path} is not a TOML file: {reason}") from None

    def number(self, name: str, *, above: float = 0.0) -> float:
        """Returns a finite number above `above`."""
        value = self._take(name)
        between(above, math.inf, **{f"{self._where}: {name}": value})
        return float(value)

    def whole(self, name: str) -> int:
        """Returns a whole number of at least 0."""
        value = self._take(name)
        whole(0, **{f"{self._where}: {name}": value})
        return int(value)

    def text(self, name: str) -> str:
        """Returns a text that is not empty."""
        value = self._take(name)
        if not isinstance(value, str) or not value.strip():
            refuse(f"{self._where}: {name}", "a text", value)
        return value

    def texts(self, name: str, *, among: Sequence[str]) -> tuple[str, ...]:
        """Returns one or more different texts, all of which are contained in `among`."""
        value = self._take(name)
        if not isinstance(value, list) or not value or not all(text in among for text in value):
            refuse(f"{self._where}: {name}", f"a list of any of {', '.join(among)}", value)
        return tuple(dict.fromkeys(value))

    def settings(self, kind: type, *, without: Collection[str] = ()) -> dict[str, Any]:
        """Returns the table's values for the fields of a settings class, by field name."""
        values: dict[str, Any] = {}
        for name, each in described(kind).items():
            if self.has(name) and name not in without:
                is_of, is_list = value_type(kind, name)
                if is_list:
                    values[name] = self.texts(name, among=each.choices or ())
                elif is_of is float:
                    values[name] = self.number(name, above=-math.inf)
                else:
                    values[name] = self.whole(name) if is_of is int else self.text(name)
        return values

    def table(self, name: str) -> "Fields":
        """Returns the table with this name inside this table."""
        return Fields(f"{self._where}, [{name}]", self._take(name))

    def tables(self, name: str) -> list["Fields"]:
        """Returns the tables in an array of tables, which must contain at least one table."""
        value = self._take(name)
        if not isinstance(value, list) or not value:
            refuse(self._where, f"one or more [[{name}]]", value)
        return [
            Fields(f"{self._where}, [[{name}]] {place}", each)
            for place, each in enumerate(value, 1)
        ]

    def has(self, name: str) -> bool:
        """Whether the table contains an entry with this name."""
        return name in self._values

    def end(self) -> None:
        """Raises ValueError if the table contains an entry that was not read."""
        if self._values:
            names = ", ".join(sorted(self._values))
            raise ValueError(f"{self._where}: unknown entries {names}; remove them")

    def _take(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{self._where}: the entry {name} is missing")
        return self._values.pop(name)
