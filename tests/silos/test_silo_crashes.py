"""Killed at every step: nothing is answered twice with fresh noise, nothing leaves unpaid."""

import json

import numpy as np
import pytest
import silo_helpers
import silos_child

from pate_tf.silos.messages import RandomisedVotes


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
        for one in running.journal.rounds():
            for name, reply in running.journal.replies(one.number).items():
                assert isinstance(reply, RandomisedVotes)
                for query, label in zip(one.queries, reply.labels.tolist(), strict=True):
                    assert found[name].setdefault(query.tobytes(), label) == label
        for silo in silos:
            assert silo.account.num_queries >= len(found[silo.name])
            silo.close()
    return found


@pytest.mark.parametrize("point", silo_helpers.FAULT_POINTS)
def test_killed_at_every_step(tmp_path, point):
    folder = tmp_path / "run"
    folder.mkdir()
    silo_helpers.check_killed_at(point, "silos_child.py", folder, 1)
    assert not released(folder)
    before = sent(folder)
    running, silos = silos_child.coordinator(folder)
    with running:
        labels = running.ask(silo_helpers.pool(), np.arange(40))
    assert labels.num_answered == 40
    # Three silos for each of 40 queries, each charged once although one of them was killed.
    assert sum(silo.account.num_queries for silo in silos) == 120
    after = sent(folder)
    for name, answers in before.items():
        assert answers.items() <= after[name].items()
    assert sum(map(len, after.values())) == 120
