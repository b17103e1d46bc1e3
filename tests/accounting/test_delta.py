"""Noise by keyword alone; which deltas are refused; what holds at delta 0."""

import itertools
import math
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import pure_epsilon, smallest_epsilon
from pate_tf.accounting.delta import DEFAULT_DELTA, check_delta, default_delta, is_delta_large
from pate_tf.accounting.group_privacy import several_teachers_epsilon
from pate_tf.accounting.local import (
    RandomisedResponse,
    SecureFeatureSums,
    SecureHistogram,
    TruncatedGeometric,
)
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
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.noisy_training import NoisyTraining, SparseVectorTraining
from pate_tf.accounting.planning import least_noise, planned_sums, recommend
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError
from pate_tf.run.planning import PlanSettings

SCALES = st.floats(0.5, 500.0)
THRESHOLDS = {"threshold": SCALES, "sigma_threshold": SCALES, "sigma": SCALES}
PARTIES = {"num_parties": st.integers(4, 9), "threshold": st.just(1)}
PURE = [LaplaceNoisyMax, PermuteAndFlip, ExponentialMechanism]
LOCAL = [RandomisedResponse, TruncatedGeometric]
CHARGES = st.one_of(
    *(st.builds(kind, gamma=st.floats(1e-3, 2.0)) for kind in PURE),
    *(st.builds(kind, scale=SCALES) for kind in PURE),
    *(st.builds(kind, sigma=SCALES) for kind in (GaussianNoisyMax, GaussianHistogram)),
    st.builds(GaussianFeatureSums, sigma=SCALES),
    st.builds(GaussianResidualSums, sigma=SCALES, num_rounds=st.integers(1, 64)),
    st.builds(LaplaceClusterCounts, scale=SCALES, num_clusters=st.integers(1, 500)),
    st.builds(ConfidentGaussianNoisyMax, **THRESHOLDS),
    st.builds(InteractiveGaussianNoisyMax, **THRESHOLDS, label_share=st.floats(0.1, 1.0)),
    *(
        st.builds(kind, num_classes=st.integers(2, 9), epsilon=st.floats(0.1, 9.0))
        for kind in LOCAL
    ),
    st.builds(SecureHistogram, sigma=SCALES, **PARTIES),
    st.builds(
        SecureFeatureSums,
        sigma=SCALES,
        num_features=st.integers(1, 99),
        least_silos=st.integers(2, 9),
        colluding=st.just(1),
        **PARTIES,
    ),
)


@given(CHARGES)
def test_numbers_have_names_and_records_keep_theirs(charge):
    fields = {name: value for name, value in charge.to_dict().items() if name != "name"}
    with pytest.raises(TypeError, match=f"^{type(charge).__name__}: expected keywords .*="):
        type(charge)(*fields.values())
    assert type(charge)(**fields) == charge == charge_from_dict(charge.to_dict())


@pytest.mark.parametrize("kind", PURE)
def test_a_scale_is_the_inverse_of_gamma(kind):
    assert kind(scale=20.0) == kind(gamma=0.05) == kind.of_scale(20.0)
    assert kind(scale=20.0).to_dict() == {"name": kind.name, "gamma": 0.05}
    for wrong in ({}, {"gamma": 0.05, "scale": 20.0}, {"scale": 0.0}, {"gamma": -1.0}):
        with pytest.raises(ValueError, match=r"gamma|scale"):
            kind(**wrong)


# Which deltas mean something.


@given(st.integers(1, 10**12))
def test_the_default_is_a_tenth_of_the_largest_or_less(num_records):
    delta = default_delta(num_records)
    assert 0.0 < delta * num_records <= 0.1 * (1 + 1e-12) and delta <= DEFAULT_DELTA
    assert delta == DEFAULT_DELTA or delta * num_records > 0.01 * (1 - 1e-12)
    check_delta(delta, num_records)


@pytest.mark.parametrize("num_records", [1, 7, 600, 60_000])
def test_delta_is_at_most_one_over_the_records(num_records):
    if num_records > 1:
        check_delta(1.0 / num_records, num_records)
    assert is_delta_large(1.001 / num_records, num_records)
    for wrong in (1.001 / num_records, -1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^delta: expected") as refused:
            check_delta(wrong, num_records)
        assert "\n" not in str(refused.value)


def test_an_unknown_number_is_warned_of_by_a_fixed_bound():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for delta in (0.0, DEFAULT_DELTA):
            check_delta(delta, None, "owner")
    with pytest.warns(UserWarning, match="number of owners, which is not known here"):
        check_delta(2.0 * DEFAULT_DELTA, None, "owner")


def test_a_plan_knows_its_records():
    asked = {"epsilon": 1.0, "num_teachers": 60}
    with pytest.raises(
        ValueError, match=r"^delta: expected at most one over the number of records"
    ):
        PlanSettings(**asked, delta=0.9, num_records=600)
    assert PlanSettings(**asked, num_records=60_000).delta == 1e-6
    with pytest.warns(UserWarning, match="number of owners, which is not known"):
        PlanSettings(**asked, delta=0.9, unit="owner")


# Delta 0.


@given(st.lists(st.tuples(st.sampled_from(LOCAL), st.sampled_from([2, 3]), SCALES), max_size=4))
@settings(max_examples=50, deadline=None)
def test_at_delta_0_epsilons_add_up(answers):
    """By all sequences of answers to the two sequences of votes that are easiest to tell apart."""
    charges = [kind(num_classes=k, epsilon=min(e / 50.0, 8.0)) for kind, k, e in answers]
    laws = [(charge.channel()[0], charge.channel()[-1]) for charge in charges]
    largest = 0.0
    for outcome in itertools.product(*(range(len(here)) for here, _ in laws)):
        here, there = np.ones(2)
        for (first, last), place in zip(laws, outcome, strict=True):
            here, there = here * first[place], there * last[place]
        largest = max(largest, abs(math.log(here / there)))
    spent, moment = smallest_epsilon(Counter(charges), 0.0)
    assert moment is None and spent == pure_epsilon(Counter(charges))
    assert spent == pytest.approx(largest, abs=1e-9)


@pytest.mark.parametrize("kind", PURE)
def test_labels_tell_no_more_than_their_pure_epsilon(kind):
    """Of three teachers, three classes and two queries, at all neighbouring counts."""
    mechanism = kind(scale=1.5)
    counts = np.array([row for row in itertools.product(range(4), repeat=3) if sum(row) == 3])
    laws = np.log(mechanism.outcome_probabilities(counts))
    apart = np.abs(counts[:, None] - counts[None]).sum(axis=2) == 2
    one = np.abs(laws[:, None] - laws[None])[apart].max()
    spent, _ = smallest_epsilon({mechanism: 2}, 0.0)
    assert 2 * one <= spent * (1 + 1e-9) and spent == pytest.approx(4 / 1.5)


@given(st.lists(st.tuples(CHARGES, st.integers(1, 50)), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_delta_0_is_never_cheaper_and_fails_to_the_safe_side(charged):
    charges = Counter()
    for charge, number in charged:
        charges[charge] += number
    spent, _ = smallest_epsilon(charges, 0.0)
    assert spent >= smallest_epsilon(charges, 1e-9)[0] * (1 - 1e-9)
    if any(charge.pure_epsilon is None for charge in charges):
        assert spent == math.inf
    assert several_teachers_epsilon(charges, delta=0.0) >= 2.0 * spent
    for charge, number in charges.items():
        assert charge.composed_epsilon(number, delta=0.0) >= pure_epsilon({charge: number})


def test_training_at_delta_0():
    noisy = NoisyTraining(sampling_rate=0.1, noise_multiplier=2.0, rounds=5)
    assert noisy.epsilon(0.0) == math.inf
    sparse = SparseVectorTraining(epsilon_each=0.1, num_uploaded=3, rounds=2)
    assert sparse.epsilon(0.0) == sparse.pure_epsilon == pytest.approx(0.6)


def test_plans_at_delta_0_are_of_pure_mechanisms():
    plan = recommend(target_epsilon=2.0, num_teachers=250, num_classes=10, delta=0.0)
    assert {type(one.mechanism) for one in plan.candidates} == set(PURE)
    for candidate in plan.candidates:
        assert plan.num_queries * candidate.mechanism.pure_epsilon <= 2.0
        assert candidate.epsilon == pytest.approx(2.0, rel=1e-6)
    for kind in (GaussianNoisyMax, GaussianHistogram, ConfidentGaussianNoisyMax, StabilityGate):
        with pytest.raises(ValueError, match=r"delta: expected above 0 for .*, got 0"):
            recommend(target_epsilon=2.0, num_teachers=9, num_classes=3, delta=0.0, mechanism=kind)
    with pytest.raises(ValueError, match="gaussian_noisy_max, which has no guarantee at delta 0"):
        least_noise(GaussianNoisyMax, num_queries=1, epsilon=1.0, delta=0.0)


def test_sums_at_delta_0_are_counts_in_clusters():
    target = Target(epsilon=1.0, delta=0.0, num_queries=1)
    counts = planned_sums(target, 60_000, 10, [10, 50])
    assert counts == LaplaceClusterCounts(scale=counts.scale, num_clusters=50)
    assert 0.999 < counts.pure_epsilon <= 1.0
    for number, clusters, rounds in ((60_000, [], None), (None, [10], 1), (60_000, [10], 4)):
        with pytest.raises(ValueError, match="_sums, which has no guarantee at delta 0"):
            planned_sums(target, number, 10, clusters, rounds)


def test_a_ledger_at_delta_0_adds_up(tmp_path):
    laplace, flip = LaplaceNoisyMax(gamma=1 / 16), PermuteAndFlip(gamma=1 / 8)
    where = {"ensemble_digest": "ab" * 32, "delta": 0.0, "epsilon_budget": 1.0}
    with Ledger.open(tmp_path, **where) as ledger, ledger.exclusive():
        assert ledger.affordable(laplace) == 8 and ledger.affordable(flip) == 4
        queries = [bytes([place] * 32) for place in range(6)]
        ledger.debit(laplace, queries, secure_noise=True)
        assert (ledger.spent().epsilon, ledger.spent().delta) == (0.75, 0.0)
        with pytest.raises(BudgetExceeded, match="at most 1 new queries of permute_and_flip"):
            ledger.check_affordable(flip, 3)
        with pytest.raises(LedgerError, match="finite guarantee at delta 0"):
            ledger.check_affordable(GaussianNoisyMax(sigma=40.0), 1)
    with Ledger.open(tmp_path, **where) as again:
        assert again.spent().epsilon == 0.75
