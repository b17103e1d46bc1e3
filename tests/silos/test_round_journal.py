"""The coordinator's answers to late, repeated, changed, foreign and malformed submissions."""

import dataclasses

import numpy as np
import pytest
from silo_helpers import NUM_CLASSES, RANDOMISED, SECURE, batch

from pate_tf.ledger import LedgerError
from pate_tf.silos.messages import Answer, RandomisedVotes, Reason, Refusal, SealedShares
from pate_tf.silos.round_journal import CoordinatorJournal, Round, RoundCollected


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def journal(tmp_path, clock):
    actual = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    actual.keep(a_round(1))
    return actual


def a_round(number, *, mechanism=RANDOMISED, deadline=1_060.0):
    first = 10 * number
    names = {"batch_id": f"round-{number}", "mechanism": mechanism, "deadline": deadline}
    asked = dict.fromkeys("ab" if mechanism is RANDOMISED else "abc", mechanism)
    return Round(number=number, batch=batch(first, first + 4, **names), mechanisms=asked)


def votes(silo, labels, *, number=1, run_id="r", commitment=None):
    names = {"run_id": run_id, "batch_id": f"round-{number}", "silo": silo}
    return RandomisedVotes(**names, labels=np.array(labels), commitment=commitment)


def refusal(silo, number=1):
    names = {"run_id": "r", "batch_id": f"round-{number}", "silo": silo}
    return Refusal(**names, reason=Reason.BUDGET_SPENT)


def test_who_is_waited_for_is_named():
    events = []
    waiting = CoordinatorJournal("r", "abc", on_event=events.append)
    waiting.poll("b")
    assert waiting.gather(0.01) == {"b"}
    assert events == ["waiting for a, c: 1 of 3 silos called"]


def test_each_silo_gets_the_queries_until_it_replied(journal):
    assert len(journal.poll("a").queries) == len(journal.poll("b").queries) == 4
    assert journal.poll("c") is None  # got no query
    assert journal.submit(votes("a", [0, 1, 2, 3])) is Answer.OK
    assert journal.poll("a") is None and journal.poll("b") is not None
    journal.keep(a_round(2))
    assert journal.poll("a").batch_id == "round-2"


def test_submissions_are_told_apart(journal, clock):
    assert journal.submit(votes("a", [0, 1, 2, 3])) is Answer.OK
    assert journal.submit(votes("a", [0, 1, 2, 3])) is Answer.SAME
    assert journal.submit(votes("a", [0, 1, 2, 4])) is Answer.CONFLICT
    assert journal.submit(refusal("a")) is Answer.CONFLICT
    assert journal.submit(votes("b", [0, 1, 2])) is Answer.UNKNOWN  # b got four queries
    assert journal.submit(votes("b", [0, 1, 2, NUM_CLASSES])) is Answer.UNKNOWN
    assert journal.submit(votes("b", [0, 1, 2, 3], number=7)) is Answer.UNKNOWN
    assert journal.submit(votes("b", [0, 1, 2, 3], run_id="s")) is Answer.UNKNOWN
    assert journal.submit(votes("c", [0])) is Answer.UNKNOWN  # got no query
    sealed = SealedShares(run_id="r", batch_id="round-1", silo="b", sealed=(b"1", b"2", b"3"))
    assert journal.submit(sealed) is Answer.UNKNOWN
    clock.now = 1_060.0
    assert journal.poll("b") is None
    assert journal.submit(votes("b", [0, 1, 2, 3])) is Answer.LATE
    assert journal.submit(votes("a", [0, 1, 2, 3])) is Answer.SAME
    assert set(journal.rounds[0].replies) == {"a"}


def test_sealed_shares_need_all_parties(tmp_path, clock):
    journal = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    journal.keep(a_round(1, mechanism=SECURE))
    names = {"run_id": "r", "batch_id": "round-1", "silo": "a"}
    assert journal.submit(SealedShares(**names, sealed=(b"1", b"2"))) is Answer.UNKNOWN
    assert journal.submit(votes("a", [0, 1, 2, 3])) is Answer.UNKNOWN
    whole = SealedShares(**names, sealed=(b"1", b"22", b"333", b"4444"))
    assert journal.submit(whole) is Answer.OK
    assert journal.rounds[0].replies["a"] == whole


def test_what_was_acknowledged_survives(tmp_path, journal, clock):
    journal.submit(votes("a", [3, 1, 2, 3]))
    journal.submit(refusal("b"))
    journal.close()
    again = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    replies = again.rounds[0].replies
    assert replies["a"].labels.tolist() == [3, 1, 2, 3]
    assert replies["b"].reason is Reason.BUDGET_SPENT
    assert again.submit(votes("a", [3, 1, 2, 3])) is Answer.SAME
    assert again.poll("a") is None


def test_a_round_that_is_open_again_takes_replies_until_they_are_complete(tmp_path, journal, clock):
    journal.submit(votes("a", [3, 1, 2, 3]))
    late = {"reason": Reason.TOO_LATE, "time": clock.now + 60.0}
    journal.submit(dataclasses.replace(refusal("b"), **late))
    journal.close()
    clock.now += 900.0
    again = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    asked = again.rounds[0].batch.question
    assert again.poll("b") is None
    again.reopen(again.rounds[0], 60.0)
    assert again.poll("a") is None and again.poll("b").deadline == clock.now + 60.0
    assert again.rounds[0].batch.question == asked
    again.keep(RoundCollected(number=1))
    # Aggregators may have opened the shares of these silos by now.
    assert again.poll("b") is None and again.submit(votes("b", [0, 1, 2, 3])) is Answer.LATE
    again.close()
    last = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    assert last.rounds[0].is_open and not last.rounds[0].is_waiting
    assert last.poll("b") is None and set(last.rounds[0].replies) == {"a", "b"}
    assert last.submit(votes("b", [0, 1, 2, 3])) is Answer.CONFLICT  # with the refusal


def test_a_journal_is_of_one_run_and_a_damaged_one_is_refused(tmp_path, journal):
    with pytest.raises(LedgerError, match="used by another process"):
        CoordinatorJournal("r", "abc", tmp_path)
    journal.submit(votes("a", [0, 1, 2, 3]))
    journal.close()
    with pytest.raises(LedgerError, match=r"is for run .*, not s"):
        CoordinatorJournal("s", "abc", tmp_path)
    for path in (tmp_path / "1.bin", tmp_path / "2.bin"):
        whole = path.read_bytes()
        for broken in (b"", whole[:-1], whole + b"x", b"x" * 100):
            path.write_bytes(broken)
            with pytest.raises(LedgerError, match="is unusable") as caught:
                CoordinatorJournal("r", "abc", tmp_path)
            assert "\n" not in str(caught.value)
        path.write_bytes(whole)
    CoordinatorJournal("r", "abc", tmp_path).close()


def test_a_coordinator_keeps_the_latest_commitment_of_each_silo(journal, tmp_path, clock):
    journal.keep(a_round(2))
    assert journal.poll("a").commitment is None
    assert journal.submit(votes("a", [0] * 4, commitment=b"1" * 32)) is Answer.OK
    assert journal.poll("a").commitment == b"1" * 32  # of an earlier open round
    # Another commitment does not change the reply, and the accepted reply is kept.
    assert journal.submit(votes("a", [0] * 4, commitment=b"9" * 32)) is Answer.SAME
    assert journal.submit(votes("a", [0] * 4, number=2, commitment=b"2" * 32)) is Answer.OK
    assert journal.submit(votes("b", [0] * 4, commitment=b"3" * 32)) is Answer.OK
    assert journal.submit(refusal("b", 2)) is Answer.OK  # removes no commitment
    journal.close()
    again = CoordinatorJournal("r", "abc", tmp_path, clock=clock)
    again.keep(a_round(3))
    assert [again.poll(silo).commitment for silo in "ab"] == [b"2" * 32, b"3" * 32]
