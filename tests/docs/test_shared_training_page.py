"""The page on shared training: its five terminals work as they are printed."""

import pathlib
import re
import shlex
import socket

import pytest
from code_blocks import blocks
from script_processes import Running, run_script, start_script

from pate_tf.core import artifacts
from pate_tf.selective_sgd.roster import Roster

BLOCKS = blocks("how-to/shared_training_network.md")
PATE = "pate_tf/cli/main.py"
(ROSTER,) = (block.text for block in BLOCKS if block.marker == "file: roster.toml")


def commands(first: str) -> list[list[str]]:
    """The commands of the block that begins so."""
    (text,) = (block.text for block in BLOCKS if block.text.startswith(first))
    return [shlex.split(line) for line in text.strip().splitlines()]


def test_the_roster_is_one_and_all_are_on_it(tmp_path):
    (tmp_path / "roster.toml").write_text(ROSTER)
    names = Roster.read(tmp_path / "roster.toml").names
    typed = [" ".join(words) for words in commands("pate silo certificates")]
    assert f"--names={','.join(names)}" in typed[0]
    joined = [re.search(r"--participant=(\w+)", line)[1] for line in typed[2:]]
    assert joined == list(names)


@pytest.mark.long
def test_five_terminals_come_to_what_one_process_does(tmp_path):
    (tmp_path / "roster.toml").write_text(ROSTER)
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    running: list[Running] = []
    first, *others = commands("pate silo certificates")
    (one_process,) = commands("pate dssgd --dataset=digits")
    for words in (first, one_process):
        ended = run_script(PATE, *words[1:], folder=tmp_path)
        assert ended.code == 0, ended.err
    try:
        for words in others:
            flags = [word.replace("localhost:7000", f"localhost:{port}") for word in words[1:]]
            running.append(start_script(PATE, *flags, folder=tmp_path))
        for one in running:
            ended = one.wait()
            assert ended.code == 0, ended.err
    finally:
        for one in running:
            one.kill()
    runs = pathlib.Path(tmp_path / "runs")
    expected = artifacts.read_arrays(
        runs / "one_process" / "sensitive" / "selective_sgd" / "state.npz"
    )
    for name in Roster.read(tmp_path / "roster.toml").names:
        folder = runs / f"shared-{name}" / "sensitive" / "participant"
        found = artifacts.read_arrays(folder / "global_parameters.npz")
        assert found["values"].tobytes() == expected["server/values"].tobytes()
