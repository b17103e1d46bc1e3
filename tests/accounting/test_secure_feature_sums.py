"""The cost of the total of many silos' feature sums, against brute force on small lattices."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums, log_ratio_of_sum
from pate_tf.accounting.mechanisms import GaussianFeatureSums

DELTA = 1e-6
OTHERS = {"num_features": 64, "least_silos": 4, "colluding": 1, "num_parties": 4, "threshold": 1}
REACH = 60  # in lattice steps; probabilities beyond this are negligible


def discrete_gaussian(scale):
    """Returns the law on -REACH .. REACH."""
    law = np.exp(-np.square(np.arange(-REACH, REACH + 1) / scale) / 2)
    return law / law.sum()


def summed(scale, number):
    """Returns the exact law of a sum, on -number * REACH .. number * REACH."""
    law = np.ones(1)
    for _ in range(number):
        law = np.convolve(law, discrete_gaussian(scale))
    return law


@pytest.mark.parametrize(
    ("scale", "number"), itertools.product([0.5, 0.6, 0.8, 1.0, 1.3], [1, 2, 3, 7])
)
def test_a_sum_is_as_near_to_a_discrete_gaussian_as_stated(scale, number):
    law = summed(scale, number)
    middle, width = len(law) // 2, int(6 * scale * number**0.5)
    places = np.arange(-width, width + 1)
    wide = np.exp(-np.square(np.arange(-2000, 2001)) / (2 * scale**2 * number)).sum()
    other = np.exp(-np.square(places) / (2 * scale**2 * number)) / wide
    actual = np.abs(np.log(law[middle - width : middle + width + 1] / other)).max()
    assert actual <= log_ratio_of_sum(scale, number) + 1e-9
    if number == 2 and scale == 0.5:  # tight enough to notice a smaller constant
        assert actual > log_ratio_of_sum(scale, number) / 5


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("moved", [1, 3])
def test_a_shift_of_a_sum_costs_what_one_discrete_gaussian_does(number, moved):
    scale, epsilon = 1.2, 0.7
    law, nearness = summed(scale, number), log_ratio_of_sum(scale, number)
    one = discrete_gaussian(scale * number**0.5)
    deltas = []
    for each, raised in ((law, epsilon + 2 * nearness), (one, epsilon)):
        there = np.pad(each, (0, moved))
        here = np.pad(each, (moved, 0))
        deltas.append(np.maximum(there - np.exp(raised) * here, 0.0).sum())
    assert deltas[0] <= np.exp(nearness) * deltas[1] + 1e-12


@given(st.floats(0.01, 10.0), st.integers(2, 2000), st.integers(1, 50))
def test_the_noise_is_that_of_one_holder(epsilon, least_silos, colluding):
    others = {**OTHERS, "least_silos": least_silos + colluding, "colluding": colluding}
    charge = SecureFeatureSums.for_epsilon(epsilon, delta=DELTA, **others)
    due = smallest_epsilon({GaussianFeatureSums(sigma=charge.sigma): 1}, DELTA)[0]
    actual = smallest_epsilon({charge: 1}, DELTA)[0]
    assert due * (1 - 1e-12) <= actual <= min(epsilon, due * (1 + 1e-6))
    assert actual >= epsilon * 0.999
    variance = (charge.sigma * LATTICE) ** 2 + 64
    assert charge.num_honest * charge.share_scale**2 >= variance * (1 - 1e-15)
    assert charge.share_scale**2 * charge.num_honest <= variance * (1 + 1e-12)
    # Several releases cost as much as releases of one data holder, and never less.
    moments = np.array([0.5, 3.0, 40.0])
    assert (charge.alphas(moments) >= GaussianFeatureSums(sigma=charge.sigma).alphas(moments)).all()


def test_it_comes_back_from_records():
    charge = SecureFeatureSums.for_epsilon(1.0, delta=DELTA, **OTHERS)
    assert charge_from_dict(charge.to_dict()) == charge
    two = smallest_epsilon({charge: 2}, DELTA)[0]
    assert two == pytest.approx(
        smallest_epsilon({GaussianFeatureSums(sigma=charge.sigma): 2}, DELTA)[0]
    )
