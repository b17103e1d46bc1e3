"""When noisy counts are bought to be learnt from together, and when a gate is tried before."""

import pytest
from chosen_votes import PUBLIC

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms import GaussianHistogram, GaussianNoisyMax, StabilityGate
from pate_tf.accounting.target import Target
from pate_tf.noise import SystemNoise
from pate_tf.runs.student import gate_first, joint_counts
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


def planned(asked, joined=True, num_teachers=2_000):
    plan = asked.plan(
        num_teachers=num_teachers, unit="record", pool=POOL, delta=1e-5, joined=joined
    )
    return plan, asked.planned(plan)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_a_gate_is_tried_for_a_part_and_the_rest_would_buy_a_histogram(epsilon):
    plan, asked = planned(request(target_epsilon=epsilon))
    assert isinstance(asked.mechanism, StabilityGate)
    assert (asked.queries.strategy, asked.queries.num_queries) == ("typical", 50)
    assert asked.mechanism.epsilon < 0.2 * epsilon and asked.mechanism.epsilon < 0.06
    then = asked.otherwise
    assert isinstance(then.mechanism, GaussianHistogram) and then.otherwise is None
    number = then.queries.num_queries
    assert then.queries.strategy == "diverse" and number == 200
    both, _ = smallest_epsilon({asked.mechanism: 1, then.mechanism: number}, 1e-5)
    assert 0.99 * epsilon < both <= epsilon
    assert plan.is_num_queries_planned and plan.otherwise.is_num_queries_planned
    assert f"epsilon {epsilon:g} is tried first" in asked.choice
    assert JOINT in then.choice and "stayed shut" in then.choice
    assert plan.to_dict()["reason"] == asked.choice
    assert plan.to_dict()["otherwise"]["reason"] == then.choice
    assert "If no label leaves: gaussian_histogram" in plan.in_words()


def test_a_gate_opens_where_a_quarter_of_the_teachers_lead():
    epsilon = gate_first.gate_epsilon(1.0, num_teachers=2_000, delta=1e-5)
    gate = StabilityGate(epsilon=epsilon, delta=1e-5 / 3)
    assert gate.pass_probability(250) >= 0.99 > gate.pass_probability(249)
    assert gate_first.gate_epsilon(0.25, num_teachers=2_000, delta=1e-5) is None


def test_a_small_budget_buys_a_histogram_of_diverse_queries_and_says_why():
    plan, asked = planned(request())
    assert isinstance(asked.mechanism, GaussianHistogram)
    assert asked.otherwise is None and plan.otherwise is None
    assert (asked.queries.strategy, asked.queries.num_queries) == ("diverse", 200)
    assert plan.target.epsilon_of(asked.mechanism) <= 0.1
    assert JOINT in asked.choice and JOINT in plan.sentences()


def test_owners_get_a_gate_with_a_smaller_delta_and_the_rest_of_it():
    plan = request(target_epsilon=1.0).plan(
        num_teachers=2_000, unit="owner", pool=POOL, delta=1e-5, joined=True
    )
    both, _ = smallest_epsilon(
        {plan.mechanism: 1, plan.otherwise.mechanism: plan.otherwise.num_queries}, 1e-5
    )
    assert both <= 1.0


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
