"""Labels of a whole pool from noisy sums of records: planned, paid, learnt from, stated, kept."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from chosen_votes import POOL, PUBLIC, FakeEnsemble, table

from pate_tf.accounting.mechanisms import ClassSums, GaussianHistogram
from pate_tf.aggregation.noise import SeededNoise, SystemNoise
from pate_tf.analysis.guarantees import AnalysisConfig
from pate_tf.api import analysis as analysis_run
from pate_tf.api import student_run as student_report
from pate_tf.api import teacher_run as teachers_run
from pate_tf.api.labelling import open_ledger, plan_release, release_labels
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.api.student_publishing import publish
from pate_tf.api.student_training import Output, certainty, make_student
from pate_tf.core import artifacts
from pate_tf.data import catalogue as data
from pate_tf.ledger import Ledger
from pate_tf.queries.queried import QueriedLabels
from pate_tf.representations import contrastive
from pate_tf.representations.catalogue import CACHE_VARIABLE
from pate_tf.statement.check import check_statement
from pate_tf.students.config import StudentConfig, StudentSettings
from pate_tf.teachers.settings import TeacherSettings

SPLIT = PUBLIC.split(POOL)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run folder and the ensemble of twenty ridge classifiers on hastily learnt features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 60)
        patch.setattr(contrastive, "STUDENT_STEPS", 30)
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield teachers_run.fit(
            TeacherSettings(model="ridge"),
            data.load_private("digits"),
            num_teachers=20,
            pool=SPLIT.pool,
            folder=tmp_path_factory.mktemp("run"),
            engine=teachers_run.Engine(),
        )


@pytest.fixture
def ensemble(trained):
    return trained[1]


def planned(ensemble, epsilon=8.0, **changes):
    settings = LabelSettings(epsilon=epsilon, **{"method": "feature_sums", **changes})
    return plan_release(settings, ensemble, SPLIT.pool, delta=1e-5)


def opened(folder, ensemble):
    return open_ledger(folder / "sensitive", teachers=ensemble, budget=Budget(delta=1e-5))


def test_the_plan_has_the_least_noise_and_says_how_many_records_there_are(ensemble):
    plan = planned(ensemble, 5.0)
    assert plan.is_of_sums and plan.queries.num_queries == POOL
    assert plan.values["records_of_a_class"] == len(data.load_private("digits").labels) / 10
    assert plan.mechanism.data_independent_epsilon(num_queries=1, delta=1e-5)[0] <= 5.0
    assert "No teacher was asked" in plan.reason and "epsilon 5 " in plan.reason
    assert json.loads(json.dumps(plan.values))["queries"] == POOL


def test_a_method_is_never_switched(ensemble):
    for epsilon, changes in ((5.0, {}), (5.0, {"mechanism": GaussianHistogram})):
        assert not planned(ensemble, epsilon, method="pate", margin=0.95, **changes).is_of_sums
    assert planned(ensemble, 0.3).is_of_sums
    for changes in ({"num_queries": 5}, {"strategy": "diverse"}, {"num_neighbours": 2}):
        with pytest.raises(ValueError, match="expected none with method feature_sums"):
            planned(ensemble, 5.0, **changes)
    with pytest.raises(ValueError, match="teachers on features"):
        planned(FakeEnsemble(table(95)), 5.0)
    with pytest.raises(ValueError, match="belongs to method feature_sums"):
        planned(ensemble, None, method="pate", mechanism=ClassSums(3.0))


def test_the_number_of_an_owners_records_is_not_stated(ensemble, monkeypatch):
    """Neither the number of owners nor that of their records is a public value."""
    monkeypatch.setattr(type(ensemble), "unit", "owner")
    plan = planned(ensemble, 5.0)
    assert plan.values["records_of_a_class"] is None and "records of a class" not in plan.reason


def run(folder, ensemble, epsilon=8.0):
    with opened(folder, ensemble) as ledger:
        return make_student(
            StudentConfig(model="mlp", max_steps=40, batch_size=32, learning_rate=0.003, seed=0),
            SPLIT,
            plan=planned(ensemble, epsilon),
            noise=SystemNoise(),
            teachers=ensemble,
            ledger=ledger,
            output=Output(directory=artifacts.RunDirectory(folder)),
        )


def test_a_student_is_published_with_what_the_sums_cost(tmp_path, ensemble):
    report = run(tmp_path, ensemble)
    released = report.queried.released
    assert released.num_answered == POOL and released.noisy_sums.shape[1] == 10
    assert not released.have_no_noise and released.noisy_counts is None
    assert len(report.queried.labels.labels) == POOL
    assert report.measured.label_accuracy.value > 0.5  # of hasty features; a constant has a tenth
    values = student_report.student_values(report, seconds=1.0)
    assert values["epsilon_worst_case"] <= 8.0 and values["epsilon_data_dependent"] is None
    assert values["queries_answered"] == values["queries"] == POOL
    assert 0.0 < values["inferred_label_certainty"] == certainty(report.queried) <= 1.0
    rows = dict(student_report.student_rows(report, seconds=1.0))
    assert "by noisy sums of records" in rows["queries"]
    assert rows["epsilon, data-dependent"] == "none: it costs the same for all records"
    stated = json.loads((tmp_path / "released" / "privacy_statement.json").read_text())
    assert stated["mechanism"]["name"] == "class_sums"
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert "sums" in page and "No teacher was asked" in page
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(stated, ledger)
        assert list(ledger.charges.values()) == [1]
        with pytest.raises(ValueError, match="statement: expected at least epsilon"):
            check_statement({**stated, "epsilon": stated["epsilon"] / 2}, ledger)
    paid = analysis_run.read_run(tmp_path)
    config = analysis_run.RunConfig(accounting=AnalysisConfig(), release=None, beta=0.1)
    found = analysis_run.account(paid.source, config, artifacts.RunDirectory(tmp_path), noise=None)
    assert found.publishable["epsilon_worst_case"] == pytest.approx(values["epsilon_worst_case"])


@pytest.mark.parametrize(
    ("changes", "is_whole"), [({"method": "feature_sums"}, True), ({"epsilon": 50.0}, False)]
)
def test_a_student_is_set_up_for_labels_of_the_whole_pool_or_a_few(
    tmp_path, ensemble, monkeypatch, changes, is_whole
):
    class Sources:
        def load(self, _):
            directory = artifacts.RunDirectory(tmp_path)
            return SPLIT, ensemble, directory, directory

    class SetUpError(Exception):
        pass

    def refuse(*_, **__):
        raise SetUpError

    set_up = []
    own = student_report.complete

    def complete(*settings, labels_whole_pool=False):
        set_up.append(labels_whole_pool)
        return own(*settings, labels_whole_pool=labels_whole_pool)

    monkeypatch.setattr(student_report, "complete", complete)
    monkeypatch.setattr(student_report, "make_student", refuse)
    with pytest.raises(SetUpError):
        student_report.run(
            student_report.StudentRun(
                sources=Sources(),
                settings=StudentSettings(model="mlp"),
                labels=LabelSettings(**{"epsilon": 8.0, **changes}),
                budget=Budget(delta=1e-5),
            )
        )
    assert set_up[-1] is is_whole


def released(ensemble, ledger, noise=None):
    return release_labels(
        planned(ensemble),
        SPLIT.pool,
        teachers=ensemble,
        ledger=ledger,
        noise=noise or SystemNoise(),
    )


def test_the_same_is_free_and_kept_labels_must_be_the_ledgers(tmp_path, ensemble):
    with opened(tmp_path, ensemble) as ledger:
        labels = released(ensemble, ledger)
        again = released(ensemble, ledger)
        assert (labels.released.noisy_sums == again.released.noisy_sums).all()
        assert sum(ledger.charges.values()) == 1
    labels.save(tmp_path / "kept")
    kept = QueriedLabels.load(tmp_path / "kept")
    assert (kept.released.noisy_sums == labels.released.noisy_sums).all()
    np.testing.assert_array_equal(kept.labels.weights, labels.labels.weights)
    assert kept.certainty == labels.certainty != 0.5
    sums = labels.released.noisy_sums.copy()
    sums[0, 0] += 1
    forged = dataclasses.replace(labels.released, noisy_sums=sums)
    other = (labels.labels.labels + 1) % 10
    relabelled = dataclasses.replace(labels.labels, labels=other)
    for changed in (
        dataclasses.replace(labels, released=forged),
        dataclasses.replace(labels, labels=relabelled),
        dataclasses.replace(labels, certainty=0.5),
    ):
        with (
            opened(tmp_path, ensemble) as ledger,
            pytest.raises(ValueError, match=r"that this ledger paid for|changed since"),
        ):
            publish(
                None,
                changed,
                SPLIT.pool,
                teachers=ensemble,
                ledger=ledger,
                folder=tmp_path / "out",
            )


def test_an_ensemble_without_sums_is_refused(tmp_path, trained, ensemble):
    folder = tmp_path / "earlier"
    shutil.copytree(trained[0] / "sensitive" / "teachers", folder)
    (folder / "ensemble" / "class_sums.npz").unlink()
    earlier = type(ensemble)(folder / "ensemble")
    assert earlier.digest != ensemble.digest
    with pytest.raises(ValueError, match="teachers on features"):
        planned(earlier, 5.0)


def test_seeded_noise_is_told(tmp_path, ensemble):
    with opened(tmp_path, ensemble) as ledger:
        found = released(ensemble, ledger, SeededNoise(1))
    assert not found.released.secure_noise
