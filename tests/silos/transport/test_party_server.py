"""Parties in processes of their own that add votes up, are killed, and come back."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from pate_tf.accounting.local.base import LATTICE
from silo_helpers import SECURE, batch
from transport_helpers import LIMITS, PARTIES, made_up_core, serve

from pate_tf.net.channel import call
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos.clients import PartyConnection
from pate_tf.silos.messages import Answer, SealedShares
from pate_tf.silos.secure.keys import PartyKeys, party_entry
from pate_tf.silos.secure.opening import PartyMissingError, PartySealer, PartySums
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.protocol import PartyTask, Step
from pate_tf.silos.secure.terms import BatchTerms
from pate_tf.silos.server import PartyService

HERE = pathlib.Path(__file__).parent
SECONDS = 60.0


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
COUNTS = np.array([[2, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 2, 0, 0], [1, 1, 0, 0, 0]])


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

    asked = batch(0, 4, mechanism=SECURE)
    shares = shares_of(LABELS, asked, run.identities)
    sums = PartySums(run.identities, [ways[0], killed_at_every_step, *ways[2:]])
    first = sums.histogram(asked, shares)
    again = PartySums(run.identities, ways).histogram(asked, shares)
    assert np.array_equal(first, again)
    assert np.abs(first - COUNTS * LATTICE).max() > LATTICE  # noise, and the same one


def test_a_party_that_is_away_is_named_and_opens_nothing(run):
    run.service._seconds = 0.1
    asked = batch(0, 4, mechanism=SECURE)
    with pytest.raises(PartyMissingError, match=r"party-1.*commit.*nothing has opened"):
        run.service.sums.histogram(asked, shares_of(LABELS, asked, run.identities))


def test_a_party_trusts_its_own_list_of_keys_alone(run):
    """The coordinator puts a party of its own under another's name."""
    impostor = PartyKeys.generate("party-2").identity
    first = run.identities[0]
    terms = BatchTerms.of_batch(
        batch(0, 4, mechanism=SECURE), (first, impostor, *run.identities[2:])
    )
    run.service._tasks["party-1"] = PartyTask(step=Step.COMMIT, terms=terms, sealed={"a": b"x"})
    # It answers for the terms that it knows, so its word is about another batch.
    assert run.connection("party-1").step()[1] is Answer.LATE


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
