"""Identifies the private data of a run, computes digests of records, and compares settings."""

import contextlib
import dataclasses
import functools
import hashlib
import hmac
import json
import os
import pathlib
import re
import secrets
import unicodedata
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts

MAX_NAME: Final = 120  # characters
KEY_FILE: Final = "digest.key"
KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 16
PRIVATE_RECORDS: Final = "records"  # key of a digest; if it differs, a run still continues
# Prefixes of `PrivateSource.key`. A key without one of these prefixes contains a path.
NAMED, OF_FILE = "name ", "file "
MERGED = "merged "  # only in ledgers of earlier versions
# Names of folders and files that are too common to identify a source.
GENERIC: Final = ("data", "images", "private", "records", "table", "train")
# Characters that are invisible (Default_Ignorable_Code_Point of Unicode 15). Names that differ only
# in such characters look equal.
INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_BLOCK: Final = 4_096  # number of records that are copied at once

Digests = npt.NDArray[np.uint8]  # [num_digests, DIGEST_BYTES]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSource:
    """The private data that a release is charged to, identified by the data holder's name for it.

    Releases with the same name are charged to the same source. The records are never compared,
    because the result of a comparison would reveal private information. The costs of all releases
    under one name add up, even if the records changed in between. The total is therefore valid for
    every record that ever belonged to the source. The data holder must not use two names for the
    same records.

    Attributes:
        name: public name in privacy statements; None if the run folder itself identifies the data.
        key: text that identifies the source in ledgers: the name, or the absolute path of a file or
            folder. A path never leaves `sensitive/`.
    """

    name: str | None
    key: str = dataclasses.field(repr=False)

    @classmethod
    def named(cls, name: str) -> Self:
        """Returns the source with a name, or of a file if the name is its absolute path.

        Raises:
            ValueError: if the name is empty or too long, or contains `|`, a line break or an
                invisible character.
        """
        if name.startswith("/") and name.strip("/"):
            return cls.of_file(name)
        is_visible = name.isprintable() and not INVISIBLE.search(name)
        if not 0 < len(name.strip()) <= MAX_NAME or not is_visible or "|" in name:
            raise ValueError(
                f"source_name must have 1 to {MAX_NAME} characters, no |, got {name[:MAX_NAME]!a}"
            )
        return cls(name=name, key=f"{NAMED}{name}")

    @property
    def is_named(self) -> bool:
        """Whether the user named the source. If not, its key contains a path."""
        return self.key.startswith((NAMED, MERGED))

    @classmethod
    def of_file(cls, path: pathlib.Path | str, declared: str | None = None) -> Self:
        """Returns the source of a private file, folder or URL.

        The name of the source is `declared` if given, else the name of the file. If the file name
        is very common (`GENERIC`), the name of its folder is put before it.
        """
        if declared is not None:
            return cls.named(declared)
        written = str(path).removeprefix("file://")
        place = written if "://" in written else pathlib.Path(written).resolve()
        name = pathlib.Path(place).stem
        if name.casefold() in GENERIC and (around := pathlib.Path(place).parent.name):
            name = f"{around} {name}"
        return cls(name=name, key=f"{OF_FILE}{place}")

    def shares(self, key: str) -> bool:
        """Whether a key belongs to this source, or to a source that shares a part with it.

        Reports show only names. Therefore all files with the same default name, and a source that
        the user gave this name, are one source: the costs of the same records must not be missed.
        """
        return not _keys(self.key).isdisjoint(_keys(key))

    def check_stored(self, stored: "PrivateSource | None", folder: pathlib.Path) -> None:
        """Raises ValueError if this source has a name and `stored` is another source."""
        if self.is_named and not (stored and self.shares(stored.key)):
            raise ValueError(
                f"{folder} has results from a source other than {self.name}. Use another folder."
            )


@functools.lru_cache(maxsize=4_096)
def _keys(key: str) -> frozenset[str]:
    """Returns the keys of a source and of its parts in a normalized form for comparisons."""
    if key.startswith(MERGED):
        return frozenset[str]().union(*map(_keys, json.loads(key.removeprefix(MERGED))))
    if key.startswith(OF_FILE):
        return frozenset([key]) | _keys(f"{NAMED}{PrivateSource.of_file(key[len(OF_FILE) :]).name}")
    if not key.startswith(NAMED):
        return frozenset([key])
    folded = unicodedata.normalize("NFKD", " ".join(key.removeprefix(NAMED).split())).casefold()
    return frozenset([NAMED + unicodedata.normalize("NFKC", folded)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """SENSITIVE: the number of private records and their source, stored with results.

    Attributes:
        num_records: number of records. The number is public if individual records are protected,
            and private if owners are protected.
        source: private data source to which releases are charged; None if the run folder itself
            identifies the data.
    """

    num_records: int = dataclasses.field(repr=False)
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds the object from the result of `dataclasses.asdict`, or from a JSON copy of it.

        Raises:
            ValueError: if the fields are invalid.
        """
        source = fields.get("source")
        is_source = source is None or set(source) == {"name", "key"}
        if not (is_source and isinstance(fields.get("num_records"), int)):
            raise ValueError("records: the stored number or source is invalid")
        made = None if source is None else PrivateSource(**source)
        return cls(num_records=fields["num_records"], source=made)


# Keyed digests of private values. Without the key, nobody can check a guess of a value against a
# digest.


def private_digest(sensitive_folder: pathlib.Path, *arrays: npt.NDArray[Any]) -> str:
    """Returns the hexadecimal HMAC-SHA256 of the dtype, shape and bytes of arrays.

    With a plain digest of private records, anybody could check a guess of the records. With a keyed
    digest, such a check needs the key. The key is drawn at first use and stored in the folder with
    mode 0600.

    Args:
        sensitive_folder: a run's `sensitive/`, or a folder below it; created if necessary.
        *arrays: private values, as arrays of numbers or strings.

    Raises:
        ValueError: if the key file is invalid, or an array contains other objects.
        OSError: if the key can't be read or written.
    """
    path = artifacts.make_sensitive_folder(sensitive_folder) / KEY_FILE
    if not path.exists():
        temporary = artifacts.temporary_name(path)
        with artifacts.atomic_file(temporary, private=True) as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with artifacts.lease(temporary):
            # If two processes write a key at the same time, the first key is kept.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
            temporary.unlink()
        artifacts.sync_folder(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} must contain a key of {KEY_BYTES} bytes, got {len(key)}")
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for array in arrays:
        if array.dtype.hasobject:
            raise ValueError("private values must be numbers or strings, got objects")
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def record_digests(inputs: npt.NDArray[Any]) -> Digests:
    """Returns a digest of each raw input `[num_records, ...]`, uint8 `[num_records, 16]`."""
    digests = bytearray()
    for start in range(0, len(inputs), _BLOCK):
        block = inputs[start : start + _BLOCK]
        rows = np.ascontiguousarray(block.reshape(len(block), -1), "<f4")
        for row in rows + np.float32(0):  # -0.0 becomes 0.0
            digests += hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest()
    return np.frombuffer(bytes(digests), np.uint8).reshape(len(inputs), DIGEST_BYTES)


def owner_digests(owners: npt.NDArray[Any], key: bytes) -> npt.NDArray[np.bytes_]:
    """Returns a keyed digest of 16 bytes for each record's owner, `[num_records]`.

    A number and a text with its digits are the same owner, as in `sensitive.owner_partition`.
    """
    names, inverse = np.unique(owners, return_inverse=True)
    digests = [
        hashlib.blake2b(owner_name(name), key=key, digest_size=DIGEST_BYTES).digest()
        for name in names.tolist()
    ]
    return np.array(digests, f"S{DIGEST_BYTES}")[inverse]


def owner_name(owner: int | str | bytes) -> bytes:
    """Returns an owner's name as bytes. Strings that are not valid Unicode are allowed."""
    return owner if isinstance(owner, bytes) else str(owner).encode(errors="surrogatepass")


def content_sum(digests: Digests, labels: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """SENSITIVE: returns one digest of a set of labeled records, uint64 `[4]`.

    The result is the sum modulo 2^64 of one digest for each pair of a record and its label. The
    order of the records does not matter, and the sums of disjoint sets add up to the sum of their
    union.

    Args:
        digests: result of `record_digests`, `[num_records, 16]`.
        labels: labels in the format of `checked_labels`.
    """
    total = np.zeros(4, np.uint64)
    coded = labels.astype("<f8" if labels.dtype.kind == "f" else "<i8")
    for start in range(0, len(digests), _BLOCK):
        some = slice(start, start + _BLOCK)
        columns = [digests[some], coded[some].reshape(len(digests[some]), -1).view(np.uint8)]
        rows = np.concatenate(columns, axis=1)
        codes = b"".join(hmac.digest(b"", row.tobytes(), "sha256") for row in rows)
        total += np.frombuffer(codes, "<u8").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return total


def check_same_settings(
    stored: Mapping[str, Any], settings: Mapping[str, Any], *, folder: pathlib.Path, holds: str
) -> None:
    """Checks that a folder contains a run with the same public settings.

    Args:
        stored: settings that were read from the folder: JSON values by name.
        settings: current settings: JSON values, or tuples of JSON values, by name.
        folder: path of the folder, for the message.
        holds: what the folder contains, for the message; for example, "teachers".

    Raises:
        ValueError: if settings differ. The message contains their names but not their values.
    """
    wanted = json.loads(json.dumps(settings))  # tuples become lists
    differing = [
        name
        for name in {**wanted, **stored}
        if json.dumps([name in stored, stored.get(name)])
        != json.dumps([name in wanted, wanted.get(name)])
    ]
    if differing:
        raise ValueError(
            f"{folder} has {holds} with other settings: {', '.join(differing)}. Use another folder."
        )
