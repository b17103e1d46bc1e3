"""How far adding, removing or replacing an owner moves the sums, and the charge of each
relation.
"""

import dataclasses
import itertools
from collections import Counter
from math import e, expm1, sqrt

import mpmath as mp
import numpy as np
import pytest

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import (
    MAX_APPROXIMATE,
    Charge,
    moments_epsilon,
    several_teachers_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, SecureHistogram
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianMoments,
    GaussianNoisyMax,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.mechanisms.retired import RetiredGate
from pate_tf.core.dataset import Dataset
from pate_tf.planning.comparison import planned_sums
from pate_tf.planning.release_settings import PublicNumbers
from pate_tf.release.exact_sums import moments_by_class, sums_by_class
from pate_tf.release.feature_sums import Summands

DELTA = 1e-5
DATASET = Dataset(
    name="cells", kind="tabular", input_shape=(2,), value_range=(0, 1), num_classes=2, pool_size=0
)
NO_COUNTS = np.zeros((1, 3), np.int64)
SECURE = {"num_features": 3, "least_silos": 4, "colluding": 1, "num_parties": 5, "threshold": 1}

# Owners: the vector and the class of each of their records, with at most two classes. An owner
# without records has been removed. Vectors that are too long or not finite simulate faults of an
# encoder.
ONE, OTHER, MIXED = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.6, 0.0, 0.8)
OWNERS = (
    (),
    ((ONE, 0),),
    ((ONE, 1),),
    ((OTHER, 0),),
    ((ONE, 0), (OTHER, 1)),
    ((ONE, 0), (MIXED, 0), (OTHER, 1)),
    ((MIXED, 0),) * 7 + ((ONE, 1),) * 5,
    ((OTHER, 1),) * 100,
    (((0.3, 0.0, 0.0), 0),) * 2,
    (((9.0, 0.0, 0.0), 0), (ONE, 1)),
    (((np.nan, 0.0, 0.0), 1), (ONE, 1)),
)
OPPOSITE = tuple(tuple((tuple(-np.array(v)), y) for v, y in owner) for owner in OWNERS)


def arrays(owners):
    """Returns vectors, classes and owner names of all records."""
    records = [(v, y, name) for name, owner in enumerate(owners) for v, y in owner]
    vectors = np.array([v for v, _, _ in records], np.float64).reshape(-1, 3)
    return vectors, *(np.array([row[i] for row in records], np.int64) for i in (1, 2))


def sums(owners):
    vectors, labels, names = arrays(owners)
    return sums_by_class(vectors, labels, num_classes=2, owners=names)


def second_moments(owners):
    vectors, labels, names = arrays(owners)
    return moments_by_class(vectors, np.eye(2)[labels], names)


def cluster_counts(owners):
    vectors, labels, names = arrays(owners)
    centres = {2: np.array([[1.0, 0.0], [0.0, 1.0]])}
    summands = Summands(dataset=DATASET, scale=np.ones(2), centres=centres)
    pairs, place = np.unique(names * 2 + labels, return_inverse=True)
    totals = np.zeros((len(pairs), summands.num_rows), np.int64)
    nearest = np.eye(2, dtype=np.int64)[(vectors[:, 1] > vectors[:, 0]).astype(int)]
    np.add.at(totals, (place, slice(3, None)), nearest)
    return summands.of_owners(totals, pairs)[3:]


@pytest.mark.parametrize(
    ("table", "universe", "norm", "replaced"),
    [
        (sums, OWNERS + OPPOSITE, 2, 2.0),
        (second_moments, OWNERS + OPPOSITE, 2, sqrt(2.0)),
        (cluster_counts, OWNERS, 1, 2.0),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_owners_move_tables_by_no_more_than_is_charged_and_by_as_much(
    table, universe, norm, replaced
):
    """Compares exact distances of all pairs, next to no, one and several other owners."""
    for others in ((), (OWNERS[6],), (OWNERS[5], OWNERS[7], OWNERS[9])):
        without = table(others)
        moved = [(table((*others, owner)) - without).ravel() / LATTICE for owner in universe]
        of_one = [np.linalg.norm(each, norm) for each in moved]
        assert max(of_one) <= 1.0
        assert max(of_one) > 0.999
        of_two = [np.linalg.norm(a - b, norm) for a, b in itertools.combinations(moved, 2)]
        assert max(of_two) <= replaced
        assert max(of_two) > 0.999 * replaced


def gaussian_delta(distance, sigma, epsilon):
    """Returns the exact privacy profile of Gaussian noise, from densities only."""
    distance, sigma, epsilon = map(mp.mpf, (distance, sigma, epsilon))
    at = epsilon * sigma / distance
    half = distance / (2 * sigma)
    return mp.ncdf(half - at) - mp.exp(epsilon) * mp.ncdf(-half - at)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(
    ("kind", "replaced"),
    [(GaussianFeatureSums, 2.0), (GaussianMoments, sqrt(2.0)), (SecureFeatureSums, 2.0)],
)
def test_each_relation_is_charged_by_its_own_sensitivity(kind, replaced, epsilon):
    if kind is SecureFeatureSums:
        of_unit = {
            unit: kind.for_epsilon(epsilon, delta=DELTA, unit=unit, **SECURE)
            for unit in ("record", "owner")
        }
    else:
        target = Target(epsilon=epsilon, delta=DELTA)
        of_unit = {
            unit: kind.for_target(dataclasses.replace(target, unit=unit), NO_COUNTS)
            for unit in ("record", "owner")
        }
    owner, record = of_unit["owner"], of_unit["record"]
    assert record.sigma / owner.sigma == pytest.approx(replaced, rel=1e-5)
    for distance, stated in (
        (1.0, smallest_epsilon({owner: 1}, DELTA)[0]),
        (replaced, several_teachers_epsilon({owner: 1}, delta=DELTA)),
        (2.0, several_teachers_epsilon({owner: 1}, delta=DELTA, num_teachers=2)),
        (5.0, several_teachers_epsilon({owner: 1}, delta=DELTA, num_teachers=5)),
    ):
        assert gaussian_delta(distance, owner.sigma, stated) <= DELTA
        assert gaussian_delta(distance, owner.sigma, stated * 0.9999 - 1e-7) > DELTA


def test_counts_of_owners_cost_one_scale_added_and_two_replaced():
    target = Target(epsilon=0.5, delta=0.0, unit="owner")
    known = PublicNumbers(num_records=10_000, num_classes=2)
    planned = planned_sums(target, known, (2, 4)).mechanism
    assert planned == LaplaceClusterCounts(scale=planned.scale, num_clusters=4, unit="owner")
    for counts in (planned, LaplaceClusterCounts.for_target(target, NO_COUNTS)):
        assert counts.scale == pytest.approx(2.0)
        assert smallest_epsilon({counts: 1}, 0.0)[0] == pytest.approx(0.5)
        assert several_teachers_epsilon({counts: 1}, delta=0.0) == pytest.approx(1.0)
        # At delta, randomized response is the worst 1-private mechanism: (e - e^epsilon) / (1 + e).
        exact = 1.0 + np.log1p(-DELTA * (1.0 + e) / e)
        replaced = several_teachers_epsilon({counts: 1}, delta=DELTA)
        assert exact <= replaced * (1.0 + 1e-9) <= exact + 1e-6


def test_votes_and_earlier_records_keep_their_charge():
    """A mechanism without a unit in its row keeps its cost and its identity."""
    earlier = {"name": "gaussian_feature_sums", "sigma": 7.46126}
    charge = charge_from_dict(earlier)
    assert charge.to_dict() == earlier
    assert smallest_epsilon({charge: 1}, DELTA)[0] == pytest.approx(1.0, rel=1e-5)
    assert several_teachers_epsilon({charge: 1}, delta=DELTA) == pytest.approx(2.1547, rel=1e-4)
    owner = dataclasses.replace(charge, unit="owner")
    assert charge_from_dict(owner.to_dict()) == owner != charge
    assert owner.summary() == "gaussian_feature_sums, sigma 7.46126, unit owner"
    # A vote moves from one class to another, both for owners and for records.
    for kind in (GaussianHistogram, GaussianNoisyMax):
        planned = [
            kind.for_target(Target(epsilon=1.0, delta=DELTA, num_queries=50, unit=unit), NO_COUNTS)
            for unit in ("record", "owner")
        ]
        assert planned[0] == planned[1]
        assert planned[0].noise_multipliers == (planned[0].sigma / sqrt(2.0),)
    with pytest.raises(ValueError, match="unit"):
        GaussianFeatureSums(sigma=1.0, unit="person")


# Several kinds together.


def singles(charges, delta):
    return sum(smallest_epsilon({charge: n}, delta)[0] for charge, n in charges.items())


def randomized_response_delta(losses, distance, epsilon):
    """Returns the exact profile of randomized responses and a Gaussian, summed over all answers."""
    total = mp.mpf(0)
    for signs in itertools.product((1, -1), repeat=len(losses)):
        moved = sum(sign * loss for sign, loss in zip(signs, losses, strict=True))
        weight = mp.fprod(
            1 / (1 + mp.exp(-sign * loss)) for sign, loss in zip(signs, losses, strict=True)
        )
        total += weight * gaussian_delta(distance, 1.0, epsilon - moved)
    return total


def laplace_delta(loss, distance, epsilon):
    """Returns the exact profile of Laplace noise on one number and Gaussian noise on another."""
    middle = mp.quad(
        lambda x: mp.exp((x - loss) / 2) / 4 * gaussian_delta(distance, 1.0, epsilon - x),
        np.linspace(-loss, loss, 9).tolist(),
    )
    ends = gaussian_delta(distance, 1.0, epsilon - loss) / 2
    return middle + ends + mp.exp(-loss) / 2 * gaussian_delta(distance, 1.0, epsilon + loss)


@pytest.mark.parametrize("loss", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("sigma", [2.5, 8.0, 60.0])
def test_a_pure_and_a_gaussian_charge_cost_at_most_their_sum(loss, sigma):
    gaussian, pure = GaussianFeatureSums(sigma=sigma), LaplaceClusterCounts(scale=2.0 / loss)
    charges = {gaussian: 1, pure: 1}
    epsilon = smallest_epsilon(charges, DELTA)[0]
    assert epsilon <= singles({gaussian: 1}, DELTA) + loss * (1.0 + 1e-9)
    assert epsilon <= moments_epsilon(charges, DELTA)[0]
    assert randomized_response_delta([loss], 2.0 / sigma, epsilon) <= DELTA
    assert randomized_response_delta([loss], 2.0 / sigma, epsilon * 0.9999 - 1e-5) > DELTA
    assert laplace_delta(loss, 2.0 / sigma, epsilon) <= DELTA
    replaced = several_teachers_epsilon(charges, delta=DELTA)
    assert randomized_response_delta([2.0 * loss], 4.0 / sigma, replaced) <= DELTA
    assert randomized_response_delta([2.0 * loss], 4.0 / sigma, replaced * 0.9999 - 1e-5) > DELTA


KINDS: tuple[Charge, ...] = (
    GaussianFeatureSums(sigma=5.0),
    GaussianMoments(sigma=9.0, unit="owner"),
    LaplaceClusterCounts(scale=9.0),
    LaplaceNoisyMax(scale=40.0),
    GaussianHistogram(sigma=60.0),
    RetiredGate(epsilon=0.2, delta=1e-6),
)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_composed_costs_are_monotone_and_at_most_basic_composition(number):
    """Each kind without moments uses a part of delta, which is subtracted from the delta of the
    other kinds.
    """
    for kinds in itertools.combinations(KINDS, number):
        charges = Counter(dict.fromkeys(kinds, 2))
        left = DELTA - sum(2 * kind.approximate[1] for kind in kinds if kind.approximate)
        gates = sum(2 * kind.approximate[0] for kind in kinds if kind.approximate)
        pure = {kind: 2 for kind in kinds if kind.pure_epsilon is not None}
        gaussian = {kind: 2 for kind in kinds if kind.noise_multipliers}
        basic = gates + sum(2 * kind.pure_epsilon for kind in pure)
        if gaussian:
            basic += smallest_epsilon(gaussian, left)[0]
        epsilon = smallest_epsilon(charges, DELTA)[0]
        assert epsilon <= basic * (1.0 + 1e-5)
        for kind in kinds:
            assert smallest_epsilon(charges - Counter([kind]), DELTA)[0] <= epsilon
        distance = sqrt(sum(n / k.noise_multipliers[0] ** 2 for k, n in gaussian.items()))
        is_exact = all(isinstance(kind, LaplaceClusterCounts) for kind in pure)
        if gaussian and is_exact and len(gaussian) + len(pure) == number:
            losses = [kind.pure_epsilon for kind in pure for _ in range(2)]
            assert randomized_response_delta(losses, distance, epsilon) <= DELTA
            assert randomized_response_delta(losses, distance, 0.999 * epsilon) > DELTA


def test_what_answers_may_choose_is_composed_by_moments_alone():
    """A coordinator may choose the kinds. Only moments, or one sum of pure epsilons, may then
    decide.
    """
    secure = SecureHistogram(sigma=30.0, num_parties=6, threshold=2)
    votes = RandomisedResponse(num_classes=2, epsilon=0.01)
    charges: dict[Charge, int] = {secure: 3, votes: 3}
    assert smallest_epsilon(charges, DELTA) == moments_epsilon(charges, DELTA)
    many: dict[Charge, int] = {LaplaceNoisyMax(scale=1e4): MAX_APPROXIMATE, KINDS[0]: 1}
    assert smallest_epsilon(many, DELTA)[0] < moments_epsilon(many, DELTA)[0]
    assert expm1(smallest_epsilon(many, 0.0)[0]) == np.inf
