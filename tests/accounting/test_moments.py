import json
import math
import pathlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.conversions import SAFETY_MARGIN, epsilon_from_alphas
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.accounting.mechanisms.noisy_max import laplace_tail
from pate_tf.accounting.moments import bound_of, data_dependent_alphas, directed_alphas, union_bound
from pate_tf.accounting.noisy_max_costs import neighbour_outcomes

GOLDEN = json.loads(pathlib.Path(__file__).with_name("golden.json").read_text())
VALUES = {name: float(value) for name, value in GOLDEN["values"].items()}
HISTOGRAMS = {name: GOLDEN[name] for name in ("H1", "H2", "H3")}
EXAMPLES = settings(deadline=None, max_examples=80, derandomize=True)

MECHANISMS = [
    LaplaceNoisyMax(gamma=0.05),
    GaussianNoisyMax(sigma=40.0),
    ConfidentGaussianNoisyMax(threshold=150.0, sigma_threshold=100.0, sigma=40.0),
]
PURE = MECHANISMS[:1]
CASES = [(mechanism, bound) for mechanism in MECHANISMS for bound in mechanism.bounds]
QUICK = [(mechanism, bound) for mechanism, bound in CASES if bound != "exact"]
MOMENTS = np.geomspace(0.05, 512.0, 24)

golden = partial(pytest.approx, rel=1e-12, abs=0.0)


def continuous(histogram, gamma=0.05):
    return union_bound(partial(laplace_tail, gamma=gamma), np.array([histogram]))


def golden_cost(bound, histogram, moment, gamma=0.05):
    q, u = continuous(histogram, gamma)
    return bound_of(bound, LaplaceNoisyMax(gamma=gamma)).costs(q, u, np.array([float(moment)]))[
        0, 0
    ]


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_golden_q(name):
    assert continuous(HISTOGRAMS[name])[0][0] == golden(VALUES[f"q({name},g=.05)"])


@pytest.mark.parametrize(
    ("name", "bound", "histogram", "moment", "gamma"),
    [
        ("paper alpha(l=8; H1,g=.05)", "paper", HISTOGRAMS["H1"], 8, 0.05),
        ("paper alpha(l=8; H2,g=.05)", "paper", HISTOGRAMS["H2"], 8, 0.05),
        ("paper alpha(l=8; H3,g=.05)", "paper", HISTOGRAMS["H3"], 8, 0.05),
        ("paper alpha(l=2.5; H3,g=.05)", "paper", HISTOGRAMS["H3"], 2.5, 0.05),
        ("paper alpha(l=30; H2,g=.05)", "paper", HISTOGRAMS["H2"], 30, 0.05),
        ("paper alpha(l=3; [5,3,2],g=.3)", "paper", [5, 3, 2], 3, 0.3),
        ("tight alpha(l=8; H3)", "tight", HISTOGRAMS["H3"], 8, 0.05),
        ("two-sided alpha(l=8; H3)", "two_sided", HISTOGRAMS["H3"], 8, 0.05),
        ("two-sided alpha(l=30; H2)", "two_sided", HISTOGRAMS["H2"], 30, 0.05),
        ("class-aware two-sided alpha(l=8; H3)", "class_aware", HISTOGRAMS["H3"], 8, 0.05),
        ("class-aware two-sided alpha(l=30; H2)", "class_aware", HISTOGRAMS["H2"], 30, 0.05),
    ],
)
def test_golden_costs(name, bound, histogram, moment, gamma):
    assert golden_cost(bound, histogram, moment, gamma) == golden(VALUES[name])


@pytest.mark.parametrize(
    ("name", "histogram", "moment"),
    [
        ("eps paper l=8, T=100 x H1, delta=1e-5", "H1", 8.0),
        ("eps paper l=8, T=100 x H2, delta=1e-5", "H2", 8.0),
        ("eps paper l=8, T=100 x H3, delta=1e-5", "H3", 8.0),
    ],
)
def test_golden_epsilons_of_the_paper(name, histogram, moment):
    counts = np.tile(HISTOGRAMS[histogram], (100, 1))
    alphas = data_dependent_alphas(
        counts, LaplaceNoisyMax(gamma=0.05), np.arange(1.0, 9.0), bound="paper"
    )
    epsilon, best = epsilon_from_alphas(alphas, np.arange(1.0, 9.0), 1e-5, conversion="classic")
    assert best == moment
    assert VALUES[name] <= epsilon <= VALUES[name] * (1 + SAFETY_MARGIN)
    single = 100 * golden_cost("paper", HISTOGRAMS[histogram], moment)
    at_moment = alphas[int(moment) - 1]
    assert single * (1 + 0.9 * SAFETY_MARGIN) <= at_moment <= single * (1 + 1.1 * SAFETY_MARGIN)
    exact, _ = epsilon_from_alphas([single], [moment], 1e-5, conversion="classic")
    assert exact == golden(VALUES[name])


def test_golden_epsilons_of_single_moments():
    def epsilon(alpha, moment, conversion):
        return epsilon_from_alphas([alpha], [moment], 1e-5, conversion=conversion)[0]

    at_48 = 100 * golden_cost("paper", HISTOGRAMS["H1"], 48)
    assert epsilon(at_48, 48.0, "classic") == golden(VALUES["eps paper l=48, T=100 x H1"])
    cap = 100 * golden_cost("paper", [1, 1], 5)
    assert epsilon(cap, 5.0, "classic") == golden(VALUES["eps data-indep paper l=5, T=100"])
    at_20 = 100 * golden_cost("two_sided", HISTOGRAMS["H2"], 20)
    expected = VALUES["eps improved-conv two-sided l=20 T=100 x H2"]
    assert epsilon(at_20, 20.0, "improved") == golden(expected)


@pytest.mark.parametrize("direction", ["fwd", "rev"])
@pytest.mark.parametrize(
    ("moment", "histogram", "gamma", "label"),
    [
        (8.0, HISTOGRAMS["H3"], 0.05, "l=8; H3"),
        (64.0, HISTOGRAMS["H1"], 0.05, "l=64; H1"),
        (2.5, [5, 3, 2], 0.3, "l=2.5; [5,3,2],g=.3"),
    ],
)
def test_golden_exact_alphas_of_the_continuous_law(direction, moment, histogram, gamma, label):
    values, multiplicity = np.unique(histogram, return_counts=True)
    laws = neighbour_outcomes(partial(reference.continuous_laplace, gamma), values, multiplicity)
    forward, reverse = directed_alphas(replace(laws, limit=2 * gamma), np.array([moment]))
    value = forward[0] if direction == "fwd" else reverse[0]
    assert value == pytest.approx(VALUES[f"exact alpha {direction}({label})"], rel=1e-9, abs=0.0)


# ---- fifty digits -----------------------------------------------------------------------------


@EXAMPLES
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=6),
    st.floats(1e-3, 1.5),
    st.sampled_from(["paper", "tight", "two_sided", "class_aware"]),
    st.floats(0.05, 100.0),
)
def test_q_and_costs_agree_with_fifty_digits(counts, gamma, bound, moment):
    mechanism = LaplaceNoisyMax(gamma=gamma)
    ordered = sorted(counts, reverse=True)
    q, u = union_bound(bound_of(bound, mechanism).tail, np.array([ordered]))
    gaps = [ordered[0] - count for count in ordered[1:]]
    if bound == "paper":
        terms = [reference.mp_laplace_tail(gap, gamma) for gap in gaps]
    else:
        p = reference.mp.exp(-reference.mp.mpf(gamma))
        terms = [
            p**gap * (1 - p) / (1 + p) ** 2 * (gap + (1 + p + 2 * p**2) / (1 - p**2))
            for gap in gaps
        ]
    assert q[0] == pytest.approx(float(sum(terms)), rel=1e-12, abs=0.0)
    assert u[0] == pytest.approx(float(terms[0]), rel=1e-12, abs=0.0)
    value = bound_of(bound, mechanism).costs(q, u, np.array([moment]))[0, 0]
    expected = float(reference.mp_cost(bound, gamma, q[0], u[0], moment))
    assert value == pytest.approx(expected, rel=1e-10, abs=0.0)


@pytest.mark.parametrize("bound", ["tight", "two_sided", "class_aware", "paper"])
@pytest.mark.parametrize("q", [1e-290, 5e-29, 1e-9, 1e-3, 0.2])
@pytest.mark.parametrize("gamma", [1e-6, 0.00128, 0.3])
def test_costs_near_zero_are_within_the_margin(bound, q, gamma):
    """Covers the case where subtraction is too low (docs/proofs/theory.md, Proposition C1)."""
    moments = np.array([0.05, 0.14, 3.0])
    values = bound_of(bound, LaplaceNoisyMax(gamma=gamma)).costs(
        np.full(1, q), np.full(1, 0.6 * q), moments
    )[0]
    for moment, value in zip(moments, values, strict=True):
        with reference.mp.workdps(400):
            expected = reference.mp_cost(bound, gamma, q, 0.6 * q, moment)
            assert expected <= value * (1 + SAFETY_MARGIN)
            assert value <= expected * (1 + SAFETY_MARGIN)


@pytest.mark.parametrize("gap", [0, 1, 2, 3, 5, 9, 24])
def test_the_discrete_tail_is_the_sum_of_the_difference_law(gap):
    for gamma in (0.3, 1.0):
        for signed in (gap, -gap):
            expected = float(reference.mp_discrete_laplace_tail(signed, gamma))
            value = LaplaceNoisyMax(gamma=gamma).pairwise_tail(np.array([float(signed)]))[0]
            assert value == pytest.approx(expected, rel=1e-12, abs=0.0)


@EXAMPLES
@given(st.floats(0.5, 200.0), st.floats(-250.0, -0.01), st.floats(0.05, 100.0))
def test_the_gaussian_formula_agrees_with_the_issue(sigma, log_q, moment):
    q = math.exp(log_q)
    value = bound_of("paper", GaussianNoisyMax(sigma=sigma)).costs(
        np.array([q]), np.array([q]), np.array([moment])
    )[0, 0]
    with reference.mp.workdps(200):
        expected = float(reference.mp_gaussian_cost(sigma, q, moment))
    assert value == pytest.approx(expected, rel=1e-9, abs=0.0)


# ---- shape ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mechanism", "bound"), CASES, ids=str)
class TestEveryBound:
    def test_the_order_of_classes_does_not_matter(self, mechanism, bound):
        rng = np.random.default_rng(7)
        counts = rng.multinomial(60, [0.7, 0.1, 0.1, 0.05, 0.05], size=12)
        alphas = data_dependent_alphas(counts, mechanism, MOMENTS, bound=bound)
        shuffled = rng.permuted(counts, axis=1)
        moved = data_dependent_alphas(rng.permutation(shuffled), mechanism, MOMENTS, bound=bound)
        np.testing.assert_allclose(moved, alphas, rtol=1e-13)

    def test_never_more_than_the_cap(self, mechanism, bound):
        counts = np.array([[5, 5, 0], [3, 3, 4], [10, 0, 0], [0, 0, 0]])
        alphas = data_dependent_alphas(counts, mechanism, MOMENTS, bound=bound)
        if bound == "paper" and mechanism in PURE:
            limit = 4 * bound_of(bound, mechanism).costs(np.ones(1), np.ones(1), MOMENTS)[0]
        else:
            limit = 4 * mechanism.cost_cap(MOMENTS)
        assert np.all(alphas <= limit * (1 + 2 * SAFETY_MARGIN))

    def test_no_query_and_one_class(self, mechanism, bound):
        none = data_dependent_alphas(np.zeros((0, 3), int), mechanism, MOMENTS, bound=bound)
        assert none.tolist() == [0.0] * len(MOMENTS)
        one = data_dependent_alphas(np.array([[7], [7]]), mechanism, MOMENTS, bound=bound)
        if isinstance(mechanism, ConfidentGaussianNoisyMax):
            expected = 2 * mechanism.test_alphas(MOMENTS)
            np.testing.assert_allclose(one, expected)
        else:
            assert one.tolist() == [0.0] * len(MOMENTS)

    @pytest.mark.parametrize(
        "counts",
        [[[1, 0]], [[1, 0, 0]], [[5, 5]], [[4, 4, 4]], [[1_000_000, 0, 0]], [[500_000, 500_000]]],
    )
    @pytest.mark.parametrize("noise", [1e-3, 0.05, 1.0, 1e3, 1e6])
    def test_extremes_are_positive_and_finite(self, mechanism, bound, counts, noise):
        if isinstance(mechanism, ConfidentGaussianNoisyMax):
            extreme = ConfidentGaussianNoisyMax(threshold=1.0, sigma_threshold=noise, sigma=noise)
        elif isinstance(mechanism, GaussianNoisyMax):
            extreme = GaussianNoisyMax(sigma=noise)
        else:
            extreme = type(mechanism)(scale=noise)
        alphas = data_dependent_alphas(np.array(counts), extreme, MOMENTS, bound=bound)
        assert np.all(np.isfinite(alphas))
        assert np.all(alphas > 0.0)


@pytest.mark.parametrize(("mechanism", "bound"), QUICK, ids=str)
def test_one_more_teacher_agreeing_never_costs_more(mechanism, bound):
    """This holds for the bounds in q only: the exact cost is largest a few votes away
    from a tie.
    """
    for histogram in reference.sorted_histograms(12, 4):
        before = data_dependent_alphas(np.array([histogram]), mechanism, MOMENTS, bound=bound)
        for loser in range(1, 4):
            if histogram[loser]:
                agreed = list(histogram)
                agreed[0] += 1
                agreed[loser] -= 1
                after = data_dependent_alphas(np.array([agreed]), mechanism, MOMENTS, bound=bound)
                assert np.all(after <= before * (1 + 1e-12))
