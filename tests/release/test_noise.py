import math

import numpy as np
import pytest
from scipy import stats

from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.release.noise import SeededNoise, SystemNoise, check_drawable

# False-alarm probability of every statistical test below under the correct law.
FALSE_ALARM = 1e-7
SOURCES = [SystemNoise(), SeededNoise(20170703)]
COUNTS = np.array([9, 3, 2, 0])


@pytest.fixture(params=SOURCES, ids=["system", "seeded"])
def source(request):
    return request.param


def p_value(drawn, support, probabilities):
    """Chi-square p-value of integers against a law on `support`, in at most twelve bins."""
    bins = np.minimum((np.cumsum(probabilities) * 12).astype(int), 11)
    expected = np.bincount(bins, probabilities) * len(drawn)
    outside = ~np.isin(drawn, support)
    places = np.searchsorted(support, drawn[~outside])
    observed = np.bincount(bins[places], minlength=len(expected)).astype(float)
    observed[-1] += outside.sum()
    kept = expected > 0
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    return stats.chi2.sf(statistic, kept.sum() - 1)


def discrete_laplace(scale):
    support = np.arange(-math.ceil(40 * scale), math.ceil(40 * scale) + 1)
    weights = np.exp(-np.abs(support) / scale)
    return support, weights / weights.sum()


def discrete_gaussian(scale):
    support = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    weights = np.exp(-(support**2) / (2 * scale**2))
    return support, weights / weights.sum()


LAWS = {"laplace": discrete_laplace, "gaussian": discrete_gaussian}


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        *(("laplace", scale) for scale in (0.8, 3.0, 20.0)),
        *(("gaussian", scale) for scale in (0.7, 2.0, 13.0)),
    ],
)
def test_integers_follow_their_law_and_no_scale_five_percent_off(source, name, scale):
    drawn = getattr(source, f"{name}_integers")(scale, 100_000)
    assert drawn.dtype == np.int64
    assert p_value(drawn, *LAWS[name](scale)) > FALSE_ALARM
    for wrong in (0.95 * scale, 1.05 * scale):
        assert p_value(drawn, *LAWS[name](wrong)) < FALSE_ALARM


def draw(source, mechanism, num_draws, counts=COUNTS):
    return np.array(mechanism.draw(np.tile(counts, (num_draws, 1)), source).labels)


@pytest.mark.parametrize(
    "right, wrongs",
    [
        (kind(gamma=0.3), [kind(gamma=0.3 * 0.95), kind(gamma=0.3 * 1.05)])
        for kind in (LaplaceNoisyMax,)
    ]
    + [
        (kind(sigma=3.0), [kind(sigma=2.85), kind(sigma=3.15)])
        for kind in (GaussianNoisyMax, GaussianHistogram)
    ],
)
def test_labels_follow_the_outcome_probabilities_that_are_accounted_for(right, wrongs):
    # Enough draws to miss a scale error of five percent only as often as a false alarm.
    labels = draw(SystemNoise(), right, 50_000 if hasattr(right, "sigma") else 70_000)
    classes = np.arange(len(COUNTS))
    for mechanism in [right, *wrongs]:
        law = mechanism.outcome_probabilities(COUNTS[np.newaxis])[0]
        assert (p_value(labels, classes, law) > FALSE_ALARM) == (mechanism is right)


def test_priorities_are_uniform_orders(source):
    orders = source.random_orders(60_000, 3) @ [9, 3, 1]
    permutations = [a * 9 + b * 3 + c for a in range(3) for b in range(3) for c in range(3)]
    expected = [5, 7, 11, 15, 19, 21]
    assert set(orders) == set(expected) <= set(permutations)
    assert p_value(orders, np.array(expected), np.full(6, 1 / 6)) > FALSE_ALARM


def test_the_threshold_test_has_gaussian_noise(source):
    mechanism = ConfidentGaussianNoisyMax(threshold=5.0, sigma_threshold=3.0, sigma=0.1)
    assert set(mechanism.draw(np.tile([8, 0], (200, 1)), source).labels) == {0, None}
    # Only the test, without the label's noise.
    passes = mechanism.drawn_passes(np.full(100_000, 8 * LATTICE), source)
    for sigma, fits in ((3.0, True), (2.85, False), (3.15, False)):
        test = stats.binomtest(int(np.sum(passes)), 100_000, stats.norm.cdf(3 / sigma))
        assert (test.pvalue > FALSE_ALARM) == fits


class FixedWords(SeededNoise):
    """Returns the given words, to reach decisions that have a chance of 2**-47 per draw."""

    def __init__(self, words):
        super().__init__(0)
        self.left = list(words)

    def words(self, size):
        taken, self.left = self.left[:size], self.left[size:]
        return np.array(taken, np.uint64)


def test_uniform_choice_redraws_the_uneven_words():
    # 2**64 mod 3 = 1: only the word 0 is redrawn.
    assert FixedWords([0, 5]).uniform_integers(np.array([3])).tolist() == [2]
    assert FixedWords([1]).uniform_integers(np.array([3])).tolist() == [1]


def test_seeded_noise_repeats_and_says_that_it_is_not_secure():
    mechanism = LaplaceNoisyMax(gamma=0.05)
    first, second = (
        mechanism.additive_noise(SeededNoise(7), num_queries=5, num_classes=3) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    assert not SeededNoise.is_secure and SystemNoise.is_secure


@pytest.mark.parametrize(
    "mechanism",
    [
        LaplaceNoisyMax(gamma=1e-10),
        GaussianNoisyMax(sigma=1e10),
        ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=1e10, sigma=40.0),
        ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=40.0, sigma=1e10),
    ],
)
def test_mechanisms_that_cannot_be_drawn_are_refused(mechanism):
    with pytest.raises(ValueError, match=r"must be from 2\*\*-30"):
        check_drawable(mechanism)
