import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import gate_universes
import mpmath as mp
import numpy as np
import pytest
from cheapest_gate import cheapest_gate, release_probability
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pate_tf.accounting.mechanisms import StabilityGate
from pate_tf.accounting.mechanisms.stability_gate import (
    CERTAIN,
    least_epsilon,
    pass_numerator,
    stability_distances,
)
from pate_tf.release.noise import SeededNoise

EXAMPLES = settings(deadline=None, max_examples=60, derandomize=True)
PAGE_UNIVERSES = [(12, 2, 2), (6, 3, 2), (9, 2, 3), (5, 3, 2)]  # queries, classes, teachers
DEEP_UNIVERSES = [(2, 2, 9), (3, 2, 7), (2, 3, 6)]

# Least epsilon at delta 1e-5: of distance, for pass probability .99 and .999.
GOLDEN = {
    0.99: {
        **{20: 0.73913, 50: 0.27100, 60: 0.22213, 80: 0.16238, 100: 0.12726, 120: 0.10428},
        **{125: 0.09974, 150: 0.08171, 200: 0.05963, 250: 0.04668, 300: 0.03821},
        **{400: 0.02783, 500: 0.02174, 750: 0.01386, 1000: 0.01005},
    },
    0.999: {50: 0.32053, 100: 0.15162, 200: 0.07153, 300: 0.04595, 500: 0.02617},
}


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


@pytest.mark.parametrize("universe", [(5, 3, 2), (4, 2, 4)])
def test_exchanged_queries_change_nothing(universe):
    assert worst(universe, 0.5, 0.02, ordered=True) == worst(universe, 0.5, 0.02)


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
        assert mp.mpf(gate.pass_probability(distance)) <= exact
        assert gate.pass_probability(distance) == pytest.approx(float(exact), rel=1e-15, abs=0.0)


@pytest.mark.parametrize("probability", GOLDEN)
def test_golden_least_epsilons(probability):
    for distance, expected in GOLDEN[probability].items():
        found = least_epsilon(distance=distance, delta=1e-5, pass_probability=probability)
        assert round(found, 5) == expected
        gate = StabilityGate(epsilon=found, delta=1e-5)
        assert gate.pass_probability(distance) >= probability
        less = dataclasses.replace(gate, epsilon=found * (1 - 1e-9))
        assert less.pass_probability(distance) < probability


def test_no_epsilon_is_enough_at_a_tie_or_one_teacher_from_it():
    for distance in (0, 1):
        found = least_epsilon(distance=distance, delta=1e-5, pass_probability=0.5)
        assert found == math.inf
    assert least_epsilon(distance=1, delta=0.6, pass_probability=0.5) == 0.0


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


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[3], [3]], "two classes"),
        (np.zeros((0, 2), int), "at least one query"),
        ([3, 1], "num_queries, num_classes"),
        ([[3.5, 1.0]], "whole numbers"),
        ([[3, -1]], "negative"),
        ([[3, 1], [2, 1]], "unequal totals"),
    ],
)
def test_malformed_counts_are_refused(counts, expected):
    with pytest.raises(ValueError, match=expected):
        stability_distances(np.array(counts))


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": -0.1},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"num_withheld": -1},
        {"num_withheld": 1},
        {"selection_epsilon": 0.1},
        {"num_withheld": 1, "selection_epsilon": math.inf},
    ],
)
def test_a_gate_outside_of_its_range_is_refused(values):
    with pytest.raises(ValueError, match="expected"):
        StabilityGate(**{"epsilon": 0.25, "delta": 1e-5, **values})


def test_distances_probabilities_and_exceptions_outside_of_their_range_are_refused():
    gate = StabilityGate(epsilon=0.25, delta=1e-5, num_withheld=1, selection_epsilon=0.1)
    two = dataclasses.replace(gate, num_withheld=2)
    three = np.array([3, 1, 2])
    for wrong in (
        lambda: gate.pass_numerator(-1),
        lambda: gate.pass_probability(1.5),
        lambda: least_epsilon(distance=3, delta=1e-5, pass_probability=1.0),
        lambda: least_epsilon(distance=3, delta=0.0, pass_probability=0.5),
        lambda: gate.selection_weights(three[:1]),
        lambda: gate.distance(three, np.array([], int)),
        lambda: gate.distance(three, np.array([0, 1])),
        lambda: gate.withheld_queries(three, num_least_stable=2, others=[]),
        lambda: gate.withheld_queries(three, num_least_stable=0, others=[]),
        lambda: gate.withheld_queries(three, num_least_stable=0, others=[2]),
        lambda: gate.withheld_queries(three, num_least_stable=1, others=[0]),
        lambda: two.withheld_queries(np.array([3, 1, 2, 5]), num_least_stable=1, others=[2]),
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()


TOLERANT_UNIVERSES = [
    ((3, 2, 5), 1),
    ((4, 2, 4), 2),
    ((2, 3, 4), 1),
    ((3, 2, 4), 2),
    ((2, 2, 9), 1),
]


@pytest.mark.parametrize(("universe", "num_withheld"), TOLERANT_UNIVERSES)
def test_the_tolerant_gate_never_exceeds_its_claim(universe, num_withheld):
    for epsilon, selection, delta in ((0.3, 0.4, 0.02), (1.0, 0.3, 1e-5)):
        gate = StabilityGate(
            epsilon=epsilon, delta=delta, num_withheld=num_withheld, selection_epsilon=selection
        )
        claimed = Fraction(epsilon) + Fraction(selection)
        found = gate_universes.worst_tolerant(
            universe, gate, stability_distances, epsilon=float(claimed)
        )
        assert found <= 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("universe", "num_withheld"), [((3, 3, 3), 1), ((4, 2, 6), 1), ((5, 2, 4), 2), ((2, 3, 6), 1)]
)
def test_the_tolerant_gate_never_exceeds_its_claim_in_larger_universes(universe, num_withheld):
    gate = StabilityGate(epsilon=0.3, delta=0.02, num_withheld=num_withheld, selection_epsilon=0.4)
    found = gate_universes.worst_tolerant(universe, gate, stability_distances, epsilon=0.7)
    assert found <= 1


def test_a_tolerant_gate_with_half_the_noise_is_rejected():
    def found(*, epsilon=0.05, selection=0.6, delta=1e-3, distances=stability_distances):
        gate = StabilityGate(
            epsilon=epsilon, delta=delta, num_withheld=1, selection_epsilon=selection
        )
        ratio = gate_universes.worst_tolerant((2, 2, 9), gate, distances, epsilon=0.65)
        return ratio * Fraction(delta) / Fraction(1e-3)

    assert found() <= 1
    assert found(selection=1.2) > 1
    assert found(epsilon=0.8) > 1
    assert found(distances=lambda counts: np.abs(counts[:, 0] - counts[:, 1])) > 1


@EXAMPLES
@given(st.lists(st.integers(0, 30), min_size=2, max_size=6), st.data(), st.floats(0.01, 3.0))
def test_withheld_sets_follow_the_exponential_mechanism(distances, data, selection_epsilon):
    num_withheld = data.draw(st.integers(1, len(distances) - 1))
    gate = StabilityGate(
        epsilon=0.3,
        delta=1e-3,
        num_withheld=num_withheld,
        selection_epsilon=selection_epsilon,
    )
    counts = np.array([[60 + 2 * distance, 60] for distance in distances])
    law = gate_universes.tolerant_outcomes(gate, counts, np.array(distances))
    sets = list(itertools.combinations(range(len(distances)), num_withheld))
    left = [min(d for i, d in enumerate(distances) if i not in chosen) for chosen in sets]
    scores = [mp.exp(mp.mpf(selection_epsilon) / 2 * distance) for distance in left]
    total = mp.fsum(scores)
    for chosen, score in zip(sets, scores, strict=True):
        found = sum(probability for outcome, probability in law.items() if outcome[0] == chosen)
        assert float(found) == pytest.approx(float(score / total), rel=1e-12, abs=0.0)
    opened = sum(probability for outcome, probability in law.items() if outcome[1] != "shut")
    released = release_probability(gate, np.array(distances))
    assert released <= opened
    assert released == pytest.approx(float(opened), rel=1e-15, abs=0.0)


def test_ambiguous_queries_no_longer_decide():
    distances = [11, 40, 67, *range(230, 277)]
    delta, often = 1e-5, 0.99
    plain = cheapest_gate(distances, delta=delta, often=often)
    assert plain.epsilon > 1.4
    tolerant = cheapest_gate(distances, delta=delta, often=often, num_withheld=3)
    assert tolerant.selection_epsilon + tolerant.epsilon < 0.2
    assert release_probability(tolerant, np.array(distances)) >= often


@pytest.mark.parametrize(
    ("ambiguous", "sure", "plain", "tolerant"),
    [
        ([15], (60, 125), 1.018, 0.590),
        ([0, 15, 30], (60, 125), None, 0.845),
        ([40], (230, 460), 0.346, 0.138),
        ([11, 40, 67], (230, 460), 1.425, 0.197),
    ],
)
def test_the_totals_of_the_theory_page(ambiguous, sure, plain, tolerant):
    distances = [*ambiguous, *np.linspace(*sure, 50 - len(ambiguous)).round()]
    asked = {"delta": 1e-5, "often": 0.99}
    gate = cheapest_gate(distances, num_withheld=3, **asked)
    assert gate.selection_epsilon + gate.epsilon == pytest.approx(tolerant, abs=5e-4)
    if plain is None:
        with pytest.raises(ValueError, match="expected distances"):
            cheapest_gate(distances, **asked)
    else:
        assert cheapest_gate(distances, **asked).epsilon == pytest.approx(plain, abs=5e-4)


def test_the_cheapest_gate_without_exceptions_is_the_golden_one():
    gate = cheapest_gate([60, 75, 100], delta=1e-5, often=0.99)
    assert gate.epsilon == pytest.approx(0.22213, abs=1e-5)
    assert gate.selection_epsilon == 0.0
    with pytest.raises(ValueError, match="expected distances that let a gate open"):
        cheapest_gate([0, 75, 100], delta=1e-5, often=0.99)
    with pytest.raises(ValueError, match="often"):
        cheapest_gate([60], delta=1e-5, often=1.0)


def test_what_is_drawn_follows_the_law_that_is_proved():
    """Sets, openings and labels together, against the law from the enumerations."""
    counts = np.array([[5, 2, 0], [3, 4, 0], [0, 1, 6], [7, 0, 0]])
    gate = StabilityGate(epsilon=0.8, delta=0.05, num_withheld=2, selection_epsilon=0.7)
    law = gate_universes.tolerant_outcomes(gate, counts, stability_distances(counts))
    due = {}
    for (chosen, outcome), chance in law.items():
        kept = [query for query in range(4) if query not in chosen]
        is_open = outcome != "shut"
        answer = tuple(int(counts[q].argmax()) if q in kept else None for q in range(4))
        answer = answer if is_open else (None,) * 4
        due[answer] = due.get(answer, 0) + float(chance)
    source = SeededNoise(5)
    num_draws = 20_000
    drawn = Counter(tuple(gate.draw(counts, source).labels) for _ in range(num_draws))
    assert set(drawn) <= set(due)
    places = list(due)
    observed, expected = ([of.get(one, 0) for one in places] for of in (drawn, due))
    test = stats.chisquare(observed, np.array(expected) / sum(expected) * num_draws)
    assert test.pvalue > 1e-7
    other = StabilityGate(epsilon=0.8, delta=0.05, num_withheld=2, selection_epsilon=1.4)
    drawn = Counter(tuple(other.draw(counts, source).labels) for _ in range(num_draws))
    observed = [drawn.get(one, 0) for one in places]
    assert stats.chisquare(observed, np.array(expected) / sum(expected) * num_draws).pvalue < 1e-7


class FixedNoise:
    """Draws given numbers below a bound, and the first places of a set."""

    def __init__(self, *numbers):
        self._numbers = list(numbers)

    def uniform_below(self, bound):
        assert 0 <= self._numbers[0] < bound
        return self._numbers.pop(0)

    def uniform_subset(self, number, *, below):
        return list(range(number))


def test_each_number_that_is_drawn_belongs_to_one_set():
    """The weights part the numbers exactly: the first number of a set is not the one before's."""
    gate = StabilityGate(epsilon=64.0, delta=0.5, num_withheld=1, selection_epsilon=0.5)
    counts = np.array([[30, 20], [20, 30], [50, 0]])
    first, _ = gate.selection_weights(stability_distances(counts))
    for drawn, withheld in ((0, 1), (first - 1, 1), (first, 0)):
        labels = gate.draw(counts, FixedNoise(drawn, 0)).labels
        assert labels[withheld] is None and labels.count(None) == 1


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
    tolerant = StabilityGate(epsilon=0.25, delta=1e-6, num_withheld=3, selection_epsilon=0.1)
    assert tolerant.approximate == pytest.approx((0.35, 1e-6))
    assert Fraction(tolerant.approximate[0]) >= Fraction(0.25) + Fraction(0.1)


def test_only_a_tolerant_gate_speaks_of_queries_without_labels():
    assert (
        "(0.25, 1e-05) differentially private" in StabilityGate(epsilon=0.25, delta=1e-5).in_words()
    )
    assert "got no label" not in StabilityGate(epsilon=0.25, delta=1e-5).in_words()
    tolerant = StabilityGate(epsilon=0.25, delta=1e-5, num_withheld=3, selection_epsilon=0.1)
    assert "3 queries got no label" in tolerant.in_words()


@pytest.mark.parametrize("num_withheld", [-1, 1.5, math.nan])
def test_nonsense_numbers_of_withheld_queries_are_refused(num_withheld):
    with pytest.raises(ValueError, match="num_withheld"):
        StabilityGate(epsilon=1.0, delta=1e-5, num_withheld=num_withheld, selection_epsilon=0.1)
