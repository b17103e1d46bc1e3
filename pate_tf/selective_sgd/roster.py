"""Who trains together across organisations, and how: a small TOML file that all of them have."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Collection
from typing import Any

from pate_tf.core.settings import Settings as CheckedSettings
from pate_tf.core.settings import described, value_type
from pate_tf.core.validation import Fields, check_name
from pate_tf.selective_sgd.settings import Privacy, Settings

RUN_BYTES = 16


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
                "choice: expected shared_seed across organisations, where no participant sees "
                f"the uploads of the others, got {self.privacy.choice}"
            )

    @property
    def run_id(self) -> bytes:
        """16 bytes that name the run: two ends that read other terms refuse each other."""
        terms = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(terms.encode()).digest()[:RUN_BYTES]

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
        fields = Fields.read(path)
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
        given: dict[str, Any] = {"num_participants": len(names)}
        if fields.has("settings"):
            given |= _values(Settings, fields.table("settings"), without=given)
        found = cls(
            run=fields.text("run"),
            dataset=fields.text("dataset"),
            model=fields.text("model") if fields.has("model") else None,
            names=tuple(names),
            settings=Settings.with_defaults_of(privacy, given),
            privacy=privacy,
            holders=holders,
        )
        fields.end()
        return found


def _values(
    kind: type[CheckedSettings], table: Fields, without: Collection[str] = ()
) -> dict[str, Any]:
    """Takes the settings of a dataclass from a table; it checks them itself."""
    take: dict[type, Callable[[str], Any]] = {
        int: functools.partial(table.whole, least=0),
        float: functools.partial(table.number, above=-math.inf),
        str: table.text,
    }
    names = [name for name in described(kind) if name not in without and table.has(name)]
    found = {name: take[value_type(kind, name)[0]](name) for name in names}
    table.end()
    return found
