"""`pip install` adds the commands, and only the package at the top level."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from script_processes import REPOSITORY

Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Installs the wheel of this checkout with pip in a separate folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(
        REPOSITORY / "pate_tf", source / "pate_tf", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    return folder / "site"


def run(installed: pathlib.Path, *command: str, folder: pathlib.Path) -> Ended:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


def test_nothing_but_the_package_and_its_commands_is_installed(installed):
    (wheel,) = installed.parent.glob("*.whl")
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"pate_tf"}
    assert {path.name for path in (installed / "bin").iterdir()} == {"pate"}


def test_it_runs_outside_of_the_checkout(installed, tmp_path):
    # A user's folder with the name of a script must not interfere.
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text("raise ImportError('the wrong analysis')")
    plan = ("plan", "--epsilon=1", "--nb_teachers=50", "--nb_labels=3")
    ended = run(installed, sys.executable, str(installed / "bin/pate"), *plan, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Recommended" in ended.stdout
    where = "import pate_tf; print(pate_tf.__file__)"
    imported = run(installed, sys.executable, "-c", where, folder=tmp_path).stdout.strip()
    assert pathlib.Path(imported).is_relative_to(installed)
