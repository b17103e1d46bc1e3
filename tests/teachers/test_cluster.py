"""Real worker processes on loopback, one of them killed in the middle."""

import ctypes
import functools
import json
import os
import socket
import time
import types

import network_hosts
import pytest
import tensorflow as tf
from script_processes import run_script, start_script

from pate_tf.teachers import cluster
from pate_tf.teachers.kinds import load_ensemble

SCRIPT = "train_teachers.py"
CLONE_NEWNET = 0x40000000
FLAGS = ("--nb_teachers=12", "--max_steps=200")


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def set_up(config, namespace):
    """Tells a process who it is, and moves it to a host."""
    os.environ["TF_CONFIG"] = json.dumps(config)
    if namespace is not None:
        with open(f"/run/netns/{namespace}") as of_network:
            assert ctypes.CDLL(None).setns(of_network.fileno(), CLONE_NEWNET) == 0


def wait_until(condition, seconds):
    for _ in range(int(seconds * 10)):
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing after {seconds} s")


def assert_same_as_alone(tmp_path, addresses, disturb, namespaces=(None, None, None)):
    """Trains on two workers and a chief, and in one process; returns what the chief shows."""
    flags = (*FLAGS, f"--train_dir={tmp_path / 'cluster'}", "--verbosity=0")
    started = []
    tasks = (("worker", 0, ()), ("worker", 1, ()), ("chief", 0, flags))
    try:
        for (task, index, given), namespace in zip(tasks, namespaces, strict=True):
            config = {"cluster": addresses, "task": {"type": task, "index": index}}
            setup = functools.partial(set_up, config, namespace)
            started.append(start_script(SCRIPT, *given, folder=tmp_path, setup=setup))
        _, doomed, chief = started
        # The strategy says so once all workers are connected; training begins then.
        wait_until(lambda: chief.err.exists() and "GPUs on workers" in chief.err.read_text(), 120)
        time.sleep(1)
        assert chief.process.is_alive(), "the chief ended before a worker could be killed"
        disturb(doomed)
        ended = chief.wait()
        assert ended.code == 0, ended.err[-2000:]
        shown = ended.out + ended.err
    finally:
        for running in started:
            running.kill()
            running.wait()
    ended = run_script(SCRIPT, *FLAGS, f"--train_dir={tmp_path / 'alone'}", folder=tmp_path)
    assert ended.code == 0, ended.err
    together, alone = (
        load_ensemble(tmp_path / name / "sensitive" / "teachers" / "ensemble")
        for name in ("cluster", "alone")
    )
    assert together.digest == alone.digest
    return shown


def test_a_killed_worker_changes_nothing(tmp_path):
    addresses = {"worker": [free_address() for _ in range(2)], "chief": [free_address()]}
    shown = assert_same_as_alone(tmp_path, addresses, lambda doomed: doomed.kill())
    assert "/job:worker/replica:0/task:1" in shown


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_host_that_is_cut_off_for_a_while_changes_nothing(tmp_path):
    """Two hosts, packets that are late or lost, and a cable that is out for 20 seconds."""
    with network_hosts.Network(["first", "second"]) as network:
        first, second = network.addresses.values()
        addresses = {"worker": [f"{first}:2222", f"{second}:2222"], "chief": [f"{first}:2223"]}

        def pull(doomed):
            network.pull("second")
            time.sleep(network_hosts.PULLED)
            network.plug("second")

        hosts = map(network.host, ("first", "second", "first"))
        assert_same_as_alone(tmp_path, addresses, pull, hosts)


class Promise:
    """What a worker holds that may be gone."""

    def __init__(self, error):
        self.error = error

    def fetch(self):
        if self.error is not None:
            raise self.error
        return "slots"


def lost(kind):
    return kind(None, None, "failed to connect to all addresses")


def test_a_result_that_died_with_its_worker_is_computed_anew():
    """Done, and not fetched yet: the coordinator repeats only what was not done."""
    errors = [lost(tf.errors.UnavailableError), lost(tf.errors.AbortedError), None]
    promises = [Promise(error) for error in errors]
    chief = types.SimpleNamespace(num_workers=1)
    schedule = functools.partial(promises.pop, 0)
    assert cluster.Cluster._fetched(chief, schedule, schedule()) == "slots" and not promises


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": {}}',
        '{"cluster": {"worker": []}, "task": {"type": "chief", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}',
    ],
)
def test_a_wrong_tf_config_is_one_clear_line(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG: expected") as caught:
        cluster.of_tf_config()
    assert "\n" not in str(caught.value)
