"""`pate party` as somebody types it: keys, then work; killed and started again."""

import subprocess
import sys

import pytest
from script_processes import REPOSITORY

from pate_tf.silos.secure.keys import read_list

NAMES = ("party-1", "party-2", "party-3", "party-4")
COMMAND = (sys.executable, "-m", "pate_tf.cli.party")


def said(*flags, code=0):
    ended = subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=120, cwd=REPOSITORY
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


@pytest.fixture
def parties(tmp_path):
    """The list of four parties, made by the command."""
    path = tmp_path / "parties.toml"
    entries = [said(f"--name={name}", f"--party_dir={tmp_path / name}") for name in NAMES]
    path.write_text("\n".join(entries))
    return path


def test_keys_are_printed_and_stay_the_same(tmp_path, parties):
    assert [one.name for one in read_list(parties)[0]] == list(NAMES)
    again = said("--name=party-1", f"--party_dir={tmp_path / 'party-1'}")
    assert again.strip() in parties.read_text()
    wrong = said("--name=party-2", f"--party_dir={tmp_path / 'party-1'}", code=1)
    assert "expected the keys of party-2" in wrong


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--index=1"], "--party_dir: expected the folder"),
        (["--party_dir=x", "--index=1"], "--coordinator: expected with --party_dir"),
        (["--party_dir=x", "--coordinator=localhost:1"], "--index: expected with --party_dir"),
        (["--party_dir=x", "--coordinator=a:1", "--index=1", "--parties=no.toml"], "no.toml"),
    ],
)
def test_what_is_missing_is_said_in_one_line(flags, expected):
    error = said(*flags, code=1)
    assert error.startswith("error: ") and error.count("\n") == 1
    assert expected.removeprefix("--") in error
