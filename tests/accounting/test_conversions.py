import math

import mpmath as mp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.conversions import (
    epsilon_from_alphas,
    excess,
    gaussian_dp_delta,
    gaussian_dp_epsilon,
    least,
    pure_alpha,
    pure_composition_epsilon,
)

EXAMPLES = settings(deadline=None, max_examples=60, derandomize=True)


@EXAMPLES
@given(st.floats(1e-8, 50), st.floats(0.05, 1000), st.floats(1e-12, 0.5))
def test_conversions_agree_with_fifty_digits(alpha, moment, delta):
    a, power, d = mp.mpf(alpha), mp.mpf(moment), mp.mpf(delta)
    classic = (a + mp.log(1 / d)) / power
    improved = max(
        0, a / power + mp.log(power / (power + 1)) + (mp.log(1 / d) - mp.log(power + 1)) / power
    )
    for conversion, expected in (("classic", classic), ("improved", improved)):
        epsilon, best = epsilon_from_alphas([alpha], [moment], delta, conversion=conversion)
        assert epsilon == pytest.approx(float(expected), rel=1e-12, abs=1e-13)
        assert best == moment
    assert improved <= classic


def test_the_best_moment_wins_and_infinite_or_missing_ones_never_do():
    moments = np.array([1.0, 2.0, 4.0])
    epsilon, moment = epsilon_from_alphas([1.0, 1.0, math.inf], moments, 1e-5)
    assert moment == 2.0
    assert epsilon_from_alphas([1.0, 1.0, math.nan], moments, 1e-5) == (epsilon, moment)
    assert epsilon_from_alphas([math.inf] * 3, moments, 1e-5)[0] == math.inf
    assert epsilon_from_alphas([math.nan] * 3, moments, 1e-5)[0] == math.inf


@EXAMPLES
@given(st.floats(1e-3, 30.0), st.sampled_from([1e-2, 1e-5, 1e-10]))
def test_gaussian_epsilon_never_claims_less_than_the_truth(mu, delta):
    epsilon = mp.mpf(gaussian_dp_epsilon(mu, delta))
    spent = mp.ncdf(-epsilon / mu + mp.mpf(mu) / 2)
    spent -= mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mp.mpf(mu) / 2)
    assert spent <= delta
    if epsilon > 0:
        less = epsilon * (1 - mp.mpf("1e-7"))
        almost = mp.ncdf(-less / mu + mp.mpf(mu) / 2)
        almost -= mp.exp(less) * mp.ncdf(-less / mu - mp.mpf(mu) / 2)
        assert almost > delta


@EXAMPLES
@given(st.floats(1e-3, 30.0), st.floats(0.0, 50.0))
def test_gaussian_delta_never_claims_less_than_the_truth(mu, epsilon):
    with mp.workdps(400):
        spent = mp.ncdf(-mp.mpf(epsilon) / mu + mp.mpf(mu) / 2)
        matched = mp.exp(epsilon) * mp.ncdf(-mp.mpf(epsilon) / mu - mp.mpf(mu) / 2)
        truth, actual = spent - matched, mp.mpf(float(gaussian_dp_delta(mu, epsilon)))
        assert truth * (1 - mp.mpf("1e-300")) <= actual or spent < mp.mpf("1e-300")
        assert actual <= truth + spent * mp.mpf("1e-5")


def randomised_response_delta(epsilon: mp.mpf, pure: float, queries: int) -> mp.mpf:
    win = 1 / (1 + mp.exp(-mp.mpf(pure)))
    spent = mp.mpf(0)
    for k in range(queries + 1):
        here = mp.binomial(queries, k) * win**k * (1 - win) ** (queries - k)
        there = mp.binomial(queries, k) * (1 - win) ** k * win ** (queries - k)
        spent += max(0, here - mp.exp(epsilon) * there)
    return spent


@EXAMPLES
@given(st.floats(1e-4, 5.0), st.integers(1, 60), st.sampled_from([1e-2, 1e-5, 1e-9]))
def test_pure_composition_is_tight_and_on_the_safe_side(pure, queries, delta):
    epsilon = mp.mpf(pure_composition_epsilon(pure, queries, delta))
    assert epsilon <= pure * queries
    if epsilon < pure * queries:
        assert randomised_response_delta(epsilon, pure, queries) <= delta
    if epsilon > 0:
        less = epsilon * (1 - mp.mpf("1e-6"))
        assert randomised_response_delta(less, pure, queries) > delta


@EXAMPLES
@given(st.floats(1e-9, 3.0), st.sampled_from([-1.0, 1.0]), st.floats(0.05, 200))
def test_excess_agrees_with_its_definition(size, sign, moment):
    r, order = mp.mpf(size) * int(sign), mp.mpf(moment) + 1
    expected = mp.exp(order * r) - 1 - order * (mp.exp(r) - 1)
    value = excess(np.array([float(r)]), np.array([moment]))[0]
    assert value == pytest.approx(float(expected), rel=1e-11, abs=0.0)


@EXAMPLES
@given(st.floats(1e-7, 400.0), st.floats(0.05, 1000))
def test_pure_alpha_agrees_with_fifty_digits(epsilon, moment):
    value = pure_alpha(epsilon, np.array([moment]))[0]
    assert value == pytest.approx(float(reference.mp_cap(epsilon / 2, moment)), rel=1e-12, abs=0.0)


def test_the_least_number_holds_and_the_one_below_does_not():
    for edge in (1, 7, 1000):
        assert least(lambda number, edge=edge: number >= edge, 0, 1000) == edge
    for edge in (1e-30, 0.3, 9.75):
        smallest = least(lambda number, edge=edge: number >= edge, 0.0, 10.0)
        assert smallest == edge
        near = least(lambda number, edge=edge: number >= edge, 0.0, 10.0, within=1e-3)
        assert edge <= near <= edge * (1.0 + 2e-3)
