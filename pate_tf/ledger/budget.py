"""What the rows of a ledger add up to: what was spent, and what may still be."""

import math
from collections import Counter

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.ledger.payments import PAYMENTS, paid_by
from pate_tf.ledger.rows import BudgetExceeded, LedgerError, LedgerRow


class Budget:
    """The running sum over the rows of one ledger.

    Attributes:
      ensemble_digest: digest of the ensemble; None before the first row.
      epsilon_budget: the budget in force; None if there is none.
      delta: the delta in force.
      paid: what was paid for, and how often.
      num_queries: queries paid for.
      num_answered: queries whose answer is a label.
      is_secure: False once something was paid for that used predictable noise.
      was_raised: True once the budget or its delta was raised.
      planned_release: how the data-dependent cost will be released; None where a ledger of an
        earlier version never fixed it.
      plan_is_late: whether that was fixed when there may have been votes already.
    """

    def __init__(self) -> None:
        self.ensemble_digest: str | None = None
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.paid: Counter[Charge] = Counter()
        self.num_queries = 0
        self.num_answered = 0
        self.is_secure = True
        self.was_raised = False
        self.planned_release: PlannedRelease | None = None
        self.plan_is_late = True

    def record(self, row: LedgerRow) -> None:
        """Adds the next row."""
        details = row.details
        self.paid += paid_by([row])
        if row.kind in PAYMENTS:
            # Releases before there was a choice all drew from the operating system.
            self.is_secure &= details.get("secure_noise", True)
            self.num_queries += details.get("num_queries", 0)
        elif row.kind == "answers":
            self.num_answered += details["num_answered"]
        elif row.kind == "planned":
            self.planned_release = PlannedRelease.from_dict(details["release"])
        elif row.kind in ("opened", "budget"):
            if row.kind == "opened":
                self.ensemble_digest = details["ensemble_digest"]
                if "planned_release" in details:
                    self.planned_release = PlannedRelease.from_dict(details["planned_release"])
                    # Whoever lost a ledger may have seen its votes.
                    self.plan_is_late = details["acknowledged"]
            self.epsilon_budget = details["epsilon_budget"]
            self.delta = details["delta"]
            self.was_raised |= details.get("raised", False)

    def epsilon_with(self, charge: Charge, number: int) -> float:
        """Returns what everything costs by moments once `number` more are paid for too."""
        return composition.moments_epsilon(self._with(charge, number), self.delta)[0]

    def affordable(self, charge: Charge) -> int | None:
        """Returns how many more of `charge` fit; None if there is no limit."""
        if self.epsilon_budget is None and not self._uses_delta(charge):
            return None
        fits, exceeds = 0, 1
        while self._fits(charge, exceeds):
            fits, exceeds = exceeds, 2 * exceeds
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self._fits(charge, middle):
                fits = middle
            else:
                exceeds = middle
        return fits

    def check_finite(self, charge: Charge) -> None:
        """Checks that one of `charge` has a finite cost.

        Raises:
          LedgerError: if it has none.
        """
        if math.isinf(composition.moments_epsilon({charge: 1}, self.delta)[0]):
            raise LedgerError(
                f"expected a finite guarantee at delta {self.delta}, got none for "
                f"{charge.several(1)}: nothing private may be released through it"
            )

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `number` more fit in the worst case; see `Ledger.check_affordable`."""
        self.check_finite(charge)
        if self._fits(charge, number):
            return
        self._check_delta(charge, number)
        affordable = self.affordable(charge) or 0
        spent, _ = composition.smallest_epsilon(self.paid, self.delta)
        raise BudgetExceeded(
            f"epsilon_budget: expected at most {affordable} new {charge.counted[1]} of "
            f"{charge.summary()}, got {number}, which would make it epsilon "
            f"{self.epsilon_with(charge, number):.4g}: epsilon {spent:.4g} of "
            f"{self.epsilon_budget} at delta {self.delta} is spent",
            num_affordable=affordable,
        )

    def _check_delta(self, charge: Charge, number: int) -> None:
        """Raises BudgetExceeded if what has no moments would leave too little of delta."""
        paid = self._with(charge, number)
        if not math.isinf(composition.moments_epsilon(paid, self.delta)[0]):
            return
        _, used = composition.total_approximate(self.paid)
        _, more = composition.total_approximate({charge: number})
        at_most = "at most" if more and self._is_paid_by_delta_alone(paid) else "less than"
        raise BudgetExceeded(
            f"delta: expected {at_most} {self.delta:g} in all to be used up by charges that have a "
            f"delta of their own, got {float(used):g} used so far and {float(more):g} for "
            f"{charge.several(number)}; all of it leaves nothing to other mechanisms. Give the "
            f"mechanism a smaller delta, or the ledger a larger one, which stays on record",
            num_affordable=self.affordable(charge) or 0,
        )

    @staticmethod
    def _is_paid_by_delta_alone(paid: Counter[Charge]) -> bool:
        return not composition.total_alphas(paid, DEFAULT_MOMENTS).any()

    def _uses_delta(self, charge: Charge) -> bool:
        return any(one.approximate is not None for one in (*self.paid, charge))

    def _with(self, charge: Charge, number: int) -> Counter[Charge]:
        return self.paid + Counter({charge: number})

    def _fits(self, charge: Charge, number: int) -> bool:
        paid = self._with(charge, number)
        if self.epsilon_budget is not None:
            return composition.fits(paid, self.delta, self.epsilon_budget)
        return not (
            self._uses_delta(charge)
            and math.isinf(composition.moments_epsilon(paid, self.delta)[0])
        )
