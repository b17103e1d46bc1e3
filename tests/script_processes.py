"""Runs the scripts as a user runs them, in processes that are forked with TensorFlow loaded.

A fresh Python takes five seconds to import TensorFlow and a second for the rest. A process forked
from one that imported all of this (and started nothing) takes no time. `run_fresh` is for tests
that need a fresh Python.
"""

import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import resource
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

REPOSITORY = pathlib.Path(__file__).absolute().parents[1]
NUM_TEACHERS, MAX_STEPS = 12, 30  # of the run of the fixture `trained`
PATIENCE = 300  # seconds until a process counts as hung

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    # Also import the modules of pate_tf that the scripts need: importing starts nothing.
    [
        *("tensorflow", "keras", "sklearn.datasets", "tqdm", "opendp.prelude", "hypothesis"),
        *(
            "pate_tf.teachers.teacher_set",
            "pate_tf.run.student",
            "pate_tf.analysis.analyse_run",
            "pytest",
        ),
        *("pate_tf.silos.silo_server", "pate_tf.silos.transport", "pate_tf.cli.command_line"),
    ]
)
_numbers = itertools.count()

Setup = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Ended:
    """The result of a process; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str


def assert_one_line(ended: Ended, code: int = 1) -> None:
    assert ended.code == code, ended.err[-2000:]
    assert ended.err.startswith("error: "), ended.err[-2000:]
    assert ended.err.count("\n") == 1, ended.err[-2000:]
    assert len(ended.err) < 1000
    assert "Traceback" not in ended.err


@dataclasses.dataclass(frozen=True)
class Running:
    process: Any
    out: pathlib.Path
    err: pathlib.Path

    def kill(self) -> None:
        self.process.kill()

    def until(self, text: str) -> None:
        """Waits until the process, which continues, has printed a text."""
        end = time.monotonic() + PATIENCE
        while not (self.out.exists() and text in self.out.read_text()):
            assert self.process.is_alive() and time.monotonic() < end, self.err.read_text()
            time.sleep(0.005)

    def interrupt(self) -> None:
        """Sends the signal of Ctrl-C."""
        os.kill(self.process.pid, signal.SIGINT)

    def wait(self) -> Ended:
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"the script hung: {self.err.read_text()[-2000:]}")
        return Ended(self.process.exitcode, self.out.read_text(), self.err.read_text())


def start(call: Setup, *, folder: pathlib.Path, point: str | None = None) -> Running:
    """Starts a forked process that calls a function, with `folder` as its working directory.

    At the library's step named `point`, it kills itself.
    """
    number = next(_numbers)
    out, err = folder / f"{number}.stdout", folder / f"{number}.stderr"
    # The forking server has the environment from its start.
    variables = {"PATE_TF_STATE": os.environ["PATE_TF_STATE"], "PATE_TF_FAULT_POINT": point or ""}
    process = _CONTEXT.Process(target=_run, args=(call, folder, out, err, variables))
    process.start()
    return Running(process, out, err)


def start_script(
    script: str, *flags: str, folder: pathlib.Path, setup: Setup | None = None
) -> Running:
    """Starts a script with `folder` as its working directory; the process calls `setup` first."""
    return start(functools.partial(_run_script, script, flags, setup), folder=folder)


def run_script(script: str, *flags: str, folder: pathlib.Path, setup: Setup | None = None) -> Ended:
    return start_script(script, *flags, folder=folder, setup=setup).wait()


def run_fresh(*arguments: str, folder: pathlib.Path) -> Ended:
    """Runs a fresh Python with a user's environment, without the settings of the tests."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def modules_after(program: str) -> set[str]:
    """Returns the modules that a fresh Python has imported at the end of a program."""
    listed = f"{program}\nimport sys\nprint()\nprint(*sys.modules)"
    ended = run_fresh("-c", listed, folder=REPOSITORY)
    assert ended.code == 0, ended
    return set(ended.out.splitlines()[-1].split())


def _run(
    call: Setup,
    folder: pathlib.Path,
    out: pathlib.Path,
    err: pathlib.Path,
    variables: dict[str, str],
) -> None:
    os.environ.update(variables)
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the forking server ignores it
    os.chdir(folder)
    call()


def _run_script(script: str, flags: tuple[str, ...], setup: Setup | None) -> None:
    path = str(REPOSITORY / script)
    sys.argv = [path, *flags]
    sys.path.insert(0, str(REPOSITORY))
    if setup is not None:
        setup()
    runpy.run_path(path, run_name="__main__")


def learn_little() -> None:
    """A setup: training on the pool, and between labels and a student, takes few steps."""
    from pate_tf.representations import contrastive
    from pate_tf.students.student_kinds import consistency, supervised

    contrastive.NETWORKS = 1
    contrastive.STEPS = 20
    contrastive.STUDENT_STEPS = 30
    for module in (consistency, supervised):
        module.KIND = dataclasses.replace(module.KIND, max_steps=100, of_whole_table={})


def limit_file_size(num_bytes: int) -> None:
    """Simulates a full disk: no file grows beyond `num_bytes`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def save_all_the_time() -> None:
    """Saves teachers in training after every call of the loop, not every ten seconds."""
    from pate_tf.teachers import run_folder as run

    assert run.SECONDS_BETWEEN_SAVES > 0
    run.SECONDS_BETWEEN_SAVES = 0.0


def die_at_rename(number: int, *, before: bool) -> None:
    """Kills the process at its rename of that number, from 0. All lasting files are renamed."""
    save_all_the_time()
    rename, calls = os.replace, itertools.count()

    def replace(*arguments: Any, **options: Any) -> None:
        call = next(calls)
        if before and call == number:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments, **options)
        if call == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace


def forbid_private_data() -> None:
    """Any attempt to load the private side of a data set ends the script."""
    from pate_tf.data import datasets

    def load_private(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("private data were opened")

    assert callable(datasets.load_private)
    datasets.load_private = load_private
