"""Labels without noise, else noisy counts: what both together tell of one teacher, and no less."""

import functools
import itertools
from fractions import Fraction
from math import exp, inf, sqrt

import gate_universes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms import LATTICE, GaussianHistogram, StabilityGateOrHistogram
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.mechanisms.charged_once import (
    BELOW,
    CERTAIN,
    PLANNED_CHANCE,
    PLANNED_SHARE,
    pass_numerator,
    stability_distances,
)
from pate_tf.release.noise import SystemNoise

FALSE_ALARM = 1e-7
EXAMPLES = settings(deadline=None, max_examples=60, derandomize=True)
UNIVERSES = [(1, 2, 61), (2, 2, 25), (1, 3, 21), (3, 2, 7)]  # queries, classes, teachers
EPSILON, DELTA = 1.0, 0.03


def of_counts(share, num_queries, *, epsilon=EPSILON, delta=DELTA):
    """The mechanism whose counts cost a share of epsilon."""
    scale = Target(epsilon=epsilon * share, delta=delta, num_queries=num_queries).least_noise(
        lambda scale: GaussianHistogram(sigma=scale)
    )
    return StabilityGateOrHistogram(
        epsilon=epsilon, delta=delta, sigma=scale.sigma * (1 + 1e-6), most_queries=num_queries
    )


def gaussian_delta(growth, distance):
    """The exact hockey-stick divergence at growth of normal laws that are so far apart."""
    if growth <= 0:
        return 1.0
    epsilon = np.log(growth)
    return stats.norm.cdf(distance / 2 - epsilon / distance) - growth * stats.norm.cdf(
        -distance / 2 - epsilon / distance
    )


def worst(universe, mechanism, *, numerator=None, sigma=None):
    """The largest divergence of all neighbors at epsilon: labels exactly, counts as continuous."""
    numerator = numerator or mechanism.pass_numerator
    growth, actual = exp(mechanism.epsilon), 0.0
    distance = sqrt(2 * universe[0]) / (sigma or mechanism.sigma)
    for here, there, same in gate_universes.reached_pairs(universe, stability_distances):
        first, second = (float(Fraction(numerator(one), CERTAIN)) for one in (here, there))
        labels = max(0.0, first - growth * second) if same else first
        ratio = growth * (1 - second) / (1 - first) if first < 1 else inf
        counts = (1 - first) * gaussian_delta(ratio, distance) if ratio < inf else 0.0
        actual = max(actual, labels + counts)
    return actual


@pytest.mark.parametrize("universe", UNIVERSES)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_no_pair_of_neighbours_exceeds_the_claim_and_one_comes_near(universe, share):
    largest = worst(universe, of_counts(share, universe[0]))
    assert 0.9 * DELTA < largest <= DELTA


@pytest.mark.parametrize("universe", UNIVERSES)
def test_gates_that_open_too_often_and_counts_with_too_little_noise_are_rejected(universe):
    mechanism = of_counts(0.8, universe[0])

    def as_if_counts_cost_nothing(distance):
        return pass_numerator(EPSILON, mechanism.gate_delta, distance)

    def as_if_counts_were_rarer(distance):
        return pass_numerator(
            EPSILON,
            mechanism.gate_delta,
            distance,
            while_shut=mechanism.guarantees_of_counts,
            total_delta=min(3 * mechanism.delta, 1.0),
        )

    def thrice_the_first(distance):
        return mechanism.pass_numerator(distance) * (3 if distance == 1 else 1)

    def passing_ties(distance):
        return mechanism.pass_numerator(distance + 1)

    wrongs = (as_if_counts_cost_nothing, as_if_counts_were_rarer, thrice_the_first, passing_ties)
    for wrong in wrongs:
        assert worst(universe, mechanism, numerator=wrong) > DELTA
    assert worst(universe, mechanism, sigma=0.8 * mechanism.sigma) > DELTA


@EXAMPLES
@given(
    st.floats(1e-4, 5.0),
    st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0.0, 8.0)), min_size=1, max_size=6),
    st.floats(1e-12, 0.5),
    st.integers(1, 60),
)
def test_the_integers_satisfy_both_inequalities_exactly(epsilon, drawn, delta, farthest):
    shares = sorted((share for share, _ in drawn), reverse=True)
    factors = sorted(factor for _, factor in drawn)
    guarantees = tuple(
        (epsilon * share, min(delta * factor, 1.0))
        for share, factor in zip(shares, factors, strict=True)
    )
    numerators = [
        pass_numerator(epsilon, delta, distance, while_shut=guarantees, total_delta=delta)
        for distance in range(farthest + 1)
    ]
    growth, slack = gate_universes.exponential_below(epsilon), Fraction(delta) * CERTAIN
    assert numerators[0] == 0
    assert numerators[1] <= slack
    for near, far in itertools.pairwise(numerators):
        assert 0 <= near <= far <= CERTAIN
        assert far <= growth * near + slack
        # Of what is drawn while the gate is shut one guarantee suffices.
        shut, still_shut = CERTAIN - near, CERTAIN - far
        assert near == far or any(
            shut <= gate_universes.exponential_below(epsilon - of + 1e-14) * still_shut
            for of, most in guarantees
            if shut * Fraction(most) <= slack
        )


def test_what_costs_nothing_leaves_a_plain_gate_but_for_delta():
    plain, other = (
        [
            pass_numerator(0.5, 1e-4, distance, while_shut=drawn, total_delta=1e-4) / CERTAIN
            for distance in range(60)
        ]
        for drawn in ((), ((0.0, 0.0),))
    )
    assert all(0 <= one - two <= 2e-3 for one, two in zip(plain, other, strict=True))


def planned(num_teachers=2_000, num_queries=100, **changes):
    target = Target(**{"epsilon": 0.1, "delta": 1e-5, "num_queries": num_queries, **changes})
    counts = np.zeros((num_queries, 10), np.int64)
    counts[:, 0] = num_teachers
    return target, StabilityGateOrHistogram.for_target(target, counts)


def test_the_rarer_counts_are_drawn_the_faster_their_chance_falls():
    """Beside what a single guarantee of the counts allows; numbers of the theory's page."""
    _, mechanism = planned()
    drawn, delta = mechanism.guarantees_of_counts, mechanism.delta * BELOW
    first = next(pair for pair in reversed(drawn) if pair[1] <= delta)
    with_one, with_all = (
        [
            1
            - pass_numerator(
                0.1, mechanism.gate_delta, distance, while_shut=shut, total_delta=delta
            )
            / CERTAIN
            for distance in (50, 100, 200, 300)
        ]
        for shut in ((first,), drawn)
    )
    assert all(np.array(with_all) <= with_one)
    assert mechanism.sigma == pytest.approx(551, abs=0.5)
    assert (with_all[2], with_one[2]) == pytest.approx((0.050, 0.156), abs=5e-4)


def test_a_plan_spends_its_target_and_opens_as_often_as_planned():
    target, actual = planned()
    assert 0.0999 < target.epsilon_of(actual) <= 0.1
    assert actual.approximate == (0.1, pytest.approx(1e-5 / 3))
    chance = actual.pass_numerator(int(PLANNED_SHARE * 2_000)) / CERTAIN
    assert PLANNED_CHANCE <= chance < PLANNED_CHANCE + 1e-3
    rest, _ = smallest_epsilon({GaussianHistogram(sigma=actual.sigma): 100}, actual.delta)
    assert 0.075 < rest < 0.1
    # What counts use up of delta at all of epsilon, and no more, is not the labels'.
    left = actual.delta - actual.gate_delta
    assert smallest_epsilon({GaussianHistogram(sigma=actual.sigma): 100}, left)[0] == pytest.approx(
        0.1
    )


@pytest.mark.parametrize("distance", [2, 4, 6])
def test_it_draws_labels_as_often_as_its_law_says_and_counts_with_its_noise(distance, monkeypatch):
    numerator = functools.cache(StabilityGateOrHistogram.pass_numerator)
    monkeypatch.setattr(StabilityGateOrHistogram, "pass_numerator", numerator)
    mechanism = of_counts(0.8, 4)
    counts = np.tile([40, 0], (4, 1))
    counts[1] = [20 - distance, 20 + distance]
    source, runs, sums = SystemNoise(), 4_000, []
    for _ in range(runs):
        drawn = mechanism.draw(counts, source)
        if drawn.noisy_counts is None:
            assert drawn.labels == [0, 1, 0, 0]
        else:
            assert drawn.labels == drawn.noisy_counts.argmax(axis=1).tolist()
            sums.append(drawn.noisy_counts / LATTICE - counts)
    for distance_of_law, fits in ((distance, True), (distance + 1, False)):
        chance = mechanism.pass_numerator(distance_of_law) / CERTAIN
        p_value = stats.binomtest(runs - len(sums), runs, chance).pvalue
        assert (p_value > FALSE_ALARM) or not fits
        assert fits or p_value < 0.05 or distance == 2
    noise = np.concatenate([one.ravel() for one in sums])
    for factor, fits in ((1.0, True), (0.85, False), (1.15, False)):
        spread = (noise**2).sum() / (factor * mechanism.sigma) ** 2
        p_value = 2 * min(stats.chi2.cdf(spread, noise.size), stats.chi2.sf(spread, noise.size))
        assert (p_value > FALSE_ALARM) == fits
