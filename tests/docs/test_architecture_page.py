"""The page of the architecture names files that exist, and every package; so does CONTRIBUTING."""

import re
import textwrap

from script_processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "architecture.md").read_text()
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
TOYS = (REPOSITORY / "tests" / "accounting" / "toy_mechanisms.py").read_text()


def test_every_file_that_the_pages_name_exists():
    files = re.findall(r"`(pate_tf/[\w/]+\.py)`", PAGE)
    assert len(files) >= 20
    files += re.findall(r"`(tests/[\w/]+\.py)`", CONTRIBUTING)
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_every_package_has_a_row():
    packages = {path.parent.name for path in (REPOSITORY / "pate_tf").glob("*/__init__.py")}
    rows = {name for row in re.findall(r"^\| (`.+?) \|", PAGE, re.M) for name in row.split("`")}
    assert packages <= rows


def test_the_skeleton_of_a_mechanism_is_one_that_tests_register():
    (skeleton,) = re.findall(r"^   ```python\n(.*?)^   ```", CONTRIBUTING, re.M | re.S)
    assert textwrap.dedent(skeleton) in TOYS
