"""Bazel builds the repository and runs its tests, with stubs for what the network would bring."""

import pathlib
import shutil
import subprocess
import xml.etree.ElementTree
from collections.abc import Callable, Iterator

import pytest
from offline_workspace import DEBIANS_RULES, make_workspace, write_files
from script_processes import REPOSITORY

pytestmark = pytest.mark.long

Bazel = Callable[..., subprocess.CompletedProcess[str]]

TARGETS = (
    "//tests:test_noise",
    "//tests:test_partition",
    "//tests:accounting/test_calibration",
    "//tests:accounting/test_conversions",
    "//tests:accounting/test_mechanisms",
    "//tests:analysis/test_stated_release",
    "//tests:cli/test_analysis",
    "//tests:data/test_uci",
    "//tests:labelling/test_graph",  # starts TensorFlow
    "//tests:ledger/test_budget",
    "//tests:ledger/test_releases",
    "//tests:statement/test_check",
    "//tests:values/test_values",
)
PROBE = """
load("//tools:pytest_test.bzl", "pytest_test")

[
    pytest_test(
        name = name,
        srcs = [name + ".py"],
    )
    for name in ("test_fails", "test_no_test", "test_undeclared")
]

pytest_test(
    name = "test_declared",
    srcs = ["test_undeclared.py"],
    deps = ["//pate_tf:accounting"],
)
"""
PROBES = {
    "probe/BUILD": PROBE,
    "probe/test_fails.py": "def test_it():\n    assert 1 == 2\n",
    "probe/test_no_test.py": "def nothing():\n    pass\n",
    "probe/test_undeclared.py": "def test_it():\n    import pate_tf.accounting.mechanisms\n",
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> pathlib.Path:
    if not shutil.which("bazel") or not DEBIANS_RULES.is_dir():
        pytest.skip("no Bazel of Debian: bazel-bootstrap, bazel-rules-java, bazel-rules-proto")
    made = make_workspace(REPOSITORY, tmp_path_factory.mktemp("bazel"))
    write_files(made, PROBES)
    return made


@pytest.fixture(scope="module")
def bazel(workspace) -> Iterator[Bazel]:
    """Runs Bazel in the workspace."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bazel", f"--output_user_root={workspace.parent / 'output'}", *arguments],
            cwd=workspace,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )

    yield run
    run("clean", "--expunge")  # ends its server too


def results(workspace: pathlib.Path, target: str) -> dict[str, int]:
    """What test.xml counts: tests, errors, failures and skipped."""
    folder = workspace / "bazel-testlogs" / target.removeprefix("//").replace(":", "/")
    suite = xml.etree.ElementTree.parse(folder / "test.xml").getroot().find("testsuite")
    assert suite is not None
    return {key: int(suite.attrib[key]) for key in ("tests", "errors", "failures", "skipped")}


def test_everything_builds(bazel):
    ended = bazel("build", "--build_manual_tests", "//...")
    assert ended.returncode == 0, ended.stderr


def test_tests_run(bazel, workspace):
    ended = bazel("test", "--keep_going", "--test_output=errors", *TARGETS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for target in TARGETS:
        counts = results(workspace, target)
        assert counts["tests"] > counts["skipped"], target
        assert counts["errors"] == counts["failures"] == 0, target


def test_what_must_fail_fails(bazel, workspace):
    ended = bazel("test", "--keep_going", "//probe:all")
    assert ended.returncode == 3, ended.stderr  # built, and some tests failed
    assert results(workspace, "//probe:test_declared")["failures"] == 0
    assert results(workspace, "//probe:test_fails")["failures"] == 1
    assert results(workspace, "//probe:test_undeclared")["failures"] == 1
    assert results(workspace, "//probe:test_no_test")["tests"] == 0
    for name in ("test_fails", "test_undeclared", "test_no_test"):
        assert f"//probe:{name} " in ended.stdout
    assert ended.stdout.count(" FAILED in ") == 3


def test_one_test_of_a_file_can_be_chosen(bazel, workspace):
    target = "//tests:accounting/test_conversions"
    tests = []
    for options in ([], ["--test_filter=zero"]):
        ended = bazel("test", *options, target)
        assert ended.returncode == 0, ended.stderr
        tests.append(results(workspace, target)["tests"])
    assert 0 < tests[1] < tests[0]


def test_buildifier_accepts_the_files():
    if not shutil.which("buildifier"):
        pytest.skip("no buildifier: npm install @bazel/buildifier")
    ended = subprocess.run(
        ["buildifier", "--mode=check", "--lint=warn", "-r", REPOSITORY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
