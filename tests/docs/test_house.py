"""The page that shows a stranger where things are."""

import importlib.util
import re

from script_processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "house.md").read_text()


def load_tool():
    path = REPOSITORY / "tools" / "house_picture.py"
    spec = importlib.util.spec_from_file_location("house_picture", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_imports():
    tool = load_tool()
    assert tool.PICTURE.read_text() == tool.drawing(), "run: python tools/house_picture.py"


def test_an_arrow_is_left_out_only_where_another_way_leads():
    tool = load_tool()
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert tool.without_shortcuts(imports) == {"a": {"b"}, "b": {"c"}, "c": set()}
    assert tool.floors(imports) == {"a": 2, "b": 1, "c": 0}


def test_every_file_that_the_page_names_exists():
    named = re.findall(r"`(pate_tf/[\w/.]+|tools/[\w/.]+|CONTRIBUTING\.md)`", PAGE)
    assert len(named) > 10
    for name in named:
        assert (REPOSITORY / name).exists(), name
