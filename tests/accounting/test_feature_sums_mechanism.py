"""Noise on sums of records: its cost, and a test that this much noise is drawn."""

import numpy as np
import pytest
import scipy.stats

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import GaussianFeatureSums, GaussianMoments, GaussianResidualSums
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.planning.comparison import planned_sums
from pate_tf.planning.release_settings import PublicNumbers
from pate_tf.release.noise import SeededNoise, SystemNoise

DELTA = 1e-5


def exact_epsilon(moved: float) -> float:
    """Returns epsilon of a Gaussian mechanism by the formula of Balle and Wang 2018, with a
    separate search.
    """
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        delta = scipy.stats.norm.cdf(moved / 2 - middle / moved) - np.exp(
            middle
        ) * scipy.stats.norm.cdf(-moved / 2 - middle / moved)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


@pytest.mark.parametrize("sigma", [2.0, 15.0, 61.5, 400.0])
@pytest.mark.parametrize(("kind", "moved"), [(GaussianFeatureSums, 2), (GaussianMoments, 2**0.5)])
def test_a_record_replaced_moves_the_sums_by_so_much(kind, moved, sigma):
    epsilon, _ = smallest_epsilon({kind(sigma=sigma): 1}, DELTA)
    assert epsilon == pytest.approx(exact_epsilon(moved / sigma), rel=1e-6)
    assert epsilon >= exact_epsilon(moved / sigma)
    # Moments give no smaller bound, and dp-accounting no larger one.
    dp_accounting = pytest.importorskip("dp_accounting")
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(sigma / moved))
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-2)


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
    accountant.compose(dp_accounting.GaussianDpEvent(10.0 / 2.0), num_rounds)
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-2)
    assert charge_from_dict(mechanism.to_dict()) == mechanism


def test_rounds_are_planned_where_noise_is_faint_for_the_records():
    known = PublicNumbers(num_records=50_000)
    for epsilon, number in ((0.1, 1), (1.0, 16), (8.0, 16)):
        target = Target(epsilon=epsilon, delta=DELTA, num_queries=1)
        one = planned_sums(target, known, (), has_rounds=True).mechanism
        assert one.num_rounds == number
        assert 0.99 * epsilon < smallest_epsilon({one: 1}, DELTA)[0] <= epsilon
    with pytest.raises(ValueError, match="num_rounds must be"):
        GaussianResidualSums(sigma=1.0, num_rounds=0)


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(3)], ids=["system", "seeded"])
@pytest.mark.parametrize("sigma", [0.5, 61.5])
@pytest.mark.parametrize("kind", [GaussianFeatureSums, GaussianMoments])
def test_so_much_noise_is_drawn_on_each_number(kind, source, sigma):
    """Chi-squared test at a false-alarm rate of 1e-6. A scale that is wrong by 5 % is
    always found.
    """
    sums = np.arange(40_000).reshape(200, 200) * 1_000
    noise = (kind(sigma=sigma).draw_sums(sums, source) - sums) / LATTICE

    def is_likely(scale):
        total = np.square(noise / scale).sum()
        return 5e-7 < scipy.stats.chi2.cdf(total, noise.size) < 1 - 5e-7

    assert is_likely(sigma) and not is_likely(1.05 * sigma) and not is_likely(0.95 * sigma)
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
    # The draws are independent: neighbors in both directions are uncorrelated.
    for pairs in (noise[1:] * noise[:-1], noise[:, 1:] * noise[:, :-1]):
        assert abs(pairs.mean()) < 5 * sigma**2 / np.sqrt(pairs.size)
