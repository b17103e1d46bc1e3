"""Parties in processes of their own that add votes up, are killed, and come back."""

import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from transport_helpers import LIMITS, PARTIES, made_up_core, serve

from pate_tf.accounting.local.base import LATTICE
from pate_tf.net.channel import call
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos.clients import PartyConnection
from pate_tf.silos.messages import Answer, QueryBatch, SealedShares
from pate_tf.silos.secure.keys import PartyKeys, party_entry
from pate_tf.silos.secure.opening import PartyMissingError, PartySealer, PartySums
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.protocol import PartyTask, ProtocolError, Step
from pate_tf.silos.secure.terms import BatchTerms
from pate_tf.silos.server import PartyService

HERE = pathlib.Path(__file__).parent
SECONDS = 60.0


def made_up_batch(batch_id="b", sigma=1e-7):
    return QueryBatch(
        queries=np.arange(8, dtype=np.uint8).reshape(4, 2),
        run_id="run",
        batch_id=batch_id,
        num_classes=3,
        mechanism={
            "name": "secure_histogram",
            "sigma": sigma,
            "num_parties": 4,
            "threshold": 1,
        },
        deadline=0.0,
    )


def shares_of(labels, batch, identities):
    sealer = PartySealer(identities)
    return {
        silo: SealedShares(
            run_id=batch.run_id,
            batch_id=batch.batch_id,
            silo=silo,
            sealed=sealer.seal(row, batch, silo=silo),
        )
        for silo, row in labels.items()
    }


LABELS = {"a": np.array([0, 1, 2, 0]), "b": np.array([0, 2, 2, 1])}
COUNTS = np.array([[2, 0, 0], [0, 1, 1], [0, 0, 2], [1, 1, 0]])


class Run:
    """A coordinator's server and four parties, each started by `start`."""

    def __init__(self, folder, certificates):
        self.folder, self.certificates = folder, certificates
        self.keys = [
            PartyKeys.load_or_create(folder / name / "keys.json", name) for name in PARTIES
        ]
        self.identities = tuple(one.identity for one in self.keys)
        self.known = folder / "parties.toml"
        self.known.write_text("\n".join(map(party_entry, self.identities)))
        self.service = PartyService(self.identities, limits=LIMITS, seconds=SECONDS)
        self.server = serve(made_up_core(), certificates["coordinator"], parties=self.service)
        self.children = {}

    def start(self, name):
        folder = self.certificates[name].authority.parent
        self.children[name] = subprocess.Popen(
            [
                *(sys.executable, HERE / "party_child.py", folder, self.folder / name),
                *(str(self.server.port), name, self.known),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.children[name].stdout.readline() == "ready\n"

    def kill(self, name):
        child = self.children.pop(name)
        child.kill()
        child.wait()
        child.stdout.close()

    def connection(self, name):
        number = PARTIES.index(name)
        return PartyConnection(
            Party(self.keys[number], self.folder / name / "journal"),
            {one.name: one for one in self.identities},
            f"localhost:{self.server.port}",
            files=self.certificates[name],
            wait_seconds=0.2,
        )

    def stop(self):
        for name in list(self.children):
            self.kill(name)
        self.server.stop()


@pytest.fixture
def run(tmp_path, certificates):
    made = Run(tmp_path, certificates)
    yield made
    made.stop()


@pytest.fixture
def threads(run):
    """The four parties, each in a thread."""
    stop = threading.Event()
    events = []
    connections = [run.connection(name) for name in PARTIES]
    running = [
        threading.Thread(target=one.serve, kwargs={"until": stop.is_set, "on_event": events.append})
        for one in connections
    ]
    for one in running:
        one.start()
    yield events
    stop.set()
    for one in running:
        one.join()


def check_opened(opened):
    assert np.abs(opened - COUNTS * LATTICE).max() <= 9


def test_parties_over_the_network_open_the_histogram(run, threads):
    batch = made_up_batch()
    left_out = []
    sums = PartySums(
        run.identities,
        [run.service.client_of(name) for name in PARTIES],
        on_opened=lambda opened: left_out.append(opened.left_out),
    )
    shares = shares_of(LABELS, batch, run.identities)
    check_opened(sums.histogram(batch, shares))
    check_opened(sums.histogram(batch, shares))  # again, for nothing
    assert left_out == [{}, {}]
    # The coordinator asks the same shares under less noise: parties can't open them.
    cheaper = made_up_batch(sigma=1e-9)
    with pytest.raises(ProtocolError, match="at least one silo"):
        sums.histogram(cheaper, shares)
    fewer = {"a": shares["a"]}
    with pytest.raises(ProtocolError, match="refuses: commit: this step of the batch was answered"):
        sums.histogram(batch, fewer)
    assert any("commit was refused" in event for event in threads)


def test_a_killed_party_goes_on_where_it_was(run):
    for name in PARTIES:
        run.start(name)
    ways = [run.service.client_of(name) for name in PARTIES]

    def killed_at_every_step(task):
        message = ways[1](task)
        run.kill(PARTIES[1])
        run.start(PARTIES[1])
        assert ways[1](task) == message
        return message

    batch = made_up_batch(sigma=1000.0)
    shares = shares_of(LABELS, batch, run.identities)
    sums = PartySums(run.identities, [ways[0], killed_at_every_step, *ways[2:]])
    first = sums.histogram(batch, shares)
    again = PartySums(run.identities, ways).histogram(batch, shares)
    assert np.array_equal(first, again)
    assert np.abs(first - COUNTS * LATTICE).max() > LATTICE  # noise, and the same one


def test_a_party_that_is_away_is_named_and_opens_nothing(run, threads):
    run.service._seconds = 0.5
    silent = PartyService(run.identities, seconds=0.1)
    ways = [run.service.client_of(name) for name in PARTIES]
    ways[2] = silent.client_of("party-3")
    batch = made_up_batch()
    with pytest.raises(PartyMissingError, match=r"party-3.*commit.*nothing has opened"):
        PartySums(run.identities, ways).histogram(batch, shares_of(LABELS, batch, run.identities))


def test_a_party_trusts_its_own_list_of_keys_alone(run):
    """The coordinator puts a party of its own under another's name."""
    impostor = PartyKeys.generate("party-2").identity
    first = run.identities[0]
    terms = BatchTerms.of_batch(made_up_batch(), (first, impostor, *run.identities[2:]))
    task = PartyTask(step=Step.COMMIT, terms=terms, sealed={"a": b"x"})
    connection = run.connection("party-1")
    asked = threading.Thread(target=lambda: outcome.append(ask(task)))
    outcome = []

    def ask(task):
        try:
            return run.service.client_of("party-1")(task)
        except (ProtocolError, TimeoutError) as error:
            return error

    run.service._seconds = 3.0
    asked.start()
    done = None
    while done is None:
        done = connection.step()
    asked.join()
    # It answers for the terms that it knows, so its word is about another batch.
    assert done[1] is Answer.LATE
    assert isinstance(outcome[0], TimeoutError)


def test_words_without_a_task_are_late_and_without_content_refused(run):
    connection = run.connection("party-1")
    message = wire.PartyMessage(step="commit", party=1)
    stray = wire.TaskResult(task_digest=bytes(32), message=message)
    assert call(connection._stub.Submit, stray).answer == wire.LATE
    with pytest.raises(ValueError, match="expected a message or a refusal"):
        call(connection._stub.Submit, wire.TaskResult(task_digest=bytes(32)))


def test_a_silo_s_certificate_is_no_party_s(run, certificates):
    number = PARTIES.index("party-1")
    connection = PartyConnection(
        Party(run.keys[number], run.folder / "elsewhere"),
        {},
        f"localhost:{run.server.port}",
        files=certificates["silo-1"],
    )
    with pytest.raises(PermissionError, match="roster"):
        connection.step()
