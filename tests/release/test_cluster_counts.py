"""Counts of records in clusters: how far a record or owner can move them, and their
pure epsilon.
"""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import LaplaceClusterCounts
from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import SumsByClass
from pate_tf.ledger import Ledger
from pate_tf.models.encoder import record_vectors
from pate_tf.postprocessing.label_propagation import CENTRE_STEP, nearest_centres
from pate_tf.release.feature_sums import Summands
from pate_tf.release.noise import SystemNoise
from pate_tf.release.noisy_sums import release_sums

CENTRES = np.eye(3) * CENTRE_STEP * 2**14
DATASET = Dataset(
    name="cells", kind="tabular", input_shape=(3,), value_range=(0, 1), num_classes=2, pool_size=0
)
SUMMANDS = Summands(dataset=DATASET, scale=np.ones(3), centres={3: CENTRES})


def table(records, owners=None):
    """Returns counts of records. Each record is a cluster and a class."""
    clusters, labels = np.array(records, np.int64).reshape(-1, 2).T
    features = np.eye(3, dtype=np.float32)[clusters]
    if owners is None:
        return SUMMANDS.of_records(record_vectors(features, SUMMANDS.scale), labels)[-3:]
    _, owner = np.unique(owners, return_inverse=True)
    pairs, place = np.unique(owner * 2 + labels, return_inverse=True)
    totals = np.zeros((len(pairs), SUMMANDS.num_rows), np.int64)
    np.add.at(totals, place, SUMMANDS.of_owned(features))
    return SUMMANDS.of_owners(totals, pairs)[-3:]


def moved(one, other):
    return int(np.abs(one - other).sum())


def test_no_record_replaced_moves_the_table_by_more_than_two():
    """Every record of a small universe replaces every other."""
    universe = list(itertools.product(range(3), range(2)))
    actual = {
        moved(table([one, (0, 0)]), table([other, (0, 0)]))
        for one, other in itertools.product(universe, universe)
    }
    assert actual == {0, 2 * LATTICE}
    assert (table([(2, 1), (2, 1)]) == np.array([[0, 0], [0, 0], [0, 2 * LATTICE]])).all()


records = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=7)


@settings(max_examples=200, deadline=None)
@given(records, records, records)
def test_no_owner_adds_more_than_one(others, one, other):
    def of(mine):
        owners = np.array(["mine"] * len(mine) + [f"other {k % 3}" for k in range(len(others))])
        return table([*mine, *others], owners)

    assert moved(of(one), of([])) <= LATTICE
    assert moved(of(one), of(other)) <= 2 * LATTICE
    assert not one or moved(of(one), of([])) > LATTICE - len(one)  # and hardly less


@pytest.mark.parametrize("scale", [0.4, 2.0, 31.0])
def test_the_worst_ratio_of_two_tables_is_e_to_the_pure_epsilon(scale):
    """Two cells in whole records, all outcomes near them. The law is exact, not sampled."""
    law = scipy.stats.dlaplace(1.0 / scale)
    outcomes = np.arange(-40, 42)
    ratios = [
        law.logpmf(outcomes[:, None] - before[0]) + law.logpmf(outcomes[None] - before[1])
        for before in ((1, 0), (0, 1))
    ]
    worst = float(np.abs(ratios[0] - ratios[1]).max())
    mechanism = LaplaceClusterCounts(scale=scale, num_clusters=2)
    assert worst == pytest.approx(mechanism.pure_epsilon, rel=1e-9)
    assert mechanism.pure_epsilon >= 2.0 / scale
    epsilon, _ = smallest_epsilon({mechanism: 1}, 1e-9)
    assert epsilon <= mechanism.pure_epsilon
    assert epsilon == pytest.approx(mechanism.pure_epsilon, rel=1e-4)
    assert smallest_epsilon({mechanism: 3}, 1e-9)[0] <= 3 * mechanism.pure_epsilon


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
def test_the_noise_drawn_has_its_scale(tmp_path, factor, is_right):
    """The mean of |noise| is Gamma distributed. The false-alarm probability is 1e-6."""
    scale, size = 50.0, (10_000, 10)
    sums, mechanism = (
        SumsByClass(np.zeros(size, np.int64)),
        LaplaceClusterCounts(scale=scale, num_clusters=size[0]),
    )
    with Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=1e-5) as ledger:
        released = release_sums(sums, mechanism, ledger=ledger, noise=SystemNoise(), unit="record")
        again = release_sums(sums, mechanism, ledger=ledger, noise=SystemNoise(), unit="record")
    assert (released.values == again.values).all() and 0.0399 < released.cost.epsilon <= 0.04
    number = released.values.size
    mean = np.abs(released.values / LATTICE).mean() / (factor * scale)
    low, high = scipy.stats.gamma(number, scale=1.0 / number).ppf([5e-7, 1 - 5e-7])
    assert (low < mean < high) == is_right


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_the_cluster_of_a_record_does_not_depend_on_other_records():
    from pate_tf.core.public import cluster_numbers
    from pate_tf.postprocessing.label_propagation import cluster_centres

    random = np.random.default_rng(0)
    vectors = random.normal(size=(500, 40))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = cluster_centres(vectors, cluster_numbers(500, 4))
    assert [len(one) for one in centres] == [4, 8, 12, 20, 25]
    for one in centres:
        nearest = nearest_centres(vectors, one)
        slow = np.square(vectors[:, None] - one[None]).sum(axis=2).argmin(axis=1)
        assert (nearest == slow).mean() > 0.99
        for size in (1, 3, 17, 250):
            parts = [nearest_centres(vectors[at : at + size], one) for at in range(0, 500, size)]
            assert (np.concatenate(parts) == nearest).all()
    # Two centers whose distances differ only in the last bits: always the first.
    twice = np.vstack([centres[0][:1], centres[0][:1]])
    assert (nearest_centres(vectors, twice) == 0).all()
    assert np.abs(cluster_centres(vectors[[0] * 9], [3])[0] - vectors[0]).max() <= CENTRE_STEP
