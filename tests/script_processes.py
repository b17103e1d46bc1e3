"""Runs the scripts as a user runs them, in processes that are forked with TensorFlow loaded.

A fresh Python takes five seconds to import TensorFlow and a second for the rest; a process forked
from one that imported all that (and started nothing of it) takes none. `run_fresh` is for the tests
that want the fresh one.
"""

import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

REPOSITORY = pathlib.Path(__file__).absolute().parents[1]
NUM_TEACHERS, MAX_STEPS = 12, 30  # of the run that the fixture `trained` gives
PATIENCE = 300  # seconds until a process counts as hung

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    # Of pate_tf what the scripts need as well: importing starts nothing.
    [
        *("tensorflow", "keras", "sklearn.datasets", "tqdm", "opendp.prelude"),
        *("pate_tf.teachers.teachers", "pate_tf.run.student", "pate_tf.analysis.run"),
    ]
)
_numbers = itertools.count()

Setup = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended; a negative code is the signal that killed it."""

    code: int
    out: str
    err: str


@dataclasses.dataclass(frozen=True)
class Running:
    process: Any
    out: pathlib.Path
    err: pathlib.Path

    def kill(self) -> None:
        self.process.kill()

    def interrupt(self) -> None:
        """What Ctrl-C sends."""
        os.kill(self.process.pid, signal.SIGINT)

    def wait(self) -> Ended:
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"the script hung: {self.err.read_text()[-2000:]}")
        return Ended(self.process.exitcode, self.out.read_text(), self.err.read_text())


def start_script(
    script: str, *flags: str, folder: pathlib.Path, setup: Setup | None = None
) -> Running:
    """Starts a script with `folder` as its working directory, `setup` called first in there."""
    number = next(_numbers)
    out, err = folder / f"{number}.stdout", folder / f"{number}.stderr"
    # The server that forks has the environment of when it was started.
    state = os.environ["PATE_TF_STATE"]
    process = _CONTEXT.Process(target=_run, args=(script, flags, folder, out, err, setup, state))
    process.start()
    return Running(process, out, err)


def run_script(script: str, *flags: str, folder: pathlib.Path, setup: Setup | None = None) -> Ended:
    return start_script(script, *flags, folder=folder, setup=setup).wait()


def run_fresh(*arguments: str, folder: pathlib.Path) -> Ended:
    """Runs Python anew; the environment is a user's, without what the tests have set."""
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


def modules_after(program: str) -> set[str]:
    """Returns the modules that a fresh Python has imported at the end of a program."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint()\nprint(*sys.modules)"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return set(ended.stdout.splitlines()[-1].split())


def _run(
    script: str,
    flags: tuple[str, ...],
    folder: pathlib.Path,
    out: pathlib.Path,
    err: pathlib.Path,
    setup: Setup | None,
    state: str,
) -> None:
    os.environ["PATE_TF_STATE"] = state
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of forks ignores it
    os.chdir(folder)
    path = str(REPOSITORY / script)
    sys.argv = [path, *flags]
    sys.path.insert(0, str(REPOSITORY))
    if setup is not None:
        setup()
    runpy.run_path(path, run_name="__main__")


def learn_little() -> None:
    """A setup: what is learnt of the pool, and between labels and a student, takes few steps."""
    from pate_tf.representations import contrastive
    from pate_tf.students.kinds import consistency, supervised

    contrastive.STEPS = 20
    contrastive.STUDENT_STEPS = 30
    for module in (consistency, supervised):
        module.KIND = dataclasses.replace(module.KIND, max_steps=100, of_whole_table={})


def limit_file_size(num_bytes: int) -> None:
    """A full disk: no file grows beyond `num_bytes`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def save_all_the_time() -> None:
    """Teachers in training are saved after every call of the loop, not every ten seconds."""
    from pate_tf.teachers import run_folder as run

    assert run.SECONDS_BETWEEN_SAVES > 0
    run.SECONDS_BETWEEN_SAVES = 0.0


def die_at_rename(number: int, *, before: bool) -> None:
    """Kills the process at its rename of that number, from 0: all that lasts is renamed."""
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
    from pate_tf.data import catalogue

    def load_private(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("private data were opened")

    assert callable(catalogue.load_private)
    catalogue.load_private = load_private
