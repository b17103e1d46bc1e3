"""The store of a ledger: its rows, what they add up to, and what its user is held to."""

import math
import pathlib
import secrets
from collections.abc import Sequence
from typing import cast

from pate_tf.accounting import composition
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.ledger.budget import Budget
from pate_tf.ledger.database import MIGRATIONS
from pate_tf.ledger.rows import BudgetMismatch, EnsembleMismatch, LedgerError, LedgerRow
from pate_tf.ledger.store import Store
from pate_tf.values.record_set import RecordSet


class Account(Store):
    """A store with its running sums.

    Attributes:
      budget: what the rows add up to, as far as this object has read them.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        ensemble_digest: str | None = None,
        records: RecordSet | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files; without an ensemble to read alone. See `Store`."""
        super().__init__(
            folder,
            subject=None if ensemble_digest is None else ("ensemble", ensemble_digest),
            records=records,
            acknowledge_reset=acknowledge_reset,
        )
        self.budget = Budget()

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return cast(pathlib.Path, self.chain.folder)

    def _record(self, row: LedgerRow) -> None:
        if row.kind == "opened" and "ensemble_digest" not in row.details:
            raise LedgerError(f"{self.folder}: expected the ledger of an ensemble, got another's")
        self.budget.record(row)

    def open_ledger(
        self,
        *,
        ensemble_digest: str,
        delta: float,
        epsilon_budget: float | None,
        student_runs: Sequence[pathlib.Path],
        planned_release: PlannedRelease | None,
    ) -> None:
        """Opens a ledger that is new, else holds it to what it was opened with.

        For arguments and errors see `Ledger.open`.
        """

        def opening(is_missing: bool) -> dict[str, object]:
            # The published head is a hash of everything from here on; the salt keeps it from
            # confirming a guess at the ensemble, and so at the private data.
            return {
                "schema_version": len(MIGRATIONS),
                "salt": secrets.token_hex(32),
                "ensemble_digest": ensemble_digest,
                "epsilon_budget": epsilon_budget,
                "delta": delta,
                "acknowledged": is_missing,
                # The limit of the ledger that is gone is not known any more.
                "raised": is_missing,
                "planned_release": (planned_release or PlannedRelease()).to_dict(),
            }

        def verify() -> None:
            known = self.budget
            if known.ensemble_digest != ensemble_digest:
                raise EnsembleMismatch(
                    f"{self.folder}: expected the ensemble that this ledger was opened for, got "
                    f"another ensemble"
                )
            if delta != known.delta or (
                known.epsilon_budget is not None
                and epsilon_budget not in (None, known.epsilon_budget)
            ):
                raise BudgetMismatch(
                    f"{self.folder}: expected epsilon_budget {known.epsilon_budget} and delta "
                    f"{known.delta}, fixed at first use, got {epsilon_budget} and {delta}"
                )
            if planned_release is not None and known.planned_release is not None:
                self._check_plan(planned_release, known.planned_release)

        self.open_or_verify(opening, verify, runs=student_runs)
        with self.exclusive():
            if epsilon_budget is not None and self.budget.epsilon_budget is None:
                self.replace_budget(epsilon_budget, delta)
            if planned_release is not None:
                self.plan_release(planned_release)
        self.warn_of_others(self.budget.paid, self.budget.delta)

    def plan_release(self, planned: PlannedRelease) -> None:
        """Fixes how the data-dependent cost is released; see `Ledger.plan_release`."""
        fixed = self.budget.planned_release
        if fixed is None:
            self.write("planned", {"release": planned.to_dict()})
        else:
            self._check_plan(planned, fixed)

    def replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        """Puts another budget and delta in force; a row reports it for ever."""
        known = self.budget
        old = math.inf if known.epsilon_budget is None else known.epsilon_budget
        details = {
            "epsilon_budget": epsilon_budget,
            "delta": delta,
            "previous_epsilon_budget": known.epsilon_budget,
            "previous_delta": known.delta,
            "raised": epsilon_budget > old or delta > known.delta,
        }
        return self.write("budget", details)

    def check_not_spent(self, epsilon_budget: float, delta: float) -> None:
        """Raises ValueError if more than a new budget was spent already."""
        spent, _ = composition.smallest_epsilon(self.budget.paid, delta)
        if spent > epsilon_budget:
            raise ValueError(
                f"epsilon_budget: expected at least what this ensemble has spent, epsilon "
                f"{rounded_up(spent)} at delta {delta:g}, got {epsilon_budget:g}"
            )

    def _check_plan(self, planned: PlannedRelease, fixed: PlannedRelease) -> None:
        """Raises BudgetMismatch if another plan was fixed."""
        said, known = planned.to_dict(), fixed.to_dict()
        if differing := [name for name in known if said[name] != known[name]]:
            raise BudgetMismatch(
                f"{self.folder}: expected "
                + ", ".join(f"{name} {known[name] or 'as planned'}" for name in differing)
                + " of the release, fixed when the ledger was opened, before there were votes; got "
                + ", ".join(f"{said[name] or 'as planned'}" for name in differing)
            )


def check_budget(epsilon_budget: float) -> None:
    """Raises ValueError unless a budget is positive and finite."""
    if not 0.0 < epsilon_budget < math.inf:
        raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget}")
