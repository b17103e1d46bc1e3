"""Public data without labels: PATE's normal case. Metrics are absent, all else works."""

import json

import event_files
import numpy as np
import pytest
from chosen_votes import NUM_QUERIES, POOL, PUBLIC, FakeEnsemble, run, statement, table

from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.data import catalogue as data
from pate_tf.release.plan import Budget, LabelSettings
from pate_tf.data.data import Data
from pate_tf.data.data_source import DataSource
from pate_tf.run import student_run as student_report
from pate_tf.students.config import StudentSettings
from pate_tf.teachers import run_folder
from pate_tf.teachers.teachers import Teachers

UNLABELLED = PublicExamples(PUBLIC.dataset, PUBLIC.inputs)
NOT_MEASURED = "not measured: these public samples have no labels"
METRICS = (
    *("label_accuracy", "student_accuracy", "student_accuracy_interval", "evaluated_on"),
    *("num_evaluated", "constant_answer_accuracy", "inferred_label_accuracy"),
)


def labelled_from(first: int) -> PublicExamples:
    """Those before `first` have no label."""
    labels = PUBLIC.labels.copy()
    labels[:first] = -1
    return PublicExamples(PUBLIC.dataset, PUBLIC.inputs, labels)


def without_accuracies(folder, result):
    values, rows = student_report.student_report(result, seconds=1.0)
    assert {values[name] for name in METRICS} == {None}
    json.dumps(values, allow_nan=False)
    rows = dict(rows)
    assert rows["student accuracy"] == rows["accuracy of the noisy labels"] == NOT_MEASURED
    assert "nan" not in " ".join(rows.values())
    version = folder / "released" / "logs" / "versions" / result.published.student_folder.name
    assert event_files.scalars(version).keys() == {"result/epsilon"}
    assert list(event_files.images(version)) == []
    return rows


@pytest.mark.parametrize("pool_size", [POOL, len(PUBLIC)])
def test_a_student_is_made_and_stated_and_nothing_is_measured(tmp_path, pool_size):
    votes = np.tile(PUBLIC.labels, (100, 1))
    result = run(tmp_path, FakeEnsemble(votes), public=UNLABELLED, pool_size=pool_size)
    without_accuracies(tmp_path, result)
    assert statement(tmp_path)["num_queries"] == NUM_QUERIES
    assert (result.published.student_folder / "saved_model.pb").exists()
    assert result.epsilon_data_dependent > 0
    # Neither labels nor weights ever looked at true labels.
    same = run(tmp_path, FakeEnsemble(votes), pool_size=POOL)
    if pool_size == POOL:
        stated = result.published.statement
        assert same.published.statement.student_digest == stated.student_digest


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(
    ("strategy", "model"),
    [("diverse", "random_forest"), ("uncertain", "mlp"), ("siamese", "mlp")],
)
def test_strategies_and_forests_need_no_label(tmp_path, strategy, model):
    result = run(
        tmp_path,
        FakeEnsemble(table(95)),
        public=UNLABELLED,
        query_strategy=strategy,
        model=model,
    )
    rows = without_accuracies(tmp_path, result)
    if result.labels.num_inferred:
        assert rows["queries saved"] == str(result.labels.num_inferred)


def test_held_out_samples_alone_may_have_labels(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(95)), public=labelled_from(POOL))
    assert result.measured.label_accuracy is None
    assert result.measured.student_accuracy.num_samples == len(PUBLIC) - POOL
    assert result.measured.evaluated_on == "held_out"
    whole = run(tmp_path / "whole", FakeEnsemble(table(95)))
    assert result.measured.constant_answer == whole.measured.constant_answer
    rows = dict(student_report.student_report(result, seconds=1.0)[1])
    assert rows["accuracy of the noisy labels"] == NOT_MEASURED
    assert "held-out samples" in rows["student accuracy"]


@pytest.mark.parametrize("evaluate_on", ["held_out", "all_unqueried"])
def test_an_evaluation_that_was_asked_for_needs_labels(tmp_path, evaluate_on):
    ensemble = FakeEnsemble(table(95))
    with pytest.raises(ValueError, match="evaluate_on: expected public samples with") as caught:
        run(tmp_path, ensemble, public=UNLABELLED, evaluate_on=evaluate_on)
    assert "\n" not in str(caught.value)
    assert ensemble.asked == 0


@pytest.fixture
def unlabelled_digits(monkeypatch):
    monkeypatch.setattr(data, "load_public", lambda name, *, data_dir=None: UNLABELLED)


@pytest.mark.usefixtures("unlabelled_digits")
def test_teachers_train_and_a_student_learns_from_them(tmp_path):
    digits = Data.load("digits")
    teachers = Teachers("mlp", steps=4, num_teachers=3, directory=tmp_path).fit(digits.private)
    found = teachers.report(digits, QUIET)
    for name in ("mean", "lowest", "highest"):
        assert found.values[f"teacher_accuracy_{name}"] is None
    assert found.values["constant_answer_accuracy"] is None
    rows = dict(found.rows)
    assert rows["mean teacher accuracy"] == rows["majority-class baseline"] == NOT_MEASURED
    made = student_report.run(
        student_report.StudentRun(
            sources=student_report.Sources(
                data=DataSource(), labels_from=run_folder.TeacherSource(folder=tmp_path)
            ),
            settings=StudentSettings(model="mlp", max_steps=4, batch_size=4),
            labels=LabelSettings(mechanism=LaplaceNoisyMax(gamma=1.0), num_queries=5),
            budget=Budget(delta=1e-5),
        )
    )
    assert made.values["student_accuracy"] is None
    kept = artifacts.read_json(tmp_path / "sensitive" / "student_report.json")
    assert kept == json.loads(json.dumps(made.values))
    # The report is for the holder of the private data.
    assert repr(made) == "RunReport()"
