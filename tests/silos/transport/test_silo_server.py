"""A coordinator on a real port: access, answers to messages, and kill -9."""

import functools
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from script_processes import free_port, start
from transport_helpers import SILOS, connect, made_up_journal, made_up_round, serve, votes_of

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.net.calls import with_retries
from pate_tf.net.credentials import OVER, Limits
from pate_tf.net.health import serve_health
from pate_tf.silos.messages import Answer
from pate_tf.silos.roster import Policy
from pate_tf.silos.silo import Silo, SiloTeacher
from pate_tf.silos.silo_server import POLICY, status


@pytest.fixture
def journal():
    made = made_up_journal()
    made.keep(made_up_round())
    yield made
    made.close()


@pytest.fixture
def server(journal, certificates):
    with serve(journal, certificates["coordinator"]) as running:
        yield running


@pytest.fixture
def silo(server, certificates):
    with connect(server, certificates["silo-1"]) as connection:
        yield connection


def test_nobody_speaks_for_another_silo(silo, journal):
    with pytest.raises(PermissionError, match="must be the name in the certificate"):
        silo.submit(votes_of("silo-2"))
    assert journal.rounds[0].replies == {}


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("vote", [0, 1])
def test_an_operator_sees_the_same_whatever_the_votes(server, silo, tmp_path, vote):
    port = free_port()
    watch = serve_health(port)
    assert get(port, "/healthz") == (503, "the process is starting\n")
    with pytest.raises(ValueError, match=f"metrics_port={port}` can't be used on 127.0.0.1: Addr"):
        serve_health(port)
    policy = Policy(silo="silo-1", epsilon_budget=20.0)
    policy.write(tmp_path / POLICY)
    teacher = SiloTeacher(lambda queries: np.full(len(queries), vote), num_classes=3)
    with Silo(policy, teacher, folder=tmp_path / "sensitive") as opened:
        watch(lambda: silo.health(status(tmp_path)))
        assert get(port, "/healthz") == (503, "the coordinator was not reached yet\n")
        opened.answer(made_up_round().batch)
        silo.poll()
        assert get(port, "/healthz") == (200, "ok\n")
        *lines, age = get(port, "/metrics")[1].splitlines()
        server.stop(0.0)
        with pytest.raises(ConnectionError):
            silo.poll()
        assert "no server answers" in get(port, "/healthz")[1]
    batch = made_up_round().batch
    spent = smallest_epsilon(Counter({batch.mechanism: len(batch.queries)}), policy.delta)[0]
    assert lines == [
        *("pate_run_over 0.0", "pate_rounds_total 1.0", "pate_epsilon_budget 20.0"),
        *(f"pate_epsilon_spent {spent!r}", f"pate_epsilon_left {20.0 - spent!r}"),
        "pate_refusals_total 0.0",
    ]
    name, _, seconds = age.partition(" ")
    assert name == 'pate_contact_age_seconds{peer="coordinator"}' and 0.0 <= float(seconds) < 60.0


def test_who_comes_back_after_the_end_hears_it(server, silo, certificates):
    assert not silo.call(OVER, None, bool)
    assert server.end(0.0) == ("silo-1",)
    late = []
    for name in SILOS:  # the first was cut off, the second never called
        with connect(server, certificates[name]) as connection:
            connection.serve(late.append)
    assert server.end(0.0) == () and late == []


def test_a_process_gives_up_after_an_hour_without_a_connection(caplog):
    now = [0.0]
    answers = [None, True, ConnectionError("no route"), None, *[ConnectionError("no route")] * 500]

    def step():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds):
        now[0] += seconds

    options = {"sleep": sleep, "clock": lambda: now[0]}
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(ConnectionError, match=r"after 36\d\d s without .* no route"),
    ):
        with_retries(step, give_up_after=3600.0, **options)
    assert 3600.0 <= now[0] < 3700.0
    assert caplog.messages.count("connected again") == 1


def test_only_the_roster_gets_in(server, certificates, caplog):
    with connect(server, certificates["stranger"]) as stranger:
        with caplog.at_level(logging.WARNING), pytest.raises(PermissionError, match="roster"):
            stranger.poll()
        with pytest.raises(PermissionError, match="roster"):
            stranger.submit(votes_of("stranger"))
    assert "denied" in caplog.text


def test_another_authority_or_a_silo_is_no_coordinator(
    server, journal, certificates, other_certificates
):
    with (
        connect(server, other_certificates["silo-1"]) as silo,
        pytest.raises(ConnectionError, match="could not be reached"),
    ):
        silo.poll()
    for files in (other_certificates["coordinator"], certificates["silo-2"]):
        with (
            serve(journal, files) as impostor,
            connect(impostor, certificates["silo-1"]) as silo,
            pytest.raises(ConnectionError, match="could not be reached"),
        ):
            silo.poll()


def test_messages_above_the_limit_are_refused_both_ways(journal, certificates):
    with (
        serve(journal, certificates["coordinator"], limits=Limits(message_bytes=200)) as small,
        connect(small, certificates["silo-1"]) as silo,
    ):
        with pytest.raises(ValueError, match="request less in one call"):
            silo.poll()
        with pytest.raises(ConnectionError, match="resource_exhausted"):
            silo.call("Submit", bytes(300), Answer)


def test_a_caller_can_not_keep_all_threads(journal, certificates, monkeypatch):
    inside, leave, submit = threading.Event(), threading.Event(), journal.submit

    def slow(*arguments):
        inside.set()
        leave.wait(60.0)
        return submit(*arguments)

    monkeypatch.setattr(journal, "submit", slow)
    with (
        serve(journal, certificates["coordinator"], limits=Limits(calls_at_once=1)) as server,
        connect(server, certificates["silo-1"]) as first,
        connect(server, certificates["silo-2"]) as second,
        ThreadPoolExecutor(1) as caller,
    ):
        call = caller.submit(first.submit, votes_of("silo-1"))
        assert inside.wait(60.0)
        with pytest.raises(ConnectionError, match="too many concurrent calls"):
            first.poll()
        assert second.poll() is not None
        leave.set()
        assert call.result() is Answer.OK
        first.poll()


@pytest.mark.parametrize("content", [None, 1.0, b"x", (votes_of("silo-1"),), "votes"])
def test_what_is_no_reply_is_refused_in_one_line(silo, journal, content):
    with pytest.raises(ValueError, match="not a message of the protocol") as caught:
        silo.call("Submit", content, Answer)
    assert "\n" not in str(caught.value)
    assert journal.rounds[0].replies == {}


def test_errors_of_the_coordinator_stay_with_it(silo, journal, caplog, monkeypatch):
    def fails(silo):
        raise RuntimeError("votes 918273")

    monkeypatch.setattr(journal, "poll", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(ConnectionError) as caught:
        silo.poll()
    assert "918273" not in str(caught.value)
    assert "the server failed; see its log" in str(caught.value)
    assert "a call to Poll failed" in caplog.text


def test_a_coordinator_that_sends_nonsense_does_not_stop_a_silo(silo, journal, monkeypatch):
    batch = journal.poll("silo-1")
    object.__setattr__(batch, "queries", np.zeros((2, 2)))
    for nonsense in (1.5, batch, votes_of("silo-1")):
        monkeypatch.setattr(journal, "poll", lambda silo, nonsense=nonsense: nonsense)
        with pytest.raises(ConnectionError, match="sent an invalid reply to Poll"):
            silo.poll()


def coordinate(folder, files, port):
    """Opens another round at every start."""
    journal = made_up_journal(folder)
    journal.keep(made_up_round(1 + len(journal.rounds)))
    with serve(journal, files, address=f"localhost:{port}"):
        print("ready", flush=True)
        time.sleep(600.0)


def until_reached(ask):
    """Returns the result of a call as soon as the coordinator is available."""
    end = time.monotonic() + 60.0
    while True:
        try:
            return ask()
        except ConnectionError:
            assert time.monotonic() < end
            time.sleep(0.5)


def test_a_killed_coordinator_remembers_and_silos_come_back(tmp_path, certificates):
    port = free_port()
    coordinator = functools.partial(coordinate, tmp_path, certificates["coordinator"], port)
    child = start(coordinator, folder=tmp_path)
    try:
        child.until("ready")
        with connect(port, certificates["silo-1"]) as silo:
            first = until_reached(silo.poll)
            assert first.commitment is None
            commitment = bytes(range(32))
            assert silo.submit(votes_of("silo-1", commitment=commitment)) is Answer.OK
            child.kill()
            child.wait()
            with pytest.raises(ConnectionError):
                silo.poll()
            child = start(coordinator, folder=tmp_path)
            child.until("ready")
            assert until_reached(lambda: silo.submit(votes_of("silo-1"))) is Answer.SAME
            assert silo.submit(votes_of("silo-1", first=1)) is Answer.CONFLICT
            later = silo.poll()
            assert (later.batch_id, later.commitment) == ("round-2", commitment)
            with connect(port, certificates["silo-2"]) as other:
                assert other.poll().digests == first.digests
    finally:
        child.kill()
        child.wait()
