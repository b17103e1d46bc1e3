"""Ways to spend a budget twice: a ledger deleted, restored, copied; teachers trained again."""

import json
import os
import pathlib
import shutil
import sqlite3
import stat
import warnings

import numpy as np
import pytest
from ledger_helpers import DELTA, ENSEMBLE, MECHANISM, label, open_ledger

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms import StabilityGate
from pate_tf.core.record_set import RecordSet
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError, LedgerWarning, compose
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.ledger.rollback_guard import REGISTRY as DATABASE
from pate_tf.ledger.rollback_guard import RollbackGuard, open_registry


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "sensitive"


def state_folder():
    return pathlib.Path(os.environ["PATE_TF_STATE"])


def without_registry(monkeypatch, tmp_path):
    """As on another machine: nothing was ever seen there."""
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "another machine"))


def delete_ledger(folder):
    for path in folder.glob("ledger*"):
        path.unlink()


def quote(run, head):
    (run / "released").mkdir(parents=True, exist_ok=True)
    text = json.dumps({"ledger_head": [head.sequence, head.digest]})
    (run / "released" / "privacy_statement.json").write_text(text)


def spend(folder, start, stop, **changes):
    with open_ledger(folder, **changes) as ledger:
        return label(ledger, start, stop)


def epsilon_of(number):
    return smallest_epsilon({MECHANISM: number}, DELTA)[0]


def assert_one_line(error, *parts):
    text = str(error.value)
    assert "\n" not in text
    assert all(part in text for part in parts), text


def test_a_ledger_deleted_beside_votes_is_missed(folder, tmp_path, monkeypatch):
    spend(folder, 0, 5)
    delete_ledger(folder)
    without_registry(monkeypatch, tmp_path)
    with pytest.raises(LedgerError) as error:
        open_ledger(folder)
    assert_one_line(error, "votes", "put it back", "acknowledge_reset")
    with pytest.raises(LedgerError):  # the empty file of the first attempt changes nothing
        open_ledger(folder)


def test_a_run_deleted_as_a_whole_is_missed_by_the_registry_and_charged_again(folder):
    spend(folder, 0, 5)
    shutil.rmtree(folder)
    with pytest.warns(LedgerWarning, match="deleted with all that it charged for"):
        ledger = open_ledger(folder)
    with ledger:
        assert ledger.history()[0].details["acknowledged"] is True
        assert ledger.was_raised  # the limit that it had is not known any more
        assert ledger.spent().epsilon == epsilon_of(5)
        label(ledger, 0, 5)  # the same queries, with fresh noise
        assert ledger.spent().epsilon == epsilon_of(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_ledger(folder).close()


@pytest.mark.parametrize("is_own", [True, False])
def test_a_ledger_deleted_beside_a_statement_is_missed(folder, tmp_path, monkeypatch, is_own):
    run = folder.parent if is_own else tmp_path / "student"
    with open_ledger(folder) as ledger:
        label(ledger, 0, 5)
        quote(run, ledger.head)
    shutil.rmtree(folder)
    without_registry(monkeypatch, tmp_path)
    with pytest.raises(LedgerError) as error:
        open_ledger(folder, student_runs=[run])
    assert_one_line(error, "quotes row 3")


def test_a_student_of_other_teachers_is_no_evidence(folder, tmp_path):
    other, run = tmp_path / "other" / "sensitive", tmp_path / "student"
    with open_ledger(other, ensemble_digest="cd" * 32) as ledger:
        quote(run, ledger.head)
        quote(folder.parent, ledger.head)
    open_ledger(folder, student_runs=[run]).close()
    open_ledger(folder, student_runs=[run]).close()


def test_an_acknowledged_reset_is_told_for_ever_and_charged_again(folder):
    spend(folder, 0, 5)
    shutil.rmtree(folder)
    with open_ledger(folder, acknowledge_reset=True) as ledger:
        assert ledger.was_reset
        assert ledger.spent().epsilon == epsilon_of(5)
        assert ledger.history()[0].details["acknowledged"] is True
        label(ledger, 0, 5)
    with open_ledger(folder) as ledger:  # acknowledged once
        assert ledger.was_reset
        assert ledger.spent().epsilon == epsilon_of(10)
        found = ledger.all_ensembles()
        # What was charged again is what the earlier ledger was charged: counted once.
        assert found.charges == {MECHANISM: 10}
    assert Ledger.read(folder).guard is None


def test_a_reset_does_not_free_a_budget(folder):
    budget = epsilon_of(6)
    spend(folder, 0, 5, epsilon_budget=budget)
    shutil.rmtree(folder)
    with (
        open_ledger(folder, epsilon_budget=budget, acknowledge_reset=True) as ledger,
        pytest.raises(BudgetExceeded),
    ):
        label(ledger, 10, 13)


def test_an_acknowledgement_without_a_reset_says_nothing(folder):
    with open_ledger(folder, acknowledge_reset=True) as ledger:
        assert not ledger.was_reset
    with open_ledger(folder, acknowledge_reset=True) as ledger:
        assert not ledger.was_reset
        assert len(ledger.history()) == 1


def test_a_restored_ledger_is_missed_by_its_statement_alone(folder, tmp_path, monkeypatch):
    open_ledger(folder).close()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with open_ledger(folder) as ledger:
        label(ledger, 0, 5)
        quote(folder.parent, ledger.head)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    without_registry(monkeypatch, tmp_path)
    with pytest.raises(LedgerError, match="row 3 was seen"):
        open_ledger(folder)


def test_forks_add_up_with_what_they_share_once(folder, tmp_path, monkeypatch):
    spend(folder, 0, 5)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    spend(folder, 10, 13)
    without_registry(monkeypatch, tmp_path)
    spend(copy, 10, 17)
    with Ledger.read(folder) as one, Ledger.read(copy) as other:
        both = compose([one, other], delta=DELTA)
        assert both.epsilon == epsilon_of(5 + 3 + 7)
        assert (both.num_queries, both.num_answered) == (15, 15)
        assert compose([one, one], delta=DELTA) == one.spent()
    # Back where the first branch was seen: the second is refused, and adds up if acknowledged.
    monkeypatch.setenv("PATE_TF_STATE", str(state_folder().parent / "third"))
    open_ledger(folder).close()
    with pytest.raises(LedgerError, match="went on apart"):
        open_ledger(copy)
    with open_ledger(copy, acknowledge_reset=True) as ledger:
        assert ledger.spent().epsilon == epsilon_of(15)
        assert ledger.all_ensembles().charges == {MECHANISM: 15}


def records(start, stop, *, seed=0):
    inputs = np.random.default_rng(seed).normal(size=(2000, 3)).astype(np.float32)
    return RecordSet.of(inputs[start:stop])


def test_another_ensembles_gate_leaves_statements_finite(tmp_path):
    """A gate that spent all of delta: together with it nothing is finite at that delta."""
    gate = StabilityGate(epsilon=0.25, delta=DELTA)
    first, second = (tmp_path / name / "sensitive" for name in ("one", "two"))
    with open_ledger(first, records=records(0, 2000)) as ledger, ledger.exclusive():
        ledger.debit(gate, [b"a" * 16], secure_noise=True)
    with pytest.warns(LedgerWarning):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, records=records(0, 2000))
    with ledger:
        label(ledger, 0, 5)
        facts = facts_beyond_the_ledger(ledger)
    assert facts["delta_source"] == pytest.approx(2 * DELTA)
    expected = smallest_epsilon({gate: 1, MECHANISM: 5}, facts["delta_source"])[0]
    assert facts["epsilon_source"] == expected < np.inf


def test_a_gate_of_another_delta_is_charged_again_in_a_ledger_that_opens(folder):
    gate = StabilityGate(epsilon=0.25, delta=DELTA)
    with open_ledger(folder) as ledger, ledger.exclusive():
        ledger.debit(gate, [b"a" * 16], secure_noise=True)
    shutil.rmtree(folder)
    with pytest.warns(LedgerWarning, match="charged again"):
        ledger = open_ledger(folder, delta=DELTA / 10)
    with ledger:
        assert ledger.charges == {gate: 1}
        assert ledger.spent().epsilon == np.inf


def test_ensembles_of_the_same_records_add_up(tmp_path):
    """Retrained with another seed in another folder: another ensemble, the same records."""
    first, second, third = (tmp_path / name / "sensitive" for name in ("one", "two", "three"))
    shuffled = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)[::-1]
    spend(first, 0, 5, records=records(0, 2000))
    with pytest.warns(LedgerWarning, match="2 ledgers of ensembles of the same private records"):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, records=RecordSet.of(shuffled))
    with ledger:
        label(ledger, 0, 7)
        found = ledger.all_ensembles()
        assert found.charges == {MECHANISM: 12}
        assert (found.num_ledgers, found.records_are_known) == (2, True)
        assert ledger.spent().epsilon == epsilon_of(7)
    # Half of them, too, and to who only reads.
    with pytest.warns(LedgerWarning):
        open_ledger(third, ensemble_digest="ef" * 32, records=records(0, 1000)).close()
    with Ledger.read(third) as ledger:
        assert ledger.all_ensembles().charges == {MECHANISM: 12}


def test_what_protects_records_and_what_protects_owners_has_no_total(tmp_path):
    """All records of an owner can change more than one record does, and by how much is unknown."""
    own = records(0, 2000)
    names = ("one", "two", "three")
    first, second, third = (tmp_path / name / "sensitive" for name in names)
    spend(first, 0, 5, records=own)
    with pytest.warns(LedgerWarning, match="1 of them protect owners where"):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, records=own, unit="owner")
    with ledger:
        label(ledger, 0, 7)
    for folder, others in ((first, 1), (second, 1)):
        with Ledger.read(folder) as ledger:
            found = ledger.all_ensembles()
            assert (found.num_ledgers, found.num_other_units) == (2, others)
            assert found.epsilon(DELTA) == np.inf
            facts = facts_beyond_the_ledger(ledger)
            assert (facts["epsilon_source"], facts["num_other_units"]) == (None, 1)
    # A unit that is not known, as of ledgers noted by an earlier version, is not taken for granted.
    connection = sqlite3.connect(state_folder() / DATABASE)
    with connection:
        connection.execute("UPDATE ledgers SET unit = NULL WHERE unit = 'record'")
    connection.close()
    with pytest.warns(LedgerWarning):
        ledger = open_ledger(third, ensemble_digest="ef" * 32, records=own)
    with ledger:
        assert ledger.all_ensembles().num_other_units == 2
    # The first opening by this version says it, and what was noted first stays.
    with pytest.warns(LedgerWarning):
        open_ledger(first, records=own).close()
    with pytest.warns(LedgerWarning):
        open_ledger(first, records=own, unit="owner").close()
    with Ledger.read(third) as ledger:
        assert ledger.all_ensembles().num_other_units == 1


def test_ensembles_of_other_records_do_not(tmp_path):
    spend(tmp_path / "one", 0, 5, records=records(0, 1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LedgerWarning)
        for name, own in (("two", records(1000, 2000)), ("three", records(0, 2000, seed=1))):
            with open_ledger(tmp_path / name, ensemble_digest=name * 16, records=own) as ledger:
                assert ledger.all_ensembles().charges == {}


def test_something_unknown_in_one_ledger_switches_nothing_off(tmp_path):
    """Its spending counts as infinite; all others are counted, and rows are noted, as before."""
    own = records(0, 2000)
    first, second = (tmp_path / name / "sensitive" for name in ("one", "two"))
    spend(first, 0, 5, records=own)
    connection = sqlite3.connect(state_folder() / DATABASE)
    with connection:
        connection.execute(
            "UPDATE rows SET payment = replace(payment, 'permute_and_flip', 'of_a_users_own')"
        )
    connection.close()
    with pytest.warns(LedgerWarning, match="1 of them charged something that is unknown here"):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, records=own)
    with ledger:
        label(ledger, 0, 7)
        found = ledger.all_ensembles()
        assert (found.charges, found.num_ledgers, found.num_unknown) == ({MECHANISM: 7}, 2, 1)
        assert found.epsilon(DELTA) == np.inf
        assert ledger.guard.is_kept
        facts = facts_beyond_the_ledger(ledger)
        assert (facts["epsilon_source"], facts["num_ledgers"]) == (None, 2)
    # What came later was noted: a ledger that is put back from a copy is told from the newer one.
    shutil.copytree(second, tmp_path / "copy")
    with pytest.warns(LedgerWarning):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, records=own)
    with ledger:
        label(ledger, 7, 9)
    shutil.rmtree(second)
    shutil.copytree(tmp_path / "copy", second)
    with pytest.raises(LedgerError, match="restored from an older copy"):
        open_ledger(second, ensemble_digest="cd" * 32, records=own)


def test_unknown_records_are_said_to_be_unknown(tmp_path):
    with open_ledger(tmp_path / "one") as ledger:
        found = ledger.all_ensembles()
    assert (found.num_ledgers, found.records_are_known) == (1, False)


def test_equal_teachers_in_another_folder_add_up(tmp_path):
    """One ensemble: whichever of its ledgers is charged, each says so and is held to it."""
    budget = epsilon_of(12)
    spend(tmp_path / "one", 0, 5, epsilon_budget=budget)
    with pytest.warns(LedgerWarning, match="the same subject spent is charged here"):
        two = open_ledger(tmp_path / "two", epsilon_budget=budget)
    with two, open_ledger(tmp_path / "one", epsilon_budget=budget) as one:
        assert two.spent().epsilon == epsilon_of(5) and not two.was_reset
        label(one, 20, 23)
        label(two, 30, 33)
        for ledger in (one, two):
            with ledger.exclusive():
                assert ledger.spent().epsilon == epsilon_of(11)
                assert ledger.charges == ledger.all_ensembles().charges == {MECHANISM: 11}
            with pytest.raises(BudgetExceeded):
                label(ledger, 40, 42)
        assert compose([one, two], delta=DELTA).epsilon == epsilon_of(11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_ledger(tmp_path / "two", epsilon_budget=budget).close()


def test_what_a_copy_spent_is_not_forgotten_with_the_original(folder, tmp_path):
    """The attack: a copy goes on, the original is deleted, and a new ledger says .341 of .668."""
    spend(folder, 0, 5)
    shutil.copytree(folder, tmp_path / "copy")
    spend(tmp_path / "copy", 10, 13)
    shutil.rmtree(folder)
    with pytest.warns(LedgerWarning, match="deleted with all that it charged for"):
        ledger = open_ledger(folder)
    with ledger:
        assert ledger.was_reset
        assert ledger.spent().epsilon == ledger.all_ensembles().epsilon(DELTA) == epsilon_of(8)


def test_what_another_ledger_paid_for_must_be_known_here(tmp_path):
    spend(tmp_path / "one", 0, 5)
    connection = sqlite3.connect(state_folder() / DATABASE)
    with connection:
        connection.execute(
            "UPDATE rows SET payment = replace(payment, 'permute_and_flip', 'of_a_users_own')"
        )
    connection.close()
    with pytest.raises(LedgerError) as error:
        open_ledger(tmp_path / "two")
    assert_one_line(error, "unknown here", "import what defines it")


VERSION_1 = """
CREATE TABLE key (value BLOB NOT NULL) STRICT;
CREATE TABLE ledgers (
  ledger BLOB PRIMARY KEY, ensemble BLOB NOT NULL, folder TEXT NOT NULL, records BLOB) STRICT;
CREATE TABLE sketches (ledger BLOB NOT NULL, record BLOB NOT NULL, UNIQUE (ledger, record)) STRICT;
CREATE INDEX sketched ON sketches (record);
CREATE TABLE rows (
  ledger BLOB NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, payment TEXT,
  UNIQUE (ledger, digest)) STRICT;
CREATE INDEX noted ON rows (ledger);
PRAGMA user_version = 1;
"""


def test_a_registry_of_the_first_version_still_tells(folder):
    spend(folder, 0, 5)
    new = sqlite3.connect(state_folder() / DATABASE)
    old = sqlite3.connect(state_folder() / "old")
    old.executescript(VERSION_1)
    with old:
        for table, columns in (
            ("key", "value"),
            ("rows", "ledger, sequence, digest, payment"),
            ("ledgers JOIN folders USING (ledger)", "ledger, subject, folder, records"),
        ):
            rows = new.execute(f"SELECT {columns} FROM {table}").fetchall()
            places = ", ".join("?" * len(rows[0]))
            old.executemany(f"INSERT INTO {table.split()[0]} VALUES ({places})", rows)
    new.close()
    old.close()
    (state_folder() / "old").rename(state_folder() / DATABASE)
    shutil.rmtree(folder)
    with pytest.warns(LedgerWarning, match="deleted with all that it charged for"):
        ledger = open_ledger(folder)
    with ledger:
        assert ledger.spent().epsilon == epsilon_of(5)
    with sqlite3.connect(state_folder() / DATABASE) as registry:
        registry.execute("PRAGMA user_version = 9")
    registry.close()
    with pytest.warns(LedgerWarning, match="expected version 3 or older, got 9"):
        open_ledger(folder).close()


def test_the_registry_is_private_and_confirms_no_guess(tmp_path):
    own = records(0, 100)
    spend(tmp_path / "one", 0, 5, records=own)
    folder = state_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    content = b""
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content += path.read_bytes()
    for secret in (ENSEMBLE, own.digest, *own.sketch):
        assert secret.encode() not in content
        assert bytes.fromhex(secret) not in content
    assert own.digest not in repr(own)
    assert str(own.num_records) not in repr(own)


def test_two_registries_know_the_same_by_different_keys(tmp_path, monkeypatch):
    subject = ("ensemble", ENSEMBLE)

    def known_as(place, *subject):
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / place))
        return RollbackGuard(tmp_path, None).keyed(*subject)

    assert known_as("one", *subject) != known_as("two", *subject)
    assert known_as("one", *subject) == known_as("one", *subject)
    assert known_as("one", *subject) != known_as("one", "silo", ENSEMBLE)


def test_registries_that_were_kept_are_read_again(tmp_path):
    guard = RollbackGuard(tmp_path, None)
    guard._key = bytes(32)
    expected = "1580f5773afcd45ddeda040f86a0d22ab1a1e148f1062b73f873902126547874"
    assert guard.keyed("ensemble", ENSEMBLE).hex() == expected


def test_where_the_registry_lies(monkeypatch, tmp_path):
    places = {
        "PATE_TF_STATE": tmp_path / "own",
        "XDG_STATE_HOME": tmp_path / "state/pate_tf",
        "HOME": tmp_path / "home/.local/state/pate_tf",
    }
    for name, folder in (("PATE_TF_STATE", "own"), ("XDG_STATE_HOME", "state"), ("HOME", "home")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name, place in places.items():
        assert not place.exists()
        open_registry()[0].close()
        assert (place / DATABASE).exists()
        monkeypatch.delenv(name)


@pytest.mark.parametrize("trouble", ["no home", "a file in its place", "damaged"])
def test_without_a_registry_it_warns_and_goes_on(folder, tmp_path, monkeypatch, trouble):
    place = tmp_path / "state"
    monkeypatch.setenv("PATE_TF_STATE", str(place))
    if trouble == "no home":
        for name in ("PATE_TF_STATE", "XDG_STATE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    elif trouble == "a file in its place":
        place.write_text("")
    else:
        place.mkdir()
        (place / DATABASE).write_bytes(os.urandom(5000))
    with pytest.warns(LedgerWarning, match="no registry of ledgers can be kept") as warned:
        ledger = open_ledger(folder)
    assert len(warned) == 1
    with ledger:
        label(ledger, 0, 5)
        assert not ledger.guard.is_kept
        assert ledger.all_ensembles() is None


def test_a_registry_keeps_up_with_a_ledger_that_it_sees_late(folder, tmp_path, monkeypatch):
    spend(folder, 0, 5)
    without_registry(monkeypatch, tmp_path)
    with open_ledger(folder) as ledger:
        assert ledger.guard.is_kept
        assert ledger.all_ensembles().charges == {MECHANISM: 5}


def test_a_record_set_comes_back_from_json():
    own = records(0, 100)
    assert RecordSet.from_dict(json.loads(json.dumps(own.to_dict()))) == own
    with pytest.raises(ValueError, match="expected digests of records"):
        RecordSet.from_dict({"digest": "xyz", "sketch": [], "num_records": 3})
