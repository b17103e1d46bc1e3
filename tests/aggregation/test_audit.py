"""Audits the whole labeller from outside: what it releases, against what it claims."""

import math

import numpy as np
import pytest
from scipy import stats

from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
)
from pate_tf.aggregation.labeller import Labeller
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.ledger import Ledger
from pate_tf.records import VoteCounts

FALSE_ALARM = 1e-7
DELTA = 1e-5
COUNTS = np.array([9, 3, 2, 0])
KINDS = [LaplaceNoisyMax, PermuteAndFlip, ExponentialMechanism]
MECHANISMS = [kind(0.5) for kind in KINDS] + [GaussianNoisyMax(2.0)]

# One record was replaced: the second class gained the vote that the first one lost.
WORST_CASE = (np.array([5, 0]), np.array([4, 1]))


def released_labels(folder, mechanism, counts, num_queries):
    """Labels of distinct queries on which the teachers vote alike."""
    with Ledger.open(folder, ensemble_digest="ab", delta=DELTA) as ledger:
        labeller = Labeller(
            voter=lambda inputs: VoteCounts(np.tile(counts, (len(inputs), 1))),
            ledger=ledger,
            noise=SystemNoise(),
            noisy_winners=lambda votes, noise: np.argmax(votes * LATTICE + noise, axis=1),
            num_classes=len(counts),
        )
        return [
            labeller.label(np.arange(start, min(start + 50_000, num_queries)), mechanism=mechanism)
            for start in range(0, num_queries, 50_000)
        ]


def histogram(folder, mechanism, counts, num_queries):
    batches = released_labels(folder, mechanism, counts, num_queries)
    return sum(np.bincount(batch.labels, minlength=len(counts)) for batch in batches)


@pytest.mark.parametrize(
    "right, wrongs",
    [(kind(0.3), [kind(0.3 * 0.95), kind(0.3 * 1.05)]) for kind in KINDS]
    + [(GaussianNoisyMax(3.0), [GaussianNoisyMax(2.85), GaussianNoisyMax(3.15)])],
)
def test_released_labels_follow_the_exact_outcome_probabilities(tmp_path, right, wrongs):
    observed = histogram(tmp_path, right, COUNTS, 100_000)
    for mechanism in [right, *wrongs]:
        law = mechanism.outcome_probabilities(COUNTS[np.newaxis])[0]
        p_value = stats.chisquare(observed, law / law.sum() * observed.sum()).pvalue
        assert (p_value > FALSE_ALARM) == (mechanism is right)


def test_a_threshold_withholds_as_often_as_its_law_says(tmp_path):
    mechanism = ConfidentGaussianNoisyMax(threshold=10.0, sigma_threshold=2.0, sigma=3.0)
    (batch,) = released_labels(tmp_path, mechanism, COUNTS, 50_000)
    for threshold, fits in ((10.0, True), (10.3, False)):
        passes = stats.norm.sf((threshold - COUNTS.max()) / 2.0)
        p_value = stats.binomtest(batch.num_answered, 50_000, passes).pvalue
        assert (p_value > FALSE_ALARM) == fits
    law = GaussianNoisyMax(3.0).outcome_probabilities(COUNTS[np.newaxis])[0]
    observed = np.bincount(batch.labels, minlength=4)
    assert stats.chisquare(observed, law / law.sum() * observed.sum()).pvalue > FALSE_ALARM


def audited_epsilon(first, second, delta):
    """A lower bound on epsilon from two histograms, wrong with probability FALSE_ALARM at most."""
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


def audit(folder, mechanism, num_queries):
    first, second = (
        histogram(folder / str(place), mechanism, counts, num_queries)
        for place, counts in enumerate(WORST_CASE)
    )
    return audited_epsilon(first, second, DELTA)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_audit_finds_no_more_loss_than_is_claimed_and_most_of_it(tmp_path, mechanism):
    claimed, _ = mechanism.data_independent_epsilon(num_queries=1, delta=DELTA)
    found = audit(tmp_path, mechanism, 50_000)
    assert 0.2 * claimed <= found <= claimed


@pytest.mark.long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_million_runs_find_no_more_loss_than_is_claimed(tmp_path, mechanism):
    claimed, _ = mechanism.data_independent_epsilon(num_queries=1, delta=DELTA)
    found = audit(tmp_path, mechanism, 1_000_000)
    assert 0.2 * claimed <= found <= claimed


def test_the_audit_catches_noise_of_half_the_scale(tmp_path):
    claimed, _ = PermuteAndFlip(0.5).data_independent_epsilon(num_queries=1, delta=DELTA)
    assert audit(tmp_path, PermuteAndFlip(1.0), 50_000) > claimed
