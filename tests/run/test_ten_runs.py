"""Ten runs with seeded noise release the same values as when `ten_runs.json` was written.

After an intentional change, rewrite it: `WRITE_TEN_RUNS=1 python -m pytest -m long
tests/run/test_ten_runs.py`.
"""

import json
import os
import pathlib

import numpy as np
import pytest
import ten_runs

STORED = pathlib.Path(__file__).with_name("ten_runs.json")


def rounded(value):
    """Returns JSON values whose floats have 12 digits, because SciPy's last digits depend on the
    machine.
    """
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.mark.long
@pytest.mark.parametrize("name", ten_runs.RUNS)
def test_a_run_releases_what_it_did(tmp_path, name):
    all_stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    outcome = ten_runs.outcome(name, tmp_path)
    if "WRITE_TEN_RUNS" in os.environ:
        STORED.write_text(json.dumps({**all_stored, name: outcome}, indent=1) + "\n")
        return
    stored = all_stored[name]
    sums = stored.pop("first sums", [])
    assert outcome.pop("first sums", []) == pytest.approx(sums, abs=1e-3)
    # Labels inferred from sums depend on floating-point decompositions.
    labels, expected = outcome.pop("labels", []), stored.pop("labels", [])
    assert len(labels) == len(expected)
    agreeing = np.count_nonzero(np.equal(labels, expected))
    assert agreeing >= (0.97 if sums else 1.0) * len(labels)
    statement, expected = outcome.pop("statement", {}), stored.pop("statement", {})
    differing = {
        name: (statement.get(name), expected.get(name))
        for name in {*statement, *expected}
        if rounded(statement.get(name)) != rounded(expected.get(name))
    }
    assert (differing, outcome) == ({}, stored)
