"""Runs every benchmark as a user types it, in quick mode, and compares the pages with
their JSON.
"""

import os
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest
from script_processes import REPOSITORY, learn_little, run_script

from benchmarks import own_data
from benchmarks.harness import Measurements, NotStoredError, separate_registry
from benchmarks.paper import __main__ as paper
from benchmarks.paper.laboratory import PAGES, costs
from pate_tf.accounting.mechanisms import LaplaceNoisyMax

NOTES = REPOSITORY / "docs" / "notes"
FAST = ("teachers", "figure2", "figure3", "forests", "data_independent", "costs")
LONG = pytest.mark.long
# The script, its flags, and the minimum number of lines in its tables.
COMMANDS = {
    "paper": ("paper/__main__.py", ("--quick", "--only", *FAST), 4 + 2 + 2 + 2 + 2 + 8, LONG),
    "paper, students": (
        "paper/__main__.py",
        ("--quick", "--only", *(set(paper.EXPERIMENTS) - {*FAST})),
        2 + 1 + 4 + 1 + 17 + 1,
        LONG,
    ),
    "silos": ("silos.py", ("--quick",), 4 + 2 + 6, LONG),
    "scale": ("scale.py", ("--sizes", "400"), 6, LONG),
    "speed": ("speed.py", ("--quick", "analysis", "ledger", "silos"), 2 + 1 + 1, ()),
    "speed, the rest": (
        "speed.py",
        ("--quick", "accounting", "ensemble", "compiled", "serving", "shared"),
        6 + 1 + 1 + 2 + 1,
        LONG,
    ),
    "own_data": ("own_data.py", ("--quick", "--only", "breast_cancer"), 1, LONG),
    "targets": ("targets.py", ("--quick",), 1, ()),
}


def set_up() -> None:
    """Sets the environment of a checkout, so that `python -m benchmarks` works in its own
    processes.
    """
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    learn_little()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=case[3]) for name, case in COMMANDS.items()]
)
def test_a_command_prints_its_tables(name, tmp_path):
    script, flags, num_rows, _ = COMMANDS[name]
    ended = run_script(f"benchmarks/{script}", *flags, folder=tmp_path, setup=set_up)
    assert ended.code == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line.startswith("|")]
    tables = sum(line.startswith("| --- |") for line in lines)
    assert len(lines) - 2 * tables >= num_rows, ended.out
    assert not any(path.stat().st_mode & 0o077 for path in tmp_path.rglob("sensitive"))


def test_a_stopped_run_goes_on_with_what_is_stored(tmp_path):
    measurements, calls = Measurements(folder=tmp_path), []

    def measure(number: int) -> dict[str, int]:
        calls.append(number)
        return {"number": number}

    for number in (1, 2, 1):
        measured = measurements.of("kind", {"number": number}, lambda n=number: measure(n))
        assert measured.result == {"number": number}
    assert calls == [1, 2]
    stored = Measurements(folder=tmp_path, only_stored=True)
    assert stored.of("kind", {"number": 2}, lambda: measure(3)).result == {"number": 2}
    for other in (("other", 2, 0), ("kind", 3, 0), ("kind", 2, 1)):
        with pytest.raises(NotStoredError):
            kept = Measurements(folder=tmp_path, seed=other[2], only_stored=True)
            kept.of(other[0], {"number": other[1]}, lambda: {})
    with separate_registry() as folder:
        assert os.environ["PATE_TF_STATE"].startswith(str(folder))


def test_pages_are_what_their_json_says(tmp_path, monkeypatch, capsys):
    docs = tmp_path / "notes"
    shutil.copytree(NOTES, docs, ignore=shutil.ignore_patterns("pictures"))
    names = ("results", "reproduce", "own_data")
    before = {name: (docs / f"{name}.md").read_text() for name in names}
    (docs / "own_data.md").unlink()
    for name in PAGES:
        (docs / f"{name}.md").write_text(before[name].split(paper.MARK)[0])
    paper.publish({}, docs)
    monkeypatch.setattr(sys, "argv", ["", "--only", "--publish", f"--docs_dir={docs}"])
    own_data.main()
    assert {name: (docs / f"{name}.md").read_text() for name in names} == before
    pictures = {path.name for path in (docs / "pictures").iterdir()}
    assert pictures == {path.name for path in (NOTES / "pictures").iterdir()}


def test_the_papers_accounting_is_the_golden_value():
    # H2 of tests/accounting/golden.json.
    counts = np.tile([200, 6, 6, 6, 6, 6, 5, 5, 5, 5], (100, 1))
    mechanism = LaplaceNoisyMax(gamma=0.05)
    epsilons = costs(counts, mechanism, delta=1e-5)
    assert epsilons["paper"] == pytest.approx(1.47991480486117489)
    assert epsilons["exact"] < epsilons["sanitised"] and epsilons["exact"] < epsilons["worst_case"]


def test_commands_of_the_pages_exist():
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    commands = {
        match.groups()
        for path in pages
        for match in re.finditer(
            r"python -m benchmarks\.(\w+)([^`]*)", path.read_text().replace("\\\n", " ")
        )
    }
    assert len(commands) > 20
    for module, flags in commands:
        path = REPOSITORY / "benchmarks" / module
        sources = list(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        text = "\n".join(pathlib.Path(source).read_text() for source in sources)
        # The audit of a mechanism takes the mechanism's parameters as flags.
        for flag in re.findall(r"--(\w+)", flags) if module != "mechanism_audit" else ():
            assert f'"--{flag}"' in text, (module, flags)
        if module == "paper":
            names = re.search(r"--only ([\w ]+)", flags)
            assert names is None or set(names[1].split()) <= set(paper.EXPERIMENTS)
