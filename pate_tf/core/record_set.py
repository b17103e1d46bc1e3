"""Which private records an ensemble was trained on, as digests: to recognise the same ones."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SKETCH_SIZE: Final = 64
DIGEST_BYTES: Final = 16
_BLOCK: Final = 4_096  # records whose bytes are copied at a time

Digests = npt.NDArray[np.uint8]  # [num_digests, DIGEST_BYTES]


def record_digests(inputs: npt.NDArray[Any]) -> Digests:
    """Returns the digest of each of raw inputs `[num_records, ...]`, uint8 `[num_records, 16]`."""
    found = bytearray()
    for start in range(0, len(inputs), _BLOCK):
        block = inputs[start : start + _BLOCK]
        rows = np.ascontiguousarray(block.reshape(len(block), -1), "<f4") + np.float32(0)
        size, data = rows[0].nbytes, rows.tobytes()  # -0.0 is 0.0
        for place in range(len(block)):
            row = data[place * size : (place + 1) * size]
            found += hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(bytes(found), np.uint8).reshape(len(inputs), DIGEST_BYTES)


def owner_digests(owners: npt.NDArray[Any]) -> Digests:
    """Returns a digest of each owner's name, uint8 `[num_owners, 16]`.

    A number and its digits are one name, as in `partition.owner_partition`.
    """
    found = b"".join(
        hashlib.blake2b(owner_name(one), digest_size=DIGEST_BYTES).digest()
        for one in owners.tolist()
    )
    return np.frombuffer(found, np.uint8).reshape(len(owners), DIGEST_BYTES)


def owner_name(owner: int | str | bytes) -> bytes:
    """Returns an owner's name as bytes; there are some of every string."""
    return owner if isinstance(owner, bytes) else str(owner).encode(errors="surrogatepass")


def digest_order(digests: Digests) -> npt.NDArray[np.int64]:
    """Returns the places of digests in ascending order; equal ones stay in theirs."""
    halves = np.ascontiguousarray(digests).view(">u8")
    return np.lexsort((halves[:, 1], halves[:, 0]))


def sorted_digests(digests: Digests) -> Digests:
    """Returns digests in ascending order."""
    return digests[digest_order(digests)]


def numbered_digests(digests: Digests) -> tuple[Digests, npt.NDArray[np.int64]]:
    """Returns digests in ascending order, each once, and the place there of each given one."""
    order = digest_order(digests)
    found = digests[order]
    is_first = np.ones(len(found), bool)
    is_first[1:] = (found[1:] != found[:-1]).any(axis=1)
    numbers = np.empty(len(found), np.int64)
    numbers[order] = np.cumsum(is_first) - 1
    return found[is_first], numbers


def fingerprint(
    digests: Digests, labels: npt.NDArray[np.int64], owners: Digests | None = None
) -> npt.NDArray[np.uint64]:
    """Returns numbers that recognise records with labels and owners, uint64 `[2]`.

    Those of disjoint sets add up, modulo 2^64, to that of their union; the order does not matter.
    Two sets that were not made to collide differ but for a chance of 2^-128.

    Args:
        digests: `record_digests`, `[num_records, 16]`.
        labels: `[num_records]`.
        owners: `owner_digests` of each record's owner; None for none.
    """
    lanes = np.ascontiguousarray(digests).view("<u8") * (2 * labels.astype(np.uint64) + 1)[:, None]
    if owners is not None:
        lanes = (lanes ^ (lanes >> np.uint64(31))) * (
            np.ascontiguousarray(owners).view("<u8") | np.uint64(1)
        )
    found: npt.NDArray[np.uint64] = lanes.sum(axis=0, dtype=np.uint64)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSet:
    """Sensitive: a set of private records, known by digests of what each holds but its label.

    Records are equal if their raw inputs hold the same numbers, in float32. The order of records,
    their type, their shape and their representation do not matter. Digests
    without a key confirm a guess at a record, so they stay below `sensitive/`; the registry keeps
    them keyed.

    Attributes:
        digest: of all records, hexadecimal.
        sketch: the smallest digests of single records, at most `SKETCH_SIZE`, hexadecimal. Two sets
            whose sketches meet share records; sets that share many have sketches that meet.
        num_records: how many there are. Public where single records are protected; not for owners.
    """

    digest: str = dataclasses.field(repr=False)
    sketch: tuple[str, ...] = dataclasses.field(repr=False)
    num_records: int = dataclasses.field(repr=False)

    @classmethod
    def of(cls, inputs: npt.NDArray[Any]) -> "RecordSet":
        """Returns the set of raw inputs `[num_records, ...]`."""
        return cls.of_sorted([sorted_digests(record_digests(inputs))])

    @classmethod
    def of_sorted(cls, parts: Iterable[Digests]) -> "RecordSet":
        """Returns the set of records whose digests ascend, within a part and from part to part."""
        digest, sketch, number = hashlib.sha256(), dict[str, None](), 0
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
            number += len(part)
            for one in part:
                if len(sketch) == SKETCH_SIZE:
                    break
                sketch[one.tobytes().hex()] = None
        return cls(digest=digest.hexdigest(), sketch=tuple(sketch), num_records=number)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, sensitive."""
        return {**dataclasses.asdict(self), "sketch": list(self.sketch)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "RecordSet":
        """Rebuilds what `to_dict` returned.

        Raises:
            ValueError: if it is none.
        """
        try:
            found = cls(
                digest=str(fields["digest"]),
                sketch=tuple(map(str, fields["sketch"])),
                num_records=int(fields["num_records"]),
            )
            for digest in (found.digest, *found.sketch):
                bytes.fromhex(digest)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                "record set: expected digests of records, got something else"
            ) from error
        return found
