"""The page on shared training: its five terminals work as they are printed."""

import pathlib
import re
import shlex
import socket

import pytest
from code_blocks import blocks
from script_processes import Running, run_script, start_script

from pate_tf.core import artifacts
from pate_tf.selective_sgd.terms import Terms

BLOCKS = blocks("how-to/shared_training_network.md")
PATE = "pate_tf/cli/main.py"
(ROSTER,) = (block.text for block in BLOCKS if block.marker == "file: roster.toml")


def commands(first: str) -> list[list[str]]:
    """The commands of the block that begins so."""
    (text,) = (block.text for block in BLOCKS if block.text.startswith(first))
    return [shlex.split(line) for line in text.strip().splitlines()]


def test_all_that_join_are_on_the_roster(tmp_path):
    (tmp_path / "roster.toml").write_text(ROSTER)
    names = Terms.read(tmp_path / "roster.toml").names
    typed = [" ".join(words) for words in commands("pate silo certificates")]
    assert f"--names={','.join(names)}" in typed[0]
    joined = [re.search(r"--participant=(\w+)", line)[1] for line in typed[2:]]
    assert joined == list(names)


@pytest.mark.long
def test_five_terminals_come_to_what_one_process_does(tmp_path):
    (tmp_path / "roster.toml").write_text(ROSTER)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    running: list[Running] = []
    first, *others = commands("pate silo certificates")
    (one_process,) = commands("pate dssgd --dataset=digits")
    for words in (first, one_process):
        ended = run_script(PATE, *words[1:], folder=tmp_path)
        assert ended.code == 0, ended.err
    try:
        for words in others:
            flags = [word for word in words[1:] if not word.startswith("--address")]
            flags.append(f"--address=localhost:{port}")
            running.append(start_script(PATE, *flags, folder=tmp_path))
        for process in running:
            ended = process.wait()
            assert ended.code == 0, ended.err
    finally:
        for process in running:
            process.kill()
    runs = pathlib.Path(tmp_path / "runs")
    expected = artifacts.read_arrays(
        runs / "one_process" / "sensitive" / "selective_sgd" / "state.npz"
    )
    for name in Terms.read(tmp_path / "roster.toml").names:
        folder = runs / name / "sensitive" / "participant"
        final = artifacts.read_arrays(folder / "global_parameters.npz")
        assert final["values"].tobytes() == expected["values"].tobytes()
