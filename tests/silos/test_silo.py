"""A silo charges before it answers, answers a query once, and refuses without its data."""

import math
import types
import warnings

import numpy as np
import pytest
import skops.io
from silo_helpers import (
    NUM_CLASSES,
    RANDOMISED,
    SECURE,
    FakeSealer,
    batch,
    policy,
    queries,
    silo,
    teacher,
)
from sklearn.tree import DecisionTreeClassifier

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.ledger import LedgerError, SensitiveWarning
from pate_tf.release.noise import SeededNoise
from pate_tf.silos import Silo
from pate_tf.silos.account import SiloAccount
from pate_tf.silos.messages import RandomisedVotes, Reason, Refusal, SealedShares
from pate_tf.silos.wire import reply_to_wire


@pytest.fixture(params=["kept", "simulated"])
def folder(request, tmp_path):
    return tmp_path / "sensitive" if request.param == "kept" else None


def test_the_same_query_is_one_answer_and_one_payment_whatever_the_batch(folder):
    with silo(folder) as one:
        first = one.answer(batch(0, 40, batch_id="b1"))
        assert isinstance(first, RandomisedVotes)
        assert (one.account.num_queries, len(first.labels)) == (40, 40)
        charged = one.account.epsilon()
        again = one.answer(batch(0, 40, batch_id="b1"))
        mixed = one.answer(batch(20, 60, batch_id="b2", run_id="another"))
        doubled = one.answer(
            batch(0, 0, inputs=np.concatenate([queries(5, 9), queries(5, 9)]), batch_id="b3")
        )
        assert np.array_equal(again.labels, first.labels)
        assert np.array_equal(mixed.labels[:20], first.labels[20:])
        assert np.array_equal(doubled.labels, np.tile(first.labels[5:9], 2))
        assert one.account.num_queries == 60
        assert one.account.epsilon() > charged


def test_answers_are_noisy_by_the_randomiser_and_stay_over_restarts(tmp_path):
    with silo(tmp_path, epsilon_budget=5_000.0) as one:
        first = one.answer(batch(0, 4000)).labels
        right = (first == teacher(queries(0, 4000))).mean()
    kept = RandomisedResponse(num_classes=NUM_CLASSES, epsilon=1.0).kept
    assert abs(right - kept) < 6 * math.sqrt(kept * (1 - kept) / 4000)  # false alarm 2e-9
    with silo(tmp_path, epsilon_budget=5_000.0) as again:
        assert again.account.num_queries == 4000
        assert np.array_equal(again.answer(batch(0, 4000, batch_id="later")).labels, first)
        assert again.account.num_queries == 4000
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
        assert one.account.num_queries == 5
        assert isinstance(one.answer(batch(5, 7, batch_id="d")), RandomisedVotes)
        assert refused(one.answer(batch(7, 8, batch_id="e"))) is Reason.BUDGET_SPENT
        assert np.array_equal(one.answer(batch(0, 5, batch_id="f")).labels, first.labels)
        assert one.account.epsilon() <= 7.0


@pytest.mark.parametrize(
    ("asked", "changes", "reason"),
    [
        ({"mechanism": {**RANDOMISED, "epsilon": 5.0}}, {}, Reason.QUERY_TOO_DEAR),
        ({"mechanism": {**RANDOMISED, "epsilon": 41.0}}, {}, Reason.MALFORMED),
        ({"mechanism": {**RANDOMISED, "epsilon": 1e-30}}, {}, Reason.MALFORMED),
        ({"mechanism": {**SECURE, "threshold": 2}}, {}, Reason.MALFORMED),
        ({}, {"allowed": ("secure_histogram",)}, Reason.MECHANISM_NOT_ALLOWED),
        ({"mechanism": SECURE}, {}, Reason.MECHANISM_NOT_ALLOWED),  # no sealer
        ({"num_classes": 4}, {}, Reason.MALFORMED),
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
        assert one.account.num_queries == 0


def test_refusals_are_the_same_for_any_data(folder, tmp_path):
    """The same history of batches, two silos that hold different data: the same refusals."""
    histories = []
    for place, model in enumerate([teacher, lambda inputs: np.zeros(len(inputs), np.int64)]):
        own = None if folder is None else tmp_path / str(place)
        name = f"clinic-{place}"
        with silo(own, model=model, silo=name, epsilon_budget=30.0, queries_per_day=25) as one:
            asked = [batch(9 * n % 40, 9 * n % 40 + 11, batch_id=f"b{n}") for n in range(8)]
            replies = [one.answer(each) for each in asked]
            histories.append([getattr(each, "reason", None) for each in replies])
            histories.append(one.account.num_queries)
    assert histories[:2] == histories[2:]
    assert Reason.DAILY_LIMIT in histories[0]


def test_a_query_that_was_answered_otherwise_is_not_answered_again(folder):
    with silo(folder, sealer=FakeSealer()) as one:
        one.answer(batch(0, 5))
        cheaper = batch(4, 9, mechanism={**RANDOMISED, "epsilon": 0.5}, batch_id="c")
        assert refused(one.answer(cheaper)) is Reason.ANSWERED_OTHERWISE
        shared = batch(4, 9, mechanism=SECURE, batch_id="d")
        assert refused(one.answer(shared)) is Reason.ANSWERED_OTHERWISE
        assert one.account.num_queries == 5


def test_sealed_shares_are_of_one_batch(folder):
    with silo(folder, sealer=FakeSealer()) as one:
        asked = batch(0, 6, mechanism=SECURE)
        first = one.answer(asked)
        assert isinstance(first, SealedShares) and len(first.sealed) == SECURE["num_parties"]
        assert one.answer(asked).sealed == first.sealed
        assert one.account.num_queries == 6
        # The parties would draw fresh noise for the same votes.
        again = batch(5, 9, mechanism=SECURE, batch_id="c")
        assert refused(one.answer(again)) is Reason.ANSWERED_OTHERWISE
        randomised = batch(5, 9, batch_id="d")
        assert refused(one.answer(randomised)) is Reason.ANSWERED_OTHERWISE
        twice = batch(0, 0, inputs=np.repeat(queries(20, 22), 2, axis=0), mechanism=SECURE)
        assert refused(one.answer(twice)) is Reason.MALFORMED
        assert one.account.num_queries == 6
    if folder is not None:
        with silo(folder, sealer=FakeSealer()) as later:
            assert later.answer(asked).sealed == first.sealed


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
    lambda inputs: np.full((len(inputs), NUM_CLASSES), np.nan),
]


@pytest.mark.parametrize("model", FAILING)
@pytest.mark.parametrize("mechanism", [RANDOMISED, SECURE], ids=lambda one: one["name"])
def test_whether_a_silo_answers_does_not_depend_on_its_teacher(model, mechanism):
    """An answer or none would be an output that is charged as nothing."""
    asked = batch(0, 200, mechanism=mechanism)
    sealed, sizes = [], []
    for given in (teacher, model):
        sealer = FakeSealer()
        sealer.seal = lambda votes, batch, silo: sealed.append(votes) or [bytes(9)] * 4
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with silo(None, model=given, sealer=sealer, noise=SeededNoise(1)) as one:
                reply = one.answer(asked)
        assert not isinstance(reply, Refusal)
        assert one.account.num_queries == 200
        sizes.append(reply_to_wire(reply).ByteSize())
        assert (given is model) == bool(warned)
        assert not any("4711" in str(one.message) for one in warned)
    assert sizes[0] == sizes[1]
    if mechanism is SECURE:
        assert np.array_equal(sealed[1], np.zeros(200))


def test_a_teacher_that_fails_on_some_queries_votes_on_the_others():
    def sometimes(inputs):
        scores = np.eye(NUM_CLASSES)[teacher(inputs)]
        scores[::3, 1] = np.inf
        return scores

    certain = {**RANDOMISED, "epsilon": 40.0}  # another vote leaves with probability 2e-17
    with pytest.warns(SensitiveWarning, match="^sensitive, .* teacher: expected a label 0 to 4 of"):
        one = silo(None, model=sometimes, most_epsilon_per_query=40.0, epsilon_budget=1e9)
        labels = one.answer(batch(0, 30, mechanism=certain)).labels
    expected = teacher(queries(0, 30))
    expected[::3] = 0
    assert np.array_equal(labels, expected)


def test_scores_labels_objects_classifiers_and_their_files_are_teachers(tmp_path):
    inputs, asked = queries(0, 40), batch(0, 40)
    tree = DecisionTreeClassifier(random_state=0).fit(inputs, teacher(inputs))
    skops.io.dump(tree, tmp_path / "tree.skops")
    scores = types.SimpleNamespace(predict=lambda inputs: np.eye(NUM_CLASSES)[teacher(inputs)])
    with silo(None, noise=SeededNoise(1)) as expected:
        labels = expected.answer(asked).labels
    for model in (tree, tmp_path / "tree.skops", scores, lambda each: teacher(each).astype(float)):
        with silo(None, model=model, noise=SeededNoise(1)) as one:
            assert np.array_equal(one.answer(asked).labels, labels)
    (tmp_path / "wrong.pkl").write_bytes(b"")
    for model, expected in (
        (tmp_path / "wrong.pkl", r"SavedModel's folder, a \.skops"),
        (7, "teacher: expected a function"),
    ):
        with pytest.raises(ValueError, match=expected):
            silo(None, model=model)
    with pytest.raises(ValueError, match="num_classes"):
        Silo(policy(), tree, folder=None)


def test_an_account_is_of_one_silo_and_remembers_that_its_budget_was_raised(tmp_path):
    with silo(tmp_path) as one:
        one.answer(batch(0, 3))
    with pytest.raises(LedgerError, match="another silo's"):
        silo(tmp_path, silo="school")
    with silo(tmp_path, epsilon_budget=10.0) as lowered:
        assert not lowered.account.was_raised
    with silo(tmp_path, epsilon_budget=20.0) as raised:
        assert raised.account.was_raised
        assert raised.account.num_queries == 3
    with silo(tmp_path, epsilon_budget=10.0) as lowered:
        assert lowered.account.was_raised


def test_labels_of_queries_that_nobody_paid_for_are_not_stored():
    account = SiloAccount(None, silo="clinic", epsilon_budget=1.0, delta=1e-6)
    with pytest.raises(LedgerError, match="that were charged"):
        account.store_labels({bytes(32): 1})
    with pytest.raises(LedgerError, match="charged batch"):
        account.store_sealed("b", [b"1"])
