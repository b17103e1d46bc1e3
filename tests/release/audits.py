"""Lower bounds on what a mechanism gives away, from what it drew on neighboring votes."""

import math

import numpy as np
from scipy import stats

from pate_tf.accounting.mechanisms import LATTICE

FALSE_ALARM = 1e-7

# One record was replaced: the second class gained the vote that the first one lost.
WORST_CASE = (np.array([5, 0]), np.array([4, 1]))


def audited_epsilon(first, second, delta):
    """A lower bound on epsilon from two histograms, wrong with probability FALSE_ALARM at most.

    Outcomes are independent within a histogram. Between the two they need not be: each bound holds
    by itself, and their failures add up.
    """
    alternatives = 2 * 2 * len(first)
    tail = FALSE_ALARM / alternatives
    bounds = [0.0]
    for events, others in ((first, second), (second, first)):
        for event, other in zip(events, others, strict=True):
            low = stats.beta.ppf(tail, event, events.sum() - event + 1) if event else 0.0
            high = stats.beta.isf(tail, other + 1, others.sum() - other)
            if low > delta:
                bounds.append(math.log((low - delta) / high))
    return max(bounds)


def audited_probability(events, num_runs):
    """A lower bound on a probability, wrong with probability FALSE_ALARM / 2 at most."""
    return stats.beta.ppf(FALSE_ALARM / 2, events, num_runs - events + 1)


def audited_distance(first, second):
    """A lower bound on how far apart two Gaussians must be that release such noisy counts.

    Wrong with probability FALSE_ALARM at most: a test that tells them apart at the middle errs less
    often, both ways, than Gaussian differential privacy of that distance allows.

    Args:
        first: noisy counts drawn for the first of WORST_CASE, [num_runs, 2].
        second: likewise for the second.
    """
    errors = []
    middle = sum(int(one[0] - one[1]) for one in WORST_CASE) / 2 * LATTICE
    for drawn, sign in ((first, -1), (second, 1)):
        wrong = int((sign * (drawn[:, 0] - drawn[:, 1] - middle) >= 0).sum())
        errors.append(stats.beta.isf(FALSE_ALARM / 2, wrong + 1, len(drawn) - wrong))
    return -sum(stats.norm.ppf(errors))
