"""Whole runs with a mechanism that releases more than labels."""

import dataclasses

import numpy as np
import pytest
from chosen_votes import POOL, PUBLIC, FakeEnsemble, opened, released, table

from pate_tf.accounting.charge import shares
from pate_tf.accounting.mechanisms import LATTICE, GaussianHistogram
from pate_tf.queries.labels import Labels
from pate_tf.statement.publishing import publish_model

SPLIT = PUBLIC.split(POOL)


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
