"""When noisy counts are bought to be learnt from together: by public values alone."""

import pytest
from chosen_votes import PUBLIC

from pate_tf.accounting.mechanisms import (
    GaussianHistogram,
    GaussianNoisyMax,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.target import Target
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.api import planned_labels
from pate_tf.api.planned_labels import TOGETHER, TargetRequest

POOL = PUBLIC.split(250).pool


def asked(epsilon, num_teachers=2_000, pool_size=9_000, num_queries=None, strategy=None):
    return planned_labels.joint_plan(
        Target(epsilon=epsilon, delta=1e-5, num_queries=1),
        num_teachers=num_teachers,
        num_classes=10,
        pool_size=pool_size,
        num_queries=num_queries,
        strategy=strategy,
    )


def number(epsilon, **changes):
    """Of noisy counts alone."""
    found = asked(epsilon, **changes, strategy="diverse")
    assert found is None or (found.mechanism, found.strategy) == (GaussianHistogram, "diverse")
    return None if found is None else found.num_queries


@pytest.mark.parametrize(("epsilon", "expected"), [(0.02, None), (0.1, 200), (1.0, 200)])
def test_twenty_of_each_class_are_asked_unless_noise_drowns_them(epsilon, expected):
    assert number(epsilon) == expected


@pytest.mark.parametrize(
    ("epsilon", "num_teachers", "is_gated"),
    [
        (0.1, 2_000, True),
        (0.25, 2_000, False),  # counts tell as much
        (0.25, 1_000, True),
        (0.1, 4_000, True),
        (0.1, 10_000, False),
        (1.0, 250, True),
    ],
)
def test_where_noise_is_heavy_labels_without_it_have_a_chance_first(
    epsilon, num_teachers, is_gated
):
    found = asked(epsilon, num_teachers)
    if is_gated:
        assert (found.mechanism, found.num_queries) == (StabilityGateOrHistogram, 100)
        assert found.strategy == "medoids" and "leave without noise if" in found.purpose
    else:
        assert (found.mechanism, found.num_queries) == (GaussianHistogram, 200)
        assert found.strategy == "diverse" and "without noise" not in found.purpose
    assert planned_labels.TOGETHER in found.purpose


def test_too_few_teachers_for_labels_without_noise_are_too_few_for_counts_of_diverse_queries():
    assert asked(0.05) is None
    assert asked(0.05, num_queries=100).mechanism is GaussianHistogram


def test_a_strategy_that_somebody_named_decides():
    assert asked(0.1, strategy="medoids").mechanism is StabilityGateOrHistogram
    assert asked(0.25, strategy="medoids") is None
    assert asked(0.1, strategy="first") is None


def test_never_more_than_the_pool_has():
    assert number(1.0, pool_size=120) == 120


def test_very_many_classes_are_asked_about_as_often_as_can_be_learnt_from():
    found = planned_labels.joint_plan(
        Target(epsilon=8.0, delta=1e-5, num_queries=1),
        num_teachers=2_000,
        num_classes=80,
        pool_size=9_000,
    )
    assert found.num_queries == 1_000


def test_few_teachers_are_drowned():
    assert number(0.1, num_teachers=250) is None


def test_a_number_that_somebody_asked_for_must_not_be_drowned_or_too_large_either():
    assert number(0.1, num_queries=100) == 100
    assert asked(0.1, num_queries=60).num_queries == 60
    assert number(0.02, num_queries=200) is None
    assert number(8.0, num_queries=1_000) == 1_000
    assert number(8.0, num_queries=1_001) is None


def request(**changes):
    return TargetRequest(**{"target_epsilon": 0.1, "noise": SystemNoise(), **changes})


def planned(asked, joined=True):
    plan = asked.plan(num_teachers=2_000, unit="record", pool=POOL, delta=1e-5, joined=joined)
    return plan, asked.planned(plan)


@pytest.mark.parametrize(
    ("epsilon", "kind", "strategy", "num_queries"),
    [(0.1, StabilityGateOrHistogram, "medoids", 100), (1.0, GaussianHistogram, "diverse", 200)],
)
def test_the_plan_buys_what_is_learnt_from_together_and_says_why(
    epsilon, kind, strategy, num_queries
):
    plan, asked = planned(request(target_epsilon=epsilon))
    assert isinstance(asked.mechanism, kind)
    assert (asked.queries.strategy, asked.queries.num_queries) == (strategy, num_queries)
    assert 0.999 * epsilon < plan.target.epsilon_of(asked.mechanism) <= epsilon
    assert plan.is_num_queries_planned
    assert TOGETHER in asked.choice and plan.purpose in plan.sentences()
    assert plan.to_dict()["reason"] == asked.choice
    # What to type leads to the same queries, and to the same plan.
    if kind is GaussianHistogram:
        assert "--query_strategy=diverse" in plan.flags
        assert "--mechanism=gaussian_histogram" in plan.flags
    if kind is StabilityGateOrHistogram:
        assert "--target_epsilon=0.1" in plan.flags and "--queries=100" in plan.flags
        assert not any(one.startswith("--mechanism") for one in plan.flags)
        assert planned(request(num_queries=100))[1].mechanism == asked.mechanism


def test_what_the_user_says_goes_first():
    _, asked = planned(request(num_queries=50))
    assert isinstance(asked.mechanism, StabilityGateOrHistogram)
    assert asked.queries.num_queries == asked.mechanism.most_queries == 50
    _, asked = planned(request(strategy="diverse"))
    assert isinstance(asked.mechanism, GaussianHistogram)
    assert asked.queries.strategy == "diverse"
    with pytest.raises(ValueError, match="target_epsilon: expected one that labels at least half"):
        planned(request(num_queries=200, target_epsilon=0.001))
    _, asked = planned(request(mechanism=GaussianNoisyMax))
    assert isinstance(asked.mechanism, GaussianNoisyMax) and TOGETHER not in asked.choice
    _, asked = planned(request(strategy="first"))
    assert asked.queries.strategy == "first" and TOGETHER not in asked.choice


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_counts_by_name_are_many_and_of_diverse_inputs_at_every_epsilon(epsilon):
    plan, asked = planned(request(mechanism=GaussianHistogram, target_epsilon=epsilon))
    assert isinstance(asked.mechanism, GaussianHistogram)
    assert (asked.queries.strategy, asked.queries.num_queries) == ("diverse", 200)
    assert plan.is_num_queries_planned and TOGETHER in asked.choice
    _, typical = planned(request(mechanism=GaussianHistogram, strategy="medoids"))
    assert typical.queries.strategy == "medoids" and TOGETHER not in typical.choice


def test_counts_by_name_that_noise_would_drown_are_few():
    plan, asked = planned(request(mechanism=GaussianHistogram, target_epsilon=0.02))
    assert plan.target.num_queries < 200 and TOGETHER not in asked.choice


def test_other_teachers_are_asked_as_before():
    _, asked = planned(request(), joined=False)
    assert asked.queries.strategy == "medoids" and TOGETHER not in asked.choice
