"""Audits the whole labeller from outside: what it releases, against what it claims."""

import functools
import math

import numpy as np
import pytest
from audits import WORST_CASE, audited_distance, audited_epsilon, audited_probability

from pate_tf.accounting.mechanisms import (
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
    StabilityGate,
)
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes

DELTA = 1e-5
COUNTS = np.array([9, 3, 2, 0])
KINDS = [LaplaceNoisyMax, PermuteAndFlip]
MECHANISMS = [kind(gamma=0.5) for kind in KINDS] + [
    GaussianNoisyMax(sigma=2.0),
    GaussianHistogram(sigma=2.0),
]


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
    claimed, _ = PermuteAndFlip(gamma=0.5).data_independent_epsilon(num_queries=1, delta=DELTA)
    assert audit(tmp_path, PermuteAndFlip(gamma=1.0), 30_000) > claimed


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


# Large enough that openings are counted by the hundred.
GATE = StabilityGate(epsilon=0.5, delta=0.01)


def openings(gate, distance, num_runs):
    """How often a batch of ten queries left, whose least sure one is at a distance."""
    counts = np.tile([40, 0], (10, 1))
    counts[3] = [20 + distance, 20 - distance]
    source = SystemNoise()
    drawn = [gate.draw(counts, source).labels for _ in range(num_runs)]
    assert {tuple(one) for one in drawn} <= {(0,) * 10, (None,) * 10}
    return sum(one[0] is not None for one in drawn)


def gate_delta(gate, num_runs):
    """A lower bound on delta, from labels that a neighbor can't have."""
    return audited_probability(openings(gate, 1, num_runs), num_runs)


def gate_epsilon(gate, num_runs):
    """A lower bound on epsilon at GATE's delta."""
    pair = [
        np.array([opened, num_runs - opened])
        for opened in (openings(gate, distance, num_runs) for distance in (4, 5))
    ]
    return audited_epsilon(*pair, GATE.delta)


def test_the_audit_of_a_gate_finds_no_more_than_is_claimed_and_most_of_it():
    assert 0.5 * GATE.delta <= gate_delta(GATE, 20_000) <= GATE.delta
    assert 0.2 * GATE.epsilon <= gate_epsilon(GATE, 20_000) <= GATE.epsilon


class TwiceAsOften(StabilityGate):
    """p(1) = 2 delta."""

    def pass_numerator(self, distance):
        return (2 if distance == 1 else 1) * super().pass_numerator(distance)


def test_the_audit_catches_a_gate_that_opens_too_often():
    assert gate_delta(TwiceAsOften(epsilon=0.5, delta=0.01), 10_000) > GATE.delta
    assert gate_epsilon(StabilityGate(epsilon=1.0, delta=0.01), 10_000) > GATE.epsilon
