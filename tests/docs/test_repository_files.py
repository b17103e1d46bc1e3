"""Files that hosts and tools read are well formed and name what exists."""

import re

import pytest
import yaml
from script_processes import REPOSITORY

FILES = [".github/workflows/ci.yml", ".pre-commit-config.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_yaml_is_read(name):
    assert isinstance(yaml.safe_load((REPOSITORY / name).read_text()), dict)


def test_hosted_checks_are_those_of_a_commit():
    (job,) = yaml.safe_load((REPOSITORY / FILES[0]).read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert "make.py test" in (REPOSITORY / ".ci" / "run").read_text()


def test_templates_name_commands_that_exist():
    text = (REPOSITORY / ".github" / "pull_request_template.md").read_text()
    for script in re.findall(r"python3 ([\w.]+)", text):
        assert (REPOSITORY / script).is_file()


@pytest.mark.parametrize("pattern", ["**/*.md", "*.cff", "setup.py", "docs/**/*.ipynb"])
def test_nothing_names_a_release_or_a_host_that_does_not_exist(pattern):
    named = re.compile(r"github\.com/pate|pate_tf@v\d|pip install [\"']?pate_tf\b(?!\[beam)")
    paths = [path for path in REPOSITORY.glob(pattern) if ".venv" not in path.parts]
    assert paths and [path.name for path in paths if named.search(path.read_text())] == []
