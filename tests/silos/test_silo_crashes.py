"""Killed at every step: nothing is answered twice with fresh noise, nothing leaves unpaid."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import silos_child

from pate_tf.silos.messages import RandomisedVotes

HERE = pathlib.Path(__file__).parent
FAULT_POINTS = [
    *("round_opened", "silo_debited", "silo_drawn", "silo_stored", "silo_answered"),
    *("reply_arrived", "reply_kept", "silo_submitted", "round_closed"),
]


def start(folder, rounds, **variables):
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    return subprocess.Popen(
        [sys.executable, str(HERE / "silos_child.py"), str(folder), str(rounds)],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(child):
    errors = child.communicate(timeout=120)[1]
    return child.returncode, errors


def released(folder):
    """Every label ever written down; fails if one query has two."""
    found = {}
    path = folder / "released"
    for line in path.read_text().splitlines() if path.exists() else ():
        for query, label in json.loads(line).items():
            assert found.setdefault(query, label) == label
    return found


def sent(folder):
    """What the coordinator holds of each silo, by query; fails if one query has two answers."""
    running, silos = silos_child.coordinator(folder)
    found = {silo.name: {} for silo in silos}
    with running:
        for one in running.queue.rounds():
            for name, reply in running.queue.replies(one).items():
                assert isinstance(reply, RandomisedVotes)
                row = one.asked[silos_child.NAMES.index(name)]
                for query, label in zip(one.queries[row], reply.labels.tolist(), strict=True):
                    assert found[name].setdefault(query.tobytes(), label) == label
        for silo in silos:
            assert silo.account.num_queries >= len(found[silo.name])
            silo.close()
    return found


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_killed_at_every_step(tmp_path, point):
    folder = tmp_path / "run"
    code, errors = finished(start(folder, 1, PATE_TF_FAULT_POINT=point))
    assert code == -signal.SIGKILL, errors
    assert not released(folder)
    before = sent(folder)
    running, silos = silos_child.coordinator(folder)
    with running:
        labels = running.ask(silos_child.pool(), np.arange(40))
    assert labels.num_answered == 40
    # Two silos for each of 40 queries, each paid once although one of them was killed.
    assert sum(silo.account.num_queries for silo in silos) == 80
    after = sent(folder)
    for name, answers in before.items():
        assert answers.items() <= after[name].items()
    assert sum(map(len, after.values())) == 80


def begun(child):
    """Waits until a child is about to ask; what came before is Python's start and imports."""
    assert child.stdout.readline() == "asking\n"
    return child


def test_killed_at_random(tmp_path):
    # Silos of the same names: on another machine.
    elsewhere = {"PATE_TF_STATE": str(tmp_path / "state")}
    undisturbed = begun(start(tmp_path / "undisturbed", 10, **elsewhere))
    asked = time.monotonic()
    assert finished(undisturbed)[0] == 0
    whole = time.monotonic() - asked
    folder, generator = tmp_path / "run", random.Random(4)
    killed = 0
    for _ in range(6):
        child = begun(start(folder, 10))
        time.sleep(generator.uniform(0.0, 0.7) * whole)
        child.kill()
        killed += finished(child)[0] == -signal.SIGKILL
        sent(folder)
    assert killed
    code, errors = finished(start(folder, 10))
    assert code == 0, errors
    assert len(released(folder)) == 200
    answers = sent(folder)
    _, silos = silos_child.coordinator(folder)
    assert {silo.name: silo.account.num_queries for silo in silos} == {
        name: len(found) for name, found in answers.items()
    }


def test_two_runs_get_the_same_answers_of_a_silo(tmp_path):
    """Another coordinator over the same accounts: equal answers, no payment."""
    folder = tmp_path / "run"
    running, silos = silos_child.coordinator(folder)
    with running:
        running.ask(silos_child.pool(), np.arange(20))
        first = sent_of(running)
    paid = {silo.name: silo.account.num_queries for silo in silos}
    for path in (folder / "coordinator").iterdir():
        path.unlink()
    again, silos = silos_child.coordinator(folder)
    with again:
        again.ask(silos_child.pool(), np.arange(20))
        assert sent_of(again) == first
    assert {silo.name: silo.account.num_queries for silo in silos} == paid


def sent_of(running):
    (one,) = running.queue.rounds()
    return {name: reply.labels.tolist() for name, reply in running.queue.replies(one).items()}
