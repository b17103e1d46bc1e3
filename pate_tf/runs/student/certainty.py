"""How much noise left of what noisy counts say of a pool: from what was released, at no cost."""

import numpy as np

from pate_tf.queries.queried import QueriedLabels
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.runs.reporting import Reporting

# Chosen on the pools of MNIST and Fashion-MNIST, where counts that were less sure than this were
# behind noisy class sums by points.
CERTAIN_ENOUGH = 0.8


def certainty(labels: QueriedLabels) -> float | None:
    """Returns how sure labels are that were worked out from all noisy counts together.

    It is the mean probability of their class; None where counts were not learnt from together. It
    knows of noise alone: what all teachers get wrong alike it can't see.
    """
    released = labels.released
    weights = labels.inferred.weights
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
        reporting.warn(
            f"labels: the noise is heavy for these teachers: what all noisy counts say of the pool "
            f"is {found:.0%} sure on average; next time take more teachers or a larger epsilon, "
            f"and see docs/instead.md for what else bears such noise"
        )
