"""Kills silos and their coordinator: everything sent stays valid and is charged exactly once."""

import functools
import itertools
import json
import random
import signal
import time

import five_silos
import pytest
from script_processes import start

from pate_tf.silos.messages import RandomisedVotes

FAULT_POINTS = (
    *("round_opened", "silo_debited", "silo_drawn", "silo_stored", "silo_answered"),
    *("reply_arrived", "reply_stored", "silo_submitted"),
    *("round_collected", "round_closed"),
)


def check_after_a_kill(folder, kind):
    """Checks the state of silos, coordinator and public; returns the number of charged queries."""
    left = {}
    for line in (folder / "released").read_text().splitlines(keepends=True):
        for query, value in json.loads(line).items() if line.endswith("\n") else ():
            assert left.setdefault(query, value) == value
    running, silos = five_silos.coordinator(folder, kind=kind)
    with running:
        for silo, round_ in itertools.product(silos, running.journal.rounds):
            reply = round_.replies.get(silo.name)
            if isinstance(reply, RandomisedVotes):
                queries = round_.batch.digests
                stored = silo.account.stored_answers(queries)
                assert [stored[query].label for query in queries] == reply.labels.tolist()
            elif reply is not None:
                assert reply.sealed in silo.account.sealed.values()
        # The same queries again, and new ones.
        number = 2 + sum(len(round_.batch.queries) for round_ in running.journal.rounds)
        assert left.items() <= five_silos.released(running, kind, number).items()
        number = sum(len(round_.batch.queries) for round_ in running.journal.rounds)
    for silo in silos:
        assert silo.account.charges.total() == number
        silo.close()
    return number


@pytest.mark.parametrize("point", FAULT_POINTS)
@pytest.mark.parametrize("kind", five_silos.MECHANISMS)
def test_killed_at_every_step(tmp_path, kind, point):
    child = start(functools.partial(five_silos.ask, tmp_path, kind), folder=tmp_path, point=point)
    assert child.wait().code == -signal.SIGKILL
    assert (tmp_path / "released").read_text() == ""
    assert check_after_a_kill(tmp_path, kind) == (1 if kind == "sums" else 5)


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", five_silos.MECHANISMS)
def test_killed_at_random(tmp_path, monkeypatch, kind, kills):
    generator = random.Random(5)
    for turn in range(kills):
        folder = tmp_path / "run"
        if kind == "sums":  # a total opens once in a folder
            folder = tmp_path / str(turn)
            monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / f"state {turn}"))
        child = start(functools.partial(five_silos.ask, folder, kind), folder=tmp_path)
        child.until("asking")
        time.sleep(generator.uniform(0.0, 0.2))
        child.kill()
        assert child.wait().code == -signal.SIGKILL
        check_after_a_kill(folder, kind)
