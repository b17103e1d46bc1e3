"""An epsilon is given: the plan is made, and no vote is read."""

import numpy as np
import pytest
from chosen_votes import PUBLIC, FakeEnsemble, plan_of, release_settings, table

SPLIT = PUBLIC.split(120)


def settings(**changes):
    return release_settings(**{"epsilon": 1.0, "strategy": "first", **changes})


def planned(teachers=None, pool=SPLIT.pool, **changes):
    teachers = teachers or FakeEnsemble(table(100))
    return plan_of(settings(**changes), teachers, pool)


def test_the_plan_reads_no_votes(tmp_path):
    others = FakeEnsemble(np.zeros_like(table(100)))
    assert planned() == planned(others)
    assert others.asked == 0


@pytest.mark.parametrize(("strategy", "expected"), [(None, "medoids"), ("diverse", "diverse")])
def test_the_strategy_goes_with_the_mechanism_unless_one_is_named(strategy, expected):
    assert planned(strategy=strategy).queries.strategy == expected
