"""Noise on sums of records: what it costs, and that so much is drawn."""

import numpy as np
import pytest
import scipy.stats

from pate_tf.accounting.composition import dp_event, smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.group_privacy import several_teachers_epsilon
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianResidualSums,
    base,
    mechanism_from_dict,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.planning import planned_sums
from pate_tf.release.noise import SeededNoise, SystemNoise, check_drawable

DELTA = 1e-5


def exact_epsilon(moved: float) -> float:
    """Of a Gaussian mechanism, by the formula of Balle and Wang 2018 and a search of its own."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        delta = scipy.stats.norm.cdf(moved / 2 - middle / moved) - np.exp(
            middle
        ) * scipy.stats.norm.cdf(-moved / 2 - middle / moved)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


@pytest.mark.parametrize("sigma", [2.0, 15.0, 61.5, 400.0])
def test_a_record_replaced_moves_the_sums_by_two_lengths(sigma):
    epsilon, _ = smallest_epsilon({GaussianFeatureSums(sigma=sigma): 1}, DELTA)
    assert epsilon == pytest.approx(exact_epsilon(2.0 / sigma), rel=1e-6)
    assert epsilon >= exact_epsilon(2.0 / sigma)
    # Moments alone say no less, and dp-accounting no more.
    dp_accounting = pytest.importorskip("dp_accounting")
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_event(GaussianFeatureSums(sigma=sigma)))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-2)


def test_several_records_of_one_person_move_them_by_as_many_times_two():
    charges = {GaussianFeatureSums(sigma=50.0): 1}
    for number in (2, 5):
        found = several_teachers_epsilon(charges, delta=DELTA, num_teachers=number)
        assert found == pytest.approx(exact_epsilon(2.0 * number / 50.0), rel=1e-3)


def test_sums_and_votes_of_one_ensemble_add_up():
    both = {GaussianFeatureSums(sigma=50.0): 1, GaussianHistogram(sigma=200.0): 100}
    moved = np.sqrt(4.0 / 50.0**2 + 100 * 2.0 / 200.0**2)
    # Of different mechanisms moments alone are added, which say a little more.
    found, exact = smallest_epsilon(both, DELTA)[0], exact_epsilon(moved)
    assert exact <= found <= 1.3 * exact


@pytest.mark.parametrize("num_rounds", [1, 4, 8])
def test_rounds_cost_what_as_many_releases_cost(num_rounds):
    mechanism = GaussianResidualSums(sigma=10.0, num_rounds=num_rounds)
    epsilon, _ = smallest_epsilon({mechanism: 1}, DELTA)
    exact = exact_epsilon(2.0 * np.sqrt(num_rounds) / 10.0)
    assert exact <= epsilon == pytest.approx(exact, rel=1e-6)
    assert epsilon == pytest.approx(
        smallest_epsilon({GaussianFeatureSums(sigma=10.0): num_rounds}, DELTA)[0], rel=1e-9
    )
    moments = np.arange(1.0, 30.0)
    expected = num_rounds * GaussianFeatureSums(sigma=10.0).alphas(moments)
    np.testing.assert_allclose(mechanism.alphas(moments), expected)
    dp_accounting = pytest.importorskip("dp_accounting")
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_event(mechanism))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-2)
    assert mechanism_from_dict(mechanism.to_dict()) == mechanism


def test_rounds_are_planned_where_noise_is_faint_for_the_records():
    planned = {
        epsilon: planned_sums(
            Target(epsilon=epsilon, delta=DELTA, num_queries=1), 50_000, 10, (), None
        )
        for epsilon in (0.1, 1.0, 3.0, 8.0)
    }
    assert [one.num_rounds for one in planned.values()] == [1, 16, 16, 16]
    for epsilon, one in planned.items():
        assert 0.99 * epsilon < smallest_epsilon({one: 1}, DELTA)[0] <= epsilon
    with pytest.raises(ValueError, match="num_rounds: expected rounds whose noise leaves labels"):
        planned_sums(Target(epsilon=0.01, delta=DELTA, num_queries=1), 50_000, 10, (), 8)
    with pytest.raises(ValueError, match="num_rounds: expected"):
        GaussianResidualSums(sigma=1.0, num_rounds=0)


def test_a_plan_takes_the_least_noise():
    target = Target(epsilon=0.1, delta=DELTA, num_queries=1)
    sigma = target.least_noise(GaussianFeatureSums.of_scale).sigma
    assert exact_epsilon(2.0 / sigma) <= 0.1 < exact_epsilon(2.0 / (0.999 * sigma))


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(3)], ids=["system", "seeded"])
@pytest.mark.parametrize("sigma", [0.5, 61.5])
def test_so_much_noise_is_drawn_on_each_number(source, sigma):
    """Chi-squared at a false-alarm rate of 1e-6; a wrong scale of 5 % is always seen."""
    sums = np.arange(40_000).reshape(4_000, 10) * 1_000
    noise = (GaussianFeatureSums(sigma=sigma).draw_sums(sums, source) - sums) / LATTICE

    def is_likely(scale):
        total = np.square(noise / scale).sum()
        return 5e-7 < scipy.stats.chi2.cdf(total, noise.size) < 1 - 5e-7

    assert is_likely(sigma) and not is_likely(1.05 * sigma) and not is_likely(0.95 * sigma)
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
    # Independent: neighbours in both directions do not go together.
    for pairs in (noise[1:] * noise[:-1], noise[:, 1:] * noise[:, :-1]):
        assert abs(pairs.mean()) < 5 * sigma**2 / np.sqrt(pairs.size)


def test_little_noise_is_more_than_the_lattice_needs():
    sums = np.zeros((4_000, 10), np.int64)
    tiny = GaussianFeatureSums(sigma=2.0**-30).draw_sums(sums, SystemNoise())
    assert tiny.std() == pytest.approx(8.0, rel=0.05)  # steps


def test_it_labels_nothing_by_itself():
    former = {"name": "class_sums", "sigma": 2.0}  # in ledgers of earlier versions
    assert mechanism_from_dict(former) == GaussianFeatureSums(sigma=2.0)
    assert "gaussian_feature_sums" in base.MECHANISMS
    assert "gaussian_feature_sums" not in base.offered()
    assert GaussianFeatureSums(sigma=2.5).fewest_of_class == 50.0
    with pytest.raises(ValueError, match="asks no teacher"):
        check_drawable(GaussianFeatureSums(sigma=1.0))
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="sigma"):
            GaussianFeatureSums(sigma=bad)
