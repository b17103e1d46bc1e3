"""Plans: no plan costs more than epsilon, and labels are as accurate as simulated."""

import functools
import json
import math

import numpy as np
import pytest
from script_processes import run_script

import pate_tf
from pate_tf.accounting.charge import profile_counts
from pate_tf.accounting.composition import several_teachers_epsilon
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianHistogram,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    base,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.planning.comparison import (
    CLUSTER_MARGIN,
    FEATURE_MARGIN,
    NUMBERS,
    planned_candidate,
    planned_num_queries,
)
from pate_tf.planning.forecast import MARGINS
from pate_tf.release.noise import SeededNoise

OFFERED = list(base.offered().values())
SMALL = {"num_teachers": 60, "num_classes": 4, "num_queries": 20}
QUICK = {"mechanism": "gaussian_histogram"}


@functools.cache
def plan(**changes):
    return pate_tf.plan(**{"epsilon": 1.0, **SMALL, **changes})


@pytest.mark.parametrize("unit", ["record", "owner"])
def test_no_candidate_costs_more_than_the_target(unit):
    actual = plan(unit=unit)
    assert {type(candidate.mechanism) for candidate in actual.candidates} == set(OFFERED)
    for candidate in actual.candidates:
        mechanism = candidate.mechanism
        spent, _ = mechanism.data_independent_epsilon(num_queries=20, delta=1e-5)
        assert 0.9 < spent == candidate.epsilon <= 1.0, mechanism
        if unit == "owner":
            charges = {mechanism: mechanism.number_charged(20)}
            assert math.isfinite(several_teachers_epsilon(charges, delta=1e-5))


@pytest.mark.parametrize("kind", OFFERED)
def test_expected_labels_are_those_of_a_simulation(kind):
    settings = pate_tf.plan(6.0, margin=0.3, mechanism=kind, **SMALL).settings
    counts = np.repeat(profile_counts(60, 4, 0.3), 20, axis=0)
    candidate = planned_candidate(kind, settings, 20)
    planned, outlook = candidate.mechanism, candidate.outlooks[0]
    assert (counts.sum(axis=1) == 60).all()
    noise, repetitions = SeededNoise(11), 60
    drawn = [planned.draw(counts, noise).labels for _ in range(repetitions)]
    for expected, simulated in zip(
        (outlook.expected_correct, outlook.expected_labels),
        ([labels.count(0) for labels in drawn], [20 - labels.count(None) for labels in drawn]),
        strict=True,
    ):
        error = max(float(np.std(simulated)) / repetitions**0.5, 0.01)
        assert abs(expected - np.mean(simulated)) < 5.0 * error


def test_most_correct_labels_win_and_equally_good_ones_are_ranked_in_the_worst_case():
    actual = plan(epsilon=4.0)
    good = [each for each in actual.candidates if each.outlooks[0].expected_correct >= 19]
    mean = {c: np.mean([o.expected_correct for o in c.outlooks]) for c in actual.candidates}
    most = max(mean[each] for each in good)
    best = [each for each in good if mean[each] >= most - 0.1]
    assert list(actual.candidates[: len(best)]) == best
    worst = [each.outlooks[-1].expected_correct for each in best]
    assert worst == sorted(worst, reverse=True)
    others = [mean[each] for each in actual.candidates[len(best) :]]
    assert others == sorted(others, reverse=True)


def test_teachers_that_have_fewer_records_than_classes_answer_with_noise():
    is_noise = [
        plan(num_records=each, pool_size=99).forecast("pate").is_noise for each in (239, 240)
    ]
    assert is_noise == [True, False]


@pytest.mark.parametrize("kind", [GaussianHistogram, LaplaceNoisyMax])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 40.0])
def test_the_number_of_queries_has_most_utility(kind, epsilon):
    settings = pate_tf.plan(epsilon, **QUICK, num_teachers=200, num_classes=5).settings

    def utility(number):
        outlooks = planned_candidate(kind, settings, number).outlooks
        correct = [outlook.expected_correct for outlook in outlooks]
        good = [value >= 0.95 * number for value in correct]
        value = correct[0] if good[0] else correct[0] / number
        return all(good), all(good[:2]), good[0], value

    expected = [utility(number) for number in NUMBERS]
    assert expected[NUMBERS.index(planned_num_queries(settings, kind))] == max(expected)


def test_accuracies_of_sums_and_counts_are_simulated_ones():
    random, num_inputs = np.random.default_rng(3), 20_000
    actual = plan(num_records=4000, pool_size=500)
    assert 0.99 < Target(epsilon=1.0, delta=1e-5).epsilon_of(actual.sums.mechanism) <= 1.0
    for share, outlook in zip(MARGINS, actual.sums.outlooks, strict=True):
        scores = random.normal(0.0, actual.sums.mechanism.sigma, (num_inputs, 4))
        scores[:, 0] += share * FEATURE_MARGIN * 1000  # records per class
        assert outlook.accuracy == pytest.approx(np.mean(scores.argmax(axis=1) == 0), abs=0.02)
    counted = plan(epsilon=0.02, num_records=4000, pool_size=500, **QUICK).sums
    assert counted.epsilon <= counted.mechanism.pure_epsilon <= 0.02
    for share, outlook in zip(MARGINS, counted.outlooks, strict=True):
        counts = random.laplace(0.0, counted.mechanism.scale, (num_inputs, 4))
        counts[:, 0] += share * CLUSTER_MARGIN * 4000 / counted.mechanism.num_clusters
        assert outlook.accuracy == pytest.approx(np.mean(counts.argmax(axis=1) == 0), abs=0.02)


def test_rounds_clusters_and_refusals():
    stated = {"num_records": 60_000, "pool_size": 500}
    rounds = plan(epsilon=8.0, **stated)
    assert (rounds.sums.mechanism.num_rounds, rounds.method) == (16, "feature_sums")
    assert plan(epsilon=8.0, pool_size=500, **QUICK).sums.mechanism.num_rounds == 1
    table = plan(epsilon=0.05, num_records=4000, has_augmentation=False, **QUICK)
    assert isinstance(table.sums.mechanism, GaussianFeatureSums)
    for pool_size, kind in ((390, GaussianFeatureSums), (400, LaplaceClusterCounts)):
        pictures = plan(epsilon=2.0, num_classes=10, num_records=1200, pool_size=pool_size, **QUICK)
        assert isinstance(pictures.sums.mechanism, kind)
    refused = plan(epsilon=1e-4, num_records=4000, **QUICK)
    assert (refused.sums, refused.method) == (None, "pate")
    assert "epsilon=0.0001 needs so much noise" in refused.refusal


def test_the_page_prints_commands_and_assumptions_and_the_report_is_json():
    actual = plan(num_records=4000, pool_size=500)
    page, values = str(actual), json.loads(json.dumps(actual.to_dict()))
    for method in ("pate", "feature_sums"):
        for line in actual.commands(method):
            assert f"\n  {line}\n" in page
    assert values["method"] == actual.method == "feature_sums"
    assert "correct class has a vote margin of 80 % of 60 teachers" in actual.reason
    for line in page.splitlines()[5:10]:
        assert 0.9 < float(line.split()[1]) <= 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": math.nan}, r"epsilon must be a number in \(0, inf\)"),
        ({"num_queries": 0}, "num_queries must be from 1 to 1000, the pool size, got 0"),
        ({"pool_size": 19}, "from 1 to 19, the pool size, got 20"),
        ({"mechanism": "plurality"}, "mechanism must be one of"),
        ({"num_records": 59}, "num_teachers must be at most `num_records`"),
        ({"delta": 0.0, "mechanism": "gaussian_noisy_max"}, "must be above 0 for gaussian"),
    ],
)
def test_what_is_wrong_is_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        plan(**changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (
            (),
            2,
            "error: --epsilon is required: the privacy budget. A common choice is --epsilon=1.\n",
        ),
        (("--epsilon=1", "--nb_records=9"), 1, "error: --nb_teachers must be at most --nb_records"),
        (("--epsilon=1", "--mechanism=gaussian_histogram"), 0, "Recommended: pate, gaussian_"),
        (("--epsilon=0.1", "--nb_labels=2"), 4, "Not worth its cost, because the noise"),
    ],
)
def test_the_command(tmp_path, flags, code, text):
    ended = run_script(
        "pate_tf/cli/main.py", "plan", *flags, "--report_file=report.json", folder=tmp_path
    )
    assert (ended.code, text in ended.out + ended.err) == (code, True), ended
    assert (tmp_path / "report.json").exists() == (code in (0, 4))
