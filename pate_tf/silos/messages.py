"""What silos and a coordinator send each other, in one process or over the network.

A message is checked where it is built, so what arrives over a wire is checked by building it.
Nothing here may reveal more than was charged: votes are randomized or sealed, and a refusal's
reason comes from the policy and from public values alone.
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

# Votes or feature sums are added up under secret sharing.
SecureMechanism = SecureHistogram | SecureFeatureSums
Mechanism = RandomisedResponse | SecureMechanism
COMMITMENT_BYTES: Final = 32


def sums_query(representation: str, unit: str) -> npt.NDArray[np.uint8]:
    """Returns what a batch of feature sums has as its only query, uint8 `[1, 32]`.

    It stands for what is summed: a silo that would sum something else refuses.

    Args:
        representation: digest of the public encoder, `Encoder.digest`.
        unit: "record" or "owner".
    """
    checks.one_of(("record", "owner"), unit=unit)
    stands_for = hashlib.sha256(f"feature sums {unit} {representation}".encode()).digest()
    return np.frombuffer(stands_for, np.uint8).reshape(1, -1)


def query_digest(query: npt.NDArray[Any]) -> bytes:
    """Returns what a query is known by: SHA-256 of its type, shape and bytes, 32 bytes."""
    header = f"{query.dtype.str}{query.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(query).tobytes()).digest()


class Reason(enum.Enum):
    """Why a silo refuses. Follows from its policy, its ledger's debits and the batch alone."""

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
    """A coordinator's answer to a submission.

    Attributes:
        OK: taken, for the first time.
        SAME: had been taken before, equal to the last byte.
        CONFLICT: another reply had been taken for this batch; it stands.
        LATE: the deadline has passed, or the batch is closed; nothing was taken.
        UNKNOWN: no such run, batch or silo, or the reply does not fit the batch; nothing was taken.
    """

    OK = "ok"
    SAME = "same"
    CONFLICT = "conflict"
    LATE = "late"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class QueryBatch:
    """Public queries that a coordinator asks one silo.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch within the run.
        queries: public inputs, uint8 or float32, `[num_queries, ...]`, finite; of feature sums the
            one of `sums_query`.
        num_classes: number of classes, at least 2.
        mechanism: what each query is charged as. Of one silo alone, a local randomizer; of all
            together, secure aggregation of votes or of feature sums.
        deadline: when the coordinator stops collecting, in seconds since 1970.
        commitment: what the silo sent with its last answer, see `RandomisedVotes.commitment`; None
            for a silo that sent none.
        digests: of each query, see `query_digest`.

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
            raise ValueError(
                f"queries: expected [num_queries, ...], got shape {self.queries.shape}"
            )
        if not np.isfinite(self.queries).all():
            raise ValueError("queries: expected finite numbers, got NaN or infinite ones")
        checks.whole(2, 2**16, num_classes=self.num_classes)
        checks.between(-math.inf, math.inf, deadline=self.deadline)
        if getattr(self.mechanism, "num_classes", self.num_classes) != self.num_classes:
            raise ValueError("mechanism: expected one of the batch's classes, got another")
        _check_commitment(self.commitment)
        object.__setattr__(self, "queries", frozen_view(self.queries))
        object.__setattr__(self, "digests", tuple(map(query_digest, self.queries)))

    @property
    def question(self) -> bytes:
        """What the batch is known by, whenever it is asked: 32 bytes."""
        return digest(dataclasses.replace(self, deadline=0.0, commitment=None))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Reply:
    """What a silo sends on a batch.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch.
        silo: name of the silo.
        commitment: to the last row of the silo's ledger, 32 bytes that reveal nothing of it. The
            coordinator stores the latest and sends it with the next batch; a silo whose ledger
            lacks that row refuses. None for a silo without a ledger on disk.

    Raises ValueError if a value is none that it may be.
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
    """Randomized votes of one silo. They may be sent: each is what `mechanism` drew.

    Attributes:
        labels: int64 `[num_queries]`, at least 0, in the order of the batch's queries.
    """

    labels: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = whole_numbers(self.labels, "votes", num_classes=2**16)
        if labels.ndim != 1 or not labels.size:
            raise ValueError(f"votes: expected [num_queries], got shape {labels.shape}")
        object.__setattr__(self, "labels", labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SealedShares(_Reply):
    """Secret shares of one silo's votes or sums, each sealed to one aggregator.

    Attributes:
        sealed: one for each aggregator, the first one's first.
    """

    sealed: tuple[bytes, ...] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sealed or not all(self.sealed):
            raise ValueError("sealed: expected bytes for each aggregator, got none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal(_Reply):
    """A silo's refusal of a whole batch, by its policy.

    Attributes:
        reason: why; says nothing about the silo's data.
        time: of a refusal that is too late, when it was made by the silo's clock, in seconds since
            1970: a coordinator that still waits sees that the clocks differ.
    """

    reason: Reason
    time: float | None = None


Reply = RandomisedVotes | SealedShares | Refusal


def _check_commitment(commitment: bytes | None) -> None:
    if commitment is not None and len(commitment) != COMMITMENT_BYTES:
        raise ValueError(f"commitment: expected {COMMITMENT_BYTES} bytes or none, got others")


def reply_digest(reply: Reply) -> bytes:
    """Returns what tells two replies apart: SHA-256 of all but commitment and time, 32 bytes.

    A silo that sends a stored reply again may have answered other batches since.
    """
    if isinstance(reply, Refusal):
        reply = dataclasses.replace(reply, time=None)
    return digest(dataclasses.replace(reply, commitment=None))
