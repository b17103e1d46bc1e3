"""All mechanisms within one budget: none costs more, and right labels are as many as simulated."""

import dataclasses
import functools
import itertools
import json
import math

import numpy as np
import pytest
from toy_mechanisms import ToyHistogram, ToyNoisyMax

from pate_tf.accounting import mechanisms
from pate_tf.accounting.group_privacy import replaced_owner_epsilon, several_teachers_epsilon
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    StabilityGate,
    base,
    register,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.mechanisms.stability_gate import stability_distances
from pate_tf.accounting.planning import (
    AssumedVotes,
    largest_batch,
    outlook,
    planned_num_queries,
    recommend,
)
from pate_tf.release.noise import SeededNoise

# How many labels of one that uses a student are right is not known beforehand.
OFFERED = [one for one in base.offered().values() if not one.uses_student_predictions]
SMALL = {"num_teachers": 60, "num_classes": 4, "num_queries": 20}


@functools.cache
def plan(**changes):
    return recommend(**{"target_epsilon": 1.0, **SMALL, **changes})


@pytest.mark.parametrize(
    "protected",
    [
        {"unit": "record", "num_changed_teachers": 1},
        {"unit": "owner", "num_changed_teachers": 1},
        {"unit": "owner", "num_changed_teachers": 2},
    ],
    ids=lambda given: f"{given['unit']}-{given['num_changed_teachers']}",
)
def test_no_candidate_costs_more_than_the_target(protected):
    found = plan(**protected, num_exceptions=2 * (protected["unit"] == "owner"))
    assert {type(one.mechanism) for one in found.candidates} == set(OFFERED)
    for one in found.candidates:
        charges = {one.mechanism: one.mechanism.number_charged(SMALL["num_queries"])}
        if protected["num_changed_teachers"] > 1:
            spent = several_teachers_epsilon(
                charges, delta=1e-5, num_teachers=protected["num_changed_teachers"]
            )
        else:
            spent, _ = one.mechanism.data_independent_epsilon(
                num_queries=SMALL["num_queries"], delta=1e-5
            )
        assert 0.9 < spent <= 1.0, one
        assert one.epsilon == spent
        if protected["unit"] == "owner":
            assert math.isfinite(replaced_owner_epsilon(charges, 1e-5))


def typed(flags) -> mechanisms.Mechanism:
    """What somebody gets who types the flags: read here on its own."""
    given = dict(flag.removeprefix("--").split("=") for flag in flags)
    kind = base.offered()[given["mechanism"]]
    fields = {}
    for parameter in kind.parameters:
        flag = parameter.flag
        said = given.get(flag.name, given["delta"] if flag.same_as else flag.default)
        fields[parameter.field] = flag.to_field(float(said))
    return kind(**fields)


@pytest.mark.parametrize("kind", OFFERED)
def test_what_is_typed_off_the_screen_keeps_to_the_target(kind):
    found = plan(mechanism=kind, num_exceptions=1)
    assert [type(one.mechanism) for one in found.candidates] == [kind]
    assert found.target.epsilon_of(typed(found.flags)) <= 1.0
    assert {"--nb_teachers=60", "--queries=20", "--delta=1e-05"} <= set(found.flags)
    assert " ".join(found.flags) in str(found)


def simulated(mechanism, counts, *, repetitions: int) -> tuple[float, float]:
    """Mean number of labels of class 0 that leave a batch, by drawing, and its standard error."""
    noise = SeededNoise(7)
    right = [
        sum(label == 0 for label in mechanism.draw(counts, noise).labels)
        for _ in range(repetitions)
    ]
    return float(np.mean(right)), float(np.std(right)) / repetitions**0.5


@pytest.mark.parametrize("kind", [one for one in OFFERED if one is not StabilityGate])
def test_expected_right_labels_are_those_of_a_simulation(kind):
    assumed = AssumedVotes(num_teachers=60, num_classes=4, margin=0.3, num_exceptions=5)
    counts = assumed.counts(20)
    planned = kind.for_target(Target(epsilon=3.0, delta=1e-5, num_queries=20), counts)
    mean, error = simulated(planned, counts, repetitions=60)
    assert 0.01 < error < 0.6
    assert abs(planned.expected_right(counts) - mean) < 5.0 * error


@pytest.mark.parametrize("num_withheld", [0, 3])
def test_expected_right_labels_of_a_gate_are_those_of_a_simulation(num_withheld):
    assumed = AssumedVotes(
        num_teachers=61, num_classes=4, margin=0.4, num_exceptions=num_withheld and 2
    )
    counts = assumed.counts(9)
    gate = StabilityGate(
        epsilon=0.75,
        delta=1e-4,
        num_withheld=num_withheld,
        selection_epsilon=0.6 * bool(num_withheld),
    )
    mean, error = simulated(gate, counts, repetitions=3000)
    assert error > 0.02 and 0.5 < mean < 8.5
    assert abs(gate.expected_right(counts) - mean) < 5.0 * error


def test_expected_right_labels_of_a_tolerant_gate_by_enumerating_all_sets():
    counts = np.array([[5, 4, 0], [4, 5, 0], [9, 0, 0], [7, 1, 1], [1, 8, 0], [8, 1, 0]])
    distances, growth = stability_distances(counts), math.exp(0.7 / 2)
    gate = StabilityGate(epsilon=1.5, delta=0.01, num_withheld=2, selection_epsilon=0.7)
    kept = list(itertools.combinations(range(6), 4))
    weights = [growth ** min(distances[list(one)]) for one in kept]
    expected = sum(
        weight
        * gate.pass_probability(int(min(distances[list(one)])))
        * sum(counts[query].argmax() == 0 for query in one)
        for weight, one in zip(weights, kept, strict=True)
    )
    assert gate.expected_right(counts) == pytest.approx(expected / sum(weights), rel=1e-9)


def test_the_gate_takes_all_of_epsilon_a_third_of_delta_and_withholds_what_is_assumed_divided():
    assert plan(mechanism="stability_gate").mechanism == StabilityGate(
        epsilon=1.0, delta=1e-5 * (1 / 3)
    )
    tolerant = plan(mechanism="stability_gate", num_exceptions=3, target_epsilon=4.0).mechanism
    assert tolerant.num_withheld == 3
    assert 3.9999 < tolerant.epsilon + tolerant.selection_epsilon <= 4.0
    # Another split lets out no more.
    counts = AssumedVotes(num_teachers=60, num_classes=4, num_exceptions=3).counts(20)
    best = tolerant.expected_right(counts)
    for share in (0.1, 0.5, 0.9):
        other = StabilityGate(
            epsilon=4.0 * (1 - share),
            delta=1e-5 * (1 / 3),
            num_withheld=3,
            selection_epsilon=4.0 * share,
        )
        assert other.expected_right(counts) <= best + 1e-9


def test_most_right_labels_win_and_equally_good_ones_are_ranked_in_the_worst_case():
    found = plan(target_epsilon=4.0)
    sure = [one for one in found.candidates if not one.mechanism.charged_per_batch]
    sure = [one for one in sure if one.expected_right >= 0.95 * 20]
    most = max(one.mean_right for one in sure)
    best = [one for one in sure if one.mean_right >= most - 0.1]
    assert list(found.candidates[: len(best)]) == best
    worst = [one.outlooks[-1].expected_right for one in best]
    assert worst == sorted(worst, reverse=True)
    rest = [one.mean_right for one in found.candidates[len(best) :]]
    assert rest == sorted(rest, reverse=True)


@pytest.mark.parametrize(("epsilon", "num_teachers"), [(2.0, 20), (3.0, 40), (8.0, 20)])
def test_a_gate_that_stayed_shut_in_a_try_is_not_recommended(epsilon, num_teachers):
    found = recommend(
        target_epsilon=epsilon,
        num_teachers=num_teachers,
        num_classes=10,
    )
    assert not found.mechanism.charged_per_batch
    assert found.candidates[0].outlooks[-1].expected_labels == found.num_queries


def test_a_gate_is_recommended_where_it_opens_in_the_worst_case_and_nothing_else_is_right():
    found = recommend(target_epsilon=0.25, num_teachers=1000, num_classes=10, num_queries=500)
    assert found.mechanism == StabilityGate(epsilon=0.25, delta=1e-5 * (1 / 3))
    assert found.candidates[0].outlooks[-1].expected_labels > 0.95 * 500
    assert max(one.expected_right for one in found.candidates[1:]) < 0.95 * 500
    many = recommend(target_epsilon=0.1, num_teachers=2000, num_classes=10)
    assert not many.mechanism.charged_per_batch
    gates = [one for one in many.candidates if one.mechanism.charged_per_batch]
    assert gates[0].expected_right >= many.candidates[0].expected_right
    assert many.num_queries == 50 and many.is_num_queries_planned
    assert many.expected_share > 0.99


@pytest.mark.parametrize("kind", OFFERED)
def test_labels_that_arrive_are_those_of_a_simulation(kind):
    assumed = AssumedVotes(num_teachers=60, num_classes=4, margin=0.3, num_exceptions=5)
    target = Target(epsilon=6.0, delta=1e-5, num_queries=20)
    planned = kind.for_target(target, assumed.counts(20))
    noise, repetitions = SeededNoise(11), 200 if kind is StabilityGate else 60
    labelled = [
        sum(label is not None for label in planned.draw(assumed.counts(20), noise).labels)
        for _ in range(repetitions)
    ]
    error = max(float(np.std(labelled)) / repetitions**0.5, 0.01)
    found = outlook(planned, assumed, 20)
    assert abs(found.expected_labels - np.mean(labelled)) < 5.0 * error
    assert found.expected_right <= found.expected_labels <= 20.0


def test_a_large_budget_buys_more_labels_than_a_batch_has():
    found = recommend(target_epsilon=8.0, num_teachers=2000, num_classes=10)
    assert found.num_queries == 1000
    assert not found.mechanism.charged_per_batch


def test_queries_chosen_by_earlier_labels_leave_the_gate_out():
    found = plan(adaptive=True)
    assert StabilityGate not in {type(one.mechanism) for one in found.candidates}
    with pytest.raises(ValueError, match=r"fixed beforehand"):
        plan(adaptive=True, mechanism=StabilityGate)


def test_the_text_says_that_it_assumes_and_from_what():
    found = plan()
    text = " ".join(str(found).split())
    assert "Assumed, not measured: on every query the right class leads every other by 80 %" in text
    assert "epsilon holds whatever the votes" in text
    assert "chosen from a plan, not from votes" in found.reason
    assert "right class leads every other by 80 % of 60 teachers" in found.reason
    weak = plan(target_epsilon=0.01, mechanism="gaussian_histogram")
    assert "No mechanism labels nine in ten queries right" in " ".join(str(weak).split())
    assert "against replacing one owner by another" in str(
        plan(unit="owner", num_changed_teachers=2, mechanism="stability_gate")
    )
    assert str(found).replace("<", "&lt;") in found._repr_html_().replace("&gt;", ">")


def test_a_report_is_json_with_every_candidate():
    found = plan()
    kept = json.loads(json.dumps(found.to_dict()))
    assert kept["target_epsilon"] == 1.0 and kept["queries"] == 20
    assert len(kept["candidates"]) == len(OFFERED)
    assert kept["candidates"][0]["mechanism"] == found.mechanism.to_dict()
    assert kept["flags"] == list(found.flags)


def test_no_shown_epsilon_is_above_the_target():
    for epsilon in (0.1, 0.25, 1 / 3):
        for name in ("stability_gate", "gaussian_histogram", "exponential_mechanism"):
            line = str(plan(target_epsilon=epsilon, mechanism=name)).splitlines()[5]
            assert 0.99 * epsilon < float(line.split()[1]) <= epsilon * (1 + 1e-11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_epsilon": 0.0}, "epsilon: expected above 0"),
        ({"target_epsilon": math.inf}, "epsilon: expected above 0"),
        ({"target_epsilon": math.nan}, "epsilon: expected above 0"),
        ({"delta": 1.0}, "delta: expected in"),
        ({"num_queries": 0}, "num_queries: expected a whole number of at least 1"),
        ({"pool_size": 19}, "from 1 to the pool's 19, got 20"),
        ({"num_teachers": 0}, "num_teachers: expected a whole number of at least 1"),
        ({"num_classes": 1}, "num_classes: expected a whole number of at least 2"),
        ({"margin": 0.0}, "margin: expected in"),
        ({"margin": 1.5}, "margin: expected in"),
        ({"num_exceptions": -1}, "num_exceptions: expected a whole number of at least 0"),
        ({"num_exceptions": 21}, "num_exceptions: expected at most the 20 queries"),
        ({"unit": "person"}, "unit: expected one of record, owner"),
        (
            {"num_changed_teachers": 0},
            "num_changed_teachers: expected a whole number of at least 1",
        ),
        ({"mechanism": "plurality"}, "mechanism: expected one of"),
    ],
)
def test_what_is_wrong_is_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        plan(**changes)
    assert "\n" not in str(refusal.value)


def test_a_mechanism_of_ones_own_is_compared_and_one_without_a_law_is_left_out(monkeypatch):
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))
    register(ToyNoisyMax)
    register(ToyHistogram)
    found = recommend(target_epsilon=1.0, **SMALL)
    kinds = {type(one.mechanism) for one in found.candidates}
    assert kinds == set(OFFERED)  # neither has an outcome law
    with pytest.raises(ValueError, match=r"that can be planned for: .*toy_noisy_max"):
        plan(mechanism=ToyNoisyMax)


def test_assumed_votes_are_what_the_sentence_says():
    assumed = AssumedVotes(num_teachers=250, num_classes=10, num_exceptions=2)
    counts = assumed.counts(5)
    assert (counts.sum(axis=1) == 250).all()
    assert counts[:2].tolist() == [[125, 125, *[0] * 8]] * 2
    assert (counts[2:, 0] - counts[2:, 1] == 200).all()


# The number of queries


def worth(kind, number, *, epsilon, assumed) -> tuple[bool, bool, bool, float]:
    target = Target(epsilon=epsilon, delta=1e-5, num_queries=number)
    one = kind.for_target(target, assumed.counts(number))
    right, half, quarter = (
        one.expected_right(
            dataclasses.replace(assumed, margin=assumed.margin * share).counts(number)
        )
        for share in (1.0, 0.5, 0.25)
    )
    good = [each >= 0.95 * number for each in (right, half, quarter)]
    return all(good), all(good[:2]), good[0], right if good[0] else right / number


@pytest.mark.parametrize("kind", [GaussianHistogram, LaplaceNoisyMax])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 40.0])
def test_the_number_of_queries_is_the_one_worth_most(kind, epsilon):
    assumed = AssumedVotes(num_teachers=200, num_classes=5)
    target = Target(epsilon=epsilon, delta=1e-5, num_queries=1)
    found = planned_num_queries(target, assumed, kinds=[kind])
    numbers = (10, 20, 50, 100, 200, 500, 1000)
    expected = [worth(kind, one, epsilon=epsilon, assumed=assumed) for one in numbers]
    assert expected[numbers.index(found)] == max(expected)


def test_a_larger_budget_never_plans_fewer_queries_and_the_pool_limits_them():
    assumed = AssumedVotes(num_teachers=200, num_classes=5)
    targets = [Target(epsilon=epsilon, delta=1e-5, num_queries=1) for epsilon in (1.0, 4.0, 16.0)]
    found = [planned_num_queries(one, assumed) for one in targets]
    assert found == sorted(found) and found[0] < found[-1]
    assert planned_num_queries(targets[-1], assumed, at_most=77) == 50
    assert planned_num_queries(targets[-1], assumed, at_most=7) == 7


def test_batches_that_are_paid_once_stay_small():
    assert largest_batch(AssumedVotes(num_teachers=9, num_classes=10)) == 50
    assert largest_batch(AssumedVotes(num_teachers=9, num_classes=100)) == 500
    target = Target(epsilon=9.0, delta=1e-5, num_queries=1)
    assumed = AssumedVotes(num_teachers=250, num_classes=10)
    assert planned_num_queries(target, assumed, kinds=[StabilityGate]) == 50


@pytest.mark.parametrize("kind", [GaussianNoisyMax, ConfidentGaussianNoisyMax])
def test_slow_ones_are_planned_by_the_histogram_which_has_more_noise(kind):
    target = Target(epsilon=3.0, delta=1e-5, num_queries=30)
    counts = AssumedVotes(num_teachers=250, num_classes=10).counts(30)
    histogram = GaussianHistogram.for_target(target, counts)
    assert GaussianNoisyMax.for_target(target, counts).sigma < histogram.sigma
    assumed = AssumedVotes(num_teachers=250, num_classes=10)
    assert planned_num_queries(target, assumed, kinds=[kind]) == planned_num_queries(
        target, assumed, kinds=[GaussianHistogram]
    )


def test_a_plan_is_a_value():
    found = plan(mechanism=GaussianHistogram)
    assert found == plan(mechanism="gaussian_histogram")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.target = None
