"""Who takes part in a run across organizations: a small TOML file that all of them have."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import pathlib
from typing import ClassVar, Self

from pate_tf.core.validation import Fields, check_name

RUN_BYTES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster(abc.ABC):
    """The public terms of a run. A subclass adds its own, and takes them from the file's fields.

    Attributes:
        run: name of the run.
        names: of those who take part, as in their certificates.
        role: what they are called in the file: `[[role]]` with a name each.

    Raises ValueError if a name can't stand in a certificate, or there is one twice or none.
    """

    role: ClassVar[str]
    run: str
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        for name in self.names:
            check_name(name, self.role)
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"{self.role}: expected one or more of different names, got others")

    @property
    def run_id(self) -> bytes:
        """16 bytes that name the run: two ends that read other terms refuse each other."""
        terms = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(terms.encode()).digest()[:RUN_BYTES]

    def number(self, name: str) -> int:
        """Returns the place of a name on the roster, from 0; raises ValueError without one."""
        if name not in self.names:
            raise ValueError(f"{self.role}: expected one on the roster, got another")
        return self.names.index(name)

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads a roster.

        Raises:
            ValueError: if the file holds none; one line that says what was expected.
            OSError: if it can't be read.
        """
        fields = Fields.read(path)
        try:
            roster = cls.of_fields(fields)
            fields.end()
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None
        return roster

    @classmethod
    @abc.abstractmethod
    def of_fields(cls, fields: Fields) -> Self:
        """Takes the roster from the fields of its file."""
