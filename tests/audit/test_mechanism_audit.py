"""The audit of a mechanism: it passes what is right, catches what is wrong, and knows its power."""

import dataclasses
import math
import subprocess
import sys

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
    GaussianResidualSums,
    InteractiveGaussianNoisyMax,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    PermuteAndFlip,
    StabilityGate,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.mechanisms.base import MECHANISMS, register
from pate_tf.audit import statistics
from pate_tf.audit.mechanism import NO_POWER, PASSED, VIOLATION, AuditNoise, audit_mechanism

DELTA = 1e-5
# Each with noise small enough that few draws have power.
RIGHT = [
    LaplaceNoisyMax(gamma=1.0),
    PermuteAndFlip(gamma=1.0),
    ExponentialMechanism(gamma=1.0),
    GaussianNoisyMax(sigma=2.0),
    GaussianHistogram(sigma=2.0),
    ConfidentGaussianNoisyMax(threshold=6.0, sigma_threshold=3.0, sigma=2.0),
    InteractiveGaussianNoisyMax(threshold=6.0, sigma_threshold=3.0, sigma=2.0),
    StabilityGate(epsilon=1.0, delta=1e-6),
    GaussianFeatureSums(sigma=2.0),
    GaussianResidualSums(sigma=2.0),
    GaussianResidualSums(sigma=4.0, num_rounds=3),
    LaplaceClusterCounts(scale=2.0, num_clusters=20),
]
DRAWS = {
    "stability_gate": 3_000,
    "confident_gaussian_noisy_max": 40_000,
    "interactive_gaussian_noisy_max": 40_000,
}


def audited(mechanism, num_draws=12_000):
    return audit_mechanism(mechanism, delta=DELTA, num_draws=DRAWS.get(mechanism.name, num_draws))


@pytest.mark.parametrize("mechanism", RIGHT, ids=lambda one: one.summary())
def test_a_right_mechanism_passes_and_half_its_noise_is_caught(mechanism):
    found = audited(mechanism)
    assert found.outcome == PASSED, found.checks
    assert found.control_caught
    assert found.lower_bound <= found.claimed
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
    assert audited(ToyNoisyMax(epsilon=2.0)).outcome == PASSED

    @dataclasses.dataclass(frozen=True)
    class Half(ToyNoisyMax):
        """Draws half the noise that it accounts for."""

        name = "toy_half"
        lacks = ToyNoisyMax.lacks
        words = ToyNoisyMax.words

        @property
        def noise_scales(self):
            return {"2/epsilon": 1.0 / self.epsilon}

    registered(Half)
    found = audited(Half(epsilon=2.0))
    assert found.outcome == VIOLATION
    assert [one.name for one in found.checks if one.outcome == VIOLATION] == [
        "draws for neighboring data sets"
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
    assert audited(Forgets(sigma=2.0), 40_000).outcome == VIOLATION


def test_an_audit_without_power_says_so():
    found = audit_mechanism(GaussianNoisyMax(sigma=400.0), delta=DELTA, num_draws=1_600)
    assert (found.outcome, found.control_caught) == (NO_POWER, False)


def test_sums_are_audited_nearly_tightly():
    """Of a claim of epsilon 1 at a delta that so many draws resolve; more resolve a smaller one."""
    shift = brentq(lambda one: gaussian_dp_epsilon(one, 1e-2) - 1.0, 0.1, 2.0)
    found = audit_mechanism(GaussianFeatureSums(sigma=2.0 / shift), delta=1e-2, num_draws=200_000)
    assert found.outcome == PASSED
    assert 0.8 * found.claimed <= found.lower_bound <= found.claimed
    in_rounds = GaussianResidualSums(sigma=2.0 * math.sqrt(4) / shift, num_rounds=4)
    found = audit_mechanism(in_rounds, delta=1e-2, num_draws=200_000)
    assert found.outcome == PASSED
    assert 0.8 * found.claimed <= found.lower_bound <= found.claimed


@pytest.mark.parametrize("wrong", ["charged as one round", "the last round has no noise"])
def test_rounds_that_cost_more_than_they_claim_are_a_violation(registered, wrong):
    @dataclasses.dataclass(frozen=True)
    class Wrong(GaussianResidualSums):
        """Four rounds that are not charged as they are drawn."""

        name = "toy_rounds"

        def alphas(self, moments):
            alphas = super().alphas(moments)
            return alphas / self.num_rounds if wrong == "charged as one round" else alphas

        def composed_epsilon(self, number, *, delta):
            if wrong == "charged as one round":
                return GaussianFeatureSums(sigma=self.sigma).composed_epsilon(number, delta=delta)
            return super().composed_epsilon(number, delta=delta)

        def draw_sums(self, sums, noise):
            drawn = super().draw_sums(sums, noise)
            drawn_so_far.append(len(drawn))
            is_last = len(drawn_so_far) % self.num_rounds == 0
            return sums + 1 if is_last and wrong != "charged as one round" else drawn

    drawn_so_far = []
    registered(Wrong)
    assert audited(Wrong(sigma=4.0, num_rounds=4)).outcome == VIOLATION


@pytest.mark.parametrize(
    "mechanism, settings, words",
    [
        (GaussianNoisyMax(sigma=2.0), {"delta": 0.0}, "delta"),
        (GaussianNoisyMax(sigma=2.0), {"num_draws": 10}, "num_draws: expected at least"),
        (GaussianNoisyMax(sigma=2.0), {"seconds": math.inf}, "seconds: expected"),
        ("gaussian", {}, "mechanism: expected one such as"),
    ],
)
def test_what_can_not_be_audited_is_one_line(mechanism, settings, words):
    with pytest.raises(ValueError, match=words) as raised:
        audit_mechanism(mechanism, **settings)
    assert "\n" not in str(raised.value)


# The statistics, against SciPy and closed forms.


def drawn_pairs(generator, number, p, q, *, is_shared):
    """Returns whether an event of chance p, and one of chance q, happened in each pair."""
    first = generator.random(number)
    second = first if is_shared else generator.random(number)
    return (first < p).astype(float), (second < q).astype(float)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("delta", [0.0, 0.02])
@pytest.mark.parametrize("stake", [0.1, 0.15])
def test_a_bound_exceeds_the_truth_no_more_often_than_it_may(is_shared, delta, stake):
    """Chances that just fit epsilon 1, at a confidence of 80 %: at most 20 % may exceed it."""
    generator = np.random.default_rng(7)
    p, q = math.e * 0.1 + delta, 0.1
    exceeding = 0
    for _ in range(400):
        x, y = drawn_pairs(generator, 200, p, q, is_shared=is_shared)
        counts = statistics.Event(0.5, True, False, stake).counts(x, y)
        bound = statistics.epsilon_lower_bound(counts, delta=delta, stake=stake, confidence=0.8)
        exceeding += bound > 1.0
    assert stats.binomtest(exceeding, 400, 0.2, alternative="greater").pvalue > 1e-6
    assert exceeding  # and it is no constant


@pytest.mark.parametrize("epsilon, delta, stake", [(0.0, 0.0, 0.3), (0.5, 0.1, 0.2)])
def test_evidence_has_a_mean_of_one_where_the_guarantee_just_holds(epsilon, delta, stake):
    """Over all pairs of outcomes of one pair of draws, whatever noise they share."""
    p, q = 0.3 * math.exp(epsilon) + delta, 0.3
    for both in (max(p + q - 1.0, 0.0), p * q, min(p, q)):
        chances = {(1, 0, 0): p - both, (0, 1, 0): q - both, (0, 0, 1): both}
        chances[0, 0, 0] = 1.0 - sum(chances.values())
        mean = sum(
            chance
            * math.exp(
                statistics.evidence(
                    statistics.Counts(*which, 1), epsilon=epsilon, delta=delta, stake=stake
                )
            )
            for which, chance in chances.items()
        )
        assert mean == pytest.approx(1.0)


def test_a_bound_is_the_epsilon_at_which_the_evidence_suffices():
    counts = statistics.Counts(700, 40, 200, 10_000)
    for delta, stake in ((0.0, 0.1), (1e-3, 0.2)):
        bound = statistics.epsilon_lower_bound(counts, delta=delta, stake=stake)
        given = statistics.evidence(counts, epsilon=bound, delta=delta, stake=stake)
        assert given == pytest.approx(-math.log(1.0 - statistics.CONFIDENCE), abs=1e-3)
        assert 0.5 < bound < math.log(900 / 240)
    nothing = statistics.Counts(50, 50, 50, 1_000)
    assert statistics.epsilon_lower_bound(nothing, delta=0.0, stake=0.1) == 0.0
    # A stake that could lose more than everything says nothing.
    assert statistics.evidence(counts, epsilon=1.0, delta=0.0, stake=0.5) == -math.inf


def test_shared_noise_shows_a_small_epsilon_that_two_intervals_do_not():
    """Clopper and Pearson's bounds on both chances, as in most audits, and the bound in pairs."""
    generator, epsilon = np.random.default_rng(3), 0.1
    noise = generator.laplace(0.0, 2.0 / epsilon, 100_000)
    event = statistics.Event(20.0, True, False, stake=0.05)
    counts = event.counts(noise + 1.0, noise - 1.0)
    bound = statistics.epsilon_lower_bound(counts, delta=0.0, stake=event.stake)
    assert 0.5 * epsilon < bound < epsilon
    alpha = (1.0 - statistics.CONFIDENCE) / 2.0
    x, y = counts.likelier + counts.both, counts.other + counts.both
    low = stats.beta.ppf(alpha, x, counts.total - x + 1)
    high = stats.beta.isf(alpha, y + 1, counts.total - y)
    assert math.log(low / high) < 0.7 * bound


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_events_of_gaussians_come_near_their_epsilon(is_shared, sign):
    generator, delta = np.random.default_rng(3), 1e-2
    second = generator.normal(0.0, 1.0, 400_000)
    first = sign + (second if is_shared else generator.normal(0.0, 1.0, 400_000))
    true = gaussian_dp_epsilon(1.0, delta)
    (promise,) = statistics.best_events(
        first[:200_000], second[:200_000], [(true, delta)], num_counted=200_000
    )
    event = promise.event
    counts = event.counts(first[200_000:], second[200_000:])
    bound = statistics.epsilon_lower_bound(counts, delta=delta, stake=event.stake)
    assert 0.9 * true <= bound <= true
    assert promise.bound == pytest.approx(bound, rel=0.1)
    assert -4.0 < promise.excess < 2.0


# Noise that is drawn once for both data sets.


def test_noise_is_repeated_for_the_same_query_alone():
    noise = AuditNoise(num_queries=5, num_classes=2)
    first = [noise.laplace_integers(1e6, 5), noise.gaussian_integers(1e6, 10), noise.words(5)]
    part = noise.words(3)
    noise.replay()
    again = [noise.laplace_integers(1e6, 5), noise.gaussian_integers(1e6, 10), noise.words(5)]
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    assert (noise.words(3) != part).any()  # of some queries, which may be others now
    assert (noise.words(5) != first[2]).any()  # a second time
    assert (noise.laplace_integers(2e6, 5) != first[0]).any()


@pytest.mark.parametrize("mechanism", [ExponentialMechanism(gamma=0.5), PermuteAndFlip(gamma=0.5)])
def test_repeated_noise_leaves_the_law_of_either_data_set(mechanism):
    """And makes them agree more often than two draws of their own."""
    counts = {"first": (4, 1), "second": (3, 2)}
    noise, labels = AuditNoise(num_queries=9_999, num_classes=2), {}
    for name, row in counts.items():
        table = np.tile(np.array(row), (9_999, 1))
        labels[name] = np.array(mechanism.draw(table, noise).labels)
        law = mechanism.outcome_probabilities(table[:1])[0, 0]
        right = int((labels[name] == 0).sum())
        assert stats.binomtest(right, 9_999, law).pvalue > 1e-6
        noise.replay()
    p, q = ((labels[name] == 0).mean() for name in counts)
    agree = (labels["first"] == labels["second"]).mean()
    assert agree > p * q + (1 - p) * (1 - q) + 0.05


@pytest.mark.parametrize("mechanism", RIGHT[-3:], ids=lambda one: one.summary())
def test_the_command_takes_the_fields_of_what_a_run_plans(mechanism):
    fields = [f"--{name}={value}" for name, value in mechanism.to_dict().items() if name != "name"]
    command = [sys.executable, "-m", "pate_tf.cli.main", "audit", "mechanism", mechanism.name]
    found = subprocess.run([*command, *fields, "--draws=20"], capture_output=True, text=True)
    assert found.returncode == 2 and "draws: expected at least" in found.stderr, found.stderr
