"""Long-running commands in operation: signals, containers, files left by another process."""

import errno
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from command_helpers import AGE
from script_processes import PATIENCE, REPOSITORY, Ended, assert_one_line, free_port, run_script

from pate_tf.cli import stopping
from pate_tf.core import artifacts
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.silos import Member, Policy, SiloRoster
from pate_tf.silos.protocol import Keys

MAIN = "pate_tf/cli/main.py"
PATE = (sys.executable, "-m", "pate_tf.cli.main")
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--mount-proc")
WAITING = {  # for an absent coordinator
    "aggregator": ("--aggregator_dir=own", "--coordinator=localhost:1"),
    "silo": ("serve", "--silo_dir=own", "--method=feature_sums", "--private=private.csv"),
}


def start(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, cwd=folder, env=environment, **pipes)


def start_waiting(folder, command, *flags, before=()):
    """Starts an aggregator or a silo called clinic."""
    place = "own/sensitive" if command == "silo" else "own"
    identity = Keys.load_or_create(folder / place / "keys.json", "clinic").identity
    ends = {"members": (Member(name="clinic", identity=identity),)}
    if command == "aggregator":
        ends = {"members": (Member(name="school"),), "aggregators": (identity,)}
    SiloRoster(run="r", delta=1e-5, **ends).write(folder / "roster.toml")
    if not (folder / "certificates").exists():
        write_demo_certificates(folder / "certificates", ["clinic"])
    return start(folder, *before, *PATE, command, *WAITING[command], "--roster=roster.toml", *flags)


def until_printed(process, text):
    lines = []
    clock = threading.Timer(PATIENCE, process.kill)  # otherwise, the test would wait forever
    clock.start()
    while text not in "".join(lines[-1:]):
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    clock.cancel()
    return lines


@pytest.mark.parametrize("before", [(), AS_PROCESS_1], ids=["plain", "process 1"])
def test_sigterm_ends_a_command_in_order(tmp_path, before):
    if before and subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process of its own number needs the right to unshare")
    process = start_waiting(tmp_path, "aggregator", before=before)
    until_printed(process, "connects to")
    second = start_waiting(tmp_path, "aggregator")
    assert "is used by another process" in second.communicate(timeout=PATIENCE)[1]
    number = process.pid
    if before:
        number = int(pathlib.Path(f"/proc/{number}/task/{number}/children").read_text())
    os.kill(number, signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, stopping.LINE.decode())
    assert not list(tmp_path.rglob(".writing-*"))


STUCK = """
import ctypes
from pate_tf.cli import stopping
stopping.SECONDS = 0.1
stopping.end_on_sigterm()
mutex = ctypes.create_string_buffer(100)
print("stuck", flush=True)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # no signal interrupts the second call
"""


def test_sigterm_ends_a_process_that_is_inside_of_a_library(tmp_path):
    """Python runs no signal handler while a library call is active."""
    process = start(tmp_path, sys.executable, "-c", STUCK)
    until_printed(process, "stuck")
    while "futex" not in pathlib.Path(f"/proc/{process.pid}/wchan").read_text():
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, stopping.LINE.decode())


IGNORES = """
import contextlib, os
def load(*arguments):
    with contextlib.suppress(BaseException):
        exec("os.kill(os.getpid(), 15)")
"""


def test_sigterm_ends_a_library_that_executes_a_text_and_ignores_exceptions(tmp_path):
    (tmp_path / "ignores.py").write_text(IGNORES)
    process = start(tmp_path, *PATE, "run", "--dataset=ignores:load", "--epsilon=1")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143 and err.startswith(stopping.LINE.decode())


def test_a_half_written_folder_is_left_to_its_writer(tmp_path):
    with artifacts.atomic_folder(tmp_path / "a") as folder, artifacts.atomic_file(tmp_path / "b"):
        artifacts.remove_abandoned(tmp_path)
        assert folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_silo_of_sums_waits_without_tensorflow(tmp_path):
    (tmp_path / "schema.toml").write_text(AGE)
    rows = [f"{20 + place % 60},{'yes' if place % 60 > 30 else 'no'}" for place in range(500)]
    (tmp_path / "private.csv").write_text("\n".join(["age,ill", *rows]))
    names = {"silo": "clinic", "coordinator": "localhost:1", "epsilon_budget": 1.0, "delta": 1e-5}
    (tmp_path / "own").mkdir()
    Policy(**names, allowed=("secure_feature_sums",)).write(tmp_path / "own/policy.toml")
    port = free_port()
    flags = ("--schema=schema.toml", "--log_format=json", f"--metrics_port={port}")
    process = start_waiting(tmp_path, "silo", *flags)
    lines = until_printed(process, "trying again")
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
    with pytest.raises(urllib.error.HTTPError, match="503") as unhealthy:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz")
    assert b"no server answers at localhost:1" in unhealthy.value.read()
    status = (MAIN, "silo", "status", "--silo_dir=own", "--json")
    while_up = json.loads(run_script(*status, folder=tmp_path).out)
    process.kill()
    process.communicate()
    assert while_up["process"] == "running"
    expected = {"process": "not running", "rounds": 0, "epsilon_left": 1.0, "run_over": 0.0}
    down = json.loads(run_script(*status, folder=tmp_path).out)
    assert down == while_up | {"process": "not running"} and down | expected == down
    assert "numpy" in maps and "tensorflow" not in maps
    for line in map(json.loads, lines):
        assert (line["role"], line["name"]) == ("silo", "clinic")
        assert line["level"] == ("WARNING" if "again" in line["message"] else "INFO")


def test_a_second_command_is_refused_before_tensorflow_starts(tmp_path):
    flags = ("teachers", "--dataset=digits", "--nb_teachers=3", "--train_dir=run")
    with artifacts.only_writer(tmp_path / "run/sensitive/teachers"):
        process = start(tmp_path, sys.executable, "-X", "importtime", *PATE[1:], *flags)
        _, err = process.communicate(timeout=PATIENCE)
    assert "is used by another process" in err and not re.search(
        r"\| +tensorflow$", err, re.MULTILINE
    )


NO_MEMORY_IN_C = """
import ctypes, resource
from pate_tf.cli import stopping
resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
stopping.end_without_memory()
ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()  # what an allocation that fails ends in
"""


def without_locks():
    def flock(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl.flock = flock


def test_one_line_where_there_are_no_locks_or_no_memory(tmp_path):
    flags = ("teachers", "--dataset=digits", "--nb_teachers=3", "--train_dir=run")
    ended = run_script(MAIN, *flags, folder=tmp_path, setup=without_locks)
    assert_one_line(ended)
    assert "run/sensitive" in ended.err and "No locks available" in ended.err
    for limit in ("300000", "900000"):
        limited = ("bash", "-c", f'ulimit -v {limit} && exec "$@"', "pate", *PATE, *flags)
        process = start(tmp_path, *limited)
        out, err = process.communicate(timeout=PATIENCE)
        assert_one_line(Ended(process.returncode, out, err))
        assert "out of memory" in err
    assert list(tmp_path.rglob("*.npz")) == []
    process = start(tmp_path, sys.executable, "-c", NO_MEMORY_IN_C)
    out, err = process.communicate(timeout=PATIENCE)
    assert_one_line(Ended(process.returncode, out, err))
    assert "out of memory" in err
