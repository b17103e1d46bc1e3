"""Shared by all tests: locations, and one small trained run for each test process."""

import gc
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

# Set this before TensorFlow starts, here and in every process that inherits this environment.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `import pate_tf` does

# Otherwise every process that a test starts would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads of small problems wait for each other and for threads of other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

# No test, and no process that it starts, may write into the home of the user who runs it.
os.environ["PATE_TF_STATE"] = tempfile.mkdtemp(prefix="pate_tf_state_")
# Features of public inputs may be shared: the processes of pytest-xdist inherit the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PATE_TF_CACHE"] = tempfile.mkdtemp(prefix="pate_tf_cache_")

# Helpers of tests, and the tests' custom models, named `architectures_for_tests:<function>`.
sys.path.extend(
    str(folder)
    for here in (pathlib.Path(__file__).resolve().parent,)
    for folder in (
        here.parent,
        *sorted({file.parent for file in here.rglob("*.py") if not file.name.startswith("test_")}),
    )
)

from script_processes import MAX_STEPS, NUM_TEACHERS, REPOSITORY, Ended, run_script

# TensorFlow and Keras leave a large heap. Otherwise Python searches it for cycles all the time.
gc.set_threshold(100_000, 50, 100)

# No deadline: a test must not depend on how busy the machine is.
hypothesis.settings.register_profile("pate_tf", deadline=None)
hypothesis.settings.load_profile("pate_tf")


@pytest.fixture(autouse=True, scope="module")
def state_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives the tests of a module their own shared registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_TF_STATE", str(tmp_path_factory.mktemp("state_of_module")))
        yield


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test and its processes their own registry."""
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Returns the folder of prepared MNIST: `$PATE_TF_SHARED` or `../shared`."""
    named = os.environ.get("PATE_TF_SHARED")
    folder = pathlib.Path(named) if named else REPOSITORY.parent / "shared"
    if not (folder / "tfds" / "mnist").is_dir():
        pytest.skip(f"no prepared MNIST in {folder}/tfds; PATE_TF_SHARED names another folder")
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pathlib.Path, Ended]]:
    """Returns a finished run of train_teachers.py and its result. A test that writes there fails
    all.
    """
    folder = tmp_path_factory.mktemp("trained") / "run"
    ended = run_script(
        "train_teachers.py",
        f"--nb_teachers={NUM_TEACHERS}",
        f"--max_steps={MAX_STEPS}",
        "--model=mlp",
        f"--train_dir={folder}",
        f"--report_file={folder}/report.json",
        folder=folder.parent,
    )
    assert ended.code == 0, ended.err
    before = _contents(folder)
    yield folder, ended
    assert _contents(folder) == before, "a test wrote into the fixture `trained`: copy it first"


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns all files below a folder except locks and SQLite's files next to ledgers that were
    read.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith((".lock", "-shm", "-wal"))
    }
