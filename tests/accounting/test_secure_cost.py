"""The cost of a shared vote, against laws summed on lattices coarse enough to show differences."""

import math

import numpy as np
import pytest
from reference import honest_law

from pate_tf.accounting import local
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import SecureHistogram

DELTA = 1e-5


def exact_delta(law, shift, epsilon):
    """Returns delta at epsilon for two counts that both move by `shift`: every pair of sums."""
    here, there = law[shift:], law[: len(law) - shift]
    seen = (here > 1e-200) & (there > 1e-200)
    here, losses = here[seen], np.log(here[seen] / there[seen])
    both = np.minimum(epsilon - np.add.outer(losses, losses), 0.0)
    return 1.0 - here.sum() ** 2 + float(here @ -np.expm1(both) @ here)


@pytest.mark.parametrize(("num_parties", "threshold"), [(4, 1), (6, 2)])
@pytest.mark.parametrize("lattice", [3, 5])
def test_no_epsilon_is_below_that_of_the_exact_law(monkeypatch, num_parties, threshold, lattice):
    monkeypatch.setattr(local, "LATTICE", lattice)
    mechanism = SecureHistogram(sigma=2.0, num_parties=num_parties, threshold=threshold)
    scale = mechanism.sigma * lattice / math.sqrt(mechanism.num_honest)
    law = honest_law(scale, mechanism.num_honest, int(30 * scale))
    claimed, _ = smallest_epsilon.__wrapped__({mechanism: 1}, DELTA)  # its cache has other lattices
    by_gauss = mechanism.composed_epsilon(1, delta=DELTA)
    assert claimed == min(claimed, by_gauss)
    assert exact_delta(law, lattice, by_gauss) <= DELTA
    assert exact_delta(law, lattice, 0.6 * by_gauss) > DELTA
