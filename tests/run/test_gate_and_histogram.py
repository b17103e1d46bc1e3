"""Whole runs with mechanisms that release nothing at times, or more than labels."""

import dataclasses

import numpy as np
import pytest
from analysis_helpers import read_run
from chosen_votes import (
    NUM_QUERIES,
    POOL,
    PUBLIC,
    FakeEnsemble,
    opened,
    released,
    run,
    statement,
    table,
)

from pate_tf.accounting.charge import shares
from pate_tf.accounting.mechanisms import (
    LATTICE,
    GaussianHistogram,
    StabilityGate,
    StabilityGateOrHistogram,
)
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.analysis import analyse
from pate_tf.ledger import Ledger
from pate_tf.queries.labels import Labels
from pate_tf.statement import check_statement
from pate_tf.statement.publishing import publish_model

SPLIT = PUBLIC.split(POOL)
GATE = StabilityGate(epsilon=1.0, delta=1e-5)


def test_a_gated_student_is_published_with_its_worst_case(tmp_path):
    result = run(tmp_path, FakeEnsemble(table(100)), mechanism=GATE)
    assert (result.statement.epsilon, result.statement.delta) == (1.0, 1e-5)
    assert len(result.labels) == NUM_QUERIES
    assert result.published.measured["label_accuracy"] == 1.0
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(statement(tmp_path), ledger)
    analysis = analyse(read_run(tmp_path))
    assert (analysis.epsilon, analysis.num_answered) == (1.0, NUM_QUERIES)
    assert analysis.bounds == {}


def test_a_gate_that_stays_shut_says_what_was_charged_and_what_to_do(tmp_path):
    divided = np.tile(np.arange(100)[:, None] % 2, (1, 400))
    with (
        pytest.warns(UserWarning, match="none of 40 queries got one, and epsilon 1 at") as told,
        pytest.raises(ValueError, match="at least 1 released label, got none"),
    ):
        run(tmp_path, FakeEnsemble(divided), mechanism=GATE)
    assert "fewer queries" in str(told[0].message)
    assert not (tmp_path / "released" / "student").exists()
    analysis = analyse(read_run(tmp_path))
    assert (analysis.epsilon, analysis.num_answered) == (1.0, 0)


def test_weights_and_noisy_counts_survive_a_folder_and_must_be_the_ledgers(tmp_path):
    teachers = FakeEnsemble(table(95))
    with opened(tmp_path, teachers) as labeller:
        labels = released(labeller, SPLIT.pool, mechanism=GaussianHistogram(sigma=20.0))
    np.testing.assert_array_equal(
        labels.training_labels.weights, shares(labels.released.noisy_counts)
    )
    assert 0.3 < labels.training_labels.weights.max(axis=1).mean() < 0.9
    labels.save(tmp_path / "kept")
    again = Labels.load(tmp_path / "kept", SPLIT.pool)
    np.testing.assert_array_equal(again.training_labels.weights, labels.training_labels.weights)
    np.testing.assert_array_equal(again.released.noisy_counts, labels.released.noisy_counts)
    assert "weights" in np.load(tmp_path / "kept" / "labels.npz")
    forged = dataclasses.replace(
        labels.released, noisy_counts=labels.released.noisy_counts + LATTICE
    )
    with (
        opened(tmp_path, teachers).ledger() as ledger,
        pytest.raises(ValueError, match="labels: expected labels that were charged to this ledger"),
    ):
        publish_model(
            None,
            dataclasses.replace(labels, released=forged, training_labels=forged),
            teachers=teachers,
            ledger=ledger,
            folder=tmp_path / "out",
        )


def test_shares_are_laws_whatever_the_noise():
    fractions = shares(np.array([[3, 1, 0], [-4, 2, 2], [-1, -2, -3]]))
    np.testing.assert_allclose(fractions, [[0.75, 0.25, 0], [0, 0.5, 0.5], [1 / 3] * 3], rtol=1e-6)


@pytest.mark.parametrize("agree", [True, False])
def test_labels_leave_without_noise_where_teachers_agree_and_counts_where_not(tmp_path, agree):
    counted = Target(epsilon=0.7, delta=1e-5, num_queries=NUM_QUERIES).least_noise(
        lambda scale: GaussianHistogram(sigma=scale)
    )
    mechanism = StabilityGateOrHistogram(
        epsilon=1.0, delta=1e-5, sigma=counted.sigma, most_queries=NUM_QUERIES
    )
    divided = np.tile(np.arange(100)[:, None] % 2, (1, 400))
    teachers = FakeEnsemble(table(100) if agree else divided)
    result = run(tmp_path, teachers, mechanism=mechanism)
    labels = result.labels
    assert (result.statement.epsilon, result.statement.delta) == (1.0, 1e-5)
    assert len(labels) == NUM_QUERIES
    if agree:
        assert result.published.measured["label_accuracy"] == 1.0
        assert labels.training_labels.weights is None
    else:
        assert labels.released.noisy_counts.shape == (NUM_QUERIES, 10)
        np.testing.assert_array_equal(
            labels.training_labels.weights, shares(labels.released.noisy_counts)
        )
    page = (tmp_path / "released" / "privacy_statement.md").read_text()
    assert f"standard deviation {counted.sigma:.3g} votes. Both together are (1, 1e-05)" in page
    with Ledger.read(tmp_path / "sensitive") as ledger:
        check_statement(statement(tmp_path), ledger)
        assert ledger.charges == {mechanism: 1}
    # Asked again, the same is answered, and nothing is charged or drawn.
    again = run(tmp_path, teachers, mechanism=mechanism).labels
    assert again.seal == labels.seal and again.cost == labels.cost
    analysis = analyse(read_run(tmp_path))
    assert (analysis.epsilon, analysis.bounds) == (1.0, {})
