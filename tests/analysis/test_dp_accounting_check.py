import pytest

from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
)
from pate_tf.analysis.accounting import (
    AnalysisConfig,
    analyse,
    epsilon_by_dp_accounting,
)
from pate_tf.analysis.votes import VoteSource

DELTA = 1e-5


@pytest.mark.parametrize("num_queries", [1, 30, 400])
@pytest.mark.parametrize(
    "mechanism",
    [LaplaceNoisyMax(gamma=0.05), PermuteAndFlip(gamma=0.2), GaussianNoisyMax(sigma=40.0)],
    ids=repr,
)
def test_two_libraries_agree(mechanism, num_queries):
    ours, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=DELTA)
    theirs = epsilon_by_dp_accounting({mechanism: num_queries}, DELTA)
    # Theirs rounds losses up to a grid of 1e-4 a query, so it may exceed ours by that.
    whole = min(
        mechanism.composed_epsilon(num_queries, delta=DELTA),
        epsilon_from_alphas(
            num_queries * mechanism.cost_cap(DEFAULT_MOMENTS), DEFAULT_MOMENTS, DELTA
        )[0],
    )
    assert whole <= theirs + 1e-6
    assert theirs <= whole * 1.01 + 1e-4 * num_queries
    # Theirs is the cost of the whole noisy histogram, ours that of the label.
    assert ours <= whole


def test_ours_is_no_looser_where_the_dominating_pair_is_not_tight():
    # The exponential mechanism has bounded range, which randomised response knows nothing of.
    mechanism = ExponentialMechanism(gamma=0.05)
    ours, _ = mechanism.data_independent_epsilon(num_queries=100, delta=DELTA)
    assert ours < epsilon_by_dp_accounting({mechanism: 100}, DELTA)


def test_mixtures_add_up():
    parts = {
        LaplaceNoisyMax(gamma=0.05): 20,
        ConfidentGaussianNoisyMax(threshold=100.0, sigma_threshold=80.0, sigma=40.0): 30,
    }
    together = epsilon_by_dp_accounting(parts, DELTA)
    for mechanism, num_queries in parts.items():
        assert epsilon_by_dp_accounting({mechanism: num_queries}, DELTA) < together
    source = VoteSource(groups=None, num_charged=parts, identity=str)
    found = analyse(source, AnalysisConfig(check_with_dp_accounting=True))
    assert found.by_dp_accounting.epsilon == pytest.approx(together)
    caps = sum(number * mechanism.cost_cap(DEFAULT_MOMENTS) for mechanism, number in parts.items())
    assert epsilon_from_alphas(caps, DEFAULT_MOMENTS, DELTA)[0] >= together * 0.99
    assert found.data_independent.epsilon < together


def test_edges():
    assert epsilon_by_dp_accounting({}, DELTA) == 0.0
    assert epsilon_by_dp_accounting({LaplaceNoisyMax(gamma=0.1): 0}, DELTA) == 0.0
