"""Long-running commands in operation: signals, containers, files that another process left."""

import pathlib
import subprocess
import sys
import time

import pytest
from script_processes import PATIENCE, REPOSITORY

from pate_tf.cli import stopping
from pate_tf.core import artifacts
from pate_tf.net.credentials import write_demo_certificates
from pate_tf.silos import Member, SiloRoster
from pate_tf.silos.protocol import Keys

PATE = (sys.executable, "-m", "pate_tf.cli.main")
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--mount-proc")
NAME = "aggregator-1"


def start_aggregator(folder, *before):
    """An aggregator of a coordinator that is away: it waits."""
    keys = Keys.load_or_create(folder / "own" / "keys.json", NAME)
    members = (Member(name="clinic"),)
    roster = SiloRoster(run="r", delta=1e-6, members=members, aggregators=(keys.identity,))
    roster.write(folder / "roster.toml")
    write_demo_certificates(folder / "tls", [NAME])
    flags = (f"--aggregator_dir={folder / 'own'}", f"--roster={folder / 'roster.toml'}")
    flags = (*flags, "--coordinator=localhost:1", f"--certificates={folder / 'tls'}")
    return subprocess.Popen(
        [*before, *PATE, "aggregator", *flags],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_printed(process, text):
    lines = []
    while text not in "".join(lines[-1:]):
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()


@pytest.mark.parametrize("before", [(), AS_PROCESS_1], ids=["plain", "process 1"])
def test_sigterm_ends_a_command_in_order(tmp_path, before):
    if before and subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process of its own number needs the right to unshare")
    process = start_aggregator(tmp_path, *before)
    try:
        until_printed(process, "dials")
        number = process.pid
        if before:
            tasks = pathlib.Path(f"/proc/{number}/task/{number}/children")
            number = int(tasks.read_text())
        subprocess.run(["kill", "-TERM", str(number)], check=True)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
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


def test_sigterm_ends_a_process_that_is_inside_of_a_library():
    """Python runs no handler there."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until_printed(process, "stuck")
    while "futex" not in pathlib.Path(f"/proc/{process.pid}/wchan").read_text():
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, stopping.LINE.decode())


WRITING = """
import pathlib, sys, time
from pate_tf.core import artifacts
with artifacts.atomic_folder(pathlib.Path(sys.argv[1])):
    print("writing", flush=True)
    time.sleep(600)
"""


def test_a_half_written_folder_is_removed_once_its_writer_is_gone(tmp_path):
    """Processes of two containers have the same number, and may share a volume."""
    command = [sys.executable, "-c", WRITING, str(tmp_path / "model")]
    before = [*AS_PROCESS_1, "--kill-child"]
    if subprocess.run([*before, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a process of its own number needs the right to unshare")
    process = subprocess.Popen([*before, *command], stdout=subprocess.PIPE, text=True)
    try:
        until_printed(process, "writing")
        artifacts.remove_abandoned(tmp_path)
        (half,) = tmp_path.iterdir()
        assert artifacts.is_half_written(half)
    finally:
        process.kill()
        process.communicate()
    end = time.monotonic() + PATIENCE
    while list(tmp_path.iterdir()) and time.monotonic() < end:  # the child ends after its parent
        artifacts.remove_abandoned(tmp_path)
    assert not list(tmp_path.iterdir())
