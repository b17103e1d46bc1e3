"""The tool that plants faults: what it changes, what it finds again, and what it says of tests."""

import dataclasses
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
from script_processes import REPOSITORY

TOOL = REPOSITORY / "tools" / "mutants.py"

MODULE = b'''"""A docstring of 3 words."""

import math

LIMIT = 7


class Account:
    """Spends 10."""

    def charge(self, cost: float, times: int = 4) -> float:
        """Charges 2 times."""
        if not 0.0 < cost <= self.budget:
            raise ValueError(f"expected at most {self.budget + 1}, got {cost - 1}")
        self.ledger.debit(cost * times)
        return max(cost, math.inf)

    def __repr__(self) -> str:
        return f"Account({1 + 1})" * 2
'''

# What is changed in a function of one statement, and how.
CHANGES = [
    ("return a + b", {"a + b -> a - b"}),
    ("return a - b", {"a - b -> a + b"}),
    ("return a * b", {"a * b -> a / b"}),
    ("return a / b", {"a / b -> a * b"}),
    ("return a // b", {"a // b -> a % b"}),
    ("return a ** b", {"a ** b -> a * b"}),
    ("a += b", {"a += b -> a -= b"}),
    ("return a < b", {"a < b -> a <= b"}),
    ("return a >= b != c", {"a >= b != c -> a > b != c", "a >= b != c -> a >= b == c"}),
    ("return a is None", {"a is None -> a is not None"}),
    ("return a and b", {"a and b -> a or b"}),
    ("return not a", {"not a -> a"}),
    ("return -a", {"-a -> a"}),
    ("return 0", {"0 -> 1"}),
    ("return 1", {"1 -> 0"}),
    ("return 5", {"5 -> 6"}),
    ("return True", {"True -> False"}),
    ("return 0.5", {"0.5 -> 1.0"}),
    ("return 0.0", {"0.0 -> 1.0"}),
    ("return 'text'", set()),
    ("return f'{a + 1}'", set()),
    ("return 'text' + a", set()),
    ("return np.minimum(a, b)", {"np.minimum(a, b) -> np.maximum(a, b)"}),
    ("return max(a, b)", {"max(a, b) -> min(a, b)"}),
    ("return range(a)", {"a -> (a) - 1"}),
    ("return a[b:c]", {"b -> (b) + 1", "c -> (c) - 1"}),
    ("return zip(a, b, strict=True)", set()),
    ("check(a)", {"check(a) -> pass"}),
    ("_log.info(a + 1)", set()),
    ("warnings.warn(a + 1)", set()),
    ("super().__init__(a)", set()),
    ("if a:\n        raise ValueError(a + 1)", {"a -> False"}),
    ("if a:\n        return b", set()),
    ("raise ValueError(a + 1)", set()),
    ("b: Literal[1] = c", set()),
]
RETURNS = [
    ("bool", "a(b)", {"a(b) -> not (a(b))"}),
    ("int", "a", {"a -> (a) + 1"}),
    ("float", "a(b)", {"a(b) -> 2.0 * (a(b))"}),
    ("Row | None", "a(b)", {"a(b) -> None"}),
    ("str", "a(b)", set()),
]

REPOSITORY_FOR_TESTS = {
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['long: slow']\n",
    "pate_tf/__init__.py": "",
    "pate_tf/noise.py": "import functools\n\nSCALE = 2\n\n\n@functools.cache\n"
    "def scaled(x: int) -> int:\n    return x * SCALE\n\n\n"
    "def unread(x: int) -> int:\n    return x + 5\n",
    "tests/release/test_noise.py": "from pate_tf.noise import scaled, unread\n\n\n"
    "def test_of_unread():\n    assert unread(1)\n\n\n"
    "def test_of_a_type():\n    assert isinstance(scaled(3), int)\n\n\n"
    "def test_of_a_value():\n    assert scaled(3) == 6\n\n\n"
    "def test_that_fails_anyhow():\n    assert unread(1) == 0\n",
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder: pathlib.Path, files: dict[str, str | bytes]) -> pathlib.Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def changes(tool: ModuleType, source: str) -> set[str]:
    sites = tool.sites_in("one.py", source.encode())
    return {f"{site.change.before} -> {site.change.after}" for site in sites}


@pytest.mark.parametrize(("statement", "expected"), CHANGES)
def test_each_operator_changes_what_it_says(tool, statement, expected):
    assert changes(tool, f"def f(a, b, c):\n    {statement}\n") == expected


@pytest.mark.parametrize(("annotation", "value", "expected"), RETURNS)
def test_what_is_returned_changes_by_its_type(tool, annotation, value, expected):
    assert changes(tool, f"def f(a, b) -> {annotation}:\n    return {value}\n") == expected


def test_texts_annotations_and_words_stay(tool):
    assert changes(tool, MODULE.decode()) == {
        "7 -> 8",
        "4 -> 5",
        "not 0.0 < cost <= self.budget -> False",
        "not 0.0 < cost <= self.budget -> 0.0 < cost <= self.budget",
        "0.0 < cost <= self.budget -> 0.0 <= cost <= self.budget",
        "0.0 < cost <= self.budget -> 0.0 < cost < self.budget",
        "0.0 -> 1.0",
        "self.ledger.debit(cost * times) -> pass",
        "cost * times -> cost / times",
        "max(cost, math.inf) -> min(cost, math.inf)",
        "max(cost, math.inf) -> 2.0 * (max(cost, math.inf))",
    }


def test_a_mutant_differs_in_its_place_alone(tool):
    for site in tool.sites_in("one.py", MODULE):
        mutated = site.mutated(MODULE)
        compile(mutated, "one.py", "exec")
        assert mutated == MODULE[: site.start] + site.text.encode() + MODULE[site.stop :]
        old = MODULE[site.start : site.stop].decode()
        assert old == site.change.before
    source = "def f(ä: int):\n    return (ä -\n            1) * ä\n".encode()
    results = set()
    for site in tool.sites_in("one.py", source):
        names: dict[str, object] = {}
        exec(site.mutated(source), names)
        results.add(names["f"](4))
    assert results == {(4 + 1) * 4, (4 - 0) * 4, (4 - 1) / 4}


def test_a_mutant_is_found_where_its_function_moved_and_is_gone_when_it_changed(tool, tmp_path):
    source = "def cost(a, b):\n    b = a + 1\n    b = a + 1\n    return b * 2\n"
    moved = "class Law:\n  def cost(self, a, b):\n    b = (a\n      + 1)  # once\n    b = a + 1\n\n"
    changed = "    return 2 * b\n"
    other = "def cost(a, b):\n    return b * 3\n"
    before = tool.Library(written(tmp_path / "old", {"pate_tf/a/one.py": source}))
    drawn = [site.change for site in before.sites]
    assert [(each.before, each.occurrence) for each in drawn if each.before == "a + 1"] == [
        ("a + 1", 0),
        ("a + 1", 1),
    ]

    files = {"pate_tf/b/two.py": moved + changed, "pate_tf/three.py": other}
    after = tool.Library(written(tmp_path / "new", files))
    places = {each: after.locate(each, {}) for each in drawn}
    found = {each: site.place for each, site in places.items() if site}
    sums = [place for each, place in found.items() if each.before == "a + 1"]
    assert sums == ["pate_tf/b/two.py:3", "pate_tf/b/two.py:5"]
    assert {each for each in drawn if each not in found} == {
        each for each in drawn if each.statement == "return b * 2"
    }
    gone = next(each for each in drawn if each.before == "b * 2")
    assert after.nearest(gone).before in ("2 * b", "b * 3")

    # Two equal functions at the same distance: none is taken for it.
    twice = {"pate_tf/b/two.py": source, "pate_tf/b/three.py": source}
    assert tool.Library(written(tmp_path / "twice", twice)).locate(drawn[0], {}) is None
    # Where its function still stands, an equal statement elsewhere is another.
    stays = {"pate_tf/a/one.py": "def cost(a, b):\n    return a - 5\n", "pate_tf/two.py": source}
    assert tool.Library(written(tmp_path / "stays", stays)).locate(drawn[0], {}) is None
    # Words that were renamed, if the sample says so.
    renamed = {"pate_tf/a/one.py": source.replace("cost", "price").replace("a", "x")}
    library = tool.Library(written(tmp_path / "renamed", renamed))
    assert library.locate(drawn[0], {}) is None
    assert library.locate(drawn[0], {"cost": "price", "a": "x"}).line == 2


def test_a_draw_is_fixed_spread_over_modules_and_takes_few_of_a_statement(tool, tmp_path):
    many = "".join(f"def f{i}(a, b):\n    return a + b * {i}\n" for i in range(300))
    few = "".join(f"def g{i}(a, b):\n    return a - b\n" for i in range(30))
    root = written(tmp_path, {"pate_tf/many.py": many, "pate_tf/few.py": few})
    sites = tool.Library(root).sites
    modules = {"pate_tf/many.py": "accounting", "pate_tf/few.py": "noise"}
    drawn = tool.draw(sites, modules, number=100, seed=1)
    assert drawn == tool.draw(sites, modules, number=100, seed=1)
    assert drawn != tool.draw(sites, modules, number=100, seed=2)
    names = [module for module, _ in drawn]
    assert (names.count("accounting"), names.count("noise")) == (80, tool.FEWEST)
    all_of_few = tool.draw(sites, {"pate_tf/few.py": "noise"}, number=100, seed=1)
    assert len(all_of_few) == 30
    all_of_many = tool.draw(sites, {"pate_tf/many.py": "noise"}, number=10_000, seed=1)
    assert len(all_of_many) == 2 * 300


def test_a_run_tells_killed_survived_and_gone(tool, tmp_path):
    root = written(tmp_path / "root", REPOSITORY_FOR_TESTS)
    (root / "tools").mkdir()
    shutil.copy(TOOL, root / "tools")
    sites = {site.change.before: site.change for site in tool.Library(root).sites}
    wanted = {
        "value": sites["x * SCALE"],
        "constant": sites["2"],
        "unread": sites["5"],
        "removed": dataclasses.replace(sites["5"], statement="return x + 6"),
        "replaced": dataclasses.replace(sites["5"], statement="return x + 6"),
    }
    values = {
        "renamed": {},
        "moved": {"replaced": {"statement": "return x + 5"}},
        "explained": {"unread": "only for the test"},
        "mutants": [
            {"name": name, "module": "noise", **dataclasses.asdict(change)}
            for name, change in wanted.items()
        ],
    }
    (root / "tools" / "mutants.json").write_text(json.dumps(values))

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/mutants.py", "run", "--tests=tests", "--jobs=2", *flags]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)

    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert "they fail without a mutant: tests/release/test_noise.py" in ended.stdout
    stored = json.loads((root / "build" / "mutants" / "results.json").read_text())["results"]
    verdicts = {name: each["verdict"] for name, each in stored.items()}
    assert verdicts == {
        "value": "killed",
        "constant": "killed",
        "unread": "survived",
        "removed": "gone",
        "replaced": "survived",
    }
    # Though the other test of it had put the value into the cache.
    assert stored["value"]["killer"] == "tests/release/test_noise.py::test_of_a_type"
    assert stored["constant"]["killer"] == "tests/release/test_noise.py::test_of_a_value"
    assert stored["value"]["covering"] == 2
    assert "0 mutants in" in run().stdout
    assert (root / "pate_tf/noise.py").read_text() == REPOSITORY_FOR_TESTS["pate_tf/noise.py"]

    (root / "pate_tf/noise.py").write_text("SCALE = 3\n")
    refused = run()
    assert refused.returncode != 0
    assert "expected results of this library" in refused.stderr
