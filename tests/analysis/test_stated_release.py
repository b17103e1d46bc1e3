import json
import shutil

import pytest
from analysis_helpers import DELTA, GivenNoise, Script, golden_counts, read_run, release_labels
from statement_helpers import check, state

from pate_tf.analysis.sanitised_epsilon import release as release_of
from pate_tf.core import artifacts
from pate_tf.ledger import Ledger
from pate_tf.statement import add_release


def make_run(folder) -> artifacts.RunDirectory:
    """Returns a run with a student of 50 queries and its statement."""
    run = artifacts.RunDirectory(folder)
    write(run, state(run.sensitive, release_labels(run.sensitive, golden_counts("H1", 50))))
    artifacts.write_text(run.released / "privacy_statement.md", "old")
    return run


def write(run, statement) -> None:
    artifacts.write_json(run.released / "privacy_statement.json", statement)


def values(run) -> dict:
    return json.loads((run.released / "privacy_statement.json").read_text())


def release(run):
    noise = GivenNoise(lambda sigma: 1)
    return release_of(read_run(run.root), noise, folder=run.sensitive, delta=DELTA).sanitised


def test_a_release_is_added_to_the_statement_with_what_it_cost(tmp_path):
    run = make_run(tmp_path)
    before, released = values(run), release(run)
    assert add_release(run) == run.released / "privacy_statement.md"
    after = values(run)
    assert after["sanitised"] == {
        "epsilon": released.epsilon,
        "delta": DELTA,
        "confidence": 0.99,
        "worst_case_epsilon": released.worst_case_epsilon,
        "plan_was_fixed": True,
    }
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {
        *("sanitised", "guarantees", "sections", "epsilon_ledger", "epsilon_source"),
        "ledger_head",
    }
    with Ledger.read(run.sensitive) as ledger:
        assert after["epsilon_ledger"] == ledger.spent().epsilon > before["epsilon_ledger"]
        assert after["ledger_head"] == [ledger.head.sequence, ledger.head.digest]
    page = (run.released / "privacy_statement.md").read_text()
    assert f"last row of the ledger {ledger.head.sequence} ({ledger.head.digest[:8]}" in page
    check(run.sensitive, after)


def test_a_sanitised_epsilon_is_held_against_the_kept_draw(tmp_path):
    run = make_run(tmp_path)
    release(run)
    add_release(run)
    statement = values(run)
    for name, value, told in (
        ("epsilon", 0.001, "a sanitised epsilon must be at least"),
        ("epsilon", float("nan"), "a sanitised epsilon must be at least"),
        ("worst_case_epsilon", 0.001, "a sanitised worst_case_epsilon must be at least"),
        ("confidence", 0.999, "confidence is 0.999, but 0.99"),
    ):
        with pytest.raises(ValueError, match=told):
            cheaper = {**statement["sanitised"], name: value}
            check(run.sensitive, {**statement, "sanitised": cheaper})


def test_a_plan_that_came_after_votes_is_told(tmp_path):
    run = artifacts.RunDirectory(tmp_path)
    release_labels(run.sensitive, golden_counts("H1", 20))
    shutil.rmtree(run.sensitive)
    # Somebody who lost a ledger may have seen its votes.
    opened = {"ensemble_digest": "ab" * 32, "delta": DELTA}
    Ledger.open(run.sensitive, **opened, acknowledge_reset=True).close()
    write(run, state(run.sensitive, release_labels(run.sensitive, golden_counts("H1", 50))))
    release(run)
    add_release(run)
    statement = values(run)
    check(run.sensitive, statement)
    assert statement["sanitised"]["plan_was_fixed"] is False
    page = (run.released / "privacy_statement.md").read_text()
    assert "no evidence that its plan was fixed before the votes existed" in page
    with pytest.raises(ValueError, match="claims a plan from before there were votes"):
        earlier = {**statement["sanitised"], "plan_was_fixed": True}
        check(run.sensitive, {**statement, "sanitised": earlier})


def test_a_seeded_release_can_not_be_hidden(tmp_path):
    run = make_run(tmp_path)
    release(run)
    with Ledger.open(run.sensitive, ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        (plan,) = (charge for charge in ledger.charges if not charge.answers)
        with ledger.exclusive():
            ledger.debit(plan, secure_noise=False)
    add_release(run)
    assert values(run)["secure_noise"] is False
    with pytest.raises(ValueError, match="it claims secure noise"):
        check(run.sensitive, {**values(run), "secure_noise": True})


def test_the_statement_of_another_ledger_is_left_alone(tmp_path):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    write(run, values(other))
    assert add_release(run) is None
    assert values(run) == values(other)


@pytest.mark.parametrize("change", [{"delta": 1e-6}], ids=str)
def test_a_page_that_the_release_does_not_cover_is_left_as_it_was(tmp_path, capsys, change):
    run = make_run(tmp_path)
    write(run, {**values(run), **change})
    before = values(run)
    assert add_release(run) is None
    ended = Script().run(tmp_path, capsys, f"--train_dir={tmp_path}", "--release=sanitised")
    assert (ended.code, ended.err) == (0, "")
    assert "updated with the sanitised epsilon" not in ended.out
    assert values(run) == before


def test_a_broken_statement_is_told_before_anything_is_charged(tmp_path, capsys):
    run = make_run(tmp_path)
    write(run, {"epsilon": 1.0})
    with Ledger.read(run.sensitive) as ledger:
        before = ledger.history()
    ended = Script().run(tmp_path, capsys, f"--train_dir={tmp_path}", "--release=sanitised")
    assert ended.code == 1
    assert "must be a privacy statement" in ended.err
    with Ledger.read(run.sensitive) as ledger:
        assert ledger.history() == before


def test_the_script_states_what_it_released(tmp_path, capsys):
    run = make_run(tmp_path)
    ended = Script().run(tmp_path, capsys, f"--train_dir={tmp_path}", "--release=sanitised")
    assert ended.code == 0, ended.err
    published = json.loads((tmp_path / "out" / "released" / "analysis.json").read_text())
    stated = values(run)["sanitised"]
    assert stated["epsilon"] == published["epsilon_sanitised"]
    assert stated["confidence"] == published["confidence"]
    assert stated["worst_case_epsilon"] == pytest.approx(published["epsilon_data_independent"])
    assert "updated with the sanitised epsilon" in ended.out
    statement = f"--statement={run.released / 'privacy_statement.json'}"
    for more in ([f"--ledger={run.sensitive}"], [f"--train_dir={tmp_path}"], []):
        checked = Script().run(tmp_path, capsys, statement, *more)
        assert "agrees with the ledger" in checked.out
    path = run.released / "privacy_statement.md"
    page = path.read_text()
    path.write_text(page.replace("ε = ", "ε = 0."))
    assert "its page does not match its JSON" in Script().run(tmp_path, capsys, statement).err
    path.write_text(page)
    # A second call returns the same draw and the same page.
    assert Script().run(tmp_path, capsys, f"--train_dir={tmp_path}").code == 0
    assert path.read_text() == page
