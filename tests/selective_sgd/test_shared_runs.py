"""Whole runs with noise: one charge gives one model, and the statement names the sum of all."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from shared_helpers import DATASET, records

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning
from pate_tf.models.encoder import Encoder, Part
from pate_tf.selective_sgd import shared_training
from pate_tf.selective_sgd.settings import Privacy, Settings, SharedRun
from pate_tf.selective_sgd.shared_training import Features, Logs, train_on
from pate_tf.statement.privacy_statement import epsilon_text
from pate_tf.statement.shared_training import SharedTrainingStatement

SOURCE = PrivateSource.named("patients")
PRIVATE = dataclasses.replace(records(60), source=SOURCE)
SAMPLES = records(40, seed=9)
PUBLIC = PublicExamples(DATASET, SAMPLES.inputs, SAMPLES.labels)


def run(folder: pathlib.Path, representation: str | None = None) -> dict:
    settings = Settings(
        num_participants=2, rounds=3, protocol="synchronous", upload=1.0, learning_rate=1.0
    )
    asked = SharedRun(
        settings=settings,
        privacy=Privacy(kind="record", target_epsilon=4.0),
        model="linear",
        representation=representation,
        folder=folder,
    )
    train_on(asked, PRIVATE, PUBLIC)
    return json.loads((folder / "released" / "shared_model_statement.json").read_text())


def killed(*_, **__):
    raise KeyboardInterrupt


def killed_run(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place, name: str) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, name, killed)
        run(folder)


def test_one_charge_gives_one_model_and_the_statement_names_the_sum(tmp_path, monkeypatch):
    one, copy, third = (tmp_path / name for name in ("one", "copy", "third"))
    killed_run(one, monkeypatch, shared_training, "_train")  # it was charged
    shutil.copytree(one, copy)
    stated = run(one)
    with pytest.raises(LedgerError, match="was restored from an older copy"):
        run(copy)
    assert not (copy / "released").exists()
    assert 3.5 < stated["epsilon"] <= 4.0
    assert (stated["epsilon_source"], stated["num_ledgers"]) == (stated["epsilon"], 1)
    # The same raw records, as features of another representation.
    with pytest.warns(LedgerWarning, match="2 ledgers are charged to the source"):
        stated = run(third, "raw")
    assert stated["epsilon"] <= 4.0 < stated["epsilon_source"]
    assert stated["num_ledgers"] == 2
    page = SharedTrainingStatement.from_dict(stated).to_markdown()
    assert f"**{epsilon_text(stated['epsilon_source'])}**" in page and "(2 ledgers)" in page
    unknown = {**stated, "epsilon_source": None, "delta_source": None}
    page = SharedTrainingStatement.from_dict({**unknown, "num_ledgers": None}).to_markdown()
    assert "NOT CHECKED: not every participant kept a registry" in page


def test_a_round_is_drawn_once_wherever_the_run_was_stopped(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    state = folder / "sensitive" / "selective_sgd" / "state.npz"
    killed_run(folder, monkeypatch, Logs, "write_round")
    first = state.read_bytes()
    killed_run(folder, monkeypatch, Logs, "write_round")
    second = state.read_bytes()
    state.write_bytes(first)
    with pytest.raises(LedgerError, match="another state was released after 2 rounds"):
        run(folder)
    state.write_bytes(second)
    found = run(folder)
    with Ledger.read(folder / "sensitive" / "ledger") as ledger:
        assert list(ledger.charges.values()) == [1]
        rows = [row for row in ledger.history() if row.kind == "released"]
        assert [row.details["kept"]["round"] for row in rows] == [1, 2, 3]
        assert found["ledger_heads"] == [[ledger.head.sequence, ledger.head.digest]]
    # Published again it is the same model, for nothing.
    again = run(folder)
    assert again["student_digest"] == found["student_digest"]
    assert again["ledger_heads"] == found["ledger_heads"]


class Root(Part):
    widths = (6,)

    @property
    def learnt(self):
        return []

    def __call__(self, inputs):
        return [tf.sqrt(inputs)]


def test_a_record_without_finite_features_does_not_stop_a_run():
    inputs = np.abs(PRIVATE.inputs)
    inputs[7, 2] = -1.0
    encoder = Encoder(DATASET, [Root()], {})
    given = PrivateExamples(DATASET, inputs, PRIVATE.labels, source=SOURCE)
    found = Features(dataset=encoder.feature_dataset, encoder=encoder).records(given)
    assert not found.inputs[7].any()
    others = np.arange(60) != 7
    np.testing.assert_allclose(found.inputs[others], np.sqrt(inputs[others]), rtol=1e-5)
    assert found.source == SOURCE
