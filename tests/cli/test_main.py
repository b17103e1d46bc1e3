"""The command `pate`: its page, its subcommands, its imports."""

import sys

import pytest
from script_processes import run_script

from pate_tf.cli import main


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["pate", *arguments])


@pytest.mark.parametrize("arguments", [(), ("--help",), ("help",), ("-h",)])
def test_the_page_names_every_subcommand_and_begins_with_what_pate_is(
    monkeypatch, capsys, arguments
):
    typed(monkeypatch, *arguments)
    main.run()
    page = capsys.readouterr().out
    assert page.startswith("Train a model on private records with differential privacy")
    assert all(f"\n  {name} " in page for name in main.COMMANDS)
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (("schema", "--help"), 0, "--public=string"),
        (("schema", "--nonsense=3"), 2, "error: Unknown command line flag 'nonsense'"),
        (("schema", "--public=nowhere.csv"), 1, "error: nowhere.csv"),
        (("evaluate",), 2, "no command 'evaluate': `pate predict` without --output evaluates"),
        (("report",), 2, "no command 'report': `pate run` and `pate audit run` write the report"),
        (("nonsense",), 2, "error: pate has no command 'nonsense': the commands are start, plan"),
        (("runn",), 2, "no command 'runn': did you mean `pate run`?"),
        (("run", "--stdnt=gan"), 2, "'stdnt'. Did you mean: student"),
        (("run", "--stderrthreshol=1"), 2, "flag 'stderrthreshol'. See `pate run --help`"),
        (("completion",), 2, "error: add a shell: pate completion bash|zsh"),
        (("start", "--private=nowhere.csv"), 1, "error: nowhere.csv"),
        (("start", "--yes"), 2, "error: --private is required: the file"),
        (("silo", "nonsense"), 2, "error: pate silo needs a command: init"),
    ],
)
def test_flags_and_exit_codes_are_those_of_the_subcommand(tmp_path, arguments, code, said):
    ended = run_script("pate_tf/cli/main.py", *arguments, folder=tmp_path)
    assert (ended.code, said in ended.out + ended.err) == (code, True), ended
