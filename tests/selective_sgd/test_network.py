"""A parameter server on a real port, and participants that lie, die and come back."""

import dataclasses
import logging
import threading

import numpy as np
import pytest
from shared_helpers import INITIAL, SIZE, NoNoise, model, shards

from pate_tf.ledger import Ledger
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.net.wire_values import decode, encode
from pate_tf.selective_sgd.local_training import NoisyParticipants, Participants, SharedTraining
from pate_tf.selective_sgd.network import ParameterService, RemoteServer, message_limits
from pate_tf.selective_sgd.run_state import DurableRun, LedgerFacts
from pate_tf.selective_sgd.server import Parameters, ParameterServer
from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings

NAMES = ("clinic", "hospital", "school")
LIMITS = message_limits(SIZE)
FACTS = LedgerFacts(
    epsilon=1.5,
    delta=1e-5,
    ledger_sequence=2,
    ledger_digest="a" * 64,
    secure_noise=True,
    fewest_records=20,
    epsilon_source=2.5,
    delta_source=2e-5,
    num_ledgers=3,
)


def terms_of(**settings) -> Terms:
    given = {"num_participants": 3, "rounds": 3, **settings}
    return Terms(run="made-up", dataset="d", names=NAMES, settings=TrainingSettings(**given))


TERMS = terms_of(upload=0.25, gamma=2.0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Returns files by name, from the authority that everybody trusts."""
    return write_demo_certificates(tmp_path_factory.mktemp("certificates"), [*NAMES, "stranger"])


class Served:
    """A server that listens, and participants' connections to it."""

    def __init__(self, folder, certificates, terms=TERMS, initial=INITIAL):
        self.folder, self.certificates, self.terms = folder, certificates, terms
        self.num_parameters, self.lines = len(initial), []
        run = DurableRun(folder / "server", "server", {"run": terms.run_id.hex()})
        run.close()
        self.server = ParameterServer(terms.settings, initial, run=run)
        self.service = ParameterService(self.server, terms, ledgers=folder / "ledgers.json")
        self.listening = self.service.listen("localhost:0", certificates["coordinator"])

    def connect(self, name, run=None, **options) -> RemoteServer:
        options = {"wait_seconds": 0.0, "num_parameters": self.num_parameters, **options}
        terms = options.pop("terms", self.terms)
        address = f"localhost:{self.listening.port}"
        files, number = self.certificates[name], options.pop("num_parameters")
        self.lines.append(RemoteServer(address, terms, files, number, run, **options))
        return self.lines[-1]

    def push(self, line, **parts):
        given = {"run": self.terms.run_id, "round": 0, "version": 0}
        given |= {"indices": np.array([3, 7], np.uint32), "values": np.array([0.5, -1], np.float32)}
        return line.call("Push", tuple({**given, **parts}.values()), bool)

    def pull(self, line, turn):
        request = (self.terms.run_id, turn)
        return line.call("Pull", request, Parameters | None)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for line in self.lines:
            line.__exit__()
        self.listening.stop(0.0)


@pytest.fixture
def served(tmp_path, certificates):
    with Served(tmp_path, certificates) as running:
        yield running


def test_turns_go_round_and_a_pull_waits_for_its_turn(served, caplog):
    lines = [served.connect(name) for name in NAMES]
    for number, line in enumerate(lines):
        assert served.service.missing() == {*NAMES[number:]}
        line.join()
    assert served.service.missing() == {"clinic"}
    expected = INITIAL.copy()
    for turn in range(2):
        for number, line in enumerate(lines):
            assert all(served.pull(later, turn) is None for later in lines[number + 1 :])
            pulled = served.pull(line, turn)
            assert pulled.values.tolist() == expected.tolist()
            for _ in range(2):  # applied once although it is sent twice
                assert served.push(line, round=turn, version=pulled.version)
            expected[[3, 7]] += np.array([0.5, -1.0], np.float32)
            assert served.server.state.values.tolist() == expected.tolist()
    assert "clipped" not in caplog.text
    second = served.connect("hospital", wait_seconds=25.0)
    threading.Timer(0.3, served.push, [lines[0]], {"round": 2, "version": 6}).start()
    assert second.pull(1, 2).version == 7 and served.service.missing() == {"hospital"}
    assert served.push(lines[1], round=2, version=7, values=np.array([2.0, 1.0], np.float32))
    assert "an upload of hospital was clipped to gamma 2" in caplog.text


@pytest.mark.parametrize(
    "parts",
    [
        *({"run": b""}, {"run": terms_of(seed=1).run_id}, {"round": 1}, {"round": 3}),
        *({"round": -1}, {"version": 1}, {"version": -1}, {"indices": None}),
        *({"indices": np.array([3, 7])}, {"indices": np.array([7, 3], np.uint32)}),
        *({"indices": np.array([3, SIZE], np.uint32)}, {"values": np.ones(3, np.float32)}),
        {"values": np.array([[0.5, 1.0]], np.float32)},
        *({"values": np.array([0.5, value], np.float32)} for value in (np.nan, np.inf, 2.1, 3e38)),
        {"indices": np.arange(11, dtype=np.uint32), "values": np.ones(11, np.float32)},
        {"values": np.ones(2)},
    ],
)
def test_what_lies_is_refused_in_a_line_and_changes_nothing(served, parts):
    line = served.connect("clinic")
    with pytest.raises(ValueError, match=r"^the \w+ refused the call: [^\n]{10,250}$"):
        served.push(line, **parts)
    assert served.server.version == 0 and served.server.state.values is INITIAL
    assert served.push(line)
    with pytest.raises(ValueError, match="another upload was applied"):
        served.push(line, values=np.ones(2, np.float32))


def test_only_the_roster_gets_in_and_no_larger_message(served, caplog, monkeypatch):
    stranger, line = served.connect("stranger"), served.connect("clinic")
    with caplog.at_level(logging.WARNING), pytest.raises(PermissionError, match="roster"):
        stranger.join()
    assert "denied" in caplog.text
    with pytest.raises(ConnectionError, match="resource_exhausted"):
        served.push(line, values=np.ones(LIMITS.message_bytes // 4, np.float32))
    with pytest.raises(ValueError, match="different roster"):
        served.connect("clinic", terms=terms_of(seed=1)).join()
    with pytest.raises(ValueError, match="server's model does not have 41 parameters"):
        served.connect("clinic", num_parameters=SIZE + 1).join()

    def fails(*_):
        raise OSError(28, "No space left on device 918273")

    monkeypatch.setattr(served.server, "push", fails)
    with pytest.raises(ConnectionError, match="the server failed; see its log") as caught:
        served.push(line)
    assert "918273" not in str(caught.value)


def test_with_noise_nothing_is_taken_before_it_was_charged(tmp_path, certificates):
    terms = terms_of(privacy="record", target_epsilon=2.0)
    with Served(tmp_path, certificates, terms) as served:
        line = served.connect("clinic")
        line.join()
        with pytest.raises(ValueError, match="was not charged"):
            served.push(line)
        with pytest.raises(ValueError, match=r"must have delta 1e-05"):
            line.join(dataclasses.replace(FACTS, delta=0.5))
        for wrong in (
            *({"epsilon": float("nan")}, {"ledger_sequence": 0}, {"ledger_digest": "x" * 64}),
            *({"delta_source": None}, {"epsilon_source": float("inf")}, {"fewest_records": 0}),
        ):
            with pytest.raises(ValueError, match=r"expected|belong|must be"):
                LedgerFacts(**{**dataclasses.asdict(FACTS), **wrong})
            lie = encode(FACTS).replace(b'"epsilon": 1.5', b'"epsilon": -15')
            with pytest.raises(ValueError, match=r"expected|belong|must be"):
                decode(LedgerFacts, lie)
        line.join(FACTS)
        assert served.push(line)
        again = ParameterService(served.server, terms, ledgers=tmp_path / "ledgers.json")
        assert again.facts == {"clinic": FACTS}


class KilledError(Exception):
    """A participant's process is gone."""


class Dying(RemoteServer):
    """A connection whose participant dies at a step: 0 before a pull, then around each push."""

    steps = 10**6

    def step(self):
        self.steps -= 1
        if self.steps < 0:
            raise KilledError

    def pull(self, participant, round_number):
        self.step()
        return super().pull(participant, round_number)

    def _push(self, sent):
        self.step()  # the sent values were stored
        super()._push(sent)
        self.step()


SHARDS = shards(3, 20)
RUNS = {
    "round robin": {"upload": 0.3},
    "synchronous": {"protocol": "synchronous", "upload": 1.0},
    "asynchronous": {"protocol": "asynchronous"},
    "noisy": {"privacy": "record", "target_epsilon": 5.0, "upload": 0.5},
}


def participants_of(settings, numbers, run, declare=lambda facts: None, network=None):
    parts = {number: SHARDS[number] for number in numbers}
    network = network or model()
    if not settings.is_noisy:
        return Participants(settings, network, parts)
    return NoisyParticipants(settings, network, parts, run=run, noise=NoNoise(), declare=declare)


@pytest.mark.parametrize("name", RUNS)
def test_three_participants_of_which_one_dies_everywhere_come_to_what_one_process_does(
    name, tmp_path, certificates
):
    terms = terms_of(**RUNS[name])
    settings, failed = terms.settings, []
    with DurableRun(tmp_path / "together", "run", {}, [SHARDS[0]], settings=settings) as run:
        together = participants_of(settings, range(3), run)
        initial = together.view.parameters()
        expected = SharedTraining(together, ParameterServer(settings, initial))
        for _ in range(3):
            expected.run_round()

    def take_part(number, served, lives):
        final = None
        while final is None:
            given = {"settings": settings}
            directory = tmp_path / NAMES[number]
            with DurableRun(directory, "run", {}, [SHARDS[number]], **given) as run:
                line = Dying(
                    f"localhost:{served.listening.port}",
                    *(terms, certificates[NAMES[number]], len(initial), run),
                    wait_seconds=2.0,
                )
                line.steps = lives.pop(0) if lives else line.steps
                with line:
                    try:
                        mine = participants_of(settings, [number], run, line.join, model(seed=9))
                        trained = SharedTraining(mine, line)
                        trained.round = int(run.saved.get("num_rounds", 0))
                        line.push_again()
                        while trained.round < 3:
                            trained.run_round()
                        final = line.pull(number, 3)
                    except KilledError:
                        continue
                    except Exception as error:
                        failed.append(error)
                        raise
        finals[number] = final.values.tobytes()

    finals: dict[int, bytes] = {}
    with Served(tmp_path, certificates, terms, initial) as served:
        lives = {1: [0, 1, 2, 3, 4, 5]}
        threads = [
            threading.Thread(target=take_part, args=[number, served, lives.get(number, [])])
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
    assert not failed and len(finals) == 3 and len(set(finals.values())) == 1
    if name != "asynchronous":
        assert finals[0] == expected.server.released().tobytes()
    if settings.is_noisy:
        with Ledger.read(tmp_path / "hospital" / "sensitive" / "ledger") as ledger:
            assert list(ledger.charges.values()) == [1]  # although the participant was killed
            rows = [row for row in ledger.history() if row.kind == "released"]
            assert [row.details["kept"]["round"] for row in rows] == [1, 2, 3]


def test_noise_is_drawn_once_for_what_may_have_left(tmp_path, served):
    """A participant that was killed sends the numbers that it stored, with the same noise."""
    settings, sent = terms_of(privacy="record", target_epsilon=5.0).settings, []

    def call(method, request, kind, **_):
        sent.append(encode(request))
        raise KilledError

    for _ in range(3):
        with DurableRun(tmp_path / "a", "run", {}, [SHARDS[0]], settings=settings) as run:
            participants = NoisyParticipants(settings, model(), {0: SHARDS[0]}, run=run)
            initial = participants.view.parameters()
            line = served.connect("clinic", run, num_parameters=len(initial))
            line.call = call
            with pytest.raises(KilledError):
                line.push_again()
                upload, _ = participants.upload(0, 0, Parameters(version=0, values=initial))
                line.push(upload)
    assert len(sent) == 3 and len(set(sent)) == 1
