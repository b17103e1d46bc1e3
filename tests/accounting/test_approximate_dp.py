import itertools
import math
from fractions import Fraction

import gate_universes
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting import composition
from pate_tf.accounting.composition import composed_epsilon, moved_guarantee, privacy_profile
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    epsilon_from_alphas,
    pure_composition_epsilon,
)
from pate_tf.accounting.mechanisms import PermuteAndFlip
from pate_tf.accounting.mechanisms.charged_once import CERTAIN, pass_numerator, stability_distances

EXAMPLES = settings(deadline=None, max_examples=40, derandomize=True)

guarantees = st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1e-3))


def gates(*pairs):
    return list(pairs)


def composed_delta(composed, *, epsilon, alphas=None):
    """Theorem G5 with the library's losses and moments, rounded up."""
    return min(privacy_profile(composed, alphas)(epsilon) * (1.0 + SAFETY_MARGIN), 1.0)


def losses(composed):
    """Every loss of the leaking randomized responses, its probability, and that of infinity."""
    kept = mp.mpf(1)
    laws = []
    for epsilon, delta in composed:
        kept *= 1 - mp.mpf(delta)
        wins = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        laws.append([(mp.mpf(epsilon), wins), (-mp.mpf(epsilon), 1 - wins)])
    finite = [
        (mp.fsum(loss for loss, _ in path), mp.fprod(weight for _, weight in path))
        for path in itertools.product(*laws)
    ]
    return finite, 1 - kept


def true_delta(composed, epsilon, rest=lambda epsilon: max(mp.mpf(0), 1 - mp.exp(epsilon))):
    finite, leaked = losses(composed)
    spent = mp.fsum(weight * rest(mp.mpf(epsilon) - loss) for loss, weight in finite)
    return leaked + (1 - leaked) * spent


def gaussian_delta(mu):
    def delta(epsilon):
        spent = mp.ncdf(-epsilon / mu + mu / 2)
        return spent - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)

    return delta


@EXAMPLES
@given(st.lists(guarantees, max_size=8), st.floats(0.0, 6.0))
def test_composed_guarantees_agree_with_every_path_and_are_never_below(composed, epsilon):
    with mp.workdps(50):
        expected = true_delta(composed, epsilon)
        actual = composed_delta(composed, epsilon=epsilon)
        assert actual >= min(expected, 1)
        assert actual == pytest.approx(float(expected), rel=1e-8, abs=1e-14)


@EXAMPLES
@given(st.lists(guarantees, min_size=1, max_size=7), st.sampled_from([0.3, 1e-2, 1e-5]))
def test_composed_epsilon_is_tight_and_on_the_safe_side(composed, delta):
    epsilon = composed_epsilon(composed, delta=delta)
    with mp.workdps(50):
        if epsilon == math.inf:
            assert true_delta(composed, 1000.0) * (1 + mp.mpf("1e-8")) > delta
            return
        assert true_delta(composed, epsilon) <= delta
        if epsilon > 0.0:
            less = epsilon * (1 - 1e-6) - 1e-12
            assert less < 0 or true_delta(composed, less) > delta * (1 - 1e-6)


@pytest.mark.parametrize("number", [1, 5, 100, 5000, 200_000])
def test_equal_pure_guarantees_compose_as_the_closed_form(number):
    actual = composed_epsilon(gates((0.01, 0.0)) * number, delta=1e-6)
    expected = pure_composition_epsilon(0.01, number, 1e-6)
    # Merged losses, above some thousand mechanisms, cost a little.
    assert expected * (1 - 1e-6) <= actual <= expected * (1.0 + 2e-8 if number < 1000 else 1.02)


@EXAMPLES
@given(st.floats(0.05, 3.0), st.lists(guarantees, max_size=3))
def test_moments_alone_and_basic_composition_are_the_limits(scale, composed):
    delta = 1e-2
    alphas = scale**2 * DEFAULT_MOMENTS * (DEFAULT_MOMENTS + 1.0) / 2.0
    alone = composed_epsilon([], delta=delta, alphas=alphas)
    assert alone == pytest.approx(epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)[0], rel=1e-8)
    assert alone >= epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)[0]
    actual = composed_epsilon(composed, delta=delta, alphas=alphas)
    left = delta - sum(used for _, used in composed)
    basic = sum(epsilon for epsilon, _ in composed)
    basic += epsilon_from_alphas(alphas, DEFAULT_MOMENTS, left)[0]
    assert alone <= actual * (1 + 1e-8)
    assert actual <= basic * (1 + 1e-8)


@EXAMPLES
@given(st.floats(0.1, 2.0), st.lists(guarantees, max_size=3), st.sampled_from([1e-2, 1e-4]))
def test_gates_beside_gaussian_noise_never_claim_less_than_the_truth(mu, composed, delta):
    alphas = mu**2 * DEFAULT_MOMENTS * (DEFAULT_MOMENTS + 1.0) / 2.0
    epsilon = composed_epsilon(composed, delta=delta, alphas=alphas)
    with mp.workdps(40):
        if epsilon < math.inf:
            assert true_delta(composed, epsilon, gaussian_delta(mp.mpf(mu))) <= delta
    for less in (0.0, 0.3, 1.0):
        spent = true_delta(composed, less, gaussian_delta(mp.mpf(mu)))
        assert composed_delta(composed, epsilon=less, alphas=alphas) >= spent


def test_deltas_that_use_up_delta_leave_no_epsilon():
    alphas = np.full(len(DEFAULT_MOMENTS), 1e-3)
    for composed in (gates((0.1, 1e-5)), gates((0.1, 2e-5)), gates((0.1, 1.0))):
        assert composed_epsilon(composed, delta=1e-5, alphas=alphas) == math.inf
    assert composed_epsilon(gates((0.1, 2e-5)), delta=1e-5) == math.inf
    assert composed_epsilon(gates((0.1, 1e-5), (0.1, 1e-5)), delta=1e-5) == math.inf
    assert composed_epsilon(gates((0.1, 1.0)), delta=0.99) == math.inf
    assert composed_epsilon([], delta=1e-5) == 0.0
    for worst in (math.inf, math.nan):
        alphas = np.full(len(DEFAULT_MOMENTS), worst)
        assert composed_epsilon(gates((0.1, 1e-6)), delta=1e-5, alphas=alphas) == math.inf


def test_merged_losses_only_raise_epsilon(monkeypatch):
    composed = gates(*((0.05 + 0.001 * place, 1e-8) for place in range(12)))
    alphas = DEFAULT_MOMENTS * (DEFAULT_MOMENTS + 1.0) / 200.0
    exact = composed_epsilon(composed, delta=1e-5, alphas=alphas)
    for most in (1000, 100):
        monkeypatch.setattr(composition, "MAX_LOSSES", most)
        merged = composed_epsilon(composed, delta=1e-5, alphas=alphas)
        assert exact <= merged < exact * 1.2
        exact = merged


@EXAMPLES
@given(st.floats(0.0, 3.0), st.floats(1e-9, 1e-2), st.integers(1, 5))
def test_several_moved_teachers(epsilon, delta, num_teachers):
    moved_epsilon, moved_delta = moved_guarantee((epsilon, delta), num_teachers)
    factor = mp.fsum(mp.exp(mp.mpf(epsilon) * k) for k in range(num_teachers))
    assert moved_epsilon >= mp.mpf(epsilon) * num_teachers
    assert moved_delta >= min(mp.mpf(delta) * factor, 1)
    assert moved_epsilon == pytest.approx(epsilon * num_teachers, rel=1e-12)
    assert moved_delta == pytest.approx(min(float(delta * factor), 1.0), rel=1e-8)
    growth = gate_universes.exponential_below(moved_epsilon)
    for distance in range(20):
        near = pass_numerator(epsilon, delta, distance)
        far = pass_numerator(epsilon, delta, distance + num_teachers)
        assert far <= growth * near + Fraction(moved_delta) * CERTAIN


def two_gates_and_a_noisy_label(counts, epsilon, delta, gamma):
    """The law of two gates and a noisy label, each on a query that depends on those before."""
    distances = stability_distances(counts)
    labels = counts.argmax(axis=1)
    law = {}

    def gate(query):
        opens = pass_numerator(epsilon, delta, int(distances[query])) / CERTAIN
        return ((int(labels[query]), opens), ("shut", 1.0 - opens))

    for first, chance in gate(0):
        for second, chance_too in gate(1 if first == 0 else 2):
            noisy = 3 if second == "shut" else 2
            shares = PermuteAndFlip(gamma=gamma).outcome_probabilities(counts[noisy][None, :])[0]
            for label, share in enumerate(shares.tolist()):
                law[first, second, label] = chance * chance_too * share
    return law


@pytest.mark.parametrize(
    ("num_teachers", "gamma"),
    [(1, 0.5), (2, 0.2), (3, 0.5), pytest.param(4, 0.1, marks=pytest.mark.long)],
)
def test_adaptive_gates_and_a_noisy_label_never_exceed_their_composition(num_teachers, gamma):
    epsilon, delta = 0.4, 0.01
    moments = DEFAULT_MOMENTS
    alphas = PermuteAndFlip(gamma=gamma).alphas(moments)
    composed = gates((epsilon, delta), (epsilon, delta))
    epsilons = [0.0, 0.2, 0.4, 0.8, 1.0]
    epsilons.append(composed_epsilon(composed, delta=0.03, alphas=alphas))
    claimed = [composed_delta(composed, epsilon=value, alphas=alphas) for value in epsilons]
    too_little = [
        composed_delta(gates((epsilon / 2, delta / 2)) * 2, epsilon=value, alphas=alphas)
        for value in epsilons
    ]
    assert claimed[-1] <= 0.03
    largest = np.zeros(len(epsilons))
    for others in gate_universes.other_counts(4, 2, num_teachers, ordered=True):
        laws = [
            two_gates_and_a_noisy_label(counts, epsilon, delta, gamma)
            for counts in gate_universes.neighbours(others)
        ]
        for here, there in itertools.permutations(laws, 2):
            spent = [
                gate_universes.hockey_stick(here, there, math.exp(value)) for value in epsilons
            ]
            largest = np.maximum(largest, spent)
    assert np.all(largest <= np.array(claimed) * (1.0 + 1e-12))
    assert np.any(largest > too_little)
