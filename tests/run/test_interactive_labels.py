"""Whole runs in which a student of earlier labels answers most queries itself."""

import numpy as np
import pytest
from chosen_votes import (
    NUM_QUERIES,
    POOL,
    PUBLIC,
    FakeEnsemble,
    opened,
    planned,
    released,
    run,
    statement,
    table,
)

from pate_tf.accounting.mechanisms import InteractiveGaussianNoisyMax
from pate_tf.ledger import Ledger
from pate_tf.queries import strategies
from pate_tf.release.votes import stored_counts
from pate_tf.statement import check_statement

SPLIT = PUBLIC.split(POOL)
ROUNDS = 4
MECHANISM = InteractiveGaussianNoisyMax(
    threshold=30.0, sigma_threshold=8.0, sigma=4.0, student_confidence=0.6, label_share=0.6
)


ASKED = {"mechanism": MECHANISM, "rounds": ROUNDS}


@pytest.fixture
def students(monkeypatch) -> list[int]:
    """Students that know every label; how many labels each learned from."""
    learnt = []

    def know_all(pool, released, seed):
        learnt.append(len(released.labels))
        votes = FakeEnsemble(table(100)).votes(pool.inputs).labels
        return 0.9 * np.eye(pool.dataset.num_classes)[votes[0]] + 0.1 / pool.dataset.num_classes

    monkeypatch.setattr(strategies, "predictions", know_all)
    return learnt


def test_each_round_is_tested_and_charged_and_the_student_answers_from_the_second_on(
    tmp_path, students
):
    with opened(tmp_path, FakeEnsemble(table(100))) as labeller, labeller.ledger() as ledger:
        labels = released(labeller, SPLIT.pool, **ASKED)
        assert ledger.charges == {MECHANISM: NUM_QUERIES}
        assert labels.released.cost.epsilon == ledger.spent().epsilon
        rows = [row for row in ledger.history() if row.kind == "debit"]
        assert [row.details["num_queries"] for row in rows] == [NUM_QUERIES // ROUNDS] * ROUNDS
        # Draws that heed a student depend on earlier labels: no data-dependent cost holds.
        assert [batch.adaptive for batch in stored_counts(ledger)] == [False, True, True, True]
        # The first round has no student: six in ten of its queries are the teachers'.
        assert students[0] == 6
        answered = labels.released.num_answered
        assert answered >= 6 + 30 * 0.9
        again = released(labeller, SPLIT.pool, **ASKED)
        assert ledger.charges == {MECHANISM: NUM_QUERIES}
        np.testing.assert_array_equal(again.released.labels, labels.released.labels)
    assert len(students) == 2 * (ROUNDS - 1)


@pytest.mark.usefixtures("students")
def test_queries_that_depend_on_answers_are_refused():
    with pytest.raises(ValueError, match="strategy: expected one that fixes all queries in adv"):
        planned(FakeEnsemble(table(100)), SPLIT.pool, **ASKED, strategy="uncertain")


def test_a_student_is_made_and_stated(tmp_path):
    """With real students between rounds."""
    run(tmp_path, FakeEnsemble(table(100)), mechanism=MECHANISM, query_rounds=2)
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(statement(tmp_path), ledger)
    assert statement(tmp_path)["mechanism"] == MECHANISM.to_dict()
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert "the student's own class is the label" in page and "at most 0.6" in page
