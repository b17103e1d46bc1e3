"""Both methods compared from public values: costs, forecasts, and commands that say the same."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pate_tf.accounting.mechanisms import GaussianFeatureSums, base
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.run.planning import CLUSTER_MARGIN, FEATURE_MARGIN, PlanSettings, compare_methods

SMALL = {"num_teachers": 60, "num_classes": 4, "num_queries": 20, "mechanism": "gaussian_histogram"}
WHOLE = {"num_teachers": 60, "num_classes": 4, "num_queries": 20}


@pytest.fixture(scope="module")
def found():
    return compare_methods(PlanSettings(epsilon=1.0, num_records=4000, pool_size=500, **WHOLE))


def test_neither_method_costs_more_than_epsilon(found):
    target = Target(epsilon=1.0, delta=1e-5, num_queries=1)
    assert 0.99 < target.epsilon_of(found.sums) == found.sums_epsilon <= 1.0
    assert all(one.epsilon <= 1.0 for one in found.plan.candidates)
    assert {type(one.mechanism) for one in found.plan.candidates} == {
        one for one in base.offered().values() if not one.uses_student_predictions
    }


def test_labels_of_sums_are_as_accurate_as_simulated_scores(found):
    random, num_inputs = np.random.default_rng(3), 20_000
    for share, one in zip((1.0, 0.5, 0.25), found.outlooks, strict=True):
        assert one.margin == share * FEATURE_MARGIN
        scores = random.normal(0.0, found.sums.sigma, (num_inputs, 4))
        scores[:, 0] += one.margin * 1000  # records of a class
        right = np.mean(scores.argmax(axis=1) == 0)
        assert one.expected_labels == 500
        assert one.expected_right / 500 == pytest.approx(right, abs=0.02)


@pytest.mark.parametrize("epsilon", [0.02, 0.05])
def test_labels_of_counts_are_as_accurate_as_simulated_counts(epsilon):
    found = compare_methods(PlanSettings(epsilon=epsilon, num_records=4000, pool_size=500, **WHOLE))
    number, scale = found.sums.num_clusters, found.sums.scale
    assert found.sums_epsilon <= found.sums.pure_epsilon <= epsilon
    random, num_inputs = np.random.default_rng(4), 20_000
    for share, one in zip((1.0, 0.5, 0.25), found.outlooks, strict=True):
        counts = random.laplace(0.0, scale, (num_inputs, 4))
        counts[:, 0] += share * CLUSTER_MARGIN * 4000 / number
        right = np.mean(counts.argmax(axis=1) == 0)
        assert one.expected_right / 500 == pytest.approx(right, abs=0.02)
    assert f"{number} clusters" in str(found)
    assert "no delta" in str(found)


def test_as_many_rounds_are_compared_as_a_run_takes():
    asked = {"num_records": 60_000, "pool_size": 500, **WHOLE}
    found = compare_methods(PlanSettings(epsilon=8.0, **asked))
    assert (found.sums.num_rounds, found.method) == (16, "feature_sums")
    assert 7.99 < found.sums_epsilon <= 8.0
    assert f"sigma {found.sums.sigma:.4g}, 16 rounds" in str(found)
    assert "It does so in 16 rounds, charged together" in " ".join(str(found).split())
    assert found.to_dict()["feature_sums"]["mechanism"]["num_rounds"] == 16
    # A forecast does not fall because noise is shared out to rounds.
    less = compare_methods(PlanSettings(epsilon=0.1, **asked))
    assert less.sums.num_rounds == 1 and "rounds" not in str(less)
    assert found.forecast("feature_sums", 1_000).low > less.forecast("feature_sums", 1_000).low
    table = compare_methods(PlanSettings(epsilon=8.0, has_augmentation=False, **asked))
    assert table.sums == found.sums
    for changes in ({"unit": "owner"}, {"num_records": None}):
        other = compare_methods(PlanSettings(**{"epsilon": 8.0, **asked, **changes}))
        assert other.sums.num_rounds == 1


def test_clusters_are_compared_of_images_alone_and_noise_is_refused():
    asked = {"num_records": 4000, "pool_size": 500, **WHOLE}
    table = compare_methods(PlanSettings(epsilon=0.05, has_augmentation=False, **asked))
    assert isinstance(table.sums, GaussianFeatureSums)
    refused = compare_methods(PlanSettings(epsilon=1e-4, **asked))
    assert (refused.sums, refused.method, refused.outlooks) == (None, "pate", ())
    assert "feature_sums is refused: expected one at which records say more" in str(refused)
    assert "records say more" in json.dumps(refused.to_dict())


def test_sums_are_recommended_where_their_labels_are_as_accurate(found):
    assert found.method == "feature_sums"
    few = compare_methods(
        PlanSettings(epsilon=1.0, num_records=60, has_augmentation=False, **WHOLE)
    )
    unknown = compare_methods(PlanSettings(epsilon=1.0, **WHOLE))
    one = compare_methods(PlanSettings(epsilon=1.0, num_records=4000, **SMALL))
    assert (few.method, unknown.method, one.method) == ("pate", "pate", "pate")
    assert unknown.outlooks == ()
    assert "not known without the number of records" in str(unknown)


def test_a_number_of_owners_is_compared_for_owners():
    found = compare_methods(PlanSettings(epsilon=1.0, unit="owner", **SMALL))
    assert found.plan.target.unit == "owner"
    assert "for every owner" in str(found)


def test_the_page_prints_the_commands_of_both_methods_and_the_report_is_json(found):
    page, values = str(found), json.loads(json.dumps(found.to_dict()))
    for method in ("pate", "feature_sums"):
        for line in found.commands(method):
            assert f"\n  {line}\n" in page
        assert values["commands"][method] == list(found.commands(method))
    assert values["method"] == "feature_sums"
    assert values["plan"]["candidates"][0]["outlooks"][2]["margin"] == 0.2
    assert "<pre>" in found._repr_html_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon: expected in"),
        ({"num_records": 59}, "num_teachers: expected at most `num_records`"),
        ({"unit": "person"}, "unit: expected one of record, owner"),
        ({"mechanism": "plurality"}, "mechanism: expected"),
        ({"pool_size": 19}, "from 1 to the pool's 19, got 20"),
    ],
)
def test_what_is_wrong_is_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        compare_methods(PlanSettings(**{"epsilon": 1.0, **SMALL, **changes}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ((), 2, "error: epsilon: expected what the release may cost, got none\n"),
        (
            ("--epsilon=1", "--nb_labels=1"),
            2,
            "error: nb_labels: expected in [2, inf), got 1\n",
        ),
        (("--epsilon=1", "--nb_records=9"), 1, "error: nb_teachers: expected at most --nb_records"),
        (("--epsilon=1", "--mechanism=gaussian_histogram"), 0, "Recommended: pate\n"),
    ],
)
def test_the_command(tmp_path, flags, code, said):
    report = tmp_path / "report.json"
    ended = subprocess.run(
        [sys.executable, "-m", "pate_tf.cli.main", "plan", *flags, f"--report_file={report}"],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, said in ended.stdout + ended.stderr) == (code, True), ended
    assert report.exists() == (code == 0)
