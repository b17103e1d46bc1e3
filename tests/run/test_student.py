import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest
from analysis_helpers import read_run, release_of
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
from pate_tf.analysis.release_planning import ReleaseRequest
from pate_tf.core import artifacts
from pate_tf.core.reporting import Reporting
from pate_tf.core.sensitive import Votes
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.queries.strategies import siamese
from pate_tf.release.noise import SystemNoise
from pate_tf.run.student_run import warn_of_raw_pixels
from pate_tf.statement.check import check_statement
from pate_tf.statement.privacy_statement import epsilon_text
from pate_tf.students.config import StudentSettings


def labels(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return artifacts.read_arrays(folder / "released" / "labels.npz")


def test_the_statement_on_owners_names_what_replacing_one_costs(tmp_path):
    ensemble = FakeEnsemble(table(95))
    ensemble.unit = "owner"
    made = run(tmp_path, ensemble).published.statement
    assert made.unit == "owner"
    # Moved from one class to another by two teachers: e^(4 gamma) a label.
    assert made.epsilon < made.epsilon_replaced == made.epsilon_ledger_replaced
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(statement(tmp_path), ledger)


@pytest.mark.parametrize(
    "mechanism",
    [
        mechanisms.LaplaceNoisyMax(gamma=0.1),
        mechanisms.PermuteAndFlip(gamma=0.1),
        mechanisms.ExponentialMechanism(gamma=0.1),
        mechanisms.GaussianNoisyMax(sigma=10.0),
    ],
    ids=lambda mechanism: mechanism.name,
)
def test_every_mechanism_leads_to_a_student_and_a_statement(tmp_path, mechanism):
    result = run(tmp_path, FakeEnsemble(table(95)), mechanism=mechanism)
    assert statement(tmp_path)["mechanism"] == mechanism.to_dict()
    assert statement(tmp_path) == json.loads(json.dumps(result.published.statement.to_dict()))
    expected, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=1e-5)
    assert result.published.statement.epsilon == expected
    assert 0.0 <= result.epsilon_data_dependent <= result.published.statement.epsilon
    # At a gap of 90 votes the noise hardly ever wins.
    assert result.measured.label_accuracy.value > 0.8
    assert result.measured.label_accuracy.num_samples == NUM_QUERIES
    assert result.measured.student_accuracy.num_samples == len(PUBLIC) - POOL
    for version in ("tensorflow", "keras", "opendp"):
        assert result.published.statement.versions[version][0].isdecimal()
    markdown = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert f"(ε = {epsilon_text(expected)}, δ = 1e-5)" in markdown


def test_released_holds_what_it_may_and_sensitive_is_closed(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(95)))
    released = tmp_path / "released"
    assert {path.name for path in released.iterdir()} == {
        "labels.json",
        "labels.npz",
        "logs",
        "privacy_statement.json",
        "privacy_statement.md",
        "student",
    }
    assert result.published.student_folder == released / "student" / "1"
    found = labels(tmp_path)
    assert set(found) == {"queries", "query_indices", "labels"}
    assert found["labels"].shape == found["query_indices"].shape == (NUM_QUERIES,)
    np.testing.assert_array_equal(found["labels"], result.labels.released.labels)
    travelling = result.published.student_folder / "assets.extra" / "privacy_statement.json"
    assert json.loads(travelling.read_text()) == statement(tmp_path)
    assert (tmp_path / "sensitive").stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "sensitive").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def release(folder: pathlib.Path, **changes) -> dict:
    """Draws a sanitised epsilon of a run's votes and returns what was published of it."""
    request = ReleaseRequest(kinds=("sanitised",), delta=1e-5)
    source = read_run(folder).source
    released = release_of(source, request, SystemNoise(), folder / "sensitive", **changes)
    found = dataclasses.asdict(released.sanitised)
    del found["plan"]
    return found | {"plan_was_fixed": released.plan_was_fixed}


def test_a_later_student_of_the_same_labels_names_what_was_released(tmp_path):
    ensemble, mechanism = FakeEnsemble(table(95)), mechanisms.PermuteAndFlip(gamma=0.05)
    run(tmp_path, ensemble, mechanism=mechanism)
    assert statement(tmp_path)["sanitised"] is None
    published = release(tmp_path)
    result = run(tmp_path, ensemble, mechanism=mechanism, seed=1)
    found = statement(tmp_path)
    assert found["sanitised"] == published
    assert published["worst_case_epsilon"] >= found["epsilon_ledger"] > found["epsilon"]
    travelling = result.published.student_folder / "assets.extra" / "privacy_statement.json"
    assert json.loads(travelling.read_text()) == found
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(found, ledger)
    page = tmp_path / "released/privacy_statement.md"
    assert "privately released data-dependent" in page.read_text()
    # More labels: what was released does not cover them.
    run(tmp_path, ensemble, mechanism=mechanism, num_queries=NUM_QUERIES + 1)
    assert statement(tmp_path)["sanitised"] is None
    assert "privately released data-dependent" not in page.read_text()


@pytest.mark.usefixtures("few_steps")
def test_a_student_of_adaptive_queries_names_no_release(tmp_path):
    ensemble, mechanism = FakeEnsemble(table(95)), mechanisms.PermuteAndFlip(gamma=0.05)
    run(tmp_path, ensemble, mechanism=mechanism, num_queries=POOL)
    release(tmp_path)
    result = run(tmp_path, ensemble, mechanism=mechanism, query_strategy="uncertain")
    assert result.published.statement.sanitised is None
    assert "would not hold" in (tmp_path / "released" / "privacy_statement.md").read_text()


def test_nothing_released_depends_on_votes_but_through_the_labels(tmp_path):
    # Two ensembles of different votes, digests and agreement, that give the same labels.
    right = PUBLIC.labels[:POOL]
    unanimous = np.tile(right, (NUM_TEACHERS, 1))
    divided = unanimous.copy()
    divided[:20] = (right + np.arange(20)[:, None]) % 10
    mechanism = mechanisms.LaplaceNoisyMax(gamma=5.0)
    for name, votes, digest in (("one", unanimous, "12" * 32), ("two", divided, "34" * 32)):
        run(tmp_path / name, FakeEnsemble(votes, digest), mechanism=mechanism, noise_seed=3)
    for name in ("one", "two"):
        found = labels(tmp_path / name)
        np.testing.assert_array_equal(found["labels"], right[:NUM_QUERIES])
        np.testing.assert_array_equal(found["query_indices"], np.arange(NUM_QUERIES))
    # The student's digest is in there: the students are the same bit for bit.
    statements = [statement(tmp_path / name) for name in ("one", "two")]
    # Time and a secret salt make every ledger's head another one.
    heads = [one_statement.pop("ledger_head")[1] for one_statement in statements]
    verified = [one_statement["sections"].pop("Verify")[0] for one_statement in statements]
    assert verified[0].replace(heads[0][:8], "") == verified[1].replace(heads[1][:8], "")
    assert statements[0] == statements[1]
    assert heads[0] != heads[1]
    one, two = (tmp_path / name / "released" for name in ("one", "two"))
    for path in ("privacy_statement.md", "student/1/assets.extra/privacy_statement.json"):
        texts = [
            (side / path).read_text().replace(head, "").replace(head[:8], "")
            for side, head in zip((one, two), heads, strict=True)
        ]
        assert texts[0] == texts[1]
    files = [{path.relative_to(side) for path in side.glob("student/**/*")} for side in (one, two)]
    assert files[0] == files[1]


def test_asking_again_costs_nothing_and_answers_the_same(tmp_path):
    ensemble = FakeEnsemble(table(60))
    first = run(tmp_path, ensemble)
    before = labels(tmp_path)["labels"]
    # Another training seed, and noise that would draw otherwise.
    second = run(tmp_path, ensemble, seed=9)
    np.testing.assert_array_equal(labels(tmp_path)["labels"], before)
    assert ensemble.asked == NUM_QUERIES
    assert second.published.statement.epsilon_ledger == first.published.statement.epsilon_ledger
    assert second.published.statement.epsilon == first.published.statement.epsilon
    assert second.published.statement.student_digest != first.published.statement.student_digest
    assert second.published.student_folder.name == "2"


def test_more_queries_and_other_mechanisms_are_charged(tmp_path):
    ensemble = FakeEnsemble(table(90))
    first = run(tmp_path, ensemble)
    more = run(tmp_path, ensemble, num_queries=NUM_QUERIES + 10)
    assert ensemble.asked == NUM_QUERIES + 10
    released = (result.labels.released.labels for result in (first, more))
    np.testing.assert_array_equal(next(released), next(released)[:NUM_QUERIES])
    assert more.published.statement.epsilon_ledger > first.published.statement.epsilon_ledger
    assert more.published.statement.epsilon == pytest.approx(
        more.published.statement.epsilon_ledger
    )
    other = run(tmp_path, ensemble, mechanism=mechanisms.PermuteAndFlip(gamma=0.1))
    assert other.published.statement.epsilon_ledger > more.published.statement.epsilon_ledger
    # This student's labels alone cost what the first did; the ensemble's cost stands beside it.
    assert other.published.statement.epsilon < other.published.statement.epsilon_ledger


def test_seeded_noise_is_never_called_private(tmp_path):
    ensemble = FakeEnsemble(table(90))
    run(tmp_path / "one", ensemble, noise_seed=1)
    run(tmp_path / "two", ensemble, noise_seed=1)
    one, two = (labels(tmp_path / name)["labels"] for name in ("one", "two"))
    np.testing.assert_array_equal(one, two)
    assert statement(tmp_path / "one")["secure_noise"] is False
    assert "nothing is private" in statement(tmp_path / "one")["kind"]
    page = (tmp_path / "one" / "released" / "privacy_statement.md").read_text().lower()
    assert "nothing" in page
    assert "private" in page
    # Not even after a later run with real noise: the ensemble has leaked.
    later = run(tmp_path / "one", ensemble, num_queries=NUM_QUERIES + 1)
    assert later.published.statement.secure_noise is False


def test_two_runs_with_the_systems_noise_differ(tmp_path):
    # At 30 votes of difference and a scale of 50 two draws of 40 labels are never the same.
    ensemble = FakeEnsemble(table(30))
    mechanism = mechanisms.LaplaceNoisyMax(gamma=0.02)
    for name in ("one", "two"):
        run(tmp_path / name, ensemble, mechanism=mechanism)
    one, two = (labels(tmp_path / name)["labels"] for name in ("one", "two"))
    assert not np.array_equal(one, two)


def test_a_budget_that_does_not_suffice_releases_nothing(tmp_path):
    ensemble = FakeEnsemble(table(90))
    with pytest.raises(LedgerError, match="epsilon_budget: expected at most") as caught:
        run(tmp_path, ensemble, epsilon_budget=0.5)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("released/*")) == []
    # The budget stands: another run can't slip past it, a smaller one fits.
    with pytest.raises(LedgerError):
        run(tmp_path, ensemble, epsilon_budget=50.0)
    result = run(tmp_path, ensemble, epsilon_budget=0.5, num_queries=1)
    assert result.published.statement.epsilon_ledger <= 0.5
    assert result.published.statement.epsilon_budget == 0.5
    assert result.published.statement.budget_was_raised is False


def test_raising_the_budget_is_stated_for_ever(tmp_path):
    ensemble = FakeEnsemble(table(90))
    run(tmp_path, ensemble, epsilon_budget=0.5, num_queries=1)
    with pytest.raises(ValueError, match="replace_budget: expected"):
        run(tmp_path, ensemble, replace_budget=True)
    raised = run(tmp_path, ensemble, epsilon_budget=50.0, replace_budget=True)
    assert raised.published.statement.budget_was_raised is True
    lowered = run(tmp_path, ensemble, epsilon_budget=40.0, replace_budget=True)
    assert lowered.published.statement.budget_was_raised is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_queries": 0}, "num_queries: expected at least 1"),
        ({"query_strategy": "nosuch"}, "strategy: expected auto, first, random"),
        ({"query_strategy": "random", "query_rounds": 2}, "rounds: expected 1"),
        ({"evaluate_on": "everything"}, "evaluate_on: expected held_out or all_unqueried"),
        ({"num_queries": 401}, "num_queries: expected from 1 to the pool's 400"),
        ({"pool_size": 0}, "pool_size: expected"),
        ({"pool_size": 597}, "pool_size: expected"),
        ({"model": "nosuch"}, "model: expected"),
        ({"mechanism": mechanisms.Plurality()}, "mechanism: expected one that draws noise"),
        ({"mechanism": mechanisms.LaplaceNoisyMax(gamma=1e-12)}, "expected"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_costs_nothing(tmp_path, change, message):
    ensemble = FakeEnsemble(table(90))
    with pytest.raises(ValueError, match=message):
        run(tmp_path, ensemble, **change)
    assert ensemble.asked == 0
    assert not (tmp_path / "released").exists()
    result = run(tmp_path, ensemble, num_queries=1)
    expected, _ = mechanisms.LaplaceNoisyMax(gamma=0.1).data_independent_epsilon(
        num_queries=1, delta=1e-5
    )
    assert result.published.statement.epsilon_ledger == pytest.approx(expected)


def test_an_ensemble_for_other_data_is_refused(tmp_path):
    class ForOthers(FakeEnsemble):
        dataset = dataclasses.replace(PUBLIC.dataset, name="others")

    ensemble = ForOthers(table(90))
    with pytest.raises(ValueError, match="teachers: expected those for digits"):
        run(tmp_path, ensemble)
    assert ensemble.asked == 0


def test_a_ledger_belongs_to_one_ensemble(tmp_path):
    run(tmp_path, FakeEnsemble(table(90)), num_queries=1)
    with pytest.raises(LedgerError, match="another ensemble"):
        run(tmp_path, FakeEnsemble(table(90), "cd" * 32), num_queries=1)


def test_labels_are_kept_only_if_asked_for(tmp_path):
    run(tmp_path, FakeEnsemble(table(95)), save_labels=False)
    assert list((tmp_path / "released").glob("labels.*")) == []
    assert (tmp_path / "released" / "student" / "1").is_dir()


class Killed(BaseException):
    """What a kill looks like from inside."""


@dataclasses.dataclass
class DyingEnsemble(FakeEnsemble):
    """Dies when asked the second time."""

    calls: int = 0

    def votes(self, inputs, progress=None) -> Votes:
        self.calls += 1
        if self.calls == 2:
            raise Killed
        return super().votes(inputs)


def unanimous() -> np.ndarray:
    """Votes that all noise of scale 1/5 leaves as they are."""
    return np.tile(PUBLIC.labels, (NUM_TEACHERS, 1))


@pytest.mark.usefixtures("few_steps")
def test_a_run_killed_between_rounds_asks_the_same_again_and_charges_no_round_twice(
    tmp_path, monkeypatch
):
    mechanism = mechanisms.LaplaceNoisyMax(gamma=5.0)
    options = {"mechanism": mechanism, "query_strategy": "uncertain", "query_rounds": 3}
    dying = DyingEnsemble(unanimous())
    with pytest.raises(Killed):
        run(tmp_path / "killed", dying, **options)
    assert dying.asked == NUM_QUERIES // 3
    assert not (tmp_path / "killed" / "released").exists()
    again = run(tmp_path / "killed", dying, **options)
    assert dying.asked == NUM_QUERIES
    # On another machine: on this one it would be charged what the same teachers spent before.
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "state"))
    whole = run(tmp_path / "whole", FakeEnsemble(unanimous()), **options)
    np.testing.assert_array_equal(again.labels.queries, whole.labels.queries)
    assert again.published.statement.student_digest == whole.published.statement.student_digest
    # All rounds, each charged once, and one record for all of them.
    for result in (again, whole):
        expected, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=1e-5)
        assert result.published.statement.epsilon == expected
        assert result.published.statement.epsilon_ledger == pytest.approx(expected)
        assert len(result.published.statement.ledger_rows) == 3


@pytest.mark.usefixtures("few_steps")
def test_queries_that_depend_on_answers_have_no_data_dependent_epsilon(tmp_path):
    ensemble = FakeEnsemble(table(95))
    adaptive = run(tmp_path, ensemble, query_strategy="uncertain", query_rounds=2)
    assert adaptive.epsilon_data_dependent is None
    assert statement(tmp_path)["query_strategy"] == "uncertain"
    source = read_run(tmp_path).source
    assert source.groups is None
    assert source.num_queries == NUM_QUERIES
    # Who learns from the same labels again, by whichever way, has none either.
    ledger_rows = adaptive.published.statement.ledger_rows
    same = run(tmp_path, ensemble, query_strategy="random", num_queries=20)
    assert set(same.published.statement.ledger_rows) <= set(ledger_rows)
    assert same.epsilon_data_dependent is None
    fixed = run(tmp_path / "other", FakeEnsemble(table(95)), query_strategy="random")
    assert 0.0 < fixed.epsilon_data_dependent <= fixed.published.statement.epsilon
    assert statement(tmp_path / "other")["query_strategy"] == "random"
    assert read_run(tmp_path / "other").source.groups is not None


@pytest.mark.usefixtures("few_steps")
def test_a_round_is_charged_only_if_all_later_ones_can_be(tmp_path):
    ensemble = FakeEnsemble(table(95))
    cost, _ = mechanisms.LaplaceNoisyMax(gamma=0.1).data_independent_epsilon(
        num_queries=NUM_QUERIES - 1, delta=1e-5
    )
    options = {"query_strategy": "uncertain", "query_rounds": 2, "epsilon_budget": cost}
    with pytest.raises(LedgerError, match="epsilon_budget: expected at most"):
        run(tmp_path, ensemble, **options)
    assert ensemble.asked == 0
    result = run(tmp_path, ensemble, num_queries=NUM_QUERIES - 1, **options)
    assert result.published.statement.epsilon_ledger <= cost
    # What was charged is free, although nothing is left.
    again = run(tmp_path, ensemble, num_queries=NUM_QUERIES - 1, **options)
    assert again.published.statement.epsilon_ledger == result.published.statement.epsilon_ledger


@pytest.mark.usefixtures("few_steps")
def test_matched_inputs_are_learnt_from_and_not_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(siamese, "CONFIDENT", 1e-9)  # everything matches something
    options = {"mechanism": mechanisms.LaplaceNoisyMax(gamma=5.0), "query_rounds": 1}
    result = run(tmp_path, FakeEnsemble(unanimous()), query_strategy="siamese", **options)
    assert result.labels.num_inferred == POOL - NUM_QUERIES
    assert result.measured.inferred_accuracy.num_samples == POOL - NUM_QUERIES
    assert result.measured.label_accuracy.num_samples == NUM_QUERIES
    assert (
        result.published.statement.num_queries
        == result.published.statement.num_answered
        == NUM_QUERIES
    )
    # What is published as labels is what was charged.
    assert labels(tmp_path)["labels"].shape == (NUM_QUERIES,)
    fewer = run(tmp_path, FakeEnsemble(unanimous()), query_strategy="random", **options)
    assert fewer.published.statement.epsilon_ledger == result.published.statement.epsilon_ledger
    assert fewer.labels.num_inferred == 0
    assert fewer.measured.inferred_accuracy is None
    assert fewer.published.statement.student_digest != result.published.statement.student_digest


def test_all_that_was_not_asked_for_can_evaluate(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(95)), evaluate_on="all_unqueried")
    assert result.measured.student_accuracy.num_samples == len(PUBLIC) - NUM_QUERIES
    held_out = PUBLIC.split(NUM_QUERIES).held_out
    assert result.measured.constant_answer == held_out.majority_share


@pytest.mark.parametrize(
    ("augmentation", "student", "strategy", "named"),
    [
        ("none", "consistency", "medoids", ["student consistency", "strategy medoids"]),
        ("none", "consistency", "first", ["student consistency"]),
        ("none", "supervised", "diverse", ["strategy diverse"]),
        ("none", "supervised", "first", []),
        ("shift", "consistency", "medoids", []),
    ],
)
def test_it_warns_of_raw_pixels_where_the_recipe_needs_changed_images(
    augmentation, student, strategy, named
):
    dataset = dataclasses.replace(PUBLIC.dataset, augmentation=augmentation)
    plan = types.SimpleNamespace(queries=types.SimpleNamespace(strategy=strategy))
    heard = []
    settings = StudentSettings(student=student)
    warn_of_raw_pixels(settings, plan, dataset, Reporting(warn=heard.append))
    assert len(heard) == bool(named)
    for what in named:
        assert what in heard[0]
