"""Kills silos and their coordinator: what left stays, is charged, and is charged once."""

import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
import sums_child
from script_processes import REPOSITORY

from pate_tf.silos.messages import RandomisedVotes, query_digest

HERE = pathlib.Path(__file__).parent
FAULT_POINTS = (
    *("round_opened", "silo_debited", "silo_drawn", "silo_stored", "silo_answered"),
    *("reply_arrived", "reply_stored", "silo_submitted", "round_closed"),
)


def start(folder, kind, **variables):
    """A process of `sums_child` that opened its silos."""
    folder.mkdir(exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, HERE / "sums_child.py", folder, kind],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{REPOSITORY}", **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "asking\n"
    return child


def check_after_a_kill(folder, kind):
    """Checks what silos, coordinator and the public hold; returns how many queries were charged."""
    left = {}
    for line in (folder / "released").read_text().splitlines(keepends=True):
        for query, value in json.loads(line).items() if line.endswith("\n") else ():
            assert left.setdefault(query, value) == value
    running, silos = sums_child.coordinator(folder, kind=kind)
    with running:
        for silo, round_ in itertools.product(silos, running.journal.rounds()):
            reply = running.journal.replies(round_.number).get(silo.name)
            if isinstance(reply, RandomisedVotes):
                queries = [query_digest(query) for query in round_.queries]
                stored = silo.account.labels(queries)
                assert [stored[query] for query in queries] == reply.labels.tolist()
            elif reply is not None:
                assert reply.sealed in silo.account.sealed.values()
        # The same questions again, and new ones.
        number = 2 + sum(len(round_.queries) for round_ in running.journal.rounds())
        assert left.items() <= sums_child.released(running, kind, number).items()
        number = sum(len(round_.queries) for round_ in running.journal.rounds())
    for silo in silos:
        assert silo.account.charges.total() == number
        silo.close()
    return number


@pytest.mark.parametrize("point", FAULT_POINTS)
@pytest.mark.parametrize("kind", sums_child.MECHANISMS)
def test_killed_at_every_step(tmp_path, kind, point):
    child = start(tmp_path, kind, PATE_TF_FAULT_POINT=point)
    child.stdout.close()
    assert child.wait(60) == -signal.SIGKILL
    assert (tmp_path / "released").read_text() == ""
    assert check_after_a_kill(tmp_path, kind) == (1 if kind == "sums" else 5)


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", sums_child.MECHANISMS)
def test_killed_at_random(tmp_path, monkeypatch, kind, kills):
    generator = random.Random(5)
    for turn in range(kills):
        folder = tmp_path / "run"
        if kind == "sums":  # a total opens once in a folder
            folder = tmp_path / str(turn)
            monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {turn}"))
        child = start(folder, kind)
        time.sleep(generator.uniform(0.0, 0.2))
        child.kill()
        child.stdout.close()
        assert child.wait(60) == -signal.SIGKILL
        check_after_a_kill(folder, kind)
