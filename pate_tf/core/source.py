"""The private data source of a run: its name, keyed digests of its records, equal settings."""

import contextlib
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts

LONGEST_NAME: Final = 120
KEY_FILE: Final = "digest.key"
KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 16
RECORD_KEY: Final = np.frombuffer(b"records", np.uint8)  # whose `private_digest` is the key
PRIVATE_RECORDS: Final = "records"  # of a private digest, among settings
_BLOCK: Final = 4_096  # records whose bytes are copied at a time

Digests = npt.NDArray[np.uint8]  # [num_digests, DIGEST_BYTES]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSource:
    """Which private data a release is charged to, by a name that the data holder gives.

    Whether two releases are charged to one source follows from names alone, never from the records:
    "are these the same records?" is a query on private data. All releases under one name add up,
    whether or not the records changed in between, which bounds what they tell of any record that
    was ever among them. Two names for the same records are the holder's to avoid.

    Attributes:
        name: public, for statements; None where a run folder is its own source.
        key: what ledgers know it by: the name, or the absolute path of a file or folder, which
            stays below `sensitive/`.
    """

    name: str | None
    key: str = dataclasses.field(repr=False)

    @classmethod
    def named(cls, name: str) -> Self:
        """Returns the source of a name.

        Raises:
            ValueError: if the name is empty, too long, or not printable on one line of a table.
        """
        if not 0 < len(name.strip()) <= LONGEST_NAME or not name.isprintable() or "|" in name:
            raise ValueError(
                f"source_name: expected 1 to {LONGEST_NAME} printable characters without |, got "
                f"{name[:LONGEST_NAME]!r}"
            )
        return cls(name=name, key=f"name {name}")

    @property
    def is_named(self) -> bool:
        """Whether it is known by its name alone, wherever the records lie."""
        return self.key == f"name {self.name}"

    @classmethod
    def of_file(cls, path: pathlib.Path | str) -> Self:
        """Returns the source of a private file, folder or URL without a name of its own."""
        place = path if "://" in str(path) else pathlib.Path(path).resolve()
        return cls(name=pathlib.Path(path).stem, key=f"file {place}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """SENSITIVE: what is stored of the private records beside what was computed from them.

    Attributes:
        num_records: how many there are. Public where single records are protected; not for owners.
        source: that their releases are charged to; None where the run folder is its own.
    """

    num_records: int = dataclasses.field(repr=False)
    source: PrivateSource | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds what `dataclasses.asdict` returned, through JSON or not.

        Raises:
            ValueError: if it is none.
        """
        source = fields.get("source")
        is_source = source is None or set(source) == {"name", "key"}
        if not (is_source and isinstance(fields.get("num_records"), int)):
            raise ValueError("records: expected their number and source, got others")
        made = None if source is None else PrivateSource(**source)
        return cls(num_records=fields["num_records"], source=made)


# Keyed digests of private values: they tell equal from different to holders of the key alone.


def private_digest(sensitive_folder: pathlib.Path, *arrays: npt.NDArray[Any]) -> str:
    """Returns the HMAC-SHA256 of arrays, by dtype, shape and bytes, as hexadecimal digits.

    A plain digest of private records confirms a guess at them. This one does so with the key alone,
    which is drawn at first use and lies in the folder with mode 0600.

    Args:
        sensitive_folder: a run's `sensitive/`, or a folder below it; created if need be.
        arrays: of any numeric or string type.

    Raises:
        ValueError: if the key file holds something else, or an array holds objects.
        OSError: if the key can't be read or written.
    """
    path = artifacts.make_sensitive_folder(sensitive_folder) / KEY_FILE
    if not path.exists():
        temporary = artifacts.temporary_name(path)
        with artifacts.atomic_file(temporary, private=True) as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # of two processes, the first one's key stays
            os.link(temporary, path)
        temporary.unlink()
        artifacts.sync_folder(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path}: expected a key of {KEY_BYTES} bytes, got {len(key)}")
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for array in arrays:
        if array.dtype.hasobject:
            raise ValueError("private values: expected numbers or strings, got objects")
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def record_digests(inputs: npt.NDArray[Any]) -> Digests:
    """Returns the digest of each of raw inputs `[num_records, ...]`, uint8 `[num_records, 16]`."""
    digests = bytearray()
    for start in range(0, len(inputs), _BLOCK):
        block = inputs[start : start + _BLOCK]
        rows = np.ascontiguousarray(block.reshape(len(block), -1), "<f4") + np.float32(0)
        size, data = rows[0].nbytes, rows.tobytes()  # -0.0 is 0.0
        for place in range(len(block)):
            row = data[place * size : (place + 1) * size]
            digests += hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(bytes(digests), np.uint8).reshape(len(inputs), DIGEST_BYTES)


def owner_digests(owners: npt.NDArray[Any], key: bytes) -> npt.NDArray[np.bytes_]:
    """Returns a keyed digest of each record's owner, 16 bytes each, `[num_records]`.

    A number and its digits are one name, as in `sensitive.owner_partition`.
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


def check_same_settings(
    stored: Mapping[str, Any], settings: Mapping[str, Any], *, folder: pathlib.Path, holds: str
) -> None:
    """Checks that a folder holds a run of the same settings and private records.

    Args:
        stored: settings by name, JSON values, as they were read from the folder.
        settings: as they are now, JSON values or tuples of them.
        folder: for the message.
        holds: what the folder holds, for the message.

    Raises:
        ValueError: if they differ. It names the settings that do, and shows no value.
    """
    wanted = json.loads(json.dumps(settings))  # as they are read back: tuples are lists
    differing = [
        "private records" if name == PRIVATE_RECORDS else name
        for name in {**wanted, **stored}
        if json.dumps([name in stored, stored.get(name)])
        != json.dumps([name in wanted, wanted.get(name)])
    ]
    if differing:
        raise ValueError(
            f"{folder} holds {holds} of other settings: {', '.join(differing)}; choose another "
            f"folder or remove it"
        )
