"""Messages as bytes: decoded values, and refusals before anything is built from them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silo_helpers import RANDOMISED, SECURE, batch

from pate_tf.net.wire_values import decode, encode
from pate_tf.silos.messages import (
    QueryBatch,
    RandomisedVotes,
    Reason,
    Refusal,
    Reply,
    SealedShares,
    reply_digest,
)
from pate_tf.silos.protocol import Step


@dataclasses.dataclass(frozen=True)
class Inner:
    number: float
    content: bytes


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int
    step: Step
    inner: tuple[Inner, ...]
    named: Mapping[str, bytes]
    pair: tuple[int, str]
    array: npt.NDArray[Any]
    either: str | Inner | None


OUTER = Outer(
    3,
    Step.MASK,
    (Inner(1, b"abc"), Inner(-0.5, b"")),
    {"a": b"1", "b": b"22"},
    (7, "x"),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    Inner(2.0, b"z"),
)


@pytest.mark.parametrize("either", [None, "text", Inner(1e300, b"z")])
def test_messages_come_back(either):
    message = dataclasses.replace(OUTER, either=either)
    back = decode(Outer | None, encode(message))
    assert np.array_equal(back.array, message.array) and not back.array.flags.writeable
    assert dataclasses.replace(back, array=message.array) == message
    assert decode(Outer | None, encode(None)) is None
    # Equal values have equal bytes: digests of terms rely on it.
    assert encode(dataclasses.replace(message, inner=(Inner(1.0, b"abc"), Inner(-0.5, b"")))) == (
        encode(message)
    )


@settings(max_examples=300)
@given(st.data())
def test_any_other_bytes_are_refused_in_one_line_or_are_another_message(data):
    content = bytearray(encode(OUTER))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for changed in (bytes(content), bytes(content[:cut]), bytes(content) + b"x"):
        try:
            decode(Outer, changed)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 200


def header(value: object, content: bytes = b"") -> bytes:
    return written(json.dumps(value).encode(), content)


def written(text: bytes, content: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "big") + text + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (2**64 - 1).to_bytes(8, "big"),
        (10**6).to_bytes(8, "big") + b"[" * 10**6,
        header({"type": "Inner", "number": float("nan"), "content": 0}),
        header({"type": "Inner", "number": 10**400, "content": 0}),
        header({"type": "Inner", "number": True, "content": 0}),
        header({"type": "Inner", "number": 1.0, "content": 2}, b"x"),
        header({"type": "Inner", "number": 1.0, "content": -1}, b"x"),
        header({"type": "Inner", "number": 1.0, "content": 0}, b"x"),
        header({"type": "Inner", "number": 1.0}),
        header({"type": "Outer", "number": 1.0, "content": 0}),
        header({"type": "Inner", "number": 1.0, "content": 0, "more": 1}),
        written(b'{"type": "Inner", "number": 2.0, "number": 1.0, "content": 0}'),
    ],
)
def test_malformed_messages_are_refused(content):
    with pytest.raises(ValueError, match="not a message of the protocol"):
        decode(Inner, content)


@pytest.mark.parametrize(
    ("dtype", "shape", "content"),
    [
        *((dtype, [1], bytes(8)) for dtype in ("|O", "O", ">f4", "f4,f4", "<U2", "", None, 5)),
        ("<f4", [], bytes(4)),
        ("<f4", [1] * 9, bytes(4)),
        ("<f4", [2], bytes(4)),
        ("<f4", [0], b""),
        ("<f4", [-1, -1], bytes(4)),
        ("<f4", [1.0], bytes(4)),
        ("<f4", [2**62], bytes(4)),
        # Products that wrap around at 64 bits: 0 and 4 bytes.
        ("<f4", [2**62, 2**62], b""),
        ("<f4", [2**32 + 1, 2**32 - 1, 2**63], b""),
        ("<f4", [1], np.float32(np.nan).tobytes()),
        ("<f8", [1], np.float64(-np.inf).tobytes()),
    ],
)
def test_malformed_arrays_are_refused(dtype, shape, content):
    message = header({"dtype": dtype, "shape": shape, "data": len(content)}, content)
    with pytest.raises(ValueError, match=r"array|not a message") as caught:
        decode(npt.NDArray[Any], message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mechanism", [RANDOMISED, SECURE], ids=lambda each: each.name)
@pytest.mark.parametrize("commitment", [None, bytes(range(32))])
def test_batches_come_back(mechanism, commitment):
    request = batch(0, 4, mechanism=mechanism, commitment=commitment)
    back = decode(QueryBatch, encode(request))
    assert np.array_equal(back.queries, request.queries)
    assert back.mechanism == mechanism and type(back.mechanism) is type(mechanism)
    for name in ("digests", "commitment", "run_id", "batch_id", "num_classes", "deadline"):
        assert getattr(back, name) == getattr(request, name)
    with pytest.raises(ValueError, match="read-only"):
        back.queries[0, 0] = 9.0


NAMES = {"run_id": "r", "batch_id": "b", "silo": "clinic"}
REPLIES = [
    RandomisedVotes(**NAMES, labels=np.array([1, 2])),
    RandomisedVotes(**NAMES, labels=np.array([1, 3])),
    RandomisedVotes(**{**NAMES, "batch_id": "c"}, labels=np.array([1, 2])),
    SealedShares(**NAMES, sealed=(b"ab", b"c")),
    SealedShares(**NAMES, sealed=(b"a", b"bc")),
    *(Refusal(**NAMES, reason=reason) for reason in Reason),
]


def test_replies_come_back_and_any_change_is_another_reply():
    for reply in REPLIES:
        with_commitment = dataclasses.replace(reply, commitment=bytes(range(32)))
        back = decode(Reply, encode(with_commitment))
        assert back.commitment == with_commitment.commitment
        # another commitment cannot be used as another reply
        assert reply_digest(back) == reply_digest(reply)
    assert len(set(map(reply_digest, REPLIES))) == len(REPLIES)
