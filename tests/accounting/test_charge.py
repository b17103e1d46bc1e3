"""The total cost of several charges, and costs as values."""

import math

import numpy as np
import pytest
from ledger_helpers import DELTA, PLAN

from pate_tf.accounting.composition import fits, moments_epsilon, smallest_epsilon, total_alphas
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.accounting.mechanisms.retired import RetiredGate

LAPLACE, GAUSSIAN = LaplaceNoisyMax(gamma=0.05), GaussianNoisyMax(sigma=40.0)
GATE = RetiredGate(epsilon=0.25, delta=1e-6)


def test_moments_of_queries_and_releases_add_up():
    charges = {LAPLACE: 20, GAUSSIAN: 30, PLAN: 2}
    due = 20 * LAPLACE.alphas(DEFAULT_MOMENTS) + 30 * GAUSSIAN.alphas(DEFAULT_MOMENTS)
    due = due + 2 * PLAN.alphas(DEFAULT_MOMENTS)
    np.testing.assert_allclose(total_alphas(charges, DEFAULT_MOMENTS), due, rtol=1e-12)
    assert smallest_epsilon(charges, DELTA) == epsilon_from_alphas(due, DEFAULT_MOMENTS, DELTA)


def test_an_approximate_charge_alone_costs_what_it_says_and_uses_all_of_delta():
    assert moments_epsilon({GATE: 1}, 1e-6) == (0.25, None)
    assert moments_epsilon({GATE: 4}, 4e-6) == (1.0, None)
    assert moments_epsilon({GATE: 1}, 0.999e-6) == (math.inf, None)
    assert moments_epsilon({GATE: 5}, 4e-6)[0] == math.inf
    assert fits({GATE: 4}, DELTA, 1.0) and not fits({GATE: 4}, DELTA, 0.999)


def test_moments_are_converted_at_what_is_left_of_delta():
    epsilon, moment = moments_epsilon({LAPLACE: 100, GATE: 2}, DELTA)
    alphas = total_alphas({LAPLACE: 100}, DEFAULT_MOMENTS)
    left, _ = epsilon_from_alphas(alphas, DEFAULT_MOMENTS, 8e-6)
    assert 0.5 + left <= epsilon <= (0.5 + left) * (1 + 1e-6)
    assert moment in DEFAULT_MOMENTS
    # The whole delta is used up, so the labels have no delta left.
    assert moments_epsilon({LAPLACE: 1, RetiredGate(epsilon=0.25, delta=DELTA): 1}, DELTA) == (
        math.inf,
        None,
    )


def test_events_of_another_library_cover_everything_but_what_it_can_not_say():
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    charges = {LAPLACE: 20, GAUSSIAN: 30, PLAN: 2}
    accountant = rdp.RdpAccountant(
        DEFAULT_MOMENTS + 1.0, dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for event, number in (
        (dp_accounting.ZCDpEvent(rho=(2.0 * LAPLACE.gamma) ** 2 / 2.0), 20),
        (dp_accounting.GaussianDpEvent(GAUSSIAN.sigma / math.sqrt(2.0)), 30),
        (dp_accounting.GaussianDpEvent(PLAN.noise_multipliers[0]), 2),
    ):
        accountant.compose(event, number)
    # The events concern whole noisy histograms.
    caps = 20 * LAPLACE.cost_cap(DEFAULT_MOMENTS) + 30 * GAUSSIAN.cost_cap(DEFAULT_MOMENTS)
    ours, _ = epsilon_from_alphas(caps + 2 * PLAN.alphas(DEFAULT_MOMENTS), DEFAULT_MOMENTS, DELTA)
    assert moments_epsilon(charges, DELTA)[0] < ours
    assert ours * (1 - 1e-6) <= accountant.get_epsilon(DELTA) <= 1.1 * ours
