"""Ways to spend a budget twice: a ledger deleted, restored or copied, and retrained teachers."""

import contextlib
import json
import os
import pathlib
import pwd
import shutil
import sqlite3
import stat
import warnings

import numpy as np
import pytest
from ledger_helpers import DELTA, ENSEMBLE, MECHANISM, label, open_ledger

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.mechanisms.retired import RetiredGate
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError, LedgerWarning, compose
from pate_tf.ledger.privacy_ledger import source_facts
from pate_tf.ledger.rollback_guard import REGISTRY as DATABASE

PATIENTS = PrivateSource.named("patients")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "sensitive"


def state_folder():
    return pathlib.Path(os.environ["PATE_TF_STATE"])


def in_registry(command):
    with contextlib.closing(sqlite3.connect(state_folder() / DATABASE)) as registry, registry:
        registry.execute(command)


def without_registry(monkeypatch, tmp_path):
    """Simulates another machine with an empty registry."""
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
    assert_one_line(error, "votes", "Restore the ledger", "acknowledge_reset")
    with pytest.raises(LedgerError):  # the empty file of the first attempt changes nothing
        open_ledger(folder)


def test_a_run_deleted_as_a_whole_is_missed_by_the_registry_and_charged_again(folder):
    spend(folder, 0, 5, source=PATIENTS)
    shutil.rmtree(folder)
    with pytest.warns(LedgerWarning, match="deleted with its results"):
        ledger = open_ledger(folder, source=PATIENTS, ensemble_digest="cd" * 32)
    with ledger:
        assert ledger.history()[0].details["acknowledged"] is True
        assert ledger.was_raised  # its limit is no longer known
        assert ledger.spent().epsilon == epsilon_of(5)
        label(ledger, 0, 5)  # the same queries, with fresh noise
        assert ledger.spent().epsilon == epsilon_of(10)
        assert ledger.source_spending().charges == {MECHANISM: 10}


def test_a_run_of_another_source_in_a_folder_that_was_deleted_is_new(folder):
    spend(folder, 0, 5, source=PATIENTS)
    shutil.rmtree(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger = open_ledger(folder, source=PrivateSource.named("clients"))
    with ledger:
        assert ledger.charges == {} and not ledger.was_reset


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
    assert_one_line(error, "refers to row 3")


def test_a_reset_does_not_free_a_budget(folder):
    budget = epsilon_of(6)
    spend(folder, 0, 5, epsilon_budget=budget)
    delete_ledger(folder)
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
    # The first branch was seen on this machine. The second is refused; if acknowledged, both are
    # added.
    monkeypatch.setenv("PATE_TF_STATE", str(state_folder().parent / "third"))
    open_ledger(folder).close()
    with pytest.raises(LedgerError, match="used separately"):
        open_ledger(copy)
    with open_ledger(copy, acknowledge_reset=True) as ledger:
        assert ledger.spent().epsilon == epsilon_of(15)
        assert ledger.source_spending().charges == {MECHANISM: 15}


def test_a_gate_of_another_delta_is_charged_again_in_a_ledger_that_opens(folder):
    gate = RetiredGate(epsilon=0.25, delta=DELTA)
    with open_ledger(folder) as ledger, ledger.exclusive():
        ledger.debit(gate, [b"a" * 16], secure_noise=True)
        quote(folder.parent, ledger.head)
    delete_ledger(folder)
    with open_ledger(folder, delta=DELTA / 10, acknowledge_reset=True) as ledger:
        assert ledger.charges == {gate: 1}
        assert ledger.spent().epsilon == np.inf


def test_ledgers_of_one_name_add_up_whatever_the_records(tmp_path):
    """Only the name decides. The ensembles may be equal or different, of the same records or of
    other records.
    """
    names = ("one", "two", "three", "four")
    first, second, third, fourth = (tmp_path / name / "sensitive" for name in names)
    spend(first, 0, 5, source=PATIENTS)
    for folder, ensemble, spent in ((second, "cd" * 32, 12), (third, ENSEMBLE, 19)):
        with pytest.warns(
            LedgerWarning, match="use the records of the source patients. Their total"
        ):
            ledger = open_ledger(folder, ensemble_digest=ensemble, source=PATIENTS)
        with ledger:
            label(ledger, 0, 7)
            assert ledger.source_spending().charges == {MECHANISM: spent}
            assert ledger.spent().epsilon == epsilon_of(7)
    with Ledger.read(first) as ledger:  # for readers, too
        assert ledger.source_spending().num_ledgers == 3
        assert ledger.source.name == "patients"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = PrivateSource.named("clients")
        with open_ledger(fourth, source=other) as ledger:  # an equal ensemble with another name
            assert ledger.source_spending().charges == {}
        with open_ledger(tmp_path / "five" / "sensitive") as ledger:  # no name at all
            assert ledger.source_spending().charges == {}
            assert source_facts(ledger)["source_name"] is None


def test_a_ledger_keeps_its_source(folder):
    spend(folder, 0, 5, source=PATIENTS)
    with pytest.raises(LedgerError) as error:
        open_ledger(folder, source=PrivateSource.named("clients"))
    assert_one_line(error, "the source patients, not to clients")
    with open_ledger(folder) as ledger:
        assert ledger.source == PATIENTS


def test_what_protects_records_and_what_protects_owners_has_no_total(tmp_path):
    """All records of an owner can change more than one record does, by an unknown factor."""
    first, second = (tmp_path / name / "sensitive" for name in ("one", "two"))
    spend(first, 0, 5, source=PATIENTS)
    with pytest.warns(LedgerWarning, match="they protect different units"):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, source=PATIENTS, unit="owner")
    with ledger:
        label(ledger, 0, 7)
    for folder in (first, second):
        with Ledger.read(folder) as ledger:
            spending = ledger.source_spending()
            assert (spending.num_ledgers, spending.num_other_units) == (2, 1)
            assert spending.epsilon(DELTA) == np.inf
            facts = source_facts(ledger)
            assert (facts["epsilon_source"], facts["num_other_units"]) == (None, 1)
    # The first entry is kept.
    with pytest.warns(LedgerWarning):
        open_ledger(first, source=PATIENTS, unit="owner").close()
    with Ledger.read(second) as ledger:
        assert ledger.source_spending().num_other_units == 1


def test_something_unknown_in_one_ledger_switches_nothing_off(tmp_path):
    """Its spending counts as infinite. All other spending is still counted and all rows are still
    noted.
    """
    first, second = (tmp_path / name / "sensitive" for name in ("one", "two"))
    spend(first, 0, 5, source=PATIENTS)
    in_registry("UPDATE rows SET debit = replace(debit, 'laplace_noisy_max', 'of_a_users_own')")
    with pytest.warns(LedgerWarning, match="not registered here"):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, source=PATIENTS)
    with ledger:
        label(ledger, 0, 7)
        spending = ledger.source_spending()
        assert (spending.charges, spending.num_unknown) == ({MECHANISM: 7}, 1)
        assert spending.epsilon(DELTA) == np.inf
        assert ledger.guard.registry is not None
        facts = source_facts(ledger)
        assert (facts["epsilon_source"], facts["num_ledgers"]) == (None, 2)
    # Later rows were noted, so a ledger restored from a copy differs from the newer ledger.
    shutil.copytree(second, tmp_path / "copy")
    with pytest.warns(LedgerWarning):
        ledger = open_ledger(second, ensemble_digest="cd" * 32, source=PATIENTS)
    with ledger:
        label(ledger, 7, 9)
    shutil.rmtree(second)
    shutil.copytree(tmp_path / "copy", second)
    with pytest.raises(LedgerError, match="restored from an older copy"):
        open_ledger(second, ensemble_digest="cd" * 32, source=PATIENTS)


def test_what_a_copy_spent_is_not_forgotten_with_the_original(folder, tmp_path):
    """Covers an attack: a copy continues, the original is deleted, and a new ledger claims .341 of
    .668.
    """
    spend(folder, 0, 5)
    shutil.copytree(folder, tmp_path / "copy")
    spend(tmp_path / "copy", 10, 13)
    delete_ledger(folder)
    with open_ledger(folder, acknowledge_reset=True) as ledger:
        assert ledger.was_reset
        assert ledger.spent().epsilon == ledger.source_spending().epsilon(DELTA) == epsilon_of(8)


def test_only_one_of_two_copies_resumes_an_open_debit(folder, tmp_path):
    def debited(ledger):
        return ledger.debited(MECHANISM, [bytes(32)], secure_noise=True)

    with (
        pytest.raises(KeyboardInterrupt),
        open_ledger(folder) as one,
        one.exclusive(),
        debited(one),
    ):
        raise KeyboardInterrupt
    shutil.copytree(folder, tmp_path / "copy")
    one, other = open_ledger(folder), open_ledger(tmp_path / "copy")
    refused = pytest.raises(LedgerError, match="older copy")
    with one, other, one.exclusive(), debited(one), refused, other.exclusive():
        pytest.fail("the copy may draw answers, too")


def test_what_a_missing_row_paid_for_must_be_known_here(folder):
    spend(folder, 0, 5)
    in_registry("UPDATE rows SET debit = replace(debit, 'laplace_noisy_max', 'of_a_users_own')")
    delete_ledger(folder)
    with pytest.raises(LedgerError) as error:
        open_ledger(folder, acknowledge_reset=True)
    assert_one_line(error, "unknown charge", "Import the module that defines it")


def test_a_registry_of_a_newer_version_is_left_alone(folder):
    spend(folder, 0, 5)
    in_registry("PRAGMA user_version = 9")
    with pytest.warns(LedgerWarning, match="version 9 is unsupported"):
        open_ledger(folder).close()


def test_the_registry_is_private_and_knows_no_ensemble(tmp_path):
    spend(tmp_path / "one", 0, 5)
    folder = state_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    content = b""
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        content += path.read_bytes()
    assert ENSEMBLE.encode() not in content
    assert bytes.fromhex(ENSEMBLE) not in content


@pytest.mark.parametrize("trouble", ["no home", "a file in its place", "damaged"])
def test_without_a_registry_it_warns_and_goes_on(folder, tmp_path, monkeypatch, trouble):
    place = tmp_path / "state"
    monkeypatch.setenv("PATE_TF_STATE", str(place))
    if trouble == "no home":
        for name in ("PATE_TF_STATE", "XDG_STATE_HOME", "HOME"):
            monkeypatch.setenv(name, "")
        monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # not even by user number
    elif trouble == "a file in its place":
        place.write_text("")
    else:
        place.mkdir()
        (place / DATABASE).write_bytes(os.urandom(5000))
    with pytest.warns(LedgerWarning, match="the registry of ledgers can't be used") as warned:
        ledger = open_ledger(folder)
    assert len(warned) == 1
    with ledger:
        label(ledger, 0, 5)
        assert ledger.guard.registry is None
        assert ledger.source_spending() is None
        assert source_facts(ledger)["num_ledgers"] is None


def test_a_file_that_was_moved_stays_the_source_of_its_ledger(folder, tmp_path):
    first, moved = (PrivateSource.of_file(tmp_path / name / "patients.csv") for name in "ab")
    spend(folder, 0, 5, source=first)
    for source in (moved, PATIENTS):  # the file's default name is the name of `PATIENTS`
        with open_ledger(folder, source=source) as ledger:
            assert ledger.source == first
    with pytest.raises(LedgerError, match=r"the source patients, not to others"):
        open_ledger(folder, source=PrivateSource.named("others"))


def test_seeded_noise_of_one_ledger_leaves_the_source_without_a_bound(folder, tmp_path):
    """Anyone with the seed can subtract the noise, so the statement must not use the
    charged cost.
    """
    seeded = tmp_path / "seeded" / "sensitive"
    with open_ledger(seeded, source=PATIENTS) as ledger, ledger.exclusive():
        ledger.debit(MECHANISM, [b"query"], secure_noise=False)
    with pytest.warns(LedgerWarning, match="noise from a seed"):
        spend(folder, 0, 5, source=PATIENTS)
    with Ledger.read(folder) as ledger:
        assert ledger.is_secure and source_facts(ledger)["epsilon_source"] is None
