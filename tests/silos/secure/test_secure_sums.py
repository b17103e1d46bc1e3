"""Feature sums under secure aggregation: the total of enough silos opens, with their noise."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from secure_helpers import asked, open_aggregators, sealed_sums, some_keys, sums_terms
from silo_helpers import Silent, secure_sums

from pate_tf.accounting.conversions import LATTICE
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import shamir
from pate_tf.silos.coordinator import open_histogram
from pate_tf.silos.protocol import Keys
from pate_tf.silos.sealing import deal, seal_shares, seal_sums

NUM_SILOS = 6
SHAPE = (401, 10)
SIZE = SHAPE[0] * SHAPE[1]
RELEASE = secure_sums(sigma=3.0, num_features=SHAPE[0] - 1, least_silos=5, colluding=2)


@pytest.fixture
def setting(tmp_path):
    """Returns aggregators, silos with keys, terms, and synthetic sums."""
    keys = some_keys(RELEASE.num_parties)
    silos = {f"silo-{number}": Keys(f"silo-{number}") for number in range(NUM_SILOS)}
    terms = sums_terms(keys, silos, RELEASE, num_classes=SIZE)
    random = np.random.default_rng(1)
    sums = {name: random.integers(-(2**30), 2**30, SHAPE) for name in silos}
    aggregators = open_aggregators(keys, tmp_path)
    yield aggregators, silos, terms, sums
    for one in aggregators.values():
        one.close()


def test_the_noise_suffices_where_colluding_silos_leave_theirs_out(setting):
    """Two-sided test at a false-alarm rate of 1e-6. It would reject a sum with one noise share
    fewer.
    """
    aggregators, silos, terms, sums = setting
    names = list(silos)[: RELEASE.least_silos]
    noises = {
        name: Silent() if place < RELEASE.colluding else None for place, name in enumerate(names)
    }
    opened = open_histogram(terms, sealed_sums(silos, terms, sums, noises), asked(aggregators))
    noise = opened.noisy_counts.reshape(-1) - sum(sums[name].reshape(-1) for name in names)
    squares = float(np.square(noise / (RELEASE.sigma * LATTICE)).sum())
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], SIZE)
    assert low <= squares <= high
    fewer = (RELEASE.num_honest - 1) / RELEASE.num_honest
    assert scipy.stats.chi2.cdf(low / fewer, SIZE) > 1 - 1e-6  # large enough to be noticed


@pytest.mark.parametrize("kind", ["unsigned", "own keys", "another silo's", "unlisted", "replayed"])
def test_silos_that_are_made_up_are_left_out(setting, kind):
    """A coordinator that replaces honest silos would remove their noise from the total."""
    aggregators, silos, terms, sums = setting
    sealed = sealed_sums(silos, terms, sums, dict.fromkeys(silos))
    table = shamir.from_integers(np.zeros(terms.shape, np.int64))
    shares = deal(table, terms, SystemNoise())
    name = "stranger" if kind == "unlisted" else "silo-0"
    keys = {"unsigned": None, "another silo's": silos["silo-1"]}.get(kind, Keys(name))
    if kind == "replayed":
        before = dataclasses.replace(terms, question=bytes(32))
        sealed[name] = seal_sums(sums[name], before, keys=silos[name])
    else:
        sealed[name] = seal_shares(shares, terms, silo=name, keys=keys)
    opened = open_histogram(terms, sealed, asked(aggregators))
    assert opened.left_out == (name,)


def test_the_largest_sums_do_not_wrap_around(setting):
    aggregators, silos, terms, sums = setting
    most = np.iinfo(np.int64).max
    large = {name: np.full(SHAPE, most if name != "silo-0" else -most) for name in sums}
    noises = dict.fromkeys(silos, Silent())
    opened = open_histogram(terms, sealed_sums(silos, terms, large, noises), asked(aggregators))
    assert (opened.noisy_counts == (NUM_SILOS - 2) * terms.largest_sum).all()
    assert 2 * NUM_SILOS * terms.largest_sum < shamir.PRIME // 2
