"""A parameter server on a real port: who gets in, and the answers to what they send."""

import dataclasses
import logging
import pathlib
import threading

import numpy as np
import pytest
from shared_helpers import INITIAL, SETTINGS, SIZE, malformed
from shared_helpers import content as content_of

from pate_tf.net.certificates import write_demo_certificates
from pate_tf.net.messages import decode, encode
from pate_tf.selective_sgd.network import (
    JoinRequest,
    ParameterConnection,
    ParameterService,
    PulledParameters,
    message_limits,
)
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.run_state import LedgerFacts
from pate_tf.selective_sgd.server import Server
from pate_tf.selective_sgd.settings import Privacy
from pate_tf.selective_sgd.upload import FloatArray

NAMES = ("clinic", "hospital", "school")
LIMITS = dataclasses.replace(message_limits(SIZE), calls_per_second=10_000.0, calls_at_once=100)
FACTS = LedgerFacts(
    epsilon=1.5,
    delta=1e-5,
    ledger_head=(2, "a" * 64),
    secure_noise=True,
    was_reset=False,
    num_records=20,
    epsilon_source=2.5,
    delta_source=2e-5,
    num_ledgers=3,
)


def made_up_roster(*, privacy: Privacy | None = None, **settings: object) -> Roster:
    return Roster(
        run="made-up",
        dataset="digits",
        names=NAMES,
        settings=dataclasses.replace(SETTINGS, **settings),
        privacy=privacy or Privacy(),
    )


ROSTER = made_up_roster()


def made_up_server(folder: pathlib.Path | None = None, roster: Roster = ROSTER) -> Server:
    return Server(
        roster.settings, INITIAL, run=roster.run_id, privacy=roster.privacy, folder=folder
    )


def service_of(server, *, roster=ROSTER, ledgers=None) -> ParameterService:
    return ParameterService(server, roster, ledgers=ledgers, limits=LIMITS)


def serve(server, files, *, address="localhost:0", **options):
    return service_of(server, **options).listen(address, files)


def connect(server, files, **settings):
    port = server if isinstance(server, int) else server.port
    given = {"run": ROSTER.run_id, "num_parameters": SIZE, "wait_seconds": 0.0, **settings}
    return ParameterConnection(f"localhost:{port}", files=files, **given)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files by name, of the authority that all trust."""
    return write_demo_certificates(tmp_path_factory.mktemp("certificates"), [*NAMES, "stranger"])


def content(*numbers: int, **parts: object) -> bytes:
    """An upload of the made-up run."""
    return content_of(*numbers, **{"run": ROSTER.run_id, **parts})


@pytest.fixture
def made(tmp_path):
    return made_up_server(tmp_path / "state")


@pytest.fixture
def server(made, certificates):
    with serve(made, certificates["coordinator"]) as running:
        yield running


@pytest.fixture
def lines(server, certificates):
    found = [connect(server, certificates[name]) for name in NAMES]
    yield found
    for one in found:
        one.__exit__()


def test_turns_go_round(lines, made):
    assert all(line.join().tolist() == INITIAL.tolist() for line in lines)
    assert [line.pull(0) is not None for line in lines] == [True, False, False]
    expected = INITIAL.copy()
    for turn in range(2):
        for number, line in enumerate(lines):
            given = line.pull(turn)
            assert given.version == made.version
            assert given.values.tolist() == made.values[given.indices].tolist()
            assert len(given.indices) == SIZE // 2  # theta_d
            assert line.push(content(number, turn, given.version))
            assert line.push(content(number, turn, given.version))  # the same: applied once
            expected[[3, 7]] += np.array([0.5, -1.0], np.float32)
            assert made.values.tolist() == expected.tolist()


def test_a_pull_waits_for_its_turn(server, certificates, lines):
    lines[0].pull(0)
    with connect(server, certificates[NAMES[1]], wait_seconds=25.0) as second:
        later = threading.Timer(0.3, lines[0].push, [content(0, 0, 0)])
        later.start()
        assert second.pull(0).version == 1
        later.join()


def refusal(line, what: bytes) -> str:
    """What a server says to an upload that it does not apply."""
    with pytest.raises((ValueError, PermissionError)) as caught:
        line.push(what)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 300
    return said


def test_a_hundred_malformed_uploads_are_refused_in_one_line_and_the_server_goes_on(lines, made):
    contents = malformed(ROSTER.run_id)
    assert len(contents) >= 100
    before = made.values.tobytes()
    for one in contents:
        assert "upload: expected" in refusal(lines[0], one)
    assert (made.version, made.values.tobytes()) == (0, before)
    assert lines[0].push(content(0, 0, 0))
    # Repeated it is the same; altered, of a wrong round, from another version it is refused.
    assert lines[0].push(content(0, 0, 0))
    altered = np.array([0.5, -1.5], np.float32)
    assert "with other content" in refusal(lines[0], content(0, 0, 0, values=altered))
    assert "expected round 1" in refusal(lines[0], content(0, 2, 1))
    assert "expected one of round 0" in refusal(lines[0], content(0, 1, 1))
    assert "whose turn it is" in refusal(lines[2], content(2, 0, 1))
    assert "expected one from version 1" in refusal(lines[1], content(1, 0, 0))
    assert "expected one from version 1" in refusal(lines[1], content(1, 0, 2))
    assert lines[1].push(content(1, 0, 1))
    assert made.version == 2


def test_what_is_too_large_never_reaches_the_server(lines, made):
    with pytest.raises(ConnectionError, match="resource_exhausted"):
        lines[0].push(bytes(LIMITS.message_bytes + 1))
    assert lines[0].push(content(0, 0, 0))


def test_pulls_and_joins_that_make_no_sense_are_refused(server, certificates, lines):
    with pytest.raises(ValueError, match="round: expected one from 0 to 50, got 51"):
        lines[0].pull(51)
    lines[0].push(content(0, 0, 0))
    with pytest.raises(ValueError, match="was applied already; go on in the folder"):
        lines[0].pull(0)
    for run in (b"", bytes(16), made_up_roster(seed=1).run_id):
        with connect(server, certificates[NAMES[0]], run=run) as other:
            for ask in (other.join, lambda line=other: line.pull(1)):
                with pytest.raises(ValueError, match="the roster must be the same file"):
                    ask()
    with (
        connect(server, certificates[NAMES[0]], num_parameters=SIZE + 1) as other,
        pytest.raises(ValueError, match="its model is another one"),
    ):
        other.join()


def test_an_upload_for_another_participant_is_denied(lines, made):
    assert "certificate's participant" in refusal(lines[1], content(0, 0, 0))
    assert "expected a participant from 0 to 2" in refusal(lines[1], content(9, 0, 0))
    assert made.version == 0


def test_only_the_roster_gets_in(server, certificates, caplog):
    with connect(server, certificates["stranger"]) as stranger:
        for ask in (stranger.join, lambda: stranger.pull(0), lambda: stranger.push(b"x")):
            with caplog.at_level(logging.WARNING), pytest.raises(PermissionError, match="roster"):
                ask()
    assert "denied" in caplog.text


def test_errors_of_the_server_stay_with_it(lines, made, caplog, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device 918273")

    monkeypatch.setattr(made, "push", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(ConnectionError) as caught:
        lines[0].push(content(0, 0, 0))
    assert "918273" not in str(caught.value) and "its log says why" in str(caught.value)


def test_a_server_that_ends_takes_nothing_any_more(made, certificates):
    service = service_of(made)
    with (
        service.listen("localhost:0", certificates["coordinator"]) as server,
        connect(server, certificates[NAMES[0]]) as line,
        connect(server, certificates[NAMES[1]], wait_seconds=25.0) as second,
    ):
        later = threading.Timer(0.3, service.close)
        later.start()
        with pytest.raises(ConnectionError, match="the server ends"):
            second.pull(0)  # was waiting
        with pytest.raises(ConnectionError, match="the server ends"):
            line.push(content(0, 0, 0))
        later.join()
    assert made.version == 0


@pytest.mark.parametrize(
    ("values", "indices", "expected"),
    [
        ([np.nan] * SIZE, None, "finite"),
        ([[1.0] * SIZE], None, "values: expected one for each"),
        ([1.0], None, "values: expected one for each"),
        (np.ones(SIZE), None, "the type <f4"),
        ([1.0] * 2, np.array([1, SIZE], np.uint32), "indices: expected ascending ones"),
        ([1.0] * 2, np.array([2, 1], np.uint32), "indices: expected ascending ones"),
        ([1.0] * 2, np.array([1, 2]), "the type <u4"),
    ],
)
def test_a_participant_takes_no_nonsense_from_a_server(values, indices, expected):
    values = np.array(values, None if isinstance(values, np.ndarray) else np.float32)
    with pytest.raises(ValueError, match=expected):
        decode(PulledParameters, encode(PulledParameters(1, values, indices))).parameters(SIZE)


def test_synchronous_uploads_are_applied_in_order_though_a_later_one_comes_first(certificates):
    roster = made_up_roster(protocol="synchronous", download=1.0)
    made = made_up_server(roster=roster)
    with serve(made, certificates["coordinator"], roster=roster) as server:
        lines = [connect(server, certificates[name], run=roster.run_id) for name in NAMES]
        assert {line.pull(0).version for line in lines} == {0}
        first, second, third = (content(number, 0, 0, run=roster.run_id) for number in range(3))
        assert not lines[2].push(third)
        lines[2]._wait_seconds = 25.0
        waiting = threading.Thread(target=lines[2].push, args=[third])
        waiting.start()
        assert lines[0].push(first)
        assert lines[1].pull(0).values.tolist() == INITIAL.tolist()  # as the round began
        assert lines[1].push(second)
        waiting.join(60.0)
        assert made.version == 3
        for line in lines:
            line.__exit__()


def test_with_privacy_nothing_is_taken_before_it_was_charged(tmp_path, certificates):
    privacy = Privacy(kind="record", target_epsilon=2.0)
    roster = made_up_roster(privacy=privacy, protocol="synchronous")
    made, path = made_up_server(roster=roster), tmp_path / "ledgers.json"
    with (
        serve(made, certificates["coordinator"], roster=roster, ledgers=path) as server,
        connect(server, certificates[NAMES[0]], run=roster.run_id) as line,
    ):
        one = content(0, 0, 0, run=roster.run_id)
        line.join()
        assert "one that was charged" in refusal(line, one)
        with pytest.raises(ValueError, match=r"delta: expected 1e-05"):
            line.join(dataclasses.replace(FACTS, delta=0.5))
        for wrong in (
            *({"epsilon": float("nan")}, {"ledger_head": (0, "a" * 64)}, {"ledger_head": (1, "x")}),
            *({"delta_source": None}, {"epsilon_source": None}, {"epsilon_source": float("inf")}),
        ):
            request = JoinRequest(roster.run_id, dataclasses.replace(FACTS, **wrong))
            with pytest.raises(ValueError, match="expected"):
                line.call("Join", request, FloatArray)
        line.join(FACTS)
        assert line.push(one)
    assert service_of(made, roster=roster, ledgers=path).facts == {NAMES[0]: FACTS}
