"""The audit of a mechanism: it passes correct mechanisms and catches wrong ones."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from script_processes import run_script
from toy_mechanisms import TOYS, ToyNoisyMax

from benchmarks import mechanism_audit
from benchmarks.mechanism_audit import audit_mechanism, epsilon_lower_bound
from pate_tf.accounting.conversions import gaussian_dp_epsilon
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianMoments,
    GaussianNoisyMax,
    GaussianResidualSums,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
)
from pate_tf.accounting.mechanisms.base import MECHANISMS, register
from pate_tf.audit.run_audit import PASSED, VIOLATION

DELTA = 1e-5
# Each has noise small enough that few draws have power.
RIGHT = [
    LaplaceNoisyMax(gamma=1.0),
    GaussianNoisyMax(sigma=2.0),
    GaussianHistogram(sigma=2.0),
    ConfidentGaussianNoisyMax(threshold=6.0, sigma_threshold=3.0, sigma=2.0),
    GaussianFeatureSums(sigma=2.0),
    GaussianMoments(sigma=2.0),
    GaussianResidualSums(sigma=4.0, num_rounds=3),
    LaplaceClusterCounts(scale=2.0, num_clusters=20),
    GaussianFeatureSums(sigma=1.0, unit="owner"),
    GaussianMoments(sigma=1.0, unit="owner"),
    LaplaceClusterCounts(scale=1.0, num_clusters=20, unit="owner"),
]


def audited(mechanism, num_draws=10_000):
    return audit_mechanism(mechanism, delta=DELTA, num_draws=num_draws)


@pytest.fixture(autouse=True)
def few_to_choose_by(monkeypatch):
    """Uses fewer draws to choose a pair of neighbors. A poorer choice causes no false alarm."""
    monkeypatch.setattr(mechanism_audit, "PILOT", 1_500)


@pytest.mark.parametrize("mechanism", RIGHT, ids=lambda mechanism: mechanism.name)
def test_a_right_mechanism_passes_with_a_bound_that_is_not_empty(mechanism):
    audit = audited(mechanism)
    assert audit.outcome == PASSED
    assert 0.2 * audit.claimed < audit.lower_bound <= audit.claimed


def test_every_mechanism_that_draws_is_among_those():
    drawn = {
        name
        for name, kind in MECHANISMS.items()
        if ("draw" not in kind.lacks or kind.releases_feature_sums)
    }
    tested = {mechanism.name for mechanism in RIGHT}
    assert drawn - {toy.name for toy in TOYS} == tested


@pytest.fixture
def registered():
    """Registers mechanisms for one test."""
    before = dict(MECHANISMS)
    yield register
    MECHANISMS.clear()
    MECHANISMS.update(before)


def test_what_is_registered_can_be_audited_and_half_its_noise_is_a_violation(
    registered, monkeypatch
):
    monkeypatch.setattr(mechanism_audit, "PILOT", 10_000)  # the audit must choose the correct pair
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
    assert audited(Half(epsilon=2.0), 200_000).outcome == VIOLATION

    @dataclasses.dataclass(frozen=True)
    class Forgets(GaussianNoisyMax):
        """Charges one query too few."""

        name = "toy_forgets"

        def number_charged(self, num_queries):
            return max(num_queries - 1, 0)

    registered(Forgets)
    assert audited(Forgets(sigma=2.0)).outcome == VIOLATION


def test_most_of_what_sums_cost_is_found():
    """At epsilon 1 and a delta that this many draws resolve, 60,000 draws find seven tenths of the
    claim.
    """
    shift = brentq(lambda shift: gaussian_dp_epsilon(shift, 1e-2) - 1.0, 0.1, 2.0)
    for mechanism in (
        GaussianFeatureSums(sigma=2.0 / shift),
        GaussianMoments(sigma=math.sqrt(2.0) / shift),
        GaussianResidualSums(sigma=4.0 / shift, num_rounds=4),
    ):
        audit = audit_mechanism(mechanism, delta=1e-2, num_draws=25_000)
        assert audit.outcome == PASSED
        assert 0.45 * audit.claimed <= audit.lower_bound <= audit.claimed


@pytest.mark.parametrize("wrong", ["charged as one round", "the last round has no noise"])
def test_rounds_that_cost_more_than_they_claim_are_a_violation(registered, wrong):
    @dataclasses.dataclass(frozen=True)
    class Wrong(GaussianResidualSums):
        """Draws four rounds with another noise than it charges."""

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
        (GaussianNoisyMax(sigma=2.0), {"num_draws": 10}, "num_draws must be"),
        ("gaussian", {}, "mechanism"),
    ],
)
def test_what_can_not_be_audited_is_one_line(mechanism, settings, words):
    with pytest.raises(ValueError, match=words) as raised:
        audit_mechanism(mechanism, **settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_a_bound_exceeds_the_truth_no_more_often_than_it_may(delta):
    """Uses probabilities exactly at epsilon 1, at a confidence of 80 %: at most 20 % of bounds may
    exceed it.
    """
    generator, number = np.random.default_rng(7), 2_000
    p, q = math.e * 0.1 + delta, 0.1
    x, y = generator.binomial(200, p, number), generator.binomial(200, q, number)
    bounds = epsilon_lower_bound(x, y, 200, delta=delta, confidence=0.8)
    exceeding = int((bounds > 1.0).sum())
    assert stats.binomtest(exceeding, number, 0.2, alternative="greater").pvalue > 1e-6
    assert exceeding  # the bound is not a constant


def test_a_bound_is_that_of_both_intervals():
    low = stats.beta.ppf(0.0005, 700, 9_301)
    high = stats.beta.isf(0.0005, 41, 9_960)
    bound = epsilon_lower_bound(700, 40, 10_000, delta=1e-3, confidence=0.999)
    assert bound == pytest.approx(math.log((low - 1e-3) / high), rel=1e-9)
    assert epsilon_lower_bound(50, 50, 100, delta=0.0, confidence=0.999) == 0.0
    edges = epsilon_lower_bound([0, 100, 100], [0, 100, 0], 100, delta=0.0, confidence=0.999)
    assert edges[:2].tolist() == [0.0, 0.0] and 2.0 < edges[2] < math.inf


@pytest.mark.parametrize("mechanism", [RIGHT[0], RIGHT[-1]], ids=lambda mechanism: mechanism.name)
def test_the_command_takes_flags_and_the_fields_of_what_a_run_plans(tmp_path, mechanism):
    fields = {name: value for name, value in mechanism.to_dict().items() if name != "name"}
    fields = {"lap_scale": 1.0} if "gamma" in fields else fields
    flags = [mechanism.name]
    flags += [f"--{name}={value}" for name, value in fields.items()]
    command = functools.partial(
        run_script, "benchmarks/mechanism_audit.py", *flags, folder=tmp_path
    )
    ended = command("--draws=2000")
    assert ended.code == 0, ended.err
    assert "PASSED" in ended.out and "2,000 draws" in ended.out
    few = command("--draws=20")
    assert few.code == 2 and "draws must be" in few.err, few.err
