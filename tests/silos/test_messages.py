"""Messages are checked where they are built; nothing else may come in."""

import hashlib
import math

import numpy as np
import pytest
from silo_helpers import RANDOMISED, SECURE, batch, queries

from pate_tf.silos.messages import (
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    SealedShares,
    query_digest,
    reply_digest,
)

NAMES = {"run_id": "r", "batch_id": "b", "silo": "clinic"}


def test_digests_are_of_type_shape_and_bytes():
    query = np.array([1.0, 2.0], np.float32)
    expected = hashlib.sha256(b"<f4(2,)" + query.tobytes()).digest()
    assert query_digest(query) == expected
    others = [query.reshape(2, 1), query.view(np.uint8), np.array([1.0, 2.0000002], np.float32)]
    assert len({query_digest(one) for one in [query, *others]}) == 4
    transposed = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    plain = np.ascontiguousarray(transposed)
    assert [*map(query_digest, transposed)] == [*map(query_digest, plain)]


BAD_QUERIES = [
    np.array([[math.nan]], np.float32),
    np.array([[math.inf]], np.float32),
    np.array([["a"]]),
    np.array([[None]], object),
    np.zeros((0, 4), np.float32),
    np.zeros((3, 0), np.float32),
    np.zeros(3, np.float32),
    np.zeros((2, 2), np.float64),
    np.zeros((2, 2), np.int64),
    np.zeros((2, 2), ">f4"),
    [[1.0]],
]


@pytest.mark.parametrize("bad", BAD_QUERIES, ids=range(len(BAD_QUERIES)))
def test_queries_that_are_none(bad):
    with pytest.raises(ValueError, match="queries: expected"):
        batch(0, 0, inputs=bad)


def test_a_batch_may_not_lie_about_its_queries():
    honest = batch(0, 3)
    for digests in (honest.digests[::-1], honest.digests[:2], (bytes(32),) * 3):
        with pytest.raises(ValueError, match="digests"):
            QueryBatch(
                run_id="r",
                batch_id="b",
                queries=honest.queries,
                digests=digests,
                num_classes=5,
                mechanism=RANDOMISED,
                deadline=0.0,
            )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"run_id": ""}, "run_id"),
        ({"batch_id": "a" * 65}, "batch_id"),
        ({"num_classes": 1}, "num_classes"),
        ({"num_classes": True}, "num_classes"),
        ({"deadline": math.nan}, "deadline"),
        ({"mechanism": {"name": "plain"}}, "mechanism"),
        ({"mechanism": {"name": ["x"]}}, "mechanism"),
        ({"mechanism": {"name": "randomised_response"}}, "parameters"),
        ({"mechanism": {**RANDOMISED, "sigma": 1.0}}, "parameters"),
        ({"mechanism": {**RANDOMISED, "epsilon": math.inf}}, "positive"),
        ({"mechanism": {**RANDOMISED, "epsilon": "1"}}, "number"),
        ({"mechanism": {**RANDOMISED, "epsilon": -1.0}}, "positive"),
        ({"mechanism": {**SECURE, "num_parties": 3.5}}, "whole"),
    ],
)
def test_batches_that_are_none(changes, match):
    with pytest.raises(ValueError, match=match):
        batch(0, 2, **changes)


def test_what_was_checked_can_not_be_changed():
    one = batch(0, 2)
    with pytest.raises(ValueError, match="read-only"):
        one.queries[0, 0] = 9.0
    with pytest.raises(TypeError):
        one.mechanism["epsilon"] = 9.0
    assert len(one) == 2


def test_replies_that_are_none():
    for labels in ([0.5], [-1], [], [[1]], [2**16]):
        with pytest.raises(ValueError, match="votes"):
            RandomisedVotes(**NAMES, labels=np.array(labels))
    for sealed in ((), ("text",), (b"",)):
        with pytest.raises(ValueError, match="sealed"):
            SealedShares(**NAMES, sealed=sealed)
    with pytest.raises(ValueError, match="reason"):
        Refusal(**NAMES, reason="because")
    with pytest.raises(ValueError, match="silo"):
        RandomisedVotes(**{**NAMES, "silo": "a b"}, labels=np.array([1]))


def test_any_change_of_a_reply_is_another_reply():
    replies = [
        RandomisedVotes(**NAMES, labels=np.array([1, 2])),
        RandomisedVotes(**NAMES, labels=np.array([1, 3])),
        RandomisedVotes(**{**NAMES, "batch_id": "c"}, labels=np.array([1, 2])),
        SealedShares(**NAMES, sealed=(b"ab", b"c")),
        SealedShares(**NAMES, sealed=(b"a", b"bc")),
        *(Refusal(**NAMES, reason=reason) for reason in Reason),
    ]
    assert len({reply_digest(one) for one in replies}) == len(replies)
    assert reply_digest(replies[0]) == reply_digest(
        RandomisedVotes(**NAMES, labels=np.array([1.0, 2.0]))
    )


def test_no_text_shows_votes_or_queries():
    shown = repr(RandomisedVotes(**NAMES, labels=np.array([31, 41]))) + repr(
        batch(27, 29, deadline=5.0)
    )
    for hidden in ("31", "41", "27", str(queries(27, 28)[0, 0])):
        assert hidden not in shown
