"""What silos and a coordinator send each other, in one process or over the network.

A message is checked where it is built, so what arrives over a wire is checked by building it.
Nothing here may reveal more than was charged: votes are randomised or sealed, and a refusal's
reason comes from the policy and from public values alone.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.local import (
    LOCAL_RANDOMISERS,
    SILO_CHARGES,
    RandomisedResponse,
    SecureFeatureSums,
    SecureHistogram,
    silo_charge_from_dict,
)
from pate_tf.core import validation
from pate_tf.core.validation import IntArray, check_name, frozen_view, labels_array

RANDOMISED_RESPONSE: Final = RandomisedResponse.name
SECURE_HISTOGRAM: Final = SecureHistogram.name
SECURE_FEATURE_SUMS: Final = SecureFeatureSums.name
SHARED: Final = (SECURE_HISTOGRAM, SECURE_FEATURE_SUMS)  # what is shared among parties


def sums_query(representation: str, unit: str) -> npt.NDArray[np.uint8]:
    """Returns what a batch of feature sums has as its only query, uint8 `[1, 32]`.

    It stands for what is summed: a silo that would sum something else refuses.

    Args:
        representation: digest of the public encoder, `Encoder.digest`.
        unit: "record" or "owner".
    """
    validation.one_of(("record", "owner"), unit=unit)
    digest = hashlib.sha256(f"feature sums {unit} {representation}".encode()).digest()
    return np.frombuffer(digest, np.uint8).reshape(1, -1)


def query_digest(query: npt.NDArray[Any]) -> bytes:
    """Returns what a query is known by: SHA-256 of its type, shape and bytes, 32 bytes."""
    digest = hashlib.sha256(f"{query.dtype.str}{query.shape}".encode())
    digest.update(np.ascontiguousarray(query).tobytes())
    return digest.digest()


def checked_mechanism(mechanism: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the mechanism of a batch as a mapping that can't be written.

    Args:
        mechanism: a name of `SILO_CHARGES`, and exactly the parameters of that charge but its
            number of classes.

    Raises:
        ValueError: if the name is unknown, or a parameter is missing, unknown or not a positive
            finite number.
    """
    values = dict(mechanism)
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in SILO_CHARGES:
        raise ValueError(
            f"mechanism: expected one of {', '.join(sorted(SILO_CHARGES))}, got {str(name)[:40]}"
        )
    fields = dataclasses.fields(SILO_CHARGES[name])  # type: ignore[arg-type]
    types = {field.name: field.type for field in fields if field.name != "num_classes"}
    if set(values) != set(types):
        raise ValueError(f"mechanism {name}: expected the parameters {sorted(types)}, got others")
    for parameter, kind in types.items():
        value, is_whole = values[parameter], kind in (int, "int")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf or (is_whole and value != int(value)):
            expected = "whole number" if is_whole else "number"
            raise ValueError(f"mechanism {name}: expected {parameter} as a positive {expected}")
        values[parameter] = int(value) if is_whole else float(value)
    return MappingProxyType({"name": name, **values})


def charge_of(mechanism: Mapping[str, Any], num_classes: int) -> Charge:
    """Returns what one query is charged as.

    Raises ValueError if the mechanism is none, or a parameter is out of its range.
    """
    fields = dict(mechanism)
    if fields.get("name") in LOCAL_RANDOMISERS:
        fields["num_classes"] = num_classes
    return silo_charge_from_dict(fields)


WITNESS_BYTES: Final = 32


class Reason(enum.Enum):
    """Why a silo refuses. Follows from its policy, its account's debits and the batch alone."""

    MALFORMED = "malformed"
    MECHANISM_NOT_ALLOWED = "mechanism_not_allowed"
    QUERY_TOO_DEAR = "query_too_dear"
    BUDGET_SPENT = "budget_spent"
    DAILY_LIMIT = "daily_limit"
    ANSWERED_OTHERWISE = "answered_otherwise"
    TOO_LATE = "too_late"
    UNKNOWN_WITNESS = "unknown_witness"
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
        queries: public inputs, uint8 or float32, `[num_queries, ...]`, finite.
        digests: of each query, see `query_digest`; checked against the queries where they are
            given.
        num_classes: number of classes, at least 2.
        mechanism: `name` and parameters. Of one silo alone: `randomised_response` or
            `truncated_geometric` with `epsilon` (per query, for this silo). Of all together:
            `secure_histogram` with `sigma` (votes), `num_parties` and `threshold` (parties that may
            pool what they know), and `secure_feature_sums` with its charge's fields, whose one
            query is that of `sums_query`.
        deadline: when the coordinator stops collecting, in seconds since 1970.
        witness: what the silo sent with its last answer, see `RandomisedVotes.witness`; None for a
            silo that sent none.
    """

    run_id: str
    batch_id: str
    queries: npt.NDArray[Any] = dataclasses.field(repr=False)
    num_classes: int
    mechanism: Mapping[str, Any]
    deadline: float
    digests: tuple[bytes, ...] = dataclasses.field(default=None, repr=False)  # type: ignore[arg-type]
    witness: bytes | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of its range or a digest is not its query's."""
        check_name(self.run_id, "run_id")
        check_name(self.batch_id, "batch_id")
        if not isinstance(self.queries, np.ndarray):
            raise ValueError(f"queries: expected an array, got {type(self.queries).__name__}")
        validation.one_of(("|u1", "<f4"), queries=self.queries.dtype.str)
        if self.queries.ndim < 2 or not self.queries.size:
            raise ValueError(
                f"queries: expected [num_queries, ...], got shape {self.queries.shape}"
            )
        validation.finite(queries=self.queries)
        digests = tuple(query_digest(query) for query in self.queries)
        if self.digests is not None and tuple(self.digests) != digests:
            raise ValueError("digests: expected one of each query, in their order, got others")
        validation.whole(2, 2**16, num_classes=self.num_classes)
        validation.between(-math.inf, math.inf, deadline=self.deadline)
        _check_witness(self.witness)
        object.__setattr__(self, "queries", frozen_view(self.queries))
        object.__setattr__(self, "digests", digests)
        object.__setattr__(self, "mechanism", checked_mechanism(self.mechanism))

    def __len__(self) -> int:
        return len(self.queries)

    def charge(self) -> Charge:
        """Returns what one query is charged as.

        Raises ValueError if a parameter of the mechanism is out of its range.
        """
        return charge_of(self.mechanism, self.num_classes)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Reply:
    """What a silo sends on a batch.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch.
        silo: name of the silo.
        witness: 32 bytes that stand for the last row of the silo's account and reveal nothing of
            it. The coordinator stores the latest and sends it with the next batch; a silo whose
            account lacks that row refuses. None for a silo without an account on disk.

    Raises ValueError if a value is none that it may be.
    """

    run_id: str
    batch_id: str
    silo: str
    witness: bytes | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_witness(self.witness)
        for name in ("run_id", "batch_id", "silo"):
            check_name(getattr(self, name), name)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RandomisedVotes(_Reply):
    """Randomised votes of one silo. They may be sent: each is what `mechanism` drew.

    Attributes:
        labels: int64 `[num_queries]`, at least 0, in the order of the batch's queries.
    """

    labels: IntArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = labels_array(self.labels, 2**16, "votes")
        if labels.ndim != 1 or not labels.size:
            raise ValueError(f"votes: expected [num_queries], got shape {labels.shape}")
        object.__setattr__(self, "labels", frozen_view(labels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SealedShares(_Reply):
    """Shares of one silo's votes, each sealed to one party.

    Attributes:
        sealed: one for each party, party 1 first.
    """

    sealed: tuple[bytes, ...] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        sealed = tuple(self.sealed)
        if not sealed or not all(isinstance(each, bytes) and each for each in sealed):
            raise ValueError("sealed: expected bytes for each party, got something else")
        object.__setattr__(self, "sealed", sealed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal(_Reply):
    """A silo's refusal of a whole batch, by its policy.

    Attributes:
        reason: why; says nothing about the silo's data.
    """

    reason: Reason

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reason, Reason):
            raise ValueError("reason: expected one of Reason, got another value")


Reply = RandomisedVotes | SealedShares | Refusal


def _check_witness(witness: bytes | None) -> None:
    if witness is not None and not (isinstance(witness, bytes) and len(witness) == WITNESS_BYTES):
        raise ValueError(f"witness: expected {WITNESS_BYTES} bytes or none, got something else")


def reply_digest(reply: Reply) -> bytes:
    """Returns what tells two replies apart: SHA-256 of all in one but its witness, 32 bytes.

    A silo that sends a stored reply again may have answered other batches since.
    """
    digest = hashlib.sha256()
    parts: tuple[bytes, ...]
    if isinstance(reply, RandomisedVotes):
        parts = (reply.labels.astype("<i8").tobytes(),)
    elif isinstance(reply, SealedShares):
        parts = reply.sealed
    else:
        parts = (reply.reason.value.encode(),)
    names = (type(reply).__name__, reply.run_id, reply.batch_id, reply.silo)
    for part in (*(name.encode() for name in names), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class Connection(Protocol):
    """What a silo needs of its coordinator. The silo dials.

    Both methods raise `ConnectionError` while the coordinator can't be reached.
    """

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does."""

    def submit(self, reply: Reply) -> Answer:
        """Hands over a reply. May be repeated: the second time the answer is `SAME`."""
