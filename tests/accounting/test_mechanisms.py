"""One contract for every mechanism. Add a new mechanism to `NOISY`, and all tests run on it."""

import itertools
import json
import math

import numpy as np
import pytest
import reference

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import gaussian_dp_epsilon
from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)

NOISY = [
    LaplaceNoisyMax(gamma=0.05),
    LaplaceNoisyMax(gamma=0.7),
    GaussianNoisyMax(sigma=40.0),
    GaussianNoisyMax(sigma=1.5),
    ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=10.0, sigma=2.0),
    GaussianHistogram(sigma=40.0),
    GaussianHistogram(sigma=1.5),
]
PURE = [mechanism for mechanism in NOISY if isinstance(mechanism, LaplaceNoisyMax)]
MOMENTS = np.array([0.05, 0.5, 1.0, 2.5, 8.0, 30.0, 200.0])


@pytest.mark.parametrize("mechanism", NOISY, ids=repr)
class TestEveryMechanism:
    def test_survives_json(self, mechanism):
        fields = json.loads(json.dumps(mechanism.to_dict()))
        assert fields["name"] == mechanism.name
        assert charge_from_dict(fields) == mechanism

    def test_tail_is_a_nonincreasing_probability(self, mechanism):
        tail = mechanism.pairwise_tail(np.arange(-300, 301).astype(float))
        assert np.all((tail >= 0.0) & (tail <= 1.0))
        assert np.all(np.diff(tail) <= 0.0)

    def test_outcomes_are_laws_that_follow_a_permutation_of_classes(self, mechanism):
        counts = np.array([[9, 4, 2, 0], [1, 6, 7, 1], [5, 2, 8, 0]])
        law = mechanism.outcome_probabilities(counts)
        assert law.shape == counts.shape
        np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=1e-12)
        for order in itertools.permutations(range(4)):
            moved = mechanism.outcome_probabilities(counts[:, order])
            np.testing.assert_allclose(moved, law[:, order], rtol=1e-12)

    def test_the_tail_bounds_a_race_of_two(self, mechanism):
        for gap in range(0, 40):
            behind = mechanism.outcome_probabilities(np.array([[50, 50 - gap]]))[0, 1]
            assert behind <= mechanism.pairwise_tail(np.array([float(gap)]))[0] * (1 + 1e-12)

    def test_the_union_bound_dominates_the_chance_of_missing_the_plurality(self, mechanism):
        for histogram in reference.sorted_histograms(9, 3):
            gaps = histogram[0] - np.array(histogram[1:], dtype=float)
            missed = 1.0 - mechanism.outcome_probabilities(np.array([histogram]))[0, 0]
            assert missed <= np.sum(mechanism.pairwise_tail(gaps)) + 1e-12

    def test_costs_grow_with_queries_and_moments(self, mechanism):
        one = total_alphas({mechanism: 1}, MOMENTS)
        many = total_alphas({mechanism: 7}, MOMENTS)
        np.testing.assert_allclose(many, 7 * one)
        assert np.all(one > 0.0)
        assert np.all(one[1:] >= one[:-1])
        epsilons = [
            mechanism.data_independent_epsilon(num_queries=queries, delta=1e-5)[0]
            for queries in (1, 2, 10, 1000)
        ]
        assert epsilons == sorted(epsilons)


@pytest.mark.parametrize("mechanism", PURE, ids=repr)
class TestPureMechanisms:
    def test_every_outcome_ratio_is_within_two_gamma(self, mechanism):
        for histogram in reference.sorted_histograms(7, 4):
            here = mechanism.outcome_probabilities(np.array([histogram]))
            moved = np.array(list(reference.neighbours(histogram)))
            ratios = np.log(mechanism.outcome_probabilities(moved) / here)
            assert np.max(np.abs(ratios)) <= 2.0 * mechanism.gamma * (1 + 1e-12)

    def test_lemma_0(self, mechanism):
        gaps = np.arange(-60, 61).astype(float)
        tail = mechanism.pairwise_tail(gaps)
        assert np.all(np.diff(tail[gaps >= 0], 2) >= -1e-15)
        for shift in (1, 2, 5):
            reached = mechanism.pairwise_tail(gaps - shift)
            assert np.all(reached <= np.exp(mechanism.gamma * shift) * tail * (1 + 1e-12))


def test_a_discrete_gaussian_stays_within_one_step_of_the_continuous_one():
    """Checks the argument of `GaussianNoisyMax` by summation on a lattice coarse enough
    to show it.
    """
    scale = 3.0
    support = np.arange(-200, 201)
    mass = np.exp(-(support**2) / (2 * scale**2))
    mass /= mass.sum()
    upper = np.cumsum(mass[::-1])[::-1]
    for k, reached in zip(support[150:250], upper[150:250], strict=True):
        above = 0.5 * math.erfc((k - 1) / (scale * math.sqrt(2)))
        below = 0.5 * math.erfc(k / (scale * math.sqrt(2)))
        assert below * (1 - 1e-12) - 1e-15 <= reached <= above * (1 + 1e-12)


def test_the_gaussian_tail_covers_the_difference_of_two_lattice_variables():
    sigma, step = 1.5, 1.0 / 8.0
    support = np.arange(-400, 401)
    mass = np.exp(-(support**2) / (2 * (sigma / step) ** 2))
    mass /= mass.sum()
    difference = np.convolve(mass, mass)
    offsets = np.arange(-800, 801)
    for gap in range(0, 6):
        reached = difference[offsets >= gap / step].sum()
        covered = 0.5 * math.erfc((gap - 2 * step) / (2 * sigma))
        uncovered = 0.5 * math.erfc(gap / (2 * sigma))
        assert uncovered < reached <= covered
    lowered = GaussianNoisyMax(sigma=sigma).pairwise_tail(np.array([4.0 + 2.0 / LATTICE]))[0]
    assert lowered == pytest.approx(0.5 * math.erfc(4.0 / (2 * sigma)), rel=1e-12, abs=0.0)


def test_gaussian_composition_is_that_of_the_stacked_shifts():
    mechanism = ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=10.0, sigma=2.0)
    epsilon = mechanism.composed_epsilon(10, delta=1e-5)
    squared = 10 / 10.0**2 + 2 * 10 / 2.0**2
    assert epsilon == pytest.approx(
        gaussian_dp_epsilon(math.sqrt(squared), 1e-5), rel=1e-5, abs=0.0
    )
    assert epsilon > gaussian_dp_epsilon(math.sqrt(squared), 1e-5)
    alone = GaussianNoisyMax(sigma=40.0).composed_epsilon(100, delta=1e-5)
    assert alone == pytest.approx(gaussian_dp_epsilon(math.sqrt(200) / 40, 1e-5), rel=1e-5, abs=0.0)


@pytest.mark.parametrize("shifts", [1, 4])
@pytest.mark.parametrize("scale", [4, 16])
def test_discrete_gaussians_need_at_most_one_step_more_for_every_shift(shifts, scale):
    """Checks the slack of `OfSigma.composed_epsilon` on coarse lattices: sigma = 2 votes."""
    sigma, delta = 2.0, 1e-4
    support = np.arange(-40 * scale, 40 * scale + 1)
    mass = np.exp(-(support**2) / (2.0 * (sigma * scale) ** 2))
    mass /= mass.sum()
    total = np.ones(1)
    for _ in range(shifts):
        total = np.convolve(total, mass)
    sums = np.arange(len(total)) - len(total) // 2
    losses = (shifts * scale**2 + 2.0 * scale * sums) / (2.0 * (sigma * scale) ** 2)

    def spent(epsilon):
        return float(total @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    smooth = gaussian_dp_epsilon(math.sqrt(shifts) / sigma, delta)
    assert spent(smooth + shifts / (scale * sigma**2)) <= delta
    assert spent(smooth * 0.9) > delta
