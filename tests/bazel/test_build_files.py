"""BUILD files: what the imports want, for every test, naming packages that are pinned."""

import ast
import functools
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from script_processes import REPOSITORY

GENERATOR = pathlib.Path("tools", "build_files.py")
COMMAND = "python3 tools/build_files.py"
SMALL = {
    "constraints.txt": "numpy==2.0\nscikit-learn==1.9\npytest==9.0\ntensorflow==2.0\n",
    "pyproject.toml": "",
    "ask.py": "from pate_tf.door import noise\n",
    "pate_tf/__init__.py": "def front(): from pate_tf.door import noise\n",
    "pate_tf/door/__init__.py": "",
    "pate_tf/door/noise.py": "import json\nimport sklearn.svm\nfrom .. import values\n",
    "pate_tf/values.py": "def load(): import numpy.linalg\n",
    "tests/conftest.py": "import pytest\n",
    "tests/golden.json": "{}",
    "tests/twins.py": "import pate_tf\nPATH = 'golden.json'\n",
    "tests/door/test_noise.py": "from pate_tf.door import noise\nSCRIPT = 'ask.py'\n",
    "tests/door/test_twins.py": "import pytest, twins\n@pytest.mark.long\ndef test_it(): pass\n",
}


def generate(repository: pathlib.Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        # -B: nothing is to be written but by the generator.
        [sys.executable, "-B", repository / GENERATOR, *flags],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def targets(repository: pathlib.Path) -> Iterator[tuple[str, str, dict]]:
    """Folder, rule and attributes of each target: BUILD files are in Python's syntax."""
    for path in sorted(repository.rglob("BUILD")):
        folder = path.parent.relative_to(repository).as_posix()
        for statement in ast.parse(path.read_text()).body:
            call = statement.value
            if isinstance(call, ast.Call) and any(key.arg == "name" for key in call.keywords):
                values = {key.arg: ast.literal_eval(key.value) for key in call.keywords}
                yield folder, ast.unparse(call.func), values


def contents(folder: pathlib.Path) -> dict[pathlib.Path, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def small(tmp_path) -> pathlib.Path:
    """A repository of few files, without BUILD files."""
    for name, text in SMALL.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for module in ("build_files.py", "labels.py"):
        (tmp_path / "tools").mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "tools" / module, tmp_path / "tools")
    return tmp_path


def small_targets(small: pathlib.Path) -> dict[str, dict]:
    assert generate(small).returncode == 0
    return {f"{folder}:{values['name']}": values for folder, _, values in targets(small)}


# ---- the repository's own ----------------------------------------------------------------------


def test_build_files_are_what_the_imports_want():
    ended = generate(REPOSITORY, "--check")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_test_file_is_a_target():
    rules = [(folder, rule, each) for folder, rule, each in targets(REPOSITORY)]
    tested = {
        f"{folder}/{source}"
        for folder, rule, each in rules
        if rule == "pytest_test"
        for source in each["srcs"]
    }
    files = (REPOSITORY / "tests").rglob("test_*.py")
    assert tested == {path.relative_to(REPOSITORY).as_posix() for path in files}
    assert {rule for _, rule, _ in rules} == {"py_binary", "py_library", "pytest_test"}
    names = [(folder, each["name"]) for folder, _, each in rules]
    assert len(names) == len(set(names))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def required(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What an installed package requires here; an unknown name fails."""
    lines = map(Requirement, importlib.metadata.requires(name) or [])
    return [
        line
        for line in lines
        if not line.marker or any(line.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def with_all_they_need(names: set[str], *, extras: bool) -> set[str]:
    """Packages and what they require, and so on, with what their requirements' extras bring."""
    seen: set[tuple[str, frozenset[str]]] = set()
    ahead = [(canonical(name), frozenset[str]()) for name in names]
    while ahead:
        package = ahead.pop()
        if package not in seen:
            seen.add(package)
            for line in required(*package):
                asked = frozenset(line.extras) if extras else frozenset[str]()
                ahead.append((canonical(line.name), asked))
    return {name for name, _ in seen}


def named_packages() -> list[set[str]]:
    """The packages that each target names, without repetitions."""
    found = {
        frozenset(
            label.removeprefix("@pypi//")
            for label in values.get("deps", [])
            if label.startswith("@pypi//")
        )
        for _, _, values in targets(REPOSITORY)
    }
    return [set(names) for names in sorted(found, key=sorted)]


def test_packages_and_all_they_need_are_pinned():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pinned = {canonical(line.partition("==")[0]) for line in lines}
    named = set().union(*named_packages())
    assert {"numpy", "tensorflow", "pytest"} <= named
    needed = with_all_they_need(named, extras=True)
    assert {"wheel", "six", "pluggy"} <= needed  # of other packages, none of ours
    assert needed - pinned == set()


def test_targets_name_what_extras_bring():
    """rules_python takes requirements without their extras from constraints.txt."""
    for named in named_packages():
        missing = with_all_they_need(named, extras=True) - with_all_they_need(named, extras=False)
        assert not missing, (
            f"{sorted(named)} lack {sorted(missing)}: add them to FROM_EXTRAS in tools/labels.py"
        )


# ---- what the generator does -------------------------------------------------------------------


def test_a_stale_file_is_named_with_the_command_and_nothing_is_written(small):
    before = contents(small)
    ended = generate(small, "--check")
    assert ended.returncode == 1
    assert "pate_tf/door/BUILD" in ended.stdout.splitlines()
    assert COMMAND in ended.stdout
    assert contents(small) == before


def test_written_files_agree_until_an_import_changes(small):
    assert generate(small).returncode == 0
    before = contents(small)
    assert generate(small, "--check").returncode == 0
    assert generate(small).stdout == ""
    assert contents(small) == before
    (small / "pate_tf/values.py").write_text("import tensorflow\n")
    ended = generate(small, "--check")
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == "pate_tf/BUILD"


def test_the_files_of_a_folder_that_went_go_and_those_of_others_stay(small):
    (small / "tests/old").mkdir()
    shutil.move(small / "tests/twins.py", small / "tests/old/twins.py")
    assert generate(small).returncode == 0
    shutil.move(small / "tests/old/twins.py", small / "tests/twins.py")
    (small / "tests/own").mkdir()
    (small / "tests/own/BUILD").write_text("# by hand\n")
    assert generate(small, "--check").returncode == 1
    assert generate(small).returncode == 0
    assert not (small / "tests/old/BUILD").exists()
    assert (small / "tests/own/BUILD").read_text() == "# by hand\n"


def test_dependencies_are_the_imports(small):
    found = small_targets(small)
    assert found["pate_tf:init"].get("deps", []) == []
    assert found["pate_tf:values"]["deps"] == [":init", "@pypi//numpy"]
    assert found["pate_tf/door:door"]["deps"] == [
        "//pate_tf:init",
        "//pate_tf:values",
        "@pypi//scikit_learn",
    ]
    assert found["pate_tf/door:door"]["srcs"] == ["__init__.py", "noise.py"]
    assert found["pate_tf:pate_tf"]["deps"] == [":init", ":values", "//pate_tf/door"]
    assert found[".:ask"]["deps"] == ["//pate_tf/door"]
    assert found["tests:twins"]["deps"] == ["//pate_tf"]  # by its front door
    assert found["tests:twins"]["data"] == [":golden.json"]


def test_tests_depend_on_scripts_that_they_name_and_on_conftest(small):
    deps = small_targets(small)["tests/door:test_noise"]["deps"]
    assert deps == ["//:ask", "//pate_tf/door", "//tests:conftest"]


def test_long_tests_are_a_target_to_run_by_hand(small):
    found = small_targets(small)
    assert "tags" not in found["tests/door:test_twins"]
    assert found["tests/door:test_twins_long"]["tags"] == ["long", "manual"]
    (small / "tests/door/test_twins.py").write_text(
        "import pytest\n\npytestmark = pytest.mark.long\n\ndef test_it(): pass\n"
    )
    found = small_targets(small)
    assert found["tests/door:test_twins"]["tags"] == ["long", "manual"]
    assert "tests/door:test_twins_long" not in found


def test_a_test_is_large_where_anything_below_it_starts_tensorflow(small):
    assert small_targets(small)["tests/door:test_noise"]["size"] == "medium"
    (small / "pate_tf/values.py").write_text("import tensorflow\n")
    assert small_targets(small)["tests/door:test_noise"]["size"] == "large"


@pytest.mark.parametrize("module", ["panda", "test_noise"])
def test_an_import_of_a_package_that_is_not_pinned_or_of_a_test_is_refused(small, module):
    (small / "tests/door/test_twins.py").write_text(f"import {module}\n")
    before = contents(small)
    ended = generate(small)
    assert ended.returncode == 1
    assert ended.stderr == (
        "error: expected a module of the repository or a package in constraints.txt, got "
        f"'import {module}' in tests/door/test_twins.py\n"
    )
    assert contents(small) == before
