"""Messages between silos and a coordinator, in one process or over the network.

The constructor of a message checks its values, so decoded messages are checked too. A message must
not reveal more than the silo's ledger was charged for. So votes are randomized or encrypted, and
the reason for a refusal depends only on the policy, the charges and public values.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, SecureHistogram
from pate_tf.core import checks
from pate_tf.core.checks import IntArray, check_name, frozen_view, whole_numbers
from pate_tf.net.wire_values import digest

# Mechanisms that use secret sharing to add up the silos' votes or feature sums.
SecureMechanism = SecureHistogram | SecureFeatureSums
Mechanism = RandomisedResponse | SecureMechanism
COMMITMENT_BYTES: Final = 32


def sums_query(representation: str, unit: str) -> npt.NDArray[np.uint8]:
    """Returns the query that asks silos for feature sums, uint8 `[1, 32]`.

    The query is a digest of the encoder and the unit of privacy. A silo whose sums use a different
    encoder or unit refuses the query.

    Args:
        representation: digest of the public encoder, `Encoder.digest`.
        unit: the unit of privacy, "record" or "owner".
    """
    checks.one_of(("record", "owner"), unit=unit)
    stands_for = hashlib.sha256(f"feature sums {unit} {representation}".encode()).digest()
    return np.frombuffer(stands_for, np.uint8).reshape(1, -1)


def query_digest(query: npt.NDArray[Any]) -> bytes:
    """Returns the SHA-256 digest (32 bytes) of a query's type, shape and bytes."""
    header = f"{query.dtype.str}{query.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(query).tobytes()).digest()


class Reason(enum.Enum):
    """The reason why a silo refuses a batch of queries.

    The reason depends only on the silo's policy, its earlier charges and the batch.
    """

    MALFORMED = "malformed"
    MECHANISM_NOT_ALLOWED = "mechanism_not_allowed"
    QUERY_TOO_DEAR = "query_too_dear"
    BUDGET_SPENT = "budget_spent"
    DAILY_LIMIT = "daily_limit"
    ANSWERED_OTHERWISE = "answered_otherwise"
    TOO_LATE = "too_late"
    UNKNOWN_COMMITMENT = "unknown_commitment"
    OTHER_SUMS = "other_sums"


class Answer(enum.Enum):
    """The coordinator's response to a reply that a silo submitted.

    Attributes:
        OK: the reply was accepted.
        SAME: an identical reply from this silo was already accepted.
        CONFLICT: a different reply from this silo was already accepted and remains valid.
        LATE: the reply was not accepted, because the deadline has passed or the batch is closed.
        UNKNOWN: the reply was not accepted, because its run, batch or silo is unknown or because
            it does not fit the batch.
    """

    OK = "ok"
    SAME = "same"
    CONFLICT = "conflict"
    LATE = "late"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QueryBatch:
    """A batch of public queries that a coordinator sends to one silo.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch within the run.
        queries: finite public inputs, uint8 or float32, `[num_queries, ...]`; for feature sums, the
            result of `sums_query`.
        num_classes: number of classes, at least 2.
        mechanism: the privacy mechanism for each query, whose cost the silo charges: randomized
            response, or secure aggregation of votes or of feature sums.
        deadline: time at which the coordinator stops collecting replies, in seconds since 1970.
        commitment: the silo's latest commitment to its ledger, see `RandomisedVotes.commitment`;
            None if the silo has not sent a commitment.
        digests: `query_digest` of each query.

    Raises ValueError if a value is out of its range.
    """

    run_id: str
    batch_id: str
    queries: npt.NDArray[Any] = dataclasses.field(repr=False)
    num_classes: int
    mechanism: Mechanism
    deadline: float
    commitment: bytes | None = dataclasses.field(default=None, repr=False)
    digests: tuple[bytes, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.run_id, "run_id")
        check_name(self.batch_id, "batch_id")
        checks.one_of(("|u1", "<f4"), queries=self.queries.dtype.str)
        if self.queries.ndim < 2 or not self.queries.size:
            raise ValueError(f"queries must be [num_queries, ...], got {self.queries.shape}")
        if not np.isfinite(self.queries).all():
            raise ValueError("queries must be finite numbers")
        checks.whole(2, 2**16, num_classes=self.num_classes)
        checks.between(-math.inf, math.inf, deadline=self.deadline)
        if getattr(self.mechanism, "num_classes", self.num_classes) != self.num_classes:
            raise ValueError("mechanism must have the same number of classes as the batch")
        _check_commitment(self.commitment)
        object.__setattr__(self, "queries", frozen_view(self.queries))
        object.__setattr__(self, "digests", tuple(map(query_digest, self.queries)))

    @property
    def question(self) -> bytes:
        """Digest that identifies the batch, 32 bytes; unchanged if the batch is sent again."""
        return digest(dataclasses.replace(self, deadline=0.0, commitment=None))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Reply:
    """A silo's reply to a batch.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch.
        silo: name of the silo.
        commitment: cryptographic commitment to the last row of the silo's ledger, 32 bytes that
            reveal nothing about the row. The coordinator stores the latest commitment and sends it
            with the next batch. A silo refuses the batch if its ledger lacks this row. None for a
            silo without a ledger on disk.

    Raises ValueError if a value is invalid.
    """

    run_id: str
    batch_id: str
    silo: str
    commitment: bytes | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_commitment(self.commitment)
        for name in ("run_id", "batch_id", "silo"):
            check_name(getattr(self, name), name)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RandomisedVotes(_Reply):
    """Votes of one silo, which are safe to send because they were drawn by randomized response.

    Attributes:
        labels: index of the randomly drawn class for each query, int64 `[num_queries]`.
    """

    labels: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = whole_numbers(self.labels, "votes", below=2**16)
        if labels.ndim != 1 or not labels.size:
            raise ValueError(f"votes must have the shape [num_queries], got {labels.shape}")
        object.__setattr__(self, "labels", labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SealedShares(_Reply):
    """Secret shares of one silo's votes or feature sums, each encrypted for one aggregator.

    Attributes:
        sealed: the encrypted shares for each aggregator, in the order of the aggregators' numbers.
    """

    sealed: tuple[bytes, ...] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sealed or not all(self.sealed):
            raise ValueError("sealed must contain an encrypted share for each aggregator")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal(_Reply):
    """A silo's refusal to answer a batch of queries.

    Attributes:
        reason: reason for the refusal, which reveals nothing about the silo's data.
        time: time of the silo's clock in seconds since 1970, if the silo refuses because the
            deadline has passed; None for other reasons. If such a refusal arrives before the
            deadline, the coordinator knows that the clocks differ.
    """

    reason: Reason
    time: float | None = None


Reply = RandomisedVotes | SealedShares | Refusal


def _check_commitment(commitment: bytes | None) -> None:
    if commitment is not None and len(commitment) != COMMITMENT_BYTES:
        raise ValueError(f"commitment must have {COMMITMENT_BYTES} bytes, got {len(commitment)}")


def reply_digest(reply: Reply) -> bytes:
    """Returns the SHA-256 digest (32 bytes) of a reply without `commitment` and `time`.

    The fields `commitment` and `time` may differ when a silo sends a stored reply again, because
    the silo may have answered other batches in the meantime.
    """
    if isinstance(reply, Refusal):
        reply = dataclasses.replace(reply, time=None)
    return digest(dataclasses.replace(reply, commitment=None))
