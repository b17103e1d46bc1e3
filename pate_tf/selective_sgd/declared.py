"""What participants say that they paid, as the server keeps it."""

import dataclasses
import math
import pathlib
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.noisy_training import Training
from pate_tf.selective_sgd.payment import Payment

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
