"""The certified worst case of a noisy maximum against slow searches and exact laws.

docs/proofs/worst_case.md has the proofs. These tests search for a counterexample to every claim.
Each certified bound must also be close to the worst case that the search found.
"""

import json
import math
import pathlib

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.moments import exact_costs
from pate_tf.accounting.noisy_max_costs import excesses, largest_excess

SOME = DEFAULT_MOMENTS[::9]
CERTIFIED = json.loads(pathlib.Path(__file__).with_name("golden.json").read_text())["certified"]
NOISY = [
    LaplaceNoisyMax(gamma=0.05),
    LaplaceNoisyMax(gamma=0.3),
    LaplaceNoisyMax(gamma=2.0),
    GaussianNoisyMax(sigma=40.0),
    GaussianNoisyMax(sigma=3.0),
    GaussianNoisyMax(sigma=0.8),
]


def laplace_laws(gamma, ties_to_a, size):
    """Returns laws of (a, b, other) at all x, y in -size .. size, by summing over noisy counts."""
    p = math.exp(-gamma)
    places = np.arange(-size, size + 1)[:, None]
    values = np.arange(0, size + math.ceil(40 / gamma))

    def below(k):  # Pr[Z <= k]
        return np.where(k < 0, p ** np.abs(k) / (1 + p), 1 - p ** np.abs(k + 1.0) / (1 + p))

    mass = (1 - p) / (1 + p) * p ** np.abs(values - places) * (1 - p ** (values + 1.0))
    reached, passed = below(values - places), below(values - places - 1)
    geometric = (1 - p) * p**values
    return np.stack(
        [
            mass @ (reached if ties_to_a else passed).T,
            (passed if ties_to_a else reached) @ mass.T,
            (geometric * passed) @ passed.T,
        ]
    )


def searched(laws, shift, moment):
    """Returns the largest alpha of moves (x, y) -> (x - shift, y + shift), in both directions."""
    here, there = laws[:, shift:, :-shift], laws[:, :-shift, shift:]
    with np.errstate(over="ignore", invalid="ignore"):
        forward = np.sum(here * (here / there) ** moment, axis=0)
        reverse = np.sum(there * (there / here) ** moment, axis=0)
    return float(np.log(max(forward.max(), reverse.max())))


@pytest.mark.parametrize(("gamma", "size"), [(3.0, 8), (0.7, 25), (0.1, 150), (0.05, 260)])
def test_the_laplace_bound_is_the_supremum_of_a_dense_search(gamma, size):
    bound = LaplaceNoisyMax(gamma=gamma).alphas(DEFAULT_MOMENTS)
    for ties_to_a in (True, False):
        laws = laplace_laws(gamma, ties_to_a, size)
        np.testing.assert_allclose(laws.sum(axis=0), 1.0, rtol=1e-9)
        for index in range(0, len(DEFAULT_MOMENTS), 7):
            moment = DEFAULT_MOMENTS[index]
            if moment * gamma < 50.0:
                largest = searched(laws, 1, moment)
                assert largest <= bound[index]
                assert bound[index] <= 1.02 * largest


def gaussian_law(x, y):
    """Returns the law of (a, b, other) against 0 for unit noise, with 30 digits."""
    a = mpmath.quad(lambda v: mpmath.npdf(v - x) * mpmath.ncdf(v - y), [0, 2, 5, 10, 25])
    other = mpmath.ncdf(-x) * mpmath.ncdf(-y)
    return a, 1 - a - other, other


def wins(mine, others):
    """Returns Pr[mine + Z >= max(others + Z', 0)], [len(mine), len(others)], by Simpson's rule."""
    points, width = np.linspace(0.0, 25.0, 2_501, retstep=True)
    weights = np.convolve(np.tile([1.0, 0.0], 1_250), [1.0, 4.0, 1.0]) * width / 3.0
    density = scipy.stats.norm.pdf(points - mine[:, None])
    return (density * weights[:2_501]) @ scipy.stats.norm.cdf(points[:, None] - others)


def test_the_integrals_of_the_dense_search_agree_with_thirty_digits():
    places = np.array([-4.0, -1.0, 0.3, 3.0])
    probabilities = wins(places, places)
    with mpmath.workdps(30):
        for row, x in enumerate(places):
            for column, y in enumerate(places):
                a, _, _ = gaussian_law(x, y)
                assert probabilities[row, column] == pytest.approx(float(a), rel=1e-7, abs=0.0)


@pytest.mark.parametrize("sigma", [1.0, 8.0, 50.0])
def test_the_gaussian_bound_is_the_supremum_of_a_dense_search(sigma):
    bound = GaussianNoisyMax(sigma=sigma).alphas(DEFAULT_MOMENTS)
    step, shift = 1.0 / 16.0, 1.0 / sigma
    places = np.arange(-8.0, 9.0, step)
    moved_x, moved_y = places - shift, places + shift

    def laws(x, y):
        other = np.outer(
            [math.erfc(v / math.sqrt(2)) / 2 for v in x],
            [math.erfc(v / math.sqrt(2)) / 2 for v in y],
        )
        return np.stack([wins(x, y), wins(y, x).T, other])

    here, there = laws(places, places), laws(moved_x, moved_y)
    for index in range(4, len(DEFAULT_MOMENTS), 9):
        moment = DEFAULT_MOMENTS[index]
        if moment < 3.5 * sigma:
            actual = float(np.log(np.max(np.sum(here * (here / there) ** moment, axis=0))))
            assert actual <= bound[index]
            # At small moments and much noise, the bound also covers rare events and the lattice.
            assert bound[index] <= (1.02 if moment > 1.0 else 1.1) * actual


@pytest.mark.parametrize("mechanism", [one for one in NOISY if repr(one) in CERTIFIED], ids=repr)
def test_the_certified_bounds_are_the_golden_ones(mechanism):
    """The test fails if anything changes one of the bounds, such as an omitted position."""
    expected = CERTIFIED[repr(mechanism)]
    actual = mechanism.alphas(np.array(CERTIFIED["moments"]))
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=0.0)


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=6),
    near=st.integers(0, 3),
    mechanism=st.sampled_from(NOISY),
)
def test_no_histogram_costs_more(counts, near, mechanism):
    counts[1] = max(0, counts[0] - near)
    costs = exact_costs(np.array(counts), mechanism, SOME)
    known = costs < mechanism.cost_cap(SOME) * (1 - 1e-9)  # otherwise a probability underflowed
    assert np.all(costs[known] <= mechanism.alphas(SOME)[known] * (1 + 1e-6))


@pytest.mark.parametrize("moment", [0.5, 8.0, 30.0])
@pytest.mark.parametrize(
    ("claimed", "drawn"),
    [
        (LaplaceNoisyMax(gamma=0.05), LaplaceNoisyMax(gamma=0.1)),
        (GaussianNoisyMax(sigma=40.0), GaussianNoisyMax(sigma=20.0)),
    ],
    ids=["laplace", "gaussian"],
)
def test_half_the_noise_costs_more_than_is_claimed(claimed, drawn, moment):
    moments = np.array([moment])
    actual = exact_costs(np.array([200, 199, 100]), drawn, moments)
    assert np.all(actual > claimed.alphas(moments))


@pytest.mark.parametrize("mechanism", NOISY, ids=str)
def test_costs_at_other_moments_are_chords(mechanism):
    between = np.sqrt(DEFAULT_MOMENTS[1:] * DEFAULT_MOMENTS[:-1])
    grid = mechanism.alphas(DEFAULT_MOMENTS)
    actual = mechanism.alphas(between)
    assert np.all((grid[:-1] <= actual) & (actual <= grid[1:]))
    assert np.all(actual <= mechanism.cost_cap(between))
    beyond = np.array([2000.0])
    assert mechanism.alphas(beyond) <= mechanism.cost_cap(beyond)


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 1e3, 1e9])
def test_extreme_scales_fall_back_to_the_cap(noise):
    for mechanism in (LaplaceNoisyMax(gamma=noise), GaussianNoisyMax(sigma=noise)):
        cap = mechanism.cost_cap(DEFAULT_MOMENTS)
        assert np.all(mechanism.alphas(DEFAULT_MOMENTS) <= cap)
        assert not np.any(np.isnan(mechanism.alphas(DEFAULT_MOMENTS)))


def test_largest_excess_looks_at_all_pairs_between_knots():
    rng = np.random.default_rng(3)
    laws = rng.dirichlet(np.ones(3), size=(2, 400)) * 0.9 + 0.1 / 3
    pairs = np.stack(laws, axis=1)
    moments, knots = DEFAULT_MOMENTS[:90], np.append(np.arange(0, 89, 4), 89)
    excess = largest_excess([(pairs, excesses(pairs, moments[knots]))], moments, knots)
    for index, moment in enumerate(DEFAULT_MOMENTS[:90]):
        expected = np.max(np.sum(laws[0] * (laws[0] / laws[1]) ** moment, axis=1)) - 1.0
        assert excess[index] == pytest.approx(expected, rel=1e-8)


def test_a_negative_probability_certifies_nothing():
    pairs = np.array([[[1.1, -0.1, 0.0], [0.5, 0.5, 0.0]]])
    assert excesses(pairs, SOME).min() == math.inf
