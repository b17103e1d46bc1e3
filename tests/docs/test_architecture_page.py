"""The page of the architecture names files that exist, and every package."""

import re

from script_processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "architecture.md").read_text()


def test_every_file_that_the_page_names_exists():
    files = re.findall(r"`(pate_tf/[\w/]+\.py)`", PAGE)
    assert len(files) >= 20
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_every_package_has_a_row():
    packages = {path.parent.name for path in (REPOSITORY / "pate_tf").glob("*/__init__.py")}
    rows = {name for row in re.findall(r"^\| (`.+?) \|", PAGE, re.M) for name in row.split("`")}
    assert packages <= rows
