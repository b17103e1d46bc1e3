"""What the rows of a ledger add up to: what was spent, and what may still be."""

import math

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.plan import ReleasePlan
from pate_tf.ledger import composition
from pate_tf.ledger.composition import Paid
from pate_tf.ledger.rows import BudgetExceeded, LedgerError, LedgerRow


class Budget:
    """The running sum over the rows of one ledger.

    Attributes:
      ensemble_digest: digest of the ensemble; None before the first row.
      epsilon_budget: the budget in force; None if there is none.
      delta: the delta in force.
      paid: what was paid for.
      num_answered: queries whose answer is a label.
      is_secure: False once a debit or a release used predictable noise.
      was_raised: True once the budget or its delta was raised.
    """

    def __init__(self) -> None:
        self.ensemble_digest: str | None = None
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.paid = Paid()
        self.num_answered = 0
        self.is_secure = True
        self.was_raised = False

    def record(self, row: LedgerRow) -> None:
        """Adds the next row."""
        details = row.details
        self.paid += composition.paid_by([row])
        if row.kind in ("debit", "release"):
            # Releases before there was a choice all drew from the operating system.
            self.is_secure &= details.get("secure_noise", True)
        elif row.kind == "answers":
            self.num_answered += details["num_answered"]
        elif row.kind in ("opened", "budget"):
            if row.kind == "opened":
                self.ensemble_digest = details["ensemble_digest"]
            self.epsilon_budget = details["epsilon_budget"]
            self.delta = details["delta"]
            self.was_raised |= details.get("raised", False)

    def epsilon_by_moments(self, more: Paid) -> float:
        """Returns what everything costs by moments once `more` is paid for too."""
        return composition.moments_epsilon(self.paid + more, self.delta)[0]

    def affordable_queries(self, mechanism: Mechanism) -> int | None:
        """Returns how many more queries of `mechanism` fit; None if there is no budget."""
        if self.epsilon_budget is None:
            return None
        fits, exceeds = 0, 1
        while self._fits(Paid.for_queries(mechanism, exceeds)):
            fits, exceeds = exceeds, 2 * exceeds
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self._fits(Paid.for_queries(mechanism, middle)):
                fits = middle
            else:
                exceeds = middle
        return fits

    def check_affordable(self, mechanism: Mechanism, num_queries: int) -> None:
        """Checks that a whole batch fits in the worst case; see `Ledger.check_affordable`."""
        queries = Paid.for_queries(mechanism, num_queries)
        self._check_finite(queries, "a mechanism", mechanism)
        if self._fits(queries):
            return
        affordable = self.affordable_queries(mechanism) or 0
        raise BudgetExceeded(
            f"epsilon_budget: expected at most {affordable} new queries of {mechanism}, got "
            f"{num_queries}: {self._spent_in_words()}",
            num_affordable=affordable,
        )

    def check_release(self, plan: ReleasePlan) -> None:
        """Checks that one draw under a plan fits; see `Ledger.debit_release`."""
        self.check_finite_release(plan)
        draw = Paid.for_release(plan)
        if self._fits(draw):
            return
        raise BudgetExceeded(
            f"epsilon_budget: expected a release that fits, got one that makes it "
            f"{self.epsilon_by_moments(draw):.4g} (noise of {plan.sigma:.4g} sensitivities): "
            f"{self._spent_in_words()}",
            num_affordable=0,
        )

    def check_finite_release(self, plan: ReleasePlan) -> None:
        """Checks that one draw under a plan has a finite cost.

        Raises:
          LedgerError: if it has none.
        """
        self._check_finite(Paid.for_release(plan), "a release", plan)

    def _check_finite(self, paid: Paid, what: str, given: object) -> None:
        if math.isinf(composition.moments_epsilon(paid, self.delta)[0]):
            raise LedgerError(
                f"expected {what} with a finite guarantee, got {given}: nothing private may be "
                f"released through it"
            )

    def _spent_in_words(self) -> str:
        spent, _ = composition.smallest_epsilon(self.paid, self.delta)
        return f"epsilon {spent:.4g} of {self.epsilon_budget} at delta {self.delta} is spent"

    def _fits(self, more: Paid) -> bool:
        return composition.fits(self.paid + more, self.delta, self.epsilon_budget)
