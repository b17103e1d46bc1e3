"""A budget is named and nothing else: what to ask, and of which mechanism, comes of a plan.

The plan knows public values alone: how many teachers, classes and inputs there are, and what is
assumed of votes that nobody has looked at (`pate_tf.accounting.recommend`).
"""

import dataclasses

from pate_tf.accounting.assumed_votes import DEFAULT_MARGIN
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.recommend import recommend
from pate_tf.accounting.recommendation import Recommendation
from pate_tf.accounting.target import Target
from pate_tf.data.named_function import Named
from pate_tf.noise import NoiseSource
from pate_tf.queries.catalogue import find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.runs.student.class_sums import SumsPlan, sums_plan, worthwhile_sums_plan
from pate_tf.runs.student.joint_counts import are_joined, joint_plan
from pate_tf.runs.student.labels import LabelRequest
from pate_tf.teachers.voters import Voter
from pate_tf.values.public import Pool

# A plan that expects fewer right labels than this share is not worth its epsilon.
LEAST_SHARE = 0.5


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
      num_neighbours: likewise.
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
    num_neighbours: int | None = None
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
        if joined:
            asked = joint_plan(
                Target(epsilon=self.target_epsilon, delta=delta, num_queries=1, unit=unit),
                num_teachers=num_teachers,
                num_classes=pool.dataset.num_classes,
                pool_size=len(pool),
                mechanism=self.mechanism,
                num_queries=self.num_queries,
                strategy=self.strategy,
            )
            if asked is not None:
                joint = dataclasses.replace(
                    self, mechanism=asked.mechanism, num_queries=asked.num_queries
                )
                return dataclasses.replace(
                    joint.plan(num_teachers=num_teachers, unit=unit, pool=pool, delta=delta),
                    is_num_queries_planned=self.num_queries is None,
                    strategy=asked.strategy,
                    purpose=asked.purpose,
                )
        adaptive = self.strategy is not None and find_strategy(self.strategy).is_adaptive
        found = recommend(
            target_epsilon=self.target_epsilon,
            delta=delta,
            num_teachers=num_teachers,
            num_classes=pool.dataset.num_classes,
            num_queries=self.num_queries,
            pool_size=len(pool),
            unit=unit,
            margin=self.margin,
            num_exceptions=self.num_exceptions,
            mechanism=self.mechanism,
            adaptive=adaptive,
        )
        if self.mechanism is None and found.expected_share < LEAST_SHARE:
            raise ValueError(
                f"target_epsilon: expected one that labels at least half of the queries right "
                f"under the plan's assumption, got {self.target_epsilon:g}: {found.mechanism.name} "
                f"would label {found.expected_share:.0%} of {found.num_queries} right. Take more "
                f"teachers or a larger epsilon, or name a mechanism to buy such labels all the same"
            )
        return found

    def planned(self, plan: Recommendation | SumsPlan) -> LabelRequest:
        """Returns what a plan asks for, with the reason that goes into the statement."""
        if isinstance(plan, SumsPlan):
            return LabelRequest(
                queries=plan.queries(self.seed, self.representation),
                mechanism=plan.mechanism,
                noise=self.noise,
                choice=plan.reason,
            )
        return LabelRequest(
            queries=QueryConfig(
                strategy=self.strategy or plan.strategy,
                num_queries=plan.num_queries,
                rounds=self.rounds,
                seed=self.seed,
                representation=self.representation,
                num_neighbours=self.num_neighbours,
            ),
            mechanism=plan.mechanism,
            noise=self.noise,
            choice=plan.reason,
        )

    def plan_for(self, teachers: Voter, pool: Pool, *, delta: float) -> Recommendation | SumsPlan:
        """Returns `plan` for an ensemble, or a plan without votes where that is worth more.

        Raises:
          ValueError: as `plan`.
        """
        asked = (self.num_queries, self.strategy, self.num_neighbours, self.rounds)
        target = Target(epsilon=self.target_epsilon, delta=delta, num_queries=1, unit=teachers.unit)
        if self.mechanism is not None and self.mechanism.adds_records:
            if any(one is not None for one in asked):
                raise ValueError(
                    f"mechanism: expected no queries, strategy, rounds or look-alikes with "
                    f"{self.mechanism.name}, which labels all of the pool, got some"
                )
            return sums_plan(target, teachers=teachers, pool=pool)
        if self.mechanism is None and all(one is None for one in asked):
            by_sums = worthwhile_sums_plan(target, teachers=teachers, pool=pool)
            if by_sums is not None:
                return by_sums
        return self.plan(
            num_teachers=teachers.num_teachers,
            unit=teachers.unit,
            pool=pool,
            delta=delta,
            joined=are_joined(teachers, pool),
        )
