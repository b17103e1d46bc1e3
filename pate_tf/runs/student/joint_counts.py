"""Whether, and of how many inputs, noisy counts are bought to be learnt from together.

From public values alone. Where teachers are linear on features of the pool, and a student learns
from the whole pool, the noisy counts of all queries together say more of the pool than labels of
few of them (`pate_tf.representations.regression`). So there are many queries, each with more noise.
Where that noise is heavy, labels without any are given a chance first: of typical queries, which
teachers may all agree on. Nobody knows beforehand whether they do.
"""

import contextlib
import dataclasses
from typing import Final

from pate_tf.accounting.assumed_votes import DEFAULT_MARGIN, profile_counts
from pate_tf.accounting.mechanisms import (
    GaussianHistogram,
    Mechanism,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.target import Target
from pate_tf.models import closed_form
from pate_tf.representations.catalogue import OF_IMAGES, joined_names
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.students.consistency import learns_by_augmentation
from pate_tf.teachers.ensemble import Ensemble
from pate_tf.teachers.voters import Voter
from pate_tf.values.public import Pool

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
TYPICAL, DIVERSE = "typical", "diverse"
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
