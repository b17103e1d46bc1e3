"""A run of shared training is charged once and resumes once, even if files are copied
or restored.
"""

import shutil

import numpy as np
import pytest
from shared_helpers import records

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core import artifacts
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.selective_sgd.run_state import DurableRun
from pate_tf.selective_sgd.training_settings import TrainingSettings

CHARGE = NoisyTraining(sampling_rate=1.0, noise_multiplier=3.0, rounds=4)
TRAINING = NoisyTraining(sampling_rate=1.0, noise_multiplier=3.0, rounds=8)
TWICE = smallest_epsilon({TRAINING: 1}, 1e-5)[0]
RECORD = TrainingSettings(privacy="record", target_epsilon=7.0)
SOURCE = PrivateSource.named("patients")
OLDER = "was restored from an older copy"


def begun(directory, settings=RECORD, **options) -> DurableRun:
    given = {"settings": settings, "source": SOURCE, **options}
    run = DurableRun(directory, "run", {"rounds": 4}, [records(3)], **given)
    try:
        run.charge(CHARGE, secure_noise=True)
    except BaseException:
        run.close()
        raise
    return run


def save(run: DurableRun, round_number: int) -> None:
    run.save({"num_rounds": np.array(round_number)})


def in_ledger(directory) -> tuple[list[int], list[int]]:
    """Returns how often each charge was charged, and the noted rounds."""
    with Ledger.read(directory / "sensitive" / "ledger") as ledger:
        rows = [row for row in ledger.history() if row.kind == "released"]
        return list(ledger.charges.values()), [row.details["kept"]["round"] for row in rows]


def test_a_run_that_resumes_is_charged_once(tmp_path, monkeypatch):
    with begun(tmp_path) as run:
        first = run.facts()
        save(run, 1)
    assert 6.0 < first.epsilon <= 7.0 and first.fewest_records == 3
    assert first.epsilon_source == first.epsilon and first.num_ledgers == 1
    with begun(tmp_path) as run:
        save(run, 2)
        monkeypatch.setattr(run, "_note", lambda *_: None)
        save(run, 3)  # killed between saving and noting: nothing was sent
    with begun(tmp_path) as run:
        assert run.facts().epsilon == first.epsilon
    assert in_ledger(tmp_path) == ([1], [1, 2, 3])


def test_a_state_from_before_or_another_of_the_same_round_is_refused(tmp_path):
    states = []
    with begun(tmp_path) as run:
        states.append((run.folder / "state.npz").read_bytes())
        for round_number in (1, 2):
            save(run, round_number)
            states.append((run.folder / "state.npz").read_bytes())
        other = {**run.saved, "num_rounds": np.array(2), "token": np.zeros(32, np.uint8)}
        artifacts.write_arrays(run.folder / "state.npz", other, private=True)
        states.append((run.folder / "state.npz").read_bytes())
    for place in (0, 1, 3):
        (tmp_path / "sensitive" / "run" / "state.npz").write_bytes(states[place])
        with pytest.raises(LedgerError, match=rf"{OLDER}[^\n]*$"):
            begun(tmp_path)
    (tmp_path / "sensitive" / "run" / "state.npz").write_bytes(states[2])
    begun(tmp_path).close()
    assert in_ledger(tmp_path) == ([1], [1, 2])


@pytest.mark.parametrize("at_the_same_time", [False, True])
def test_of_two_copies_that_run_at_once_one_at_most_releases(
    tmp_path, monkeypatch, at_the_same_time
):
    """In one case both run at once: one notes its row after the other has read the registry and
    before it notes its own.
    """
    original, copy = tmp_path / "original", tmp_path / "copy"
    begun(original).close()
    shutil.copytree(original, copy)
    store = Ledger.store_release
    with begun(original) as first, begun(copy) as second:

        def overtaken(*arguments):
            monkeypatch.setattr(Ledger, "store_release", store)
            save(first, 1)
            store(*arguments)

        if at_the_same_time:
            monkeypatch.setattr(Ledger, "store_release", overtaken)
        else:
            save(first, 1)
        with pytest.raises(LedgerError):
            save(second, 1)
    with pytest.raises(LedgerError):
        begun(copy)


def test_a_second_process_in_the_folder_and_a_copy_without_the_ledger_are_refused(tmp_path):
    with begun(tmp_path / "run"), pytest.raises(ValueError, match="used by another process"):
        begun(tmp_path / "run")
    copied = tmp_path / "copy" / "sensitive" / "run"
    shutil.copytree(tmp_path / "run" / "sensitive" / "run", copied)
    with pytest.raises(LedgerError, match=f"rows was seen in {tmp_path / 'run'}"):
        begun(tmp_path / "copy")


@pytest.mark.parametrize("gone", ["the ledger", "rows of it"])
def test_what_is_gone_can_be_acknowledged_and_the_run_is_charged_again(tmp_path, gone):
    folder, copy = tmp_path / "sensitive" / "ledger", tmp_path / "copy"
    with begun(tmp_path) as run:
        once = run.facts().epsilon
        shutil.copytree(folder, copy)
        save(run, 1)
    shutil.rmtree(folder)
    if gone == "rows of it":
        shutil.copytree(copy, folder)
    with pytest.raises(LedgerError, match="`acknowledge_reset`"):
        begun(tmp_path)
    with begun(tmp_path, acknowledge_reset=True) as run:
        facts = run.facts()
        save(run, 2)
    assert facts.was_reset and once < facts.epsilon == pytest.approx(TWICE, rel=0.01)
    # From then on nothing changes: no third charge, with or without the acknowledgement.
    for acknowledged in (False, True):
        with begun(tmp_path, acknowledge_reset=acknowledged) as run:
            assert run.facts().epsilon == facts.epsilon
    assert in_ledger(tmp_path) == ([2], [1, 2])
