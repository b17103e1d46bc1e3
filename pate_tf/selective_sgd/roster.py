"""Who trains together across organisations, and how: a small TOML file that all of them have."""

import dataclasses
import hashlib
import json
import pathlib
import types
import typing
from collections.abc import Collection
from typing import Any

from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.settings import Settings
from pate_tf.values.names import check_name
from pate_tf.values.toml_fields import Fields, read_toml

RUN_BYTES = 16
# What looks at private records, or has no effect, where noise is Gaussian.
NOT_WITH_GAUSSIAN = ("selection", "tau", "gamma")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster:
    """The terms of a run. Public; every participant reads them before it joins.

    Attributes:
      run: name of the run.
      dataset: name that `data.catalogue` knows, or `module:function`: shapes and classes.
      model: as `models.network` takes it; None for the default of the data set.
      names: of the participants, as in their certificates; their order is that of round robin.
      settings: of the run.
      privacy: what protects uploads.
      holders: how many participants hold one record at most.

    Raises:
      ValueError: if something does not fit.
    """

    run: str
    dataset: str
    names: tuple[str, ...]
    settings: Settings
    model: str | None = None
    privacy: Privacy = dataclasses.field(default_factory=Privacy)
    holders: int = 1

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        for name in self.names:
            check_name(name, "participant")
        if len(set(self.names)) != len(self.names):
            raise ValueError("participants: expected different names, got one twice")
        if len(self.names) != self.settings.num_participants:
            raise ValueError(
                f"participants: expected {self.settings.num_participants}, got {len(self.names)}"
            )
        if not 1 <= self.holders <= len(self.names):
            raise ValueError(f"holders: expected from 1 to {len(self.names)}, got {self.holders}")
        if self.privacy.choice != "shared_seed":
            raise ValueError(
                "choice: expected shared_seed across organisations, where nobody sees what each "
                f"of the others uploads, got {self.privacy.choice}"
            )

    @property
    def run_id(self) -> bytes:
        """16 bytes that name the run: two ends that read other terms refuse each other."""
        terms = {
            **dataclasses.asdict(self),
            "settings": self.settings.to_dict(),
            "privacy": dataclasses.asdict(self.privacy),
        }
        return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).digest()[:RUN_BYTES]

    def number(self, name: str) -> int:
        """Returns the number of a participant, from 0.

        Raises:
          ValueError: if it is not on the roster.
        """
        if name not in self.names:
            raise ValueError("participant: expected one on the roster, got another")
        return self.names.index(name)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Roster":
        """Reads a roster.

        Raises:
          ValueError: if the file holds none; one line that says what was expected.
          OSError: if it can't be read.
        """
        fields = Fields(str(path), read_toml(path))
        try:
            return cls._of(fields, str(path))
        except ValueError as error:
            text = str(error)
            raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None

    @classmethod
    def _of(cls, fields: Fields, where: str) -> "Roster":
        names = []
        for one in fields.tables("participant"):
            names.append(check_name(one.text("name"), f"{where}: name"))
            one.end()
        privacy, holders = Privacy(), 1
        if fields.has("privacy"):
            table = fields.table("privacy")
            holders = table.whole("holders", default=1)
            privacy = Privacy(**_values(Privacy, table))
        given: dict[str, Any] = {}
        if fields.has("settings"):
            given = _values(Settings, fields.table("settings"), without={"num_participants"})
        if privacy.is_gaussian:
            for name in NOT_WITH_GAUSSIAN:
                if name in given:
                    raise ValueError(f"{name}: expected none with Gaussian noise, got one")
        found = cls(
            run=fields.text("run"),
            dataset=fields.text("dataset"),
            model=fields.text("model") if fields.has("model") else None,
            names=tuple(names),
            settings=Settings(num_participants=len(names), **{**defaults(privacy), **given}),
            privacy=privacy,
            holders=holders,
        )
        fields.end()
        return found


def defaults(privacy: Privacy) -> dict[str, Any]:
    """Returns the settings that go with a kind of privacy where nobody gives others."""
    if not privacy.is_gaussian:
        return {}
    rate = {"learning_rate": 1.0} if privacy.kind == "record" else {}
    return {"protocol": "synchronous", "upload": 1.0, **rate}


def _values(kind: type, table: Fields, without: Collection[str] = ()) -> dict[str, Any]:
    """Takes the fields of a dataclass from a table; it checks them itself."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if name in without or not table.has(name):
            continue
        plain = [one for one in typing.get_args(hint) if one is not types.NoneType] or [hint]
        if plain == [int]:
            found[name] = table.whole(name, least=0)
        elif plain == [float]:
            found[name] = table.number(name, above=float("-inf"))
        else:
            found[name] = table.text(name)
    table.end()
    return found
