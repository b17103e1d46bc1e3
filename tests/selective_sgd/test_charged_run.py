"""A run of shared training is charged once and goes on once, whatever is copied or put back."""

import shutil

import numpy as np
import pytest

from pate_tf.accounting.mechanisms import GaussianNoisyMax
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning
from pate_tf.selective_sgd.run_state import ChargedRun, RunState
from pate_tf.selective_sgd.settings import Privacy

CHARGE = NoisyTraining(sampling_rate=1.0, noise_multiplier=3.0, rounds=4)
PRIVACY = Privacy(kind="record", target_epsilon=7.0, sampling_rate=1.0)
SOURCE = PrivateSource.named("patients")
NONCE, OTHER_NONCE = bytes(32), bytes([1]) * 32


def state_of(round_number, variant=0) -> bytes:
    """What names a state; each that is drawn anew has another one."""
    return bytes([round_number, variant]) * 16 if round_number else b""


def begun(folder, round_number=0, variant=0, source=SOURCE, **options) -> ChargedRun:
    given = {"nonce": NONCE, "round_number": round_number, "token": state_of(round_number, variant)}
    run = ChargedRun(folder / "ledger", source, PRIVACY, **{**given, **options})
    run.begin(CHARGE, secure_noise=True)
    return run


def in_ledger(folder) -> tuple[list[int], list[int]]:
    """How often each charge was charged, and the rounds noted."""
    with Ledger.read(folder / "ledger") as ledger:
        rows = [row for row in ledger.history() if row.kind == "released"]
        return list(ledger.charges.values()), [row.details["kept"]["round"] for row in rows]


def test_a_run_that_goes_on_is_charged_once(tmp_path):
    with begun(tmp_path) as run:
        first = run.facts()
        run.note(1, state_of(1))
    assert 6.0 < first.epsilon <= 7.0
    assert first.epsilon_source == first.epsilon and first.num_ledgers == 1
    with begun(tmp_path, 1) as run:
        run.note(2, state_of(2))
    # Killed between saving and noting: nothing had left, and it is noted before anything does.
    with begun(tmp_path, 3) as run:
        assert run.facts().epsilon == first.epsilon
    # Over: it can be published again, which draws nothing.
    with begun(tmp_path, 3):
        pass
    assert in_ledger(tmp_path) == ([1], [1, 2, 3])


def test_a_state_from_before_is_refused(tmp_path):
    with begun(tmp_path) as run:
        run.note(1, state_of(1))
        run.note(2, state_of(2))
    # Round 2 drawn anew by a process that ended before it noted that is another state.
    for round_number, variant in ((1, 0), (0, 0), (2, 1)):
        with pytest.raises(LedgerError, match="was restored from an older copy") as caught:
            begun(tmp_path, round_number, variant)
        assert "\n" not in str(caught.value)
    assert in_ledger(tmp_path) == ([1], [1, 2])


def test_of_two_copies_one_goes_on(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    with begun(one) as run:
        run.note(1, state_of(1))
    shutil.copytree(one, other)
    with begun(one, 1) as run:
        run.note(2, state_of(2))
    with pytest.raises(LedgerError, match="was restored from an older copy"):
        begun(other, 1)
    with begun(one, 2) as run:
        run.note(3, state_of(3))


@pytest.mark.parametrize("at_the_same_time", [False, True])
def test_of_two_copies_that_run_at_once_one_at_most_releases(
    tmp_path, monkeypatch, at_the_same_time
):
    """At the same time: one notes between the other's look at the registry and its row."""
    one, other = tmp_path / "one", tmp_path / "other"
    begun(one).close()
    shutil.copytree(one, other)
    store = Ledger.store_release
    with begun(one) as first, begun(other) as second:

        def overtaken(*arguments):
            monkeypatch.setattr(Ledger, "store_release", store)
            first.note(1, state_of(1))
            store(*arguments)

        if at_the_same_time:
            monkeypatch.setattr(Ledger, "store_release", overtaken)
        else:
            first.note(1, state_of(1))
        with pytest.raises(LedgerError):
            second.note(1, state_of(1, 1))


def test_two_processes_in_one_folder_do_not_release_a_round_twice(tmp_path):
    with begun(tmp_path) as first, begun(tmp_path) as second:
        first.note(1, state_of(1))
        with pytest.raises(LedgerError, match="another process went on with this run"):
            second.note(1, state_of(1, 1))
        first.note(2, state_of(2))


def test_a_copy_of_the_state_without_its_ledger_is_refused(tmp_path):
    begun(tmp_path / "one").close()
    with pytest.raises(LedgerError, match=f"rows was seen in {tmp_path / 'one'}"):
        begun(tmp_path / "other")


@pytest.mark.parametrize("what", ["the ledger", "rows of it"])
def test_what_is_gone_can_be_acknowledged_and_the_run_is_charged_again(tmp_path, what):
    folder, copy = tmp_path / "run" / "ledger", tmp_path / "copy"
    with begun(folder.parent) as run:
        once = run.facts().epsilon
        shutil.copytree(folder, copy)
        run.note(1, state_of(1))
    shutil.rmtree(folder)
    if what == "rows of it":
        shutil.copytree(copy, folder)
    with pytest.raises(LedgerError, match="`acknowledge_reset`"):
        begun(folder.parent, 1)
    with begun(folder.parent, 1, acknowledge_reset=True) as run:
        facts = run.facts()
        run.note(2, state_of(2))
    twice = NoisyTraining(sampling_rate=1.0, noise_multiplier=3.0, rounds=8).epsilon(1e-5)
    assert facts.was_reset and once < facts.epsilon == pytest.approx(twice, rel=0.01)
    # From then on as ever: charged no third time, with the acknowledgement or without.
    for acknowledged in (False, True):
        with begun(folder.parent, 2, acknowledge_reset=acknowledged) as run:
            assert run.facts().epsilon == facts.epsilon
    assert in_ledger(folder.parent) == ([2], [1, 2])


def test_another_run_needs_another_folder(tmp_path):
    begun(tmp_path).close()
    with pytest.raises(LedgerError, match="got that of another one; choose another folder"):
        begun(tmp_path, nonce=OTHER_NONCE)


def test_all_runs_and_ensembles_of_one_source_add_up(tmp_path):
    with begun(tmp_path / "one") as run:
        first = run.facts()
    with (
        pytest.warns(LedgerWarning, match="2 ledgers are charged to the source patients"),
        begun(tmp_path / "two", nonce=OTHER_NONCE) as run,
    ):
        both = run.facts()
    assert both.epsilon == first.epsilon
    assert both.num_ledgers == 2
    twice = NoisyTraining(sampling_rate=1.0, noise_multiplier=3.0, rounds=8).epsilon(1e-5)
    assert both.epsilon_source == pytest.approx(twice, rel=0.01)
    # Teachers of the same source are counted, too.
    options = {"ensemble_digest": "e", "delta": 1e-5, "source": SOURCE}
    with pytest.warns(LedgerWarning):
        ledger = Ledger.open(tmp_path / "teachers", **options)
    with ledger, ledger.exclusive():
        ledger.debit(GaussianNoisyMax(sigma=5.0), [b"query"], secure_noise=True)
    with pytest.warns(LedgerWarning), begun(tmp_path / "one") as run:
        three = run.facts()
    assert three.epsilon == first.epsilon
    assert three.num_ledgers == 3
    assert three.epsilon_source > both.epsilon_source


def test_a_folder_has_one_run(tmp_path):
    RunState(tmp_path, {"rounds": 3}).save({"round": np.array(1)})
    assert RunState(tmp_path, {"rounds": 3}).saved["round"] == 1
    with pytest.raises(
        ValueError, match=r"holds a run of other settings: rounds \(3 there, 4 now\);"
    ):
        RunState(tmp_path, {"rounds": 4})
    (tmp_path / "state.npz").write_bytes(b"no arrays")
    with pytest.raises(ValueError, match="got a broken one"):
        RunState(tmp_path, {"rounds": 3})


def test_what_protects_records_is_not_added_to_what_protects_a_participant(tmp_path):
    """A charge for one record bounds nothing of all records of a participant."""
    with begun(tmp_path / "records"):
        pass
    privacy = Privacy(kind="participant", target_epsilon=7.0)
    with pytest.warns(LedgerWarning, match="no epsilon holds for all of them together"):
        run = ChargedRun(tmp_path / "all" / "ledger", SOURCE, privacy)
        run.begin(CHARGE, secure_noise=True)
    with run:
        assert run.facts().epsilon_source is None
