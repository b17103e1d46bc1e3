import dataclasses
import json
import pathlib

import numpy as np
import pytest

from pate_tf import artifacts, student_run
from pate_tf.accounting import mechanisms
from pate_tf.accounting.statement import Sanitised
from pate_tf.aggregation.noise import SeededNoise, SystemNoise
from pate_tf.analysis import run as analysis_run
from pate_tf.analysis.ledger import opened
from pate_tf.analysis.release import ReleaseRequest, ReleaseStore
from pate_tf.analysis.statement import check_statement
from pate_tf.analysis.votes import read_ledgers
from pate_tf.data import catalogue as data
from pate_tf.ledger import LedgerError
from pate_tf.queries import between_rounds, siamese
from pate_tf.queries.config import QueryConfig
from pate_tf.records import Votes
from pate_tf.students.config import StudentConfig

NUM_TEACHERS = 100
NUM_QUERIES = 40
POOL = 400
PUBLIC = data.load_public("digits")
PLACES = {row.tobytes(): place for place, row in enumerate(PUBLIC.inputs)}


@dataclasses.dataclass
class FakeEnsemble:
    """Votes that a test chooses; counts how often it was asked."""

    table: np.ndarray
    digest: str = "ab" * 32
    asked: int = 0

    dataset = PUBLIC.dataset
    unit = "record"

    @property
    def num_teachers(self) -> int:
        return len(self.table)

    def votes(self, inputs, progress=None) -> Votes:
        self.asked += len(inputs)
        return Votes(self.table[:, [PLACES[row.tobytes()] for row in inputs]], 10)


def table(agreement: int, seed: int = 0) -> np.ndarray:
    """Votes `[num_teachers, pool]` of which about `agreement` in a hundred are the true label."""
    random = np.random.default_rng(seed)
    labels = np.tile(PUBLIC.labels[:POOL], (NUM_TEACHERS, 1))
    agree = random.uniform(0, 100, labels.shape) < agreement
    return np.where(agree, labels, random.integers(0, 10, labels.shape))


def run(
    folder: pathlib.Path,
    ensemble: FakeEnsemble,
    *,
    mechanism=None,
    noise=None,
    epsilon_budget=None,
    delta=1e-5,
    num_queries=NUM_QUERIES,
    query_strategy="first",
    query_rounds=None,
    pool_size=POOL,
    seed=0,
    model="mlp",
    save_labels=True,
    evaluate_on="held_out",
    replace_budget=False,
):
    directory = artifacts.RunDirectory(folder)
    with student_run.open_ledger(
        directory.sensitive,
        teachers=ensemble,
        delta=delta,
        epsilon_budget=epsilon_budget,
        replace_budget=replace_budget,
    ) as ledger:
        return student_run.run_student(
            config=StudentConfig(
                model=model, max_steps=20, batch_size=16, learning_rate=0.003, seed=seed
            ),
            public=PUBLIC,
            pool_size=pool_size,
            queries=QueryConfig(
                strategy=query_strategy, num_queries=num_queries, rounds=query_rounds
            ),
            teachers=ensemble,
            ledger=ledger,
            mechanism=mechanism or mechanisms.LaplaceNoisyMax(0.1),
            noise=noise or SystemNoise(),
            run_directory=directory,
            save_labels=save_labels,
            evaluate_on=evaluate_on,
        )


def statement(folder: pathlib.Path) -> dict:
    return json.loads((folder / "released" / "privacy_statement.json").read_text())


def labels(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return artifacts.read_arrays(folder / "released" / "labels.npz")


@pytest.mark.parametrize(
    "mechanism",
    [
        mechanisms.LaplaceNoisyMax(0.1),
        mechanisms.PermuteAndFlip(0.1),
        mechanisms.ExponentialMechanism(0.1),
        mechanisms.GaussianNoisyMax(10.0),
    ],
    ids=lambda mechanism: mechanism.name,
)
def test_every_mechanism_leads_to_a_student_and_a_statement(tmp_path, mechanism):
    result = run(tmp_path, FakeEnsemble(table(95)), mechanism=mechanism)
    assert statement(tmp_path)["mechanism"] == mechanism.to_dict()
    assert statement(tmp_path) == json.loads(json.dumps(result.statement.to_dict()))
    expected, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=1e-5)
    assert result.statement.epsilon == expected
    assert 0.0 <= result.epsilon_data_dependent <= result.statement.epsilon
    # At a gap of 90 votes the noise hardly ever wins.
    assert result.label_accuracy.value > 0.8
    assert result.label_accuracy.num_samples == NUM_QUERIES
    assert result.student_accuracy.num_samples == len(PUBLIC) - POOL
    for version in ("tensorflow", "keras", "opendp"):
        assert result.statement.versions[version][0].isdecimal()
    markdown = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert f"{expected:.3f}"[:4] in markdown


def test_released_holds_what_it_may_and_sensitive_is_closed(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(95)))
    released = tmp_path / "released"
    assert {path.name for path in released.iterdir()} == {
        "labels.npz",
        "logs",
        "privacy_statement.json",
        "privacy_statement.md",
        "student",
    }
    assert result.student_folder == released / "student" / "1"
    found = labels(tmp_path)
    assert set(found) == {"query_indices", "labels"}
    assert found["labels"].shape == found["query_indices"].shape == (NUM_QUERIES,)
    np.testing.assert_array_equal(found["labels"], result.queried.released.labels)
    travelling = result.student_folder / "assets.extra" / "privacy_statement.json"
    assert json.loads(travelling.read_text()) == statement(tmp_path)
    assert (tmp_path / "sensitive").stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "sensitive").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def release(folder: pathlib.Path, **changes) -> dict:
    """Draws a sanitised epsilon of a run's votes and returns what was published of it."""
    directory = artifacts.RunDirectory(folder)
    with opened([directory.sensitive]) as ledgers:
        source = read_ledgers(ledgers, votes_needed=True)
    released = ReleaseStore(directory.sensitive).release(
        source, ReleaseRequest(kinds=("sanitised",), delta=1e-5), SystemNoise(), **changes
    )
    return dataclasses.asdict(Sanitised.of(released.sanitised))


def test_a_later_student_of_the_same_labels_names_what_was_released(tmp_path):
    ensemble, mechanism = FakeEnsemble(table(95)), mechanisms.PermuteAndFlip(0.05)
    run(tmp_path, ensemble, mechanism=mechanism)
    assert statement(tmp_path)["sanitised"] is None
    published = release(tmp_path)
    result = run(tmp_path, ensemble, mechanism=mechanism, seed=1)
    found = statement(tmp_path)
    assert found["sanitised"] == published
    assert published["worst_case_epsilon"] >= found["epsilon_ensemble"] > found["epsilon"]
    travelling = result.student_folder / "assets.extra" / "privacy_statement.json"
    assert json.loads(travelling.read_text()) == found
    with opened([tmp_path / "sensitive"]) as (ledger,):
        check_statement(found, ledger)
    assert "None is named here" not in (tmp_path / "released/privacy_statement.md").read_text()
    # More labels: what was released does not cover them.
    run(tmp_path, ensemble, mechanism=mechanism, num_queries=NUM_QUERIES + 1)
    assert statement(tmp_path)["sanitised"] is None
    assert "None is named here" in (tmp_path / "released/privacy_statement.md").read_text()


@pytest.mark.usefixtures("few_steps")
def test_a_student_of_adaptive_queries_names_no_release(tmp_path):
    ensemble, mechanism = FakeEnsemble(table(95)), mechanisms.PermuteAndFlip(0.05)
    run(tmp_path, ensemble, mechanism=mechanism, num_queries=POOL)
    release(tmp_path)
    result = run(tmp_path, ensemble, mechanism=mechanism, query_strategy="uncertain")
    assert result.statement.sanitised is None
    assert "would not hold" in (tmp_path / "released" / "privacy_statement.md").read_text()


def test_nothing_released_depends_on_votes_but_through_the_labels(tmp_path):
    # Two ensembles of different votes, digests and agreement, that give the same labels.
    right = PUBLIC.labels[:POOL]
    unanimous = np.tile(right, (NUM_TEACHERS, 1))
    divided = unanimous.copy()
    divided[:20] = (right + np.arange(20)[:, None]) % 10
    mechanism = mechanisms.LaplaceNoisyMax(5.0)
    for name, votes, digest in (("one", unanimous, "12" * 32), ("two", divided, "34" * 32)):
        run(tmp_path / name, FakeEnsemble(votes, digest), mechanism=mechanism, noise=SeededNoise(3))
    for name in ("one", "two"):
        found = labels(tmp_path / name)
        np.testing.assert_array_equal(found["labels"], right[:NUM_QUERIES])
        np.testing.assert_array_equal(found["query_indices"], np.arange(NUM_QUERIES))
    # The student's digest is in there: the students are the same bit for bit.
    statements = [statement(tmp_path / name) for name in ("one", "two")]
    # Time and a secret salt make every ledger's head another one.
    heads = [one_statement.pop("ledger_head")[1] for one_statement in statements]
    assert statements[0] == statements[1]
    assert heads[0] != heads[1]
    one, two = (tmp_path / name / "released" for name in ("one", "two"))
    for path in ("privacy_statement.md", "student/1/assets.extra/privacy_statement.json"):
        texts = [
            (side / path).read_text().replace(head, "")
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
    assert second.statement.epsilon_ensemble == first.statement.epsilon_ensemble
    assert second.statement.epsilon == first.statement.epsilon
    assert second.statement.student_digest != first.statement.student_digest
    assert second.student_folder.name == "2"


def test_more_queries_and_other_mechanisms_are_paid_for(tmp_path):
    ensemble = FakeEnsemble(table(90))
    first = run(tmp_path, ensemble)
    more = run(tmp_path, ensemble, num_queries=NUM_QUERIES + 10)
    assert ensemble.asked == NUM_QUERIES + 10
    released = (result.queried.released.labels for result in (first, more))
    np.testing.assert_array_equal(next(released), next(released)[:NUM_QUERIES])
    assert more.statement.epsilon_ensemble > first.statement.epsilon_ensemble
    assert more.statement.epsilon == pytest.approx(more.statement.epsilon_ensemble)
    other = run(tmp_path, ensemble, mechanism=mechanisms.PermuteAndFlip(0.1))
    assert other.statement.epsilon_ensemble > more.statement.epsilon_ensemble
    # This student's labels alone cost what the first did; the ensemble's cost stands beside it.
    assert other.statement.epsilon < other.statement.epsilon_ensemble


def test_seeded_noise_is_never_called_private(tmp_path):
    ensemble = FakeEnsemble(table(90))
    run(tmp_path / "one", ensemble, noise=SeededNoise(1))
    run(tmp_path / "two", ensemble, noise=SeededNoise(1))
    one, two = (labels(tmp_path / name)["labels"] for name in ("one", "two"))
    np.testing.assert_array_equal(one, two)
    assert statement(tmp_path / "one")["secure_noise"] is False
    assert "nothing is private" in statement(tmp_path / "one")["kind"]
    page = (tmp_path / "one" / "released" / "privacy_statement.md").read_text().lower()
    assert "nothing" in page
    assert "private" in page
    # Not even after a later run with real noise: the ensemble has leaked.
    later = run(tmp_path / "one", ensemble, num_queries=NUM_QUERIES + 1)
    assert later.statement.secure_noise is False


def test_two_runs_with_the_systems_noise_differ(tmp_path):
    # At 30 votes of difference and a scale of 50 two draws of 40 labels are never the same.
    ensemble = FakeEnsemble(table(30))
    mechanism = mechanisms.LaplaceNoisyMax(0.02)
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
    # The budget stands: another run can't slip past it, a smaller one can be paid.
    with pytest.raises(LedgerError):
        run(tmp_path, ensemble, epsilon_budget=50.0)
    result = run(tmp_path, ensemble, epsilon_budget=0.5, num_queries=1)
    assert result.statement.epsilon_ensemble <= 0.5
    assert result.statement.epsilon_budget == 0.5
    assert result.statement.budget_was_raised is False


def test_raising_the_budget_is_stated_for_ever(tmp_path):
    ensemble = FakeEnsemble(table(90))
    run(tmp_path, ensemble, epsilon_budget=0.5, num_queries=1)
    with pytest.raises(ValueError, match="new_budget_i_understand: expected"):
        run(tmp_path, ensemble, replace_budget=True)
    raised = run(tmp_path, ensemble, epsilon_budget=50.0, replace_budget=True)
    assert raised.statement.budget_was_raised is True
    lowered = run(tmp_path, ensemble, epsilon_budget=40.0, replace_budget=True)
    assert lowered.statement.budget_was_raised is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_queries": 0}, "queries: expected at least 1"),
        ({"query_strategy": "nosuch"}, "query_strategy: expected one of"),
        ({"query_strategy": "random", "query_rounds": 2}, "query_rounds: expected 1"),
        ({"evaluate_on": "everything"}, "evaluate_on: expected one of"),
        ({"num_queries": 401}, "queries: expected from 1 to the pool's 400"),
        ({"pool_size": 0}, "stdnt_share: expected"),
        ({"pool_size": 597}, "stdnt_share: expected"),
        ({"model": "nosuch"}, "model: expected"),
        ({"mechanism": mechanisms.Plurality()}, "mechanism: expected one that draws noise"),
        ({"mechanism": mechanisms.LaplaceNoisyMax(1e-12)}, "expected"),
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
    expected, _ = mechanisms.LaplaceNoisyMax(0.1).data_independent_epsilon(
        num_queries=1, delta=1e-5
    )
    assert result.statement.epsilon_ensemble == pytest.approx(expected)


def test_an_ensemble_for_other_data_is_refused(tmp_path):
    class ForOthers(FakeEnsemble):
        dataset = dataclasses.replace(PUBLIC.dataset, name="others")

    ensemble = ForOthers(table(90))
    with pytest.raises(ValueError, match="teachers: expected an ensemble for digits"):
        run(tmp_path, ensemble)
    assert ensemble.asked == 0


def test_a_ledger_belongs_to_one_ensemble(tmp_path):
    run(tmp_path, FakeEnsemble(table(90)), num_queries=1)
    with pytest.raises(LedgerError, match="another ensemble"):
        run(tmp_path, FakeEnsemble(table(90), "cd" * 32), num_queries=1)


def test_labels_are_kept_only_if_asked_for(tmp_path):
    run(tmp_path, FakeEnsemble(table(95)), save_labels=False)
    assert not (tmp_path / "released" / "labels.npz").exists()
    assert (tmp_path / "released" / "student" / "1").is_dir()


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(between_rounds, "STEPS", 30)


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
def test_a_run_killed_between_rounds_asks_the_same_again_and_pays_for_no_round_twice(tmp_path):
    mechanism = mechanisms.LaplaceNoisyMax(5.0)
    options = {"mechanism": mechanism, "query_strategy": "uncertain", "query_rounds": 3}
    dying = DyingEnsemble(unanimous())
    with pytest.raises(Killed):
        run(tmp_path / "killed", dying, **options)
    assert dying.asked == NUM_QUERIES // 3
    assert not (tmp_path / "killed" / "released").exists()
    again = run(tmp_path / "killed", dying, **options)
    assert dying.asked == NUM_QUERIES
    whole = run(tmp_path / "whole", FakeEnsemble(unanimous()), **options)
    np.testing.assert_array_equal(again.queried.queries, whole.queried.queries)
    assert again.statement.student_digest == whole.statement.student_digest
    # All rounds, each charged once, and one record for all of them.
    for result in (again, whole):
        expected, _ = mechanism.data_independent_epsilon(num_queries=NUM_QUERIES, delta=1e-5)
        assert result.statement.epsilon == expected
        assert result.statement.epsilon_ensemble == pytest.approx(expected)
        assert len(result.statement.ledger_rows) == 3


@pytest.mark.usefixtures("few_steps")
def test_queries_that_depend_on_answers_have_no_data_dependent_epsilon(tmp_path):
    ensemble = FakeEnsemble(table(95))
    adaptive = run(tmp_path, ensemble, query_strategy="uncertain", query_rounds=2)
    assert adaptive.epsilon_data_dependent is None
    assert statement(tmp_path)["query_strategy"] == "uncertain"
    source = analysis_run.read_run(tmp_path).source
    assert source.groups is None
    assert source.num_queries == NUM_QUERIES
    # Who learns from the same labels again, by whichever way, has none either.
    ledger_rows = adaptive.statement.ledger_rows
    same = run(tmp_path, ensemble, query_strategy="random", num_queries=20)
    assert set(same.statement.ledger_rows) <= set(ledger_rows)
    assert same.epsilon_data_dependent is None
    fixed = run(tmp_path / "other", FakeEnsemble(table(95)), query_strategy="random")
    assert 0.0 < fixed.epsilon_data_dependent <= fixed.statement.epsilon
    assert statement(tmp_path / "other")["query_strategy"] == "random"
    assert analysis_run.read_run(tmp_path / "other").source.groups is not None


@pytest.mark.usefixtures("few_steps")
def test_a_round_is_paid_for_only_if_all_later_ones_can_be(tmp_path):
    ensemble = FakeEnsemble(table(95))
    cost, _ = mechanisms.LaplaceNoisyMax(0.1).data_independent_epsilon(
        num_queries=NUM_QUERIES - 1, delta=1e-5
    )
    options = {"query_strategy": "uncertain", "query_rounds": 2, "epsilon_budget": cost}
    with pytest.raises(LedgerError, match="epsilon_budget: expected at most"):
        run(tmp_path, ensemble, **options)
    assert ensemble.asked == 0
    result = run(tmp_path, ensemble, num_queries=NUM_QUERIES - 1, **options)
    assert result.statement.epsilon_ensemble <= cost
    # What is paid for is free, although nothing is left.
    again = run(tmp_path, ensemble, num_queries=NUM_QUERIES - 1, **options)
    assert again.statement.epsilon_ensemble == result.statement.epsilon_ensemble


@pytest.mark.usefixtures("few_steps")
def test_matched_inputs_are_learnt_from_and_not_paid_for(tmp_path, monkeypatch):
    monkeypatch.setattr(siamese, "SURE", 1e-9)  # everything matches something
    options = {"mechanism": mechanisms.LaplaceNoisyMax(5.0), "query_rounds": 1}
    result = run(tmp_path, FakeEnsemble(unanimous()), query_strategy="siamese", **options)
    assert result.queried.num_inferred == POOL - NUM_QUERIES
    assert result.inferred_accuracy.num_samples == POOL - NUM_QUERIES
    assert result.label_accuracy.num_samples == NUM_QUERIES
    assert result.statement.num_queries == result.statement.num_answered == NUM_QUERIES
    # What is published as labels is what was paid for.
    assert labels(tmp_path)["labels"].shape == (NUM_QUERIES,)
    fewer = run(tmp_path, FakeEnsemble(unanimous()), query_strategy="random", **options)
    assert fewer.statement.epsilon_ensemble == result.statement.epsilon_ensemble
    assert fewer.queried.num_inferred == 0
    assert fewer.inferred_accuracy is None
    assert fewer.statement.student_digest != result.statement.student_digest


def test_all_that_was_not_asked_for_can_evaluate(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(95)), evaluate_on="all_unqueried")
    assert result.student_accuracy.num_samples == len(PUBLIC) - NUM_QUERIES
    held_out = PUBLIC.split(NUM_QUERIES)[1]
    assert result.constant_answer == held_out.majority_share
