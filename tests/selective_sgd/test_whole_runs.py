"""Whole runs: one charge gives one model, over TLS too, and the statement says what all cost."""

import dataclasses
import socket
import threading

import numpy as np
import pytest
from shared_helpers import DATASET, records

from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.core.source import PrivateSource
from pate_tf.data import catalogue
from pate_tf.ledger import Head, Ledger, LedgerWarning
from pate_tf.net.certificates import write_demo_certificates
from pate_tf.selective_sgd.settings import Terms, TrainingSettings
from pate_tf.selective_sgd.shared_training import join, serve, train
from pate_tf.selective_sgd.training import partition
from pate_tf.statement.privacy_statement import epsilon_text
from pate_tf.statement.shared_training import SharedTrainingStatement

NAMES = ("clinic", "hospital")


def statement_in(directory) -> SharedTrainingStatement:
    return SharedTrainingStatement.from_dict(
        artifacts.read_json(directory / "released" / "shared_model_statement.json")
    )


@pytest.mark.filterwarnings("ignore::pate_tf.ledger.LedgerWarning")
def test_over_tls_participants_are_charged_and_the_server_states_the_most(tmp_path):
    write_demo_certificates(tmp_path / "certificates", NAMES)
    settings = TrainingSettings(
        num_participants=2, rounds=3, privacy="record", target_epsilon=20.0, upload=0.5
    )
    terms = Terms(run="r", dataset="digits", model="linear", names=NAMES, settings=settings)
    shards = partition(catalogue.load_private("digits"), 2, seed=0)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    given = {"address": address, "certificates": tmp_path / "certificates"}
    results = {}

    def work(name):
        if name == "server":
            results[name] = serve(terms, directory=tmp_path / name, **given)
        else:
            source = PrivateSource.named(name)
            shard = dataclasses.replace(shards[terms.number(name)], source=source)
            path = join(terms, name, shard, directory=tmp_path / name, **given)
            results[name] = artifacts.read_arrays(path)["values"]

    threads = [threading.Thread(target=work, args=[name]) for name in ("server", *NAMES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200.0)
    assert results["clinic"].tobytes() == results["hospital"].tobytes()
    assert results["server"].values["accuracy_global"] > 0.3
    statement = statement_in(tmp_path / "server")
    assert 15.0 < statement.epsilon == statement.epsilon_source <= 20.0
    assert (statement.num_ledgers, statement.fewest_records) == (1, 600)
    for name, (sequence, digest) in zip(NAMES, statement.ledger_heads, strict=True):
        with Ledger.read(tmp_path / name / "sensitive" / "ledger") as ledger:
            statement.check([ledger])
            assert list(ledger.charges.values()) == [1]
            assert ledger.holds(Head(sequence=sequence, digest=digest))


def test_the_statement_names_the_sum_of_all_runs_of_a_source_and_is_published_again(tmp_path):
    private = dataclasses.replace(records(60), source=PrivateSource.named("patients"))
    samples = records(40, seed=9)
    public = PublicExamples(DATASET, samples.inputs, samples.labels)
    settings = TrainingSettings(
        num_participants=2, rounds=3, privacy="record", target_epsilon=4.0, delta=1e-3
    )

    def run(name):
        shared = train(private, settings, model="linear", directory=tmp_path / name)
        shared.publish(tmp_path / name, evaluate_on=public)
        return statement_in(tmp_path / name)

    first = run("first")
    assert 3.5 < first.epsilon == first.epsilon_source <= 4.0 and first.num_ledgers == 1
    again = run("first")  # for nothing
    assert (again.student_digest, again.ledger_heads) == (first.student_digest, first.ledger_heads)
    with pytest.warns(LedgerWarning, match="2 ledgers are charged to the source"):
        second = run("second")
    assert second.epsilon <= 4.0 < second.epsilon_source and second.num_ledgers == 2
    page = second.to_markdown()
    assert f"**{epsilon_text(second.epsilon_source)}**" in page and "(2 ledgers)" in page
    with pytest.raises(ValueError, match=r"^directory: expected one with privacy"):
        train(private, settings, model="linear")
    other = dataclasses.replace(private, labels=np.roll(private.labels, 1))
    with pytest.raises(ValueError, match="other settings: private records;"):
        train(other, settings, model="linear", directory=tmp_path / "first")
