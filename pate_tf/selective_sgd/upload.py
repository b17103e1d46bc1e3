"""What a participant uploads: which parameters, and the smallest of four encodings of them."""

import dataclasses
import struct

import numpy as np
import numpy.typing as npt

from pate_tf.core.validation import IntArray, frozen_view

FloatArray = npt.NDArray[np.float32]

MAGIC = b"SSGD"
# Magic, encoding, run, participant, round, version, number of parameters, number of changes.
HEADER = struct.Struct("<4sB16sIIQII")
DENSE, BITMAP, GAPS, INDICES = range(4)
BYTES_OF_VALUE = 4


def largest(changes: FloatArray, number: int) -> IntArray:
    """Returns the indices of the largest changes in absolute value, ascending, `[number]`.

    They depend on private records: without noise on them they protect no one.
    """
    if number >= len(changes):
        return np.arange(len(changes))
    return np.sort(np.argpartition(-np.abs(changes), number - 1)[:number])


def random_above(
    changes: FloatArray, number: int, tau: float, generator: np.random.Generator
) -> IntArray:
    """Returns indices of at most `number` random changes above tau in absolute value, ascending."""
    above = np.flatnonzero(np.abs(changes) > tau)
    return np.sort(generator.permutation(above)[:number])


def most_updated(
    counts: npt.NDArray[np.float64], number: int, generator: np.random.Generator
) -> IntArray:
    """Returns the indices of the largest counts, ascending, `[number]`; ties at random."""
    if number < 1:
        return np.zeros(0, np.int64)
    if number >= len(counts):
        return np.arange(len(counts))
    order = np.lexsort((generator.random(len(counts)), -counts))
    return np.sort(order[:number])


class RefusedUploadError(ValueError):
    """An upload that the server did not apply, and why, in one line without any value of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Upload:
    """SENSITIVE unless it was noised: changes of some parameters by one participant.

    Attributes:
        run: 16 bytes that name the run, so that no upload of another run is applied.
        participant: who sends it, from 0.
        round: of the participant, from 0. Participant and round are the key: applied once.
        version: of the parameters that the participant trained on.
        num_parameters: how many the model has.
        indices: int64 `[num_changes]`, ascending, of the parameters that change.
        values: float32 `[num_changes]`, what is added to them.
    """

    run: bytes
    participant: int
    round: int
    version: int
    num_parameters: int
    indices: IntArray = dataclasses.field(repr=False)
    values: FloatArray = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", frozen_view(np.asarray(self.indices, np.int64)))
        object.__setattr__(self, "values", frozen_view(np.asarray(self.values, np.float32)))


def dense_bytes(num_parameters: int) -> int:
    """Returns the bytes of an upload of all changes, without the header."""
    return BYTES_OF_VALUE * num_parameters


def _bytes_of_indices(encoding: int, size: int, count: int) -> int:
    """Returns how long the part of an encoding is that says which parameters change."""
    return {DENSE: 0, BITMAP: -(-size // 8), GAPS: 2 * count, INDICES: 4 * count}[encoding]


def encode(upload: Upload) -> bytes:
    """Returns the bytes of an upload, in the smallest encoding.

    All changes without indices; a bit for each parameter; 16-bit gaps between indices; or 32-bit
    indices. A bitmap is smaller than gaps where more than a sixteenth is uploaded.
    """
    size, count = upload.num_parameters, len(upload.indices)
    gaps = np.diff(upload.indices, prepend=-1) - 1
    possible = [DENSE] if count == size else [BITMAP, INDICES]
    if count < size and (not count or gaps.max() < 2**16):
        possible.append(GAPS)
    encoding = min(possible, key=lambda one: _bytes_of_indices(one, size, count))
    where = b""
    if encoding == BITMAP:
        bits = np.zeros(size, np.bool_)
        bits[upload.indices] = True
        where = np.packbits(bits).tobytes()
    elif encoding == GAPS:
        where = gaps.astype("<u2").tobytes()
    elif encoding == INDICES:
        where = upload.indices.astype("<u4").tobytes()
    who = (upload.run, upload.participant, upload.round, upload.version)
    header = HEADER.pack(MAGIC, encoding, *who, size, count)
    return header + where + upload.values.astype("<f4").tobytes()


def decode(content: bytes, *, num_parameters: int, most: int) -> Upload:
    """Reads an upload; nothing of its size is allocated before its length is checked.

    Args:
        content: what `encode` returned.
        num_parameters: how many the model has.
        most: how many changes are allowed.

    Raises:
        RefusedUploadError: if it is none, for another model, or too large. Its values are not
            looked at.
    """
    if len(content) < HEADER.size:
        raise RefusedUploadError(
            f"upload: expected at least {HEADER.size} bytes, got {len(content)}"
        )
    magic, encoding, run, participant, turn, version, size, count = HEADER.unpack_from(content)
    if magic != MAGIC or encoding not in (DENSE, BITMAP, GAPS, INDICES):
        raise RefusedUploadError("upload: expected an upload of selective SGD, got other bytes")
    if size != num_parameters:
        raise RefusedUploadError(
            f"upload: expected changes of {num_parameters} parameters, got {size}"
        )
    if count > most:
        raise RefusedUploadError(f"upload: expected at most {most} changes, got {count}")
    if encoding == DENSE and count != size:
        raise RefusedUploadError(f"upload: expected all {size} changes without indices")
    length = _bytes_of_indices(encoding, size, count)
    expected = HEADER.size + length + BYTES_OF_VALUE * count
    if len(content) != expected:
        raise RefusedUploadError(f"upload: expected {expected} bytes, got {len(content)}")
    where = content[HEADER.size : HEADER.size + length]
    if encoding == DENSE:
        indices = np.arange(size)
    elif encoding == BITMAP:
        bits = np.unpackbits(np.frombuffer(where, np.uint8))
        indices = np.flatnonzero(bits[:size])
        if len(indices) != count or bits[size:].any():
            raise RefusedUploadError(f"upload: expected a bitmap of {count} parameters")
    elif encoding == GAPS:
        indices = np.cumsum(np.frombuffer(where, "<u2").astype(np.int64) + 1) - 1
    else:
        indices = np.frombuffer(where, "<u4").astype(np.int64)
    return Upload(
        run=run,
        participant=participant,
        round=turn,
        version=version,
        num_parameters=size,
        indices=indices,
        values=np.frombuffer(content, "<f4", offset=HEADER.size + length),
    )
