"""Only public values decide whether noisy counts are released for joint learning."""

import types

import numpy as np
import pytest
from chosen_votes import PUBLIC, FakeEnsemble, plan_of, release_settings, table

from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, Mechanism
from pate_tf.planning.choose import ALL_COUNTS, joint_plan
from pate_tf.planning.comparison import PlanSettings
from pate_tf.planning.release_settings import PublicNumbers

POOL = PUBLIC.split(250).pool


def asked(epsilon, num_teachers=2_000, pool_size=9_000, num_queries=None, strategy=None):
    wishes = {"num_queries": num_queries, "strategy": strategy, "num_teachers": num_teachers}
    release = release_settings(epsilon=epsilon, delta=1e-5, **wishes)
    known = PublicNumbers(num_classes=10, pool_size=pool_size)
    actual = joint_plan(PlanSettings(known=known, release=release))
    if actual is None:
        return None
    facts = {"mechanism": actual.release.mechanism, "purpose": actual.purpose}
    queries = actual.release.queries
    facts |= {"num_queries": queries.num_queries, "strategy": queries.strategy}
    return types.SimpleNamespace(**facts)


def number(epsilon, **changes):
    """Returns a release of noisy counts only."""
    actual = asked(epsilon, **changes, strategy="diverse")
    assert actual is None or (actual.mechanism, actual.strategy) == (GaussianHistogram, "diverse")
    return None if actual is None else actual.num_queries


@pytest.mark.parametrize(("epsilon", "expected"), [(0.02, None), (0.1, 200), (1.0, 200)])
def test_twenty_of_each_class_are_asked_unless_noise_is_too_large(epsilon, expected):
    assert number(epsilon) == expected


def test_a_number_that_was_given_is_checked_too():
    assert number(0.1, num_queries=100) == 100
    assert asked(0.1, num_queries=60).num_queries == 60
    assert number(0.02, num_queries=200) is None
    assert number(8.0, num_queries=1_000) == 1_000
    assert number(8.0, num_queries=1_001) is None


def planned(epsilon=0.1, joined=True, **choices):
    """Returns the plan of 2,000 teachers whose counts allow joint learning."""
    teachers = FakeEnsemble(np.zeros((2_000, 250), int))
    facts = {"model": "ridge", "representation": "patches" if joined else None}
    teachers.config = types.SimpleNamespace(**facts)
    return plan_of(release_settings(epsilon=epsilon, **choices), teachers, POOL)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_plan_releases_what_is_learnt_from_together_and_says_why(epsilon):
    plan = planned(epsilon)
    assert isinstance(plan.mechanism, GaussianHistogram)
    assert (plan.queries.strategy, plan.queries.num_queries) == ("diverse", 200)
    spent, _ = plan.mechanism.data_independent_epsilon(num_queries=200, delta=1e-5)
    assert 0.999 * epsilon < spent <= epsilon
    assert ALL_COUNTS in plan.reason


@pytest.mark.parametrize(
    ("choices", "kind", "strategy", "is_together"),
    [
        ({"num_queries": 50}, GaussianHistogram, "diverse", True),
        ({"strategy": "diverse"}, GaussianHistogram, "diverse", True),
        ({"mechanism": GaussianNoisyMax}, GaussianNoisyMax, None, False),
        ({"strategy": "first"}, Mechanism, "first", False),
        ({"mechanism": GaussianHistogram, "epsilon": 1.0}, GaussianHistogram, "diverse", True),
        ({"mechanism": GaussianHistogram, "epsilon": 0.02}, GaussianHistogram, None, False),
        ({"joined": False}, Mechanism, "medoids", False),
    ],
)
def test_what_is_named_is_taken(choices, kind, strategy, is_together):
    plan = planned(**choices)
    assert isinstance(plan.mechanism, kind)
    assert strategy in (None, plan.queries.strategy)
    assert (ALL_COUNTS in plan.reason) is is_together
    if "num_queries" in choices:
        assert plan.queries.num_queries == choices["num_queries"]


def test_the_plan_reads_no_votes():
    teachers = [FakeEnsemble(votes) for votes in (table(100), np.zeros_like(table(100)))]
    plans = [plan_of(release_settings(epsilon=1.0), each, POOL) for each in teachers]
    assert plans[0] == plans[1]
    assert not any(each.asked for each in teachers)
