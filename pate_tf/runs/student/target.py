"""A budget is named and nothing else: what to ask, and of which mechanism, comes of a plan.

Of teachers whose noisy counts can be learnt from together (`joint_counts`), a part of the budget
tries a stability gate first (`gate_first`).

The plan knows public values alone: how many teachers, classes and inputs there are, and what is
assumed of votes that nobody has looked at (`pate_tf.accounting.recommend`).
"""

import dataclasses

from pate_tf.accounting.assumed_votes import DEFAULT_MARGIN
from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism, StabilityGate
from pate_tf.accounting.planned_queries import GOOD_SHARE
from pate_tf.accounting.recommend import recommend
from pate_tf.accounting.recommendation import Recommendation
from pate_tf.accounting.target import Target
from pate_tf.data.named_function import Named
from pate_tf.noise import NoiseSource
from pate_tf.queries.catalogue import find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.runs.student.gate_first import gate_epsilon
from pate_tf.runs.student.joint_counts import are_joined, planned_number
from pate_tf.runs.student.labels import LabelRequest
from pate_tf.teachers.voters import Voter
from pate_tf.values.public import Pool

# A plan that expects fewer right labels than this share is not worth its epsilon.
LEAST_SHARE = 0.5
PLANNED_STRATEGY = "typical"
JOINT_STRATEGY = "diverse"
JOINT = (
    "All noisy counts leave, of one input of each group of look-alikes, and what a student learns "
    "is worked out from all of them together. So single labels need not be right, and that noise "
    "drowns many of them is no loss: of teachers that are linear on features of the pool, more "
    "inputs with more noise tell more than few with little."
)
GATE_FIRST = (
    "A part of the budget of epsilon {:g} is tried first: where nearly all teachers agree on "
    "typical inputs, exact labels of a few of those tell a student more than noisy counts of many. "
    "If the gate stays shut, the rest buys noisy counts; if it opens, the rest is not spent."
)
AFTER_GATE = "A stability gate was tried first, for the rest of the budget, and stayed shut."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetRequest:
    """Which labels are bought, as far as anybody said. Public.

    Attributes:
      target_epsilon: what these labels may cost, whatever the data.
      noise: where privacy noise comes from.
      mechanism: the only one to find the noise of; None for the best one.
      num_queries: how many; None for the planned number.
      strategy: how queries are chosen; None for typical ones, which the plan's margin is about, or
        diverse ones where noisy counts are learnt from together (`joint_counts`).
      rounds: as `QueryConfig` takes it.
      seed: likewise.
      representation: likewise.
      margin: see `pate_tf.accounting.assumed_votes.AssumedVotes`.
      num_exceptions: likewise.
    """

    target_epsilon: float
    noise: NoiseSource
    mechanism: type[Mechanism] | None = None
    num_queries: int | None = None
    strategy: str | None = None
    rounds: int | None = None
    seed: int = 0
    representation: Named | None = None
    margin: float = DEFAULT_MARGIN
    num_exceptions: int = 0

    def plan(
        self, *, num_teachers: int, unit: str, pool: Pool, delta: float, joined: bool = False
    ) -> Recommendation:
        """Returns the comparison of all mechanisms that may be chosen.

        Args:
          num_teachers: who vote.
          unit: what they protect, "record" or "owner".
          pool: that queries are chosen from.
          delta: what epsilon holds at.
          joined: whether noisy counts may be learnt from together.

        Raises:
          ValueError: if a number is out of range, or nothing worth its cost can be had for it.
        """
        budget = Target(epsilon=self.target_epsilon, delta=delta, num_queries=1, unit=unit)
        if joined and self.mechanism is None and self.strategy in (None, JOINT_STRATEGY):
            joint = self._gate_first(budget, num_teachers, pool) or self._joint(
                budget, num_teachers, pool
            )
            if joint is not None:
                return joint
        adaptive = self.strategy is not None and find_strategy(self.strategy).is_adaptive
        found = self._compared(budget, num_teachers, pool, adaptive=adaptive)
        if self.mechanism is None and found.expected_share < LEAST_SHARE:
            raise ValueError(
                f"target_epsilon: expected one that labels at least half of the queries right "
                f"under the plan's assumption, got {self.target_epsilon:g}: {found.mechanism.name} "
                f"would label {found.expected_share:.0%} of {found.num_queries} right. Take more "
                f"teachers or a larger epsilon, or name a mechanism to buy such labels all the same"
            )
        return found

    def _gate_first(self, budget: Target, num_teachers: int, pool: Pool) -> Recommendation | None:
        """Returns the plan for a gate, and for noisy counts if it stays shut.

        None where somebody said what to ask, a small part of the budget opens no gate even if
        teachers agree as is assumed, or the rest buys nothing.
        """
        if self.strategy is not None or self.num_queries is not None:
            return None
        epsilon = gate_epsilon(budget.epsilon, num_teachers=num_teachers, delta=budget.delta)
        if epsilon is None:
            return None
        gate = dataclasses.replace(self, mechanism=StabilityGate)._compared(
            dataclasses.replace(budget, epsilon=epsilon), num_teachers, pool
        )
        rest = dataclasses.replace(budget, before=((gate.mechanism, 1),))
        joint = self._joint(rest, num_teachers, pool)
        if joint is None or gate.expected_share < GOOD_SHARE:
            return None
        return dataclasses.replace(
            gate,
            purpose=GATE_FIRST.format(budget.epsilon),
            otherwise=dataclasses.replace(joint, purpose=f"{AFTER_GATE} {JOINT}"),
        )

    def _joint(self, budget: Target, num_teachers: int, pool: Pool) -> Recommendation | None:
        """Returns the plan for noisy counts; None where they are not learnt from together."""
        number = planned_number(
            budget,
            num_teachers=num_teachers,
            num_classes=pool.dataset.num_classes,
            pool_size=len(pool),
            num_queries=self.num_queries,
        )
        if number is None:
            return None
        asked = dataclasses.replace(self, mechanism=GaussianHistogram, num_queries=number)
        return dataclasses.replace(
            asked._compared(budget, num_teachers, pool),
            is_num_queries_planned=self.num_queries is None,
            purpose=JOINT,
        )

    def _compared(
        self, budget: Target, num_teachers: int, pool: Pool, *, adaptive: bool = False
    ) -> Recommendation:
        return recommend(
            target_epsilon=budget.epsilon,
            delta=budget.delta,
            num_teachers=num_teachers,
            num_classes=pool.dataset.num_classes,
            num_queries=self.num_queries,
            pool_size=len(pool),
            unit=budget.unit,
            margin=self.margin,
            num_exceptions=self.num_exceptions,
            mechanism=self.mechanism,
            adaptive=adaptive,
            before=budget.before,
        )

    def planned(self, plan: Recommendation) -> LabelRequest:
        """Returns what a plan asks for, with the reason that goes into the statement."""
        is_joint = isinstance(plan.mechanism, GaussianHistogram) and bool(plan.purpose)
        return LabelRequest(
            queries=QueryConfig(
                strategy=self.strategy or (JOINT_STRATEGY if is_joint else PLANNED_STRATEGY),
                num_queries=plan.num_queries,
                rounds=self.rounds,
                seed=self.seed,
                representation=self.representation,
            ),
            mechanism=plan.mechanism,
            noise=self.noise,
            choice=plan.reason,
            otherwise=None if plan.otherwise is None else self.planned(plan.otherwise),
        )

    def plan_for(self, teachers: Voter, pool: Pool, *, delta: float) -> Recommendation:
        """Returns `plan` for an ensemble.

        Raises:
          ValueError: as `plan`.
        """
        return self.plan(
            num_teachers=teachers.num_teachers,
            unit=teachers.unit,
            pool=pool,
            delta=delta,
            joined=are_joined(teachers, pool),
        )
