"""What a ledger tells: what was released, what it cost, what is left. Nothing here writes."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.moved_teachers import replaced_owner_epsilon
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.ledger.account import Account
from pate_tf.ledger.rollback_guard import AllEnsembles
from pate_tf.ledger.rows import (
    Head,
    LedgerError,
    LedgerRow,
    Spending,
    StoredAnswer,
    canonical_json,
)
from pate_tf.ledger.together import compose


class LedgerView:
    """A ledger as whoever asks it sees it; `Ledger` is made from it.

    Args:
      account: its rows, and what they add up to.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._chain, self._budget = account.chain, account.budget

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return self._account.folder

    @property
    def head(self) -> Head:
        """The last row known to this object, for a statement to quote."""
        return self._chain.head

    @property
    def ensemble_digest(self) -> str:
        """Digest of the ensemble that this ledger was opened for."""
        return str(self._budget.ensemble_digest)

    @property
    def epsilon_budget(self) -> float | None:
        """The budget in force; None if there is none."""
        return self._budget.epsilon_budget

    @property
    def delta(self) -> float:
        """The delta in force."""
        return self._budget.delta

    @property
    def was_raised(self) -> bool:
        """True for ever once the budget or its delta was raised."""
        return self._budget.was_raised

    @property
    def planned_release(self) -> PlannedRelease | None:
        """How the data-dependent cost will be released; None if that was never fixed."""
        return self._budget.planned_release

    @property
    def plan_is_late(self) -> bool:
        """Whether that was fixed when there may have been votes already."""
        return self._budget.plan_is_late

    @property
    def was_reset(self) -> bool:
        """True for ever once somebody went on although rows or an earlier ledger were gone."""
        return self._account.was_reset

    @property
    def is_registered(self) -> bool:
        """Whether a registry notes what this ledger does; see `pate_tf.ledger.registry`."""
        guard = self._account.guard
        return guard is not None and guard.is_kept

    @property
    def is_secure(self) -> bool:
        """False for ever once a single debit or release used predictable noise."""
        return self._budget.is_secure

    @property
    def num_queries(self) -> int:
        """How many queries were paid for, answered or not."""
        return self._budget.num_queries

    @property
    def num_answered(self) -> int:
        """How many queries have a label as their answer."""
        return self._budget.num_answered

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        return self._account.history()

    def paid(self) -> dict[Charge, int]:
        """Returns what was paid for, answered or not, and how often."""
        return dict(self._budget.paid)

    def holds(self, head: Head) -> bool:
        """Whether this ledger contains the row that a statement quoted."""
        return self._chain.holds(head)

    def spent(self, delta: float | None = None, *, conversion: str = "improved") -> Spending:
        """Returns what all debits cost; see `compose`.

        What other ledgers of the ensemble charged is among them, as of the last `exclusive`.

        Args:
          delta: default: the ledger's own.
          conversion: "improved" (default) or "classic".

        Raises:
          ValueError: if delta is outside (0, 1) or the conversion is unknown.
        """
        return compose([self], delta=self.delta if delta is None else delta, conversion=conversion)

    def all_ensembles(self) -> AllEnsembles | None:
        """Returns what all known ensembles of the same private records paid, this one included.

        As far as this user's registry knows. None without one.
        """
        return self._account.all_ensembles()

    def replaced_owner_epsilon(self) -> float:
        """Returns what all debits cost against replacing an owner, at the ledger's delta.

        For an ensemble that protects owners; `spent` then counts an owner added or removed.
        """
        return replaced_owner_epsilon(self._budget.paid, self.delta)

    def remaining(self) -> float | None:
        """Returns the budget less what was spent, at least 0; None if there is no budget.

        Costs don't add up as epsilons: `affordable` says what still fits.
        """
        if self.epsilon_budget is None:
            return None
        return max(0.0, self.epsilon_budget - self.spent().epsilon)

    def affordable(self, charge: Charge) -> int | None:
        """Returns how many more of `charge` fit, queries of a mechanism for one.

        None if there is no budget.
        """
        return self._budget.affordable(charge)

    def to_dp_events(self) -> Any:
        """Returns one `dp_accounting` event for all debits, for its RDP accountant.

        Noisy max has no event of its own, so each charge becomes one that is never cheaper, under
        any neighbouring relation: see `Charge.to_dp_event`. Randomised response would be tighter
        for pure mechanisms, but the PLD accountant of dp-accounting 0.6 counts a self-composed one
        only once.

        Returns:
          A `dp_accounting.ComposedDpEvent`, a part for each charge.

        Raises:
          ImportError: if the optional package dp-accounting is missing.
          LedgerError: if something was paid for that has no event.
        """
        try:
            return composition.to_dp_event(self._budget.paid)
        except ValueError as error:
            raise LedgerError(f"{self.folder}: {error}") from error

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist already, by query digest."""
        return self._chain.stored_answers(queries)

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `number` more of `charge` fit in the worst case.

        Raises:
          BudgetExceeded: if they don't; the message says how many would.
          LedgerError: if the charge has no finite guarantee.
        """
        self._budget.check_affordable(charge, number)

    def seal(self, content: Mapping[str, Any]) -> str:
        """Returns a digest of JSON values that nobody can make without this ledger.

        Keyed by the secret salt of the first row: what was given out can be recognised later.
        """
        return self._account.seal(canonical_json(dict(content)).encode()).hex()

    def kept_release(self) -> Mapping[str, Any] | None:
        """Returns what `store_release` kept last; None if there was no draw."""
        found = [row.details["kept"] for row in self._chain.rows() if row.kind == "released"]
        return found[-1] if found else None
