"""Bazel builds the repository and runs its tests, with stubs for what the network would bring."""

import pathlib
import shutil
import subprocess
import xml.etree.ElementTree
from collections.abc import Callable, Iterator

import pytest
from offline_workspace import DEBIANS_RULES, make_workspace
from script_processes import REPOSITORY

pytestmark = pytest.mark.long

Bazel = Callable[..., subprocess.CompletedProcess[str]]

TARGETS = (
    "//tests:accounting/test_conversions",
    "//tests:accounting/test_mechanisms",
    "//tests:analysis/test_stated_release",
    "//tests:cli/test_analysis",
    "//tests:data/test_uci",
    "//tests:ledger/test_budget",
    "//tests:ledger/test_releases",
    "//tests:release/test_graph",  # starts TensorFlow
    "//tests:statement/test_check",
    "//tests:core/test_values",
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> pathlib.Path:
    if not shutil.which("bazel") or not DEBIANS_RULES.is_dir():
        pytest.skip("no Bazel of Debian: bazel-bootstrap, bazel-rules-java, bazel-rules-proto")
    return make_workspace(REPOSITORY, tmp_path_factory.mktemp("bazel"))


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
