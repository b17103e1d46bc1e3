"""The ledger's charge for a draw of the noisy data-dependent cost."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_helpers import DELTA, MECHANISM, PLAN, label, open_ledger

from pate_tf.accounting.charge import gaussian_smooth_sensitivity_rdp
from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError

BY_SENSITIVITY = dataclasses.replace(
    PLAN, release="smooth_sensitivity", moment=10.0, smoothness=0.01, sigma=9.0
)
KEPT = {"drawn": {"steps": -3}, "key": {"votes": "ab"}}


def release(ledger, plan=PLAN):
    with ledger.exclusive():
        debit = ledger.debit(plan, secure_noise=True)
        ledger.store_release(debit, KEPT)
    return debit


def renyi(order, sigma, shift):
    """Returns the divergence of two discrete Gaussians by summation."""
    steps = np.arange(-int(60 * sigma), int(60 * sigma) + 1.0)
    here, there = -0.5 * (steps / sigma) ** 2, -0.5 * ((steps - shift) / sigma) ** 2
    total = np.logaddexp.reduce(here)  # the same for both
    logs = order * (here - total) + (1.0 - order) * (there - total)
    return np.logaddexp.reduce(logs) / (order - 1.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.4, 20.0), st.floats(0.1, 30.0), st.sampled_from([-1, 1]))
def test_a_draw_costs_no_less_than_the_divergence_of_neighbours(sigma, moment, shift):
    plan = dataclasses.replace(PLAN, sigma=sigma)
    divergence = renyi(moment + 1.0, sigma, shift)
    assert moment * divergence <= plan.alphas(moment) * (1.0 + 1e-9) + 1e-9
    # The bound is also tight, so the test notices another formula.
    if sigma > 2.0 and moment < 2.0 * sigma:
        assert moment * divergence >= plan.alphas(moment) * (1.0 - 1e-3) - 1e-9


def test_smooth_sensitivity_costs_what_its_theorem_says():
    for moment in (0.5, 3.0, 20.0):
        rdp = gaussian_smooth_sensitivity_rdp(moment + 1.0, beta=0.01, sigma=9.0, b=2.3263478740408)
        assert BY_SENSITIVITY.alphas(np.array([moment])) == pytest.approx(moment * rdp, rel=1e-12)
    assert math.isinf(BY_SENSITIVITY.alphas(np.array([60.0]))[0])


@pytest.mark.parametrize("plan", [PLAN, BY_SENSITIVITY])
def test_labels_and_draws_add_up_moment_by_moment(tmp_path, plan):
    with open_ledger(tmp_path) as ledger:
        label(ledger, 0, 20)
        before = ledger.spent()
        assert release(ledger, plan) == 4
        alphas = total_alphas({MECHANISM: 20}, DEFAULT_MOMENTS)
        alphas = alphas + plan.alphas(DEFAULT_MOMENTS)
        expected, _ = epsilon_from_alphas(alphas, DEFAULT_MOMENTS, DELTA)
        assert ledger.spent().epsilon == pytest.approx(expected, rel=1e-12)
        assert ledger.spent().epsilon > before.epsilon
        assert ledger.spent().num_queries == before.num_queries
        row = ledger.history()[3]
        assert (row.kind, row.details["charge"]) == ("debit", plan.to_dict())
        assert (row.details["number"], row.details["num_queries"]) == (1, 0)
        written = (ledger.spent(), ledger.charges, ledger.history(), ledger.head)
    for reopen in (Ledger.read, open_ledger):
        with reopen(tmp_path) as again:
            assert (again.spent(), again.charges, again.history(), again.head) == written
            assert again.stored_release() == KEPT


def test_a_draw_that_does_not_fit_is_refused_and_not_charged(tmp_path):
    with open_ledger(tmp_path, epsilon_budget=4.0) as ledger:
        label(ledger, 0, ledger.affordable(MECHANISM))
        before = (ledger.history(), ledger.spent())
        told = (
            r"allows at most 0 more releases of the data-dependent cost \(log_cost, sigma 8\); "
            r"1 would raise epsilon to 4\.\d+ .*of 4\.0 at delta"
        )
        with pytest.raises(BudgetExceeded, match=told) as caught, ledger.exclusive():
            ledger.debit(PLAN, secure_noise=True)
        assert "\n" not in str(caught.value)
        assert (ledger.history(), ledger.spent()) == before


def test_a_draw_that_has_left_is_recorded_above_the_budget(tmp_path):
    with open_ledger(tmp_path, epsilon_budget=4.0) as ledger:
        label(ledger, 0, ledger.affordable(MECHANISM))
        with ledger.exclusive():
            debit = ledger.debit(PLAN, secure_noise=True, was_released=True)
            ledger.store_release(debit, KEPT)
        assert ledger.stored_release() == KEPT
        assert ledger.charges[PLAN] == 1
        assert ledger.spent().epsilon > 4.0
        assert (ledger.remaining(), ledger.affordable(MECHANISM)) == (0.0, 0)
        assert [row.details["past"] for row in ledger.history() if row.kind == "debit"] == [
            False,
            True,
        ]
    with open_ledger(tmp_path, epsilon_budget=4.0) as ledger, pytest.raises(BudgetExceeded):
        label(ledger, 1000, 1001)


def test_a_draw_without_a_finite_cost_is_refused_also_without_a_budget(tmp_path):
    for sigma in (1e-200, 1e-155, 0.0):
        with pytest.raises(ValueError, match="sigma must be a number in"):
            dataclasses.replace(PLAN, sigma=sigma)
    worst = dataclasses.replace(BY_SENSITIVITY, smoothness=100.0)
    with open_ledger(tmp_path) as ledger:
        before = ledger.history()
        with ledger.exclusive():
            with pytest.raises(LedgerError, match="has no finite epsilon"):
                ledger.debit(worst, secure_noise=True)
            with pytest.raises(LedgerError, match="has no finite epsilon"):
                ledger.debit(worst, secure_noise=True, was_released=True)
        assert ledger.history() == before
