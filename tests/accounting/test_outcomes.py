import itertools
import json
import pathlib

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.mechanisms.noisy_max import laplace_tail
from pate_tf.accounting.noisy_max_costs import discrete_laplace, integer_rule

GOLDEN_FILE = pathlib.Path(__file__).with_name("golden.json")
GOLDEN = json.loads(GOLDEN_FILE.read_text())
VALUES = {name: float(value) for name, value in GOLDEN["values"].items()}
EXAMPLES = settings(deadline=None, max_examples=25, derandomize=True)

histograms = st.lists(st.integers(0, 12), min_size=2, max_size=4)


def law(mechanism, counts):
    return mechanism.outcome_probabilities(np.array([counts]))[0]


@EXAMPLES
@given(histograms, st.floats(0.1, 3.0))
def test_discrete_laplace_agrees_with_summation(counts, gamma):
    expected = np.array(reference.mp_discrete_laplace_law(tuple(counts), gamma), dtype=float)
    np.testing.assert_allclose(law(LaplaceNoisyMax(gamma=gamma), counts), expected, rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("counts", [(5, 3, 2), (4, 4, 0), (3, 3, 3), (7, 1, 0, 0)])
def test_random_priority_is_the_mixture_of_all_fixed_orders(counts, gamma):
    mixture = np.zeros(len(counts))
    orders = list(itertools.permutations(range(len(counts))))
    for order in orders:
        fixed = reference.lowest_index_law(tuple(counts[k] for k in order), gamma)
        mixture[list(order)] += np.array(fixed) / len(orders)
    np.testing.assert_allclose(law(LaplaceNoisyMax(gamma=gamma), counts), mixture, rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.01, 0.05, 0.3, 1.0, 4.0])
def test_the_continuous_tail_holds_for_discrete_noise_with_random_priority(gamma):
    """Checks docs/proofs/theory.md, Proposition D1 (c) and (d), on which the bound
    `paper` rests.
    """
    gaps = np.arange(41)
    counts = np.stack([gaps + 2, np.full_like(gaps, 2)], axis=1)
    behind = LaplaceNoisyMax(gamma=gamma).outcome_probabilities(counts)[:, 1]
    expected = np.exp(-gamma * gaps) * (1.0 + gaps * np.tanh(gamma / 2.0)) / 2.0
    np.testing.assert_allclose(behind, expected, rtol=1e-9)
    assert np.all(behind <= laplace_tail(gaps, gamma) * (1.0 + 1e-9))
    # It does not cover ties that go to the class behind, which a fixed order allows.
    assert np.any(LaplaceNoisyMax(gamma=gamma).pairwise_tail(gaps) > laplace_tail(gaps, gamma))


@pytest.mark.parametrize(("counts", "sigma"), [((13, 4, 0, 0), 0.87277), ((60, 30), 10.0)])
def test_gaussian_agrees_with_high_precision_quadrature(counts, sigma):
    expected = np.array(reference.mp_gaussian_law(counts, sigma), dtype=float)
    np.testing.assert_allclose(law(GaussianNoisyMax(sigma=sigma), counts), expected, rtol=1e-9)


@pytest.mark.parametrize("length", [1, 5, 24, 25, 40, 1000])
def test_integer_rule_sums_exponentials(length):
    points, weights = integer_rule(length)
    for rate in (-6.0, 0.5, 6.0):
        expected = np.sum(np.exp(rate * np.arange(length) / length))
        assert weights @ np.exp(rate * points / length) == pytest.approx(
            expected, rel=1e-12, abs=0.0
        )


@pytest.mark.parametrize("gamma", [1e-6, 0.01, 0.5, 3.0])
def test_the_tail_of_discrete_laplace_sums_polynomials(gamma):
    grid = discrete_laplace(gamma, np.array([0]), 7, 0)
    falls, weights = np.exp(-gamma * (grid.points[1:] - 1.0)), np.exp(grid.log_weights[1:])
    for power in range(8):
        expected = -1.0 / np.expm1(-gamma * (power + 1))
        assert weights @ falls ** (power + 1) == pytest.approx(expected, rel=1e-11, abs=0.0)


@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 0.05, 1.0, 30.0, 1e3])
@pytest.mark.parametrize(
    "counts", [[1, 0], [1_000_000, 0, 0], [500_001, 499_999], [250] + [0] * 9, [5] * 30, [0, 0, 0]]
)
def test_laws_sum_to_one_at_the_extremes(counts, gamma):
    for mechanism in (LaplaceNoisyMax(gamma=gamma), GaussianNoisyMax(sigma=1.0 / gamma)):
        probabilities = law(mechanism, counts)
        assert np.all(probabilities >= 0.0)
        assert np.sum(probabilities) == pytest.approx(1.0, abs=1e-9)
