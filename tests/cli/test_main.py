"""The command `pate`: its page, its subcommands, what it imports."""

import importlib
import subprocess
import sys

import pytest
from command_helpers import end
from script_processes import modules_after

from pate_tf.cli import main

LARGE = ("tensorflow", "keras", "numpy", "sklearn", "absl")


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["pate", *arguments])


@pytest.mark.parametrize("arguments", [(), ("--help",), ("help",), ("-h",)])
def test_the_page_names_every_subcommand_and_begins_with_what_pate_is(
    monkeypatch, capsys, arguments
):
    typed(monkeypatch, *arguments)
    main.run()
    page = capsys.readouterr().out
    assert page.startswith("Learn a public classifier from private data")
    assert all(f"\n  {name} " in page for name in main.MODULES)
    assert max(map(len, page.splitlines())) <= 100


def test_the_page_needs_no_other_package():
    found = modules_after(
        "import sys; sys.argv = ['pate', '--help']; from pate_tf.cli import main; main.run()"
    )
    assert found.isdisjoint(LARGE)


@pytest.mark.parametrize("name", main.MODULES)
def test_each_subcommand_is_a_module_that_runs(name):
    assert callable(importlib.import_module(f"pate_tf.cli.{main.MODULES[name]}").run)


@pytest.mark.parametrize("wrong, meant", [("studnt", "student"), ("plans", "plan"), ("xyz", None)])
def test_an_unknown_subcommand_is_one_line_with_the_nearest(monkeypatch, capsys, wrong, meant):
    typed(monkeypatch, wrong)
    assert end(main.run) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: expected a command of demo, plan, ")
    assert (f"did you mean `pate {meant}`?" in line) == (meant is not None)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (("schema", "--help"), 0, "--public=TEXT"),
        (("schema", "--nonsense=3"), 2, "error: Unknown command line flag 'nonsense'"),
        (("schema", "--public=nowhere.csv"), 1, "error: nowhere.csv"),
        (("silo", "nonsense"), 2, "error: expected one of init, keys, serve, certificates"),
    ],
)
def test_flags_and_exit_codes_are_those_of_the_subcommand(tmp_path, arguments, code, said):
    ended = subprocess.run(
        [sys.executable, "-m", "pate_tf.cli.main", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, said in ended.stdout + ended.stderr) == (code, True), ended
