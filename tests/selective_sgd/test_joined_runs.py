"""Real processes over TLS come, bit for bit, to what one process does, though some are killed."""

import functools
import importlib
import itertools
import json
import os
import pathlib
import signal
import socket
import time

import event_files
import numpy as np
import pytest
from script_processes import PATIENCE, Ended, Running, run_script, start_script

from pate_tf.core import artifacts
from pate_tf.data import catalogue
from pate_tf.ledger import Head, Ledger
from pate_tf.selective_sgd.private_training import train
from pate_tf.selective_sgd.roster import Roster
from pate_tf.serving.served import matches_statement

COMMAND = "pate_tf/cli/selective_sgd.py"
# Where a process may die: method, and whether before or after it.
SERVER_DIES = {
    "before an upload is applied": ("server:Server._apply", True),
    "before it is durable": ("run_state:RunState.save", True),
    "before it is answered": ("run_state:RunState.save", False),
}
LINE = "network:ParameterConnection"
PARTICIPANT_DIES = {
    "before it pulls": (f"{LINE}.pull", True),
    "before it trains": (f"{LINE}.pull", False),
    "before its turn is saved": ("run_state:RunState.save", True),
    "before it uploads": (f"{LINE}.push", True),
    "after it uploaded": (f"{LINE}.push", False),
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def die_at(place: str, before: bool, number: int) -> None:
    """Kills the process at a call of that number, from 0, of a method."""
    module, _, names = place.partition(":")
    kind_name, _, name = names.partition(".")
    kind = getattr(importlib.import_module(f"pate_tf.selective_sgd.{module}"), kind_name)
    original, calls = getattr(kind, name), itertools.count()

    def dies(*arguments, **options):
        call = next(calls)
        if before and call == number:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return original(*arguments, **options)
        finally:  # also of a call that found the other end killed
            if call == number:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, dies)


def dying(place: tuple[str, bool], number: int) -> functools.partial:
    return functools.partial(die_at, place[0], place[1], number)


def write_roster(folder: pathlib.Path, names, *, rounds: int, model: str = "linear", **tables):
    """Writes a roster with further settings and tables, and certificates."""
    settings = {"upload": 0.1, "download": 0.8, **tables.pop("settings", {})}
    lines = ['run = "digits"', 'dataset = "digits"', f'model = "{model}"']
    lines += ["[settings]", f"rounds = {rounds}"]
    lines += [f"{name} = {value}" for name, value in settings.items() if value is not None]
    lines += [f"[{name}]\n{text}" for name, text in tables.items()]
    for name in names:
        lines += ["[[participant]]", f'name = "{name}"']
    (folder / "roster.toml").write_text("\n".join(lines))
    made = run_script(
        *("pate_tf/cli/silo.py", "certificates", "--demo", f"--names={','.join(names)}"),
        folder=folder,
    )
    assert made.code == 0, made.err


def run_together(folder: pathlib.Path, names, *, dies=None) -> dict[str, list[Ended]]:
    """Runs a server and participants to their end; starts anew those that were killed.

    Args:
        folder: with roster and certificates; all folders lie in it.
        names: of the participants.
        dies: for "server" and names, what is set up in each of their lives, one after another.

    Returns:
        How each life of each ended.
    """
    dies = {name: list(setups) for name, setups in (dies or {}).items()}
    port = free_port()
    flags = {"server": ("serve", f"--address=localhost:{port}", "--train_dir=server")}
    for name in names:
        flags[name] = ("join", f"--server=localhost:{port}", f"--participant={name}")
        flags[name] += ("--data=dealt", f"--train_dir={name}")

    def start(name: str) -> Running:
        setups = dies.get(name)
        setup = setups.pop(0) if setups else None
        return start_script(COMMAND, *flags[name], folder=folder, setup=setup)

    running = {name: start(name) for name in flags}
    ended: dict[str, list[Ended]] = {name: [] for name in flags}
    end = time.monotonic() + 4 * PATIENCE
    try:
        while running:
            assert time.monotonic() < end, {
                name: one.err.read_text() for name, one in running.items()
            }
            for name, one in list(running.items()):
                one.process.join(0.05)
                if one.process.is_alive():
                    continue
                ended[name].append(one.wait())
                del running[name]
                if ended[name][-1].code == -signal.SIGKILL:
                    running[name] = start(name)
                else:
                    assert ended[name][-1].code == 0, (name, ended[name][-1].err[-3000:])
    finally:
        for one in running.values():
            one.kill()
            one.process.join()
    return ended


def given_to(folder: pathlib.Path, name: str) -> np.ndarray:
    path = folder / name / "sensitive" / "participant" / "global_parameters.npz"
    return artifacts.read_arrays(path)["values"]


def in_one_process(folder: pathlib.Path) -> bytes:
    """What the same roster comes to in this process."""
    roster = Roster.read(folder / "roster.toml")
    private = catalogue.load_private(roster.dataset)
    return train(private, roster.settings, model=roster.model).released_parameters().tobytes()


def check(folder: pathlib.Path, names) -> None:
    """All ends have the same parameters, and one process has them too."""
    expected = in_one_process(folder)
    for name in names:
        assert given_to(folder, name).tobytes() == expected
    state = folder / "server" / "sensitive" / "server" / "state" / "state.npz"
    assert artifacts.read_arrays(state)["values"].tobytes() == expected
    exported = folder / "server" / "sensitive" / "shared_model" / "1"
    assert matches_statement(exported)
    assert not (folder / "server" / "released").exists()


def test_two_participants_and_a_server_that_are_killed(tmp_path):
    names = ("clinic", "hospital")
    write_roster(tmp_path, names, rounds=3)
    ended = run_together(
        tmp_path,
        names,
        dies={
            "hospital": [dying(PARTICIPANT_DIES["before it uploads"], 1)],
            "server": [dying(SERVER_DIES["before it is answered"], 4)],
        },
    )
    assert {name: len(lives) for name, lives in ended.items()} == {
        **{"server": 2, "clinic": 1, "hospital": 2}
    }
    assert "could not be reached" in ended["clinic"][0].out
    check(tmp_path, names)
    for name in names:
        logs = tmp_path / name / "sensitive" / "logs" / "selective_sgd"
        assert {step for step, _ in event_files.scalars(logs)["upload/bytes"]} == {1, 2, 3}
    report = json.loads(
        (tmp_path / "server" / "sensitive" / "selective_sgd_report.json").read_text()
    )
    assert report["accuracy_global"] > 0.3 and report["epsilon"] is None


@pytest.mark.long
def test_five_participants_killed_everywhere(tmp_path):
    names = ("a", "b", "c", "d", "e")
    write_roster(tmp_path, names, rounds=5, model="mlp")
    dies = {"server": [dying(place, 1) for place in SERVER_DIES.values()]}
    for name, place in zip(names, PARTICIPANT_DIES.values(), strict=True):
        dies[name] = [dying(place, 1)]
    dies["a"] = [dying(place, 0) for place in PARTICIPANT_DIES.values()]
    ended = run_together(tmp_path, names, dies=dies)
    lives = {name: len(each) for name, each in ended.items()}
    assert lives == {name: 1 + len(setups) for name, setups in dies.items()}
    check(tmp_path, names)


@pytest.mark.long
def test_participants_are_charged_before_they_upload(tmp_path):
    names = ("clinic", "hospital")
    write_roster(
        tmp_path,
        names,
        rounds=3,
        settings={"upload": None, "download": None},
        privacy='kind = "record"\ntarget_epsilon = 20.0',
    )
    ended = run_together(
        tmp_path, names, dies={"clinic": [dying(PARTICIPANT_DIES["before it uploads"], 0)]}
    )
    assert len(ended["clinic"]) == 2
    statement = json.loads(
        (tmp_path / "server" / "released" / "shared_model_statement.json").read_text()
    )
    assert 15.0 < statement["epsilon"] <= 20.0
    assert statement["epsilon_source"] == statement["epsilon"]
    assert statement["num_ledgers"] == 1
    for name, (sequence, digest) in zip(names, statement["ledger_heads"], strict=True):
        with Ledger.read(tmp_path / name / "sensitive" / "ledger") as ledger:
            # One charge, although a participant was killed, and each round noted before it left.
            assert list(ledger.charges.values()) == [1]
            rows = [row for row in ledger.history() if row.kind == "released"]
            assert [row.details["kept"]["round"] for row in rows] == [1, 2, 3]
            assert ledger.holds(Head(sequence=sequence, digest=digest))
    values = [given_to(tmp_path, name) for name in names]
    assert values[0].tobytes() == values[1].tobytes() and np.isfinite(values[0]).all()


def test_mistakes_end_in_one_line(tmp_path):
    write_roster(tmp_path, ("clinic",), rounds=1)
    (tmp_path / "other.toml").write_text('run = "x"\n')
    for flags, expected in (
        (("join",), "server: expected it to take part"),
        (("join", "--server=localhost:1", "--participant=x", "--data=dealt"), "on the roster"),
        (("serve", "--roster=no.toml"), "no.toml: No such file"),
        (("serve", "--roster=other.toml"), "other.toml: expected participant"),
        (("serve", "--participants=3"), "Unknown command line flag 'participants'"),
        (("serve", "--certificates=nowhere"), "nowhere/coordinator.key: No such file"),
    ):
        ended = run_script(COMMAND, *flags, folder=tmp_path)
        assert ended.code in (1, 2), flags
        assert expected in ended.err and ended.err.count("\n") == 1, ended.err
        assert ended.err.startswith("error: ")
