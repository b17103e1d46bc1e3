"""Runs many commands that must be refused, and reports what is wrong with each refusal."""

import dataclasses
import functools
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence

import pytest
from script_processes import run_script

TEACHERS, STUDENT, ANALYSIS = "train_teachers.py", "train_student.py", "analysis.py"
FUNCTIONS = pathlib.Path(__file__).with_name("functions_for_tests.py")
MAX_MESSAGE_LENGTH = 1000

# Files that a refusal may leave: locks, SQLite's files next to a ledger that was read, messages.
LEFT = ("ledger.lock", "ledger.sqlite3-shm", "ledger.sqlite3-wal", ".stdout", ".stderr")

Prepare = Callable[[pathlib.Path], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A command, and the message that it must give.

    Attributes:
        script: the script.
        flags: flags of the script, which runs in a separate folder.
        told: text that the message must contain.
        prepare: a module's function that fills the folder first; it gets the folder.
        code: the exit code; None for any code except 0.
        environment: additional environment variables.
    """

    script: str
    flags: Sequence[str]
    told: str = ""
    prepare: Prepare | None = None
    code: int | None = None
    environment: Sequence[tuple[str, str]] = ()

    @property
    def title(self) -> str:
        """The command, shortened."""
        words = [word if len(word) < 80 else f"{word[:80]}..." for word in self.flags]
        return " ".join([self.script, *words])


def problems(
    cases: Sequence[Case], folder: pathlib.Path, *, trained: pathlib.Path | None = None
) -> list[str]:
    """Runs cases, and returns a line for each that was not refused correctly.

    Args:
        cases: cases that must be refused.
        folder: an empty folder.
        trained: a run of teachers; each case finds a copy as `run` in its folder.
    """
    lines = []
    for number, case in enumerate(cases):
        own = folder / str(number)
        own.mkdir()
        shutil.copy(FUNCTIONS, own)
        if trained is not None:
            shutil.copytree(trained, own / "run")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATE_TF_STATE", tempfile.mkdtemp(dir=folder))
            if case.prepare is not None:
                case.prepare(own)
            problem = _problem(case, own)
        if problem:
            lines.append(f"{case.title}: {problem}")
        shutil.rmtree(own, ignore_errors=True)
    return lines


def _set_up(own: str, environment: Sequence[tuple[str, str]]) -> None:
    os.environ.update(environment)
    sys.path.insert(0, own)
    sys.dont_write_bytecode = True


def _problem(case: Case, own: pathlib.Path) -> str:
    before = _contents(own)
    setup = functools.partial(_set_up, str(own), case.environment)
    ended = run_script(case.script, *case.flags, folder=own, setup=setup)
    code, told = ended.code, ended.err
    errors = [line for line in told.splitlines() if not line.startswith(("warning: ", "- "))]
    after = _contents(own)
    new = sorted(name for name, one in after.items() if before.get(name) != one)
    gone = sorted(set(before) - set(after))
    if (code == 0) if case.code is None else (code != case.code):
        return f"exit code {code}, having said {told[-300:]!r}"
    if len(errors) != 1 or not errors[0].startswith("error: ") or "Traceback" in told:
        return f"expected one line, got {told[-500:]!r}"
    if len(errors[0]) > MAX_MESSAGE_LENGTH:
        return f"a message of {len(errors[0])} characters"
    if case.told not in errors[0]:
        return f"expected {case.told!r}, got {errors[0]!r}"
    if new or gone:
        return f"left {', '.join(new + gone)[:300]}, having said {errors[0][:200]!r}"
    return ""


def _contents(folder: pathlib.Path) -> dict[str, str]:
    """Returns everything below a folder: its type, and a digest of each file."""
    actual = {}
    for path in folder.rglob("*"):
        if path.name.endswith(LEFT) or path.name == "__pycache__":
            continue
        if path.is_symlink():
            kind = f"link to {os.readlink(path)}"
        elif path.is_file():
            kind = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            kind = "folder or device"
        actual[str(path.relative_to(folder))] = kind
    return actual
