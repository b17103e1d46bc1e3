"""Simulated silos open what silos over the network would."""

import numpy as np
import pytest
import scipy.stats

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.aggregation.noise import SeededNoise
from pate_tf.silos import simulated_total

RELEASE = SecureFeatureSums(
    sigma=50.0, num_features=200, least_silos=40, colluding=8, num_parties=4, threshold=1
)
CLASSES = 10
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(500, 201))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
LABELS = RANDOM.integers(0, CLASSES, 500)
SILOS = RANDOM.integers(0, 50, 500)


class Silent(SeededNoise):
    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


def total(noise, **changes):
    return simulated_total(
        VECTORS, LABELS, SILOS, RELEASE, num_classes=CLASSES, noise=noise, **changes
    )


@pytest.mark.parametrize("unit", ["record", "owner"])
def test_the_total_is_that_of_silos_one_by_one(unit):
    own = [
        sums_by_class(
            VECTORS[one == SILOS],
            LABELS[one == SILOS],
            num_classes=CLASSES,
            owners=SILOS[one == SILOS] if unit == "owner" else None,
        )
        for one in range(3, 50)
    ]
    assert np.array_equal(total(Silent(0), unit=unit, without={0, 1, 2}), sum(own))


def test_each_silo_adds_its_share_of_the_noise():
    """Two-sided at a false-alarm rate of 1e-6; a fifth more or less would be rejected."""
    noise = (total(SeededNoise(3)) - total(Silent(0))) / (RELEASE.total_sigma(50) * LATTICE)
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    assert low <= float(np.square(noise).sum()) <= high
    assert high / low < 1.2**2


def test_too_few_silos_open_nothing_and_misfits_are_refused():
    assert total(Silent(0), without=set(range(11))) is None
    with pytest.raises(ValueError, match="unit: expected"):
        total(Silent(0), unit="silo")
    with pytest.raises(ValueError, match="vectors: expected 201"):
        simulated_total(
            VECTORS[:, 1:], LABELS, SILOS, RELEASE, num_classes=CLASSES, noise=Silent(0)
        )
    with pytest.raises(ValueError, match="a silo of each record"):
        simulated_total(VECTORS, LABELS, SILOS[1:], RELEASE, num_classes=CLASSES, noise=Silent(0))
