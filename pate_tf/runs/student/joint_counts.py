"""Whether, and of how many inputs, noisy counts are bought to be learnt from together.

From public values alone. Where teachers are linear on features of the pool, and a student learns
from the whole pool, the noisy counts of all queries together say more of the pool than labels of
few of them (`pate_tf.representations.regression`). So there are many queries, each with more noise.
"""

import dataclasses
from typing import Final

from pate_tf.accounting.mechanisms import GaussianHistogram
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
# Of the teachers, standard deviations of the noise: beyond it counts say too little, and other
# mechanisms are compared.
LOUD: Final = 1 / 2


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


def planned_number(
    target: Target,
    *,
    num_teachers: int,
    num_classes: int,
    pool_size: int,
    num_queries: int | None = None,
) -> int | None:
    """Returns how many inputs are asked about; None where counts are not learnt from together.

    That is where noise would drown the counts of all, or there are too many.

    Args:
      target: what they may cost; its own number of queries is not read.
      num_teachers: who vote.
      num_classes: that they choose from.
      pool_size: the most that can be asked.
      num_queries: the number that somebody asked for; None for the planned one.
    """
    number = num_queries or min(QUERIES_A_CLASS * num_classes, pool_size, MOST_QUERIES)
    if number > MOST_QUERIES:
        return None
    needed = dataclasses.replace(target, num_queries=number)
    sigma = needed.least_noise(GaussianHistogram.of_scale).noise_scales["sigma"]
    return number if sigma <= LOUD * num_teachers else None
