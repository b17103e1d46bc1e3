"""An epsilon is given: the plan is made, printed, stored and stated, and no vote is read."""

import dataclasses
import json

import numpy as np
import pytest
from chosen_votes import PUBLIC, FakeEnsemble, table

from pate_tf.accounting.mechanisms import GaussianHistogram, StabilityGate
from pate_tf.core import artifacts
from pate_tf.core.reporting import Reporting
from pate_tf.data.data_source import DataSource
from pate_tf.ledger import Ledger
from pate_tf.release.plan import Budget, LabelSettings, plan_release
from pate_tf.run import student_run as train_student
from pate_tf.statement.check import check_statement
from pate_tf.students.config import StudentSettings

SPLIT = PUBLIC.split(120)


@dataclasses.dataclass(frozen=True)
class Given:
    """Sources that are there already."""

    teachers: FakeEnsemble
    directory: artifacts.RunDirectory
    data: DataSource = dataclasses.field(default_factory=DataSource)

    def load(self, reporting, delta=None):
        return SPLIT, self.teachers, self.directory, self.directory


def settings(**changes) -> LabelSettings:
    return LabelSettings(**{"epsilon": 1.0, "strategy": "first", **changes})


def planned(teachers=None, pool=SPLIT.pool, **changes):
    teachers = teachers or FakeEnsemble(table(100))
    return plan_release(settings(**changes), teachers, pool, delta=1e-5)


def run(folder, teachers, told=None, **changes):
    asked = train_student.StudentRun(
        sources=Given(teachers, artifacts.RunDirectory(folder)),
        settings=StudentSettings(student="supervised", model="mlp", max_steps=20),
        labels=settings(**changes),
        budget=Budget(delta=1e-5),
    )
    note = [].append if told is None else told.append
    return train_student.run(asked, Reporting(note=note))


def test_the_plan_is_told_before_anything_is_charged_and_kept_and_stated(tmp_path):
    told = []
    report = run(tmp_path, FakeEnsemble(table(100)), told=told, mechanism=StabilityGate)
    values = report.values
    assert values["mechanism"] == StabilityGate(epsilon=1.0, delta=1e-5 * (1 / 3)).to_dict()
    assert 0.9999 < values["epsilon_worst_case"] <= 1.0 and values["delta"] == 1e-5
    assert values["queries_answered"] == values["queries"] == values["plan"]["queries"] == 10
    assert values["plan"]["queries_were_planned"] is True
    assert "chosen from a plan, not from votes" in dict(report.rows)["how chosen"]
    assert len(told) == 1 and "Recommended: stability_gate" in told[0]
    kept = json.loads((tmp_path / "sensitive" / "student_report.json").read_text())
    assert kept["plan"] == values["plan"]
    stated = json.loads((tmp_path / "released" / "privacy_statement.json").read_text())
    assert stated["choice"] == values["plan"]["reason"]
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert stated["choice"] in page
    kept = json.loads((tmp_path / "released" / "labels.json").read_text())
    assert kept["choice"] == stated["choice"]
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(stated, ledger)
        with pytest.raises(ValueError, match="other types of values"):
            check_statement({**stated, "choice": 3}, ledger)


def test_the_plan_reads_no_votes(tmp_path):
    others = FakeEnsemble(np.zeros_like(table(100)))
    assert planned() == planned(others)
    assert others.asked == 0


def test_a_plan_for_owners_leaves_a_guarantee_against_replacement():
    teachers = FakeEnsemble(table(100))
    teachers.unit = "owner"
    assert planned(teachers, mechanism=StabilityGate).mechanism.delta < 1e-5 / (1 + np.e)


def test_a_named_mechanism_gets_its_noise_and_nothing_else_is_compared():
    plan = planned(mechanism=GaussianHistogram, num_queries=30)
    (candidate,) = plan.values["candidates"]
    assert candidate["mechanism"] == plan.mechanism.to_dict()
    assert isinstance(plan.mechanism, GaussianHistogram) and 0.99 < candidate["epsilon"] <= 1.0
    assert plan.queries.num_queries == 30 and not plan.values["queries_were_planned"]


def test_a_plan_never_asks_more_than_the_pool_has():
    assert planned(pool=PUBLIC.split(15).pool, epsilon=50.0).queries.num_queries == 10


def test_a_strategy_that_learns_from_answers_gets_no_gate():
    plan = planned(strategy="uncertain", epsilon=3.0)
    names = {one["mechanism"]["name"] for one in plan.values["candidates"]}
    assert names and not any("gate" in name for name in names)


@pytest.mark.parametrize(("strategy", "expected"), [(None, "medoids"), ("diverse", "diverse")])
def test_the_strategy_goes_with_the_mechanism_unless_one_is_named(strategy, expected):
    assert planned(strategy=strategy).queries.strategy == expected


def test_an_epsilon_that_is_too_small_is_refused_before_anything_is_charged(tmp_path):
    with pytest.raises(ValueError, match="epsilon: expected one that labels") as refusal:
        run(tmp_path, FakeEnsemble(table(100)), epsilon=0.01)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "sensitive").exists()
    assert isinstance(
        planned(epsilon=0.01, mechanism=GaussianHistogram).mechanism, GaussianHistogram
    )


def test_a_gate_that_stays_shut_keeps_the_plan_too(tmp_path):
    divided = np.tile(np.arange(100)[:, None] % 2, (1, 400))
    report = run(tmp_path, FakeEnsemble(divided), mechanism=StabilityGate)
    assert report.failure is not None
    assert report.values["plan"]["queries"] == report.values["queries"] == 10
    assert report.values["queries_answered"] == 0
    assert "how chosen" in dict(report.rows)
