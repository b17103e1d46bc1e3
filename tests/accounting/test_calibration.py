import itertools

import numpy as np
import pytest

from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
    Plurality,
)
from pate_tf.accounting.planning import least_noise, most_queries

KINDS = [LaplaceNoisyMax, PermuteAndFlip, ExponentialMechanism, GaussianNoisyMax]


def louder(mechanism, factor):
    """The same mechanism with less noise."""
    if isinstance(mechanism, GaussianNoisyMax):
        return GaussianNoisyMax(sigma=mechanism.sigma / factor)
    return type(mechanism)(gamma=mechanism.gamma * factor)


# The search is one and the same for all kinds; each worst case of Gaussian noise takes a third of a
# second, and a search looks at a dozen: a number of queries, an epsilon and a delta of each size.
SEARCHES = list(itertools.product(KINDS[:3], [1, 37, 1000, 10**6], [0.01, 1.0, 20.0], [1e-2, 1e-6]))
SEARCHES += [
    (GaussianNoisyMax, 1, 0.01, 1e-2),
    (GaussianNoisyMax, 1, 20.0, 1e-6),
    (GaussianNoisyMax, 37, 1.0, 1e-6),
    (GaussianNoisyMax, 1000, 20.0, 1e-2),
    (GaussianNoisyMax, 10**6, 0.01, 1e-6),
    (GaussianNoisyMax, 10**6, 20.0, 1e-6),
]


@pytest.mark.parametrize(("kind", "num_queries", "epsilon", "delta"), SEARCHES)
def test_the_least_noise_meets_the_target_and_a_little_less_does_not(
    kind, num_queries, epsilon, delta
):
    mechanism = least_noise(kind, num_queries=num_queries, epsilon=epsilon, delta=delta)
    spent, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
    assert spent <= epsilon
    more, _ = louder(mechanism, 1 + 1e-6).data_independent_epsilon(
        num_queries=num_queries, delta=delta
    )
    assert more > epsilon


@pytest.mark.parametrize(
    "mechanism",
    [kind(gamma=0.05) for kind in KINDS[:3]]
    + [
        GaussianNoisyMax(sigma=40.0),
        ConfidentGaussianNoisyMax(threshold=150.0, sigma_threshold=100.0, sigma=40.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0])
def test_one_query_more_than_the_most_exceeds_the_target(mechanism, epsilon):
    most = most_queries(mechanism, epsilon=epsilon, delta=1e-5)
    assert most > 0
    assert mechanism.data_independent_epsilon(num_queries=most, delta=1e-5)[0] <= epsilon
    assert mechanism.data_independent_epsilon(num_queries=most + 1, delta=1e-5)[0] > epsilon


def test_no_query_is_affordable_where_one_is_too_dear():
    assert most_queries(LaplaceNoisyMax(gamma=100.0), epsilon=1.0, delta=1e-5) == 0
    assert most_queries(Plurality(), epsilon=1.0, delta=1e-5) == 0


def test_tiny_gammas_afford_very_many_queries():
    assert most_queries(LaplaceNoisyMax(gamma=1e-6), epsilon=1.0, delta=1e-6) > 10**10
    assert most_queries(LaplaceNoisyMax(gamma=1e-12), epsilon=1.0, delta=1e-6) == 2**40


@pytest.mark.parametrize("kind", [Plurality, ConfidentGaussianNoisyMax])
def test_mechanisms_without_a_single_scale_are_refused(kind):
    with pytest.raises(ValueError, match="expected one with a single scale"):
        least_noise(kind, num_queries=10, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("num_queries", "epsilon", "delta"),
    [(0, 1.0, 1e-5), (10, 0.0, 1e-5), (10, np.nan, 1e-5), (10, 1.0, -1e-9), (10, 1.0, 1.0)],
)
def test_nonsense_targets_are_refused(num_queries, epsilon, delta):
    with pytest.raises(ValueError, match="expected"):
        least_noise(LaplaceNoisyMax, num_queries=num_queries, epsilon=epsilon, delta=delta)
