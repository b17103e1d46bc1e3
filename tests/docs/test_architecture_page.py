"""The architecture page and CONTRIBUTING name files that exist, and every package."""

import os
import re
import shutil
import subprocess
import sys

from script_processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "architecture.md").read_text()
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()


def test_every_file_that_the_pages_name_exists():
    files = re.findall(r"`(pate_tf/[\w/]+\.py)`", PAGE)
    assert len(files) >= 7
    files += re.findall(r"`(tests/[\w/]+\.py)`", CONTRIBUTING)
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_every_package_has_a_row():
    packages = {path.parent.name for path in (REPOSITORY / "pate_tf").glob("*/__init__.py")}
    rows = {name for row in re.findall(r"^\| (`.+?) \|", PAGE, re.M) for name in row.split("`")}
    assert packages <= rows


def test_a_new_mechanism_takes_one_command(tmp_path):
    """In a copy of the checkout, the mechanism is registered, calibrated for a target, and has a
    flag.
    """
    for folder in ("pate_tf", "tools", "tests", "benchmarks", "docs/reference"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    for file in (*REPOSITORY.glob("*.py"), REPOSITORY / "pyproject.toml"):
        shutil.copy(file, tmp_path)
    command = [sys.executable, "-m", "tools.new_mechanism", "exponential_noisy_max"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    plan = "pate_tf.cli.main", "plan", "--epsilon=1", "--nb_teachers=100", "--nb_labels=5"
    ended = subprocess.run(
        [sys.executable, "-m", *plan, "--mechanism=exponential_noisy_max"],
        **{"cwd": tmp_path, "env": environment, "text": True, "capture_output": True},
    )
    assert "exponential_noisy_max" in ended.stdout, ended.stderr
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 2
    assert "use a new name" in again.stderr
