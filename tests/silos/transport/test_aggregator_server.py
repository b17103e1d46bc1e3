"""Aggregators in separate processes that add votes, are killed, and restart."""

import dataclasses
import functools

import numpy as np
import pytest
from script_processes import start
from silo_helpers import SECURE, batch
from transport_helpers import AGGREGATORS, made_up_journal, serve

from pate_tf.accounting.conversions import LATTICE
from pate_tf.silos import Member, SiloRoster
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import open_histogram
from pate_tf.silos.messages import Answer
from pate_tf.silos.protocol import AggregatorTask, BatchTerms, Keys, Step
from pate_tf.silos.sealing import seal_votes
from pate_tf.silos.silo_server import AggregatorRun, serve_aggregator
from pate_tf.silos.transport import AggregatorService, TaskConnection, task_result

LABELS = {"a": np.array([0, 1, 2, 0]), "b": np.array([0, 2, 2, 1])}
COUNTS = np.array([[2, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 2, 0, 0], [1, 1, 0, 0, 0]])


def serve_until_killed(run):
    serve_aggregator(run, on_event=lambda event: print("ready", flush=True))


class Run:
    """A coordinator's server and four aggregators, each started by `start`."""

    def __init__(self, folder, certificates):
        self.folder, self.certificates, self.children = folder, certificates, {}
        self.keys = {
            name: Keys.load_or_create(folder / name / "keys.json", name) for name in AGGREGATORS
        }
        identities = tuple(keys.identity for keys in self.keys.values())
        members = (Member(name="a"), Member(name="b"))
        self.roster = SiloRoster(run="r", delta=1e-6, members=members, aggregators=identities)
        self.roster.write(folder / "roster.toml")
        self.terms = BatchTerms.of_batch(batch(0, 4, mechanism=SECURE), identities)
        self.sealed = {
            silo: seal_votes(labels, self.terms, silo=silo) for silo, labels in LABELS.items()
        }
        self.service = AggregatorService(AGGREGATORS, seconds=60.0)
        self.server = serve(
            made_up_journal(), certificates["coordinator"], aggregators=self.service
        )

    def start(self, name):
        run = AggregatorRun(
            folder=self.folder / name,
            roster=self.folder / "roster.toml",
            coordinator=f"localhost:{self.server.port}",
            certificates=self.certificates[name].authority.parent,
        )
        self.children[name] = start(functools.partial(serve_until_killed, run), folder=self.folder)
        self.children[name].until("ready")

    def kill(self, name):
        child = self.children.pop(name)
        child.kill()
        child.wait()

    def connection(self, name):
        address = f"localhost:{self.server.port}"
        files = self.certificates[name]
        return TaskConnection(address, files=files, is_aggregator=True, wait_seconds=0.2)

    def stop(self):
        for name in list(self.children):
            self.kill(name)
        self.server.stop()


@pytest.fixture
def run(tmp_path, certificates):
    made = Run(tmp_path, certificates)
    yield made
    made.stop()


def test_a_killed_aggregator_goes_on_where_it_was(run):
    for name in AGGREGATORS:
        run.start(name)
    asks = list(run.service.asks)

    def killed_twice(task):
        message = run.service.asks[1](task)
        if task.step in (Step.COMMIT, Step.CHECK):
            run.kill(AGGREGATORS[1])
            run.start(AGGREGATORS[1])
        assert run.service.asks[1](task) == message
        return message

    asks[1] = killed_twice
    first = open_histogram(run.terms, run.sealed, asks).noisy_counts
    again = open_histogram(run.terms, run.sealed, run.service.asks).noisy_counts
    assert np.array_equal(first, again)
    assert np.abs(first - COUNTS * LATTICE).max() > LATTICE  # noise, from a single draw


def test_an_aggregator_that_is_away_is_named_and_opens_nothing(run):
    run.service._seconds = 0.1
    with pytest.raises(ConnectionError, match=r"aggregator-1.*commit.*No sum was opened"):
        open_histogram(run.terms, run.sealed, run.service.asks)


def test_an_aggregator_trusts_its_own_roster_alone(run):
    """The coordinator puts its own keys under another name."""
    impostor = Keys("aggregator-2").identity
    first, _, *others = run.terms.aggregators
    terms = dataclasses.replace(run.terms, aggregators=(first, impostor, *others))
    task = AggregatorTask(step=Step.COMMIT, terms=terms, sealed={"a": b"x"})
    run.service._tasks["aggregator-1"] = task
    connection = run.connection("aggregator-1")
    aggregator = Aggregator(run.keys["aggregator-1"], run.folder / "aggregator-1" / "journal")
    result, event = task_result(aggregator, run.roster, connection.poll())
    assert "refused: terms must contain only names and keys from the roster" in event
    assert connection.submit(result) is Answer.OK
    assert "terms must contain only names" in run.service._results["aggregator-1"]


def test_a_silo_s_certificate_is_no_aggregator_s(run, certificates):
    run.certificates = {"aggregator-1": certificates["silo-1"]}
    with pytest.raises(PermissionError, match="roster"):
        run.connection("aggregator-1").poll()
