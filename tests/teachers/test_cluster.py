"""Real worker processes on loopback, one of them killed in the middle."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

import pytest
import tensorflow as tf
from script_processes import REPOSITORY, run_script

from pate_tf.teachers import cluster
from pate_tf.teachers.kinds import load_ensemble

FLAGS = ("--nb_teachers=12", "--max_steps=300")


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(addresses, task, index, *flags, log):
    config = {"cluster": addresses, "task": {"type": task, "index": index}}
    with open(log, "w") as file:
        return subprocess.Popen(
            [sys.executable, "train_teachers.py", *flags],
            cwd=REPOSITORY,
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def wait_until(condition, seconds):
    for _ in range(int(seconds * 10)):
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing after {seconds} s")


def test_a_killed_worker_changes_nothing(tmp_path):
    addresses = {"worker": [free_address() for _ in range(2)], "chief": [free_address()]}
    logs = [tmp_path / f"worker{index}.log" for index in range(2)]
    workers = [start(addresses, "worker", index, log=log) for index, log in enumerate(logs)]
    try:
        chief_log = tmp_path / "chief.log"
        chief = start(
            addresses,
            "chief",
            0,
            *FLAGS,
            f"--train_dir={tmp_path / 'cluster'}",
            "--verbosity=0",
            log=chief_log,
        )
        workers.append(chief)
        # The strategy says so once all workers are connected; training begins then.
        wait_until(lambda: "GPUs on workers" in chief_log.read_text(), 120)
        time.sleep(2)
        assert chief.poll() is None, "the chief ended before a worker could be killed"
        workers[1].send_signal(signal.SIGKILL)
        assert chief.wait(180) == 0, chief_log.read_text()[-2000:]
        assert "/job:worker/replica:0/task:1" in chief_log.read_text()
    finally:
        for process in workers:
            process.kill()
            process.wait()
    ended = run_script(
        "train_teachers.py", *FLAGS, f"--train_dir={tmp_path / 'alone'}", folder=tmp_path
    )
    assert ended.code == 0, ended.err
    together, alone = (
        load_ensemble(tmp_path / name / "sensitive" / "teachers" / "ensemble")
        for name in ("cluster", "alone")
    )
    assert together.digest == alone.digest


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
