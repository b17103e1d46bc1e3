"""The bounds against exact moments: small universes in full, and a search for counterexamples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import reference

from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.moments import (
    bound_of,
    data_dependent_alphas,
    directed_alphas,
    exact_costs,
    union_bound,
)
from pate_tf.accounting.noisy_max_costs import NeighbourLaws, gaussian, neighbour_outcomes

MOMENTS = np.array([0.1, 0.5, 1.0, 3.0, 8.0, 30.0])
UNIVERSES = [(10, 2), (9, 3), (7, 4)]
GAMMAS = [0.1, 0.3, 0.7]
ROUNDING = 1 + 1e-9


def bounded(bound, mechanism, histogram, moments=MOMENTS):
    formula = bound_of(bound, mechanism)
    q, u = union_bound(formula.tail, np.array([histogram]), moved_votes=formula.reach)
    return formula.costs(q, u, moments)[0]


def alphas_between(laws_here, laws_there, moments=MOMENTS):
    """Returns forward and reverse alphas from two lists of laws, one neighbor per row."""
    laws = NeighbourLaws(laws_here, laws_there, np.ones(laws_here.shape), rare=1e-300)
    return directed_alphas(laws, moments)


@pytest.mark.parametrize("histogram", [(6, 3, 0), (4, 4, 1), (3, 3, 3), (9, 0, 0), (2, 1)])
@pytest.mark.parametrize("moment", [0.1, 2.5, 40.0])
def test_exact_costs_agree_with_fifty_digits(histogram, moment):
    mechanism = LaplaceNoisyMax(gamma=0.4)
    forward, reverse = reference.mp_alphas(
        lambda counts: reference.mp_discrete_laplace_law(counts, 0.4), histogram, moment
    )
    expected = min(float(max(forward, reverse)), float(mechanism.cost_cap(np.array([moment]))[0]))
    value = exact_costs(np.array(histogram), mechanism, np.array([moment]))[0]
    assert value == pytest.approx(expected, rel=1e-9, abs=0.0)


def test_exact_gaussian_costs_agree_with_high_precision():
    histogram, sigma = (13, 4), 0.87277
    forward, reverse = reference.mp_alphas(
        lambda counts: reference.mp_gaussian_law(counts, sigma), histogram, 1.0
    )
    value = exact_costs(np.array(histogram), GaussianNoisyMax(sigma=sigma), np.array([1.0]))[0]
    assert value == pytest.approx(float(max(forward, reverse)), rel=2e-5, abs=0.0)
    assert value >= max(forward, reverse)


def test_the_forward_gaussian_formula_is_no_bound_on_the_reverse_moment():
    """The counterexample of docs/proofs/theory.md, Proposition D5, and its repair."""
    mechanism, one = GaussianNoisyMax(sigma=0.87277), np.array([1.0])
    histogram = [13, 4, 0, 0]
    exact = exact_costs(np.array(histogram), mechanism, one)[0]
    assert exact == pytest.approx(3.28e-4, rel=1e-2, abs=0.0)
    assert bounded("paper", mechanism, histogram, one)[0] < exact / 100
    assert bounded("two_sided", mechanism, histogram, one)[0] >= exact


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("universe", UNIVERSES)
def test_bounds_dominate_the_exact_moments_of_every_histogram(universe, gamma):
    mechanism = LaplaceNoisyMax(gamma=gamma)
    for histogram in reference.sorted_histograms(*universe):
        exact = exact_costs(np.array(histogram), mechanism, MOMENTS)
        assert np.all(exact > 0.0)
        class_aware = bounded("class_aware", mechanism, histogram)
        two_sided = bounded("two_sided", mechanism, histogram)
        assert np.all(exact <= class_aware * ROUNDING)
        assert np.all(class_aware <= two_sided * ROUNDING)
        here = mechanism.outcome_probabilities(np.array([histogram]))
        moved = np.array(list(reference.neighbours(histogram)))
        there = mechanism.outcome_probabilities(moved)
        forward, _ = alphas_between(np.tile(here, (len(there), 1)), there)
        assert np.all(forward <= bounded("tight", mechanism, histogram) * ROUNDING)
        assert np.all(bounded("tight", mechanism, histogram) <= two_sided * ROUNDING)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("universe", UNIVERSES)
def test_the_paper_bound_dominates_the_forward_moment_of_the_continuous_law(universe, gamma):
    mechanism = LaplaceNoisyMax(gamma=gamma)
    for histogram in reference.sorted_histograms(*universe):
        values, multiplicity = np.unique(histogram, return_counts=True)
        laws = neighbour_outcomes(
            partial(reference.continuous_laplace, gamma), values, multiplicity
        )
        forward, _ = directed_alphas(replace(laws, limit=2 * gamma), MOMENTS)
        assert np.all(forward <= bounded("paper", mechanism, histogram) * ROUNDING)


@pytest.mark.parametrize("sigma", [0.5, 0.87277, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("universe", UNIVERSES)
def test_gaussian_bounds_dominate_the_exact_moments_of_every_histogram(universe, sigma):
    mechanism = GaussianNoisyMax(sigma=sigma)
    moments = MOMENTS[MOMENTS * (MOMENTS + 1) / sigma**2 < 300.0]
    for histogram in reference.sorted_histograms(*universe):
        exact = exact_costs(np.array(histogram), mechanism, moments) / (1 + 2e-5)
        two_sided = bounded("two_sided", mechanism, histogram, moments)
        assert np.all(exact <= two_sided * ROUNDING)
        here = mechanism.outcome_probabilities(np.array([histogram]))
        moved = np.array(list(reference.neighbours(histogram)))
        there = mechanism.outcome_probabilities(moved)
        forward, _ = alphas_between(np.tile(here, (len(there), 1)), there, moments)
        assert np.all(forward <= bounded("paper", mechanism, histogram, moments) * (1 + 1e-6))


def test_underflow_costs_at_most_the_bound_and_at_least_nothing_is_lost():
    """Every rival of this winner has a probability below the smallest float."""
    row = np.array([[1000, 0, 0]])
    for mechanism in (LaplaceNoisyMax(gamma=3.0), GaussianNoisyMax(sigma=2.0)):
        exact = data_dependent_alphas(row, mechanism, MOMENTS, bound="exact")
        limit = data_dependent_alphas(row, mechanism, MOMENTS, bound="two_sided")
        assert np.all((exact > 0.0) & (exact <= limit))


@pytest.mark.parametrize("step", [1 / 8, 1 / 16])
@pytest.mark.parametrize("histogram", [(5, 3), (4, 4), (9, 1)])
def test_the_lattice_moves_a_gaussian_cost_by_less_than_sixteen_steps(histogram, step):
    """The lattice is coarse enough to show a difference. Ties go to the lowest index, as in the
    sampler.
    """
    sigma = 2.0
    support = np.arange(-round(12 * sigma / step), round(12 * sigma / step) + 1)
    mass = np.exp(-((support * step) ** 2) / (2 * sigma**2))
    mass /= mass.sum()
    difference = np.convolve(mass, mass)
    offsets = np.arange(-len(support) + 1, len(support)) * step

    def law(counts):
        first = difference[offsets <= counts[0] - counts[1] + 1e-9].sum()
        second = difference[offsets > counts[0] - counts[1] + 1e-9].sum()
        return np.array([first, second])

    for counts in (histogram, histogram[::-1]):
        there = np.array([law(moved) for moved in reference.neighbours(counts)])
        here = np.tile(law(counts), (len(there), 1))
        lattice = np.maximum(*alphas_between(here, there, np.array([0.5, 2.0, 8.0])))
        values, multiplicity = np.unique(counts, return_counts=True)
        laws = neighbour_outcomes(partial(gaussian, sigma), values, multiplicity)
        smooth = np.maximum(*directed_alphas(laws, np.array([0.5, 2.0, 8.0])))
        assert np.all(np.abs(lattice / smooth - 1) <= 16 * step)
        assert np.any(np.abs(lattice / smooth - 1) > step / 16)
