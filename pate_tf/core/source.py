"""The private data source of a run: its name, keyed digests of its records, equal settings."""

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
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts

LONGEST_NAME: Final = 120
KEY_FILE: Final = "digest.key"
KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 16
PRIVATE_RECORDS: Final = "records"  # among stored settings, a digest that never stops a run
# How keys of sources begin.
NAMED = "name "
MERGED = "merged "
# Folders and files whose name does not tell one project from another.
GENERIC: Final = ("data", "images", "private", "records", "table", "train")
# Printable characters that show nothing (Default_Ignorable_Code_Point of Unicode 15): two names
# that differ by them look the same.
INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
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
            ValueError: if the name is empty, too long, or not visible on one line of a table.
        """
        is_visible = name.isprintable() and not INVISIBLE.search(name)
        if not 0 < len(name.strip()) <= LONGEST_NAME or not is_visible or "|" in name:
            raise ValueError(
                f"source_name: expected 1 to {LONGEST_NAME} visible characters without |, got "
                f"{name[:LONGEST_NAME]!a}"
            )
        return cls(name=name, key=f"{NAMED}{name}")

    @property
    def is_named(self) -> bool:
        """Whether a person named it, wherever the records lie."""
        return self.key.startswith((NAMED, MERGED))

    @classmethod
    def of_file(cls, path: pathlib.Path | str, declared: str | None = None) -> Self:
        """Returns the source of a private file, folder or URL.

        It has the name that a person declared; else it is called as the file is, and after the
        folder around it, too, if every project has files of that name.
        """
        if declared is not None:
            return cls.named(declared)
        written = str(path).removeprefix("file://")
        place = written if "://" in written else pathlib.Path(written).resolve()
        name = pathlib.Path(place).stem
        if name.casefold() in GENERIC and (around := pathlib.Path(place).parent.name):
            name = f"{around} {name}"
        return cls(name=name, key=f"file {place}")

    @classmethod
    def merged(cls, parts: Iterable[Self], name: str | None = None) -> Self:
        """Returns the source of records of several sources, to each of which all is charged.

        Args:
            parts: the sources.
            name: of all together. Default: the names of the parts.
        """
        declared = [] if name is None else [cls.named(name)]
        sources = list({each.key: each for each in [*declared, *parts]}.values())
        if len(sources) == 1:
            return sources[0]
        shown = name or ", ".join(sorted({each.name or "merged runs" for each in sources}))
        if len(shown) > LONGEST_NAME:
            shown = f"{len(sources)} merged sources"
        keys = frozenset[str]().union(*(_keys(each.key) for each in sources))
        return cls(name=shown, key=MERGED + json.dumps(sorted(keys)))

    def shares(self, key: str) -> bool:
        """Whether the source of a key is this one, however it is spelled, or both have a part."""
        return not _keys(self.key).isdisjoint(_keys(key))

    def check_stored(self, stored: "PrivateSource | None", folder: pathlib.Path) -> None:
        """Raises ValueError if a folder's results are of another source than this, a named one."""
        if self.is_named and not (stored and self.shares(stored.key)):
            raise ValueError(
                f"{folder} holds results of a source that was not named {self.name}; choose "
                f"another folder or the earlier name"
            )


@functools.lru_cache(maxsize=4_096)
def _keys(key: str) -> frozenset[str]:
    """Returns the keys that a source is compared by: of each part, with one spelling of a name."""
    if key.startswith(MERGED):
        return frozenset[str]().union(*map(_keys, json.loads(key.removeprefix(MERGED))))
    if not key.startswith(NAMED):
        return frozenset([key])
    folded = unicodedata.normalize("NFKD", " ".join(key.removeprefix(NAMED).split())).casefold()
    return frozenset([NAMED + unicodedata.normalize("NFKC", folded)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """SENSITIVE: what is stored of the private records beside what was computed from them.

    Attributes:
        num_records: how many there are. Public where single records are protected; not for owners.
        source: that their releases are charged to; None where the run folder is its own.
    """

    num_records: int = dataclasses.field(repr=False)
    source: PrivateSource | None = dataclasses.field(default=None, repr=False)

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
        with artifacts.lease(temporary):
            # Of two processes, the first one's key stays.
            with contextlib.suppress(FileExistsError):
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
        rows = np.ascontiguousarray(block.reshape(len(block), -1), "<f4")
        for row in rows + np.float32(0):  # -0.0 is 0.0
            digests += hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest()
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


def content_sum(digests: Digests, labels: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """SENSITIVE: returns a sum of digests of records with their labels, uint64 `[4]`.

    Modulo 2^64 each, sums of disjoint records add up to that of their union, in any order.

    Args:
        digests: `record_digests`, `[num_records, 16]`.
        labels: as of `checked_labels`.
    """
    total = np.zeros(4, np.uint64)
    coded = labels.astype("<f8" if labels.dtype.kind == "f" else "<i8").reshape(len(labels), -1)
    for start in range(0, len(digests), _BLOCK):
        some = slice(start, start + _BLOCK)
        columns = [digests[some], coded[some].view(np.uint8)]
        rows = np.concatenate(columns, axis=1)
        codes = b"".join(hmac.digest(b"", row.tobytes(), "sha256") for row in rows)
        total += np.frombuffer(codes, "<u8").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return total


def check_same_settings(
    stored: Mapping[str, Any], settings: Mapping[str, Any], *, folder: pathlib.Path, holds: str
) -> None:
    """Checks that a folder holds a run of the same settings, all of them public.

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
        name
        for name in {**wanted, **stored}
        if json.dumps([name in stored, stored.get(name)])
        != json.dumps([name in wanted, wanted.get(name)])
    ]
    if differing:
        raise ValueError(
            f"{folder} holds {holds} of other settings: {', '.join(differing)}; choose another "
            f"folder or remove it"
        )
