import itertools
import math
from fractions import Fraction

import gate_universes
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.mechanisms import StabilityGate
from pate_tf.accounting.mechanisms.charged_once import CERTAIN, pass_numerator, stability_distances
from pate_tf.release.noise import SeededNoise

EXAMPLES = settings(deadline=None, max_examples=60, derandomize=True)
PAGE_UNIVERSES = [(12, 2, 2), (6, 3, 2), (9, 2, 3), (5, 3, 2)]  # queries, classes, teachers
DEEP_UNIVERSES = [(2, 2, 9), (3, 2, 7), (2, 3, 6)]


def worst(universe, epsilon, delta, *, numerator=None, distances=stability_distances, **options):
    gate = StabilityGate(epsilon=epsilon, delta=delta)
    return gate_universes.worst_gate(
        universe,
        epsilon=epsilon,
        delta=delta,
        numerator=numerator or gate.pass_numerator,
        distances=distances,
        **options,
    )


@pytest.mark.parametrize("universe", [*PAGE_UNIVERSES, *DEEP_UNIVERSES])
def test_no_pair_of_neighbours_exceeds_the_claim_and_one_reaches_it(universe):
    for epsilon in (0.3, 0.6, 1.0):
        for delta in (1e-5, 0.02):
            ratio = worst(universe, epsilon, delta)
            assert ratio <= 1
            assert ratio > 1 - Fraction(1, 10**20)


@pytest.mark.long
@pytest.mark.parametrize("universe", [(4, 3, 5), (6, 2, 11), (2, 4, 7), (14, 2, 3)])
def test_no_pair_of_neighbours_exceeds_the_claim_in_larger_universes(universe):
    for epsilon, delta in itertools.product((0.3, 1.0), (1e-5, 0.02)):
        assert 1 - Fraction(1, 10**20) < worst(universe, epsilon, delta) <= 1


@pytest.mark.parametrize("universe", DEEP_UNIVERSES)
def test_more_than_the_pass_function_is_rejected(universe):
    epsilon, delta = 0.4, 0.02

    def doubled_first(distance):
        return pass_numerator(epsilon, delta, distance) * (2 if distance == 1 else 1)

    def passing_ties(distance):
        return pass_numerator(epsilon, delta, distance + 1)

    def one_of_all_integers_more(distance):
        return pass_numerator(epsilon, delta, distance) + (distance == 2)

    def half_the_noise(distance):
        return pass_numerator(2.0 * epsilon, delta, distance)

    def twice_the_delta(distance):
        return pass_numerator(epsilon, 2.0 * delta, distance)

    wrong = (doubled_first, passing_ties, half_the_noise, twice_the_delta, one_of_all_integers_more)
    for numerator in wrong:
        assert worst(universe, epsilon, delta, numerator=numerator) > 1


@pytest.mark.parametrize("universe", DEEP_UNIVERSES)
def test_a_distance_in_votes_instead_of_teachers_is_rejected(universe):
    def gaps(counts):
        ordered = np.sort(counts, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    def one_more(counts):
        return stability_distances(counts) + 1

    for wrong in (gaps, one_more):
        assert worst(universe, 0.4, 0.02, distances=wrong) > 1


@EXAMPLES
@given(
    st.floats(0.0, 90.0) | st.floats(1e-6, 1.0),
    st.floats(1e-45, 0.999) | st.floats(1e-12, 1e-2),
    st.integers(1, 60),
)
def test_the_integers_satisfy_the_inequalities_exactly(epsilon, delta, farthest):
    growth = gate_universes.exponential_below(epsilon)
    slack = Fraction(delta) * CERTAIN
    numerators = [pass_numerator(epsilon, delta, distance) for distance in range(farthest + 1)]
    assert numerators[0] == 0
    assert numerators[1] <= slack
    for near, far in itertools.pairwise(numerators):
        assert 0 <= near <= far <= CERTAIN
        assert far <= growth * near + slack
        assert CERTAIN - near <= growth * (CERTAIN - far) + slack


def slow_pass_function(epsilon, delta, distance):
    probability, growth, step = mp.mpf(0), mp.exp(mp.mpf(epsilon)), mp.mpf(delta)
    for _ in range(distance):
        shut = 1 - (1 - probability - step) / growth
        probability = min(growth * probability + step, shut, mp.mpf(1))
    return probability


@EXAMPLES
@given(st.floats(1e-4, 5.0), st.floats(1e-12, 0.1), st.integers(0, 300))
def test_the_pass_function_agrees_with_fifty_digits_and_is_never_above(epsilon, delta, distance):
    gate = StabilityGate(epsilon=epsilon, delta=delta)
    with mp.workdps(60):
        expected = slow_pass_function(epsilon, delta, distance)
        exact = mp.mpf(gate.pass_numerator(distance)) / CERTAIN
        assert exact <= expected
        # A step rounds by at most 2**-128, which later steps multiply by at most 1 / delta.
        assert expected - exact <= mp.mpf(2) ** -120 * (distance + 1) / delta


def test_an_epsilon_of_zero_and_a_huge_one_are_drawn():
    assert pass_numerator(0.0, 0.125, 3) == 3 * CERTAIN // 8
    assert pass_numerator(0.0, 0.125, 8) == CERTAIN
    assert pass_numerator(1e300, 1e-5, 3) == CERTAIN
    assert pass_numerator(1.0, 1e-300, 10_000) == 0


def test_distances_are_teachers_to_a_tie_rounded_up():
    counts = np.array([[5, 3, 2], [4, 4, 2], [10, 0, 0], [3, 6, 1], [3, 3, 4]])
    assert stability_distances(counts).tolist() == [1, 0, 5, 2, 1]


@pytest.mark.parametrize("universe", [(2, 3, 4), (3, 2, 5)])
def test_one_teacher_changes_every_distance_by_at_most_one(universe):
    moved = set()
    for counts in gate_universes.other_counts(*universe):
        distances = np.array(
            [stability_distances(table) for table in gate_universes.neighbours(counts)]
        )
        moved |= set(np.unique(distances[:, None] - distances[None, :]).tolist())
    assert moved == {-1, 0, 1}


def test_a_tie_never_leaves_and_a_sure_batch_always_does():
    gate = StabilityGate(epsilon=0.5, delta=1e-5)
    source = SeededNoise(1)
    assert gate.draw(np.array([[4, 4], [8, 0]]), source).labels == [None, None]
    assert gate.draw(np.array([[400, 0], [0, 400]]), source).labels == [0, 1]


def test_the_ledgers_cost_of_a_gate():
    gate = StabilityGate(epsilon=0.25, delta=1e-5)
    assert gate.data_independent_epsilon(num_queries=1, delta=1e-5) == (0.25, None)
    assert gate.data_independent_epsilon(num_queries=5000, delta=1e-5) == (0.25, None)
    assert gate.data_independent_epsilon(num_queries=50, delta=0.99e-5)[0] == math.inf
    for wrong in ({"epsilon": -0.1}, {"epsilon": math.inf}, {"delta": 0.0}, {"delta": 1.0}):
        with pytest.raises(ValueError, match="expected"):
            StabilityGate(**{"epsilon": 0.25, "delta": 1e-5, **wrong})
