"""Runs commands that must be refused, many in a row, and says what was wrong with each refusal.

One process loads TensorFlow and the library once and forks for every case: so five hundred cases
take minutes.
"""

import dataclasses
import hashlib
import multiprocessing
import os
import pathlib
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from script_processes import REPOSITORY

TEACHERS, STUDENT, ANALYSIS = "train_teachers.py", "train_student.py", "analysis.py"
FUNCTIONS = pathlib.Path(__file__).with_name("functions_for_tests.py")
LONGEST_MESSAGE = 1000
PATIENCE = 120.0  # seconds until a case counts as hung, on a busy machine

# What a refusal may leave: locks, and what SQLite keeps beside a ledger that was read.
LEFT = ("ledger.lock", "ledger.sqlite3-shm", "ledger.sqlite3-wal")

_CONTEXT = multiprocessing.get_context("forkserver")

Prepare = Callable[[pathlib.Path], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A command, and what must be told of it.

    Attributes:
        script: which.
        flags: of it. It is run in a folder of its own.
        told: what the message must hold.
        prepare: fills the folder first, called with it; a function of a module.
        code: the exit code; None for any but 0.
        environment: besides.
    """

    script: str
    flags: Sequence[str]
    told: str = ""
    prepare: Prepare | None = None
    code: int | None = None
    environment: Sequence[tuple[str, str]] = ()

    @property
    def title(self) -> str:
        """The command, cut."""
        words = [word if len(word) < 80 else f"{word[:80]}..." for word in self.flags]
        return " ".join([self.script, *words])


def problems(
    cases: Sequence[Case], folder: pathlib.Path, *, trained: pathlib.Path | None = None
) -> list[str]:
    """Runs cases, and returns a line for each that was not refused as it must be.

    Args:
        cases: that must be refused.
        folder: an empty one.
        trained: a run of teachers; each case finds a copy as `run` in its folder.
    """
    found = folder / "problems"
    process = _CONTEXT.Process(target=_run_all, args=(tuple(cases), folder, trained, found))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"expected the cases to run, got exit code {process.exitcode}")
    return [line for line in found.read_text().splitlines() if line]


def _run_all(
    cases: Sequence[Case], folder: pathlib.Path, trained: pathlib.Path | None, found: pathlib.Path
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of forks ignores it
    sys.path.insert(0, str(REPOSITORY))

    lines = []
    for number, case in enumerate(cases):
        own = folder / str(number)
        own.mkdir()
        shutil.copy(FUNCTIONS, own)
        if trained is not None:
            shutil.copytree(trained, own / "run")
        os.environ["PATE_TF_STATE"] = tempfile.mkdtemp(dir=folder)
        if case.prepare is not None:
            case.prepare(own)
        problem = _problem(case, own)
        if problem:
            lines.append(f"{case.title}: {problem}")
        shutil.rmtree(own, ignore_errors=True)
    found.write_text("\n".join(lines))


def _problem(case: Case, own: pathlib.Path) -> str:
    out, err = own.with_suffix(".stdout"), own.with_suffix(".stderr")
    before = _contents(own)
    child = os.fork()
    if child == 0:
        _become(case, own, out, err)
    code = _wait(child)
    if code is None:
        return f"hung, having said {err.read_text()[-300:]!r}"
    told = err.read_text()
    errors = [line for line in told.splitlines() if not line.startswith("warning: ")]
    after = _contents(own)
    new = sorted(name for name, one in after.items() if before.get(name) != one)
    gone = sorted(set(before) - set(after))
    if (code == 0) if case.code is None else (code != case.code):
        return f"exit code {code}, having said {told[-300:]!r}"
    if len(errors) != 1 or not errors[0].startswith("error: ") or "Traceback" in told:
        return f"expected one line, got {told[-500:]!r}"
    if len(errors[0]) > LONGEST_MESSAGE:
        return f"a message of {len(errors[0])} characters"
    if case.told not in errors[0]:
        return f"expected {case.told!r}, got {errors[0]!r}"
    if new or gone:
        return f"left {', '.join(new + gone)[:300]}, having said {errors[0][:200]!r}"
    return ""


def _become(case: Case, own: pathlib.Path, out: pathlib.Path, err: pathlib.Path) -> None:
    """Runs the script in this process, and ends it."""
    code: object = 70
    try:
        for number, path in ((1, out), (2, err)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
        os.environ.update(case.environment)
        os.chdir(own)
        sys.argv = [str(REPOSITORY / case.script), *case.flags]
        sys.path.insert(0, str(own))
        sys.dont_write_bytecode = True
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = 0 if leaving.code is None else leaving.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _wait(child: int) -> int | None:
    """Returns the exit code of a process; None if it hangs, and is killed."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _contents(folder: pathlib.Path) -> dict[str, str]:
    """Returns all below a folder: what each is, and of files a digest."""
    found = {}
    for path in folder.rglob("*"):
        if path.name in LEFT or path.name == "__pycache__":
            continue
        if path.is_symlink():
            kind = f"link to {os.readlink(path)}"
        elif path.is_file():
            kind = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            kind = "folder or device"
        found[str(path.relative_to(folder))] = kind
    return found
