"""A silo charges before it answers, answers a query once, and refuses without using its data."""

import dataclasses
import math
import time
import types
import warnings

import numpy as np
import pytest
from silo_helpers import (
    NUM_CLASSES,
    RANDOMISED,
    SECURE,
    batch,
    policy,
    pool,
    queries,
    silo,
    spent,
    teacher,
)

from benchmarks.mechanism_audit import epsilon_lower_bound
from pate_tf.accounting.local import RandomisedResponse
from pate_tf.ledger import SensitiveWarning
from pate_tf.net.wire_values import encode
from pate_tf.release.noise import SeededNoise
from pate_tf.silos import Asking, Coordinator, Member, Silo, SiloRoster, SiloTeacher, sealing
from pate_tf.silos.messages import RandomisedVotes, Reason, Refusal, SealedShares


@pytest.fixture(params=["kept", "simulated"])
def folder(request, tmp_path):
    return tmp_path / "sensitive" if request.param == "kept" else None


def test_the_same_query_is_one_answer_and_one_payment_whatever_the_batch(folder):
    with silo(folder) as one:
        first = one.answer(batch(0, 40, batch_id="b1"))
        assert isinstance(first, RandomisedVotes)
        assert (one.account.charges.total(), len(first.labels)) == (40, 40)
        charged = spent(one)
        again = one.answer(batch(0, 40, batch_id="b1"))
        mixed = one.answer(batch(20, 60, batch_id="b2", run_id="another"))
        doubled = one.answer(
            batch(0, 0, inputs=np.concatenate([queries(5, 9), queries(5, 9)]), batch_id="b3")
        )
        assert np.array_equal(again.labels, first.labels)
        assert np.array_equal(mixed.labels[:20], first.labels[20:])
        assert np.array_equal(doubled.labels, np.tile(first.labels[5:9], 2))
        assert one.account.charges.total() == 60
        assert spent(one) > charged


def test_answers_are_noisy_by_the_randomiser_and_stay_over_restarts(tmp_path):
    with silo(tmp_path, epsilon_budget=5_000.0) as one:
        first = one.answer(batch(0, 4000)).labels
        right = (first == teacher(queries(0, 4000))).mean()
    kept = RandomisedResponse(num_classes=NUM_CLASSES, epsilon=1.0).kept
    assert abs(right - kept) < 6 * math.sqrt(kept * (1 - kept) / 4000)  # false alarm 2e-9
    with silo(tmp_path, epsilon_budget=5_000.0) as again:
        assert again.account.charges.total() == 4000
        assert np.array_equal(again.answer(batch(0, 4000, batch_id="later")).labels, first)
        assert again.account.charges.total() == 4000
    for path in [tmp_path, *tmp_path.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0


def refused(reply):
    assert isinstance(reply, Refusal)
    return reply.reason


def test_it_stops_at_its_budget_and_still_gives_what_was_paid(folder):
    # Basic composition: 7 answers of epsilon 1 at a tiny delta.
    with silo(folder, epsilon_budget=7.0, delta=1e-12) as one:
        first = one.answer(batch(0, 5))
        assert refused(one.answer(batch(3, 9, batch_id="c"))) is Reason.BUDGET_SPENT
        assert one.account.charges.total() == 5
        assert isinstance(one.answer(batch(5, 7, batch_id="d")), RandomisedVotes)
        assert refused(one.answer(batch(7, 8, batch_id="e"))) is Reason.BUDGET_SPENT
        assert np.array_equal(one.answer(batch(0, 5, batch_id="f")).labels, first.labels)
        assert spent(one) <= 7.0


@pytest.mark.parametrize(
    ("asked", "changes", "reason"),
    [
        ({"mechanism": dataclasses.replace(RANDOMISED, epsilon=5.0)}, {}, Reason.QUERY_TOO_DEAR),
        ({}, {"allowed": ("secure_histogram",)}, Reason.MECHANISM_NOT_ALLOWED),
        ({"mechanism": SECURE}, {"roster": None}, Reason.MECHANISM_NOT_ALLOWED),
        ({"num_classes": 4, "mechanism": SECURE}, {}, Reason.MALFORMED),
        ({"inputs": np.zeros((2, 5), np.float32)}, {}, Reason.MALFORMED),
        ({"deadline": 1.0}, {}, Reason.TOO_LATE),
        ({}, {"queries_per_day": 3}, Reason.DAILY_LIMIT),
    ],
)
def test_refusals_cost_nothing_and_never_look_at_the_data(folder, asked, changes, reason):
    def explosive(inputs):
        raise AssertionError("a refusal looked at the teacher")

    with silo(folder, model=explosive, **changes) as one:
        assert refused(one.answer(batch(0, 4, **asked))) is reason
        assert one.account.charges.total() == 0


def test_a_clock_that_is_ahead_is_named_at_both_ends(folder):
    events = []
    now = time.time()
    with silo(folder, clock=lambda: now + 900.0) as one:
        members = (Member(name=one.name),)

        def waiting(event):
            events.append(event)
            if event.startswith("waiting"):
                coordinator.journal.submit(one.answer(coordinator.journal.poll(one.name)))

        coordinator = Coordinator(
            SiloRoster(run="r", delta=1e-6, members=members),
            folder=None,
            asking=Asking(seconds=600.0),
            on_event=waiting,
            clock=lambda: now,
        )
        with coordinator:
            assert coordinator.ask(pool(9), np.arange(4)).num_answered == 0
        assert events[-1] == (
            "replies of silos: 1 refused: too_late; the clock of clinic is at least 300 seconds "
            "ahead of the clock of this machine. Set both clocks by NTP."
        )
        assert "the deadline passed 300 seconds ago. If the coordinator still" in one.refusal
        assert one.account.charges.total() == 0


def test_a_query_that_was_answered_otherwise_is_not_answered_again(folder):
    with silo(folder) as one:
        one.answer(batch(0, 5))
        cheaper = batch(4, 9, mechanism=dataclasses.replace(RANDOMISED, epsilon=0.5), batch_id="c")
        assert refused(one.answer(cheaper)) is Reason.ANSWERED_OTHERWISE
        shared = batch(4, 9, mechanism=SECURE, batch_id="d")
        assert refused(one.answer(shared)) is Reason.ANSWERED_OTHERWISE
        assert one.account.charges.total() == 5


def test_sealed_shares_are_of_one_batch(folder):
    with silo(folder) as one:
        request = batch(0, 6, mechanism=SECURE)
        first = one.answer(request)
        assert isinstance(first, SealedShares) and len(first.sealed) == SECURE.num_parties
        assert one.answer(request).sealed == first.sealed
        assert one.account.charges.total() == 6
        # The aggregators would draw fresh noise for the same votes.
        again = batch(5, 9, mechanism=SECURE, batch_id="c")
        assert refused(one.answer(again)) is Reason.ANSWERED_OTHERWISE
        randomised = batch(5, 9, batch_id="d")
        assert refused(one.answer(randomised)) is Reason.ANSWERED_OTHERWISE
        twice = batch(0, 0, inputs=np.repeat(queries(20, 22), 2, axis=0), mechanism=SECURE)
        assert refused(one.answer(twice)) is Reason.MALFORMED
        assert one.account.charges.total() == 6
    if folder is not None:
        with silo(folder) as later:
            assert later.answer(request).sealed == first.sealed


def failing(inputs):
    raise RuntimeError("patient 4711 has it")


FAILING = [
    failing,
    lambda inputs: "x",
    lambda inputs: [[1], [2, 3]],
    lambda inputs: np.ones(len(inputs) + 1, np.int64),
    lambda inputs: np.full(len(inputs), 2.5),
    lambda inputs: np.full(len(inputs), np.nan),
    lambda inputs: np.full(len(inputs), NUM_CLASSES),
    lambda inputs: np.full(len(inputs), -1),
    types.SimpleNamespace(predict=failing),
]


@pytest.mark.parametrize("model", FAILING)
@pytest.mark.parametrize("mechanism", [RANDOMISED, SECURE], ids=lambda each: each.name)
def test_whether_a_silo_answers_does_not_depend_on_its_teacher(model, mechanism, monkeypatch):
    """Whether it answers would otherwise be an output without a charge."""
    query_batch, voted, sizes = batch(0, 200, mechanism=mechanism), [], []
    honest = sealing.seal_votes
    monkeypatch.setattr(
        sealing,
        "seal_votes",
        lambda votes, terms, silo: voted.append(votes) or honest(votes, terms, silo=silo),
    )
    for content in (teacher, model):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with silo(None, model=content, noise=SeededNoise(1)) as answering:
                reply = answering.answer(query_batch)
        assert not isinstance(reply, Refusal)
        assert answering.account.charges.total() == 200
        sizes.append(len(encode(reply)))
        assert (content is model) == any(each.category is SensitiveWarning for each in warned)
        assert not any("4711" in str(each.message) for each in warned)
    assert sizes[0] == sizes[1]
    if mechanism is SECURE:
        assert np.array_equal(voted[1], np.zeros(200))


# False-alarm probability of one audit: its lower bound is above the epsilon of the drawn law.
FALSE_ALARM = 1e-7
AUDITED = RandomisedResponse(num_classes=10, epsilon=1.0)


def audited(number):
    """Returns a lower bound on the epsilon of an answer, from this many answers of two constant
    teachers.
    """
    counts = []
    for vote in (3, 7):
        inputs = np.arange(number, dtype=np.float32)[:, np.newaxis]
        request = batch(0, 0, inputs=inputs, mechanism=AUDITED, num_classes=10)
        model = SiloTeacher(lambda inputs, vote=vote: np.full(len(inputs), vote), num_classes=10)
        limits = policy(epsilon_budget=1e9, queries_per_day=number, most_per_batch=number)
        with Silo(limits, model, folder=None) as answering:
            counts.append(np.bincount(answering.answer(request).labels, minlength=10))
            assert answering.account.charges == {AUDITED: number}
    confidence = 1.0 - FALSE_ALARM / 20
    bounds = epsilon_lower_bound(counts, counts[::-1], number, delta=0.0, confidence=confidence)
    return bounds.max()


@pytest.mark.parametrize("number", [40_000, pytest.param(500_000, marks=pytest.mark.long)])
def test_no_more_leaks_than_is_charged_and_half_the_noise_is_noticed(monkeypatch, number):
    # Six standard deviations of the smaller one of two frequencies; the other is larger.
    slack = 12.0 / math.sqrt(number * AUDITED.other)
    assert AUDITED.epsilon - slack <= audited(number) <= AUDITED.epsilon
    twice = dataclasses.replace(AUDITED, epsilon=2.0).threshold
    monkeypatch.setattr(RandomisedResponse, "threshold", twice)
    assert audited(number) > AUDITED.epsilon
