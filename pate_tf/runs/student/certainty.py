"""How much noise left of what noisy counts say of a pool: from what was released, at no cost."""

import numpy as np

from pate_tf.queries.queried import QueriedLabels
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.runs.reporting import Reporting

# Chosen on the pools of MNIST and Fashion-MNIST, where counts that were less sure than this were
# behind noisy class sums by points.
CERTAIN_ENOUGH = 0.8


def certainty(labels: QueriedLabels) -> float | None:
    """Returns how sure labels are that were worked out from all noisy numbers together.

    It is the mean probability of their class; None where counts were not learnt from together, nor
    sums. It knows of noise alone: what all teachers get wrong alike it can't see, nor what features
    don't tell.
    """
    released = labels.released
    weights = labels.inferred.weights
    if released.noisy_sums is not None:
        return labels.certainty
    if (
        weights is None
        or not len(weights)
        or released.noisy_counts is None
        or released.cost.charge.gaussian_noise_on_counts is None
        or released.num_answered > MOST_QUERIES  # spread, each by itself
    ):
        return None
    return float(weights.max(axis=1).mean(dtype=np.float64))


def warn_of_noise(labels: QueriedLabels, reporting: Reporting) -> None:
    """Says in one line that noise leaves labels of the pool unsure."""
    found = certainty(labels)
    if found is not None and found < CERTAIN_ENOUGH:
        by_sums = labels.released.noisy_sums is not None
        reporting.warn(
            f"labels: the noise is heavy for {'so few records' if by_sums else 'these teachers'}: "
            f"what all noisy {'sums' if by_sums else 'counts'} say of the pool is {found:.0%} sure "
            f"on average; next time take {'' if by_sums else 'more teachers or '}a larger epsilon, "
            f"and see docs/instead.md for what else bears such noise"
        )
