"""Audits the whole labeller from outside: compares its releases with its claims."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes

DELTA = 1e-5
FALSE_ALARM = 1e-7

# One record was replaced: a vote moved from the first class to the second.
WORST_CASE = (np.array([5, 0]), np.array([4, 1]))
MECHANISMS = [LaplaceNoisyMax(gamma=0.5), GaussianNoisyMax(sigma=2.0), GaussianHistogram(sigma=2.0)]


def audited_epsilon(first, second, delta):
    """Returns a lower bound on epsilon from two histograms, wrong with probability at most
    FALSE_ALARM.

    Outcomes are independent within a histogram, but not necessarily between the two. Each bound
    holds separately, and their failure probabilities are added.
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


def released_labels(folder, mechanism, counts, num_queries):
    """Returns labels of distinct queries with the same votes."""
    with Ledger.open(folder, ensemble_digest="ab", delta=DELTA) as ledger:
        labeller = functools.partial(
            release_votes,
            voter=lambda inputs: VoteCounts(np.tile(counts, (len(inputs), 1))),
            ledger=ledger,
            noise=SystemNoise(),
            num_classes=len(counts),
        )
        return [
            labeller(np.arange(start, min(start + 50_000, num_queries)), mechanism=mechanism)
            for start in range(0, num_queries, 50_000)
        ]


def histogram(folder, mechanism, counts, num_queries):
    batches = released_labels(folder, mechanism, counts, num_queries)
    return sum(np.bincount(batch.labels, minlength=len(counts)) for batch in batches)


def audit(folder, mechanism, num_queries):
    first, second = (
        histogram(folder / str(place), mechanism, counts, num_queries)
        for place, counts in enumerate(WORST_CASE)
    )
    return audited_epsilon(first, second, DELTA)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_audit_finds_no_more_loss_than_is_claimed_and_most_of_it(tmp_path, mechanism):
    claimed, _ = mechanism.data_independent_epsilon(num_queries=1, delta=DELTA)
    found = audit(tmp_path, mechanism, 12_000)  # enough draws to find about a third
    assert 0.2 * claimed <= found <= claimed


def test_the_audit_catches_noise_of_half_the_scale(tmp_path):
    claimed, _ = LaplaceNoisyMax(gamma=0.5).data_independent_epsilon(num_queries=1, delta=DELTA)
    assert audit(tmp_path, LaplaceNoisyMax(gamma=1.0), 30_000) > claimed
