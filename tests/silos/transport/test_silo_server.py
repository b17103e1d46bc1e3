"""A coordinator on a real port: who gets in, what is said to what they send, and kill -9."""

import logging
import pathlib
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from transport_helpers import (
    LIMITS,
    connect,
    free_port,
    made_up_core,
    made_up_round,
    serve,
    votes_of,
)

from pate_tf.net import array_pb2
from pate_tf.net.channel import call, open_channel
from pate_tf.net.credentials import Limits
from pate_tf.net.retries import backoff_seconds
from pate_tf.silos import server as silo_service
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos import silos_pb2_grpc
from pate_tf.silos.messages import Answer, query_digest

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def core():
    made = made_up_core()
    made.open_round(made_up_round())
    yield made
    made.close()


@pytest.fixture
def server(core, certificates):
    with serve(core, certificates["coordinator"]) as running:
        yield running


@pytest.fixture
def silo(server, certificates):
    with connect(server, certificates["silo-1"]) as connection:
        yield connection


def test_nobody_speaks_for_another_silo(silo, core):
    with pytest.raises(PermissionError, match="expected the name of the certificate"):
        silo.submit(votes_of("silo-2"))
    assert core.replies(1) == {}


def test_only_the_roster_gets_in(server, certificates, caplog):
    with connect(server, certificates["stranger"]) as stranger:
        with caplog.at_level(logging.WARNING), pytest.raises(PermissionError, match="roster"):
            stranger.poll()
        with pytest.raises(PermissionError, match="roster"):
            stranger.submit(votes_of("stranger"))
    assert "denied" in caplog.text


def test_another_authority_or_a_silo_is_no_coordinator(
    server, core, certificates, other_certificates
):
    with (
        connect(server, other_certificates["silo-1"]) as silo,
        pytest.raises(ConnectionError, match="could not be reached"),
    ):
        silo.poll()
    for files in (other_certificates["coordinator"], certificates["silo-2"]):
        with (
            serve(core, files) as impostor,
            connect(impostor, certificates["silo-1"]) as silo,
            pytest.raises(ConnectionError, match="could not be reached"),
        ):
            silo.poll()


def test_no_certificate_and_no_encryption_get_nothing(server, certificates):
    address = f"localhost:{server.port}"
    nameless = grpc.ssl_channel_credentials(certificates["silo-1"].authority.read_bytes())
    name = (("grpc.ssl_target_name_override", "coordinator"),)
    for channel in (
        grpc.insecure_channel(address),
        grpc.secure_channel(address, nameless, options=name),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            silos_pb2_grpc.SilosStub(channel).Poll(wire.PollRequest(), timeout=5.0)
        channel.close()
        assert caught.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )


def test_a_stranger_s_client_of_the_protocol_works(server, certificates):
    """Nothing of ours but the .proto: stubs, and NumPy for the array."""
    files = certificates["silo-2"]
    credentials = grpc.ssl_channel_credentials(
        files.authority.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    options = (("grpc.ssl_target_name_override", "coordinator"),)
    with grpc.secure_channel(f"localhost:{server.port}", credentials, options) as channel:
        stub = silos_pb2_grpc.SilosStub(channel)
        batch = stub.Poll(wire.PollRequest(wait_seconds=1.0), timeout=10.0).batch
        queries = np.frombuffer(batch.queries.data, batch.queries.dtype)
        queries = queries.reshape(tuple(batch.queries.shape))
        assert [query_digest(query) for query in queries] == list(batch.digests)
        assert dict(batch.mechanism.parameters) == {"epsilon": 1.0}
        reply = wire.Reply(
            run_id=batch.run_id,
            batch_id=batch.batch_id,
            silo="silo-2",
            votes=array_pb2.Array(dtype="<i8", shape=[len(queries)], data=bytes(8 * len(queries))),
        )
        assert stub.Submit(reply, timeout=10.0).answer == wire.OK
        reply.votes.shape[0] = 2**60
        with pytest.raises(grpc.RpcError) as caught:
            stub.Submit(reply, timeout=10.0)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details().startswith("votes: expected as many bytes")


def test_messages_above_the_limit_are_refused_both_ways(core, certificates):
    with (
        serve(core, certificates["coordinator"], limits=Limits(message_bytes=200)) as small,
        connect(small, certificates["silo-1"]) as silo,
    ):
        with pytest.raises(ValueError, match="fewer queries at once"):
            silo.poll()
        with pytest.raises(ConnectionError, match="resource_exhausted"):
            call(silo._stub.Submit, wire.Reply(refusal="x" * 300))


def test_a_poll_waits_for_a_batch(certificates):
    core = made_up_core()
    with (
        serve(core, certificates["coordinator"]) as server,
        connect(server, certificates["silo-1"]) as silo,
    ):
        silo._wait_seconds = 30.0
        assert LIMITS.longest_wait == 30.0
        later = threading.Timer(0.3, core.open_round, [made_up_round()])
        later.start()
        begin = time.monotonic()
        assert silo.poll().batch_id == "round-1"
        assert time.monotonic() - begin < 25.0
        later.join()
    core.close()


def test_health_is_told_to_everybody_with_a_certificate(server, certificates):
    channel = open_channel(f"localhost:{server.port}", files=certificates["stranger"])
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "pate_tf.silos.v1.Silos"):
            request = health_pb2.HealthCheckRequest(service=service)
            answer = stub.Check(request, timeout=10.0)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_errors_of_the_coordinator_stay_with_it(server, silo, core, caplog, monkeypatch):
    def fails(silo):
        raise RuntimeError("votes 918273")

    monkeypatch.setattr(core, "poll", fails)
    with caplog.at_level(logging.ERROR), pytest.raises(ConnectionError) as caught:
        silo.poll()
    assert "918273" not in str(caught.value)
    assert "its log says why" in str(caught.value)
    assert "a call to /pate_tf.silos.v1.Silos/Poll failed" in caplog.text


def test_a_coordinator_that_sends_nonsense_does_not_stop_a_silo(server, silo, core, monkeypatch):
    def nonsense(batch):
        message = wire.QueryBatch(run_id="run", batch_id="b", num_classes=2)
        message.queries.CopyFrom(array_pb2.Array(dtype="|O", shape=[1], data=bytes(8)))
        return message

    monkeypatch.setattr(silo_service, "batch_to_wire", nonsense)
    with pytest.raises(ConnectionError, match="no batch: queries: expected a type of"):
        silo.poll()


def test_callers_that_call_too_often_are_told_to_wait(core, certificates):
    limits = Limits(calls_per_second=0.001, calls_at_once=2)
    with (
        serve(core, certificates["coordinator"], limits=limits) as server,
        connect(server, certificates["silo-1"]) as first,
    ):
        assert first.poll() is not None and first.poll() is not None
        with pytest.raises(ConnectionError, match="expected fewer calls"):
            first.poll()
        with connect(server, certificates["silo-2"]) as second:
            assert second.poll() is not None  # others don't suffer


def test_waits_grow_and_differ():
    waits = [[backoff_seconds(number) for number in range(1, 13)] for _ in range(2)]
    for each in waits:
        for number, wait in enumerate(each):
            whole = min(30.0, 0.2 * 2**number)
            assert whole / 2 <= wait <= whole
    assert waits[0] != waits[1]


def start(folder, certificates, port):
    child = subprocess.Popen(
        [
            *(sys.executable, HERE / "coordinator_child.py"),
            *(certificates["silo-1"].authority.parent, folder, str(port)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child


def until_reached(ask):
    """What a caller gets once the coordinator is there."""
    end = time.monotonic() + 60.0
    while True:
        try:
            return ask()
        except ConnectionError:
            assert time.monotonic() < end
            time.sleep(0.5)


def test_a_killed_coordinator_remembers_and_silos_come_back(tmp_path, certificates):
    port = free_port()
    child = start(tmp_path, certificates, port)
    try:
        with connect(port, certificates["silo-1"]) as silo:
            first = until_reached(silo.poll)
            assert first.witness is None
            witness = bytes(range(32))
            assert silo.submit(votes_of("silo-1", witness=witness)) is Answer.OK
            child.kill()
            child.wait()
            with pytest.raises(ConnectionError):
                silo.poll()
            child = start(tmp_path, certificates, port)
            assert until_reached(lambda: silo.submit(votes_of("silo-1"))) is Answer.SAME
            assert silo.submit(votes_of("silo-1", first=1)) is Answer.CONFLICT
            later = silo.poll()
            assert (later.batch_id, later.witness) == ("round-2", witness)
            with connect(port, certificates["silo-2"]) as other:
                assert other.poll().digests == first.digests
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
