"""Labels are released, stored and read again. They are published only as the ledger knows them."""

import dataclasses
import json

import numpy as np
import pytest
from chosen_votes import NUM_QUERIES, POOL, PUBLIC, FakeEnsemble, opened, released, table

from pate_tf.accounting.charge import shares
from pate_tf.accounting.mechanisms import LATTICE, GaussianHistogram, LaplaceNoisyMax
from pate_tf.core import artifacts
from pate_tf.queries.labels import Labels
from pate_tf.run.student import Student
from pate_tf.statement.publishing import publish_model
from pate_tf.students.student_kinds import StudentSettings

SPLIT = PUBLIC.split(POOL)
SETTINGS = StudentSettings(model="mlp", max_steps=10, batch_size=8)


def labels_of(folder, teachers, *, seed=None, **changes) -> Labels:
    with opened(folder, teachers, seed=seed) as labeller:
        return released(labeller, SPLIT.pool, **changes)


def as_arrays(labels: Labels) -> list[np.ndarray]:
    return [
        labels.queries,
        labels.released.query_indices,
        labels.released.labels,
        labels.training_labels.query_indices,
        labels.training_labels.labels,
    ]


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("strategy", ["random", "diverse"])
def test_labels_need_no_student_and_survive_a_folder(tmp_path, strategy):
    labels = labels_of(tmp_path, FakeEnsemble(table(95)), strategy=strategy)
    assert not (tmp_path / "released").exists()
    folder = tmp_path / "kept"
    labels.save(folder)
    assert {path.name for path in folder.iterdir()} == {"labels.npz", "labels.json"}
    again = Labels.load(folder, SPLIT.pool)
    for one, other in zip(as_arrays(labels), as_arrays(again), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.strategy == strategy
    assert again.released.ledger_rows == labels.released.ledger_rows
    expected, _ = LaplaceNoisyMax(gamma=0.1).data_independent_epsilon(
        num_queries=NUM_QUERIES, delta=1e-5
    )
    kept = json.loads((folder / "labels.json").read_text())
    assert kept["cost"]["epsilon"] == again.released.cost.epsilon == expected
    # The labels exist and can be published.
    assert {path.stat().st_mode & 0o044 for path in folder.iterdir()} == {0o044}


def test_labels_that_an_earlier_version_stored_with_neighbors_still_open(tmp_path):
    labels = labels_of(tmp_path, FakeEnsemble(table(95)))
    folder = tmp_path / "kept"
    labels.save(folder)
    arrays = dict(artifacts.read_arrays(folder / "labels.npz"))
    arrays["neighbours"] = np.zeros((len(labels.queries), 2), np.int64)
    artifacts.write_arrays(folder / "labels.npz", arrays)
    fields = json.loads((folder / "labels.json").read_text())
    fields["labels_digest"] = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
    (folder / "labels.json").write_text(json.dumps(fields))
    again = Labels.load(folder, SPLIT.pool)
    np.testing.assert_array_equal(again.labels, labels.labels)


def test_labels_of_another_pool_are_refused(tmp_path):
    labels = labels_of(tmp_path, FakeEnsemble(table(95)))
    other = PUBLIC.split(POOL + 1)
    labels.save(tmp_path / "kept")
    for wrong in (
        lambda: Student.from_settings(SETTINGS).fit(other.pool, labels),
        lambda: Labels.load(tmp_path / "kept", other.pool),
    ):
        with pytest.raises(ValueError, match="labels belong to another pool") as caught:
            wrong()
        assert "\n" not in str(caught.value)


def forged(queried: Labels, changes: dict) -> Labels:
    released = dataclasses.replace(queried.released, **changes)
    return dataclasses.replace(queried, released=released, training_labels=released)


def costing(released, **changes) -> dict:
    return {"cost": dataclasses.replace(released.cost, **changes)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: {"labels": (it.labels + 1) % 10}, "charged to this ledger"),
        (
            lambda it: {"labels": it.labels[1:], "query_indices": it.query_indices[1:]},
            "charged to this ledger",
        ),
        (lambda it: {"ledger_rows": (1,)}, "charged to this ledger"),
        (lambda it: costing(it, charge=LaplaceNoisyMax(gamma=0.2)), "charged to this ledger"),
        (lambda it: costing(it, epsilon=it.cost.epsilon / 2), "labels must have epsilon"),
        (lambda it: costing(it, delta=1e-3), "labels must have epsilon"),
    ],
)
def test_nothing_is_published_that_the_ledger_does_not_know(tmp_path, change, message):
    teachers = FakeEnsemble(table(95))
    labels = labels_of(tmp_path, teachers)
    with opened(tmp_path, teachers).ledger() as ledger, pytest.raises(ValueError, match=message):
        publish_model(
            None,
            forged(labels, change(labels.released)),
            teachers=teachers,
            ledger=ledger,
            folder=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "said"),
    [("strategy", "first"), ("choice", "Chosen from a plan."), ("secure_noise", True)],
)
def test_how_stored_labels_were_chosen_is_verified_against_the_ledger(tmp_path, field, said):
    teachers = FakeEnsemble(table(95))
    seed = 1 if field == "secure_noise" else None
    labels_of(tmp_path, teachers, strategy="random", seed=seed).save(tmp_path / "kept")
    path = tmp_path / "kept" / "labels.json"
    fields = json.loads(path.read_text())
    assert fields[field] != said
    path.write_text(json.dumps({**fields, field: said}))
    with (
        opened(tmp_path, teachers).ledger() as ledger,
        pytest.raises(ValueError, match="were changed after the ledger released them") as no,
    ):
        publish_model(
            None,
            Labels.load(tmp_path / "kept", SPLIT.pool),
            teachers=teachers,
            ledger=ledger,
            folder=tmp_path / "out",
        )
    assert "\n" not in str(no.value) and not (tmp_path / "out").exists()


def test_predictable_noise_spoils_earlier_labels(tmp_path):
    teachers = FakeEnsemble(table(95))
    labels = labels_of(tmp_path, teachers)
    assert labels.released.secure_noise
    labels_of(tmp_path, teachers, num_queries=NUM_QUERIES + 1, seed=1)
    model = Student.from_settings(SETTINGS).fit(SPLIT.pool, labels).model
    with opened(tmp_path, teachers).ledger() as ledger:
        published = publish_model(
            model, labels, teachers=teachers, ledger=ledger, folder=tmp_path / "out"
        )
    assert not published.statement.secure_noise


def spoil_digest(folder):
    arrays = artifacts.read_arrays(folder / "labels.npz")
    arrays["labels"] = (arrays["labels"] + 1) % 10
    artifacts.write_arrays(folder / "labels.npz", arrays)


def spoil_field(folder):
    fields = json.loads((folder / "labels.json").read_text())
    del fields["cost"]
    (folder / "labels.json").write_text(json.dumps(fields))


def spoil_archive(folder):
    path = folder / "labels.npz"
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize("spoil", [spoil_digest, spoil_field, spoil_archive])
def test_spoilt_files_are_one_line(tmp_path, spoil):
    labels_of(tmp_path, FakeEnsemble(table(95))).save(tmp_path / "kept")
    spoil(tmp_path / "kept")
    with pytest.raises(ValueError, match=r"kept.*(is not|does not belong|are damaged)") as caught:
        Labels.load(tmp_path / "kept", SPLIT.pool)
    assert "\n" not in str(caught.value)


def test_weights_and_noisy_counts_survive_a_folder_and_must_be_the_ledgers(tmp_path):
    teachers = FakeEnsemble(table(95))
    labels = labels_of(tmp_path, teachers, mechanism=GaussianHistogram(sigma=20.0))
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
        pytest.raises(ValueError, match="labels must be labels that were charged to this ledger"),
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
