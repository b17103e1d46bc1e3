"""Audits the whole labeller from outside: what it releases, against what it claims."""

import functools
import math

import numpy as np
import pytest
from audits import WORST_CASE, audited_distance, audited_epsilon

from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes

DELTA = 1e-5
COUNTS = np.array([9, 3, 2, 0])
MECHANISMS = [LaplaceNoisyMax(gamma=0.5), GaussianNoisyMax(sigma=2.0), GaussianHistogram(sigma=2.0)]


def released_labels(folder, mechanism, counts, num_queries):
    """Labels of distinct queries with the same votes."""
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
    found = audit(tmp_path, mechanism, 12_000)  # which find a third
    assert 0.2 * claimed <= found <= claimed


def test_the_audit_catches_noise_of_half_the_scale(tmp_path):
    claimed, _ = LaplaceNoisyMax(gamma=0.5).data_independent_epsilon(num_queries=1, delta=DELTA)
    assert audit(tmp_path, LaplaceNoisyMax(gamma=1.0), 30_000) > claimed


def found_distance(folder, mechanism, num_queries):
    """A lower bound on how far apart two Gaussians must be that release these noisy counts."""
    found = []
    for place, counts in enumerate(WORST_CASE):
        batches = released_labels(folder / str(place), mechanism, counts, num_queries)
        found.append(np.concatenate([batch.noisy_counts for batch in batches]))
    return audited_distance(*found)


def test_the_audit_of_a_histogram_finds_its_distance_and_no_more(tmp_path):
    claimed = math.sqrt(2.0) / 2.0
    assert (
        0.8 * claimed <= found_distance(tmp_path, GaussianHistogram(sigma=2.0), 20_000) <= claimed
    )


def test_the_audit_catches_a_histogram_of_half_the_noise(tmp_path):
    claimed = math.sqrt(2.0) / 2.0
    assert found_distance(tmp_path, GaussianHistogram(sigma=1.0), 5_000) > claimed
