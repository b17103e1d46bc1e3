"""Students of votes chosen by a test: from the calls of a notebook to a statement."""

import dataclasses
import functools
import json
import pathlib

import event_files
import numpy as np
import pytest
from analysis_helpers import read_run
from chosen_votes import (
    NUM_QUERIES,
    NUM_TEACHERS,
    POOL,
    PUBLIC,
    FakeEnsemble,
    run,
    statement,
    table,
)

from pate_tf.accounting import mechanisms
from pate_tf.analysis.sanitised_epsilon import release as release_of
from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.release.noise import SystemNoise
from pate_tf.run.student import student_report
from pate_tf.statement import check_statement
from pate_tf.statement.privacy_statement import epsilon_text
from pate_tf.students import student_training

RIGHT = np.tile(PUBLIC.labels, (NUM_TEACHERS, 1))  # all teachers vote so, on all inputs
FEW_STEPS = pytest.mark.usefixtures("few_steps")


# For tests about labels and their cost.
quick = functools.partial(run, model="random_forest")


def labels(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return artifacts.read_arrays(folder / "released" / "labels.npz")


def test_the_statement_on_owners_names_what_replacing_one_costs(tmp_path):
    ensemble = FakeEnsemble(table(95))
    ensemble.unit = "owner"
    made = quick(tmp_path, ensemble).statement
    assert made.unit == "owner"
    # Two teachers moved from one class to another: e^(4 gamma) per label.
    assert made.epsilon < made.guarantees[1].epsilon == made.epsilon_ledger_replaced
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(statement(tmp_path), ledger)


@pytest.mark.parametrize(
    "mechanism",
    [mechanisms.LaplaceNoisyMax(gamma=0.1), mechanisms.GaussianNoisyMax(sigma=10.0)],
    ids=lambda mechanism: mechanism.name,
)
def test_a_run_is_stated_reported_and_only_what_may_be_is_released(tmp_path, mechanism):
    result = run(tmp_path, FakeEnsemble(table(95)), mechanism=mechanism)
    expected, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=1e-5)
    assert statement(tmp_path) == json.loads(json.dumps(result.statement.to_dict()))
    assert (result.statement.epsilon, result.statement.mechanism) == (expected, mechanism)
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert f"(ε = {epsilon_text(expected)}, δ = 1e-5)" in page
    # At a gap of 90 votes the noise almost never changes the label.
    assert result.published.measured["label_accuracy"] > 0.8
    assert result.published.measured["student_num_evaluated"] == len(PUBLIC) - POOL
    report = student_report(result.published, result.student)
    assert report.values["epsilon_data_independent"] == expected
    assert json.loads(json.dumps(report.values, allow_nan=False)) == report.values
    assert f"{report.values['student_accuracy']:.2%} on" in dict(report.rows)["student accuracy"]
    released = tmp_path / "released"
    assert {path.name for path in released.iterdir()} == {
        *("labels.json", "labels.npz", "logs", "student"),
        *("privacy_statement.json", "privacy_statement.md"),
    }
    travelling = result.published.student_folder / "assets.extra" / "privacy_statement.json"
    assert json.loads(travelling.read_text()) == statement(tmp_path)
    actual = labels(tmp_path)
    assert set(actual) == {"queries", "query_indices", "labels"}
    np.testing.assert_array_equal(actual["labels"], result.labels.labels)
    files = [path for path in (tmp_path / "sensitive").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    for path in released.rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path


def test_public_samples_need_no_labels(tmp_path):
    unlabeled = PublicExamples(PUBLIC.dataset, PUBLIC.inputs)
    exact = mechanisms.LaplaceNoisyMax(gamma=5.0)  # no noise changes a label
    result = run(tmp_path / "none", FakeEnsemble(RIGHT), public=unlabeled, mechanism=exact)
    measured = dict(result.published.measured)
    assert len(measured.pop("student_never_predicts")) < 10 and set(measured.values()) == {None}
    rows = dict(student_report(result.published, result.student).rows)
    assert (
        rows["student accuracy"] == "not measured: there are no public labeled records for a test"
    )
    # Neither labels nor weights depend on true labels.
    same = run(tmp_path / "same", FakeEnsemble(RIGHT), mechanism=exact)
    assert same.statement.student_digest == result.statement.student_digest


def test_labels_of_one_class_are_said_at_once_and_make_a_constant_student(tmp_path, monkeypatch):
    monkeypatch.delattr(student_training, "fit_student")  # nothing is trained
    quiet = mechanisms.LaplaceNoisyMax(gamma=1.0)  # a margin of 100 standard deviations of noise
    with pytest.warns(UserWarning) as warned:
        votes = FakeEnsemble(np.full((NUM_TEACHERS, len(PUBLIC)), 3))
        result = run(tmp_path, votes, mechanism=quiet)
    texts = " ".join(str(each.message) for each in warned)
    assert "labels are class 3. The student was not trained" in texts
    assert "never predicts class 0, 1, 2, 4, 5, 6, 7, 8, 9 on" in texts
    assert set(result.student.predict(PUBLIC.inputs)) == {3}
    rows = dict(student_report(result.published, result.student).rows)
    assert {"student never predicts", "label accuracy", "label majority accuracy"} <= set(rows)


def release(folder: pathlib.Path, **changes) -> dict:
    """Draws a sanitised epsilon of a run's votes and returns its publication."""
    source = read_run(folder)
    released = release_of(source, SystemNoise(), folder=folder / "sensitive", **changes)
    return dataclasses.asdict(released.sanitised)


def test_a_later_student_of_the_same_labels_names_what_was_released(tmp_path):
    ensemble, mechanism = FakeEnsemble(table(95)), mechanisms.LaplaceNoisyMax(gamma=0.05)
    quick(tmp_path, ensemble, mechanism=mechanism)
    assert statement(tmp_path)["sanitised"] is None
    published = release(tmp_path)
    quick(tmp_path, ensemble, mechanism=mechanism, seed=1)
    actual = statement(tmp_path)
    assert actual["sanitised"] == published
    assert published["worst_case_epsilon"] >= actual["epsilon_ledger"] > actual["epsilon"]
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(actual, ledger)
    # There are more labels now, which the earlier release does not cover.
    quick(tmp_path, ensemble, mechanism=mechanism, num_queries=NUM_QUERIES + 1)
    assert statement(tmp_path)["sanitised"] is None


def test_nothing_released_depends_on_votes_but_through_the_labels(tmp_path):
    # Two ensembles with different votes, digests and agreement give the same labels.
    unanimous = RIGHT[:, :POOL]
    divided = unanimous.copy()
    divided[:20] = (unanimous[0] + np.arange(20)[:, None]) % 10
    mechanism = mechanisms.LaplaceNoisyMax(gamma=5.0)
    sides = {"one": FakeEnsemble(unanimous, "12" * 32), "two": FakeEnsemble(divided, "34" * 32)}
    for name, ensemble in sides.items():
        run(tmp_path / name, ensemble, mechanism=mechanism, noise_seed=3, max_steps=150)
        np.testing.assert_array_equal(labels(tmp_path / name)["labels"], unanimous[0, :NUM_QUERIES])
    # It contains the student's digest: the students are bit-identical.
    statements = [statement(tmp_path / name) for name in sides]
    # Time and a secret salt make the head of every ledger unique.
    heads = [stated.pop("ledger_head")[1] for stated in statements]
    verified = [stated["sections"].pop("Verify")[0] for stated in statements]
    assert verified[0].replace(heads[0][:8], "") == verified[1].replace(heads[1][:8], "")
    assert statements[0] == statements[1] and heads[0] != heads[1]
    places = [tmp_path / name / "released" for name in sides]
    files, shown = [], []
    for place in places:
        files.append({path.relative_to(place) for path in place.glob("student/**/*")})
        logs = sorted({path.parent for path in (place / "logs").rglob("*tfevents*")})
        shown.append([(str(log.relative_to(place)), event_files.scalars(log)) for log in logs])
    assert files[0] == files[1] and shown[0] == shown[1]


def test_seeded_noise_is_never_called_private(tmp_path):
    ensemble = FakeEnsemble(table(30))
    mechanism = mechanisms.LaplaceNoisyMax(gamma=0.02)
    for name, seed in (("one", 1), ("two", 1), ("three", None)):
        quick(tmp_path / name, ensemble, mechanism=mechanism, noise_seed=seed)
    drawn = [labels(tmp_path / name)["labels"] for name in ("one", "two", "three")]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    # At 30 votes of difference and a scale of 50 two draws of 40 labels are never the same.
    assert not np.array_equal(drawn[0], drawn[2])
    assert statement(tmp_path / "one")["secure_noise"] is False
    assert "nothing is private" in statement(tmp_path / "one")["kind"]
    # Not even after a later run with real noise, because the ensemble has leaked.
    later = quick(tmp_path / "one", ensemble, num_queries=NUM_QUERIES + 1)
    assert later.statement.secure_noise is False


def test_a_budget_stands_and_raising_it_is_stated(tmp_path):
    ensemble = FakeEnsemble(table(90))
    for budget in (0.5, 50.0):  # another run can't bypass the first one
        with pytest.raises(LedgerError, match=r"budget was set at first use|epsilon_budget"):
            quick(tmp_path, ensemble, epsilon_budget=budget)
        assert list(tmp_path.glob("released/*")) == []
    result = quick(tmp_path, ensemble, epsilon_budget=0.5, num_queries=1)
    assert result.statement.epsilon_ledger <= 0.5 == result.statement.epsilon_budget
    assert result.statement.budget_was_raised is False
    with pytest.raises(ValueError, match="replace_budget needs a new"):
        quick(tmp_path, ensemble, replace_budget=True)
    raised = quick(tmp_path, ensemble, epsilon_budget=50.0, replace_budget=True)
    assert raised.statement.budget_was_raised is True


def test_a_ledger_belongs_to_one_ensemble_of_one_data_set(tmp_path):
    quick(tmp_path, FakeEnsemble(table(90)), num_queries=1)
    with pytest.raises(LedgerError, match="belongs to other teachers or sums"):
        quick(tmp_path, FakeEnsemble(table(90), "cd" * 32), num_queries=1)
    others = FakeEnsemble(table(90))
    others.dataset = dataclasses.replace(PUBLIC.dataset, name="others")
    with pytest.raises(ValueError, match="teachers must have the data set digits"):
        quick(tmp_path, others)
