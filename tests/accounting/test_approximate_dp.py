import itertools
import math

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

EXAMPLES = settings(deadline=None, max_examples=40, derandomize=True)

guarantees = st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1e-3))


def composed_delta(composed, *, epsilon, alphas=None):
    """Returns delta by Theorem G5 with the library's losses and moments, rounded up."""
    return min(privacy_profile(composed, alphas)(epsilon) * (1.0 + SAFETY_MARGIN), 1.0)


def losses(composed):
    """Returns every loss of the leaking randomized responses, its probability, and the probability
    of an infinite loss.
    """
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
    actual = composed_epsilon([(0.01, 0.0)] * number, delta=1e-6)
    expected = pure_composition_epsilon(0.01, number, 1e-6)
    # Above a few thousand mechanisms losses are merged, which costs a little.
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
    for used in (1e-5, 2e-5, 1.0):
        assert composed_epsilon([(0.1, used)], delta=1e-5, alphas=alphas) == math.inf
    assert composed_epsilon([(0.1, 2e-5)], delta=1e-5) == math.inf
    assert composed_epsilon([(0.1, 1e-5), (0.1, 1e-5)], delta=1e-5) == math.inf
    assert composed_epsilon([(0.1, 1.0)], delta=0.99) == math.inf
    assert composed_epsilon([], delta=1e-5) == 0.0
    for worst in (math.inf, math.nan):
        alphas = np.full(len(DEFAULT_MOMENTS), worst)
        assert composed_epsilon([(0.1, 1e-6)], delta=1e-5, alphas=alphas) == math.inf


def test_merged_losses_only_raise_epsilon(monkeypatch):
    composed = [(0.05 + 0.001 * place, 1e-8) for place in range(12)]
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
