"""Noise as keyword-only arguments, the deltas that are refused, and the guarantees at delta 0."""

import math
import warnings
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_tf.accounting.composition import pure_epsilon, several_teachers_epsilon, smallest_epsilon
from pate_tf.accounting.conversions import DEFAULT_DELTA, check_delta, default_delta
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, SecureHistogram
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
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.planning.comparison import plan, planned_sums
from pate_tf.planning.release_settings import PublicNumbers

SCALES = st.floats(0.5, 500.0)
THRESHOLDS = {"threshold": SCALES, "sigma_threshold": SCALES, "sigma": SCALES}
PARTIES = {"num_parties": st.integers(4, 9), "threshold": st.just(1)}
CHARGES = st.one_of(
    st.builds(LaplaceNoisyMax, gamma=st.floats(1e-3, 2.0)),
    st.builds(LaplaceNoisyMax, scale=SCALES),
    *(st.builds(kind, sigma=SCALES) for kind in (GaussianNoisyMax, GaussianHistogram)),
    *(st.builds(kind, sigma=SCALES) for kind in (GaussianFeatureSums, GaussianMoments)),
    st.builds(GaussianResidualSums, sigma=SCALES, num_rounds=st.integers(1, 64)),
    st.builds(LaplaceClusterCounts, scale=SCALES, num_clusters=st.integers(1, 500)),
    st.builds(ConfidentGaussianNoisyMax, **THRESHOLDS),
    st.builds(RandomisedResponse, num_classes=st.integers(2, 9), epsilon=st.floats(0.1, 9.0)),
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


# The range of meaningful deltas.


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
    for wrong in (1.001 / num_records, -1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^delta(: expected| must be)") as refused:
            check_delta(wrong, num_records)
        assert "\n" not in str(refused.value)


def test_an_unknown_number_is_warned_of_by_a_fixed_bound():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for delta in (0.0, DEFAULT_DELTA):
            check_delta(delta, None, "owner")
    with pytest.warns(UserWarning, match="number of owners, which is unknown here"):
        check_delta(2.0 * DEFAULT_DELTA, None, "owner")


# The case delta = 0.


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


def test_plans_at_delta_0_are_of_pure_mechanisms():
    planned = plan(2.0, num_teachers=250, num_classes=10, delta=0.0)
    assert {type(one.mechanism) for one in planned.candidates} == {LaplaceNoisyMax}
    for candidate in planned.candidates:
        assert planned.num_queries * candidate.mechanism.pure_epsilon <= 2.0
        assert candidate.epsilon == pytest.approx(2.0, rel=1e-6)
    for kind in (GaussianNoisyMax, GaussianHistogram, ConfidentGaussianNoisyMax):
        with pytest.raises(ValueError, match=r"delta(: expected| must be) above 0 for "):
            plan(2.0, num_teachers=9, num_classes=3, delta=0.0, mechanism=kind)


def test_sums_at_delta_0_are_counts_in_clusters():
    target = Target(epsilon=1.0, delta=0.0, num_queries=1)
    with pytest.raises(ValueError, match="unit must be one of record, owner"):
        Target(epsilon=1.0, delta=0.0, unit="person")
    counts = planned_sums(target, PublicNumbers(num_records=60_000), [10, 50]).mechanism
    assert counts == LaplaceClusterCounts(scale=counts.scale, num_clusters=50)
    assert 0.999 < counts.pure_epsilon <= 1.0
    for number, clusters in ((60_000, []), (None, [10])):
        with pytest.raises(ValueError, match="_sums, which has no guarantee at delta 0"):
            planned_sums(target, PublicNumbers(num_records=number), clusters, has_rounds=True)
