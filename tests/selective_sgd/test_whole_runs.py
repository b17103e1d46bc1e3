"""Whole runs: one charge gives one model, over TLS too, and the statement reports the
total cost.
"""

import dataclasses
import threading

import pytest
from script_processes import free_port

from pate_tf.audit import audit_run
from pate_tf.audit.run_audit import NOT_CHECKED, PASSED, VIOLATION
from pate_tf.core import artifacts
from pate_tf.core.source import PrivateSource
from pate_tf.data import datasets
from pate_tf.ledger import Head, Ledger
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.selective_sgd.local_training import private_shards
from pate_tf.selective_sgd.shared_training import join, serve
from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings
from pate_tf.statement.several_holders import SharedTrainingStatement

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
    shards = private_shards(datasets.load_private("digits"), 2, seed=0)
    address = f"localhost:{free_port()}"
    given = {"address": address, "certificates": tmp_path / "certificates"}
    results = {}

    def work(name):
        if name == "server":
            public = datasets.load_public("digits")
            results[name] = serve(terms, directory=tmp_path / name, public=public, **given)
        else:
            source = PrivateSource.named(name)
            shard = dataclasses.replace(shards[terms.number(name)], source=source)
            path = join(terms, name, shard, directory=tmp_path / name, **given)
            results[name] = artifacts.read_arrays(path)["values"]

    def work_together():
        results.clear()
        threads = [threading.Thread(target=work, args=[name]) for name in ("server", *NAMES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200.0)
        assert results["clinic"].tobytes() == results["hospital"].tobytes()

    work_together()
    first = results["clinic"].tobytes()
    work("clinic")  # it has everyone's parameters and needs no server
    for name in NAMES:
        (tmp_path / name / "sensitive" / "participant" / "global_parameters.npz").unlink()
    given["give_up_after"] = 0.5
    with pytest.raises(ConnectionError, match="gave up after"):
        work("clinic")
    given["give_up_after"] = 60.0
    work_together()  # the server was restarted after the end
    assert results["clinic"].tobytes() == first
    assert results["server"].values["accuracy_global"] > 0.15  # .61 with a deviation of .1
    statement = statement_in(tmp_path / "server")
    assert 15.0 < statement.epsilon == statement.epsilon_source <= 20.0
    assert (statement.num_ledgers, statement.fewest_records) == (1, 600)
    for name, (sequence, digest) in zip(NAMES, statement.ledger_heads, strict=True):
        with Ledger.read(tmp_path / name / "sensitive" / "ledger") as ledger:
            statement.check([ledger])
            assert list(ledger.charges.values()) == [1]
            assert ledger.holds(Head(sequence=sequence, digest=digest))
        assert audit_run(tmp_path / name).outcome == PASSED
    # The server's folder has no ledger.
    assert audit_run(tmp_path / "server").outcome == NOT_CHECKED
    model = tmp_path / "server/released/shared_model/1/saved_model.pb"
    model.write_bytes(model.read_bytes() + b" ")
    assert audit_run(tmp_path / "server").outcome == VIOLATION
    with pytest.raises(ValueError, match="epsilon"):
        dataclasses.replace(statement, epsilon=1.0).check([])
