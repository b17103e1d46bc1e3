"""Labels for a target epsilon: which mechanism, how many queries, noisy counts together."""

import contextlib
import dataclasses
from typing import Final

from pate_tf.accounting.mechanisms import GaussianHistogram, Mechanism, StabilityGateOrHistogram
from pate_tf.accounting.planning import DEFAULT_MARGIN, Recommendation, profile_counts, recommend
from pate_tf.accounting.target import Target
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api.feature_sums import SumsPlan, sums_plan, worthwhile_sums_plan
from pate_tf.api.label_requests import LabelRequest
from pate_tf.core.public import Pool
from pate_tf.data.named_function import Named
from pate_tf.models import closed_form
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.strategies import find_strategy
from pate_tf.representations.catalogue import OF_IMAGES, joined_names
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.teachers.ensemble import Ensemble
from pate_tf.teachers.voters import Voter

# Whether, and of how many inputs, noisy counts are bought to be learnt from together.
#
# From public values alone. Where teachers are linear on features of the pool, and a student
# learns from the whole pool, the noisy counts of all queries together say more of the pool than
# labels of few of them (`pate_tf.representations.regression`). So there are many queries, each
# with more noise. Where that noise is heavy, labels without any are given a chance first: of
# typical queries, which teachers may all agree on. Nobody knows beforehand whether they do.


# On the pool of Fashion-MNIST two and five times as many told no more, at epsilons from .1 to 1.
QUERIES_A_CLASS: Final = 20
GATED_A_CLASS: Final = 10
# Of the teachers, standard deviations of the noise: beyond it counts say too little, and other
# mechanisms are compared.
LOUD: Final = 1 / 2
# Likewise: below it counts tell nearly as much of a pool as labels without noise, and a chance of
# these is not worth its share of epsilon. With 2,000 teachers that is above an epsilon of .23. On
# the pool of Fashion-MNIST, where labels without noise never leave, that share costs one or two
# points of accuracy at .1 with 2,000 and 4,000 teachers, and one and a half at .25; on MNIST's,
# where they nearly always do, they gain two points at .1.
FAINT: Final = 1 / 10
TYPICAL, DIVERSE = "medoids", "diverse"
WITHOUT_NOISE: Final = (
    "Labels leave without noise if teachers agree on all of these queries, which are typical ones; "
    "else all noisy counts do."
)
ALL_COUNTS: Final = "All noisy counts leave, of one input of each group of look-alikes."
TOGETHER: Final = (
    "What a student learns is worked out from all counts together. So single labels need not be "
    "right, and that noise drowns many of them is no loss: of teachers that are linear on features "
    "of the pool, more inputs with more noise tell more than few with little."
)


def are_joined(teachers: Voter, pool: Pool) -> bool:
    """Whether counts of these teachers can be learnt from together."""
    config = teachers.config if isinstance(teachers, Ensemble) else None
    return (
        config is not None
        and config.model == closed_form.RIDGE
        and config.representation is not None
        and set(joined_names(config.representation)) <= set(OF_IMAGES)
        and learns_by_augmentation(pool.dataset)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointPlan:
    """What is asked, where what leaves is learnt from together. Public.

    Attributes:
      mechanism: of which noise and all else is planned.
      num_queries: how many inputs are asked about.
      strategy: how they are chosen.
      purpose: why, in sentences.
    """

    mechanism: type[Mechanism]
    num_queries: int
    strategy: str
    purpose: str


def joint_plan(
    target: Target,
    *,
    num_teachers: int,
    num_classes: int,
    pool_size: int,
    mechanism: type[Mechanism] | None = None,
    num_queries: int | None = None,
    strategy: str | None = None,
) -> JointPlan | None:
    """Returns what is asked; None where nothing is learnt from together.

    That is where noise would drown the counts of all, there are too many queries, or a mechanism is
    named that releases no counts of all.

    Args:
      target: what they may cost; its own number of queries is not read.
      num_teachers: who vote.
      num_classes: that they choose from.
      pool_size: the most that can be asked.
      mechanism: that somebody named; None for the better one.
      num_queries: the number that somebody asked for; None for the planned one.
      strategy: likewise.
    """

    def number(of_a_class: int) -> int:
        return num_queries or min(of_a_class * num_classes, pool_size, MOST_QUERIES)

    def sigma(kind: type[Mechanism], of_a_class: int) -> float:
        planned = dataclasses.replace(target, num_queries=number(of_a_class))
        assumed = profile_counts(num_teachers, num_classes, DEFAULT_MARGIN)
        return kind.for_target(planned, assumed).noise_scales["sigma"]

    if number(QUERIES_A_CLASS) > MOST_QUERIES or mechanism not in (None, GaussianHistogram):
        return None
    if (
        mechanism is None
        and strategy in (None, TYPICAL)
        and (sigma(GaussianHistogram, GATED_A_CLASS) > FAINT * num_teachers)
    ):
        with contextlib.suppress(ValueError):  # too few teachers for it
            if sigma(StabilityGateOrHistogram, GATED_A_CLASS) <= LOUD * num_teachers:
                return JointPlan(
                    mechanism=StabilityGateOrHistogram,
                    num_queries=number(GATED_A_CLASS),
                    strategy=TYPICAL,
                    purpose=f"{WITHOUT_NOISE} {TOGETHER}",
                )
    if strategy in (None, DIVERSE) and (
        sigma(GaussianHistogram, QUERIES_A_CLASS) <= LOUD * num_teachers
    ):
        return JointPlan(
            mechanism=GaussianHistogram,
            num_queries=number(QUERIES_A_CLASS),
            strategy=DIVERSE,
            purpose=f"{ALL_COUNTS} {TOGETHER}",
        )
    return None


# A budget is named and nothing else: what to ask, and of which mechanism, comes of a plan.
#
# The plan knows public values alone: how many teachers, classes and inputs there are, and what is
# assumed of votes that nobody has looked at (`pate_tf.accounting.planning`).


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
      margin: see `pate_tf.accounting.planning.AssumedVotes`.
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
