"""What the rows of a ledger add up to: what was spent, and what may still be."""

import collections
import math

from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.ledger import composition
from pate_tf.ledger.rows import BudgetExceeded, LedgerError, LedgerRow


class Budget:
    """The running sum over the rows of one ledger.

    Attributes:
      ensemble_digest: digest of the ensemble; None before the first row.
      epsilon_budget: the budget in force; None if there is none.
      delta: the delta in force.
      totals: queries paid for, by mechanism.
      num_answered: queries whose answer is a label.
      is_secure: False once a debit used predictable noise.
      was_raised: True once the budget or its delta was raised.
    """

    def __init__(self) -> None:
        self.ensemble_digest: str | None = None
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.totals: collections.Counter[Mechanism] = collections.Counter()
        self.num_answered = 0
        self.is_secure = True
        self.was_raised = False

    def record(self, row: LedgerRow) -> None:
        """Adds the next row."""
        details = row.details
        if row.kind == "debit":
            mechanism = mechanism_from_dict(details["mechanism"])
            self.totals[mechanism] += details["num_queries"]
            self.is_secure &= details["secure_noise"]
        elif row.kind == "answers":
            self.num_answered += details["num_answered"]
        else:
            if row.kind == "opened":
                self.ensemble_digest = details["ensemble_digest"]
            self.epsilon_budget = details["epsilon_budget"]
            self.delta = details["delta"]
            self.was_raised |= details.get("raised", False)

    def epsilon_by_moments(self, mechanism: Mechanism, num_more: int) -> float:
        """Returns what everything costs by moments after `num_more` queries of `mechanism`."""
        return composition.moments_epsilon(self._with(mechanism, num_more), self.delta)[0]

    def affordable_queries(self, mechanism: Mechanism) -> int | None:
        """Returns how many more queries of `mechanism` fit; None if there is no budget."""
        if self.epsilon_budget is None:
            return None
        fits, exceeds = 0, 1
        while self._fits(mechanism, exceeds):
            fits, exceeds = exceeds, 2 * exceeds
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            fits, exceeds = (middle, exceeds) if self._fits(mechanism, middle) else (fits, middle)
        return fits

    def check_affordable(self, mechanism: Mechanism, num_queries: int) -> None:
        """Checks that a whole batch fits in the worst case; see `Ledger.check_affordable`."""
        alone, _ = composition.moments_epsilon({mechanism: num_queries}, self.delta)
        if math.isinf(alone):
            raise LedgerError(
                f"expected a mechanism with a finite guarantee, got {mechanism}: nothing private "
                "may be released through it"
            )
        if self._fits(mechanism, num_queries):
            return
        affordable = self.affordable_queries(mechanism) or 0
        spent, _ = composition.smallest_epsilon(self.totals, self.delta)
        raise BudgetExceeded(
            f"epsilon_budget: expected at most {affordable} new queries of {mechanism}, got "
            f"{num_queries}: epsilon {spent:.4g} of {self.epsilon_budget} at delta {self.delta} is "
            "spent",
            num_affordable=affordable,
        )

    def _fits(self, mechanism: Mechanism, num_more: int) -> bool:
        totals = self._with(mechanism, num_more)
        return composition.fits(totals, self.delta, self.epsilon_budget)

    def _with(self, mechanism: Mechanism, num_more: int) -> composition.Totals:
        return self.totals + collections.Counter({mechanism: num_more})
