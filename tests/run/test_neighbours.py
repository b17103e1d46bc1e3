"""Queries that are asked together with their nearest neighbors."""

import dataclasses
import json

import numpy as np
import pytest
from chosen_votes import POOL, PUBLIC, FakeEnsemble, opened, released, table

from pate_tf.accounting.mechanisms import GaussianNoisyMax
from pate_tf.postprocessing import label_inference
from pate_tf.queries import strategies
from pate_tf.queries.labels import Labels
from pate_tf.representations import catalogue as features_catalogue
from pate_tf.run.student import Student
from pate_tf.statement import PAGE_FILE
from pate_tf.statement.publishing import publish_model
from pate_tf.students.student_kinds import StudentSettings

SPLIT = PUBLIC.split(POOL)
QUERIES = 20
NOISY = GaussianNoisyMax(sigma=20.0)
SETTINGS = StudentSettings(model="mlp", max_steps=5, batch_size=8)


@pytest.fixture(autouse=True)
def features(monkeypatch):
    """Features that bring the inputs of a class together, without learning any."""
    random = np.random.default_rng(0)
    actual = np.eye(10)[PUBLIC.labels[:POOL]] + 0.1 * random.normal(size=(POOL, 10))
    monkeypatch.setattr(features_catalogue, "encoder_of", lambda *asked, **options: None)
    for module in (features_catalogue, label_inference):
        monkeypatch.setattr(
            module, "pool_features_by_name", lambda *asked, **options: [[actual.astype(np.float32)]]
        )
    for name in ("diverse", "medoids"):
        as_released = dataclasses.replace(
            strategies.STRATEGIES[name], infer=lambda pool, released, *asked, **options: released
        )
        monkeypatch.setitem(strategies.STRATEGIES, name, as_released)


def labels_of(folder, teachers, *, mechanism=NOISY, num_neighbours=10, **queries):
    choices = {"mechanism": mechanism, "num_queries": QUERIES, "strategy": "medoids", **queries}
    choices["num_neighbours"] = num_neighbours
    with opened(folder, teachers) as labeller:
        return released(labeller, SPLIT.pool, **choices)


def test_labels_of_neighbours_are_more_often_correct_for_the_same_cost(tmp_path, monkeypatch):
    teachers = FakeEnsemble(table(60))  # three of five votes on single inputs are right
    alone = labels_of(tmp_path / "alone", teachers, num_neighbours=None)
    assert alone.neighbours is None
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "state"))  # on another machine
    together = labels_of(tmp_path / "together", teachers)
    released = together.released
    assert released.num_answered == QUERIES
    assert (released.labels == PUBLIC.labels[released.query_indices]).all()
    assert (alone.released.labels != PUBLIC.labels[alone.released.query_indices]).any()
    # What it costs is what the queries cost alone.
    assert released.cost == alone.released.cost


def test_asked_again_they_are_free_and_asked_alone_they_are_not(tmp_path):
    teachers = FakeEnsemble(table(90))
    first = labels_of(tmp_path, teachers)
    queries = teachers.asked
    assert queries == QUERIES * 11
    again = labels_of(tmp_path, teachers)
    assert teachers.asked == queries and again.released.ledger_rows == first.released.ledger_rows
    labels_of(tmp_path, teachers, num_neighbours=3)
    assert teachers.asked == queries + QUERIES * 4


def test_they_are_published_with_a_word_and_must_be_the_ledgers(tmp_path):
    teachers = FakeEnsemble(table(90))
    labels_of(tmp_path, teachers).save(tmp_path / "kept")
    labels = Labels.load(tmp_path / "kept", SPLIT.pool)
    assert labels.neighbours.shape == (QUERIES, 10)
    model = Student.from_settings(SETTINGS).fit(SPLIT.pool, labels).model
    with opened(tmp_path, teachers).ledger() as ledger:

        def published(these, name):
            return publish_model(
                model, these, teachers=teachers, ledger=ledger, folder=tmp_path / name
            )

        for neighbours in (None, labels.neighbours[:, :9], labels.neighbours[::-1]):
            forged = dataclasses.replace(labels, neighbours=neighbours)
            with pytest.raises(ValueError, match="labels: expected labels that were charged"):
                published(forged, "forged")
        beyond = dataclasses.replace(labels, neighbours=labels.neighbours + POOL)
        with pytest.raises(ValueError, match="queries must be positions in a pool of 400"):
            published(beyond, "forged")
        assert not (tmp_path / "forged").exists()
        statement = published(labels, "out")
    assert statement.statement.num_neighbours == 10
    assert "the 10 public inputs nearest to it" in (tmp_path / "out" / PAGE_FILE).read_text()
    stated = json.loads((tmp_path / "out" / "privacy_statement.json").read_text())
    assert stated["num_neighbours"] == 10
