"""When noisy counts are bought to be learnt from together: by public values alone."""

import pytest
from chosen_votes import PUBLIC

from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax
from pate_tf.accounting.target import Target
from pate_tf.noise import SystemNoise
from pate_tf.runs.student import joint_counts
from pate_tf.runs.student.target import JOINT, TargetRequest

POOL = PUBLIC.split(250).pool


def number(epsilon, num_teachers=2_000, pool_size=9_000, num_queries=None):
    return joint_counts.planned_number(
        Target(epsilon=epsilon, delta=1e-5, num_queries=1),
        num_teachers=num_teachers,
        num_classes=10,
        pool_size=pool_size,
        num_queries=num_queries,
    )


@pytest.mark.parametrize(("epsilon", "expected"), [(0.02, None), (0.1, 200), (1.0, 200)])
def test_twenty_of_each_class_are_asked_unless_noise_drowns_them(epsilon, expected):
    assert number(epsilon) == expected


def test_never_more_than_the_pool_has():
    assert number(1.0, pool_size=120) == 120


def test_few_teachers_are_drowned():
    assert number(0.1, num_teachers=250) is None


def test_a_number_that_somebody_asked_for_must_not_be_drowned_or_too_large_either():
    assert number(0.1, num_queries=100) == 100
    assert number(0.02, num_queries=200) is None
    assert number(8.0, num_queries=1_000) == 1_000
    assert number(8.0, num_queries=1_001) is None


def request(**changes):
    return TargetRequest(**{"target_epsilon": 0.1, "noise": SystemNoise(), **changes})


def planned(asked, joined=True):
    plan = asked.plan(num_teachers=2_000, unit="record", pool=POOL, delta=1e-5, joined=joined)
    return plan, asked.planned(plan)


def test_the_plan_buys_a_histogram_of_diverse_queries_and_says_why():
    plan, asked = planned(request())
    assert isinstance(asked.mechanism, GaussianHistogram)
    assert (asked.queries.strategy, asked.queries.num_queries) == ("diverse", 200)
    assert plan.target.epsilon_of(asked.mechanism) <= 0.1
    assert plan.is_num_queries_planned
    assert JOINT in asked.choice and JOINT in plan.sentences()
    assert plan.to_dict()["reason"] == asked.choice


def test_what_the_user_says_goes_first():
    _, asked = planned(request(num_queries=50))
    assert isinstance(asked.mechanism, GaussianHistogram) and asked.queries.num_queries == 50
    with pytest.raises(ValueError, match="target_epsilon: expected one that labels at least half"):
        planned(request(num_queries=200, target_epsilon=0.001))
    _, asked = planned(request(mechanism=GaussianNoisyMax))
    assert isinstance(asked.mechanism, GaussianNoisyMax) and JOINT not in asked.choice
    _, asked = planned(request(strategy="first"))
    assert asked.queries.strategy == "first" and JOINT not in asked.choice


def test_other_teachers_are_asked_as_before():
    _, asked = planned(request(), joined=False)
    assert asked.queries.strategy == "typical" and JOINT not in asked.choice
