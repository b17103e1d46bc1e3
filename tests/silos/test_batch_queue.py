"""What a coordinator says to late, repeated, altered, foreign and misshapen submissions."""

import time

import numpy as np
import pytest
from silo_helpers import NUM_CLASSES, RANDOMISED, SECURE, queries

from pate_tf.silos.batch_queue import BatchQueue, JournalError, Round
from pate_tf.silos.messages import Answer, RandomisedVotes, Reason, Refusal, SealedShares


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def core(tmp_path, clock):
    found = BatchQueue("r", "abc", tmp_path, clock=clock)
    found.open_round(a_round(1))
    return found


def a_round(number, *, mechanism=RANDOMISED, deadline=1_060.0):
    asked = np.ones((3, 4), bool)
    asked[2] = mechanism is SECURE
    asked[1, 0] = mechanism is SECURE
    return Round(
        number=number,
        queries=queries(10 * number, 10 * number + 4),
        asked=asked,
        mechanisms={name: mechanism for name in "abc"},
        num_classes=NUM_CLASSES,
        deadline=deadline,
    )


def votes(silo, labels, *, number=1, run_id="r", name=None, witness=None):
    names = {"run_id": run_id, "batch_id": f"round-{number}", "silo": name or silo}
    return RandomisedVotes(**names, labels=np.array(labels), witness=witness)


def refusal(silo, number=1):
    names = {"run_id": "r", "batch_id": f"round-{number}", "silo": silo}
    return Refusal(**names, reason=Reason.BUDGET_SPENT)


def test_each_silo_gets_its_own_queries_until_it_replied(core):
    assert len(core.poll("a")) == 4 and len(core.poll("b")) == 3
    assert core.poll("c") is None  # asked nothing
    assert core.poll("a").digests[1:] == core.poll("b").digests
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.OK
    assert core.poll("a") is None and core.poll("b") is not None
    core.open_round(a_round(2))
    assert core.poll("a").batch_id == "round-2"


def test_submissions_are_told_apart(core, clock):
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.OK
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.SAME
    assert core.submit("a", votes("a", [0, 1, 2, 4])) is Answer.CONFLICT
    assert core.submit("a", refusal("a")) is Answer.CONFLICT
    assert core.submit("b", votes("b", [0, 1, 2, 3])) is Answer.UNKNOWN  # b was asked three
    assert core.submit("b", votes("b", [0, 1, NUM_CLASSES])) is Answer.UNKNOWN
    assert core.submit("b", votes("b", [0, 1, 2], number=7)) is Answer.UNKNOWN
    assert core.submit("b", votes("b", [0, 1, 2], run_id="s")) is Answer.UNKNOWN
    assert core.submit("b", votes("b", [0, 1, 2], name="a")) is Answer.UNKNOWN
    assert core.submit("c", votes("c", [0])) is Answer.UNKNOWN  # was asked nothing
    sealed = SealedShares(run_id="r", batch_id="round-1", silo="b", sealed=(b"1", b"2", b"3"))
    assert core.submit("b", sealed) is Answer.UNKNOWN
    clock.now = 1_060.0
    assert core.poll("b") is None
    assert core.submit("b", votes("b", [0, 1, 2])) is Answer.LATE
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.SAME
    assert set(core.replies(1)) == {"a"}


def test_a_closed_round_takes_nothing(core):
    (one,) = core.rounds()
    core.close_round(one.number, np.zeros(4, np.int64))
    assert core.poll("a") is None
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.LATE


def test_sealed_shares_need_all_parties(tmp_path, clock):
    core = BatchQueue("r", "abc", tmp_path, clock=clock)
    core.open_round(a_round(1, mechanism=SECURE))
    names = {"run_id": "r", "batch_id": "round-1", "silo": "a"}
    assert core.submit("a", SealedShares(**names, sealed=(b"1", b"2"))) is Answer.UNKNOWN
    assert core.submit("a", votes("a", [0, 1, 2, 3])) is Answer.UNKNOWN
    whole = SealedShares(**names, sealed=(b"1", b"22", b"333", b"4444"))
    assert core.submit("a", whole) is Answer.OK
    assert core.replies(1)["a"] == whole


@pytest.mark.parametrize("call", ["poll", "submit"])
def test_who_is_not_on_the_roster_gets_nothing(core, call):
    with pytest.raises(PermissionError, match="on the roster"):
        core.poll("mallory") if call == "poll" else core.submit("mallory", refusal("mallory"))


def test_what_was_acknowledged_survives(tmp_path, core, clock):
    core.submit("a", votes("a", [3, 1, 2, 3]))
    core.submit("b", refusal("b"))
    core.close()
    again = BatchQueue("r", "abc", tmp_path, clock=clock)
    replies = again.replies(1)
    assert replies["a"].labels.tolist() == [3, 1, 2, 3]
    assert replies["b"].reason is Reason.BUDGET_SPENT
    assert again.submit("a", votes("a", [3, 1, 2, 3])) is Answer.SAME
    assert again.poll("a") is None


def test_a_journal_is_of_one_run_and_a_damaged_one_is_refused(tmp_path):
    BatchQueue("r", "abc", tmp_path).close()
    with pytest.raises(JournalError, match="expected the run s"):
        BatchQueue("s", "abc", tmp_path)
    (tmp_path / "coordinator.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="can't be used"):
        BatchQueue("r", "abc", tmp_path)


def test_waiting_ends_at_the_deadline_or_when_all_replied(tmp_path):
    core = BatchQueue("r", "abc", tmp_path)
    seen = []
    core.open_round(a_round(1, deadline=time.time() + 0.3))
    core.submit("a", votes("a", [0, 1, 2, 3]))
    core.wait(core.rounds()[0], lambda replied, waited_for: seen.append((replied, waited_for)))
    assert seen[0] == ({"a"}, {"b"}) and seen[-1] == ({"a"}, {"b"})
    core.open_round(a_round(2, deadline=time.time() + 600))
    for silo, labels in (("a", [0, 1, 2, 3]), ("b", [1, 2, 3])):
        core.submit(silo, votes(silo, labels, number=2))
    core.wait(core.rounds()[1], lambda replied, waited_for: seen.append((replied, waited_for)))
    assert seen[-1] == ({"a", "b"}, set())


def test_a_coordinator_keeps_the_latest_witness_of_each_silo(core, tmp_path, clock):
    core.open_round(a_round(2))
    assert core.poll("a").witness is None
    assert core.submit("a", votes("a", [0] * 4, witness=b"1" * 32)) is Answer.OK
    assert core.poll("a").witness == b"1" * 32  # of a round that was open before
    # Another witness makes no other reply of it, and what was taken before stands.
    assert core.submit("a", votes("a", [0] * 4, witness=b"9" * 32)) is Answer.SAME
    assert core.submit("a", votes("a", [0] * 4, number=2, witness=b"2" * 32)) is Answer.OK
    assert core.submit("b", votes("b", [0] * 3, witness=b"3" * 32)) is Answer.OK
    assert core.submit("b", refusal("b", 2)) is Answer.OK  # takes no witness away
    core.close()
    again = BatchQueue("r", "abc", tmp_path, clock=clock)
    again.open_round(a_round(3))
    assert [again.poll(silo).witness for silo in "ab"] == [b"2" * 32, b"3" * 32]
