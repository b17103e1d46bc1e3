"""Who trains together across organisations, and how: a small TOML file that all of them have."""

import dataclasses
import hashlib
import json
import math
import pathlib
import types
import typing
from collections.abc import Collection
from typing import Any

from pate_tf.accounting.noisy_training import Training
from pate_tf.core import artifacts
from pate_tf.core.validation import Fields, check_name, read_toml
from pate_tf.selective_sgd.privacy import Payment, Privacy
from pate_tf.selective_sgd.settings import Settings

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


# What participants say that they paid, as the server keeps it.


_HEXADECIMAL = frozenset("0123456789abcdef")
_DIGITS_OF_DIGEST = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared:
    """What one participant's own ledger says. Public; nobody can check it but its auditors.

    Attributes:
      epsilon: of all that its ledger ever paid for, at `delta`.
      delta: of the ledger.
      ledger_head: sequence and digest of the last row of its ledger.
      secure_noise: False if anything was paid for that used predictable noise.
      was_reset: whether an earlier ledger of the participant was gone.
      num_records: how many it has, where single records are protected; None otherwise.
      epsilon_all_ensembles: of all ensembles and runs of its records that it knows of, at
        `delta_all_ensembles`; None if nothing kept account of them.
      delta_all_ensembles: None likewise.
      num_ledgers: how many ledgers were counted for it; None likewise.

    Raises:
      ValueError: if a value is out of its range.
    """

    epsilon: float
    delta: float
    ledger_head: tuple[int, str]
    secure_noise: bool
    was_reset: bool
    num_records: int | None = None
    epsilon_all_ensembles: float | None = None
    delta_all_ensembles: float | None = None
    num_ledgers: int | None = None

    def __post_init__(self) -> None:
        for epsilon in (self.epsilon, self.epsilon_all_ensembles):
            if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0.0):
                raise ValueError("paid: expected a finite epsilon above 0, got another")
        for delta in (self.delta, self.delta_all_ensembles):
            if delta is not None and not 0.0 < delta < 1.0:
                raise ValueError("paid: expected delta between 0 and 1, got another")
        if (self.epsilon_all_ensembles is None) != (self.delta_all_ensembles is None):
            raise ValueError("paid: expected epsilon and delta of all ensembles, got one of them")
        sequence, digest = self.ledger_head
        if sequence < 1 or len(digest) != _DIGITS_OF_DIGEST or set(digest) - _HEXADECIMAL:
            raise ValueError("paid: expected the head of a ledger, got something else")
        if self.num_records is not None and self.num_records < 1:
            raise ValueError("paid: expected at least one record, got none")

    @classmethod
    def of(cls, payment: Payment, num_records: int | None) -> "Declared":
        """Returns what a payment says to others."""
        fields = {one.name: getattr(payment, one.name) for one in dataclasses.fields(payment)}
        del fields["charge"]
        return cls(num_records=num_records, **fields)

    def payment(self, charge: Training) -> Payment:
        """Returns the payment for a charge."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        del fields["num_records"]
        return Payment(charge=charge, **fields)


class Declarations:
    """Keeps what participants declared, a file for each.

    Args:
      folder: where they lie.

    Raises:
      OSError: if it can't be written.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = artifacts.make_sensitive_folder(folder)

    def keep(self, participant: int, declared: Declared) -> None:
        """Keeps the word of a participant, the last it gave: its ledger may have paid more since.

        Raises:
          OSError: if it can't be written.
        """
        if self.of(participant) != declared:
            artifacts.write_json(self._path(participant), dataclasses.asdict(declared))

    def of(self, participant: int) -> Declared | None:
        """Returns what a participant declared; None if nothing."""
        if not self._path(participant).exists():
            return None
        fields: dict[str, Any] = artifacts.read_json(self._path(participant))
        sequence, digest = fields.pop("ledger_head")
        return Declared(ledger_head=(sequence, digest), **fields)

    def _path(self, participant: int) -> pathlib.Path:
        return self._folder / f"{participant:04d}.json"
