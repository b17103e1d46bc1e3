"""The audit of a mechanism: it passes what is right, catches what is wrong, and knows its power."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from toy_mechanisms import TOYS, ToyNoisyMax

from pate_tf.accounting.conversions import gaussian_dp_epsilon
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianNoisyMax,
    InteractiveGaussianNoisyMax,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    PermuteAndFlip,
    Plurality,
    StabilityGate,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.mechanisms.base import MECHANISMS, register
from pate_tf.audit import statistics
from pate_tf.audit.mechanism import NO_POWER, PASSED, VIOLATION, audit_mechanism

DELTA = 1e-5
# Each with noise small enough that few draws have power.
RIGHT = [
    LaplaceNoisyMax(1.0),
    PermuteAndFlip(1.0),
    ExponentialMechanism(1.0),
    GaussianNoisyMax(2.0),
    GaussianHistogram(2.0),
    ConfidentGaussianNoisyMax(6.0, 3.0, 2.0),
    InteractiveGaussianNoisyMax(6.0, 3.0, 2.0),
    StabilityGate(epsilon=1.0, delta=1e-6),
    GaussianFeatureSums(2.0),
    LaplaceClusterCounts(2.0, 20),
]
DRAWS = {
    "stability_gate": 3_000,
    "confident_gaussian_noisy_max": 40_000,
    "interactive_gaussian_noisy_max": 40_000,
}


def audited(mechanism, num_draws=12_000):
    return audit_mechanism(mechanism, delta=DELTA, num_draws=DRAWS.get(mechanism.name, num_draws))


@pytest.mark.parametrize("mechanism", RIGHT, ids=lambda one: one.name)
def test_a_right_mechanism_passes_and_half_its_noise_is_caught(mechanism):
    found = audited(mechanism)
    assert found.outcome == PASSED, found.checks
    assert found.control_caught
    assert all(one.lower_bound <= one.claimed for one in found.curve)
    assert {one.outcome for one in found.checks} == {PASSED}


def test_every_mechanism_that_draws_is_among_those():
    drawn = {
        name
        for name, kind in MECHANISMS.items()
        if ("draw" not in kind.lacks or kind.releases_feature_sums)
    }
    tested = {one.name for one in RIGHT}
    assert drawn - {toy.name for toy in TOYS} - tested == {StabilityGateOrHistogram.name}


@pytest.fixture
def registered():
    """Registers mechanisms for one test."""
    before = dict(MECHANISMS)
    yield register
    MECHANISMS.clear()
    MECHANISMS.update(before)


def test_what_is_registered_can_be_audited_and_half_its_noise_is_a_violation(registered):
    registered(ToyNoisyMax)
    assert audited(ToyNoisyMax(2.0)).outcome == PASSED

    @dataclasses.dataclass(frozen=True)
    class Half(ToyNoisyMax):
        """Draws half the noise that it accounts for."""

        name = "toy_half"
        parameters = ToyNoisyMax.parameters
        lacks = ToyNoisyMax.lacks
        words = ToyNoisyMax.words

        @property
        def noise_scales(self):
            return {"2/epsilon": 1.0 / self.epsilon}

    registered(Half)
    found = audited(Half(2.0))
    assert found.outcome == VIOLATION
    assert [one.name for one in found.checks if one.outcome == VIOLATION] == [
        "draws for neighbouring data sets"
    ]


@pytest.mark.parametrize("forgotten", ["always", "of several"])
def test_a_query_that_is_not_charged_is_a_violation(registered, forgotten):
    least = 0 if forgotten == "always" else 1

    @dataclasses.dataclass(frozen=True)
    class Forgets(GaussianNoisyMax):
        """Charges one query too few."""

        name = "toy_forgets"

        def number_charged(self, num_queries):
            return max(num_queries - 1, min(least, num_queries))

    registered(Forgets)
    assert audited(Forgets(2.0), 40_000).outcome == VIOLATION


def test_an_audit_without_power_says_so():
    found = audit_mechanism(GaussianNoisyMax(400.0), delta=DELTA, num_draws=1_600)
    assert (found.outcome, found.control_caught) == (NO_POWER, False)


def test_sums_are_audited_nearly_tightly():
    """Of a claim of epsilon 1 at a delta that so many draws resolve; more resolve a smaller one."""
    shift = brentq(lambda one: gaussian_dp_epsilon(one, 1e-2) - 1.0, 0.1, 2.0)
    found = audit_mechanism(GaussianFeatureSums(2.0 / shift), delta=1e-2, num_draws=200_000)
    assert found.outcome == PASSED
    assert 0.8 * found.claimed <= found.lower_bound <= found.claimed
    assert found.gaussian_estimate <= found.claimed * 1.0001


@pytest.mark.parametrize(
    "mechanism, settings, words",
    [
        (Plurality(), {}, "draws noise"),
        (GaussianNoisyMax(2.0), {"delta": 0.0}, "delta"),
        (GaussianNoisyMax(2.0), {"num_draws": 10}, "num_draws: expected at least"),
        (GaussianNoisyMax(2.0), {"seconds": math.inf}, "seconds: expected"),
        ("gaussian", {}, "mechanism: expected one such as"),
    ],
)
def test_what_can_not_be_audited_is_one_line(mechanism, settings, words):
    with pytest.raises(ValueError, match=words) as raised:
        audit_mechanism(mechanism, **settings)
    assert "\n" not in str(raised.value)


# The statistics, against SciPy and closed forms.


@pytest.mark.parametrize("hits, total", [(0, 50), (1, 50), (25, 50), (50, 50)])
def test_probabilities_are_bounded_as_clopper_and_pearson(hits, total):
    low, high = statistics.probability_bounds(hits, total, alpha=0.01)
    assert low == pytest.approx(stats.beta.ppf(0.01, hits, total - hits + 1) if hits else 0.0)
    is_all = hits == total
    assert high == pytest.approx(1.0 if is_all else stats.beta.isf(0.01, hits + 1, total - hits))


def test_a_bound_exceeds_the_truth_no_more_often_than_it_may():
    """Randomised response with epsilon 1 at a confidence of 80 %: fewer than 20 % may exceed it."""
    generator = np.random.default_rng(7)
    rate = math.e / (1.0 + math.e)
    exceeding = 0
    for _ in range(300):
        likelier, other = generator.binomial(200, [rate, 1.0 - rate])
        bound = statistics.epsilon_lower_bound(
            int(likelier), int(other), 200, delta=0.0, confidence=0.8
        )
        exceeding += bound > 1.0
    assert stats.binomtest(exceeding, 300, 0.2, alternative="greater").pvalue > 1e-6
    assert exceeding  # and it is no constant


def test_guesses_in_one_run_are_bounded_as_the_theorem_says():
    """At delta 0 right guesses are at most a binomial of rate e^eps / (1 + e^eps)."""
    for epsilon in (0.3, 1.0, 2.0):
        found = statistics.one_run_p_value(500, 100, 80, epsilon=epsilon, delta=0.0)
        rate = math.exp(epsilon) / (1.0 + math.exp(epsilon))
        assert found == pytest.approx(stats.binom.sf(79, 100, rate))
        assert statistics.one_run_p_value(500, 100, 80, epsilon=epsilon, delta=1e-3) > found
    bound = statistics.one_run_epsilon(500, 100, 95, delta=0.0, confidence=0.95)
    at_it = statistics.one_run_p_value(500, 100, 95, epsilon=bound, delta=0.0)
    assert at_it == pytest.approx(0.05, abs=1e-4)
    # All 1,000 right: epsilon is at least log(p / (1 - p)) with p^1000 = .05.
    rate = 0.05 ** (1 / 1_000)
    assert statistics.one_run_epsilon(
        1_000, 1_000, 1_000, delta=0.0, confidence=0.95
    ) == pytest.approx(math.log(rate / (1.0 - rate)), abs=1e-4)
    assert statistics.one_run_epsilon(500, 100, 50, delta=0.0) == 0.0


def test_events_of_gaussians_come_near_their_epsilon():
    generator = np.random.default_rng(3)
    first, second = generator.normal(1.0, 1.0, 400_000), generator.normal(0.0, 1.0, 400_000)
    event, _ = statistics.best_event(first[:200_000], second[:200_000], delta=1e-2)
    likelier, other = event.counts(first[200_000:], second[200_000:])
    bound = statistics.epsilon_lower_bound(likelier, other, 200_000, delta=1e-2)
    true = gaussian_dp_epsilon(1.0, 1e-2)
    assert 0.9 * true <= bound <= true
    assert statistics.rate_at_false_positives(first, second, 1e-2) == pytest.approx(
        stats.norm.sf(stats.norm.isf(1e-2) - 1.0), rel=0.05
    )
