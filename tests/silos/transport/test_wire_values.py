"""Arrays and messages on the wire: what comes back, and what is refused before it is made."""

import numpy as np
import pytest
from secure_helpers import some_keys, some_terms
from transport_helpers import QUERIES, RUN

from pate_tf.net import arrays
from pate_tf.net.array_pb2 import Array
from pate_tf.silos import silos_pb2 as wire
from pate_tf.silos import wire as conversions
from pate_tf.silos.messages import (
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    SealedShares,
    reply_digest,
)
from pate_tf.silos.secure.protocol import PartyTask, Step, signed

MECHANISMS = [
    {"name": "randomised_response", "epsilon": 0.1},
    {"name": "secure_histogram", "sigma": 40.0, "num_parties": 4, "threshold": 1},
]


@pytest.mark.parametrize(
    "array",
    [
        QUERIES,
        QUERIES.astype(np.float32),
        np.arange(6, dtype=np.int64)[::-2],
        np.arange(6, dtype=">i8").reshape(2, 3),
        np.linspace(0.0, 1.0, 5),
    ],
)
def test_arrays_come_back_and_others_are_not_sent(array):
    message = Array.FromString(arrays.pack(array).SerializeToString())
    back = arrays.unpack(message, "x")
    assert back.shape == array.shape
    assert np.array_equal(back, array)
    assert not back.flags.writeable
    for other in (np.array([None]), np.array(["a"]), np.array([1 + 2j]), np.ones(1, bool)):
        with pytest.raises(ValueError, match="array: expected a type of"):
            arrays.pack(other)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Array(dtype="|O", shape=[1], data=bytes(8)), "a type of"),
        (Array(dtype="O", shape=[1], data=bytes(8)), "a type of"),
        (Array(dtype=">f4", shape=[1], data=bytes(4)), "a type of"),
        (Array(dtype="f4,f4", shape=[1], data=bytes(8)), "a type of"),
        (Array(dtype="<U4", shape=[1], data=bytes(16)), "a type of"),
        (Array(dtype="", shape=[1], data=bytes(16)), "a type of"),
        (Array(dtype="<f4", shape=[], data=bytes(4)), "axes"),
        (Array(dtype="<f4", shape=[1] * 9, data=bytes(4)), "axes"),
        (Array(dtype="<f4", shape=[2], data=bytes(4)), "as many bytes"),
        (Array(dtype="<f4", shape=[1], data=bytes(5)), "as many bytes"),
        (Array(dtype="<f4", shape=[0], data=b""), "as many bytes"),
        (Array(dtype="<f4", shape=[2**62], data=bytes(4)), "as many bytes"),
        # Products that wrap around at 64 bits: 0 and 4 bytes.
        (Array(dtype="<f4", shape=[2**62, 2**62], data=b""), "as many bytes"),
        (
            Array(dtype="<f4", shape=[2**32 + 1, 2**32 - 1, 2**63], data=b""),
            "as many bytes",
        ),
        (Array(dtype="<f4", shape=[1], data=np.float32(np.nan).tobytes()), "finite"),
        (Array(dtype="<f8", shape=[1], data=np.float64(-np.inf).tobytes()), "finite"),
    ],
)
def test_malformed_arrays_are_refused_in_one_line(message, expected):
    with pytest.raises(ValueError, match=expected) as caught:
        arrays.unpack(message, "queries")
    assert str(caught.value).startswith("queries: expected")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one["name"])
@pytest.mark.parametrize("queries", [QUERIES, QUERIES.astype(np.float32)], ids=["bytes", "floats"])
@pytest.mark.parametrize("witness", [None, bytes(range(32))])
def test_batches_come_back(mechanism, queries, witness):
    batch = QueryBatch(
        queries=queries,
        run_id=RUN,
        batch_id="b",
        num_classes=3,
        mechanism=mechanism,
        deadline=1e9,
        witness=witness,
    )
    message = wire.QueryBatch.FromString(conversions.batch_to_wire(batch).SerializeToString())
    back = conversions.batch_of_wire(message)
    assert np.array_equal(back.queries, batch.queries) and back.queries.dtype == queries.dtype
    assert back.digests == batch.digests
    assert dict(back.mechanism) == mechanism
    assert back.witness == witness
    assert (back.run_id, back.batch_id, back.num_classes, back.deadline) == (RUN, "b", 3, 1e9)


NAMES = {"run_id": RUN, "batch_id": "b", "silo": "silo-1"}


@pytest.mark.parametrize(
    "reply",
    [
        RandomisedVotes(**NAMES, labels=np.array([0, 2, 1])),
        SealedShares(**NAMES, sealed=(b"one", b"two")),
        RandomisedVotes(**NAMES, labels=np.array([0, 2, 1]), witness=bytes(range(32))),
        SealedShares(**NAMES, sealed=(b"one", b"two"), witness=bytes(range(32))),
        *(Refusal(**NAMES, reason=reason) for reason in Reason),
    ],
)
def test_replies_come_back(reply):
    message = wire.Reply.FromString(conversions.reply_to_wire(reply).SerializeToString())
    back = conversions.reply_of_wire(message)
    assert reply_digest(back) == reply_digest(reply)
    assert getattr(back, "witness", None) == getattr(reply, "witness", None)


@pytest.mark.parametrize(
    "message",
    [
        wire.Reply(**NAMES),
        wire.Reply(**NAMES, refusal="because"),
        wire.Reply(**NAMES, sealed=wire.SealedShares()),
        wire.Reply(**NAMES, votes=arrays.pack(np.array([0.5]))),
        wire.Reply(**NAMES, votes=arrays.pack(np.array([1])), witness=bytes(31)),
    ],
)
def test_replies_that_are_none_are_refused(message):
    with pytest.raises(ValueError, match="expected"):
        conversions.reply_of_wire(message)


def test_tasks_come_back_with_the_keys_that_a_party_knows():
    keys = some_keys()
    terms = some_terms(keys)
    message = signed(b"content", step=Step.COMMIT, terms=terms, party=1, keys=keys[0])
    task = PartyTask(
        step=Step.REVEAL, terms=terms, sealed={"b": b"2", "a": b"1"}, messages=(message,)
    )
    sent = wire.PartyTask.FromString(conversions.task_to_wire(task).SerializeToString())
    known = {one.identity.name: one.identity for one in keys}
    back = conversions.task_of_wire(sent, known)
    assert back.digest == task.digest and back.messages == task.messages
    assert back.terms.digest == terms.digest
    with pytest.raises(ValueError, match="parties: expected ones that this party knows"):
        conversions.task_of_wire(sent, {"party-1": known["party-1"]})
    sent.step = "open_all"
    with pytest.raises(ValueError, match="open_all"):
        conversions.task_of_wire(sent, known)
