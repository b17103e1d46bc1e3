import json

import pytest
from analysis_helpers import DELTA, Script, golden_counts, pay
from test_statement import check, state

from pate_tf import artifacts
from pate_tf.accounting.release import SanitisedEpsilon
from pate_tf.analysis.statement import add_release

RELEASED = SanitisedEpsilon(
    epsilon=0.51234,
    delta=DELTA,
    confidence=0.99,
    plan=None,
    worst_case_epsilon=7.51234,
)


def make_run(folder) -> artifacts.RunDirectory:
    """A run with a student of 50 queries and its statement."""
    run = artifacts.RunDirectory(folder)
    statement = state(run.sensitive, pay(run.sensitive, golden_counts("H1", 50)))
    artifacts.write_json(run.released / "privacy_statement.json", statement)
    artifacts.write_text(run.released / "privacy_statement.md", "old")
    return run


def values(run) -> dict:
    return json.loads((run.released / "privacy_statement.json").read_text())


def test_a_release_is_added_to_the_statement_and_nothing_else_changes(tmp_path):
    run = make_run(tmp_path)
    before = values(run)
    assert add_release(run, RELEASED) == run.released / "privacy_statement.md"
    after = values(run)
    assert after["sanitised"] == {
        "epsilon": 0.51234,
        "delta": DELTA,
        "confidence": 0.99,
        "worst_case_epsilon": 7.51234,
    }
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"sanitised", "guarantees"}
    page = (run.released / "privacy_statement.md").read_text()
    assert "**0.5124**" in page
    assert "**7.513**" in page
    check(run.sensitive, after)


def test_the_statement_of_another_ledger_is_left_alone(tmp_path):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    artifacts.write_json(run.released / "privacy_statement.json", values(other))
    assert add_release(run, RELEASED) is None
    assert values(run) == values(other)


def test_a_run_without_a_student_has_no_page(tmp_path):
    run = artifacts.RunDirectory(tmp_path)
    pay(run.sensitive, golden_counts("H1", 5))
    assert add_release(run, RELEASED) is None


def test_a_broken_statement_is_told(tmp_path):
    run = make_run(tmp_path)
    artifacts.write_json(run.released / "privacy_statement.json", {"epsilon": 1.0})
    with pytest.raises(ValueError, match="statement: expected a privacy statement"):
        add_release(run, RELEASED)


def test_the_script_states_what_it_released(tmp_path, capsys):
    run = make_run(tmp_path)
    ended = Script().run(tmp_path, capsys, f"--train_dir={tmp_path}", "--release=sanitised")
    assert ended.code == 0, ended.err
    published = json.loads((tmp_path / "out" / "released" / "analysis.json").read_text())
    stated = values(run)["sanitised"]
    assert stated["epsilon"] == published["sanitised"]["epsilon"]
    assert stated["confidence"] == published["sanitised"]["confidence"]
    assert stated["worst_case_epsilon"] == published["epsilon_data_independent_with_release"]
    assert "now with the sanitised epsilon" in ended.out
    # Asked again, it is the same draw and the same page.
    page = (run.released / "privacy_statement.md").read_text()
    assert Script().run(tmp_path, capsys, f"--train_dir={tmp_path}").code == 0
    assert (run.released / "privacy_statement.md").read_text() == page
