"""Digests of private records: of single ones in memory, and a keyed one of all to store."""

import hashlib
import hmac
from typing import Any, Final

import numpy as np
import numpy.typing as npt

DIGEST_BYTES: Final = 16
RECORD_KEY: Final = np.frombuffer(b"records", np.uint8)  # whose `private_digest` is the key
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


def owner_digests(owners: npt.NDArray[Any], key: bytes) -> npt.NDArray[np.bytes_]:
    """Returns a keyed digest of each record's owner, 16 bytes each, `[num_records]`.

    A number and its digits are one name, as in `partition.owner_partition`.
    """
    names, inverse = np.unique(owners, return_inverse=True)
    digests = [
        hashlib.blake2b(owner_name(name), key=key, digest_size=DIGEST_BYTES).digest()
        for name in names.tolist()
    ]
    return np.array(digests, f"S{DIGEST_BYTES}")[inverse]


def owner_name(owner: int | str | bytes) -> bytes:
    """Returns an owner's name as bytes; there are some of every string."""
    return owner if isinstance(owner, bytes) else str(owner).encode(errors="surrogatepass")


def keyed_sum(
    key: bytes,
    digests: Digests,
    labels: npt.NDArray[np.int64],
    owners: npt.NDArray[np.bytes_] | None = None,
) -> npt.NDArray[np.uint64]:
    """Returns the sum of HMAC-SHA256 of each record with its label and owner, uint64 `[4]`.

    Modulo 2^64 each, sums of disjoint records add up to that of their union, in any order. Without
    the key they say nothing of the records.

    Args:
        key: of the run.
        digests: `record_digests`, `[num_records, 16]`.
        labels: `[num_records]`.
        owners: `owner_digests`, `[num_records]`; None for none.
    """
    total = np.zeros(4, np.uint64)
    for start in range(0, len(digests), _BLOCK):
        some = slice(start, start + _BLOCK)
        columns = [digests[some], labels[some].astype("<i8")[:, None].view(np.uint8)]
        if owners is not None:
            columns.append(owners[some, None].view(np.uint8))
        rows = np.concatenate(columns, axis=1)
        codes = b"".join(hmac.digest(key, row.tobytes(), "sha256") for row in rows)
        total += np.frombuffer(codes, "<u8").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return total
